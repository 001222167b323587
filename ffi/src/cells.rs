//! The cells of a send queue: memory of its own that requests go out from in place.
//!
//! They are slots that the queue owns, one for each place of its in-flight table. Whose a cell is follows from the position
//! of its request. While that is posted and not retired, the cell is the device's. Else only a batch lends it, and only the
//! one at the place of the next request.

use core::ptr::NonNull;
use core::slice;

use doorbell_core::provider::{CellsError, DomainId};

use crate::Slot;

/// One for each place of the in-flight table, or none.
#[derive(Default)]
pub(crate) struct Cells {
    pieces: Box<[Piece]>,
    /// Owns the memory of the pieces.
    slots: Box<[Slot]>,
}

/// The memory of a cell, as a request names it.
#[derive(Clone, Copy)]
pub(crate) struct Piece {
    start: NonNull<u8>,
    pub(crate) bytes: u32,
    lkey: u32,
}

// SAFETY: the pieces point into the slots, which may go to any thread and go with them.
unsafe impl Send for Cells {}

impl Cells {
    /// Takes so many cells of these slots, which are of one arena and registered in this domain.
    pub(crate) fn furnish(
        &mut self,
        slots: impl Iterator<Item = Slot>,
        needed: usize,
        domain: DomainId,
    ) -> Result<(), CellsError> {
        if !self.slots.is_empty() {
            return Err(CellsError::Furnished);
        }
        let slots: Box<[Slot]> = slots.take(needed).collect();
        CellsError::check(&slots, needed, domain, |slot, next| slot.home() == next.home())?;
        // Each is written from memory that is there: none is left to a first access.
        let pieces = slots.iter().map(Piece::of).collect();
        *self = Self { pieces, slots };
        Ok(())
    }

    /// How many bytes each has.
    pub(crate) fn bytes(&self) -> u32 {
        self.pieces.first().map_or(0, |piece| piece.bytes)
    }

    /// The piece at this place of the table.
    #[inline]
    pub(crate) fn piece(&self, place: usize) -> Option<&Piece> {
        self.pieces.get(place)
    }

    /// The bytes of the cell at this place.
    ///
    /// # Safety
    /// No request that the device may have is at this place.
    #[inline]
    pub(crate) unsafe fn lend(&mut self, place: usize) -> Option<&mut [u8]> {
        let piece = self.pieces.get(place)?;
        // SAFETY: The piece is all the bytes of a slot that `slots` owns, mapped and initialised. The device does not have
        // it, as the caller vouches, and the exclusive borrow of the cells makes it the only reference.
        Some(unsafe { slice::from_raw_parts_mut(piece.start.as_ptr(), piece.bytes as usize) })
    }
}

impl Piece {
    fn of(slot: &Slot) -> Self {
        let bytes = slot.capacity();
        Self {
            start: slot.start(),
            bytes,
            lkey: slot.element(bytes).lkey,
        }
    }

    /// A gather element over its first `length` bytes.
    #[inline]
    pub(crate) fn element(&self, length: u32) -> rdma_sys::ibv_sge {
        rdma_sys::ibv_sge {
            addr: self.start.as_ptr().expose_provenance() as u64,
            length,
            lkey: self.lkey,
        }
    }
}
