//! A request that is posted alone.

use core::ops::Deref;

use doorbell_core::Ticket;
use doorbell_core::provider::{
    Operation, PostError, PostFlags, PushError, Refused, SendBatch as _, SendQueue, Slot as _,
    UnpostedReason, Window, WindowRange,
};

use super::fetching::{self, Fetching};
use super::{Sender, UNREPORTED, look};
use crate::Statistics;
use crate::credits::{Credits, Grants};
use crate::marks::Mark;

/// A single request that was not posted.
#[derive(Debug)]
#[non_exhaustive]
pub struct Unposted<S> {
    /// The reason.
    pub reason: UnpostedReason,
    /// The slot. `None` if the device refused without naming a request, so that it may have the slot.
    pub slot: Option<S>,
}

impl<S> Unposted<S> {
    const fn refused(reason: PushError, slot: S) -> Self {
        Self {
            reason: UnpostedReason::Push(reason),
            slot: Some(slot),
        }
    }
}

impl<Q, Bytes, W, L, S> Sender<Q, Bytes, W, L, S>
where
    Q: SendQueue,
    Bytes: AsRef<[u8]> + AsMut<[u8]>,
    W: Deref<Target: Window>,
    L: Deref<Target = Grants>,
    S: Deref<Target = Statistics>,
{
    /// Posts one request alone: like a batch of one, but with less set-up. The policy decides whether
    /// it is signaled.
    ///
    /// # Errors
    /// [`Unposted`] has the reason, and usually the slot.
    #[inline(always)]
    pub fn post_one(
        &mut self,
        operation: Operation,
        slot: Q::Slot,
        flags: PostFlags,
    ) -> Result<Ticket, Unposted<Q::Slot>> {
        if self.flow.announcer.is_due_beside() {
            return self.post_behind_announcement(operation, slot, flags);
        }
        let mark = Mark::of(operation);
        let mut bytes = slot.len_bytes() as u64;
        let mut slots = [slot];
        let checked = self
            .limits
            .check(operation, bytes)
            .and_then(|()| self.limits.check_memory(&slots, flags));
        if let Err(reason) = checked.and_then(|()| self.admit_one(mark)) {
            let [slot] = slots;
            return Err(Unposted::refused(reason, slot));
        }
        let flags = self.flags_of_one(flags);
        let fetching = Fetching::of(operation, bytes, &self.limits);
        if let Some(fetching) = fetching {
            bytes = fetching.set_lengths(&mut slots);
        }
        let mut batch = self.queue.stage();
        let ticket = match batch.push(operation, slots, flags) {
            Ok(ticket) => ticket,
            Err(refused) => {
                let Refused { reason, item: [slot] } = fetching::undone(fetching, refused);
                return Err(Unposted::refused(reason, slot));
            }
        };
        let position = ticket.position();
        self.marks.view().set(position, mark);
        if mark == Mark::Fetch {
            self.fetches_end = position.wrapping_add(1);
        }
        let mut back = None;
        match batch.ring_returning(|_, slot| back = Some(slot)) {
            Ok(_) => {
                self.note_one(mark, flags, bytes);
                Ok(ticket)
            }
            Err(error) => {
                self.note_none(mark, &error);
                Err(Unposted {
                    reason: UnpostedReason::Post(error),
                    slot: back,
                })
            }
        }
    }

    /// Posts one request alone, with inline bytes of the caller.
    ///
    /// # Errors
    /// As for [`Batch::push_inline`](crate::Batch::push_inline) and [`Batch::ring`](crate::Batch::ring).
    #[inline(always)]
    pub fn post_inline_one(
        &mut self,
        operation: Operation,
        bytes: &[u8],
        flags: PostFlags,
    ) -> Result<Ticket, UnpostedReason> {
        if self.flow.announcer.is_due_beside() {
            let mut batch = self.stage();
            let ticket = batch.push_inline(operation, bytes, flags)?;
            batch.ring()?;
            return Ok(ticket);
        }
        let mark = Mark::of(operation);
        self.limits.check(operation, bytes.len() as u64)?;
        self.admit_one(mark)?;
        let flags = self.flags_of_one(flags);
        let mut batch = self.queue.stage();
        let ticket = batch.push_inline(operation, bytes, flags)?;
        self.marks.view().set(ticket.position(), mark);
        match batch.ring_returning(|_, slot| drop(slot)) {
            Ok(_) => {
                self.note_one(mark, flags | PostFlags::INLINE, bytes.len() as u64);
                Ok(ticket)
            }
            Err(error) => {
                self.note_none(mark, &error);
                Err(error.into())
            }
        }
    }

    /// Posts one request with ranges of windows alone.
    ///
    /// # Errors
    /// As for [`Batch::push_ranges`](crate::Batch::push_ranges) and [`Batch::ring`](crate::Batch::ring).
    #[inline]
    pub fn post_ranges_one<const N: usize>(
        &mut self,
        operation: Operation,
        ranges: [WindowRange<'_, Q::Window>; N],
        flags: PostFlags,
    ) -> Result<Ticket, UnpostedReason> {
        let mut batch = self.stage();
        let ticket = batch.push_ranges(operation, ranges, flags)?;
        batch.ring()?;
        Ok(ticket)
    }

    /// Posts one request after an announcement of receives.
    #[cold]
    fn post_behind_announcement(
        &mut self,
        operation: Operation,
        slot: Q::Slot,
        flags: PostFlags,
    ) -> Result<Ticket, Unposted<Q::Slot>> {
        let mut batch = self.stage();
        let ticket = match batch.push(operation, [slot], flags) {
            Ok(ticket) => ticket,
            Err(Refused { reason, item: [slot] }) => return Err(Unposted::refused(reason, slot)),
        };
        let mut back = None;
        match batch.ring_returning(|_, slot| back = Some(slot)) {
            Ok(_) => Ok(ticket),
            Err(error) => Err(Unposted {
                reason: UnpostedReason::Post(error),
                slot: back,
            }),
        }
    }

    /// Checks room and credits for a message that is posted alone. A message without credit counts as refused, see
    /// [`Sender::wants_credits`].
    ///
    /// # Errors
    /// There is no room, or no credit.
    #[inline]
    pub fn admit_message(&mut self) -> Result<(), PushError> {
        self.admit_one(Mark::Message)
    }

    /// Checks room and credits for a request that is posted alone.
    #[inline(always)]
    pub(super) fn admit_one(&mut self, mark: Mark) -> Result<(), PushError> {
        let credits = &mut self.flow.credits;
        let refused = if self.queue.room() <= 1 {
            PushError::Full
        } else if mark == Mark::Message && credits.available() == 0 && !look(credits, &self.flow.word) {
            PushError::NoCredit
        } else {
            return Ok(());
        };
        self.statistics.would_block.add(1);
        Err(refused)
    }

    /// The flags of a request that is posted alone.
    #[inline(always)]
    fn flags_of_one(&self, flags: PostFlags) -> PostFlags {
        flags_of_one(flags, self.unsignaled, self.unsignaled_alone_limit)
    }

    /// Notes that a request was posted alone.
    #[inline(always)]
    fn note_one(&mut self, mark: Mark, flags: PostFlags, bytes: u64) {
        self.notes().posted(mark, flags, bytes);
    }

    /// Notes that the device refused the request, though it may have it.
    #[cold]
    fn note_none(&mut self, mark: Mark, error: &PostError) {
        self.notes().refused(mark, error);
    }

    #[inline(always)]
    fn notes(&mut self) -> Notes<'_> {
        Notes {
            statistics: &self.statistics,
            credits: &mut self.flow.credits,
            unsignaled: &mut self.unsignaled,
        }
    }
}

/// The flags of a request that is posted alone, with `unsignaled` unsignaled ones before it.
#[inline(always)]
fn flags_of_one(flags: PostFlags, unsignaled: u32, unsignaled_limit: u32) -> PostFlags {
    if unsignaled >= unsignaled_limit {
        flags | PostFlags::SIGNALED
    } else {
        flags
    }
}

/// The notes of a request that is posted alone.
pub(super) struct Notes<'s> {
    pub(super) statistics: &'s Statistics,
    pub(super) credits: &'s mut Credits,
    pub(super) unsignaled: &'s mut u32,
}

impl Notes<'_> {
    /// The flags of the request, which is signaled at the limit of unsignaled ones before it.
    #[inline(always)]
    pub(super) fn flags(&self, flags: PostFlags, unsignaled_limit: u32) -> PostFlags {
        flags_of_one(flags, *self.unsignaled, unsignaled_limit)
    }

    /// Notes that the request was posted.
    #[inline(always)]
    pub(super) fn posted(self, mark: Mark, flags: PostFlags, bytes: u64) {
        self.statistics.doorbell_of_one(bytes);
        if flags.contains(PostFlags::INLINE) {
            self.statistics.inline.add(1);
        }
        // If it is not signaled, the count is below the limit, so it does not wrap.
        *self.unsignaled = if flags.contains(PostFlags::SIGNALED) {
            0
        } else {
            self.unsignaled.wrapping_add(1)
        };
        self.sent(mark);
    }

    /// Notes that the device refused the request, though it may have it.
    #[cold]
    pub(super) fn refused(self, mark: Mark, error: &PostError) {
        self.statistics.refusal(error.posted);
        if error.posted != 0 {
            // As for a partly refused batch.
            *self.unsignaled = UNREPORTED;
            self.sent(mark);
        }
    }

    #[inline(always)]
    fn sent(self, mark: Mark) {
        if mark == Mark::Message {
            let sent = self.credits.sent().wrapping_add(1);
            self.credits.note_sent(sent);
        }
    }
}
