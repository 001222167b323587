//! Completions of receives whose channel is on its way: its peer is told that the connection stands before we are,
//! and may send at once. They are kept as they were polled until the channel is admitted, or comes to nothing.

use doorbell_core::in_place;
use doorbell_core::provider::Provider;

/// What came early, in the order it was polled in.
pub(super) struct Early<P: Provider> {
    waiting: Vec<P::Completion>,
    /// Empty: where those that are looked at again stand meanwhile.
    again: Vec<P::Completion>,
}

impl<P: Provider> Default for Early<P> {
    fn default() -> Self {
        Self {
            waiting: Vec::new(),
            again: Vec::new(),
        }
    }
}

impl<P: Provider> Early<P> {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Makes room for so many beside those there are, so that polling never allocates.
    pub(super) fn make_room(&mut self, completions: usize) {
        let completions = completions.saturating_add(self.waiting.len());
        for list in [&mut self.waiting, &mut self.again] {
            list.reserve(completions.saturating_sub(list.len()));
            in_place::touch(list.spare_capacity_mut());
        }
    }

    /// Whether another can be kept. There is room for all that channels on their way were promised.
    pub(super) fn has_room(&self) -> bool {
        self.waiting.len() < self.waiting.capacity()
    }

    /// Keeps one; where there is no room, which is to be seen to before, it is let go.
    pub(super) fn keep(&mut self, completion: P::Completion) {
        if self.waiting.len() < self.waiting.capacity() {
            self.waiting.push(completion);
        }
    }

    /// Gives all out, to be looked at again: what is still early is kept anew. [`Early::end`] takes the list back.
    pub(super) fn begin(&mut self) -> Vec<P::Completion> {
        core::mem::swap(&mut self.waiting, &mut self.again);
        core::mem::take(&mut self.again)
    }

    pub(super) fn end(&mut self, list: Vec<P::Completion>) {
        self.again = list;
    }
}
