//! Completions of receives whose channel is not admitted yet. The peer learns before us that the connection stands, and may send at
//! once. The completions are kept as they were polled until the channel is admitted or given up.

use std::collections::VecDeque;

use doorbell_core::in_place;
use doorbell_core::provider::Provider;

/// Completions that came before their channel was admitted, in the order of polling.
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
    /// How many are kept.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Makes room for so many beside those there are, so that polling never allocates.
    pub(super) fn make_room(&mut self, completions: usize) {
        let wanted = completions.saturating_add(self.waiting.len());
        if self.waiting.capacity() >= wanted {
            return;
        }
        // Touched before, so that what is kept while polling meets no page fault.
        let mut room = Vec::with_capacity(wanted);
        in_place::touch(room.spare_capacity_mut());
        room.extend(self.waiting.drain(..));
        self.waiting = room.into();
    }

    /// Whether another can be kept. There is room for all that channels on their way were promised.
    pub(super) fn has_room(&self) -> bool {
        self.waiting.len() < self.waiting.capacity()
    }

    /// Keeps one; where there is no room, which is to be seen to before, it is let go.
    pub(super) fn keep(&mut self, completion: P::Completion) {
        if self.waiting.len() < self.waiting.capacity() {
            self.waiting.push_back(completion);
        }
    }

    /// Begins to look at each of them again: it is taken, and kept anew where it is still early.
    pub(super) fn pass_again(&mut self) -> SecondPass<'_, P> {
        let left = self.waiting.len();
        SecondPass { early: self, left }
    }
}

/// A second look at early completions. They stay in order, even if it ends before the last one.
pub(super) struct SecondPass<'e, P: Provider> {
    early: &'e mut Early<P>,
    /// How many were not looked at.
    left: usize,
}

impl<P: Provider> SecondPass<'_, P> {
    /// Takes the one that came first of those that were not looked at.
    pub(super) fn take(&mut self) -> Option<P::Completion> {
        self.left = self.left.checked_sub(1)?;
        self.early.waiting.pop_front()
    }

    /// The place where it is kept anew.
    pub(super) const fn early(&mut self) -> &mut Early<P> {
        self.early
    }
}

impl<P: Provider> Drop for SecondPass<'_, P> {
    /// Some are left by a callback that panicked: they came behind those that were kept anew.
    fn drop(&mut self) {
        if self.left <= self.early.waiting.len() {
            self.early.waiting.rotate_left(self.left);
        }
    }
}
