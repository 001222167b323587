//! Frames that wait here on their way between two other members.

use std::collections::VecDeque;
use std::sync::Arc;

use doorbell_core::rank::{RANKS_MAX, Rank};

use super::pool::Pool;

/// Frames to be passed on, in the order they came, by destination.
///
/// At most a window of messages and a few grants are under way between two members, since a member sends no more until they are
/// taken. So the number of frames here is bounded, as is the length of each. A frame is taken in without waiting for one to be
/// passed on, so rings of members do not lock up.
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
            // As much again for what goes a second time, and for grants.
            pair_max: window.saturating_mul(4),
        }
    }

    /// Keeps a frame until it can be passed on; returns whether it does. A frame of a pair that has more here than it may is
    /// dropped: its sender ignores the window, or will retransmit it.
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

    /// The next frame for a member.
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

    /// Drops what is for a member that cannot be reached; how many there were.
    pub(super) fn drop_for(&mut self, to: Rank, pool: &mut Pool) -> u64 {
        let mut dropped: u64 = 0;
        while self.next(to).is_some() {
            self.did_pass_on(to, pool);
            dropped = dropped.saturating_add(1);
        }
        dropped
    }
}
