//! The claims of a ring's halves, and whether the ring is closed, in one word, so that they are consistent.

use core::fmt;

use doorbell_core::sync::{AtomicU32, AtomicU64, Ordering};

use crate::ordering::{SPSC_CLAIM, SPSC_CLOSE, SPSC_CLOSED, SPSC_UNCLAIM};
use crate::ring::ClaimError;
use crate::ring::slot::const_constructors;

/// The producer half is claimed.
const PRODUCER: u32 = 1;
/// The consumer half is claimed.
const CONSUMER: u32 = 2;
/// The ring is closed.
const CLOSED: u32 = 4;
/// Nothing is published any more: the producer knows that the ring is closed, or there is no producer.
const FINISHED: u32 = 8;

pub(super) struct State {
    word: AtomicU32,
    /// The position at which the next producer continues; a producer writes it when it is dropped.
    tail: AtomicU64,
}

impl State {
    const_constructors! {
        pub(super) fn new() -> Self {
            Self {
                word: AtomicU32::new(0),
                tail: AtomicU64::new(0),
            }
        }
    }

    /// Whether the ring looks closed: a cheap check for the producer, relaxed.
    #[inline(always)]
    pub(super) fn looks_closed(&self) -> bool {
        self.word.load(Ordering::Relaxed) & CLOSED != 0
    }

    /// Whether the ring is closed.
    pub(super) fn is_closed(&self) -> bool {
        self.word.load(SPSC_CLOSED.get()) & CLOSED != 0
    }

    /// Whether nothing is published any more.
    #[inline(always)]
    pub(super) fn is_finished(&self) -> bool {
        self.word.load(SPSC_CLOSED.get()) & FINISHED != 0
    }

    /// Claims the producer half. Returns the position at which it continues.
    pub(super) fn claim_producer(&self) -> Result<u64, ClaimError> {
        self.claim(PRODUCER, PRODUCER | CLOSED)?;
        // Relaxed: the claim orders it after the previous producer's store.
        Ok(self.tail.load(Ordering::Relaxed))
    }

    pub(super) fn claim_consumer(&self) -> Result<(), ClaimError> {
        self.claim(CONSUMER, CONSUMER)
    }

    fn claim(&self, half: u32, excluded: u32) -> Result<(), ClaimError> {
        // Relaxed on failure: nothing is read then.
        let claimed = self
            .word
            .fetch_update(SPSC_CLAIM.get(), Ordering::Relaxed, |word| {
                (word & excluded == 0).then_some(word | half)
            });
        match claimed {
            Ok(_) => Ok(()),
            Err(word) if word & half != 0 => Err(ClaimError::Claimed),
            Err(_) => Err(ClaimError::Closed),
        }
    }

    /// The producer is dropped at a position. If the ring is closed, there is no next producer.
    pub(super) fn unclaim_producer(&self, tail: u64) {
        // Relaxed: published by the release of the half below.
        self.tail.store(tail, Ordering::Relaxed);
        self.update(SPSC_UNCLAIM.get(), |word| {
            let finished = if word & CLOSED == 0 { 0 } else { FINISHED };
            word & !PRODUCER | finished
        });
    }

    pub(super) fn unclaim_consumer(&self) {
        self.update(SPSC_UNCLAIM.get(), |word| word & !CONSUMER);
    }

    /// The producer closes, or knows that the ring is closed.
    pub(super) fn close_producer(&self) {
        self.update(SPSC_CLOSE.get(), |word| word | CLOSED | FINISHED);
    }

    /// The consumer closes the ring. An existing producer has not learned this yet.
    pub(super) fn close_consumer(&self) {
        self.update(SPSC_CLOSE.get(), |word| {
            let finished = if word & PRODUCER == 0 { FINISHED } else { 0 };
            word | CLOSED | finished
        });
    }

    fn update(&self, ordering: Ordering, mut next: impl FnMut(u32) -> u32) {
        // This cannot fail, since the closure always returns a word.
        let _ = self
            .word
            .fetch_update(ordering, Ordering::Relaxed, |word| Some(next(word)));
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = self.word.load(Ordering::Relaxed);
        f.debug_struct("State")
            .field("producer", &(word & PRODUCER != 0))
            .field("consumer", &(word & CONSUMER != 0))
            .field("closed", &(word & CLOSED != 0))
            .finish_non_exhaustive()
    }
}
