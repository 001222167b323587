//! What waits here on its way between two others.

use std::collections::VecDeque;

use doorbell_core::rank::{RANKS_MAX, Rank};

use super::pool::Pool;

/// Frames to be passed on, in the order they came, by whom they are for.
///
/// There can be no more than a window of messages and a few grants between two members, since nobody sends more that were not
/// taken; so what waits here is bounded, as is the length of each, and taking it in never has to wait for passing on: rings do not lock up.
#[derive(Debug)]
pub(super) struct Relay {
    waiting: Vec<VecDeque<(Rank, Vec<u8>)>>,
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

    /// Keeps a frame until it can be passed on; says whether it does. Of a pair that has sent more than it may it does not:
    /// it was sent by somebody who does not keep to the window, or will be sent again.
    pub(super) fn keep(&mut self, from: Rank, to: Rank, frame: impl FnOnce() -> Vec<u8>) -> bool {
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
    pub(super) fn next(&self, to: Rank) -> Option<&[u8]> {
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
