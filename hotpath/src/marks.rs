//! The mark of each request in flight: a byte with its kind, found by the position of the request. Two bits would
//! suffice, but packing them would take longer than all other bookkeeping of a request.

use core::fmt;

use doorbell_core::provider::Operation;

/// The kind of a request, for its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// The slots of the request return to the arena.
    Plain,
    /// The request returns data into its slots, which return to the caller that posted it.
    Fetch,
    /// The request consumes a receive of the peer.
    Message,
    /// The request is not the caller's: an announcement, a farewell or a probe.
    Announcement,
}

impl Mark {
    #[inline]
    pub(crate) const fn of(operation: Operation) -> Self {
        if operation.takes_receive() {
            Self::Message
        } else if operation.writes_slots() {
            Self::Fetch
        } else {
            Self::Plain
        }
    }

    /// The mark of a request with ranges of windows. Returned data is in the ranges, and its slots have no bytes.
    #[inline]
    pub(crate) const fn of_ranges(operation: Operation) -> Self {
        if operation.takes_receive() {
            Self::Message
        } else {
            Self::Plain
        }
    }

    #[inline]
    const fn to_byte(self) -> u8 {
        match self {
            Self::Plain => 0,
            Self::Fetch => 1,
            Self::Message => 2,
            Self::Announcement => 3,
        }
    }
}

/// The storage for the marks does not fit the queue's depth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StorageError {
    /// The required number of marks.
    pub marks: usize,
}

impl fmt::Display for StorageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a sender of this depth needs {} marks", self.marks)
    }
}

impl core::error::Error for StorageError {}

/// The number of marks, of one byte each, for a queue of this depth: the depth rounded up to a
/// power of two.
#[must_use]
pub const fn marks_for(depth: u32) -> usize {
    depth.next_power_of_two() as usize
}

/// The marks of all requests in flight, in storage from the caller.
pub(crate) struct Marks<Bytes> {
    /// The bytes, whose number is a power of two.
    bytes: Bytes,
}

impl<Bytes: AsRef<[u8]> + AsMut<[u8]>> Marks<Bytes> {
    pub(crate) fn new(bytes: Bytes, depth: u32) -> Result<Self, StorageError> {
        let needed = marks_for(depth);
        if bytes.as_ref().len() != needed {
            return Err(StorageError { marks: needed });
        }
        Ok(Self { bytes })
    }

    #[inline]
    pub(crate) fn view(&mut self) -> Marked<'_> {
        Marked {
            bytes: self.bytes.as_mut(),
        }
    }
}

/// Borrowed marks of all requests in flight.
pub(crate) struct Marked<'q> {
    bytes: &'q mut [u8],
}

impl Marked<'_> {
    #[inline]
    pub(crate) fn get(&self, position: u64) -> Mark {
        mark_at(self.bytes, position)
    }

    #[inline]
    pub(crate) fn set(&mut self, position: u64, mark: Mark) {
        let index = index(position, self.bytes.len());
        if let Some(place) = self.bytes.get_mut(index) {
            *place = mark.to_byte();
        }
    }
}

/// The index of a request's mark. It is valid, since the number of marks is a power of two.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "masked to the number of marks")]
const fn index(position: u64, marks: usize) -> usize {
    position as usize & marks.wrapping_sub(1)
}

#[inline]
fn mark_at(bytes: &[u8], position: u64) -> Mark {
    match bytes.get(index(position, bytes.len())) {
        Some(1) => Mark::Fetch,
        Some(2) => Mark::Message,
        Some(3) => Mark::Announcement,
        _ => Mark::Plain,
    }
}

#[cfg(test)]
mod tests {
    use super::{Mark, Marks, marks_for};
    use std::vec;

    #[test]
    fn every_request_in_flight_has_its_own_mark() {
        const ALL: [Mark; 4] = [Mark::Plain, Mark::Fetch, Mark::Message, Mark::Announcement];
        for depth in [1, 2, 31, 32, 33, 128, 129] {
            let mut marks = Marks::new(vec![u8::MAX; marks_for(depth)], depth).unwrap();
            for start in [0, 5, u64::MAX - 7] {
                let at = |offset: u64| start.wrapping_add(offset);
                let mark = |offset: u64| ALL[((offset.wrapping_mul(7) >> 1) & 3) as usize];
                for offset in 0..u64::from(depth) {
                    marks.view().set(at(offset), mark(offset));
                }
                for offset in 0..u64::from(depth) {
                    assert_eq!(marks.view().get(at(offset)), mark(offset), "{depth} {offset}");
                }
            }
        }
    }

    #[test]
    fn storage_of_another_size_is_refused() {
        for (depth, marks) in [(1, 1), (2, 2), (3, 4), (32, 32), (33, 64), (128, 128)] {
            assert_eq!(marks_for(depth), marks);
            assert!(Marks::new(vec![0; marks], depth).is_ok());
            for wrong in [marks - 1, marks + 1] {
                let refused = Marks::new(vec![0; wrong], depth).map(|_| ()).unwrap_err();
                assert_eq!(refused.marks, marks);
            }
        }
    }
}
