//! Completions of receives whose channel is not admitted to the Worker yet. The peer knows earlier than this side that the
//! connection is established, and may send at once. The Worker keeps such completions until the channel is admitted or given up.

use std::collections::VecDeque;

use doorbell_core::in_place;
use doorbell_core::provider::Provider;

/// Polls from one pass over the kept completions to the next, if no channel is admitted between. Peers that withhold the end of their
/// handshakes decide how many completions are kept, so a pass at each poll would let them slow the Worker down. A pass without an
/// admission only drops completions of connections that were given up, which is not urgent.
const PASS_EVERY: u32 = 16;

/// Completions that were polled before their channel was admitted, in the order of polling.
pub(super) struct Early<P: Provider> {
    waiting: VecDeque<P::Completion>,
    /// Polls to skip before the next pass.
    skips: u32,
}

impl<P: Provider> Default for Early<P> {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            skips: 0,
        }
    }
}

impl<P: Provider> Early<P> {
    /// Returns how many completions are kept.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Makes room for so many completions in addition to the kept ones, so that polling never allocates.
    pub(super) fn make_room(&mut self, completions: usize) {
        let wanted = completions.saturating_add(self.waiting.len());
        if self.waiting.capacity() >= wanted {
            return;
        }
        // The new memory is touched here, so that a poll meets no page fault.
        let mut room = Vec::with_capacity(wanted);
        in_place::touch(room.spare_capacity_mut());
        room.extend(self.waiting.drain(..));
        self.waiting = room.into();
    }

    /// Whether another completion can be kept. There is room for all receives of the connections in progress.
    pub(super) fn has_room(&self) -> bool {
        self.waiting.len() < self.waiting.capacity()
    }

    /// Keeps a completion. Callers check [`Early::has_room`] before; without room the completion is dropped.
    pub(super) fn keep(&mut self, completion: P::Completion) {
        if self.waiting.len() < self.waiting.capacity() {
            self.waiting.push_back(completion);
        }
    }

    /// Notes that a channel was admitted, whose completions the next poll has to handle before newer ones.
    pub(super) const fn note_admitted(&mut self) {
        self.skips = 0;
    }

    /// Counts a poll. Returns whether a pass is due; if so, call [`Early::note_passed`] when it is complete.
    pub(super) const fn is_pass_due(&mut self) -> bool {
        let is_due = self.skips == 0;
        self.skips = self.skips.saturating_sub(1);
        is_due
    }

    /// Notes that a pass is complete. After one that a panic of a callback ended, the next poll passes again.
    pub(super) const fn note_passed(&mut self) {
        self.skips = PASS_EVERY.saturating_sub(1);
    }

    /// Begins another pass over the kept completions. The caller takes each one, and keeps it again if its channel is still not
    /// admitted.
    pub(super) fn pass_again(&mut self) -> SecondPass<'_, P> {
        let left = self.waiting.len();
        SecondPass { early: self, left }
    }
}

/// Another pass over early completions. Their order is preserved, even if the pass ends before the last one.
pub(super) struct SecondPass<'e, P: Provider> {
    early: &'e mut Early<P>,
    /// How many completions this pass has not taken yet.
    left: usize,
}

impl<P: Provider> SecondPass<'_, P> {
    /// Takes the earliest completion that this pass has not taken yet.
    pub(super) fn take(&mut self) -> Option<P::Completion> {
        self.left = self.left.checked_sub(1)?;
        self.early.waiting.pop_front()
    }

    /// Returns the list, to keep a completion again.
    pub(super) const fn early(&mut self) -> &mut Early<P> {
        self.early
    }
}

impl<P: Provider> Drop for SecondPass<'_, P> {
    /// Restores the order after a callback panicked. The completions that were not taken are in front of the ones that were kept
    /// again, but are younger.
    fn drop(&mut self) {
        if self.left <= self.early.waiting.len() {
            self.early.waiting.rotate_left(self.left);
        }
    }
}

#[cfg(test)]
mod tests {
    use doorbell_sim::Host;

    use super::{Early, PASS_EVERY};

    #[test]
    fn one_poll_in_sixteen_passes_and_the_one_behind_an_admission() {
        let mut early = Early::<Host>::default();
        let mut passed = |polls: u32| {
            let due = (0..polls).filter(|_| {
                let is_due = early.is_pass_due();
                if is_due {
                    early.note_passed();
                }
                is_due
            });
            due.count()
        };
        assert_eq!(passed(1), 1);
        assert_eq!(passed(PASS_EVERY - 1), 0);
        assert_eq!(passed(10 * PASS_EVERY), 10);
        early.note_admitted();
        assert!(early.is_pass_due());
        // The pass did not come to its end.
        assert!(early.is_pass_due());
    }
}
