//! Memory for the cells of a Worker's channels. Each block is registered once, and later channels use it again.

use core::iter;
use std::sync::{Mutex, MutexGuard, PoisonError};

use doorbell_core::in_flight::storage_for;
use doorbell_core::provider::{
    Arena, ArenaConfig, MemoryError, Pages, PlacementConfig, ProtectionDomain, Provider, SendQueue,
};

/// The minimum size of a block, so that channels with few cells share a registration.
pub(crate) const BLOCK_BYTES: u32 = 1 << 16;

/// The blocks of a Worker. The cells of a channel return to their block when the queue pair is destroyed, on any thread.
pub(crate) struct Cells<P: Provider> {
    blocks: Mutex<Vec<Block<P>>>,
    /// Held by a thread that gives a queue its cells, so that two do not register a block each. A registration takes long, so nobody else
    /// waits for this lock.
    furnishing: Mutex<()>,
    placement: PlacementConfig,
}

/// The memory that a Worker has registered for the cells of its channels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CellCounts {
    /// Registered blocks. Later channels use them again; they are deregistered with the Worker.
    pub blocks: u32,
    /// Cells in all blocks.
    pub cells: u32,
    /// Cells that belong to channels, or to queue pairs that are being destroyed.
    pub in_use: u32,
}

/// A registered block, divided into cells of one size.
struct Block<P: Provider> {
    arena: P::Arena,
    /// The requested size, which a provider may round up.
    cell_bytes: u32,
}

impl<P: Provider> Cells<P> {
    /// Makes a list without blocks. Blocks get the placement of the Worker's slots, but ordinary pages: a huge page would be
    /// mostly unused.
    pub(crate) fn new(mut placement: PlacementConfig) -> Self {
        placement.pages = Pages::Ordinary;
        Self {
            blocks: Mutex::default(),
            furnishing: Mutex::default(),
            placement,
        }
    }

    /// Locks the list, for microseconds. No operation leaves it inconsistent, so a poisoned lock can be used.
    fn blocks(&self) -> MutexGuard<'_, Vec<Block<P>>> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the registered blocks and their cells. Does not wait while a block is being registered.
    pub(crate) fn counts(&self) -> CellCounts {
        let mut blocks = self.blocks();
        let mut counts = CellCounts::default();
        for Block { arena, .. } in blocks.iter_mut() {
            let cells = arena.slots();
            counts.blocks = counts.blocks.saturating_add(1);
            counts.cells = counts.cells.saturating_add(cells);
            let in_use = cells.saturating_sub(arena.free_slots());
            counts.in_use = counts.in_use.saturating_add(in_use);
        }
        counts
    }

    /// Gives a send queue of this depth its cells. If no block has room, this registers a new block, which takes long.
    ///
    /// # Errors
    /// The device refused, or a required placement is not available.
    pub(crate) fn furnish(
        &self,
        queue: &mut P::SendQueue,
        domain: &P::ProtectionDomain,
        depth: u32,
        cell_bytes: u32,
    ) -> Result<(), MemoryError> {
        let cells = storage_for(depth).and_then(|cells| u32::try_from(cells).ok());
        let (Some(cells), 1..) = (cells, cell_bytes) else {
            return Ok(());
        };
        let _alone = self.furnishing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut blocks = self.blocks();
        let mut has_room = blocks
            .iter_mut()
            .position(|block| block.cell_bytes == cell_bytes && block.arena.free_slots() >= cells);
        if has_room.is_none() {
            drop(blocks);
            let of_a_block = BLOCK_BYTES.checked_div(cell_bytes).unwrap_or(0);
            let arena = domain.arena(&ArenaConfig {
                slots: cells.max(of_a_block),
                slot_bytes: cell_bytes,
                placement: self.placement,
            })?;
            blocks = self.blocks();
            has_room = Some(blocks.len());
            blocks.push(Block { arena, cell_bytes });
        }
        if let Some(block) = has_room.and_then(|at| blocks.get_mut(at)) {
            // The block has enough cells in the right domain, and the queue has no cells yet.
            let outcome = queue.furnish(iter::from_fn(|| block.arena.lease()));
            outcome.map_err(|_| {
                MemoryError::Unreachable("a send queue took no cells of a block that has enough")
            })?;
        }
        Ok(())
    }
}
