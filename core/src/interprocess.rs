//! Memory that two processes map: words and flags for rings, bytes for payload.
//!
//! The other process may write all of it at any time. So it is accessed only by atomics and copies. Each value
//! read is checked, and only the checked copy is used.

use crate::sync::{AtomicU32, AtomicU64, RaceWitness};

/// Words and flags of a mapping that another process has, too.
///
/// Words and flags do not overlap, so no byte is accessed in two sizes.
pub trait SharedWords {
    /// The word with this index. `None` beyond the end.
    fn word(&self, index: usize) -> Option<&AtomicU64>;

    /// Eight words from this index on. `None` unless all are within the mapping.
    fn line(&self, first: usize) -> Option<&[AtomicU64; 8]>;

    /// The flag with this index, on which a thread can wait (`futex(2)`). `None` beyond the end.
    fn flag(&self, index: usize) -> Option<&AtomicU32>;

    /// A witness for plain memory whose ownership passes with a slot of a ring. Only models have one.
    fn witness(&self, _slot: usize) -> Option<&RaceWitness> {
        None
    }
}

/// Bytes of a mapping that another process has, too.
pub trait SharedBytes {
    /// The number of bytes.
    fn bytes(&self) -> usize;

    /// Copies bytes out. Each byte has a value that it had during the call. Copies nothing and returns `false` unless all are
    /// within the mapping.
    #[must_use]
    fn copy_out(&self, offset: usize, into: &mut [u8]) -> bool;

    /// Copies bytes in. Copies nothing and returns `false` unless all are within the mapping.
    #[must_use]
    fn copy_in(&self, offset: usize, from: &[u8]) -> bool;
}
