//! The session that a connection belongs to and continues.

use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::number::drawn_number;

drawn_number! {
    /// The number that identifies a session on both sides. The side that began the session draws it at random. On the wire, zero stands
    /// for none.
    SessionId
}

/// The session of a connection, as a side describes it in a Connect or an Accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Resumption {
    /// The session.
    pub session: SessionId,
    /// The number of the connection in the session: frames of an earlier epoch are void.
    pub epoch: u32,
    /// The number of the next message that this side expects from the other side.
    pub next_sequence: u64,
}

/// The bytes of a resumption, all zero for none.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RawResumption {
    pub(super) session: U64,
    pub(super) next_sequence: U64,
    pub(super) epoch: U32,
}

impl RawResumption {
    pub(super) fn new(resumption: Option<Resumption>) -> Self {
        resumption.map_or(
            Self {
                session: U64::ZERO,
                next_sequence: U64::ZERO,
                epoch: U32::ZERO,
            },
            |resumption| Self {
                session: U64::new(resumption.session.to_u64()),
                next_sequence: U64::new(resumption.next_sequence),
                epoch: U32::new(resumption.epoch),
            },
        )
    }

    pub(super) fn to_resumption(self) -> Option<Resumption> {
        Some(Resumption {
            session: SessionId::new(self.session.get())?,
            epoch: self.epoch.get(),
            next_sequence: self.next_sequence.get(),
        })
    }
}
