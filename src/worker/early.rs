//! Completions of receives whose channel is not admitted to the Worker yet. The peer knows earlier than this side that the
//! connection is established, and may send at once. The Worker keeps such completions until the channel is admitted or given up.

use std::collections::VecDeque;

use doorbell_core::in_place;
use doorbell_core::provider::Provider;

/// Completions that were polled before their channel was admitted, in the order of polling.
pub(super) struct Early<P: Provider> {
    waiting: VecDeque<P::Completion>,
}

impl<P: Provider> Default for Early<P> {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
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
