//! The queue pair numbers of a device: the ones taken, with their queue pairs.

use doorbell_core::Qpn;

use crate::queue_pair::QueuePairKey;

/// Queue pairs 0 and 1 are management's own; the numbers after them are left alone, too.
const FIRST: u32 = 16;
/// One more than the last number of 24 bits.
const END: u32 = 1 << 24;
/// Numbers of one page of the table.
const PAGE: u32 = 1 << 10;

/// A table of two steps: pages that nobody uses take no room.
#[derive(Default)]
pub(crate) struct Numbers {
    pages: Vec<Vec<Option<QueuePairKey>>>,
    /// Start of the search for the next number; zero stands for the first.
    next: u32,
}

const fn split(raw: u32) -> (usize, usize) {
    ((raw / PAGE) as usize, (raw % PAGE) as usize)
}

impl Numbers {
    /// The queue pair of a number.
    pub(crate) fn find(&self, qpn: Qpn) -> Option<QueuePairKey> {
        let (page, place) = split(qpn.to_u32());
        *self.pages.get(page)?.get(place)?
    }

    /// A number that no live queue pair has: the next in turn, as devices give them.
    pub(crate) fn draw(&mut self) -> Option<Qpn> {
        let first = self.next.max(FIRST);
        let mut candidates = (first..END).chain(FIRST..first).filter_map(Qpn::new);
        let drawn = candidates.find(|qpn| self.find(*qpn).is_none())?;
        let next = drawn.to_u32().saturating_add(1);
        self.next = if next == END { FIRST } else { next };
        Some(drawn)
    }

    /// Notes whose a number is, or that it is nobody's.
    pub(crate) fn assign(&mut self, qpn: Qpn, key: Option<QueuePairKey>) {
        let (page, place) = split(qpn.to_u32());
        if self.pages.len() <= page {
            self.pages.resize_with(page.saturating_add(1), Vec::new);
        }
        let Some(page) = self.pages.get_mut(page) else {
            return;
        };
        if page.is_empty() {
            page.resize(PAGE as usize, None);
        }
        if let Some(place) = page.get_mut(place) {
            *place = key;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{END, FIRST, Numbers};
    use doorbell_core::Qpn;

    #[test]
    fn numbers_come_in_turn_and_round() {
        let mut numbers = Numbers::default();
        assert_eq!(numbers.draw().map(Qpn::to_u32), Some(FIRST));
        assert_eq!(numbers.draw().map(Qpn::to_u32), Some(FIRST + 1));
        numbers.next = END - 1;
        assert_eq!(numbers.draw().map(Qpn::to_u32), Some(END - 1));
        assert_eq!(numbers.draw().map(Qpn::to_u32), Some(FIRST));
        assert_eq!(numbers.find(Qpn::from_low_bits(END - 1)), None);
    }
}
