//! The frames of the handshake: header, kinds, and the bodies but for the endpoint's.

use core::fmt;
use core::mem::{offset_of, size_of};

use heapless::Vec;
use static_assertions::{const_assert, const_assert_eq};
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::frame_body::{ENDPOINT_BYTES, ENDPOINT_BYTES_MAX};
use super::{
    AdvertisedRail, Endpoint, Field, InstanceId, Nonce, Part, RAIL_BYTES_MAX, RAILS_MAX, Rails, Reason,
    VERSION, VersionRange, WireError,
};

/// The header before every body, in bytes.
pub const FRAME_HEADER_BYTES: usize = size_of::<RawHeader>();

/// The longest frame, header included: a hard cap, whatever a peer announces.
pub const FRAME_BYTES_MAX: usize = 2560;

/// The longest body.
pub const FRAME_BODY_BYTES_MAX: usize = FRAME_BYTES_MAX - FRAME_HEADER_BYTES;

/// A Reject frame, header included.
pub const REJECT_FRAME_BYTES: usize = FRAME_HEADER_BYTES + size_of::<RawReject>();

/// The longest list of rails.
const RAIL_LIST_BYTES_MAX: usize = RAILS_MAX * RAIL_BYTES_MAX;

/// The longest Connect or Accept frame, header included.
pub const ENDPOINT_FRAME_BYTES_MAX: usize = FRAME_HEADER_BYTES + ENDPOINT_BYTES_MAX;

/// "DBLF".
const MAGIC: u32 = 0x4442_4c46;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHeader {
    magic: U32,
    version: u8,
    kind: u8,
    flags: U16,
    body_bytes: U16,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHello {
    version_min: u8,
    version_max: u8,
    rail_count: u8,
    reserved: u8,
    instance: U64,
    listener: U64,
    nonce: [u8; 16],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawWelcome {
    version: u8,
    rail_count: u8,
    reserved: U16,
    instance: U64,
    nonce: [u8; 16],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawReject {
    reason: U16,
    reserved: U16,
    detail: U32,
}

const_assert_eq!(size_of::<RawHeader>(), 10);
const_assert_eq!(size_of::<RawHello>(), 36);
const_assert_eq!(size_of::<RawWelcome>(), 28);
const_assert_eq!(size_of::<RawReject>(), 8);

/// The longest bodies of this version.
const HELLO_BYTES_MAX: usize = size_of::<RawHello>() + RAIL_LIST_BYTES_MAX;
const WELCOME_BYTES_MAX: usize = size_of::<RawWelcome>() + RAIL_LIST_BYTES_MAX;

const_assert!(HELLO_BYTES_MAX <= FRAME_BODY_BYTES_MAX);

const HEADER_LAYOUT: &[(Field, usize)] = &[
    (Field::Magic, offset_of!(RawHeader, magic)),
    (Field::Version, offset_of!(RawHeader, version)),
    (Field::Kind, offset_of!(RawHeader, kind)),
    (Field::Flags, offset_of!(RawHeader, flags)),
    (Field::BodyLength, offset_of!(RawHeader, body_bytes)),
];

const HELLO_LAYOUT: &[(Field, usize)] = &[
    (Field::VersionMin, offset_of!(RawHello, version_min)),
    (Field::Version, offset_of!(RawHello, version_max)),
    (Field::RailCount, offset_of!(RawHello, rail_count)),
    (Field::Reserved, offset_of!(RawHello, reserved)),
    (Field::Instance, offset_of!(RawHello, instance)),
    (Field::ListenerInstance, offset_of!(RawHello, listener)),
    (Field::Nonce, offset_of!(RawHello, nonce)),
];

const WELCOME_LAYOUT: &[(Field, usize)] = &[
    (Field::Version, offset_of!(RawWelcome, version)),
    (Field::RailCount, offset_of!(RawWelcome, rail_count)),
    (Field::Reserved, offset_of!(RawWelcome, reserved)),
    (Field::Instance, offset_of!(RawWelcome, instance)),
    (Field::Nonce, offset_of!(RawWelcome, nonce)),
];

const REJECT_LAYOUT: &[(Field, usize)] = &[
    (Field::RejectReason, offset_of!(RawReject, reason)),
    (Field::Reserved, offset_of!(RawReject, reserved)),
    (Field::RejectDetail, offset_of!(RawReject, detail)),
];

/// The kinds of frames of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FrameKind {
    /// Initiator to responder: who calls, whom it means, what it speaks, where it can be reached.
    Hello = 1,
    /// Responder to initiator: the version, and where it can be reached.
    Welcome = 2,
    /// Initiator to responder: the rails chosen and the initiator's endpoint.
    Connect = 3,
    /// Responder to initiator: its endpoint, which is ready to receive.
    Accept = 4,
    /// Either way: the sender's queue pair receives and sends.
    Ready = 5,
    /// Either way: the sender gives up, and why.
    Reject = 6,
}

impl FrameKind {
    /// The kind with this number.
    #[must_use]
    pub const fn from_wire(raw: u8) -> Option<Self> {
        match raw {
            1 => Some(Self::Hello),
            2 => Some(Self::Welcome),
            3 => Some(Self::Connect),
            4 => Some(Self::Accept),
            5 => Some(Self::Ready),
            6 => Some(Self::Reject),
            _ => None,
        }
    }

    /// Its number.
    #[must_use]
    pub const fn to_wire(self) -> u8 {
        self as u8
    }

    /// The longest body it may announce.
    const fn body_bytes_max(self) -> usize {
        match self {
            // A newer side may add to its Hello what this version passes over.
            Self::Hello => FRAME_BODY_BYTES_MAX,
            Self::Welcome => WELCOME_BYTES_MAX,
            Self::Connect | Self::Accept => ENDPOINT_BYTES_MAX,
            Self::Ready => 0,
            Self::Reject => size_of::<RawReject>(),
        }
    }

    /// The shortest body it may announce.
    const fn body_bytes_min(self) -> usize {
        match self {
            Self::Hello => size_of::<RawHello>(),
            Self::Welcome => size_of::<RawWelcome>(),
            Self::Connect | Self::Accept => ENDPOINT_BYTES,
            Self::Ready => 0,
            Self::Reject => size_of::<RawReject>(),
        }
    }

    const fn part(self) -> Part {
        match self {
            Self::Hello => Part::Hello,
            Self::Welcome => Part::Welcome,
            Self::Connect => Part::Connect,
            Self::Accept => Part::Accept,
            Self::Ready => Part::Ready,
            Self::Reject => Part::Reject,
        }
    }
}

impl fmt::Display for FrameKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.part(), f)
    }
}

/// The header of a frame, checked against what its kind allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FrameHeader {
    /// The kind.
    pub kind: FrameKind,
    /// The length of the body that follows.
    pub body_bytes: usize,
}

impl FrameHeader {
    /// Reads the header at the start of `bytes`.
    ///
    /// # Errors
    /// The first field that is wrong. A length beyond the kind's cap is refused here, before a
    /// byte of the body is read.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let wrong = |field, offset, reason| WireError::new(Part::FrameHeader, field, offset, reason);
        let Ok((raw, _)) = RawHeader::ref_from_prefix(bytes) else {
            return Err(WireError::truncated(
                Part::FrameHeader,
                HEADER_LAYOUT,
                0,
                bytes.len(),
            ));
        };
        if raw.magic.get() != MAGIC {
            return Err(wrong(Field::Magic, offset_of!(RawHeader, magic), Reason::Unknown));
        }
        if raw.version != VERSION {
            return Err(wrong(
                Field::Version,
                offset_of!(RawHeader, version),
                Reason::Unknown,
            ));
        }
        let Some(kind) = FrameKind::from_wire(raw.kind) else {
            return Err(wrong(Field::Kind, offset_of!(RawHeader, kind), Reason::Unknown));
        };
        if raw.flags.get() != 0 {
            return Err(wrong(Field::Flags, offset_of!(RawHeader, flags), Reason::NotZero));
        }
        let body_bytes = usize::from(raw.body_bytes.get());
        if body_bytes > kind.body_bytes_max() {
            return Err(wrong(
                Field::BodyLength,
                offset_of!(RawHeader, body_bytes),
                Reason::TooLong,
            ));
        }
        if body_bytes < kind.body_bytes_min() {
            return Err(wrong(
                Field::BodyLength,
                offset_of!(RawHeader, body_bytes),
                Reason::OutOfRange,
            ));
        }
        Ok(Self { kind, body_bytes })
    }

    /// The length of the whole frame.
    #[must_use]
    pub const fn frame_bytes(&self) -> usize {
        self.body_bytes.saturating_add(FRAME_HEADER_BYTES)
    }
}

/// What the initiator says first, without its rails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The versions it speaks.
    pub versions: VersionRange,
    /// Its own instance.
    pub initiator: InstanceId,
    /// The listener it means, from the handle; `None` where it was given an address only.
    pub listener: Option<InstanceId>,
    /// Its nonce.
    pub nonce: Nonce,
}

/// What the responder answers, without its rails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The version the rest of the handshake is in.
    pub version: u8,
    /// Its instance.
    pub listener: InstanceId,
    /// Its nonce.
    pub nonce: Nonce,
}

/// An endpoint and the receiver's rail it connects to: the content of Connect and Accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect {
    /// The sender's endpoint.
    pub endpoint: Endpoint,
    /// The index of the receiver's rail in the list the receiver advertised.
    pub peer_rail: u8,
}

/// Why a side gives up, as it tells the other: an integer newtype, since a newer side may know more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RejectReason(pub u16);

impl RejectReason {
    /// No version is spoken by both. Detail: oldest in bits 15 to 8, newest in bits 7 to 0.
    pub const VERSION: Self = Self(1);
    /// The handle is of a listener that is gone.
    pub const STALE_HANDLE: Self = Self(2);
    /// No rail of the one reaches a rail of the other.
    pub const NO_COMMON_SUBNET: Self = Self(3);
    /// A frame was not valid wire format. Detail: the offset of the field.
    pub const MALFORMED: Self = Self(4);
    /// A valid frame came when it was not its turn. Detail: its kind.
    pub const UNEXPECTED: Self = Self(5);
    /// A deadline passed. Detail: the number of the stage.
    pub const TIMED_OUT: Self = Self(6);
    /// The side has no room for another connection.
    pub const BUSY: Self = Self(7);
    /// The side could not create or set up its queue pair. Detail: its errno.
    pub const QUEUE_PAIR: Self = Self(8);
    /// The settings of the other side cannot be served.
    pub const PARAMETERS: Self = Self(9);
    /// The side is closing.
    pub const CLOSING: Self = Self(10);
    /// The application does not want this connection. Detail: its own.
    pub const APPLICATION: Self = Self(11);
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match *self {
            Self::VERSION => "no version of the wire format in common",
            Self::STALE_HANDLE => "the handle is of a listener that is gone",
            Self::NO_COMMON_SUBNET => "no subnet in common",
            Self::MALFORMED => "a malformed frame",
            Self::UNEXPECTED => "a frame out of turn",
            Self::TIMED_OUT => "a deadline passed",
            Self::BUSY => "no room for another connection",
            Self::QUEUE_PAIR => "its queue pair could not be set up",
            Self::PARAMETERS => "settings it cannot serve",
            Self::CLOSING => "it is closing",
            Self::APPLICATION => "the application declined",
            Self(other) => return write!(f, "unknown reason {other}"),
        };
        f.write_str(text)
    }
}

/// A rejection: a reason and a number that tells more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reject {
    /// Why.
    pub reason: RejectReason,
    /// What the reason says it is, zero where it says nothing.
    pub detail: u32,
}

impl Reject {
    /// A rejection that needs no number.
    #[must_use]
    pub const fn new(reason: RejectReason) -> Self {
        Self { reason, detail: 0 }
    }
}

impl fmt::Display for Reject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.reason)?;
        if self.detail == 0 {
            Ok(())
        } else {
            write!(f, " (detail {})", self.detail)
        }
    }
}

/// A Hello with the initiator's rails, in the bytes it came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HelloRef<'a> {
    /// The fixed part.
    pub hello: Hello,
    /// The complete list of the initiator's rails.
    pub rails: Rails<'a>,
}

/// A Welcome with the responder's rails, in the bytes it came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WelcomeRef<'a> {
    /// The fixed part.
    pub welcome: Welcome,
    /// The complete list of the responder's rails.
    pub rails: Rails<'a>,
}

/// A frame, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Frame<'a> {
    /// The first frame of the initiator.
    Hello(HelloRef<'a>),
    /// The first frame of the responder.
    Welcome(WelcomeRef<'a>),
    /// The initiator's endpoint.
    Connect(Connect),
    /// The responder's endpoint.
    Accept(Connect),
    /// The sender's queue pair receives and sends.
    Ready,
    /// The sender gives up.
    Reject(Reject),
}

impl<'a> Frame<'a> {
    /// Reads one whole frame.
    ///
    /// # Errors
    /// The first field that is wrong, bytes after the frame included.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let header = FrameHeader::parse(bytes)?;
        let part = header.kind.part();
        let end = header.frame_bytes();
        let body = bytes
            .get(FRAME_HEADER_BYTES..bytes.len().min(end))
            .unwrap_or_default();
        let frame = match header.kind {
            FrameKind::Hello => Self::Hello(parse_hello(body)?),
            FrameKind::Welcome => Self::Welcome(parse_welcome(body)?),
            FrameKind::Connect => {
                let (endpoint, peer_rail) = Endpoint::parse(part, FRAME_HEADER_BYTES, body)?;
                Self::Connect(Connect { endpoint, peer_rail })
            }
            FrameKind::Accept => {
                let (endpoint, peer_rail) = Endpoint::parse(part, FRAME_HEADER_BYTES, body)?;
                Self::Accept(Connect { endpoint, peer_rail })
            }
            FrameKind::Ready => Self::Ready,
            FrameKind::Reject => Self::Reject(parse_reject(body)?),
        };
        if bytes.len() < end {
            return Err(WireError::new(
                part,
                Field::Trailing,
                bytes.len(),
                Reason::Truncated,
            ));
        }
        if bytes.len() > end {
            return Err(WireError::new(part, Field::Trailing, end, Reason::TooLong));
        }
        Ok(frame)
    }

    /// The kind.
    #[must_use]
    pub const fn kind(&self) -> FrameKind {
        match self {
            Self::Hello(_) => FrameKind::Hello,
            Self::Welcome(_) => FrameKind::Welcome,
            Self::Connect(_) => FrameKind::Connect,
            Self::Accept(_) => FrameKind::Accept,
            Self::Ready => FrameKind::Ready,
            Self::Reject(_) => FrameKind::Reject,
        }
    }
}

fn parse_hello(body: &[u8]) -> Result<HelloRef<'_>, WireError> {
    let wrong = |field, offset: usize, reason| {
        WireError::new(
            Part::Hello,
            field,
            FRAME_HEADER_BYTES.saturating_add(offset),
            reason,
        )
    };
    let Ok((raw, listed)) = RawHello::ref_from_prefix(body) else {
        return Err(WireError::truncated(
            Part::Hello,
            HELLO_LAYOUT,
            FRAME_HEADER_BYTES,
            body.len(),
        ));
    };
    let Some(versions) = VersionRange::new(raw.version_min, raw.version_max) else {
        let reason = if raw.version_min == 0 {
            Reason::Zero
        } else {
            Reason::Mismatch
        };
        return Err(wrong(
            Field::VersionMin,
            offset_of!(RawHello, version_min),
            reason,
        ));
    };
    // What version 1 says must be zero or absent, a newer one may have given a meaning.
    let from_newer = versions.newest() > VERSION;
    if raw.reserved != 0 && !from_newer {
        return Err(wrong(
            Field::Reserved,
            offset_of!(RawHello, reserved),
            Reason::NotZero,
        ));
    }
    let Some(initiator) = InstanceId::new(raw.instance.get()) else {
        return Err(wrong(
            Field::Instance,
            offset_of!(RawHello, instance),
            Reason::Zero,
        ));
    };
    check_rail_count(Part::Hello, raw.rail_count, offset_of!(RawHello, rail_count))?;
    let base = FRAME_HEADER_BYTES.saturating_add(size_of::<RawHello>());
    let (rails, after) = Rails::parse(Part::Hello, base, listed, raw.rail_count, from_newer)?;
    if !after.is_empty() && !from_newer {
        return Err(wrong(
            Field::Trailing,
            body.len().saturating_sub(after.len()),
            Reason::TooLong,
        ));
    }
    let hello = Hello {
        versions,
        initiator,
        listener: InstanceId::new(raw.listener.get()),
        nonce: Nonce(raw.nonce),
    };
    Ok(HelloRef { hello, rails })
}

fn parse_welcome(body: &[u8]) -> Result<WelcomeRef<'_>, WireError> {
    let wrong = |field, offset: usize, reason| {
        WireError::new(
            Part::Welcome,
            field,
            FRAME_HEADER_BYTES.saturating_add(offset),
            reason,
        )
    };
    let Ok((raw, listed)) = RawWelcome::ref_from_prefix(body) else {
        return Err(WireError::truncated(
            Part::Welcome,
            WELCOME_LAYOUT,
            FRAME_HEADER_BYTES,
            body.len(),
        ));
    };
    if raw.version == 0 {
        return Err(wrong(
            Field::Version,
            offset_of!(RawWelcome, version),
            Reason::Zero,
        ));
    }
    if raw.reserved.get() != 0 {
        return Err(wrong(
            Field::Reserved,
            offset_of!(RawWelcome, reserved),
            Reason::NotZero,
        ));
    }
    let Some(listener) = InstanceId::new(raw.instance.get()) else {
        return Err(wrong(
            Field::Instance,
            offset_of!(RawWelcome, instance),
            Reason::Zero,
        ));
    };
    check_rail_count(Part::Welcome, raw.rail_count, offset_of!(RawWelcome, rail_count))?;
    let base = FRAME_HEADER_BYTES.saturating_add(size_of::<RawWelcome>());
    let (rails, after) = Rails::parse(Part::Welcome, base, listed, raw.rail_count, false)?;
    if !after.is_empty() {
        return Err(wrong(
            Field::Trailing,
            body.len().saturating_sub(after.len()),
            Reason::TooLong,
        ));
    }
    Ok(WelcomeRef {
        welcome: Welcome {
            version: raw.version,
            listener,
            nonce: Nonce(raw.nonce),
        },
        rails,
    })
}

fn check_rail_count(part: Part, count: u8, offset: usize) -> Result<(), WireError> {
    if usize::from(count) > RAILS_MAX {
        let offset = FRAME_HEADER_BYTES.saturating_add(offset);
        return Err(WireError::new(part, Field::RailCount, offset, Reason::OutOfRange));
    }
    Ok(())
}

fn parse_reject(body: &[u8]) -> Result<Reject, WireError> {
    let Ok((raw, _)) = RawReject::ref_from_prefix(body) else {
        return Err(WireError::truncated(
            Part::Reject,
            REJECT_LAYOUT,
            FRAME_HEADER_BYTES,
            body.len(),
        ));
    };
    if raw.reserved.get() != 0 {
        let offset = FRAME_HEADER_BYTES.saturating_add(offset_of!(RawReject, reserved));
        return Err(WireError::new(
            Part::Reject,
            Field::Reserved,
            offset,
            Reason::NotZero,
        ));
    }
    Ok(Reject {
        reason: RejectReason(raw.reason.get()),
        detail: raw.detail.get(),
    })
}

/// One encoded frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameBuffer {
    bytes: Vec<u8, FRAME_BYTES_MAX>,
}

impl FrameBuffer {
    /// A Hello with the complete list of the initiator's rails.
    #[must_use]
    pub fn hello(hello: &Hello, rails: &Vec<AdvertisedRail, RAILS_MAX>) -> Self {
        let raw = RawHello {
            version_min: hello.versions.oldest(),
            version_max: hello.versions.newest(),
            rail_count: rail_count(rails),
            reserved: 0,
            instance: U64::new(hello.initiator.to_u64()),
            listener: U64::new(hello.listener.map_or(0, InstanceId::to_u64)),
            nonce: hello.nonce.0,
        };
        Self::with_rails(FrameKind::Hello, raw.as_bytes(), rails)
    }

    /// A Welcome with the complete list of the responder's rails.
    #[must_use]
    pub fn welcome(welcome: &Welcome, rails: &Vec<AdvertisedRail, RAILS_MAX>) -> Self {
        let raw = RawWelcome {
            version: welcome.version,
            rail_count: rail_count(rails),
            reserved: U16::ZERO,
            instance: U64::new(welcome.listener.to_u64()),
            nonce: welcome.nonce.0,
        };
        Self::with_rails(FrameKind::Welcome, raw.as_bytes(), rails)
    }

    /// A Connect.
    #[must_use]
    pub fn connect(connect: &Connect) -> Self {
        Self::new(FrameKind::Connect, &connect.endpoint.encode(connect.peer_rail))
    }

    /// An Accept.
    #[must_use]
    pub fn accept(accept: &Connect) -> Self {
        Self::new(FrameKind::Accept, &accept.endpoint.encode(accept.peer_rail))
    }

    /// A Ready.
    #[must_use]
    pub fn ready() -> Self {
        Self::new(FrameKind::Ready, &[])
    }

    /// A Reject.
    #[must_use]
    pub fn reject(reject: &Reject) -> Self {
        let raw = RawReject {
            reason: U16::new(reject.reason.0),
            reserved: U16::ZERO,
            detail: U32::new(reject.detail),
        };
        Self::new(FrameKind::Reject, raw.as_bytes())
    }

    /// The frame's bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn with_rails(kind: FrameKind, fixed: &[u8], rails: &Vec<AdvertisedRail, RAILS_MAX>) -> Self {
        // The longest of all; it is asserted to fit a frame.
        let mut body = Vec::<u8, HELLO_BYTES_MAX>::new();
        let _ = body.extend_from_slice(fixed);
        for rail in rails {
            let _ = body.extend_from_slice(&rail.encode());
        }
        Self::new(kind, &body)
    }

    fn new(kind: FrameKind, body: &[u8]) -> Self {
        let header = RawHeader {
            magic: U32::new(MAGIC),
            version: VERSION,
            kind: kind.to_wire(),
            flags: U16::ZERO,
            body_bytes: U16::new(u16::try_from(body.len()).unwrap_or(u16::MAX)),
        };
        let mut bytes = Vec::new();
        // Every body is within FRAME_BODY_BYTES_MAX, so nothing here can be cut.
        let _ = bytes.extend_from_slice(header.as_bytes());
        let _ = bytes.extend_from_slice(body);
        Self { bytes }
    }
}

fn rail_count(rails: &Vec<AdvertisedRail, RAILS_MAX>) -> u8 {
    // RAILS_MAX fits a byte by far.
    u8::try_from(rails.len()).unwrap_or(u8::MAX)
}
