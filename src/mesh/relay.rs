//! Frames that this member relays between two other members.

use std::collections::VecDeque;
use std::sync::Arc;

use doorbell_core::rank::{RANKS_MAX, Rank};

use super::pool::Pool;

/// Queues of frames to be forwarded, one queue for each destination, in the order of arrival.
///
/// Flow control allows a window of messages and a few grants in flight between two members. So the number of frames here is bounded, as
/// is the length of each. A frame is accepted without waiting until another was forwarded, so rings of members do not deadlock.
#[derive(Debug)]
pub(super) struct Relay {
    waiting: Vec<VecDeque<(Rank, Arc<Vec<u8>>)>>,
    pair_max: usize,
}

impl Relay {
    pub(super) fn new(ranks: u8, window: u32) -> Self {
        let window = usize::try_from(window).unwrap_or(usize::MAX);
        Self {
            waiting: (0..ranks.min(RANKS_MAX)).map(|_| VecDeque::new()).collect(),
            // Four windows leave room for retransmissions and grants.
            pair_max: window.saturating_mul(4),
        }
    }

    /// Keeps a frame until it can be forwarded. Returns false, and drops the frame, if its source and destination have too many frames
    /// here. Then the source ignores the window, or will retransmit the frame.
    pub(super) fn keep(&mut self, from: Rank, to: Rank, frame: impl FnOnce() -> Arc<Vec<u8>>) -> bool {
        let Some(waiting) = self.waiting.get_mut(to.index()) else {
            return false;
        };
        let of_pair = waiting.iter().filter(|(source, _)| *source == from).count();
        if of_pair >= self.pair_max {
            return false;
        }
        waiting.push_back((from, frame()));
        true
    }

    /// Returns the next frame for a member.
    pub(super) fn next(&self, to: Rank) -> Option<&Arc<Vec<u8>>> {
        let (_, frame) = self.waiting.get(to.index())?.front()?;
        Some(frame)
    }

    pub(super) fn did_pass_on(&mut self, to: Rank, pool: &mut Pool) {
        let waiting = self.waiting.get_mut(to.index());
        if let Some((_, frame)) = waiting.and_then(VecDeque::pop_front) {
            pool.give_back(frame);
        }
    }

    /// Drops the frames for a member that is unreachable. Returns their number.
    pub(super) fn drop_for(&mut self, to: Rank, pool: &mut Pool) -> u64 {
        let mut dropped: u64 = 0;
        while self.next(to).is_some() {
            self.did_pass_on(to, pool);
            dropped = dropped.saturating_add(1);
        }
        dropped
    }
}

#[cfg(test)]
mod tests {
    use super::{Pool, Rank, Relay};

    #[test]
    fn each_pair_of_members_has_room_of_its_own() {
        let rank = |number| Rank::new(number).unwrap();
        let (mut relay, mut pool) = (Relay::new(4, 2), Pool::new(100));
        let keep = |relay: &mut Relay, pool: &mut Pool, from: u8, to: u8| {
            relay.keep(rank(from), rank(to), || pool.fill(&[&[from, to]]))
        };
        // Four windows.
        let kept = (0..20).filter(|_| keep(&mut relay, &mut pool, 0, 2)).count();
        assert_eq!(kept, 8);
        assert!(keep(&mut relay, &mut pool, 1, 2));
        assert!(keep(&mut relay, &mut pool, 0, 3));
        // There are only four members.
        assert!(!keep(&mut relay, &mut pool, 0, 4));
        relay.did_pass_on(rank(2), &mut pool);
        assert!(keep(&mut relay, &mut pool, 0, 2));
        assert!(!keep(&mut relay, &mut pool, 0, 2));
        assert_eq!(relay.drop_for(rank(2), &mut pool), 9);
        assert!(relay.next(rank(2)).is_none());
        assert_eq!(relay.next(rank(3)).unwrap()[..], [0, 3]);
    }
}
