//! Table from queue pair numbers to channels, for completions of shared receives, which name no channel.
//!
//! The table never grows: it has room for all channels that there may be. A look-up nearly always reads one cache line.

use doorbell_core::{Qpn, in_place};

/// Channels by the numbers of their queue pairs.
pub(super) struct QpnTable {
    /// A power of two of cells, at least twice the maximum number of channels.
    cells: Box<[Cell]>,
    bits: u32,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Cell {
    /// One more than the number of the queue pair; zero in an empty cell.
    key: u32,
    channel: u32,
}

impl QpnTable {
    /// Makes a table with room for so many channels.
    pub(super) fn new(channels_max: u32) -> Self {
        let cells = channels_max.saturating_mul(2).clamp(2, 1 << 31);
        let bits = cells.next_power_of_two().trailing_zeros();
        let mut cells = vec![Cell::default(); 1 << bits].into_boxed_slice();
        in_place::put(&mut cells, Cell::default);
        Self { cells, bits }
    }

    /// Returns the channel of a queue pair.
    #[inline]
    pub(super) fn get(&self, qpn: Qpn) -> Option<u32> {
        let place = self.find(qpn, key_of(qpn))?;
        Some(self.cells.get(place)?.channel)
    }

    /// Adds a queue pair that is not in the table. Returns whether there was room.
    pub(super) fn insert(&mut self, qpn: Qpn, channel: u32) -> bool {
        let free = self.find(qpn, 0);
        let Some(cell) = free.and_then(|place| self.cells.get_mut(place)) else {
            return false;
        };
        let key = key_of(qpn);
        *cell = Cell { key, channel };
        true
    }

    /// Removes a queue pair. Entries behind it move into the gap if a look-up would otherwise miss them.
    pub(super) fn remove(&mut self, qpn: Qpn) {
        let Some(mut gap) = self.find(qpn, key_of(qpn)) else {
            return;
        };
        let mut place = gap;
        for _ in 1..self.cells.len() {
            place = self.along(place, 1);
            let Some(cell) = self.cells.get(place).copied().filter(|cell| cell.key != 0) else {
                break;
            };
            let home = self.home(cell.key);
            if self.distance(home, place) < self.distance(gap, place) {
                continue;
            }
            if let Some(target) = self.cells.get_mut(gap) {
                *target = cell;
            }
            gap = place;
        }
        if let Some(target) = self.cells.get_mut(gap) {
            *target = Cell::default();
        }
    }

    /// Returns the first cell with this key, probing from the home position of the queue pair. `None` if an empty cell comes
    /// first.
    #[inline]
    fn find(&self, qpn: Qpn, key: u32) -> Option<usize> {
        let mut place = self.home(key_of(qpn));
        for _ in 0..self.cells.len() {
            let found = self.cells.get(place)?.key;
            if found == key {
                return Some(place);
            }
            if found == 0 {
                return None;
            }
            place = self.along(place, 1);
        }
        None
    }

    /// Returns the home position of a key. Consecutive numbers are spread over the table.
    #[inline]
    const fn home(&self, key: u32) -> usize {
        (key.wrapping_mul(0x9e37_79b1) >> (u32::BITS.wrapping_sub(self.bits))) as usize
    }

    #[inline]
    const fn along(&self, place: usize, by: usize) -> usize {
        place.wrapping_add(by) & self.cells.len().wrapping_sub(1)
    }

    /// Returns the distance from one position forward to another.
    const fn distance(&self, from: usize, to: usize) -> usize {
        to.wrapping_sub(from) & self.cells.len().wrapping_sub(1)
    }
}

#[inline]
const fn key_of(qpn: Qpn) -> u32 {
    qpn.to_u32().wrapping_add(1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use doorbell_core::Qpn;

    use super::QpnTable;

    #[test]
    fn it_is_a_map_whatever_collides() {
        for (channels_max, numbers) in [
            (1, 1..2),
            (4, 16..24),
            (4, 0..1 << 24),
            (300, 0x00ff_f000..1 << 24),
        ] {
            let mut table = QpnTable::new(channels_max);
            let mut oracle = BTreeMap::new();
            let mut state = 1_u64;
            let mut draw = |below: u32| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) as u32 % below
            };
            for round in 0..20_000 {
                let qpn = Qpn::from_low_bits(numbers.start + draw(numbers.end - numbers.start));
                if oracle.contains_key(&qpn) || oracle.len() == channels_max as usize {
                    let named = oracle.keys().nth(draw(oracle.len() as u32) as usize).copied();
                    let gone = named.unwrap_or(qpn);
                    oracle.remove(&gone);
                    table.remove(gone);
                } else {
                    oracle.insert(qpn, round);
                    assert!(table.insert(qpn, round), "there is room for all channels");
                }
                if numbers.end < 1 << 24 {
                    table.remove(Qpn::from_low_bits(numbers.end));
                }
                assert_eq!(table.get(qpn), oracle.get(&qpn).copied());
                if round % 64 == 0 {
                    for (qpn, channel) in &oracle {
                        assert_eq!(table.get(*qpn), Some(*channel));
                    }
                }
            }
        }
    }

    #[test]
    fn it_is_full_at_last() {
        let mut table = QpnTable::new(2);
        for number in 0..4 {
            assert!(table.insert(Qpn::from_low_bits(number), number));
        }
        assert!(!table.insert(Qpn::from_low_bits(4), 4));
        assert_eq!(table.get(Qpn::from_low_bits(4)), None);
        table.remove(Qpn::from_low_bits(2));
        assert!(table.insert(Qpn::from_low_bits(4), 4));
        assert_eq!(table.get(Qpn::from_low_bits(4)), Some(4));
    }
}
