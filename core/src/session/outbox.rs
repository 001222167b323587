//! The outbox of a session: fragments to send, until the peer acknowledges them. It has numbers and states. The caller
//! keeps the bytes, at the same places.

use super::Sequence;

/// The state of a fragment to send. The caller only makes a table of these.
#[derive(Clone, Copy, Debug, Default)]
pub struct Retained {
    bytes: u32,
    is_first: bool,
    is_last: bool,
    is_placed: bool,
    was_sent: bool,
    /// The number of the rail on which it is in flight, plus one; 0 if it waits.
    rail: u8,
}

/// A fragment of the outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fragment {
    /// The number of the fragment.
    pub sequence: Sequence,
    /// The place in the table, and of the bytes.
    pub place: usize,
    /// The number of bytes.
    pub bytes: u32,
    /// Whether it is the first fragment of a message.
    pub is_first: bool,
    /// Whether it is the last fragment of a message.
    pub is_last: bool,
    /// Whether it is written into memory that the peer lent.
    pub is_placed: bool,
    /// Whether it was sent over some rail, so that the peer may have it.
    pub was_sent: bool,
}

/// Fragments by number, from the oldest unacknowledged one to the newest.
#[derive(Debug)]
pub struct Outbox<S> {
    table: S,
    oldest: Sequence,
    next: Sequence,
    /// The place of the fragment `next`.
    next_place: usize,
    /// No fragment below this number waits.
    waiting: Sequence,
    /// The number after the last fragment that was sent.
    sent_end: Sequence,
}

impl<S: AsRef<[Retained]> + AsMut<[Retained]>> Outbox<S> {
    /// An empty outbox, for as many fragments as the table has places.
    pub const fn new(table: S) -> Self {
        Self {
            table,
            oldest: Sequence(0),
            next: Sequence(0),
            next_place: 0,
            waiting: Sequence(0),
            sent_end: Sequence(0),
        }
    }

    /// The maximum number of fragments.
    pub fn capacity(&self) -> u64 {
        u64::try_from(self.table.as_ref().len()).unwrap_or(u64::MAX)
    }

    /// How many more fragments it can take.
    pub fn room(&self) -> u64 {
        self.capacity().saturating_sub(self.next.since(self.oldest))
    }

    /// The oldest unacknowledged fragment.
    pub const fn oldest(&self) -> Sequence {
        self.oldest
    }

    /// The number that the next fragment gets.
    pub const fn next(&self) -> Sequence {
        self.next
    }

    /// The place that the next fragment gets.
    #[inline]
    pub const fn next_place(&self) -> usize {
        self.next_place
    }

    /// The number after the last fragment that was sent.
    pub const fn sent_end(&self) -> Sequence {
        self.sent_end
    }

    /// Whether all fragments are acknowledged.
    pub fn is_empty(&self) -> bool {
        self.oldest == self.next
    }

    /// Whether a sent fragment is not acknowledged yet.
    pub fn has_sent(&self) -> bool {
        self.sent_end > self.oldest
    }

    /// Adds a fragment, and returns its place; `None` if there is no room.
    #[inline(always)]
    pub fn push(&mut self, bytes: u32, is_first: bool, is_last: bool, is_placed: bool) -> Option<usize> {
        let (table, place) = (self.table.as_mut(), self.next_place);
        // `oldest` is never above `next`, and no message is numbered 2^64.
        if self.next.0.wrapping_sub(self.oldest.0) >= table.len() as u64 {
            return None;
        }
        *table.get_mut(place)? = Retained {
            bytes,
            is_first,
            is_last,
            is_placed,
            was_sent: false,
            rail: 0,
        };
        let following = place.wrapping_add(1);
        self.next_place = if following == table.len() { 0 } else { following };
        self.next = Sequence(self.next.0.wrapping_add(1));
        Some(place)
    }

    /// An unacknowledged fragment.
    pub fn get(&self, sequence: Sequence) -> Option<Fragment> {
        if sequence < self.oldest || sequence >= self.next {
            return None;
        }
        let table = self.table.as_ref();
        let place = sequence.place(table.len());
        table.get(place).map(|kept| Fragment {
            sequence,
            place,
            bytes: kept.bytes,
            is_first: kept.is_first,
            is_last: kept.is_last,
            is_placed: kept.is_placed,
            was_sent: kept.was_sent,
        })
    }

    /// The oldest fragment below `end` that is in flight on no rail.
    pub fn next_waiting(&mut self, end: Sequence) -> Option<Fragment> {
        let end = end.min(self.next);
        while self.waiting < end {
            let waiting = self.waiting;
            if self.entry(waiting)?.rail == 0 {
                return self.get(waiting);
            }
            self.waiting = waiting.plus(1);
        }
        None
    }

    /// Notes that a fragment is in flight on a rail.
    pub fn sent(&mut self, sequence: Sequence, rail: u8) {
        if sequence < self.oldest || sequence >= self.next {
            return;
        }
        if let Some(kept) = self.entry(sequence) {
            kept.rail = rail.saturating_add(1);
            kept.was_sent = true;
        }
        self.sent_end = self.sent_end.max(sequence.plus(1));
    }

    /// Makes all fragments in flight on a rail wait for retransmission. Returns their number.
    pub fn lost(&mut self, rail: u8) -> u64 {
        let (mut count, mut at) = (0_u64, self.oldest);
        while at < self.sent_end {
            if let Some(kept) = self.entry(at) {
                if kept.rail == rail.saturating_add(1) {
                    kept.rail = 0;
                    count = count.saturating_add(1);
                    self.waiting = self.waiting.min(at);
                }
            }
            at = at.plus(1);
        }
        count
    }

    /// Drops all fragments below `expected`, which the peer acknowledged, and returns their number. `None` if some of them
    /// were never sent.
    pub fn acknowledge(&mut self, expected: Sequence) -> Option<u64> {
        if expected > self.sent_end {
            return None;
        }
        let count = expected.since(self.oldest);
        self.oldest = self.oldest.max(expected);
        self.waiting = self.waiting.max(self.oldest);
        Some(count)
    }

    fn entry(&mut self, sequence: Sequence) -> Option<&mut Retained> {
        let table = self.table.as_mut();
        let place = sequence.place(table.len());
        table.get_mut(place)
    }
}

#[cfg(test)]
mod tests {
    use super::{Outbox, Retained};
    use crate::session::Sequence;

    fn outbox() -> Outbox<[Retained; 4]> {
        Outbox::new([Retained::default(); 4])
    }

    fn all(outbox: &mut Outbox<[Retained; 4]>, rail: u8) -> std::vec::Vec<u64> {
        let mut sent = std::vec::Vec::new();
        while let Some(fragment) = outbox.next_waiting(Sequence(u64::MAX)) {
            outbox.sent(fragment.sequence, rail);
            sent.push(fragment.sequence.0);
        }
        sent
    }

    #[test]
    fn holds_as_many_as_it_has_places_and_no_more() {
        let mut outbox = outbox();
        for sequence in 0..4 {
            assert_eq!(outbox.push(1, true, true, false), Some(sequence as usize));
        }
        assert_eq!(outbox.push(1, true, true, false), None);
        assert_eq!(all(&mut outbox, 0), [0, 1, 2, 3]);
        assert_eq!(outbox.acknowledge(Sequence(1)), Some(1));
        assert_eq!(
            outbox.push(1, true, true, false),
            Some(0),
            "the place of the first is free again"
        );
        assert_eq!(outbox.push(1, true, true, false), None);
        let none: [Retained; 0] = [];
        assert_eq!(Outbox::new(none).push(1, true, true, false), None);
    }

    #[test]
    fn what_a_rail_had_goes_again_oldest_first() {
        let mut outbox = outbox();
        for _ in 0..4 {
            outbox.push(1, true, true, false);
        }
        for (sequence, rail) in [(0, 0), (1, 1), (2, 0), (3, 1)] {
            assert_eq!(
                outbox.next_waiting(Sequence(9)).unwrap().sequence,
                Sequence(sequence)
            );
            outbox.sent(Sequence(sequence), rail);
        }
        assert_eq!(outbox.lost(0), 2);
        assert!(outbox.get(Sequence(0)).unwrap().was_sent);
        assert_eq!(all(&mut outbox, 1), [0, 2]);
        assert_eq!(outbox.lost(0), 0);
        outbox.acknowledge(Sequence(2)).unwrap();
        assert_eq!(outbox.lost(1), 2);
        assert_eq!(all(&mut outbox, 0), [2, 3]);
    }

    #[test]
    fn nothing_is_acknowledged_that_was_not_sent() {
        let mut outbox = outbox();
        outbox.push(1, true, true, false);
        outbox.push(1, true, true, false);
        assert_eq!(outbox.acknowledge(Sequence(1)), None);
        outbox.sent(Sequence(0), 0);
        assert_eq!(outbox.acknowledge(Sequence(2)), None);
        assert_eq!(outbox.acknowledge(Sequence(u64::MAX)), None);
        assert_eq!(outbox.acknowledge(Sequence(1)), Some(1));
        // One that comes late says nothing.
        assert_eq!(outbox.acknowledge(Sequence(0)), Some(0));
        assert_eq!(outbox.oldest(), Sequence(1));
    }

    #[test]
    fn nothing_goes_beyond_what_the_peer_takes() {
        let mut outbox = outbox();
        outbox.push(1, true, true, false);
        outbox.push(1, true, true, false);
        outbox.sent(Sequence(0), 0);
        assert_eq!(outbox.next_waiting(Sequence(1)), None);
        assert_eq!(outbox.next_waiting(Sequence(2)).unwrap().sequence, Sequence(1));
    }
}
