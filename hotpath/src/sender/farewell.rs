//! Requests beside messages: farewell, and a probe whether the peer is alive.

use core::ops::Deref;

use doorbell_core::provider::{
    Operation, PostError, PostFlags, PushError, SendBatch as _, SendQueue, Window,
};
use doorbell_core::{Ticket, WcStatus};

use super::{Known, Sender, UNREPORTED, UnpostedReason};
use crate::credits::Grants;
use crate::marks::Mark;
use crate::{FirstCause, Statistics};

/// The immediate of a farewell. An application may use the same number: a farewell is recognized by its count,
/// too.
pub const FAREWELL: u32 = 0x6661_7265;

/// Its bytes: the peer's word.
pub const FAREWELL_BYTES: usize = 8;

impl<Q, Bytes, W, L, S> Sender<Q, Bytes, W, L, S>
where
    Q: SendQueue,
    Bytes: AsRef<[u8]> + AsMut<[u8]>,
    W: Deref<Target: Window>,
    L: Deref<Target = Grants>,
    S: Deref<Target = Statistics>,
{
    /// Says farewell after all posted requests, by one signaled request that takes a receive of the peer and
    /// carries the number of messages. No message is accepted afterwards, and no receives are announced.
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

    /// Writes a farewell into the peer's word, if the peer has no receive for one. The peer finds it once the
    /// connection fails there.
    ///
    /// # Errors
    /// The queue is full, or the device refused.
    pub fn leave_farewell(&mut self) -> Result<(), UnpostedReason> {
        let word = self.flow.announcer.write_farewell(self.flow.credits.sent());
        self.post_aside(Operation::Write(word), FAREWELL_BYTES)?;
        self.leave();
        Ok(())
    }

    /// Asks the peer's device for a sign of life, by a request of no bytes that is signaled.
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

    /// Notes that the last probe has no answer within the caller's patience: the cause of the failure that the caller brings about,
    /// unless another one is known.
    pub fn note_unanswered(&mut self) {
        if let Known::Probed(ticket) = self.known {
            self.note_failed(FirstCause {
                status: WcStatus::RESP_TIMEOUT_ERR,
                ticket,
                vendor_error: 0,
            });
        }
    }

    /// Accepts no message any more, whatever the peer announces, and announces nothing.
    pub fn leave(&mut self) {
        self.flow.credits.revoke();
        self.flow.announcer.note_left();
    }

    /// Whether farewell was said, or the peer's was heard.
    #[must_use]
    pub const fn has_left(&self) -> bool {
        self.flow.announcer.has_left()
    }

    /// Whether the last request that was posted is a probe, and is in flight.
    pub fn awaits_probe(&mut self) -> bool {
        let Known::Probed(probe) = self.known else {
            return false;
        };
        // Completions come in order: the last request is in flight if any of those is that are not the caller's.
        self.announcements != 0 && self.queue.stage().next() == probe.forward(1)
    }

    /// Returns a count that moves whenever a message or an announcement goes out.
    #[must_use]
    pub const fn went_out(&self) -> u32 {
        self.flow
            .credits
            .sent()
            .wrapping_add(self.flow.announcer.announced())
    }

    /// Posts so many of the announcer's bytes by a signaled request that is not the caller's.
    fn post_aside(&mut self, operation: Operation, length: usize) -> Result<Ticket, UnpostedReason> {
        let bytes = self.flow.announcer.bytes();
        let bytes = bytes.get(..length).unwrap_or_default();
        let flags = PostFlags::SIGNALED | PostFlags::SOLICITED;
        let mut batch = self.queue.stage();
        let ticket = batch.push_inline(operation, bytes, flags)?;
        self.marks.view().set(ticket.position(), Mark::Announcement);
        let outcome = batch.ring();
        let (Ok(posted) | Err(PostError { posted, .. })) = outcome;
        self.statistics.doorbell(posted, 0, 0);
        if posted > 0 {
            self.announcements = self.announcements.saturating_add(1);
            // A device that refuses it without saying so may have it or not, and then no completion comes.
            self.unsignaled = if outcome.is_ok() { 0 } else { UNREPORTED };
        }
        if let Err(error) = outcome {
            self.statistics.refused.add(1);
            return Err(error.into());
        }
        Ok(ticket)
    }
}
