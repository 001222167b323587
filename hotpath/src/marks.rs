//! What each request in flight is to its sender: two bits, found by its position in the queue.

use core::fmt;

use doorbell_core::provider::Operation;

/// What a request is to its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// Its slots go straight to the arena.
    Plain,
    /// Data is written into its slots, which go back to whoever posted it.
    Fetch,
    /// It consumes a receive of the peer.
    Message,
    /// Not the caller's: it tells the peer of receives.
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

    const fn to_bits(self) -> u64 {
        match self {
            Self::Plain => 0,
            Self::Fetch => 1,
            Self::Message => 2,
            Self::Announcement => MASK,
        }
    }
}

/// The storage for the marks does not fit the queue's depth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StorageError {
    /// How many words there must be.
    pub words: usize,
}

impl fmt::Display for StorageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a sender of this depth needs {} words", self.words)
    }
}

impl core::error::Error for StorageError {}

/// How many words of storage a sender needs over a queue of this depth: two bits for each
/// request, over a power of two of them.
#[must_use]
pub const fn mark_words_for(depth: u32) -> usize {
    (depth.next_power_of_two() as usize).div_ceil(MARKS_PER_WORD)
}

const MARKS_PER_WORD: usize = 32;
const MASK: u64 = 3;

/// The marks of all requests in flight, in storage of the caller.
pub(crate) struct Marks<Words> {
    /// A power of two of them.
    words: Words,
}

impl<Words: AsRef<[u64]> + AsMut<[u64]>> Marks<Words> {
    pub(crate) fn new(words: Words, depth: u32) -> Result<Self, StorageError> {
        let needed = mark_words_for(depth);
        if words.as_ref().len() != needed {
            return Err(StorageError { words: needed });
        }
        Ok(Self { words })
    }

    #[inline]
    pub(crate) fn view(&mut self) -> Marked<'_> {
        Marked {
            words: self.words.as_mut(),
        }
    }
}

/// The same, borrowed.
pub(crate) struct Marked<'q> {
    words: &'q mut [u64],
}

impl Marked<'_> {
    #[inline]
    pub(crate) fn get(&mut self, position: u64) -> Mark {
        let Some(word) = self.word(position) else {
            return Mark::Plain;
        };
        match *word >> shift(position) & MASK {
            1 => Mark::Fetch,
            2 => Mark::Message,
            MASK => Mark::Announcement,
            _ => Mark::Plain,
        }
    }

    #[inline]
    pub(crate) fn set(&mut self, position: u64, mark: Mark) {
        if let Some(word) = self.word(position) {
            let at_the_right = word.rotate_right(shift(position)) & !MASK | mark.to_bits();
            *word = at_the_right.rotate_left(shift(position));
        }
    }

    /// The word of a request. It is there: their number is a power of two.
    #[inline]
    fn word(&mut self, position: u64) -> Option<&mut u64> {
        // Of the length itself, so that the compiler sees what keeps the index below it.
        let index_mask = self.words.len().wrapping_sub(1);
        self.words.get_mut((position >> 5) as usize & index_mask)
    }
}

/// Where in its word the mark of a request begins: below 64.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "six bits are what is meant")]
const fn shift(position: u64) -> u32 {
    (position as u32).wrapping_shl(1) & 63
}

#[cfg(test)]
mod tests {
    use super::{Mark, Marks, mark_words_for};
    use std::vec;

    #[test]
    fn every_request_in_flight_has_its_own_mark() {
        const ALL: [Mark; 4] = [Mark::Plain, Mark::Fetch, Mark::Message, Mark::Announcement];
        for depth in [1, 2, 31, 32, 33, 128, 129] {
            let mut marks = Marks::new(vec![u64::MAX; mark_words_for(depth)], depth).unwrap();
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
        for (depth, words) in [(1, 1), (32, 1), (33, 2), (64, 2), (65, 4), (128, 4)] {
            assert_eq!(mark_words_for(depth), words);
            assert!(Marks::new(vec![0; words], depth).is_ok());
            for wrong in [words - 1, words + 1] {
                let refused = Marks::new(vec![0; wrong], depth).map(|_| ()).unwrap_err();
                assert_eq!(refused.words, words);
            }
        }
    }
}
