//! Control frames of a session: granted windows, and fences of connections that were given up.
//!
//! These frames are neither numbered nor stored. After a rail is lost, the sender sends them again.

use core::fmt;
use core::mem::{offset_of, size_of};

use static_assertions::const_assert_eq;
use zerocopy::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::session::{FixedFrame, RAIL_LAST, SessionHeader, SessionKind};
use super::{Field, Part, REMOTE_WINDOW_BYTES, Reason, RemoteWindow, WireError};
use crate::Rkey;
use crate::remote::RemoteAccess;
use crate::sequence::Epoch;

/// The bytes of a [`Grant`].
pub const SESSION_GRANT_BYTES: usize = 56;

/// The bytes of a fence, or of the answer to one.
pub const SESSION_FENCE_BYTES: usize = 32;

const WRITE: u8 = 1;
const READ: u8 = 1 << 1;
const ATOMIC: u8 = 1 << 2;

/// A window that the peer may access over the connection that carries the frame, or the withdrawal of a window.
///
/// | offset | bytes | field | |
/// |---|---|---|---|
/// | 0 | 24 | header | sequence and acknowledgement: 0 |
/// | 24 | 4 | number | of the grant in the session, the same on every rail, and never reused |
/// | 28 | 1 | access | bit 0: WRITE, bit 1: READ, bit 2: atomics; 0 for a withdrawal |
/// | 29 | 7 | reserved | 0 |
/// | 36 | 20 | window | all zero for a withdrawal; otherwise its length is not 0 |
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Grant {
    header: SessionHeader,
    number: U32,
    access: u8,
    reserved: [u8; 7],
    window: [u8; REMOTE_WINDOW_BYTES],
}

const_assert_eq!(size_of::<Grant>(), SESSION_GRANT_BYTES);

/// Fields of a [`Grant`] as plain values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The epoch of the connection that carries the frame.
    pub epoch: Epoch,
    /// The grant's number.
    pub number: u32,
    /// The window and the rights of the peer; `None` for a withdrawal.
    pub window: Option<(RemoteWindow, RemoteAccess)>,
}

impl FixedFrame for Grant {
    const FIELDS: &'static [(Field, usize)] = &[
        (Field::GrantNumber, offset_of!(Grant, number)),
        (Field::GrantAccess, offset_of!(Grant, access)),
        (Field::Reserved, offset_of!(Grant, reserved)),
        (Field::GrantWindow, offset_of!(Grant, window)),
    ];
}

impl Grant {
    /// Encodes the frame.
    #[must_use]
    pub fn new(granted: &Granted) -> Self {
        let nothing = RemoteWindow::new(0, 0, Rkey(0));
        let (window, access) = granted
            .window
            .map_or((nothing, 0), |(window, access)| (window, access_bits(access)));
        Self {
            header: SessionHeader::beside(SessionKind::Grant, granted.epoch),
            number: U32::new(granted.number),
            access,
            reserved: [0; 7],
            window: window.without_access().to_bytes(),
        }
    }

    /// The bytes of the frame, as they are sent to a peer.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; SESSION_GRANT_BYTES] {
        zerocopy::transmute!(self)
    }

    pub(super) fn check(&self) -> Result<Granted, WireError> {
        if self.access & !(WRITE | READ | ATOMIC) != 0 {
            return Err(Self::wrong(Field::GrantAccess, Reason::Unknown));
        }
        if self.reserved != [0; 7] {
            return Err(Self::wrong(Field::Reserved, Reason::NotZero));
        }
        let window = RemoteWindow::from_bytes(self.window);
        let window = match (self.access, window.length_bytes()) {
            (0, _) if self.window != [0; REMOTE_WINDOW_BYTES] => {
                return Err(Self::wrong(Field::GrantWindow, Reason::NotZero));
            }
            (0, _) => None,
            (_, 0) => return Err(Self::wrong(Field::GrantWindow, Reason::Zero)),
            _ if window.access_bits() != 0 => {
                let offset = offset_of!(Self, window).saturating_add(RemoteWindow::ACCESS_OFFSET);
                let (part, field) = (Part::SessionFrame, Field::GrantWindow);
                return Err(WireError::new(part, field, offset, Reason::NotZero));
            }
            (access, _) => Some((window, access_of(access))),
        };
        Ok(Granted {
            epoch: self.header.epoch(),
            number: self.number.get(),
            window,
        })
    }
}

const fn access_bits(access: RemoteAccess) -> u8 {
    let write = if access.write { WRITE } else { 0 };
    let read = if access.read { READ } else { 0 };
    let atomic = if access.atomic { ATOMIC } else { 0 };
    write | read | atomic
}

const fn access_of(bits: u8) -> RemoteAccess {
    RemoteAccess {
        write: bits & WRITE != 0,
        read: bits & READ != 0,
        atomic: bits & ATOMIC != 0,
    }
}

/// A fence of a rail's connections: the request to accept nothing more from them, or the answer that confirms this.
///
/// | offset | bytes | field | |
/// |---|---|---|---|
/// | 0 | 24 | header | sequence and acknowledgement: 0 |
/// | 24 | 1 | rail | the number of the rail in the session; below 8 |
/// | 25 | 3 | reserved | 0 |
/// | 28 | 4 | epoch | of the last of these connections; not 0 |
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct FenceFrame {
    header: SessionHeader,
    rail: u8,
    reserved: [u8; 3],
    through: U32,
}

const_assert_eq!(size_of::<FenceFrame>(), SESSION_FENCE_BYTES);

/// Fields of a [`FenceFrame`] as plain values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The epoch of the connection that carries the frame.
    pub epoch: Epoch,
    /// The rail of the fenced connections.
    pub rail: u8,
    /// The epoch of the last fenced connection.
    pub through: Epoch,
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rail {}, epochs to {}", self.rail, self.through.to_u32())
    }
}

impl FixedFrame for FenceFrame {
    const FIELDS: &'static [(Field, usize)] = &[
        (Field::Rail, offset_of!(FenceFrame, rail)),
        (Field::Reserved, offset_of!(FenceFrame, reserved)),
        (Field::Epoch, offset_of!(FenceFrame, through)),
    ];
}

impl FenceFrame {
    /// Encodes the request.
    #[must_use]
    pub fn ask(fence: &Fence) -> Self {
        Self::new(SessionKind::Fence, fence)
    }

    /// Encodes the answer.
    #[must_use]
    pub fn answer(fence: &Fence) -> Self {
        Self::new(SessionKind::Fenced, fence)
    }

    fn new(kind: SessionKind, fence: &Fence) -> Self {
        Self {
            header: SessionHeader::beside(kind, fence.epoch),
            rail: fence.rail.min(RAIL_LAST),
            reserved: [0; 3],
            through: U32::new(fence.through.to_u32()),
        }
    }

    /// The bytes of the frame, as they are sent to a peer.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; SESSION_FENCE_BYTES] {
        zerocopy::transmute!(self)
    }

    pub(super) fn check(&self) -> Result<Fence, WireError> {
        if self.rail > RAIL_LAST {
            return Err(Self::wrong(Field::Rail, Reason::OutOfRange));
        }
        if self.reserved != [0; 3] {
            return Err(Self::wrong(Field::Reserved, Reason::NotZero));
        }
        if self.through.get() == 0 {
            return Err(Self::wrong(Field::Epoch, Reason::Zero));
        }
        Ok(Fence {
            epoch: self.header.epoch(),
            rail: self.rail,
            through: Epoch::from_wire(self.through.get()),
        })
    }
}
