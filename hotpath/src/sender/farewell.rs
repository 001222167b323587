//! Control requests: the farewell, and a probe of the peer's device.

use core::ops::Deref;

use doorbell_core::provider::{
    Operation, PostError, PostFlags, PushError, SendBatch as _, SendQueue, Window,
};
use doorbell_core::{Ticket, WcStatus};

use super::{Known, Sender, UNREPORTED, UnpostedReason};
use crate::credits::Grants;
use crate::marks::Mark;
use crate::{FirstCause, Statistics};

/// The immediate value of a farewell. An application may use the same value: a farewell is also checked by its
/// count.
pub const FAREWELL: u32 = 0x6661_7265;

/// The bytes of a farewell: the peer's word.
pub const FAREWELL_BYTES: usize = 8;

impl<Q, Bytes, W, L, S> Sender<Q, Bytes, W, L, S>
where
    Q: SendQueue,
    Bytes: AsRef<[u8]> + AsMut<[u8]>,
    W: Deref<Target: Window>,
    L: Deref<Target = Grants>,
    S: Deref<Target = Statistics>,
{
    /// Posts a farewell after all posted requests: one signaled request that consumes a receive of the peer and
    /// carries the number of messages. Afterwards no message is accepted, and no receives are announced.
    ///
    /// # Errors
    /// The peer has no receive left, the queue is full, or the device refused.
    pub fn say_farewell(&mut self) -> Result<(), UnpostedReason> {
        let credits = &mut self.flow.credits;
        if let Some(announced) = self.flow.word.load() {
            credits.learn(announced);
        }
        if credits.available() == 0 {
            return Err(PushError::NoCredit.into());
        }
        let word = self.flow.announcer.write_farewell(credits.sent());
        self.post_aside(Operation::WriteWithImmediate(word, FAREWELL), FAREWELL_BYTES)?;
        self.leave();
        Ok(())
    }

    /// Posts a farewell that is only written into the peer's word, for a peer without a receive for it. The peer finds
    /// it when its end of the connection fails.
    ///
    /// # Errors
    /// The queue is full, or the device refused.
    pub fn leave_farewell(&mut self) -> Result<(), UnpostedReason> {
        let word = self.flow.announcer.write_farewell(self.flow.credits.sent());
        self.post_aside(Operation::Write(word), FAREWELL_BYTES)?;
        self.leave();
        Ok(())
    }

    /// Posts a probe, which the peer's device answers: a signaled WRITE of zero bytes.
    ///
    /// # Errors
    /// The queue is full, or the device refused.
    pub fn probe(&mut self) -> Result<(), UnpostedReason> {
        let ticket = self.post_aside(Operation::Write(self.flow.announcer.word()), 0)?;
        if self.cause().is_none() {
            self.known = Known::Probed(ticket);
        }
        Ok(())
    }

    /// Notes that the last probe was not answered in the caller's time. This becomes the cause of the failure, unless another cause is
    /// known.
    pub fn note_unanswered(&mut self) {
        if let Known::Probed(ticket) = self.known {
            self.note_failed(FirstCause {
                status: WcStatus::RESP_TIMEOUT_ERR,
                ticket,
                vendor_error: 0,
            });
        }
    }

    /// Stops accepting messages, whatever the peer announces, and stops announcing receives.
    pub fn leave(&mut self) {
        self.flow.credits.revoke();
        self.flow.announcer.note_left();
    }

    /// Whether a farewell was posted, or [`Sender::leave`] was called because of the peer's.
    #[must_use]
    pub const fn has_left(&self) -> bool {
        self.flow.announcer.has_left()
    }

    /// Whether the last posted request is a probe that is in flight.
    pub fn awaits_probe(&mut self) -> bool {
        let Known::Probed(probe) = self.known else {
            return false;
        };
        // Completions are in order, so the probe, as the last request, is in flight if any control request is.
        self.announcements != 0 && self.queue.stage().next() == probe.forward(1)
    }

    /// Returns a count that changes whenever a message or an announcement is posted.
    #[must_use]
    pub const fn went_out(&self) -> u32 {
        self.flow
            .credits
            .sent()
            .wrapping_add(self.flow.announcer.announced())
    }

    /// Posts `length` of the announcer's bytes by a signaled control request.
    fn post_aside(&mut self, operation: Operation, length: usize) -> Result<Ticket, UnpostedReason> {
        let bytes = self.flow.announcer.bytes();
        let bytes = bytes.get(..length).unwrap_or_default();
        let flags = PostFlags::SIGNALED | PostFlags::SOLICITED;
        let mut batch = self.queue.stage();
        let ticket = batch.push_inline(operation, bytes, flags)?;
        self.marks.view().set(ticket.position(), Mark::Announcement);
        let outcome = batch.ring();
        let (Ok(posted) | Err(PostError { posted, .. })) = outcome;
        match &outcome {
            Ok(_) => self.statistics.doorbell(posted, 0, 0),
            Err(_) => self.statistics.refusal(posted),
        }
        if posted > 0 {
            self.announcements = self.announcements.saturating_add(1);
            // On an error it is unknown whether the device has the request, so a completion may never come.
            self.unsignaled = if outcome.is_ok() { 0 } else { UNREPORTED };
        }
        outcome?;
        Ok(ticket)
    }
}
