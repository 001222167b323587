//! Layout of a client's memory: two rings, one payload cell for each slot, and an arena.
//!
//! Each slot has a fixed cell. So a descriptor contains no payload offset, which could be wrong.

use std::os::fd::BorrowedFd;

use doorbell::interprocess::{SharedArena, SharedMemory, SharedMemoryError, SharedRing};

use crate::reason::AttachRefusal;
use crate::serving::shortage::shortage;

/// Index of the flag by which the client announces that it sleeps.
pub(crate) const CLIENT_SLEEPS: usize = 0;

/// Index of the flag by which the daemon announces that it sleeps.
pub(crate) const DAEMON_SLEEPS: usize = 1;

/// Maximum number of slots of a ring.
pub const DEPTH_MAX: u32 = 4096;

/// Maximum length of a message in bytes.
pub const MESSAGE_BYTES_MAX: u32 = 1 << 16;

/// Maximum size of an arena in bytes.
pub const ARENA_BYTES_MAX: u64 = 1 << 30;

/// Page size. The size of an arena is a multiple of it.
const PAGE_BYTES: u64 = 4096;

/// Sizes of a client's rings, cells and arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointLayout {
    depth: u32,
    message_bytes: u32,
    arena_bytes: u64,
}

/// The shared memory of a client, as it is mapped in one process.
#[derive(Debug)]
pub struct EndpointMemory {
    pub(crate) rings: SharedMemory,
    pub(crate) cells: SharedArena,
    pub(crate) arena: Option<SharedArena>,
}

impl EndpointLayout {
    /// A layout of two rings of `depth` slots, a power of two from 2 to [`DEPTH_MAX`], and messages of up to `message_bytes`, a multiple
    /// of 64 up to [`MESSAGE_BYTES_MAX`]. Returns `None` for other values.
    #[must_use]
    pub const fn new(depth: u32, message_bytes: u32) -> Option<Self> {
        let is_depth = depth.is_power_of_two() && depth >= 2 && depth <= DEPTH_MAX;
        let is_length = message_bytes != 0 && message_bytes % 64 == 0 && message_bytes <= MESSAGE_BYTES_MAX;
        if is_depth && is_length {
            Some(Self {
                depth,
                message_bytes,
                arena_bytes: 0,
            })
        } else {
            None
        }
    }

    /// Number of slots of each ring.
    #[must_use]
    pub const fn depth(&self) -> u32 {
        self.depth
    }

    /// Maximum length of a message in bytes.
    #[must_use]
    pub const fn message_bytes(&self) -> u32 {
        self.message_bytes
    }

    /// This layout with an arena of `bytes`: a multiple of 4096 up to [`ARENA_BYTES_MAX`], or 0 for no arena. Returns `None` for other
    /// values. Other processes can access only the ranges of an arena that they were granted.
    #[must_use]
    pub const fn with_arena(self, bytes: u64) -> Option<Self> {
        if bytes % PAGE_BYTES != 0 || bytes > ARENA_BYTES_MAX {
            return None;
        }
        Some(Self {
            arena_bytes: bytes,
            ..self
        })
    }

    /// Size of the arena in bytes.
    #[must_use]
    pub const fn arena_bytes(&self) -> u64 {
        self.arena_bytes
    }

    /// Total size of the memory in bytes: rings, cells and arena.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let words = self.words().saturating_mul(8) as u64;
        words
            .saturating_add(self.cells_bytes() as u64)
            .saturating_add(self.arena_bytes)
    }

    /// Creates the memory. Its pages are charged to this process.
    ///
    /// # Errors
    /// The system is out of memory.
    pub(crate) fn create(&self) -> Result<EndpointMemory, SharedMemoryError> {
        Ok(EndpointMemory {
            rings: SharedMemory::create(self.words())?,
            cells: SharedArena::create(self.cells_bytes())?,
            arena: match self.arena_length() {
                0 => None,
                bytes => Some(SharedArena::create(bytes)?),
            },
        })
    }

    /// Maps and seals the memory that a client sent for this layout: rings, cells, and the arena if there is one.
    ///
    /// # Errors
    /// The number of descriptors is wrong; one is not a memfd, already has seals, has the wrong size, or has holes; or the system is out
    /// of memory.
    pub fn adopt(&self, descriptors: &[BorrowedFd<'_>]) -> Result<EndpointMemory, AttachRefusal> {
        let (rings, cells, arena) = match (descriptors, self.arena_length()) {
            ([rings, cells], 0) => (rings, cells, None),
            ([rings, cells, arena], bytes) if bytes > 0 => (rings, cells, Some((arena, bytes))),
            _ => return Err(AttachRefusal::Descriptors),
        };
        let arena = arena.map(|(arena, bytes)| SharedArena::adopt(*arena, bytes));
        Ok(EndpointMemory {
            rings: SharedMemory::adopt(*rings, self.words()).map_err(or(AttachRefusal::Rings))?,
            cells: SharedArena::adopt(*cells, self.cells_bytes()).map_err(or(AttachRefusal::Cells))?,
            arena: arena.transpose().map_err(or(AttachRefusal::Arena))?,
        })
    }

    /// Number of descriptors that come with the attach packet.
    pub(crate) const fn descriptors(&self) -> usize {
        if self.arena_bytes == 0 { 2 } else { 3 }
    }

    fn arena_length(&self) -> usize {
        // At most 2^30.
        usize::try_from(self.arena_bytes).unwrap_or(usize::MAX)
    }

    /// Number of words of both rings.
    pub(crate) fn words(&self) -> usize {
        self.submissions().words().saturating_mul(2)
    }

    /// Number of bytes of the cells of both rings.
    pub(crate) fn cells_bytes(&self) -> usize {
        // At most 2^12 * 2^16 * 2, so that this never saturates.
        (self.depth as usize)
            .saturating_mul(self.message_bytes as usize)
            .saturating_mul(2)
    }

    /// The ring from the client to the daemon.
    pub(crate) fn submissions(&self) -> SharedRing {
        ring(0, self.depth)
    }

    /// The ring from the daemon to the client.
    pub(crate) fn events(&self) -> SharedRing {
        ring(self.submissions().words(), self.depth)
    }

    /// Offset of the cell of a submission slot.
    pub(crate) const fn submission_cell(&self, slot: u32) -> usize {
        // At most 2^13 * 2^16, since both factors are checked when a layout is created.
        (slot as usize).wrapping_mul(self.message_bytes as usize)
    }

    /// Offset of the cell of an event slot.
    pub(crate) const fn event_cell(&self, slot: u32) -> usize {
        self.submission_cell(self.depth.wrapping_add(slot))
    }
}

impl EndpointMemory {
    /// Whether the other process has sealed all the memory in its full size.
    pub(crate) fn is_sealed(&self) -> bool {
        let Self { rings, cells, arena } = self;
        rings.is_sealed() && cells.is_sealed() && arena.as_ref().is_none_or(SharedArena::is_sealed)
    }

    /// The descriptors of memory that this process created, in the order that [`EndpointLayout::adopt`] expects.
    pub(crate) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let arena = self.arena.as_ref().and_then(SharedArena::descriptor);
        let all = [self.rings.descriptor(), self.cells.descriptor(), arena];
        all.into_iter().flatten().collect()
    }
}

/// Reason why memory cannot be adopted: a resource that the daemon lacks, or else the given refusal, which blames the client.
pub(crate) fn or(refusal: AttachRefusal) -> impl FnOnce(SharedMemoryError) -> AttachRefusal {
    move |error| match error {
        SharedMemoryError::System(error) => shortage(error.errno).unwrap_or(refusal),
        _ => refusal,
    }
}

fn ring(first_word: usize, depth: u32) -> SharedRing {
    // The depth of every layout was checked when it was created.
    SharedRing::new(first_word, depth).unwrap_or_else(|| unreachable!("a depth that was checked"))
}

impl Default for EndpointLayout {
    /// 64 slots, messages of up to 4096 bytes, and no arena: 532 KiB.
    fn default() -> Self {
        Self {
            depth: 64,
            message_bytes: 4096,
            arena_bytes: 0,
        }
    }
}
