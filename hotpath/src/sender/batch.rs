//! Several requests for one doorbell, and what is announced with them.

use core::fmt;
use core::ops::Deref;

use doorbell_core::Ticket;
use doorbell_core::provider::{
    Operation, PostError, PostFlags, PushError, Refused, SendBatch as _, SendQueue, Slot as _, Window,
};

use super::fetching::{self, Fetching};
use super::limits::Limits;
use super::{Sender, UNTOLD, look};
use crate::Statistics;
use crate::credits::{Announcement, Announcer, Credits, Grants, Receipt, WindowWord};
use crate::marks::{Mark, Marked};

impl<Q, Bytes, W, L, S> Sender<Q, Bytes, W, L, S>
where
    Q: SendQueue,
    Bytes: AsRef<[u8]> + AsMut<[u8]>,
    W: Deref<Target: Window>,
    L: Deref<Target = Grants>,
    S: Deref<Target = Statistics>,
{
    /// Begins a batch: push requests, then ring once. If many receives are unannounced, their announcement is
    /// staged in front.
    // Inlined, like what works on the batch: it then needs no place in memory.
    #[inline(always)]
    pub fn stage(&mut self) -> Batch<'_, Q, W> {
        let (mut batch, announcer) = self.open();
        if let Some(announcement) = announcer.beside() {
            batch.announce(announcement);
        }
        batch
    }

    /// Announces, by a request of its own, the receives that the peer does not know of. Returns `false` if the
    /// queue is full and they remain unannounced.
    ///
    /// If possibly no signaled request is in flight ([`Sender::has_untold`]), it posts a signaled announcement
    /// even if the peer knows the count already.
    ///
    /// # Errors
    /// The device refused it.
    pub fn announce(&mut self) -> Result<bool, PostError> {
        if self.flow.announcer.has_left() {
            return Ok(true);
        }
        let has_untold = self.has_untold();
        let (mut batch, announcer) = self.open();
        let announcement = if has_untold {
            announcer.in_any_case()
        } else {
            announcer.alone()
        };
        let Some(announcement) = announcement else {
            return Ok(true);
        };
        batch.announce(announcement);
        if batch.announced.is_none() {
            return Ok(false);
        }
        batch.post(|_, slot| drop(slot)).map(|_| true)
    }

    #[inline(always)]
    fn open(&mut self) -> (Batch<'_, Q, W>, &mut Announcer<L>) {
        let own_max = self.queue.room().saturating_sub(1);
        let batch = Batch {
            inner: self.queue.stage(),
            marks: self.marks.view(),
            last: 0,
            staged_max: own_max,
            sent: self.flow.credits.sent(),
            credits: &mut self.flow.credits,
            word: &self.flow.word,
            announced: None,
            announcements: &mut self.announcements,
            bytes: 0,
            inline: 0,
            statistics: &self.statistics,
            limit: self.unsignaled_limit,
            limits: &self.limits,
            unsignaled_max: &self.unsignaled_max,
            unsignaled_now: self.unsignaled,
            unsignaled: &mut self.unsignaled,
            fetches_end: &mut self.fetches_end,
        };
        (batch, &mut self.flow.announcer)
    }
}

/// Requests staged for one doorbell. Dropping it rings nothing.
pub struct Batch<'q, Q: SendQueue + 'q, W> {
    inner: Q::Batch<'q>,
    marks: Marked<'q>,
    /// The position of the last request staged.
    last: u64,
    /// Requests that may be staged at most. One place of the queue is kept back for an announcement, and is added
    /// once one is staged.
    staged_max: u32,
    /// Messages sent, with those staged here.
    sent: u32,
    /// Credits as of the last doorbell, updated when this one rings.
    credits: &'q mut Credits,
    word: &'q WindowWord<W>,
    /// The announcement staged in front.
    announced: Option<(u32, Receipt<'q>)>,
    announcements: &'q mut u32,
    /// Payload bytes of what the caller staged, and how many of it go inline.
    bytes: u64,
    inline: u32,
    statistics: &'q Statistics,
    limit: u32,
    limits: &'q Limits,
    unsignaled_max: &'q u32,
    /// Unsignaled requests in a row, with those staged here.
    unsignaled_now: u32,
    /// Unsignaled requests in a row as of the last doorbell, updated when this one rings.
    unsignaled: &'q mut u32,
    fetches_end: &'q mut u64,
}

impl<'q, Q: SendQueue, W: Deref<Target: Window>> Batch<'q, Q, W> {
    /// Stages one request; whether it is signaled is the policy's. See [`SendBatch::push`](doorbell_core::provider::SendBatch::push).
    ///
    /// # Errors
    /// [`Refused`] hands the slots back with the reason.
    // If the operation is known at compile time, as nearly everywhere, little of this remains.
    #[inline(always)]
    pub fn push<const N: usize>(
        &mut self,
        operation: Operation,
        mut slots: [Q::Slot; N],
        flags: PostFlags,
    ) -> Result<Ticket, Refused<[Q::Slot; N]>> {
        let mark = Mark::of(operation);
        let mut bytes = slots
            .iter()
            .fold(0, |sum: u64, slot| sum.wrapping_add(slot.len_bytes() as u64));
        let checked = self
            .limits
            .check(operation, bytes)
            .and_then(|()| self.limits.check_memory(&slots, flags));
        if let Err(reason) = checked.and_then(|()| self.admit(mark)) {
            return Err(Refused { reason, item: slots });
        }
        let fetching = Fetching::of(operation, bytes, self.limits);
        if let Some(fetching) = fetching {
            bytes = fetching.set_lengths(&mut slots);
        }
        let ticket = self
            .inner
            .push(operation, slots, flags)
            .map_err(|refused| fetching::undone(fetching, refused))?;
        self.signal(flags);
        self.note_own(ticket, mark, flags, bytes);
        Ok(ticket)
    }

    /// Stages one request whose bytes are the caller's own and go inline.
    ///
    /// # Errors
    /// The queue is full, the peer has no receive for it, the bytes are too many, or the
    /// operation brings data back.
    #[inline]
    pub fn push_inline(
        &mut self,
        operation: Operation,
        bytes: &'q [u8],
        flags: PostFlags,
    ) -> Result<Ticket, PushError> {
        let mark = Mark::of(operation);
        self.limits.check(operation, bytes.len() as u64)?;
        self.admit(mark)?;
        let ticket = self.inner.push_inline(operation, bytes, flags)?;
        self.signal(flags);
        self.note_own(ticket, mark, flags | PostFlags::INLINE, bytes.len() as u64);
        Ok(ticket)
    }

    /// Lends the cell of the next message, if that could be staged now: all its bytes, to be written in place and sent by
    /// [`Batch::push_cell`].
    ///
    /// # Errors
    /// The queue is full or has no cells, or the peer has no receive for the message.
    #[inline(always)]
    pub fn cell(&mut self) -> Result<&mut [u8], PushError> {
        self.admit(Mark::Message)?;
        self.inner.cell()
    }

    /// The cell that [`Batch::cell`] lent, as long as nothing was staged since.
    #[inline(always)]
    pub fn claimed(&mut self) -> &mut [u8] {
        self.inner.cell().unwrap_or_default()
    }

    /// Stages one request of the first `bytes` of that cell.
    ///
    /// # Errors
    /// As for [`Batch::push_inline`], and the cell has fewer bytes, or the queue has no cells.
    #[inline(always)]
    pub fn push_cell(
        &mut self,
        operation: Operation,
        bytes: u32,
        flags: PostFlags,
    ) -> Result<Ticket, PushError> {
        let mark = Mark::of(operation);
        self.limits.check(operation, bytes.into())?;
        self.admit(mark)?;
        let ticket = self.inner.push_cell(operation, bytes, flags)?;
        self.signal(flags);
        self.note_own(ticket, mark, flags, bytes.into());
        Ok(ticket)
    }

    /// How many requests the caller staged.
    #[must_use]
    #[inline]
    pub fn staged(&self) -> u32 {
        let announcement = u32::from(self.announced.is_some());
        self.inner.staged().saturating_sub(announcement)
    }

    /// Has the last request that the caller staged signaled, whatever the policy: for those of whom
    /// nobody posts another before they are known done.
    #[inline]
    pub fn signal_last(&mut self) {
        if self.staged() > 0 && self.unsignaled_now > 0 {
            self.inner.signal_last();
            self.unsignaled_now = 0;
        }
    }

    /// Rings the doorbell once for all that is staged; says how many were posted.
    ///
    /// # Errors
    /// The device took only part. `unposted` gets the slots of the rest, in order. If it panics, the slots it did not get
    /// go home, and everything is counted as if it had not.
    #[inline(always)]
    pub fn ring_returning(mut self, unposted: impl FnMut(Ticket, Q::Slot)) -> Result<u32, PostError> {
        if self.staged() == 0 {
            return Ok(0);
        }
        if self.unsignaled_now >= *self.unsignaled_max && self.unsignaled_now > 0 {
            self.inner.signal_last();
            self.unsignaled_now = 0;
        }
        self.post(unposted)
    }

    /// Rings the doorbell once for all that is staged; says how many were posted.
    ///
    /// # Errors
    /// The device took only part; the slots of the rest went home.
    #[inline(always)]
    pub fn ring(self) -> Result<u32, PostError> {
        self.ring_returning(|_, slot| drop(slot))
    }

    /// Whether a request may be staged, as far as room and credits go.
    #[inline(always)]
    fn admit(&mut self, mark: Mark) -> Result<(), PushError> {
        let refused = if self.inner.staged() >= self.staged_max {
            PushError::Full
        } else if mark == Mark::Message
            && self.sent == self.credits.granted()
            && !look(self.credits, self.word)
        {
            PushError::NoCredit
        } else {
            return Ok(());
        };
        self.statistics.would_block.add(1);
        Err(refused)
    }

    /// Stages an announcement, in the place that is kept back, where that is free.
    #[inline(always)]
    fn announce(&mut self, announcement: Announcement<'q>) {
        let flags = PostFlags::empty();
        let Announcement {
            count,
            word,
            bytes,
            receipt,
        } = announcement;
        if let Ok(ticket) = self.inner.push_inline(Operation::Write(word), bytes, flags) {
            self.signal(flags);
            self.note(ticket, Mark::Announcement);
            self.staged_max = self.staged_max.saturating_add(1);
            self.announced = Some((count, receipt));
        }
    }

    /// Has the request just staged signaled where the policy has it, and counts those in a row
    /// that are not.
    #[inline(always)]
    fn signal(&mut self, flags: PostFlags) {
        if self.unsignaled_now >= self.limit {
            self.inner.signal_last();
            self.unsignaled_now = 0;
        } else if flags.contains(PostFlags::SIGNALED) {
            self.unsignaled_now = 0;
        } else {
            self.unsignaled_now = self.unsignaled_now.wrapping_add(1);
        }
    }

    #[inline]
    fn note_own(&mut self, ticket: Ticket, mark: Mark, flags: PostFlags, bytes: u64) {
        self.note(ticket, mark);
        self.bytes = self.bytes.wrapping_add(bytes);
        let inline = flags.contains(PostFlags::INLINE);
        self.inline = self.inline.wrapping_add(u32::from(inline));
        self.sent = self.sent.wrapping_add(u32::from(mark == Mark::Message));
    }

    #[inline]
    fn note(&mut self, ticket: Ticket, mark: Mark) {
        self.last = ticket.position();
        self.marks.set(self.last, mark);
        if mark == Mark::Fetch {
            *self.fetches_end = self.last.wrapping_add(1);
        }
    }

    /// Posts what is staged, and notes what was posted of it: before `unposted` is called, which may panic.
    #[inline(always)]
    fn post(self, unposted: impl FnMut(Ticket, Q::Slot)) -> Result<u32, PostError> {
        let Self {
            inner,
            mut announced,
            marks,
            ..
        } = self;
        let refusal = Refusal {
            marks,
            last: self.last,
            sent: self.sent,
            credits: &mut *self.credits,
            announced: announced
                .as_mut()
                .map(|(count, receipt)| (*count, receipt.reborrow())),
            announcements: &mut *self.announcements,
            unsignaled: &mut *self.unsignaled,
            statistics: self.statistics,
        };
        let mut posted = inner.ring_telling(move |error| refusal.note(error), unposted)?;
        self.statistics.doorbell(posted, self.bytes, self.inline);
        *self.unsignaled = self.unsignaled_now;
        self.credits.note_sent(self.sent);
        if let Some((count, receipt)) = announced {
            receipt.note_announced(count);
            self.statistics.announcements.add(1);
            *self.announcements = self.announcements.saturating_add(1);
            posted = posted.saturating_sub(1);
        }
        Ok(posted)
    }
}

/// The notes for a doorbell of which the device takes only a part.
struct Refusal<'r, 'q> {
    marks: Marked<'q>,
    last: u64,
    sent: u32,
    credits: &'r mut Credits,
    announced: Option<(u32, Receipt<'r>)>,
    announcements: &'r mut u32,
    unsignaled: &'r mut u32,
    statistics: &'q Statistics,
}

impl Refusal<'_, '_> {
    /// Notes what was posted, and completes the error: an announcement is none of the caller's requests.
    #[cold]
    fn note(self, error: &mut PostError) {
        // The bytes of the part that went are not known: the doorbell alone is counted.
        self.statistics.doorbell(error.posted, 0, 0);
        self.statistics.refused.add(1);
        if error.posted != 0 {
            // A signaled request may be among the posted part or among the rest.
            *self.unsignaled = UNTOLD;
        }
        let messages = unposted_messages(self.marks, self.last, error.unposted);
        self.credits.note_sent(self.sent.wrapping_sub(messages));
        if let Some((count, receipt)) = self.announced {
            if error.posted == 0 {
                error.unposted = error.unposted.saturating_sub(1);
            } else {
                receipt.note_announced(count);
                *self.announcements = self.announcements.saturating_add(1);
                error.posted = error.posted.saturating_sub(1);
            }
        }
    }
}

/// How many messages are among the requests that were not posted, the last ones staged.
#[cold]
fn unposted_messages(marks: Marked<'_>, last: u64, unposted: u32) -> u32 {
    (0..u64::from(unposted))
        .map(|offset| u32::from(marks.get(last.wrapping_sub(offset)) == Mark::Message))
        .fold(0, u32::wrapping_add)
}

impl<Q: SendQueue, W> fmt::Debug for Batch<'_, Q, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("staged", &self.inner.staged())
            .finish_non_exhaustive()
    }
}
