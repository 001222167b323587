//! Layout of a client's memory: two rings, and a cell of payload for each of their slots.
//!
//! A slot and its cell go together. So a descriptor names no offset, and none can be wrong.

use std::os::fd::OwnedFd;

use doorbell::interprocess::{SharedArena, SharedMemory, SharedRing};

use crate::reason::AttachRefusal;

/// The flag at which the client sleeps.
pub(crate) const CLIENT_SLEEPS: usize = 0;

/// The flag at which the daemon sleeps.
pub(crate) const DAEMON_SLEEPS: usize = 1;

/// The most slots of a ring.
pub const DEPTH_MAX: u32 = 4096;

/// The most bytes of a message.
pub const MESSAGE_BYTES_MAX: u32 = 1 << 16;

/// The size of a client's rings and cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointLayout {
    depth: u32,
    message_bytes: u32,
}

impl EndpointLayout {
    /// Rings of `depth` slots, a power of two from 2 to [`DEPTH_MAX`], and messages of up to `message_bytes`, a multiple of 64 up to
    /// [`MESSAGE_BYTES_MAX`]. `None` for anything else.
    #[must_use]
    pub const fn new(depth: u32, message_bytes: u32) -> Option<Self> {
        let is_depth = depth.is_power_of_two() && depth >= 2 && depth <= DEPTH_MAX;
        let is_length = message_bytes != 0 && message_bytes % 64 == 0 && message_bytes <= MESSAGE_BYTES_MAX;
        if is_depth && is_length {
            Some(Self { depth, message_bytes })
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

    /// Maps and seals the memory of a client that asks for this size.
    ///
    /// # Errors
    /// A descriptor is of no memfd, or of one with seals, another size, or holes.
    pub fn adopt(
        &self,
        rings: OwnedFd,
        arena: OwnedFd,
    ) -> Result<(SharedMemory, SharedArena), AttachRefusal> {
        let rings = SharedMemory::adopt(rings, self.words()).map_err(|_| AttachRefusal::Rings)?;
        let arena = SharedArena::adopt(arena, self.arena_bytes()).map_err(|_| AttachRefusal::Arena)?;
        Ok((rings, arena))
    }

    /// The words of both rings.
    pub(crate) fn words(&self) -> usize {
        self.submissions().words().saturating_mul(2)
    }

    /// The bytes of the cells of both rings.
    pub(crate) fn arena_bytes(&self) -> usize {
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
        (slot as usize).saturating_mul(self.message_bytes as usize)
    }

    /// Offset of the cell of a slot of the events.
    pub(crate) const fn event_cell(&self, slot: u32) -> usize {
        self.submission_cell(self.depth.saturating_add(slot))
    }
}

fn ring(first_word: usize, depth: u32) -> SharedRing {
    // A depth is checked when a layout is made: there is no other.
    SharedRing::new(first_word, depth).unwrap_or_else(|| unreachable!("a depth that was checked"))
}

impl Default for EndpointLayout {
    /// 64 slots, and messages of up to 4096 bytes: 532 KiB.
    fn default() -> Self {
        Self {
            depth: 64,
            message_bytes: 4096,
        }
    }
}
