//! Which of a client's submissions have an outcome that it can find, even if the daemon dies now.

use std::collections::VecDeque;

/// The most submissions behind the first one without an outcome. Then the client waits for that outcome.
pub(crate) const OPEN_MAX: usize = 16 * 1024;

/// Submissions by their positions: the order in which they were taken.
#[derive(Debug, Default)]
pub(crate) struct Settled {
    /// All in front of this position have an outcome.
    through: u64,
    /// From `through` on, whether each has one.
    open: VecDeque<bool>,
}

impl Settled {
    /// Takes the next submission, and returns its position.
    pub(crate) fn take(&mut self) -> u64 {
        let position = self.next();
        self.open.push_back(false);
        position
    }

    /// Takes the next submission, which has its outcome.
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

    /// Notes that a submission has its outcome.
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

    /// Whether no more may be taken.
    pub(crate) fn is_full(&self) -> bool {
        self.open.len() >= OPEN_MAX
    }

    /// Submissions that were taken and have no outcome.
    pub(crate) fn without_outcome(&self) -> u64 {
        self.open.iter().filter(|is_settled| !**is_settled).count() as u64
    }

    /// All submissions in front of this position have an outcome.
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
        // One that is behind or not there yet changes nothing.
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
