//! The send half: doorbell batching and selective signaling over a provider's send queue.

use core::fmt;

use doorbell_core::Ticket;
use doorbell_core::provider::{
    Operation, PostError, PostFlags, PushError, Refused, Rejected, Retired, SendBatch, SendQueue,
};

use crate::FirstCause;

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

/// The storage for the kept bits does not fit the queue's depth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StorageError {
    /// How many words there must be.
    pub words: usize,
}

impl fmt::Display for StorageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a sender of this depth needs {} words", self.words)
    }
}

impl core::error::Error for StorageError {}

/// How many words of storage a sender of this depth needs: one bit for each request, over a
/// power of two of them.
#[must_use]
pub const fn kept_words_for(depth: u32) -> usize {
    (depth.next_power_of_two() as usize).div_ceil(u64::BITS as usize)
}

/// A send queue with its signaling policy.
pub struct Sender<Q, Kept> {
    queue: Q,
    /// One bit a request in flight: whether its slots go back to whoever posted it, having
    /// had data written into them, and not straight to the arena.
    kept: Kept,
    kept_mask: u64,
    config: SenderConfig,
    /// Half the queue: unsignaled requests in a row at most, whatever the policy.
    unsignaled_limit: u32,
    /// Requests posted since the last signaled one; none where that is not known.
    unsignaled: u32,
    /// Whether the next request has to be signaled, part of a doorbell having been refused.
    signal_next: bool,
    cause: Option<FirstCause>,
}

impl<Q: SendQueue, Kept: AsRef<[u64]> + AsMut<[u64]>> Sender<Q, Kept> {
    /// A sender over an idle queue.
    ///
    /// # Errors
    /// `kept` has not exactly [`kept_words_for`] the queue's depth.
    pub fn new(queue: Q, kept: Kept, config: &SenderConfig) -> Result<Self, StorageError> {
        let depth = queue.in_flight().saturating_add(queue.room());
        let words = kept_words_for(depth);
        if kept.as_ref().len() != words {
            return Err(StorageError { words });
        }
        // The length is a power of two in bits once it is more than one word.
        let bits = (words as u64).saturating_mul(u64::from(u64::BITS));
        Ok(Self {
            queue,
            kept,
            kept_mask: bits.saturating_sub(1),
            config: *config,
            unsignaled_limit: (depth / 2).saturating_sub(1),
            unsignaled: 0,
            signal_next: false,
            cause: None,
        })
    }

    /// Begins a batch: push requests, then ring once.
    #[inline]
    pub fn stage(&mut self) -> Batch<'_, Q> {
        Batch {
            inner: self.queue.stage(),
            kept: self.kept.as_mut(),
            kept_mask: self.kept_mask,
            limit: if self.signal_next {
                0
            } else {
                self.unsignaled_limit
            },
            config: &self.config,
            unsignaled_now: self.unsignaled,
            unsignaled: &mut self.unsignaled,
            signal_next: &mut self.signal_next,
        }
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
    ) -> Result<Retired, Rejected> {
        let Self {
            queue,
            kept: bits,
            kept_mask,
            ..
        } = self;
        let retired = queue.retire(completion, |ticket, slot| {
            if bit(bits.as_ref(), ticket, *kept_mask) {
                kept(ticket, slot)
            } else {
                spent(slot)
            }
        })?;
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
        Ok(retired)
    }

    /// Why the queue pair failed, as far as this half knows.
    #[must_use]
    pub const fn cause(&self) -> Option<FirstCause> {
        self.cause
    }

    /// How many requests are in flight.
    #[must_use]
    #[inline]
    pub fn in_flight(&self) -> u32 {
        self.queue.in_flight()
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
        self.queue.room()
    }
}

/// Requests staged for one doorbell. Dropping it rings nothing.
pub struct Batch<'q, Q: SendQueue + 'q> {
    inner: Q::Batch<'q>,
    kept: &'q mut [u64],
    kept_mask: u64,
    limit: u32,
    config: &'q SenderConfig,
    /// Unsignaled requests in a row, with those staged here.
    unsignaled_now: u32,
    /// The same as of the last doorbell: written when this one rings.
    unsignaled: &'q mut u32,
    signal_next: &'q mut bool,
}

impl<'q, Q: SendQueue> Batch<'q, Q> {
    /// Stages one request; whether it is signaled is the policy's. See [`SendBatch::push`].
    ///
    /// # Errors
    /// [`Refused`] hands the slots back with the reason.
    #[inline]
    pub fn push<const N: usize>(
        &mut self,
        operation: Operation,
        slots: [Q::Slot; N],
        flags: PostFlags,
    ) -> Result<Ticket, Refused<[Q::Slot; N]>> {
        let flags = self.signal(flags);
        let ticket = self.inner.push(operation, slots, flags)?;
        self.note(ticket, operation, flags);
        Ok(ticket)
    }

    /// Stages one request whose bytes are the caller's own and go inline.
    ///
    /// # Errors
    /// The queue is full, the bytes too many, or the operation brings data back.
    #[inline]
    pub fn push_inline(
        &mut self,
        operation: Operation,
        bytes: &'q [u8],
        flags: PostFlags,
    ) -> Result<Ticket, PushError> {
        let flags = self.signal(flags);
        let ticket = self.inner.push_inline(operation, bytes, flags)?;
        self.note(ticket, operation, flags);
        Ok(ticket)
    }

    /// How many requests are staged.
    #[must_use]
    #[inline]
    pub fn staged(&self) -> u32 {
        self.inner.staged()
    }

    /// Rings the doorbell once for all that is staged; says how many were posted.
    ///
    /// # Errors
    /// The device took only part. `unposted` gets the slots of the rest, in order.
    #[inline]
    pub fn ring_returning(mut self, unposted: impl FnMut(Ticket, Q::Slot)) -> Result<u32, PostError> {
        if self.unsignaled_now >= self.config.unsignaled_max && self.unsignaled_now > 0 {
            self.inner.signal_last();
            self.unsignaled_now = 0;
        }
        let outcome = self.inner.ring_returning(unposted);
        match outcome {
            Ok(0) => {}
            Ok(_) => {
                *self.unsignaled = self.unsignaled_now;
                *self.signal_next = false;
            }
            // A signaled request may be among the posted part or among the rest: the next one is
            // signaled, so that the part is known done.
            Err(_) => {
                *self.unsignaled = 0;
                *self.signal_next = true;
            }
        }
        outcome
    }

    /// Rings the doorbell once for all that is staged; says how many were posted.
    ///
    /// # Errors
    /// The device took only part; the slots of the rest went home.
    #[inline]
    pub fn ring(self) -> Result<u32, PostError> {
        self.ring_returning(|_, slot| drop(slot))
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
    fn note(&mut self, ticket: Ticket, operation: Operation, flags: PostFlags) {
        self.unsignaled_now = if flags.contains(PostFlags::SIGNALED) {
            0
        } else {
            self.unsignaled_now.saturating_add(1)
        };
        set_bit(self.kept, ticket, self.kept_mask, operation.writes_slots());
    }
}

#[inline]
fn bit(words: &[u64], ticket: Ticket, mask: u64) -> bool {
    let index = ticket.position() & mask;
    let word = usize::try_from(index >> 6).ok().and_then(|word| words.get(word));
    word.is_some_and(|word| word >> (index & 63) & 1 == 1)
}

#[inline]
fn set_bit(words: &mut [u64], ticket: Ticket, mask: u64, value: bool) {
    let index = ticket.position() & mask;
    if let Some(word) = usize::try_from(index >> 6)
        .ok()
        .and_then(|word| words.get_mut(word))
    {
        let one = 1_u64 << (index & 63);
        *word = if value { *word | one } else { *word & !one };
    }
}

impl<Q: SendQueue, Kept> fmt::Debug for Sender<Q, Kept> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender")
            .field("in_flight", &self.queue.in_flight())
            .field("unsignaled", &self.unsignaled)
            .field("cause", &self.cause)
            .finish_non_exhaustive()
    }
}

impl<Q: SendQueue> fmt::Debug for Batch<'_, Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("staged", &self.staged())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
