//! The send half: doorbell batching, selective signaling and credits over a provider's send queue.

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

/// How a sender signals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenderConfig {
    /// Unsignaled requests in a row at most when a doorbell rings. With this many or more, the last request of
    /// the doorbell is signaled. The values 0 and 1 signal the last request of every doorbell, so that no request
    /// waits for a later one to be known done.
    ///
    /// With any value, at least one request in each half queue is signaled, so that a full queue always has a
    /// completion coming.
    pub unsignaled_max: u32,
    /// Limits of one request. A request that the peer or the device would refuse is rejected when it is posted.
    pub limits: RequestLimits,
}

/// Flow control of a sender: its credits for the peer's receives, and the announcements of our own receives.
pub struct Flow<W, L> {
    /// Credits: how many messages may be sent.
    pub credits: Credits,
    /// The word where the peer announces its receives.
    pub word: WindowWord<W>,
    /// Announces our receives to the peer.
    pub announcer: Announcer<L>,
}

/// A send queue with its signaling policy and its credits.
///
/// One place of the queue is kept back, so that receives can be announced whatever the caller
/// posts.
pub struct Sender<Q, Bytes, W, L, S> {
    queue: Q,
    statistics: S,
    marks: Marks<Bytes>,
    flow: Flow<W, L>,
    limits: Limits,
    /// With so many unsignaled in a row, the last of a doorbell is signaled: the policy.
    unsignaled_max: u32,
    /// Half the queue: unsignaled requests in a row at most, whatever the policy.
    unsignaled_limit: u32,
    /// With so many before it, a request that has a doorbell of its own is signaled: by the policy, or by that limit.
    unsignaled_alone_limit: u32,
    /// Requests posted since the last signaled one, or [`UNREPORTED`].
    unsignaled: u32,
    /// Announcements in flight.
    announcements: u32,
    /// Behind the last request staged whose slots data is written into, a position; zero where
    /// none is in flight.
    fetches_end: u64,
    known: Known,
}

/// Knowledge of why the queue pair failed.
#[derive(Clone, Copy, Debug)]
enum Known {
    Nothing,
    /// Nothing, and a probe was posted last by this request.
    Probed(Ticket),
    Cause(FirstCause),
}

/// Stands for the count of unsignaled requests after the device refused a part of a doorbell, which may have held
/// the signaled one. It is larger than any count in a row may be, so the next request is signaled.
const UNREPORTED: u32 = u32::MAX;

/// Requests that a completion gave back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outcome {
    /// All of it, announcements too.
    pub retired: Retired,
    /// The last request that was the caller's own; `None` where none was.
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
    /// A sender over an idle queue, which counts in `statistics` what it does.
    ///
    /// # Errors
    /// `bytes` are not exactly [`marks_for`](crate::marks_for) the queue's depth.
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

    /// Gives back what a completion proves done. Slots that data was written into go to
    /// `kept`, all others to `spent`, each in posting order.
    ///
    /// # Errors
    /// The completion names nothing in flight here.
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

    /// Gives back what a completion proves done, as [`Sender::retire`] does, if it succeeded, and nothing in flight announces receives or
    /// brings data back. Returns the last request. `None` where it is otherwise: the completion is for [`Sender::retire`].
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

    /// Gives back slots, data having been written into some in flight.
    // Apart: all others then do not look at what each of them is. By being cold, so that the proofs may have it in line:
    // of a function with a guard the optimiser does not see by itself that it cannot unwind.
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

    /// Counts the announcements among what was given back; says which request was the last
    /// that is none.
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

    /// Whether a request with this slot is one that may be posted, room and credits aside. Posting looks itself.
    ///
    /// # Errors
    /// The peer or the device would refuse it.
    #[inline]
    pub fn check(&self, operation: Operation, slot: &Q::Slot, flags: PostFlags) -> Result<(), PushError> {
        self.limits.check(operation, slot.len_bytes() as u64)?;
        self.limits.check_memory(core::slice::from_ref(slot), flags)
    }

    /// Why the queue pair failed, as far as this half knows.
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

    /// How many requests of the caller are in flight.
    #[must_use]
    #[inline]
    pub fn in_flight(&self) -> u32 {
        self.queue.in_flight().saturating_sub(self.announcements)
    }

    /// Whether a completion is yet to come, since a signaled request is in flight. A request posted after the
    /// last signaled one is known done only by a later signaled one.
    ///
    /// Also true after a doorbell of which a part was refused: see [`Sender::has_unreported`].
    #[must_use]
    #[inline]
    pub fn awaits_completion(&self) -> bool {
        self.has_unreported() || self.queue.in_flight() > self.unsignaled
    }

    /// Whether possibly no signaled request is in flight, since the device took a part of a doorbell and refused
    /// the rest. The next request is signaled then, and [`Sender::announce`] posts one for that.
    #[must_use]
    #[inline]
    pub fn has_unreported(&self) -> bool {
        self.unsignaled == UNREPORTED && self.queue.in_flight() > 0
    }

    /// How many bytes each cell of the queue has; 0 where it has none.
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

    /// How many messages the peer has receives for, as far as it announced.
    #[must_use]
    pub fn credits(&self) -> u32 {
        let mut credits = self.flow.credits;
        if let Some(announced) = self.flow.word.load() {
            credits.learn(announced);
        }
        credits.available()
    }

    /// Whether a message was refused for want of a credit, and [`Sender::credits_came`] has not
    /// yet said that there are some.
    #[must_use]
    #[inline]
    pub const fn wants_credits(&self) -> bool {
        self.flow.credits.is_wanting()
    }

    /// Says once, after a message was refused for want of a credit, that there are credits again. No completion
    /// reports it: the peer announces by a silent WRITE.
    #[inline]
    pub fn credits_came(&mut self) -> bool {
        self.flow.credits.satisfy(self.flow.word.load())
    }
}

/// Reads the peer's last announcement; says whether more may be sent than before.
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
