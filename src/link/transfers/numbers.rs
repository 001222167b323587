//! The numbers that the peer has used for its transfers.

use core::iter;
use core::ops::Range;

use doorbell_core::transfer::TransferId;

/// Maximum number of ranges of the peer's unused transfer numbers that the table keeps, in addition to
/// [`TransferConfig::transfers_max`](super::TransferConfig::transfers_max).
pub(super) const UNUSED_MAX: usize = 64;

/// So many numbers has one side: one uses even numbers, and the other odd ones.
const COUNT: u64 = 1 << 31;

/// The numbers, halved, that the peer has not used for a transfer: ranges in ascending order, the last one without an end. Frames of
/// two rails may arrive in any order, so numbers below a used one may be unused. The numbers on the wire start again after 2^31, so
/// these ranges count on.
#[derive(Debug)]
pub(super) struct Numbers(Vec<Range<u64>>);

impl Numbers {
    pub(super) fn new() -> Self {
        Self(iter::once(0..u64::MAX).collect())
    }

    /// Notes a number. Returns whether it was not used before. If there are more than `most` ranges then, the lowest counts as used.
    pub(super) fn note(&mut self, id: TransferId, most: usize) -> bool {
        let Some(number) = self.counted(id) else {
            return false;
        };
        let place = self.0.partition_point(|unused| unused.end <= number);
        let Some(unused) = self.0.get_mut(place).filter(|unused| unused.contains(&number)) else {
            return false;
        };
        let below = unused.start..number;
        unused.start = number.saturating_add(1);
        if unused.start == unused.end {
            self.0.remove(place);
        }
        if below.start < below.end {
            self.0.insert(place, below);
        }
        if self.0.len() > most {
            self.0.remove(0);
        }
        true
    }

    /// The number of this id that is nearest to the first number above all used ones; `None` if it is before the first number.
    fn counted(&self, id: TransferId) -> Option<u64> {
        let next = self.0.last()?.start;
        let ahead = u64::from(id.0 / 2).wrapping_sub(next) % COUNT;
        match ahead < COUNT / 2 {
            true => next.checked_add(ahead),
            false => next.checked_sub(COUNT.saturating_sub(ahead)),
        }
    }
}

#[cfg(test)]
mod tests {
    use doorbell_core::transfer::TransferId;

    use super::Numbers;

    #[test]
    fn a_number_is_new_once_in_whatever_order_they_come() {
        let mut numbers = Numbers::new();
        let mut note = |number| numbers.note(TransferId(number), 3);
        assert!(note(5) && note(1) && note(3) && note(131));
        assert!(!note(5) && !note(1) && !note(131));
        assert!(note(129) && !note(129));
        assert!(!note(131) && !note(u32::MAX), "before the first number");
        // Beyond the limit on ranges, the lowest numbers count as used.
        assert!(note(1001) && note(2001) && !note(7) && note(133) && note(999));
        assert_eq!(numbers.0.len(), 3);
    }

    #[test]
    fn a_late_number_is_unused_however_many_came_before_it() {
        let mut numbers = Numbers::new();
        for first in (1..600).step_by(3) {
            for number in [first + 2, first + 1, first] {
                assert!(numbers.note(TransferId(2 * number), 128), "{number}");
            }
        }
        assert!(numbers.note(TransferId(0), 128));
        assert_eq!(numbers.0.len(), 1);
    }

    #[test]
    fn numbers_start_again_behind_the_last() {
        let mut numbers = Numbers::new();
        let mut note = |number| numbers.note(TransferId(number), 3);
        assert!(note(0));
        for quarter in [1 << 30, 1 << 31, 3 << 30] {
            assert!(note(quarter), "{quarter}");
        }
        assert!(note(u32::MAX - 1) && !note(u32::MAX - 1));
        assert!(note(0) && !note(0) && note(4) && note(2) && !note(4));
        assert!(!note(u32::MAX - 1), "an old number is not used again");
    }
}
