//! The send half: doorbell batching, selective signaling and credits over a provider's send queue.

use core::fmt;
use core::ops::Deref;

use doorbell_core::Ticket;
use doorbell_core::provider::{
    Operation, PostError, PostFlags, PushError, Refused, Rejected, Retired, SendBatch, SendQueue, Slot,
    Window,
};

use crate::credits::{Announcement, Announcer, Credits, Grants, Receipt, WindowWord};
use crate::marks::{Mark, Marked, Marks, StorageError};
use crate::{FirstCause, Statistics};

/// How a sender signals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenderConfig {
    /// Unsignaled requests in a row at most when a doorbell rings: with this many or more, the
    /// last of the doorbell is signaled. 0 or 1 signals the last of every doorbell, so that
    /// nothing waits for a later one to be known done.
    ///
    /// Whatever it says, of half the queue in a row one is signaled, so that a full queue
    /// always has a completion coming.
    pub unsignaled_max: u32,
}

/// What keeps a sender from sending more than its peer has receives for, and tells the peer of
/// ours.
pub struct Flow<W, L> {
    /// What may be sent.
    pub credits: Credits,
    /// Where the peer announces.
    pub word: WindowWord<W>,
    /// What announces to the peer.
    pub announcer: Announcer<L>,
}

/// A send queue with its signaling policy and its credits.
///
/// One place of the queue is kept back, so that receives can be announced whatever the caller
/// posts.
pub struct Sender<Q, Words, W, L, S> {
    queue: Q,
    statistics: S,
    marks: Marks<Words>,
    flow: Flow<W, L>,
    config: SenderConfig,
    /// Half the queue: unsignaled requests in a row at most, whatever the policy.
    unsignaled_limit: u32,
    /// Requests posted since the last signaled one; none where that is not known.
    unsignaled: u32,
    /// Announcements in flight.
    announcements: u32,
    /// Behind the last request staged whose slots data is written into: none in flight is one
    /// from there on. A position.
    fetches_end: u64,
    /// Whether the next request has to be signaled, part of a doorbell having been refused.
    signal_next: bool,
    cause: Option<FirstCause>,
}

/// What a completion gave back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outcome {
    /// All of it, announcements too.
    pub retired: Retired,
    /// The last request that was the caller's own; `None` where none was.
    pub through: Option<Ticket>,
}

impl<Q, Words, W, L, S> Sender<Q, Words, W, L, S>
where
    Q: SendQueue,
    Words: AsRef<[u64]> + AsMut<[u64]>,
    W: Deref<Target: Window>,
    L: Deref<Target = Grants>,
    S: Deref<Target = Statistics>,
{
    /// A sender over an idle queue, which counts in `statistics` what it does.
    ///
    /// # Errors
    /// `words` are not exactly [`mark_words_for`](crate::mark_words_for) the queue's depth.
    pub fn new(
        queue: Q,
        words: Words,
        flow: Flow<W, L>,
        statistics: S,
        config: &SenderConfig,
    ) -> Result<Self, StorageError> {
        let depth = queue.in_flight().saturating_add(queue.room());
        Ok(Self {
            queue,
            statistics,
            marks: Marks::new(words, depth)?,
            flow,
            config: *config,
            unsignaled_limit: (depth / 2).saturating_sub(1),
            unsignaled: 0,
            announcements: 0,
            fetches_end: 0,
            signal_next: false,
            cause: None,
        })
    }

    /// Begins a batch: push requests, then ring once. Where many receives are unannounced,
    /// they are announced with it, in front.
    // Inlined, like what works on the batch: it then needs no place in memory.
    #[inline(always)]
    pub fn stage(&mut self) -> Batch<'_, Q, W> {
        let (mut batch, announcer) = self.open();
        if let Some(announcement) = announcer.beside() {
            batch.announce(announcement);
        }
        batch
    }

    /// Announces by itself what receives the peer does not know of. Says whether none is left
    /// to announce; there is where the queue is full.
    ///
    /// # Errors
    /// The device refused it.
    pub fn announce(&mut self) -> Result<bool, PostError> {
        let (mut batch, announcer) = self.open();
        let Some(announcement) = announcer.alone() else {
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
        let room = self.queue.room();
        let batch = Batch {
            inner: self.queue.stage(),
            marks: self.marks.view(),
            last: 0,
            room: room.saturating_sub(1),
            sent: self.flow.credits.sent(),
            credits: &mut self.flow.credits,
            word: &self.flow.word,
            announced: None,
            announcements: &mut self.announcements,
            bytes: 0,
            inline: 0,
            statistics: &self.statistics,
            limit: if self.signal_next {
                0
            } else {
                self.unsignaled_limit
            },
            config: &self.config,
            unsignaled_now: self.unsignaled,
            unsignaled: &mut self.unsignaled,
            signal_next: &mut self.signal_next,
            fetches_end: &mut self.fetches_end,
        };
        (batch, &mut self.flow.announcer)
    }

    /// Gives back what a completion proves done. Slots that data was written into go to
    /// `kept`, all others to `spent`, each in posting order.
    ///
    /// # Errors
    /// The completion names nothing in flight here.
    #[inline]
    pub fn retire(
        &mut self,
        completion: Q::Completion,
        mut kept: impl FnMut(Ticket, Q::Slot),
        mut spent: impl FnMut(Q::Slot),
    ) -> Result<Outcome, Rejected> {
        let mut marks = self.marks.view();
        let fetches_end = self.fetches_end;
        let retired = self.queue.retire(completion, |ticket, slot| {
            let position = ticket.position();
            if position < fetches_end && marks.get(position) == Mark::Fetch {
                kept(ticket, slot)
            } else {
                spent(slot)
            }
        })?;
        self.statistics.completions.add(1);
        if !retired.status.is_success() {
            let Retired {
                status,
                last: ticket,
                vendor_error,
                ..
            } = retired;
            FirstCause::note(
                &mut self.cause,
                FirstCause {
                    status,
                    ticket,
                    vendor_error,
                },
            );
        }
        let through = if self.announcements == 0 {
            Some(retired.last)
        } else {
            self.retire_announcements(&retired)
        };
        Ok(Outcome { retired, through })
    }

    /// Counts the announcements among what was given back; says which request was the last
    /// that is none.
    fn retire_announcements(&mut self, retired: &Retired) -> Option<Ticket> {
        let mut marks = self.marks.view();
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

    /// Why the queue pair failed, as far as this half knows.
    #[must_use]
    pub const fn cause(&self) -> Option<FirstCause> {
        self.cause
    }

    /// How many requests of the caller are in flight.
    #[must_use]
    #[inline]
    pub fn in_flight(&self) -> u32 {
        self.queue.in_flight().saturating_sub(self.announcements)
    }

    /// Whether a completion is yet to come: a signaled request is in flight. What was posted
    /// after the last signaled one is known done only by a later one.
    ///
    /// After a doorbell of which part was refused it may say so in vain, until the next one.
    #[must_use]
    #[inline]
    pub fn awaits_completion(&self) -> bool {
        self.queue.in_flight() > self.unsignaled
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

    /// Says once, after a message was refused for want of a credit, that there are some again.
    /// No completion tells: the peer announces by a silent WRITE.
    #[inline]
    pub fn credits_came(&mut self) -> bool {
        self.flow.credits.satisfy(self.flow.word.load())
    }
}

/// Requests staged for one doorbell. Dropping it rings nothing.
pub struct Batch<'q, Q: SendQueue + 'q, W> {
    inner: Q::Batch<'q>,
    marks: Marked<'q>,
    /// The position of the last request staged.
    last: u64,
    /// How many more the caller may stage.
    room: u32,
    /// Messages sent, with those staged here.
    sent: u32,
    /// The same as of the last doorbell: noted when this one rings.
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
    config: &'q SenderConfig,
    /// Unsignaled requests in a row, with those staged here.
    unsignaled_now: u32,
    /// The same as of the last doorbell: written when this one rings.
    unsignaled: &'q mut u32,
    signal_next: &'q mut bool,
    fetches_end: &'q mut u64,
}

impl<'q, Q: SendQueue, W: Deref<Target: Window>> Batch<'q, Q, W> {
    /// Stages one request; whether it is signaled is the policy's. See [`SendBatch::push`].
    ///
    /// # Errors
    /// [`Refused`] hands the slots back with the reason.
    // Where the operation is known, which is nearly everywhere, little of it is left.
    #[inline(always)]
    pub fn push<const N: usize>(
        &mut self,
        operation: Operation,
        slots: [Q::Slot; N],
        flags: PostFlags,
    ) -> Result<Ticket, Refused<[Q::Slot; N]>> {
        let mark = Mark::of(operation);
        if let Err(reason) = self.admit(mark) {
            return Err(Refused { reason, item: slots });
        }
        let flags = self.signal(flags);
        let bytes = slots
            .iter()
            .fold(0, |sum: u64, slot| sum.wrapping_add(slot.len_bytes() as u64));
        let ticket = self.inner.push(operation, slots, flags)?;
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
        self.admit(mark)?;
        let flags = self.signal(flags);
        let ticket = self.inner.push_inline(operation, bytes, flags)?;
        self.note_own(ticket, mark, flags | PostFlags::INLINE, bytes.len() as u64);
        Ok(ticket)
    }

    /// How many requests the caller staged.
    #[must_use]
    #[inline]
    pub fn staged(&self) -> u32 {
        let announcement = u32::from(self.announced.is_some());
        self.inner.staged().saturating_sub(announcement)
    }

    /// Rings the doorbell once for all that is staged; says how many were posted.
    ///
    /// # Errors
    /// The device took only part. `unposted` gets the slots of the rest, in order.
    #[inline(always)]
    pub fn ring_returning(mut self, unposted: impl FnMut(Ticket, Q::Slot)) -> Result<u32, PostError> {
        if self.staged() == 0 {
            return Ok(0);
        }
        if self.unsignaled_now >= self.config.unsignaled_max && self.unsignaled_now > 0 {
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
        let refused = if self.room == 0 {
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
        let flags = self.signal(PostFlags::empty());
        let Announcement {
            count,
            word,
            bytes,
            receipt,
        } = announcement;
        if let Ok(ticket) = self.inner.push_inline(Operation::Write(word), bytes, flags) {
            self.note(ticket, Mark::Announcement, flags);
            self.announced = Some((count, receipt));
        }
    }

    #[inline]
    fn signal(&self, flags: PostFlags) -> PostFlags {
        if self.unsignaled_now >= self.limit {
            flags | PostFlags::SIGNALED
        } else {
            flags
        }
    }

    #[inline]
    fn note_own(&mut self, ticket: Ticket, mark: Mark, flags: PostFlags, bytes: u64) {
        self.note(ticket, mark, flags);
        self.bytes = self.bytes.wrapping_add(bytes);
        let inline = flags.contains(PostFlags::INLINE);
        self.inline = self.inline.wrapping_add(u32::from(inline));
        self.room = self.room.saturating_sub(1);
        self.sent = self.sent.wrapping_add(u32::from(mark == Mark::Message));
    }

    #[inline]
    fn note(&mut self, ticket: Ticket, mark: Mark, flags: PostFlags) {
        self.unsignaled_now = if flags.contains(PostFlags::SIGNALED) {
            0
        } else {
            self.unsignaled_now.saturating_add(1)
        };
        self.last = ticket.position();
        self.marks.set(self.last, mark);
        if mark == Mark::Fetch {
            *self.fetches_end = self.last.wrapping_add(1);
        }
    }

    /// Posts what is staged, and notes what was posted of it.
    #[inline(always)]
    fn post(self, unposted: impl FnMut(Ticket, Q::Slot)) -> Result<u32, PostError> {
        let Self {
            inner,
            announced,
            marks,
            ..
        } = self;
        let mut outcome = inner.ring_returning(unposted);
        match &mut outcome {
            Ok(posted) => {
                self.statistics.doorbell(*posted, self.bytes, self.inline);
                *self.unsignaled = self.unsignaled_now;
                *self.signal_next = false;
                self.credits.note_sent(self.sent);
                if let Some((count, receipt)) = announced {
                    receipt.note_announced(count);
                    self.statistics.announcements.add(1);
                    *self.announcements = self.announcements.saturating_add(1);
                    *posted = posted.saturating_sub(1);
                }
            }
            Err(error) => {
                // The bytes of the part that went are not known: the doorbell alone is counted.
                self.statistics.doorbell(error.posted, 0, 0);
                // A signaled request may be among the posted part or among the rest: the next
                // one is signaled, so that the part is known done.
                *self.unsignaled = 0;
                *self.signal_next = true;
                let messages = unposted_messages(marks, self.last, error.unposted);
                self.credits.note_sent(self.sent.wrapping_sub(messages));
                if let Some((count, receipt)) = announced {
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
        outcome
    }
}

/// Looks what the peer has announced; says whether it is more.
#[cold]
fn look<W: Deref<Target: Window>>(credits: &mut Credits, word: &WindowWord<W>) -> bool {
    let announced = word.load();
    let is_news = announced.is_some_and(|announced| credits.learn(announced));
    if !is_news {
        credits.note_refused();
    }
    is_news
}

/// How many messages are among the requests that were not posted, the last ones staged.
#[cold]
fn unposted_messages(mut marks: Marked<'_>, last: u64, unposted: u32) -> u32 {
    (0..u64::from(unposted))
        .map(|offset| u32::from(marks.get(last.wrapping_sub(offset)) == Mark::Message))
        .fold(0, u32::wrapping_add)
}

impl<Q: SendQueue, Words, W, L, S> fmt::Debug for Sender<Q, Words, W, L, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender")
            .field("in_flight", &self.queue.in_flight())
            .field("unsignaled", &self.unsignaled)
            .field("flow", &self.flow)
            .field("cause", &self.cause)
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

impl<Q: SendQueue, W> fmt::Debug for Batch<'_, Q, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("staged", &self.inner.staged())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
