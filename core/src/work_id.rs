//! The layout of `wr_id`, which a posted request carries and its completion returns.
//!
//! | bits | field | range |
//! |---|---|---|
//! | 63..60 | kind | 0..=15 |
//! | 59..40 | channel | 0..=1,048,575 |
//! | 39..16 | generation: how many times the slots wrapped, modulo 2^24 | 0..=16,777,215 |
//! | 15..0 | slot | 0..=65,535 |
//!
//! Generation and slot together are the *position* of a request: the number of earlier requests
//! of its queue, modulo 2^40. In a shared receive queue, the slot is the index of the receive, and
//! the generation counts the uses of that index.

use core::fmt;

use static_assertions::const_assert_eq;

const CHANNEL_BITS: u32 = 20;
const SLOT_BITS: u32 = 16;
const GENERATION_BITS: u32 = 24;

const GENERATION_SHIFT: u32 = SLOT_BITS;
const CHANNEL_SHIFT: u32 = GENERATION_SHIFT + GENERATION_BITS;
const KIND_SHIFT: u32 = CHANNEL_SHIFT + CHANNEL_BITS;
const_assert_eq!(GENERATION_SHIFT, 16);
const_assert_eq!(CHANNEL_SHIFT, 40);
const_assert_eq!(KIND_SHIFT + 4, u64::BITS);

/// The maximum number of channels that a `wr_id` can distinguish.
pub const CHANNELS_MAX: u32 = 1 << CHANNEL_BITS;

/// The maximum number of requests of one queue in flight.
pub const SLOTS_MAX: u32 = 1 << SLOT_BITS;

/// The mask of a generation.
pub(crate) const GENERATION_MASK: u32 = (1 << GENERATION_BITS) - 1;

/// The mask of a position.
pub(crate) const POSITION_MASK: u64 = (1 << CHANNEL_SHIFT) - 1;

/// The kind of queue that a completion belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WorkKind {
    /// A request of a send queue.
    Send = 1,
    /// A receive of one queue pair.
    Receive = 2,
    /// A receive of a shared receive queue, whose number is in the channel field.
    SharedReceive = 3,
}

/// A `wr_id`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct WorkId(u64);

impl WorkId {
    /// Packs the fields; each is truncated to its width.
    #[must_use]
    #[inline]
    pub const fn new(kind: WorkKind, channel: u32, slot: u16, generation: u32) -> Self {
        Self(
            (kind as u64) << KIND_SHIFT
                | ((channel & (CHANNELS_MAX - 1)) as u64) << CHANNEL_SHIFT
                | ((generation & GENERATION_MASK) as u64) << GENERATION_SHIFT
                | slot as u64,
        )
    }

    /// The id of this kind and channel at another position, which is truncated to its width.
    #[must_use]
    #[inline]
    pub const fn at(self, position: u64) -> Self {
        Self(self.0 & !POSITION_MASK | position & POSITION_MASK)
    }

    /// The id of a completion, from its `wr_id`.
    #[must_use]
    #[inline]
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// The `wr_id` to post.
    #[must_use]
    #[inline]
    pub const fn to_raw(self) -> u64 {
        self.0
    }

    /// The id at this position; the position of `self` must be zero.
    #[inline]
    pub(crate) const fn forward(self, position: u64) -> Self {
        Self(self.0 | position & POSITION_MASK)
    }

    /// The kind, or `None` if the word is not a work id of doorbell.
    #[must_use]
    #[inline]
    pub const fn kind(self) -> Option<WorkKind> {
        match self.0 >> KIND_SHIFT {
            1 => Some(WorkKind::Send),
            2 => Some(WorkKind::Receive),
            3 => Some(WorkKind::SharedReceive),
            _ => None,
        }
    }

    /// The channel.
    #[must_use]
    #[inline]
    pub const fn channel(self) -> u32 {
        (self.0 >> CHANNEL_SHIFT) as u32 & (CHANNELS_MAX - 1)
    }

    /// The channel of an id of this kind, as an index. For an id of another kind, a number beyond all
    /// channels.
    #[must_use]
    #[inline]
    pub fn channel_among(self, kind: WorkKind) -> usize {
        let of_kind = (kind as u64) << CHANNEL_BITS;
        // For a lower kind the difference wraps to a large number.
        let channel = (self.0 >> CHANNEL_SHIFT).wrapping_sub(of_kind);
        usize::try_from(channel).unwrap_or(usize::MAX)
    }

    /// The slot.
    #[must_use]
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "16 bits are what is meant")]
    pub const fn slot(self) -> u16 {
        self.0 as u16
    }

    /// The generation of that slot.
    #[must_use]
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "masked to its 24 bits")]
    pub const fn generation(self) -> u32 {
        (self.0 >> GENERATION_SHIFT) as u32 & GENERATION_MASK
    }

    /// The position: generation and slot together.
    #[must_use]
    #[inline]
    pub const fn position(self) -> u64 {
        self.0 & POSITION_MASK
    }
}

impl fmt::Debug for WorkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkId")
            .field("kind", &self.kind())
            .field("channel", &self.channel())
            .field("slot", &self.slot())
            .field("generation", &self.generation())
            .finish()
    }
}

/// Identifies one request of a queue by its position in posting order.
///
/// Tickets of one queue compare in posting order: all requests up to a retired one are finished.
/// Tickets of a shared receive queue have no order: they only distinguish its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub(crate) u64);

impl Ticket {
    /// Returns the position, which grows by one with each request of the queue. The provider chooses the first
    /// position. In a shared receive queue it is only a number that distinguishes requests.
    #[must_use]
    #[inline]
    pub const fn position(self) -> u64 {
        self.0
    }

    /// The ticket of the request `requests` places before this one on the same queue.
    #[must_use]
    #[inline]
    pub const fn back(self, requests: u64) -> Self {
        Self(self.0.wrapping_sub(requests))
    }

    /// The ticket of the request `requests` places after this one on the same queue.
    #[must_use]
    #[inline]
    pub const fn forward(self, requests: u64) -> Self {
        Self(self.0.wrapping_add(requests))
    }
}

#[cfg(test)]
mod tests {
    use super::{CHANNELS_MAX, WorkId, WorkKind};

    #[test]
    fn fields_do_not_overlap() {
        for (channel, slot, generation) in [
            (0, 0, 0),
            (CHANNELS_MAX - 1, 0, 0),
            (0, u16::MAX, 0),
            (0, 0, 0x00ff_ffff),
            (0x12345, 0x6789, 0xabcdef),
        ] {
            for kind in [WorkKind::Send, WorkKind::Receive, WorkKind::SharedReceive] {
                let id = WorkId::from_raw(WorkId::new(kind, channel, slot, generation).to_raw());
                assert_eq!(id.kind(), Some(kind));
                assert_eq!(id.channel(), channel);
                assert_eq!(id.slot(), slot);
                assert_eq!(id.generation(), generation);
            }
        }
        assert_eq!(WorkId::from_raw(0).kind(), None);
        for channel in [0, 1, CHANNELS_MAX - 1] {
            for kind in [WorkKind::Send, WorkKind::Receive, WorkKind::SharedReceive] {
                let id = WorkId::new(kind, channel, u16::MAX, 0x00ff_ffff);
                assert_eq!(id.channel_among(kind), channel as usize);
                for other in [WorkKind::Send, WorkKind::Receive, WorkKind::SharedReceive] {
                    assert!(other == kind || id.channel_among(other) >= CHANNELS_MAX as usize);
                }
            }
            assert!(
                WorkId::from_raw(u64::from(channel)).channel_among(WorkKind::Send) >= CHANNELS_MAX as usize
            );
        }
        assert_eq!(WorkId::from_raw(u64::MAX).kind(), None);
    }

    #[test]
    fn golden_word() {
        let id = WorkId::new(WorkKind::Send, 0x12345, 0x6789, 0x00ab_cdef);
        assert_eq!(id.to_raw(), 0x1123_45ab_cdef_6789);
        assert_eq!(id.position(), 0xab_cdef_6789);
        assert_eq!(id.at(u64::MAX).to_raw(), 0x1123_45ff_ffff_ffff);
    }
}
