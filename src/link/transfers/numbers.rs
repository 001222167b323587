//! The numbers that the peer has used for its transfers.

use core::iter;
use core::ops::Range;

use doorbell_core::transfer::TransferId;

/// Maximum number of ranges of the peer's unused transfer numbers that the table keeps, in addition to
/// [`TransferConfig::transfers_max`](super::TransferConfig::transfers_max).
pub(super) const UNUSED_MAX: usize = 64;

/// The numbers, halved, that the peer has not used for a transfer: ranges in ascending order, the last one without an end. Frames of
/// two rails may arrive in any order, so numbers below a used one may be unused.
#[derive(Debug)]
pub(super) struct Numbers(Vec<Range<u32>>);

impl Numbers {
    pub(super) fn new() -> Self {
        Self(iter::once(0..u32::MAX).collect())
    }

    /// Notes a number. Returns whether it was not used before. If there are more than `most` ranges then, the lowest counts as used.
    pub(super) fn note(&mut self, id: TransferId, most: usize) -> bool {
        let number = id.0 / 2;
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
        assert!(note(u32::MAX) && !note(u32::MAX) && !note(131));
        // Beyond the limit on ranges, the lowest numbers count as used.
        assert!(note(1001) && !note(7) && note(133) && note(999));
        assert_eq!(numbers.0.len(), 3);
    }
}
