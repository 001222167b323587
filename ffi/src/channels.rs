//! Table of a completion queue's channels: whether each is taken, and the generation at which its next queue
//! begins.
//!
//! A completion names its request only by channel, slot and generation. So no two live queues of one kind share
//! a channel on one completion queue. A queue that follows another on its channel begins after all generations
//! that the other used, since some devices leave completions of a destroyed queue pair where they can still be
//! polled.
//!
//! Generations wrap round after 2^24. A stale completion that was polled but kept is recognized by its age
//! (`doorbell_core::ledger`). An unpolled one matters only until the completion queue has been seen empty once. The
//! number of queues that may follow each other on a channel until then is bounded here. The bound is far below
//! a full round of generations, since each queue leaves only the few that were in flight at its end.
//!
//! A queue that is reset continues after all generations it used, and forgets at most 65,536 requests each time.
//! The allowed number of resets also stays far below a full round, even if no completion is redeemed between
//! them.
//!
//! Shared receive queues complete in any order, so no generation follows all those that such a queue used. Instead of
//! a channel, each of them has a number that no other has.

use core::sync::atomic::{AtomicU32, Ordering};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use doorbell_core::WorkKind;
use doorbell_core::provider::ProviderError;
use doorbell_core::work_id::CHANNELS_MAX;

/// Queues that may follow each other on one channel while the completion queue has not been seen empty.
const LIVES_MAX: u32 = 1 << 20;

#[derive(Debug, Default)]
pub(crate) struct Channels {
    entries: Mutex<HashMap<(WorkKind, u32), NumberUse>>,
    /// Number that identifies the next shared receive queue.
    next_shared: AtomicU32,
}

#[derive(Clone, Copy, Debug, Default)]
struct NumberUse {
    live: bool,
    next_generation: u32,
    /// How often the completion queue had been seen empty when the last queue began.
    emptied: u64,
    /// How many queues began since then.
    lives: u32,
}

impl Channels {
    /// Takes a channel and returns the generation at which its queue begins.
    ///
    /// `emptied` counts how often the completion queue was seen empty.
    ///
    /// # Errors
    /// The channel is taken (`EEXIST`), or the completion queue must be polled first (`EBUSY`).
    pub(crate) fn take(&self, kind: WorkKind, channel: u32, emptied: u64) -> Result<u32, ProviderError> {
        let mut entries = self.lock();
        let entry = entries.entry((kind, channel)).or_default();
        if entry.live {
            return Err(ProviderError {
                call: "queue_pair (the channel is taken)",
                errno: libc::EEXIST,
            });
        }
        if entry.emptied != emptied {
            entry.emptied = emptied;
            entry.lives = 0;
        }
        if entry.lives >= LIVES_MAX {
            let call = "queue_pair (first poll the completion queue until it is empty)";
            return Err(ProviderError {
                call,
                errno: libc::EBUSY,
            });
        }
        entry.lives = entry.lives.saturating_add(1);
        entry.live = true;
        Ok(entry.next_generation)
    }

    /// Counts another life of a queue that is reset and keeps its channel.
    ///
    /// # Errors
    /// The channel has had too many lives (`EBUSY`).
    pub(crate) fn live_on(&self, kind: WorkKind, channel: u32) -> Result<(), ProviderError> {
        let mut entries = self.lock();
        let entry = entries.entry((kind, channel)).or_default();
        if entry.lives >= LIVES_MAX {
            let call = "reset (make a new queue pair)";
            return Err(ProviderError {
                call,
                errno: libc::EBUSY,
            });
        }
        entry.lives = entry.lives.saturating_add(1);
        Ok(())
    }

    /// Whether a queue has this channel, even one that could not be destroyed.
    pub(crate) fn is_taken(&self, kind: WorkKind, channel: u32) -> bool {
        let entries = self.lock();
        entries.get(&(kind, channel)).is_some_and(|entry| entry.live)
    }

    /// Gives back the channel of a destroyed queue. The next queue on it begins at this generation.
    pub(crate) fn give_back(&self, kind: WorkKind, channel: u32, next_generation: u32) {
        if let Some(entry) = self.lock().get_mut(&(kind, channel)) {
            entry.live = false;
            entry.next_generation = next_generation;
        }
    }

    /// Returns a number for a shared receive queue that no other on this completion queue ever has.
    ///
    /// # Errors
    /// All numbers are used up (`EBUSY`).
    pub(crate) fn number_shared(&self) -> Result<u32, ProviderError> {
        // Relaxed: only the number matters.
        let drawn = self
            .next_shared
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| {
                (next < CHANNELS_MAX).then(|| next.saturating_add(1))
            });
        drawn.map_err(|_| ProviderError {
            call: "shared_receive_queue (make a new completion queue)",
            errno: libc::EBUSY,
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(WorkKind, u32), NumberUse>> {
        // Nothing panics while the lock is held. Even after a panic each entry would be whole.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::{CHANNELS_MAX, Channels, LIVES_MAX};
    use doorbell_core::WorkKind::{Receive, Send};

    #[test]
    fn a_channel_is_taken_once_per_kind() {
        let channels = Channels::default();
        assert_eq!(channels.take(Send, 7, 0), Ok(0));
        assert_eq!(channels.take(Receive, 7, 0), Ok(0));
        assert_eq!(channels.take(Send, 8, 0), Ok(0));
        assert_eq!(channels.take(Send, 7, 0).unwrap_err().errno, libc::EEXIST);
        assert!(channels.is_taken(Send, 7) && !channels.is_taken(Receive, 8));
        channels.give_back(Send, 7, 42);
        assert!(!channels.is_taken(Send, 7) && channels.is_taken(Receive, 7));
        assert_eq!(channels.take(Send, 7, 0), Ok(42));
    }

    #[test]
    fn shared_queues_never_share_a_number() {
        let channels = Channels::default();
        for number in 0..CHANNELS_MAX {
            assert_eq!(channels.number_shared(), Ok(number));
        }
        for _ in 0..2 {
            assert_eq!(channels.number_shared().unwrap_err().errno, libc::EBUSY);
        }
    }

    #[test]
    fn resets_are_lives_too() {
        let channels = Channels::default();
        channels.take(Send, 1, 5).unwrap();
        for _ in 1..LIVES_MAX {
            channels.live_on(Send, 1).unwrap();
        }
        assert_eq!(channels.live_on(Send, 1).unwrap_err().errno, libc::EBUSY);
        channels.take(Receive, 1, 5).unwrap();
        assert_eq!(channels.live_on(Receive, 1), Ok(()));
    }

    #[test]
    fn generations_cannot_come_round_unseen() {
        let channels = Channels::default();
        for _ in 0..LIVES_MAX {
            channels.take(Send, 1, 5).unwrap();
            channels.give_back(Send, 1, 0);
        }
        assert_eq!(channels.take(Send, 1, 5).unwrap_err().errno, libc::EBUSY);
        assert_eq!(channels.take(Send, 1, 6), Ok(0));
    }
}
