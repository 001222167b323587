//! Layout of a client's memory: two rings, a cell of payload for each of their slots, and an arena.
//!
//! A slot and its cell go together. So a descriptor names no offset, and none can be wrong.

use std::os::fd::BorrowedFd;

use doorbell::interprocess::{SharedArena, SharedMemory, SharedMemoryError, SharedRing};

use crate::reason::AttachRefusal;
use crate::serving::shortage::shortage;

/// The flag at which the client sleeps.
pub(crate) const CLIENT_SLEEPS: usize = 0;

/// The flag at which the daemon sleeps.
pub(crate) const DAEMON_SLEEPS: usize = 1;

/// The most slots of a ring.
pub const DEPTH_MAX: u32 = 4096;

/// The most bytes of a message.
pub const MESSAGE_BYTES_MAX: u32 = 1 << 16;

/// The most bytes of an arena.
pub const ARENA_BYTES_MAX: u64 = 1 << 30;

/// Pages, of which an arena has a whole number.
const PAGE_BYTES: u64 = 4096;

/// The size of a client's rings, cells and arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointLayout {
    depth: u32,
    message_bytes: u32,
    arena_bytes: u64,
}

/// The memory of a client, as both map it.
#[derive(Debug)]
pub struct EndpointMemory {
    pub(crate) rings: SharedMemory,
    pub(crate) cells: SharedArena,
    pub(crate) arena: Option<SharedArena>,
}

impl EndpointLayout {
    /// Rings of `depth` slots, a power of two from 2 to [`DEPTH_MAX`], and messages of up to `message_bytes`, a multiple of 64 up to
    /// [`MESSAGE_BYTES_MAX`]. `None` for anything else.
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

    /// The slots of each ring.
    #[must_use]
    pub const fn depth(&self) -> u32 {
        self.depth
    }

    /// The most bytes of a message.
    #[must_use]
    pub const fn message_bytes(&self) -> u32 {
        self.message_bytes
    }

    /// The same with an arena of so many bytes, a multiple of 4096 up to [`ARENA_BYTES_MAX`], or without one if they are none. `None`
    /// for anything else. Other processes reach ranges of an arena that they were granted.
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

    /// The bytes of the arena.
    #[must_use]
    pub const fn arena_bytes(&self) -> u64 {
        self.arena_bytes
    }

    /// The bytes of all memory of this size: rings, cells and arena.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let words = self.words().saturating_mul(8) as u64;
        words
            .saturating_add(self.cells_bytes() as u64)
            .saturating_add(self.arena_bytes)
    }

    /// Creates the memory, with pages of this process's account.
    ///
    /// # Errors
    /// The system has no memory.
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

    /// Maps and seals the memory of a client that asks for this size: its rings, its cells, and its arena if it has one.
    ///
    /// # Errors
    /// A descriptor is missing or one too many, or of no memfd, or of one with seals, another size, or holes. Or the system has no memory.
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

    /// The descriptors that come with the attach packet.
    pub(crate) const fn descriptors(&self) -> usize {
        if self.arena_bytes == 0 { 2 } else { 3 }
    }

    fn arena_length(&self) -> usize {
        // At most 2^30.
        usize::try_from(self.arena_bytes).unwrap_or(usize::MAX)
    }

    /// The words of both rings.
    pub(crate) fn words(&self) -> usize {
        self.submissions().words().saturating_mul(2)
    }

    /// The bytes of the cells of both rings.
    pub(crate) fn cells_bytes(&self) -> usize {
        // At most 2^12 * 2^16 * 2, so that nothing saturates.
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

    /// Offset of the cell of a slot of the submissions.
    pub(crate) const fn submission_cell(&self, slot: u32) -> usize {
        // At most 2^13 * 2^16: both are checked when a layout is made.
        (slot as usize).wrapping_mul(self.message_bytes as usize)
    }

    /// Offset of the cell of a slot of the events.
    pub(crate) const fn event_cell(&self, slot: u32) -> usize {
        self.submission_cell(self.depth.wrapping_add(slot))
    }
}

impl EndpointMemory {
    /// The descriptors of memory that this process created, in the order of [`EndpointLayout::adopt`].
    pub(crate) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let arena = self.arena.as_ref().and_then(SharedArena::descriptor);
        let all = [self.rings.descriptor(), self.cells.descriptor(), arena];
        all.into_iter().flatten().collect()
    }
}

/// The reason why memory cannot be adopted: the client's, unless the daemon is short of what the system gives.
pub(crate) fn or(refusal: AttachRefusal) -> impl FnOnce(SharedMemoryError) -> AttachRefusal {
    move |error| match error {
        SharedMemoryError::System(error) => shortage(error.errno).unwrap_or(refusal),
        _ => refusal,
    }
}

fn ring(first_word: usize, depth: u32) -> SharedRing {
    // A depth is checked when a layout is made: there is no other.
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
