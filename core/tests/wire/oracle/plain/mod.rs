//! A second reading of the wire format, from `docs/wire-format.md` and nothing else: slow and obvious, one field after
//! the other, without reasons for what it refuses. The header in front of a datagram is read likewise, from the tables
//! of other documents.
//!
//! It and `doorbell_core` have to agree on any bytes: on whether they are accepted, and on every field.

pub(crate) mod frames;
pub(crate) mod grh;
pub(crate) mod handle;
pub(crate) mod mac;
pub(crate) mod rails;
pub(crate) mod ring;
pub(crate) mod session;
pub(crate) mod text;

/// The newest version that is spoken; the oldest is 1.
pub(crate) const VERSION: u64 = 4;

/// Bytes, read from the first to the last.
pub(crate) struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The next so many bytes; `None` where there are fewer.
    pub(crate) fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        if bytes > self.rest.len() {
            return None;
        }
        let taken = &self.rest[..bytes];
        self.rest = &self.rest[bytes..];
        Some(taken)
    }

    /// The next so many bytes as a number, the first of them the highest.
    pub(crate) fn number(&mut self, bytes: usize) -> Option<u64> {
        let mut number = 0;
        for byte in self.take(bytes)? {
            number = number * 256 + u64::from(*byte);
        }
        Some(number)
    }

    pub(crate) fn peek(&self) -> Option<u8> {
        self.rest.first().copied()
    }

    pub(crate) fn peek_second(&self) -> Option<u8> {
        self.rest.get(1).copied()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
}

/// `Some` where it is so: what stands in the tables as a condition.
pub(crate) fn only_if(condition: bool) -> Option<()> {
    if condition { Some(()) } else { None }
}
