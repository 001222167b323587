//! Tracks which of a client's submissions have an outcome that the client can find even if the daemon dies now.

use std::collections::VecDeque;

/// Maximum number of submissions from the first one without an outcome on. At the limit the client waits for that outcome.
pub(crate) const OPEN_MAX: usize = 16 * 1024;

/// Outcomes of submissions, by position: the order in which they were taken.
#[derive(Debug, Default)]
pub(crate) struct Settled {
    /// All submissions before this position have an outcome.
    through: u64,
    /// For each submission from `through` on, whether it has an outcome.
    open: VecDeque<bool>,
}

impl Settled {
    /// Adds the next submission, without an outcome, and returns its position.
    pub(crate) fn take(&mut self) -> u64 {
        let position = self.next();
        self.open.push_back(false);
        position
    }

    /// Adds the next submission, which already has its outcome.
    pub(crate) fn take_settled(&mut self) {
        if self.open.is_empty() {
            self.through = self.through.wrapping_add(1);
        } else {
            self.open.push_back(true);
        }
    }

    /// The position of the next submission.
    pub(crate) fn next(&self) -> u64 {
        self.through.wrapping_add(self.open.len() as u64)
    }

    /// Records that a submission has its outcome.
    pub(crate) fn settle(&mut self, position: u64) {
        let at = usize::try_from(position.wrapping_sub(self.through)).unwrap_or(usize::MAX);
        if let Some(is_settled) = self.open.get_mut(at) {
            *is_settled = true;
        }
        while self.open.front() == Some(&true) {
            self.open.pop_front();
            self.through = self.through.wrapping_add(1);
        }
    }

    /// Whether the limit is reached, so that no more submissions may be taken.
    pub(crate) fn is_full(&self) -> bool {
        self.open.len() >= OPEN_MAX
    }

    /// Number of submissions without an outcome.
    pub(crate) fn without_outcome(&self) -> u64 {
        self.open.iter().filter(|is_settled| !**is_settled).count() as u64
    }

    /// All submissions before this position have an outcome.
    pub(crate) const fn through(&self) -> u64 {
        self.through
    }
}

#[cfg(test)]
mod tests {
    use super::{OPEN_MAX, Settled};

    #[test]
    fn the_first_without_an_outcome_holds_what_is_behind_it() {
        let mut settled = Settled::default();
        assert_eq!([settled.take(), settled.take(), settled.take()], [0, 1, 2]);
        settled.settle(1);
        assert_eq!(settled.without_outcome(), 2);
        settled.settle(2);
        assert_eq!(settled.through(), 0);
        settled.settle(0);
        assert_eq!(settled.through(), 3);
        // A count that is behind, or beyond the submissions, changes nothing.
        settled.settle(0);
        settled.settle(9);
        assert_eq!((settled.through(), settled.take()), (3, 3));
        settled.take_settled();
        assert_eq!(settled.through(), 3);
        settled.settle(3);
        assert_eq!(settled.through(), 5);
        settled.take_settled();
        assert_eq!((settled.through(), settled.take()), (6, 6));
        for _ in 1..OPEN_MAX {
            assert!(!settled.is_full());
            settled.take();
        }
        assert!(settled.is_full());
    }
}
