//! The sending half: doorbell batching, selective signaling and credits over a provider's send queue.

use core::fmt;
use core::ops::Deref;

use doorbell_core::Ticket;
use doorbell_core::provider::{
    Lent, Operation, PostFlags, PushError, Rejected, Retired, SendQueue, Slot as _, Window,
};

use crate::credits::{Announcer, Credits, Grants, WindowWord};
use crate::marks::{Mark, Marks, StorageError};
use crate::{FirstCause, Statistics};
use limits::Limits;

mod batch;
mod cell;
mod farewell;
mod fetching;
mod limits;
mod lone;

pub use batch::Batch;
pub use cell::LoneCell;
pub use farewell::{FAREWELL, FAREWELL_BYTES};
pub use limits::RequestLimits;
pub use lone::Unposted;

pub use doorbell_core::provider::UnpostedReason;

/// The configuration of a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenderConfig {
    /// With this many consecutive unsignaled requests or more, the last request of a doorbell is signaled. The values 0
    /// and 1 signal the last request of every doorbell, so that no request needs a later one to be known as done.
    ///
    /// With any value, at least one request in each half queue is signaled, so that a full queue always awaits a
    /// completion.
    pub unsignaled_max: u32,
    /// The limits of a request. A request that the peer or the device would refuse is rejected when it is posted.
    pub limits: RequestLimits,
}

/// The flow control of a sender: its credits for the peer's receives, and the announcements of this side's receives.
pub struct Flow<W, L> {
    /// The credits: how many messages may be sent.
    pub credits: Credits,
    /// The word in which the peer announces its receives.
    pub word: WindowWord<W>,
    /// The announcer of this side's receives.
    pub announcer: Announcer<L>,
}

/// A send queue with its signaling policy and its credits.
///
/// One place of the queue is reserved, so that receives can be announced whatever the caller posts.
pub struct Sender<Q, Bytes, W, L, S> {
    queue: Q,
    statistics: S,
    marks: Marks<Bytes>,
    flow: Flow<W, L>,
    limits: Limits,
    /// The policy: with this many consecutive unsignaled requests, the last of a doorbell is signaled.
    unsignaled_max: u32,
    /// The maximum number of consecutive unsignaled requests under any policy: half the queue.
    unsignaled_limit: u32,
    /// With this many unsignaled requests before it, a request that is posted alone is signaled, by the policy or by the limit above.
    unsignaled_alone_limit: u32,
    /// The number of requests posted since the last signaled one, or [`UNREPORTED`].
    unsignaled: u32,
    /// The number of control requests in flight.
    announcements: u32,
    /// The position after the last staged request that returns data into slots; zero if none is in
    /// flight.
    fetches_end: u64,
    known: Known,
}

/// The known cause of the queue pair's failure.
#[derive(Clone, Copy, Debug)]
enum Known {
    Nothing,
    /// No cause is known, and this request is the last probe.
    Probed(Ticket),
    Cause(FirstCause),
}

/// Replaces the count of unsignaled requests after the device refused a part of a doorbell, which may have included
/// the signaled request. It exceeds every limit, so the next request is signaled.
const UNREPORTED: u32 = u32::MAX;

/// The requests that a completion retired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outcome {
    /// All of them, control requests included.
    pub retired: Retired,
    /// The last request of the caller; `None` if there was none.
    pub through: Option<Ticket>,
}

impl<Q, Bytes, W, L, S> Sender<Q, Bytes, W, L, S>
where
    Q: SendQueue,
    Bytes: AsRef<[u8]> + AsMut<[u8]>,
    W: Deref<Target: Window>,
    L: Deref<Target = Grants>,
    S: Deref<Target = Statistics>,
{
    /// A sender over an idle queue, which counts its work in `statistics`.
    ///
    /// # Errors
    /// The length of `bytes` is not [`marks_for`](crate::marks_for) the queue's depth.
    pub fn new(
        queue: Q,
        bytes: Bytes,
        flow: Flow<W, L>,
        statistics: S,
        config: &SenderConfig,
    ) -> Result<Self, StorageError> {
        let depth = queue.in_flight().saturating_add(queue.room());
        let unsignaled_limit = (depth / 2).saturating_sub(1);
        Ok(Self {
            queue,
            statistics,
            marks: Marks::new(bytes, depth)?,
            flow,
            limits: Limits::new(&config.limits),
            unsignaled_max: config.unsignaled_max,
            unsignaled_limit,
            unsignaled_alone_limit: unsignaled_limit.min(config.unsignaled_max.saturating_sub(1)),
            unsignaled: 0,
            announcements: 0,
            fetches_end: 0,
            known: Known::Nothing,
        })
    }

    /// Retires the requests that a completion proves done. Slots with returned data go to `kept`,
    /// all others to `spent`, in posting order.
    ///
    /// # Errors
    /// The completion names no request in flight here.
    #[inline]
    pub fn retire(
        &mut self,
        completion: Lent<'_, Q::Completion>,
        kept: impl FnMut(Ticket, Q::Slot),
        mut spent: impl FnMut(Q::Slot),
    ) -> Result<Outcome, Rejected> {
        let retired = if self.fetches_end == 0 {
            self.queue.retire(completion, |_, slot| spent(slot))?
        } else {
            self.retire_fetched(completion, kept, spent)?
        };
        self.statistics.completions.add(1);
        if !retired.status.is_success() {
            let Retired {
                status,
                last: ticket,
                vendor_error,
                ..
            } = retired;
            self.note_failed(FirstCause {
                status,
                ticket,
                vendor_error,
            });
        }
        let through = if self.announcements == 0 {
            Some(retired.last)
        } else {
            self.retire_announcements(&retired)
        };
        Ok(Outcome { retired, through })
    }

    /// Retires requests as [`Sender::retire`] does, if the completion succeeded, and neither control requests nor requests that return
    /// data are in flight. Returns the last request. Otherwise the result is `None`, and the caller calls [`Sender::retire`].
    #[inline(always)]
    pub fn retire_done(
        &mut self,
        completion: &Lent<'_, Q::Completion>,
        mut spent: impl FnMut(Q::Slot),
    ) -> Option<Ticket> {
        // One word, so that a poll compares once.
        if u64::from(self.announcements) | self.fetches_end != 0 {
            return None;
        }
        let last = self.queue.retire_done(completion, |_, slot| spent(slot))?;
        self.statistics.completions.add(1);
        Some(last)
    }

    /// Retires requests while some in flight return data.
    // A separate function, so that all other completions need not check the mark of each request. It is cold and not
    // `inline(never)`, so that the proofs can inline it: the optimiser cannot see from a separate function with a guard that it
    // does not unwind.
    #[cold]
    fn retire_fetched(
        &mut self,
        completion: Lent<'_, Q::Completion>,
        mut kept: impl FnMut(Ticket, Q::Slot),
        mut spent: impl FnMut(Q::Slot),
    ) -> Result<Retired, Rejected> {
        let marks = self.marks.view();
        let retired = self.queue.retire(completion, |ticket, slot| {
            if marks.get(ticket.position()) == Mark::Fetch {
                kept(ticket, slot)
            } else {
                spent(slot)
            }
        })?;
        if retired.last.position() >= self.fetches_end.wrapping_sub(1) {
            self.fetches_end = 0;
        }
        Ok(retired)
    }

    /// Counts the control requests among the retired ones. Returns the last retired request of the
    /// caller.
    fn retire_announcements(&mut self, retired: &Retired) -> Option<Ticket> {
        let marks = self.marks.view();
        let mut through = None;
        for offset in 0..retired.count() {
            let ticket = retired.last.back(offset);
            if marks.get(ticket.position()) == Mark::Announcement {
                self.announcements = self.announcements.saturating_sub(1);
            } else if through.is_none() {
                through = Some(ticket);
            }
        }
        through
    }

    /// Checks that a request with this slot may be posted, except for room and credits. Posting makes the same check.
    ///
    /// # Errors
    /// The peer or the device would refuse the request.
    #[inline]
    pub fn check(&self, operation: Operation, slot: &Q::Slot, flags: PostFlags) -> Result<(), PushError> {
        self.limits.check(operation, slot.len_bytes() as u64)?;
        self.limits.check_memory(core::slice::from_ref(slot), flags)
    }

    /// The cause of the queue pair's failure, as far as this half knows.
    #[must_use]
    #[inline]
    pub const fn cause(&self) -> Option<FirstCause> {
        match self.known {
            Known::Cause(cause) => Some(cause),
            Known::Nothing | Known::Probed(_) => None,
        }
    }

    #[cold]
    fn note_failed(&mut self, seen: FirstCause) {
        let mut cause = self.cause();
        FirstCause::note(&mut cause, seen);
        self.known = cause.map_or(self.known, Known::Cause);
    }

    /// The number of the caller's requests in flight.
    #[must_use]
    #[inline]
    pub fn in_flight(&self) -> u32 {
        self.queue.in_flight().saturating_sub(self.announcements)
    }

    /// Whether a signaled request is in flight, so that a completion will come. A request after the last signaled one
    /// is known as done only by a later signaled one.
    ///
    /// This is also true after a partly refused doorbell, see [`Sender::has_unreported`].
    #[must_use]
    #[inline]
    pub fn awaits_completion(&self) -> bool {
        self.has_unreported() || self.queue.in_flight() > self.unsignaled
    }

    /// Whether requests are in flight, possibly without a signaled one, since the device accepted only a part of a
    /// doorbell. Then the next request is signaled, and [`Sender::announce`] posts one for this.
    #[must_use]
    #[inline]
    pub fn has_unreported(&self) -> bool {
        self.unsignaled == UNREPORTED && self.queue.in_flight() > 0
    }

    /// The bytes of each cell of the queue, or 0 if it has none.
    #[must_use]
    #[inline]
    pub fn cell_bytes(&self) -> u32 {
        self.queue.cell_bytes()
    }

    /// How many more requests can be staged now.
    #[must_use]
    #[inline]
    pub fn room(&self) -> u32 {
        self.queue.room().saturating_sub(1)
    }

    /// The number of messages that the peer has receives for, according to its announcements.
    #[must_use]
    pub fn credits(&self) -> u32 {
        let mut credits = self.flow.credits;
        if let Some(announced) = self.flow.word.load() {
            credits.learn(announced);
        }
        credits.available()
    }

    /// Whether a message was refused for lack of credit, and [`Sender::credits_came`] has not yet
    /// reported credits since.
    #[must_use]
    #[inline]
    pub const fn wants_credits(&self) -> bool {
        self.flow.credits.is_wanting()
    }

    /// Returns `true` once when, after a message was refused for lack of credit, there are credits again. No completion
    /// reports this, since the peer announces by a WRITE without immediate.
    #[inline]
    pub fn credits_came(&mut self) -> bool {
        self.flow.credits.satisfy(self.flow.word.load())
    }
}

/// Reads the peer's last announcement. Returns whether more messages may be sent than before.
#[cold]
fn look<W: Deref<Target: Window>>(credits: &mut Credits, word: &WindowWord<W>) -> bool {
    let announced = word.load();
    let is_news = announced.is_some_and(|announced| credits.learn(announced));
    if !is_news {
        credits.note_refused();
    }
    is_news
}

impl<Q: SendQueue, Bytes, W, L, S> fmt::Debug for Sender<Q, Bytes, W, L, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender")
            .field("in_flight", &self.queue.in_flight())
            .field("unsignaled", &self.unsignaled)
            .field("flow", &self.flow)
            .field("known", &self.known)
            .finish_non_exhaustive()
    }
}

impl<W, L> fmt::Debug for Flow<W, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flow")
            .field("credits", &self.credits)
            .field("word", &self.word)
            .field("announcer", &self.announcer)
            .finish()
    }
}

#[cfg(test)]
pub(crate) mod tests;
