//! Frames of a session: a stream of messages to one peer, over one or more rails.
//!
//! This module has only the layout. `core::session` has the protocol.

use core::fmt;
use core::mem::{offset_of, size_of};

use static_assertions::const_assert_eq;
use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::session_beside::{FenceFrame, Grant};
use super::session_placed::{LendFrame, PlacedFrame};
use super::session_transfer::{EndFrame, LandedFrame, OpenFrame, ProgressFrame, TakeFrame};
use super::{
    End, Fence, Field, Granted, Handle, HandleRef, Landed, Lend, Open, Part, Placed, Progress,
    REMOTE_WINDOW_BYTES, Reason, RemoteWindow, SessionId, Take, WireError,
};
use crate::sequence::{Epoch, SESSION_RAILS_MAX, SESSION_WINDOW_MAX, Sequence};

/// The bytes of the header of each frame of a session.
pub const SESSION_HEADER_BYTES: usize = 24;

/// The bytes of an [`Attach`].
pub const SESSION_ATTACH_BYTES: usize = 40;

/// The bytes of a [`Refusal`].
pub const SESSION_REFUSAL_BYTES: usize = 32;

const VERSION: u8 = 1;

const FIRST: u8 = 1;
const LAST: u8 = 1 << 1;
const BEGINS: u8 = 1 << 2;

/// The kind of a session frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SessionKind {
    /// A message, or a fragment of one.
    Data = 1,
    /// Only an acknowledgement of received fragments.
    Acknowledgement = 2,
    /// The first frame on each connection, in both directions: it names the session and the rail.
    Attach = 3,
    /// The connection does not become a rail, or stops being one.
    Refusal = 4,
    /// The sender's last frame: it neither sends nor accepts anything more.
    Farewell = 5,
    /// The new handle of the sender's process.
    Moved = 6,
    /// Memory that the peer may access, or may no longer access.
    Grant = 7,
    /// The sender gave up a rail's connection, and asks the peer to accept nothing more from it.
    Fence = 8,
    /// The answer to a fence: the sender accepts nothing more from the connection.
    Fenced = 9,
    /// The beginning of a transfer.
    Open = 10,
    /// The taker's memory for a transfer.
    Take = 11,
    /// An announcement of pieces of a transfer that have landed.
    Landed = 12,
    /// The pieces of a transfer that the taker has.
    Progress = 13,
    /// The end of a transfer.
    End = 14,
    /// Memory that the sender lends to the peer, for written fragments.
    Lend = 15,
    /// A fragment that was written into memory that the receiver lent.
    Placed = 16,
}

/// The first 24 bytes of every frame of a session.
///
/// | offset | bytes | field | |
/// |---|---|---|---|
/// | 0 | 1 | version | 1 |
/// | 1 | 1 | kind | 1: data, 2: acknowledgement, 3: attach, 4: refusal, 5: farewell, 6: moved, 7: grant, 8: fence, 9: fenced, 10: open, 11: take, 12: landed, 13: progress, 14: end, 15: lend, 16: placed |
/// | 2 | 1 | flags | in data and placed, bit 0: the first fragment, bit 1: the last; in attach, bit 2: the session begins |
/// | 3 | 1 | reserved | 0 |
/// | 4 | 4 | epoch | of the frame's connection; not 0 |
/// | 8 | 8 | sequence | depends on the kind |
/// | 16 | 8 | acknowledgement | the sequence number that the sender of the frame expects next |
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SessionHeader {
    version: u8,
    kind: u8,
    flags: u8,
    reserved: u8,
    epoch: U32,
    sequence: U64,
    acknowledgement: U64,
}

const_assert_eq!(size_of::<SessionHeader>(), SESSION_HEADER_BYTES);

impl FixedFrame for SessionHeader {
    const FIELDS: &'static [(Field, usize)] = &[
        (Field::Version, offset_of!(SessionHeader, version)),
        (Field::Kind, offset_of!(SessionHeader, kind)),
        (Field::Flags, offset_of!(SessionHeader, flags)),
        (Field::Reserved, offset_of!(SessionHeader, reserved)),
        (Field::Epoch, offset_of!(SessionHeader, epoch)),
        (Field::Sequence, offset_of!(SessionHeader, sequence)),
        (Field::Acknowledgement, offset_of!(SessionHeader, acknowledgement)),
    ];
}

impl SessionHeader {
    const fn new(kind: SessionKind, flags: u8, epoch: Epoch, sequence: Sequence, expected: Sequence) -> Self {
        Self {
            version: VERSION,
            kind: kind as u8,
            flags,
            reserved: 0,
            epoch: U32::new(epoch.to_u32()),
            sequence: U64::new(sequence.0),
            acknowledgement: U64::new(expected.0),
        }
    }

    /// The header of fragment `sequence` of the session, which may be the first of its message, the last, both or
    /// neither.
    #[must_use]
    pub const fn data(
        epoch: Epoch,
        sequence: Sequence,
        expected: Sequence,
        is_first: bool,
        is_last: bool,
    ) -> Self {
        let first = if is_first { FIRST } else { 0 };
        let last = if is_last { LAST } else { 0 };
        Self::new(SessionKind::Data, first | last, epoch, sequence, expected)
    }

    /// The header of a fragment that was written into memory of the receiver; otherwise like [`SessionHeader::data`].
    #[must_use]
    pub const fn placed(
        epoch: Epoch,
        sequence: Sequence,
        expected: Sequence,
        is_first: bool,
        is_last: bool,
    ) -> Self {
        let mut header = Self::data(epoch, sequence, expected, is_first, is_last);
        header.kind = SessionKind::Placed as u8;
        header
    }

    /// The header of an acknowledgement without data.
    #[must_use]
    pub const fn acknowledgement_only(epoch: Epoch, expected: Sequence) -> Self {
        Self::new(SessionKind::Acknowledgement, 0, epoch, Sequence(0), expected)
    }

    /// The header of a farewell: there is no fragment from `end` on.
    #[must_use]
    pub const fn farewell(epoch: Epoch, end: Sequence, expected: Sequence) -> Self {
        Self::new(SessionKind::Farewell, 0, epoch, end, expected)
    }

    /// The header of the new handle of the sender's process. `number` orders such handles, since an older one may
    /// arrive later over another connection.
    #[must_use]
    pub const fn moved(epoch: Epoch, number: Sequence) -> Self {
        Self::new(SessionKind::Moved, 0, epoch, number, Sequence(0))
    }

    /// The header of a frame without messages and acknowledgements.
    pub(super) const fn beside(kind: SessionKind, epoch: Epoch) -> Self {
        Self::new(kind, 0, epoch, Sequence(0), Sequence(0))
    }

    /// The bytes of the frame, as they are sent to a peer.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; SESSION_HEADER_BYTES] {
        zerocopy::transmute!(self)
    }

    /// Returns the epoch of the frame's connection.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        Epoch::from_wire(self.epoch.get())
    }

    /// Returns the sequence number, whose meaning depends on the kind. Data and Placed: the fragment's number. Attach: the
    /// first fragment that the sender still has. Farewell: the number after the last fragment. Moved: the handle's number.
    #[must_use]
    pub const fn sequence(&self) -> Sequence {
        Sequence(self.sequence.get())
    }

    /// The number that the sender expects next: it has all fragments before.
    #[must_use]
    pub const fn expected(&self) -> Sequence {
        Sequence(self.acknowledgement.get())
    }

    /// Whether it is the first fragment of a message.
    #[must_use]
    pub const fn is_first(&self) -> bool {
        self.flags & FIRST != 0
    }

    /// Whether it is the last fragment of a message.
    #[must_use]
    pub const fn is_last(&self) -> bool {
        self.flags & LAST != 0
    }

    fn check(&self) -> Result<SessionKind, WireError> {
        if self.version != VERSION {
            return Err(Self::wrong(Field::Version, Reason::Unknown));
        }
        let (kind, flags_known) = match self.kind {
            1 => (SessionKind::Data, FIRST | LAST),
            2 => (SessionKind::Acknowledgement, 0),
            3 => (SessionKind::Attach, BEGINS),
            4 => (SessionKind::Refusal, 0),
            5 => (SessionKind::Farewell, 0),
            6 => (SessionKind::Moved, 0),
            7 => (SessionKind::Grant, 0),
            8 => (SessionKind::Fence, 0),
            9 => (SessionKind::Fenced, 0),
            10 => (SessionKind::Open, 0),
            11 => (SessionKind::Take, 0),
            12 => (SessionKind::Landed, 0),
            13 => (SessionKind::Progress, 0),
            14 => (SessionKind::End, 0),
            15 => (SessionKind::Lend, 0),
            16 => (SessionKind::Placed, FIRST | LAST),
            _ => return Err(Self::wrong(Field::Kind, Reason::Unknown)),
        };
        if self.flags & !flags_known != 0 {
            return Err(Self::wrong(Field::Flags, Reason::NotZero));
        }
        if self.reserved != 0 {
            return Err(Self::wrong(Field::Reserved, Reason::NotZero));
        }
        if self.epoch.get() == 0 {
            return Err(Self::wrong(Field::Epoch, Reason::Zero));
        }
        let has_sequence = matches!(
            kind,
            SessionKind::Data
                | SessionKind::Placed
                | SessionKind::Attach
                | SessionKind::Farewell
                | SessionKind::Moved
        );
        if !has_sequence && self.sequence.get() != 0 {
            return Err(Self::wrong(Field::Sequence, Reason::NotZero));
        }
        Ok(kind)
    }

    /// Parses the frame of this header, which must not acknowledge anything.
    fn alone<'a, T: FixedFrame>(&self, bytes: &'a [u8]) -> Result<&'a T, WireError> {
        let frame = T::whole(bytes)?;
        self.check_acknowledges_nothing()?;
        Ok(frame)
    }

    /// Checks that the acknowledgement is zero.
    fn check_acknowledges_nothing(&self) -> Result<(), WireError> {
        if self.acknowledgement.get() != 0 {
            return Err(Self::wrong(Field::Acknowledgement, Reason::NotZero));
        }
        Ok(())
    }
}

/// The first frame of each side on a connection.
///
/// | offset | bytes | field | |
/// |---|---|---|---|
/// | 0 | 24 | header | the sequence: the first fragment that the sender still has |
/// | 24 | 8 | session | random, drawn by the connecting side; not 0 |
/// | 32 | 4 | window | the fragments that the sender accepts from the expected one on; 1 to 2^16 |
/// | 36 | 1 | rail | the number of the rail in the session; below 8 |
/// | 37 | 3 | reserved | 0 |
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Attach {
    header: SessionHeader,
    session: U64,
    window: U32,
    rail: u8,
    reserved: [u8; 3],
}

const_assert_eq!(size_of::<Attach>(), SESSION_ATTACH_BYTES);

/// Fields of an [`Attach`] as plain values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttachParameters {
    /// The session.
    pub session: SessionId,
    /// The connection's epoch.
    pub epoch: Epoch,
    /// The rail's number in the session.
    pub rail: u8,
    /// Whether the session begins: the sender has had no rail of it yet.
    pub begins: bool,
    /// The first fragment that the sender still has.
    pub oldest: Sequence,
    /// The fragment that the sender expects next.
    pub expected: Sequence,
    /// The number of fragments that the sender accepts from there on.
    pub window: u32,
}

impl FixedFrame for Attach {
    const FIELDS: &'static [(Field, usize)] = &[
        (Field::Session, offset_of!(Attach, session)),
        (Field::Window, offset_of!(Attach, window)),
        (Field::Rail, offset_of!(Attach, rail)),
        (Field::Reserved, offset_of!(Attach, reserved)),
    ];
}

impl Attach {
    /// Encodes the frame. A window or a rail beyond its range is limited to it.
    #[must_use]
    pub fn new(said: &AttachParameters) -> Self {
        let flags = if said.begins { BEGINS } else { 0 };
        Self {
            header: SessionHeader::new(SessionKind::Attach, flags, said.epoch, said.oldest, said.expected),
            session: U64::new(said.session.to_u64()),
            window: U32::new(said.window.clamp(1, SESSION_WINDOW_MAX)),
            rail: said.rail.min(RAIL_LAST),
            reserved: [0; 3],
        }
    }

    /// The bytes of the frame, as they are sent to a peer.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; SESSION_ATTACH_BYTES] {
        zerocopy::transmute!(self)
    }

    fn check(&self) -> Result<AttachParameters, WireError> {
        let session =
            SessionId::new(self.session.get()).ok_or_else(|| Self::wrong(Field::Session, Reason::Zero))?;
        let window = self.window.get();
        if window == 0 || window > SESSION_WINDOW_MAX {
            return Err(Self::wrong(Field::Window, Reason::OutOfRange));
        }
        if self.rail > RAIL_LAST {
            return Err(Self::wrong(Field::Rail, Reason::OutOfRange));
        }
        if self.reserved != [0; 3] {
            return Err(Self::wrong(Field::Reserved, Reason::NotZero));
        }
        Ok(AttachParameters {
            session,
            epoch: self.header.epoch(),
            rail: self.rail,
            begins: self.header.flags & BEGINS != 0,
            oldest: self.header.sequence(),
            expected: self.header.expected(),
            window,
        })
    }
}

/// The highest number of a rail.
pub(super) const RAIL_LAST: u8 = SESSION_RAILS_MAX.saturating_sub(1);

/// The reason why a connection does not become a rail of a session, or stops being one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RefusalReason(pub u8);

impl RefusalReason {
    /// The session is unknown: its process is gone, or has given it up.
    pub const UNKNOWN_SESSION: Self = Self(1);
    /// The rail already had a connection of this epoch or a later one.
    pub const OLD_EPOCH: Self = Self(2);
    /// The Attach contradicts the session: its rail, its sequence numbers or its connection.
    pub const CONTRADICTION: Self = Self(3);
    /// There is no room for another session.
    pub const NO_ROOM: Self = Self(4);
    /// The session is over: it was closed.
    pub const OVER: Self = Self(5);
    /// Another rail of the session already uses the port: each port is one rail. After that rail is lost, this one can be connected.
    pub const PORT_IN_USE: Self = Self(6);
    /// The session is over: it was given up, since no rail was available in time.
    pub const GIVEN_UP: Self = Self(7);
    /// The session is over: a frame broke the protocol.
    pub const BROKEN: Self = Self(8);
    /// The session is over: a message exceeded the limit.
    pub const TOO_LONG: Self = Self(9);

    /// Whether the reason means that the other side has ended the session.
    #[must_use]
    pub const fn is_end(self) -> bool {
        matches!(self, Self::OVER | Self::GIVEN_UP | Self::BROKEN | Self::TOO_LONG)
    }
}

impl fmt::Display for RefusalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::UNKNOWN_SESSION => "no such session",
            Self::OLD_EPOCH => "the rail has had a later connection",
            Self::CONTRADICTION => "the connection contradicts the session",
            Self::NO_ROOM => "no room for another session",
            Self::OVER => "the session was closed",
            Self::PORT_IN_USE => "another rail of the session uses the port",
            Self::GIVEN_UP => "no rail in time",
            Self::BROKEN => "a frame broke the protocol",
            Self::TOO_LONG => "a message was too long",
            Self(other) => return write!(f, "unknown reason {other}"),
        })
    }
}

/// The refusal of a connection as a rail of a session. If the session is over, it may also come after the connection
/// became a rail. It is the last frame on its connection.
///
/// | offset | bytes | field | |
/// |---|---|---|---|
/// | 0 | 24 | header | the sequence: 0 |
/// | 24 | 1 | reason | an unknown reason is still a refusal |
/// | 25 | 7 | reserved | 0 |
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Refusal {
    header: SessionHeader,
    reason: u8,
    reserved: [u8; 7],
}

const_assert_eq!(size_of::<Refusal>(), SESSION_REFUSAL_BYTES);

impl FixedFrame for Refusal {
    const FIELDS: &'static [(Field, usize)] = &[
        (Field::RefusalReason, offset_of!(Refusal, reason)),
        (Field::Reserved, offset_of!(Refusal, reserved)),
    ];
}

impl Refusal {
    /// Encodes the refusal of the connection whose Attach carried `epoch`.
    #[must_use]
    pub const fn new(epoch: Epoch, reason: RefusalReason) -> Self {
        Self {
            header: SessionHeader::new(SessionKind::Refusal, 0, epoch, Sequence(0), Sequence(0)),
            reason: reason.0,
            reserved: [0; 7],
        }
    }

    /// The bytes of the frame, as they are sent to a peer.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; SESSION_REFUSAL_BYTES] {
        zerocopy::transmute!(self)
    }
}

/// A frame of a session, parsed in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionFrame<'a> {
    /// A message, or a fragment of one.
    Data(&'a SessionHeader, &'a [u8]),
    /// An acknowledgement of received fragments.
    Acknowledgement(&'a SessionHeader),
    /// The first frame on a connection.
    Attach(AttachParameters),
    /// The connection does not become a rail, or stops being one.
    Refusal(Epoch, RefusalReason),
    /// The peer's last frame.
    Farewell(&'a SessionHeader),
    /// The new handle of the peer's process.
    Moved(&'a SessionHeader, HandleRef<'a>),
    /// Memory of the peer that this side may access, or may no longer access.
    Grant(Granted),
    /// The peer gave up a rail's connection, and asks this side to accept nothing more from it.
    Fence(Fence),
    /// The peer accepts nothing more from a rail's connection.
    Fenced(Fence),
    /// A transfer that the peer begins.
    Open(Open),
    /// The peer's memory for a transfer.
    Take(Take),
    /// An announcement of pieces of a transfer that have landed.
    Landed(Landed),
    /// The pieces of a transfer that the peer has.
    Progress(Progress),
    /// The end of a transfer.
    End(End),
    /// Memory that the peer lends, for written fragments.
    Lend(Lend),
    /// A fragment that was written into memory that the receiver lent.
    Placed(&'a SessionHeader, Placed),
}

impl fmt::Display for SessionFrame<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Data(header, payload) => {
                let (sequence, bytes) = (header.sequence().0, payload.len());
                write!(
                    f,
                    "fragment {sequence} of {bytes} bytes, expecting {}",
                    header.expected().0
                )
            }
            Self::Placed(header, placed) => {
                let sequence = header.sequence().0;
                write!(
                    f,
                    "fragment {sequence} of {placed}, expecting {}",
                    header.expected().0
                )
            }
            Self::Lend(lend) => write!(f, "lends {} bytes", lend.window.length_bytes()),
            Self::Acknowledgement(header) => {
                write!(f, "acknowledgement, expecting {}", header.expected().0)
            }
            Self::Attach(attach) => {
                let (session, rail, epoch) = (attach.session, attach.rail, attach.epoch.to_u32());
                write!(f, "attach of rail {rail} to session {session}, epoch {epoch}")
            }
            Self::Refusal(epoch, reason) => write!(f, "refusal of epoch {}: {reason}", epoch.to_u32()),
            Self::Farewell(header) => write!(f, "farewell before fragment {}", header.sequence().0),
            Self::Moved(header, _) => write!(f, "moved, handle {}", header.sequence().0),
            Self::Grant(granted) => match granted.window {
                Some((window, _)) => {
                    let bytes = window.length_bytes();
                    write!(f, "grant {} of {bytes} bytes", granted.number)
                }
                None => write!(f, "grant {} withdrawn", granted.number),
            },
            Self::Fence(fence) => write!(f, "fence of {fence}"),
            Self::Fenced(fence) => write!(f, "answer to the fence of {fence}"),
            Self::Open(open) => {
                let (transfer, bytes) = (open.transfer, open.pieces.bytes());
                write!(
                    f,
                    "transfer {transfer} of {bytes} bytes, tag {}: the sender {}s",
                    open.tag, open.role
                )
            }
            Self::Take(take) => write!(f, "memory for transfer {}", take.transfer),
            Self::Landed(landed) => {
                let Landed {
                    transfer,
                    first,
                    count,
                    question,
                    ..
                } = landed;
                write!(
                    f,
                    "{count} pieces of transfer {transfer} from {first}, question {question}"
                )
            }
            Self::Progress(progress) => {
                let Progress {
                    transfer,
                    base,
                    question,
                    ..
                } = progress;
                write!(
                    f,
                    "transfer {transfer} up to piece {base}, answer to question {question}"
                )
            }
            Self::End(end) => {
                let what = if end.is_answer { "answer to the end" } else { "end" };
                write!(f, "{what} of transfer {}: {}", end.transfer, end.reason)
            }
        }
    }
}

impl<'a> SessionFrame<'a> {
    /// Parses a message as a frame.
    ///
    /// # Errors
    /// The first wrong field.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let Ok((header, payload)) = SessionHeader::ref_from_prefix(bytes) else {
            return Err(WireError::truncated(PART, SessionHeader::FIELDS, 0, bytes.len()));
        };
        let kind = header.check()?;
        match kind {
            SessionKind::Data => {
                // A message may be empty, but a fragment of a longer message may not: fewer fragments would suffice.
                if payload.is_empty() && !(header.is_first() && header.is_last()) {
                    let offset = SESSION_HEADER_BYTES;
                    return Err(WireError::new(PART, Field::Payload, offset, Reason::NotCanonical));
                }
                Ok(Self::Data(header, payload))
            }
            SessionKind::Acknowledgement | SessionKind::Farewell if !payload.is_empty() => {
                Err(trailing(SESSION_HEADER_BYTES))
            }
            SessionKind::Acknowledgement => Ok(Self::Acknowledgement(header)),
            SessionKind::Farewell => Ok(Self::Farewell(header)),
            SessionKind::Attach => Ok(Self::Attach(Attach::whole(bytes)?.check()?)),
            SessionKind::Refusal => {
                let refusal = header.alone::<Refusal>(bytes)?;
                if refusal.reserved != [0; 7] {
                    return Err(Refusal::wrong(Field::Reserved, Reason::NotZero));
                }
                Ok(Self::Refusal(header.epoch(), RefusalReason(refusal.reason)))
            }
            SessionKind::Moved => {
                header.check_acknowledges_nothing()?;
                let handle = Handle::parse(payload)?;
                if handle.as_bytes().len() < payload.len() {
                    let end = SESSION_HEADER_BYTES.saturating_add(handle.as_bytes().len());
                    return Err(trailing(end));
                }
                Ok(Self::Moved(header, handle))
            }
            SessionKind::Grant => Ok(Self::Grant(header.alone::<Grant>(bytes)?.check()?)),
            SessionKind::Fence => Ok(Self::Fence(header.alone::<FenceFrame>(bytes)?.check()?)),
            SessionKind::Fenced => Ok(Self::Fenced(header.alone::<FenceFrame>(bytes)?.check()?)),
            SessionKind::Open => Ok(Self::Open(header.alone::<OpenFrame>(bytes)?.check()?)),
            SessionKind::Take => Ok(Self::Take(header.alone::<TakeFrame>(bytes)?.check()?)),
            SessionKind::Landed => Ok(Self::Landed(header.alone::<LandedFrame>(bytes)?.check()?)),
            SessionKind::Progress => Ok(Self::Progress(header.alone::<ProgressFrame>(bytes)?.check()?)),
            SessionKind::End => Ok(Self::End(header.alone::<EndFrame>(bytes)?.check()?)),
            SessionKind::Lend => Ok(Self::Lend(header.alone::<LendFrame>(bytes)?.check()?)),
            SessionKind::Placed => Ok(Self::Placed(header, PlacedFrame::whole(bytes)?.check()?)),
        }
    }
}

const PART: Part = Part::SessionFrame;

/// The fixed part of a frame, parsed in place.
pub(super) trait FixedFrame: Sized + FromBytes + KnownLayout + Immutable + Unaligned {
    /// The fields in the order of their offsets: those of the header, or those after it.
    const FIELDS: &'static [(Field, usize)];

    /// Parses bytes that are exactly this frame.
    fn whole(bytes: &[u8]) -> Result<&Self, WireError> {
        Self::ref_from_bytes(bytes).map_err(|_| {
            if bytes.len() < size_of::<Self>() {
                WireError::truncated(PART, Self::FIELDS, 0, bytes.len())
            } else {
                trailing(size_of::<Self>())
            }
        })
    }

    /// The error of one of the fields.
    fn wrong(field: Field, reason: Reason) -> WireError {
        WireError::at(PART, Self::FIELDS, 0, field, reason)
    }

    /// Parses a window that the peer may write to. Its length must not be zero, and its rights must not be stated.
    fn memory(window: [u8; REMOTE_WINDOW_BYTES]) -> Result<RemoteWindow, WireError> {
        let window = RemoteWindow::from_bytes(window);
        if window.length_bytes() == 0 {
            return Err(Self::wrong(Field::GrantWindow, Reason::Zero));
        }
        if window.access_bits() != 0 {
            return Err(Self::wrong(Field::GrantWindow, Reason::NotZero));
        }
        Ok(window)
    }
}

/// The error of bytes after the frame, which ends at `end`.
fn trailing(end: usize) -> WireError {
    WireError::new(PART, Field::Trailing, end, Reason::TooLong)
}
