//! The value of every payload byte: a function of the connection, the direction, the sequence
//! number and the offset. Bytes of another message, or stale bytes, differ from the right ones.

use core::fmt;

use serde::Serialize;

const WORD_BYTES: usize = size_of::<u64>();
/// An odd number with evenly distributed bits: 2^64 divided by the golden ratio.
const STRIDE: u64 = 0x9e37_79b9_7f4a_7c15;
/// An odd multiplier that spreads low bits to high ones.
const MULTIPLIER: u64 = 0xd6e8_feb8_6659_fd93;

/// The direction of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the side that names its peer to the side that listens.
    ToListener,
    /// From the listening side to the other.
    ToClient,
}

/// The payload of one connection in one direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pattern {
    seed: u64,
}

/// The first wrong byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Mismatch {
    /// The number of the message, counted from 0 and including the warm-up.
    pub(crate) sequence: u64,
    /// The offset in the message; 0 for the old value of an atomic.
    pub(crate) offset: u64,
    /// The right value: a byte, or the word of an atomic.
    pub(crate) expected: u64,
    /// The observed value.
    pub(crate) got: u64,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "message {}, offset {}: expected {:#04x}, got {:#04x}",
            self.sequence, self.offset, self.expected, self.got
        )
    }
}

impl Pattern {
    pub(crate) const fn new(seed: u64, direction: Direction) -> Self {
        let direction = match direction {
            Direction::ToListener => 0,
            Direction::ToClient => STRIDE,
        };
        Self {
            seed: mix(seed ^ direction),
        }
    }

    /// A distinct word for each sequence number, for the operands of atomics.
    pub(crate) const fn word(&self, sequence: u64) -> u64 {
        mix(self.seed ^ mix(sequence.wrapping_add(1)))
    }

    /// Writes the message with this sequence number.
    pub(crate) fn fill(&self, sequence: u64, bytes: &mut [u8]) {
        let mut words = self.words(sequence);
        let mut chunks = bytes.chunks_exact_mut(WORD_BYTES);
        for chunk in &mut chunks {
            chunk.copy_from_slice(&words.take().to_le_bytes());
        }
        let rest = chunks.into_remainder();
        let last = words.take().to_le_bytes();
        for (byte, value) in rest.iter_mut().zip(last) {
            *byte = value;
        }
    }

    /// Checks a whole message.
    ///
    /// # Errors
    /// The first byte that differs.
    pub(crate) fn check(&self, sequence: u64, bytes: &[u8]) -> Result<(), Mismatch> {
        let mut words = self.words(sequence);
        let mut chunks = bytes.chunks_exact(WORD_BYTES);
        let mut offset = 0_usize;
        for chunk in &mut chunks {
            compare(sequence, offset, &words.take().to_le_bytes(), chunk)?;
            offset = offset.saturating_add(WORD_BYTES);
        }
        compare(sequence, offset, &words.take().to_le_bytes(), chunks.remainder())
    }

    /// Writes a message whose last byte indicates its arrival; see [`arrival_byte`].
    pub(crate) fn fill_polled(&self, sequence: u64, bytes: &mut [u8]) {
        self.fill(sequence, bytes);
        if let Some(last) = bytes.last_mut() {
            *last = arrival_byte(sequence);
        }
    }

    /// Checks a message written by [`Pattern::fill_polled`].
    ///
    /// # Errors
    /// The first byte that differs.
    pub(crate) fn check_polled(&self, sequence: u64, bytes: &[u8]) -> Result<(), Mismatch> {
        let Some((last, rest)) = bytes.split_last() else {
            return Ok(());
        };
        self.check(sequence, rest)?;
        compare(sequence, rest.len(), &[arrival_byte(sequence)], &[*last])
    }

    fn words(&self, sequence: u64) -> Words {
        Words {
            state: self.word(sequence),
        }
    }
}

/// The last byte of a message that is polled for. It is never zero, and differs in 255 consecutive
/// messages, so that it differs from the previous contents of the memory.
pub(crate) const fn arrival_byte(sequence: u64) -> u8 {
    // At most 255.
    (sequence % 255).wrapping_add(1).to_le_bytes()[0]
}

/// The words of one message.
struct Words {
    state: u64,
}

impl Words {
    #[inline]
    const fn take(&mut self) -> u64 {
        let word = self.state;
        self.state = word.wrapping_add(STRIDE);
        let folded = (word ^ (word >> 32)).wrapping_mul(MULTIPLIER);
        folded ^ (folded >> 32)
    }
}

/// A permutation of the 64-bit numbers in which every input bit affects about half of the output
/// bits.
const fn mix(value: u64) -> u64 {
    let first = (value ^ (value >> 32)).wrapping_mul(MULTIPLIER);
    let second = (first ^ (first >> 32)).wrapping_mul(MULTIPLIER);
    second ^ (second >> 32)
}

#[inline]
fn compare(sequence: u64, start: usize, expected: &[u8], got: &[u8]) -> Result<(), Mismatch> {
    let expected = expected.get(..got.len()).unwrap_or(expected);
    if expected == got {
        return Ok(());
    }
    Err(locate(sequence, start, expected, got))
}

#[cold]
fn locate(sequence: u64, start: usize, expected: &[u8], got: &[u8]) -> Mismatch {
    let differing = expected
        .iter()
        .zip(got)
        .enumerate()
        .find(|(_, (expected, got))| expected != got);
    let (index, (expected, got)) = differing.unwrap_or((0, (&0, &0)));
    Mismatch {
        sequence,
        offset: start.saturating_add(index) as u64,
        expected: u64::from(*expected),
        got: u64::from(*got),
    }
}

#[cfg(test)]
mod tests {
    use super::{Direction, Mismatch, Pattern, arrival_byte};

    #[test]
    fn every_flipped_bit_is_found_where_it_is() {
        let pattern = Pattern::new(7, Direction::ToListener);
        for bytes in 1..=41 {
            let mut message = vec![0; bytes];
            pattern.fill(3, &mut message);
            assert_eq!(pattern.check(3, &message), Ok(()));
            for offset in 0..bytes {
                for bit in 0..8 {
                    let expected = u64::from(message[offset]);
                    message[offset] ^= 1 << bit;
                    let got = u64::from(message[offset]);
                    let found = Mismatch {
                        sequence: 3,
                        offset: offset as u64,
                        expected,
                        got,
                    };
                    assert_eq!(pattern.check(3, &message), Err(found));
                    message[offset] ^= 1 << bit;
                }
            }
        }
    }

    #[test]
    fn another_message_is_not_this_one() {
        let pattern = Pattern::new(1, Direction::ToListener);
        let mut message = [0; 64];
        pattern.fill(10, &mut message);
        assert!(pattern.check(11, &message).is_err());
        assert!(
            Pattern::new(2, Direction::ToListener)
                .check(10, &message)
                .is_err()
        );
        assert!(Pattern::new(1, Direction::ToClient).check(10, &message).is_err());
        assert!(pattern.check(10, &[0; 64]).is_err());
        // Shifted by one word within the message.
        assert!(pattern.check(10, &message[8..]).is_err());
    }

    #[test]
    fn what_is_polled_for_always_changes() {
        for sequence in 0..1000_u64 {
            assert_ne!(arrival_byte(sequence), 0);
            for later in 1..255 {
                assert_ne!(arrival_byte(sequence), arrival_byte(sequence + later));
            }
        }
        let pattern = Pattern::new(9, Direction::ToClient);
        let mut message = [0; 13];
        pattern.fill_polled(254, &mut message);
        assert_eq!(message[12], 255);
        assert_eq!(pattern.check_polled(254, &message), Ok(()));
        assert!(pattern.check_polled(255, &message).is_err());
    }

    #[test]
    fn golden_words() {
        // The pattern must not change by accident: two versions would report each other's
        // payload as corrupt.
        let pattern = Pattern::new(0x0123_4567_89ab_cdef, Direction::ToListener);
        let mut message = [0; 16];
        pattern.fill(0, &mut message);
        assert_eq!(message, GOLDEN);
    }

    const GOLDEN: [u8; 16] = [
        113, 161, 77, 166, 110, 165, 101, 72, 144, 203, 152, 55, 254, 145, 141, 13,
    ];
}
