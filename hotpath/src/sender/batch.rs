//! Several requests for one doorbell, with an announcement.

use core::fmt;
use core::ops::Deref;

use doorbell_core::Ticket;
use doorbell_core::provider::{
    Operation, PostError, PostFlags, PushError, Refused, SendBatch as _, SendQueue, Slot as _, Window,
    WindowRange,
};

use super::fetching::{self, Fetching};
use super::limits::Limits;
use super::{Sender, UNREPORTED, look};
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
    /// Begins a batch: push requests, then ring once. If many receives are unannounced, an announcement is staged
    /// first.
    // Inlined, like the functions of the batch, so that the batch stays in registers.
    #[inline(always)]
    pub fn stage(&mut self) -> Batch<'_, Q, W> {
        let (mut batch, announcer) = self.open();
        if let Some(announcement) = announcer.beside() {
            batch.announce(announcement);
        }
        batch
    }

    /// Announces the receives that the peer does not know, by a separate request. Returns `false` if the queue is full, so
    /// that they remain unannounced.
    ///
    /// If there may be no signaled request in flight ([`Sender::has_unreported`]), it posts a signaled announcement
    /// even if the peer knows the count already.
    ///
    /// # Errors
    /// The device refused the announcement.
    pub fn announce(&mut self) -> Result<bool, PostError> {
        if self.flow.announcer.has_left() {
            return Ok(true);
        }
        let has_unreported = self.has_unreported();
        let (mut batch, announcer) = self.open();
        let announcement = if has_unreported {
            announcer.in_any_case()
        } else {
            announcer.alone()
        };
        let Some(announcement) = announcement else {
            return Ok(true);
        };
        batch.announce(announcement);
        if batch.tally.announced.is_none() {
            return Ok(false);
        }
        batch.post(|_, slot| drop(slot)).map(|_| true)
    }

    #[inline(always)]
    fn open(&mut self) -> (Batch<'_, Q, W>, &mut Announcer<L>) {
        let own_max = self.queue.room().saturating_sub(1);
        let messages_max = own_max.min(self.flow.credits.available());
        let inner = self.queue.stage();
        let first = inner.next();
        let signaled_in = self.unsignaled_limit.saturating_sub(self.unsignaled);
        let batch = Batch {
            inner,
            tally: Tally {
                marks: self.marks.view(),
                first,
                end: first.forward(own_max.into()),
                messages_end: first.forward(messages_max.into()),
                is_admitted: false,
                others: 0,
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
                signaled: first.forward(signaled_in.into()),
                unsignaled: &mut self.unsignaled,
                fetches_end: &mut self.fetches_end,
            },
        };
        (batch, &mut self.flow.announcer)
    }
}

/// Requests staged for one doorbell. Dropping the batch posts nothing.
pub struct Batch<'q, Q: SendQueue + 'q, W> {
    pub(super) inner: Q::Batch<'q>,
    pub(super) tally: Tally<'q, W>,
}

/// The limits and counts of a batch, for the sender when the doorbell rings.
// The limits are tickets, so that a posting loop advances only one number for all of them.
pub(super) struct Tally<'q, W> {
    marks: Marked<'q>,
    /// The first request.
    first: Ticket,
    /// The first request without room. One place of the queue is reserved for an announcement, and is added after one is
    /// staged.
    end: Ticket,
    /// The first request that must not be a message, for lack of credit: at most `end`.
    messages_end: Ticket,
    /// Whether the next message was admitted, and nothing was staged since.
    pub(super) is_admitted: bool,
    /// The number of staged requests that are not messages.
    others: u32,
    /// The credits as of the last doorbell, updated when this one rings.
    credits: &'q mut Credits,
    word: &'q WindowWord<W>,
    /// The announcement that is staged first.
    announced: Option<(u32, Receipt<'q>)>,
    announcements: &'q mut u32,
    /// The payload bytes of the caller's requests.
    bytes: u64,
    /// The number of the caller's inline requests.
    inline: u32,
    statistics: &'q Statistics,
    /// The maximum number of consecutive unsignaled requests.
    limit: u32,
    pub(super) limits: &'q Limits,
    unsignaled_max: &'q u32,
    /// The next request that has to be signaled: `limit` after the last signaled one.
    signaled: Ticket,
    /// The number of consecutive unsignaled requests as of the last doorbell, updated when this one rings.
    unsignaled: &'q mut u32,
    fetches_end: &'q mut u64,
}

impl<W: Deref<Target: Window>> Tally<'_, W> {
    /// Checks room and credits for the next request.
    #[inline(always)]
    pub(super) fn admit(&mut self, next: Ticket, mark: Mark) -> Result<(), PushError> {
        let end = match mark {
            Mark::Message => self.messages_end,
            _ => self.end,
        };
        if next < end {
            return Ok(());
        }
        self.admit_late(next)
    }

    /// Checks room and credits again, with the peer's latest announcement.
    #[inline]
    fn admit_late(&mut self, next: Ticket) -> Result<(), PushError> {
        let reason = if next >= self.end {
            PushError::Full
        } else if look(self.credits, self.word) {
            let messages_max = self.others.saturating_add(self.credits.available());
            self.messages_end = self.end.min(self.first.forward(messages_max.into()));
            return Ok(());
        } else {
            PushError::NoCredit
        };
        self.statistics.would_block.add(1);
        Err(reason)
    }

    /// Whether this request has to be signaled, whatever follows it.
    #[inline(always)]
    pub(super) fn is_signal_due(&self, ticket: Ticket) -> bool {
        ticket >= self.signaled
    }

    /// The number of consecutive unsignaled requests before the next request.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "never more than the limit")]
    const fn unsignaled(&self, next: Ticket) -> u32 {
        let signaled_in = self.signaled.position().wrapping_sub(next.position());
        self.limit.wrapping_sub(signaled_in as u32)
    }

    /// Notes that this request is signaled.
    #[inline(always)]
    fn note_signaled(&mut self, ticket: Ticket) {
        self.signaled = ticket.forward(1).forward(self.limit.into());
    }

    /// The count of sent messages after the `staged` requests are posted.
    #[inline(always)]
    const fn sent(&self, staged: u32) -> u32 {
        self.credits.sent().wrapping_add(staged.wrapping_sub(self.others))
    }

    /// Notes a staged request of the caller.
    #[inline(always)]
    pub(super) fn note_own(&mut self, ticket: Ticket, mark: Mark, flags: PostFlags, bytes: u64) {
        self.note(ticket, mark, flags);
        self.bytes = self.bytes.wrapping_add(bytes);
        let inline = flags.contains(PostFlags::INLINE);
        self.inline = self.inline.wrapping_add(u32::from(inline));
    }

    #[inline(always)]
    fn note(&mut self, ticket: Ticket, mark: Mark, flags: PostFlags) {
        if flags.contains(PostFlags::SIGNALED) {
            self.note_signaled(ticket);
        }
        if mark != Mark::Message {
            self.others = self.others.wrapping_add(1);
            self.messages_end = self.end.min(self.messages_end.forward(1));
        }
        self.is_admitted = false;
        self.marks.set(ticket.position(), mark);
        if mark == Mark::Fetch {
            *self.fetches_end = ticket.position().wrapping_add(1);
        }
    }
}

impl<'q, Q: SendQueue, W: Deref<Target: Window>> Batch<'q, Q, W> {
    /// Stages one request; the policy decides whether it is signaled. See [`SendBatch::push`](doorbell_core::provider::SendBatch::push).
    ///
    /// # Errors
    /// [`Refused`] returns the slots with the reason.
    // If the operation is known at compile time, as nearly everywhere, little of this code remains.
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
        let limits = self.tally.limits;
        let checked = limits
            .check(operation, bytes)
            .and_then(|()| limits.check_memory(&slots, flags));
        let next = self.inner.next();
        let admitted = checked.and_then(|()| self.tally.admit(next, mark));
        if let Err(reason) = admitted {
            return Err(Refused { reason, item: slots });
        }
        let fetching = Fetching::of(operation, bytes, limits);
        if let Some(fetching) = fetching {
            bytes = fetching.set_lengths(&mut slots);
        }
        let ticket = self
            .inner
            .push(operation, slots, flags)
            .map_err(|refused| fetching::undone(fetching, refused))?;
        let flags = self.signal(ticket, flags);
        self.tally.note_own(ticket, mark, flags, bytes);
        Ok(ticket)
    }

    /// Stages one request with ranges of windows; the policy decides whether it is signaled. See
    /// [`SendBatch::push_ranges`](doorbell_core::provider::SendBatch::push_ranges).
    ///
    /// A READ or an atomic returns its data into the ranges. So the slots of such a request are passed to `spent` when it is retired, not to
    /// `kept`.
    ///
    /// # Errors
    /// As for [`Batch::push_inline`]. Or a range is not within its window, or the window belongs to another protection domain.
    #[inline(always)]
    pub fn push_ranges<const N: usize>(
        &mut self,
        operation: Operation,
        ranges: [WindowRange<'_, Q::Window>; N],
        flags: PostFlags,
    ) -> Result<Ticket, PushError> {
        let mark = Mark::of_ranges(operation);
        let bytes = self.tally.limits.check_ranges(operation, &ranges)?;
        self.tally.admit(self.inner.next(), mark)?;
        let ticket = self.inner.push_ranges(operation, ranges, flags)?;
        let flags = self.signal(ticket, flags);
        self.tally.note_own(ticket, mark, flags, bytes);
        Ok(ticket)
    }

    /// Stages one request with inline bytes of the caller.
    ///
    /// # Errors
    /// The queue is full, the peer has no receive for it, there are too many bytes, or the
    /// operation returns data.
    #[inline]
    pub fn push_inline(
        &mut self,
        operation: Operation,
        bytes: &'q [u8],
        flags: PostFlags,
    ) -> Result<Ticket, PushError> {
        let mark = Mark::of(operation);
        self.tally.limits.check(operation, bytes.len() as u64)?;
        self.tally.admit(self.inner.next(), mark)?;
        let ticket = self.inner.push_inline(operation, bytes, flags)?;
        let flags = self.signal(ticket, flags) | PostFlags::INLINE;
        self.tally.note_own(ticket, mark, flags, bytes.len() as u64);
        Ok(ticket)
    }

    /// The number of requests that the caller staged.
    #[must_use]
    #[inline]
    pub fn staged(&self) -> u32 {
        let announcement = u32::from(self.tally.announced.is_some());
        self.inner.staged().saturating_sub(announcement)
    }

    /// Makes the last staged request of the caller signaled, whatever the policy. This is for a
    /// caller that posts nothing more before the request is known as done.
    #[inline]
    pub fn signal_last(&mut self) {
        if self.staged() > 0 {
            self.inner.signal_last();
            self.tally.note_signaled(self.inner.next().back(1));
        }
    }

    /// Rings the doorbell once for all staged requests. Returns the number of posted requests of the caller.
    ///
    /// # Errors
    /// The device accepted only a part. `unposted` gets the slots of the rest, in order. If it panics, the slots that it did not
    /// get return to their arena, and all counts are still right.
    #[inline(always)]
    pub fn ring_returning(mut self, unposted: impl FnMut(Ticket, Q::Slot)) -> Result<u32, PostError> {
        if self.staged() == 0 {
            return Ok(0);
        }
        let unsignaled = self.tally.unsignaled(self.inner.next());
        if unsignaled >= *self.tally.unsignaled_max && unsignaled > 0 {
            self.signal_last();
        }
        self.post(unposted)
    }

    /// Rings the doorbell once for all staged requests. Returns the number of posted requests of the caller.
    ///
    /// # Errors
    /// The device accepted only a part; the slots of the rest returned to their arena.
    #[inline(always)]
    pub fn ring(self) -> Result<u32, PostError> {
        self.ring_returning(|_, slot| drop(slot))
    }

    /// Stages an announcement in the reserved place, if it is free.
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
            let flags = self.signal(ticket, flags);
            let tally = &mut self.tally;
            tally.end = tally.end.forward(1);
            tally.note(ticket, Mark::Announcement, flags);
            tally.announced = Some((count, receipt));
        }
    }

    /// Makes the last staged request signaled if it has to be. Returns its flags.
    #[inline(always)]
    pub(super) fn signal(&mut self, ticket: Ticket, flags: PostFlags) -> PostFlags {
        if self.tally.is_signal_due(ticket) {
            self.inner.signal_last();
            return flags | PostFlags::SIGNALED;
        }
        flags
    }

    /// Posts the staged requests, and notes the posted ones before `unposted` is called, which may panic.
    #[inline(always)]
    fn post(self, unposted: impl FnMut(Ticket, Q::Slot)) -> Result<u32, PostError> {
        let Self { inner, tally } = self;
        let next = inner.next();
        let (sent, unsignaled_now) = (tally.sent(inner.staged()), tally.unsignaled(next));
        let Tally {
            marks,
            credits,
            mut announced,
            announcements,
            bytes,
            inline,
            statistics,
            unsignaled,
            ..
        } = tally;
        let refusal = Refusal {
            marks,
            last: next.back(1).position(),
            sent,
            credits: &mut *credits,
            announced: announced
                .as_mut()
                .map(|(count, receipt)| (*count, receipt.reborrow())),
            announcements: &mut *announcements,
            unsignaled: &mut *unsignaled,
            statistics,
        };
        let mut posted = inner.ring_reporting(move |error| refusal.note(error), unposted)?;
        statistics.doorbell(posted, bytes, inline);
        *unsignaled = unsignaled_now;
        credits.note_sent(sent);
        if let Some((count, receipt)) = announced {
            receipt.note_announced(count);
            statistics.announcements.add(1);
            *announcements = announcements.saturating_add(1);
            posted = posted.saturating_sub(1);
        }
        Ok(posted)
    }
}

/// The notes for a doorbell of which the device accepts only a part.
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
    /// Notes the posted requests, and corrects the error, which must not count an announcement.
    #[cold]
    fn note(self, error: &mut PostError) {
        self.statistics.refusal(error.posted);
        if error.posted != 0 {
            // A signaled request may be among the posted part or among the rest.
            *self.unsignaled = UNREPORTED;
        }
        let messages = unposted_messages(self.marks, self.last, error.unposted);
        self.credits.note_sent(self.sent.wrapping_sub(messages));
        if let Some((count, receipt)) = self.announced {
            if error.posted == 0 {
                error.unposted = error.unposted.saturating_sub(1);
            } else {
                receipt.note_announced(count);
                self.statistics.announcements.add(1);
                *self.announcements = self.announcements.saturating_add(1);
                error.posted = error.posted.saturating_sub(1);
            }
        }
    }
}

/// The number of messages among the unposted requests, which were staged last.
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
