//! The inbox of a session: puts received fragments in order, so that each is taken once. It has numbers and states. The
//! caller keeps the bytes of an early fragment, at the same place.

use super::Sequence;

/// The state of an early fragment. The caller only makes a table of these.
#[derive(Clone, Copy, Debug, Default)]
pub struct Kept {
    is_here: bool,
    is_first: bool,
    is_last: bool,
    is_placed: bool,
    bytes: u32,
}

/// A fragment that was early, and is now the expected one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Held {
    /// The place at which its bytes are kept.
    pub place: usize,
    /// The number of bytes.
    pub bytes: u32,
    /// Whether it is the first fragment of a message.
    pub is_first: bool,
    /// Whether it is the last fragment of a message.
    pub is_last: bool,
    /// Whether its bytes were written into memory that was lent to the peer. The caller keeps their location at the place.
    pub is_placed: bool,
}

/// The decision about a received fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "it is the next, later or earlier")]
pub enum Verdict {
    /// The expected fragment: it is taken now.
    InOrder,
    /// A later fragment: keep its bytes at this place.
    Early {
        /// The place.
        place: usize,
    },
    /// A fragment that was taken already, or is kept: drop it.
    Duplicate,
}

/// A window of fragments, from the expected one on.
#[derive(Debug)]
pub struct Inbox<S> {
    table: S,
    expected: Sequence,
    is_within_message: bool,
    early: u64,
    duplicates: u64,
}

impl<S: AsRef<[Kept]> + AsMut<[Kept]>> Inbox<S> {
    /// An empty inbox, whose window has as many fragments as the table has places.
    pub const fn new(table: S) -> Self {
        Self {
            table,
            expected: Sequence(0),
            is_within_message: false,
            early: 0,
            duplicates: 0,
        }
    }

    /// The number of fragments in the window, from the expected one on.
    pub fn window(&self) -> u64 {
        u64::try_from(self.table.as_ref().len()).unwrap_or(u64::MAX)
    }

    /// The expected fragment.
    pub const fn expected(&self) -> Sequence {
        self.expected
    }

    /// The number of fragments that arrived ahead of the expected one.
    pub const fn early(&self) -> u64 {
        self.early
    }

    /// The number of fragments that arrived more than once.
    pub const fn duplicates(&self) -> u64 {
        self.duplicates
    }

    /// Takes a received fragment. `None` if no honest peer sends it: it is beyond the window, or out of place
    /// in its message.
    pub fn offer(
        &mut self,
        sequence: Sequence,
        bytes: u32,
        is_first: bool,
        is_last: bool,
        is_placed: bool,
    ) -> Option<Verdict> {
        if sequence < self.expected {
            self.duplicates = self.duplicates.saturating_add(1);
            return Some(Verdict::Duplicate);
        }
        if sequence.since(self.expected) >= self.window() {
            return None;
        }
        if sequence == self.expected {
            return self.advance(is_first, is_last).then_some(Verdict::InOrder);
        }
        let table = self.table.as_mut();
        let place = sequence.place(table.len());
        let kept = table.get_mut(place)?;
        if kept.is_here {
            self.duplicates = self.duplicates.saturating_add(1);
            return Some(Verdict::Duplicate);
        }
        *kept = Kept {
            is_here: true,
            is_first,
            is_last,
            is_placed,
            bytes,
        };
        self.early = self.early.saturating_add(1);
        Some(Verdict::Early { place })
    }

    /// Returns the expected fragment if it arrived early. Call this after each fragment that was taken.
    ///
    /// # Errors
    /// The fragment is out of place in its message: no honest peer sends it.
    #[expect(clippy::result_unit_err, reason = "there is one way to be out of place")]
    pub fn take_held(&mut self) -> Result<Option<Held>, ()> {
        let expected = self.expected;
        let table = self.table.as_mut();
        let place = expected.place(table.len());
        let Some(kept) = table.get_mut(place).filter(|kept| kept.is_here) else {
            return Ok(None);
        };
        kept.is_here = false;
        let held = Held {
            place,
            bytes: kept.bytes,
            is_first: kept.is_first,
            is_last: kept.is_last,
            is_placed: kept.is_placed,
        };
        if self.advance(held.is_first, held.is_last) {
            Ok(Some(held))
        } else {
            Err(())
        }
    }

    /// Advances by one fragment; returns whether this fragment belongs there.
    fn advance(&mut self, is_first: bool, is_last: bool) -> bool {
        if is_first == self.is_within_message {
            return false;
        }
        // If the expected fragment was also kept, it is taken only once.
        let expected = self.expected;
        let table = self.table.as_mut();
        let place = expected.place(table.len());
        if let Some(kept) = table.get_mut(place) {
            kept.is_here = false;
        }
        self.is_within_message = !is_last;
        self.expected = expected.plus(1);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::{Held, Inbox, Kept, Verdict};
    use crate::session::Sequence;

    fn inbox() -> Inbox<[Kept; 4]> {
        Inbox::new([Kept::default(); 4])
    }

    fn whole(inbox: &mut Inbox<[Kept; 4]>, sequence: u64) -> Option<Verdict> {
        inbox.offer(Sequence(sequence), 1, true, true, false)
    }

    #[test]
    fn each_is_taken_once_and_in_order() {
        let mut inbox = inbox();
        assert_eq!(whole(&mut inbox, 2), Some(Verdict::Early { place: 2 }));
        assert_eq!(whole(&mut inbox, 2), Some(Verdict::Duplicate));
        assert_eq!(whole(&mut inbox, 1), Some(Verdict::Early { place: 1 }));
        assert_eq!(inbox.take_held(), Ok(None));
        assert_eq!(whole(&mut inbox, 0), Some(Verdict::InOrder));
        for place in [1, 2] {
            let held = Held {
                place,
                bytes: 1,
                is_first: true,
                is_last: true,
                is_placed: false,
            };
            assert_eq!(inbox.take_held(), Ok(Some(held)));
        }
        assert_eq!(inbox.take_held(), Ok(None));
        for again in 0..3 {
            assert_eq!(whole(&mut inbox, again), Some(Verdict::Duplicate));
        }
        assert_eq!(
            (inbox.expected(), inbox.duplicates(), inbox.early()),
            (Sequence(3), 4, 2)
        );
    }

    #[test]
    fn what_is_kept_and_comes_again_in_order_is_taken_once() {
        let mut inbox = inbox();
        whole(&mut inbox, 1);
        whole(&mut inbox, 0);
        // The caller has not asked for the fragment that was kept.
        assert_eq!(whole(&mut inbox, 1), Some(Verdict::InOrder));
        assert_eq!(inbox.take_held(), Ok(None));
        assert_eq!(whole(&mut inbox, 5), Some(Verdict::Early { place: 1 }));
    }

    #[test]
    fn the_window_ends_where_it_ends() {
        let mut inbox = inbox();
        assert_eq!(whole(&mut inbox, 3), Some(Verdict::Early { place: 3 }));
        assert_eq!(whole(&mut inbox, 4), None);
        assert_eq!(whole(&mut inbox, u64::MAX), None);
        assert_eq!(whole(&mut inbox, 0), Some(Verdict::InOrder));
        assert_eq!(whole(&mut inbox, 4), Some(Verdict::Early { place: 0 }));
    }

    #[test]
    fn a_message_begins_once_and_ends_before_the_next() {
        let mut inbox = inbox();
        assert_eq!(inbox.offer(Sequence(0), 1, false, true, false), None);
        assert_eq!(
            inbox.offer(Sequence(0), 1, true, false, false),
            Some(Verdict::InOrder)
        );
        assert_eq!(inbox.offer(Sequence(1), 1, true, true, false), None);
        assert_eq!(
            inbox.offer(Sequence(1), 1, false, false, false),
            Some(Verdict::InOrder)
        );
        assert_eq!(
            inbox.offer(Sequence(3), 1, false, true, false),
            Some(Verdict::Early { place: 3 })
        );
        assert_eq!(
            inbox.offer(Sequence(2), 1, false, true, false),
            Some(Verdict::InOrder)
        );
        assert_eq!(inbox.take_held(), Err(()));
    }
}
