//! How bytes move: within what its owners keep still, and to and from memory that others look at.
//!
//! The target of a WRITE and the source of a READ may be read or written by the program at the same
//! time, by atomic accesses, so they are touched by atomic accesses here. A word goes whole where its
//! address is a multiple of eight.

use core::ptr;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

const WORD_BYTES: usize = size_of::<u64>();

/// In which order the bytes of a WRITE become visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// From the first to the last.
    Ascending,
    /// The last ones first: what `ibv_query_qp_data_in_order(3)` warns of.
    Relaxed,
}

/// A piece of memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) start: *mut u8,
    pub(crate) bytes: usize,
}

impl Piece {
    pub(crate) const EMPTY: Self = Self {
        start: ptr::null_mut(),
        bytes: 0,
    };

    /// The piece behind its first bytes.
    const fn after(self, bytes: usize) -> Self {
        Self {
            start: self.start.wrapping_add(bytes),
            bytes: self.bytes.saturating_sub(bytes),
        }
    }
}

/// Copies from pieces into pieces, as much as the shorter list holds.
///
/// # Safety
/// The pieces of `from` are readable, those of `to` writable, and nobody else accesses them.
pub(crate) unsafe fn gather_scatter(from: &[Piece], to: &[Piece]) {
    let (mut sources, mut targets) = (from.iter().copied(), to.iter().copied());
    let (mut source, mut target) = (Piece::EMPTY, Piece::EMPTY);
    loop {
        while source.bytes == 0 {
            let Some(next) = sources.next() else { return };
            source = next;
        }
        while target.bytes == 0 {
            let Some(next) = targets.next() else { return };
            target = next;
        }
        let bytes = source.bytes.min(target.bytes);
        // SAFETY: within both pieces; they may overlap, as a program may send to itself.
        unsafe { ptr::copy(source.start, target.start, bytes) };
        source = source.after(bytes);
        target = target.after(bytes);
    }
}

/// Copies pieces into memory that others may read at any time.
///
/// Ordering: each access is a release, so a side that sees a later byte by an acquire sees the bytes before it.
///
/// # Safety
/// The pieces are readable and nobody writes them. `to` is writable for all their bytes, and every other access
/// to it is atomic.
pub(crate) unsafe fn write_shared(from: &[Piece], to: *mut u8, order: Order) {
    match order {
        Order::Ascending => {
            let mut at = to;
            for piece in from {
                // SAFETY: the caller's words, for this piece.
                unsafe { write_piece(*piece, at) };
                at = at.wrapping_add(piece.bytes);
            }
        }
        Order::Relaxed => {
            let bytes = from
                .iter()
                .fold(0, |sum: usize, piece| sum.wrapping_add(piece.bytes));
            let mut end = to.wrapping_add(bytes);
            for piece in from.iter().rev() {
                // The last half of each piece before its first.
                let middle = piece.bytes / 2;
                let first = Piece {
                    start: piece.start,
                    bytes: middle,
                };
                end = end.wrapping_sub(piece.bytes);
                // SAFETY: the caller's words, for half of this piece.
                unsafe { write_piece(piece.after(middle), end.wrapping_add(middle)) };
                // SAFETY: as above.
                unsafe { write_piece(first, end) };
            }
        }
    }
}

/// # Safety
/// As for [`write_shared`], for one piece.
unsafe fn write_piece(from: Piece, to: *mut u8) {
    let (mut from, mut to) = (from, to);
    while from.bytes != 0 {
        if to.addr() % WORD_BYTES == 0 && from.bytes >= WORD_BYTES {
            // SAFETY: eight readable bytes.
            let word = unsafe { from.start.cast::<u64>().read_unaligned() };
            // SAFETY: eight writable bytes at an aligned address, accessed by atomics alone.
            unsafe { AtomicU64::from_ptr(to.cast()) }.store(word, Ordering::Release);
            (from, to) = (from.after(WORD_BYTES), to.wrapping_add(WORD_BYTES));
        } else {
            // SAFETY: a readable byte.
            let byte = unsafe { from.start.read() };
            // SAFETY: a writable byte, accessed by atomics alone.
            unsafe { AtomicU8::from_ptr(to) }.store(byte, Ordering::Release);
            (from, to) = (from.after(1), to.wrapping_add(1));
        }
    }
}

/// Copies memory that others may write at any time into pieces, as much as they hold.
///
/// # Safety
/// `from` is readable for all bytes of the pieces, and every other access to it is atomic. The pieces are
/// writable and nobody else accesses them.
pub(crate) unsafe fn read_shared(from: *mut u8, to: &[Piece]) {
    let mut from = from;
    for piece in to {
        let mut to = *piece;
        while to.bytes != 0 {
            if from.addr() % WORD_BYTES == 0 && to.bytes >= WORD_BYTES {
                // SAFETY: eight readable bytes at an aligned address, accessed by atomics alone.
                let word = unsafe { AtomicU64::from_ptr(from.cast()) }.load(Ordering::Acquire);
                // SAFETY: eight writable bytes.
                unsafe { to.start.cast::<u64>().write_unaligned(word) };
                (to, from) = (to.after(WORD_BYTES), from.wrapping_add(WORD_BYTES));
            } else {
                // SAFETY: a readable byte, accessed by atomics alone.
                let byte = unsafe { AtomicU8::from_ptr(from) }.load(Ordering::Acquire);
                // SAFETY: a writable byte.
                unsafe { to.start.write(byte) };
                (to, from) = (to.after(1), from.wrapping_add(1));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Order, Piece, gather_scatter, read_shared, write_shared};

    fn piece(bytes: &mut [u8]) -> Piece {
        Piece {
            start: bytes.as_mut_ptr(),
            bytes: bytes.len(),
        }
    }

    #[test]
    fn every_alignment_comes_out_as_it_went_in() {
        let mut source: Vec<u8> = (0..64).collect();
        for order in [Order::Ascending, Order::Relaxed] {
            for offset in 0..9 {
                for split in 0..40 {
                    let (one, other) = source.split_at_mut(split);
                    let from = [piece(one), piece(&mut other[..40 - split])];
                    let mut memory = vec![0_u64; 10];
                    let memory = memory.as_mut_ptr().cast::<u8>().wrapping_add(offset);
                    // SAFETY: 40 bytes behind at most 9 of 80.
                    unsafe { write_shared(&from, memory, order) };
                    let mut back = [0; 40];
                    let (first, second) = back.split_at_mut(split);
                    let to = [piece(first), piece(second)];
                    // SAFETY: as above.
                    unsafe { read_shared(memory, &to) };
                    assert_eq!(back[..], source[..40], "{order:?} {offset} {split}");
                }
            }
        }
    }

    #[test]
    fn pieces_need_not_agree() {
        let (mut one, mut two) = ([1, 2, 3], [4, 5]);
        let (mut small, mut large) = ([0; 1], [0; 6]);
        let from = [piece(&mut one), Piece::EMPTY, piece(&mut two)];
        let to = [piece(&mut small), piece(&mut large)];
        // SAFETY: arrays of this test.
        unsafe { gather_scatter(&from, &to) };
        assert_eq!((small, large), ([1], [2, 3, 4, 5, 0, 0]));
    }
}
