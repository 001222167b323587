//! Memory that two processes map: words and flags for rings, bytes for payload.
//!
//! The other process may write all of it at any time. So it is reached by atomics and copies alone, each value that is read is
//! checked, and only the checked copy is used.

use crate::sync::{AtomicU32, AtomicU64, RaceWitness};

/// Words and flags of a mapping that another process has, too.
///
/// Words and flags lie apart: no byte is reached in two sizes.
pub trait SharedWords {
    /// The word with this index. `None` behind the end.
    fn word(&self, index: usize) -> Option<&AtomicU64>;

    /// Eight words from this index on. `None` unless all lie within.
    fn line(&self, first: usize) -> Option<&[AtomicU64; 8]>;

    /// The flag with this index, which a thread can sleep at (`futex(2)`). `None` behind the end.
    fn flag(&self, index: usize) -> Option<&AtomicU32>;

    /// A witness for plain memory that is handed over with a slot of a ring. Models alone have one.
    fn witness(&self, _slot: usize) -> Option<&RaceWitness> {
        None
    }
}

/// Bytes of a mapping that another process has, too.
pub trait SharedBytes {
    /// The number of bytes.
    fn bytes(&self) -> usize;

    /// Copies bytes out. Each is one that was there during the call. `false`, and nothing is copied, unless all lie within.
    #[must_use]
    fn copy_out(&self, offset: usize, into: &mut [u8]) -> bool;

    /// Copies bytes in. `false`, and nothing is copied, unless all lie within.
    #[must_use]
    fn copy_in(&self, offset: usize, from: &[u8]) -> bool;
}
