//! The frames of the handshake: their header, their kinds, and how to parse and encode them.

use core::fmt;
use core::mem::{offset_of, size_of};

use heapless::Vec;
use static_assertions::const_assert_eq;
use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::endpoint::{ENDPOINT_BYTES_MAX, PRIVATE_DATA_BYTES_MAX, endpoint_bytes};
use super::greeting::{HELLO_BYTES_MIN, RAIL_LIST_BYTES_MAX, welcome_bytes};
use super::reject::REJECT_BYTES;
use super::{
    AdvertisedRail, Connect, Endpoint, Field, Hello, HelloRef, Part, RAILS_MAX, Reason, Reject, TAG_BYTES,
    Tag, VERSION, VERSION_AUTHENTICATED, VERSION_OLDEST, Welcome, WelcomeRef, WireError,
};

/// The bytes of the header of every frame.
pub const FRAME_HEADER_BYTES: usize = size_of::<RawHeader>();

/// The maximum bytes of a frame, header included. A frame that announces more is refused.
pub const FRAME_BYTES_MAX: usize = 2560;

/// The maximum bytes of a body.
pub const FRAME_BODY_BYTES_MAX: usize = FRAME_BYTES_MAX - FRAME_HEADER_BYTES;

/// The bytes of a Reject frame, header included.
pub const REJECT_FRAME_BYTES: usize = FRAME_HEADER_BYTES + REJECT_BYTES;

/// The maximum bytes of a Connect or Accept frame, header and tag included.
pub const ENDPOINT_FRAME_BYTES_MAX: usize = FRAME_HEADER_BYTES + ENDPOINT_BYTES_MAX + TAG_BYTES;

/// The maximum bytes of a Ready frame, header and tag included.
pub const READY_FRAME_BYTES_MAX: usize = FRAME_HEADER_BYTES + TAG_BYTES;

/// The body ends with a tag.
const FLAG_TAGGED: u16 = 1;

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

const_assert_eq!(size_of::<RawHeader>(), 10);

const HEADER_LAYOUT: &[(Field, usize)] = &[
    (Field::Magic, offset_of!(RawHeader, magic)),
    (Field::Version, offset_of!(RawHeader, version)),
    (Field::Kind, offset_of!(RawHeader, kind)),
    (Field::Flags, offset_of!(RawHeader, flags)),
    (Field::BodyLength, offset_of!(RawHeader, body_bytes)),
];

/// The kinds of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FrameKind {
    /// From initiator to responder: its instance, the listener in its handle, its versions and its rails.
    Hello = 1,
    /// From responder to initiator: its instance, the chosen version and its rails.
    Welcome = 2,
    /// From initiator to responder: the chosen rails and the initiator's endpoint.
    Connect = 3,
    /// From responder to initiator: its endpoint, which is in RTS.
    Accept = 4,
    /// In both directions: the sender's queue pair can receive and send.
    Ready = 5,
    /// In both directions: the sender ends the handshake for a reason.
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

    /// The number of the kind.
    #[must_use]
    pub const fn to_wire(self) -> u8 {
        self as u8
    }

    /// The maximum body length in `version`, without a tag.
    const fn body_bytes_max(self, version: u8) -> usize {
        match self {
            // A newer side may add fields to its Hello that this version skips.
            Self::Hello => FRAME_BODY_BYTES_MAX,
            Self::Welcome => welcome_bytes(version).saturating_add(RAIL_LIST_BYTES_MAX),
            Self::Connect | Self::Accept => endpoint_bytes(version).saturating_add(PRIVATE_DATA_BYTES_MAX),
            Self::Ready => 0,
            Self::Reject => REJECT_BYTES,
        }
    }

    /// The minimum body length in `version`, without a tag.
    const fn body_bytes_min(self, version: u8) -> usize {
        match self {
            Self::Hello => HELLO_BYTES_MIN,
            Self::Welcome => welcome_bytes(version),
            Self::Connect | Self::Accept => endpoint_bytes(version),
            Self::Ready => 0,
            Self::Reject => REJECT_BYTES,
        }
    }

    /// The newest version that the header may have. A Hello and a Reject always have the oldest version, since their sender
    /// may not know the peer's versions.
    const fn version_max(self) -> u8 {
        match self {
            Self::Hello | Self::Reject => VERSION_OLDEST,
            Self::Welcome | Self::Connect | Self::Accept | Self::Ready => VERSION,
        }
    }

    /// The part of the wire format for errors in the body.
    pub(crate) const fn part(self) -> Part {
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

/// The header of a frame, checked against the limits of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FrameHeader {
    /// The version of the frame.
    pub version: u8,
    /// The kind.
    pub kind: FrameKind,
    /// Whether the body ends with a [`Tag`].
    pub is_tagged: bool,
    /// The length of the body, the tag included.
    pub body_bytes: usize,
}

impl FrameHeader {
    /// Parses the header at the start of `bytes`.
    ///
    /// # Errors
    /// The first wrong field. A length beyond the limit of the kind is refused here, before any
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
        let unknown_version = wrong(Field::Version, offset_of!(RawHeader, version), Reason::Unknown);
        if !(VERSION_OLDEST..=VERSION).contains(&raw.version) {
            return Err(unknown_version);
        }
        let Some(kind) = FrameKind::from_wire(raw.kind) else {
            return Err(wrong(Field::Kind, offset_of!(RawHeader, kind), Reason::Unknown));
        };
        if raw.version > kind.version_max() {
            return Err(unknown_version);
        }
        let flags = raw.flags.get();
        let may_be_tagged = raw.version >= VERSION_AUTHENTICATED;
        if flags != 0 && !(may_be_tagged && flags == FLAG_TAGGED) {
            return Err(wrong(Field::Flags, offset_of!(RawHeader, flags), Reason::NotZero));
        }
        let is_tagged = flags == FLAG_TAGGED;
        let tag_bytes = if is_tagged { TAG_BYTES } else { 0 };
        let body_bytes = usize::from(raw.body_bytes.get());
        if body_bytes > kind.body_bytes_max(raw.version).saturating_add(tag_bytes) {
            return Err(wrong(
                Field::BodyLength,
                offset_of!(RawHeader, body_bytes),
                Reason::TooLong,
            ));
        }
        if body_bytes < kind.body_bytes_min(raw.version).saturating_add(tag_bytes) {
            return Err(wrong(
                Field::BodyLength,
                offset_of!(RawHeader, body_bytes),
                Reason::OutOfRange,
            ));
        }
        Ok(Self {
            version: raw.version,
            kind,
            is_tagged,
            body_bytes,
        })
    }

    /// The length of the whole frame.
    #[must_use]
    pub const fn frame_bytes(&self) -> usize {
        self.body_bytes.saturating_add(FRAME_HEADER_BYTES)
    }

    /// The offset of the tag, if there is one, in bytes from the start of the frame; without a tag, the frame's end.
    const fn tag_offset(&self) -> usize {
        let tag_bytes = if self.is_tagged { TAG_BYTES } else { 0 };
        self.frame_bytes().saturating_sub(tag_bytes)
    }
}

/// A checked frame.
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
    /// The sender's queue pair can receive and send.
    Ready,
    /// The sender ends the handshake.
    Reject(Reject),
}

impl fmt::Display for Frame<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hello(HelloRef { hello, rails }) => {
                let (initiator, versions, rails) = (hello.initiator, hello.versions, rails.iter().count());
                write!(f, "Hello of {initiator}, versions {versions}, {rails} rails")
            }
            Self::Welcome(WelcomeRef { welcome, rails }) => {
                let (listener, version, rails) = (welcome.listener, welcome.version, rails.iter().count());
                write!(f, "Welcome of {listener}, version {version}, {rails} rails")
            }
            Self::Connect(Connect { endpoint, .. }) => write!(f, "Connect of {endpoint}"),
            Self::Accept(Connect { endpoint, .. }) => write!(f, "Accept of {endpoint}"),
            Self::Ready => f.write_str("Ready"),
            Self::Reject(reject) => write!(f, "Reject: {reject}"),
        }
    }
}

impl<'a> Frame<'a> {
    /// Parses one complete frame. It does not check the tag, which needs the key.
    ///
    /// # Errors
    /// The first wrong field. Bytes after the frame are an error, too.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let header = FrameHeader::parse(bytes)?;
        let part = header.kind.part();
        let end = header.frame_bytes();
        let body = bytes
            .get(FRAME_HEADER_BYTES..bytes.len().min(header.tag_offset()))
            .unwrap_or_default();
        let frame = match header.kind {
            FrameKind::Hello => Self::Hello(HelloRef::parse(body)?),
            FrameKind::Welcome => Self::Welcome(WelcomeRef::parse(header.version, body)?),
            FrameKind::Connect => {
                let (endpoint, peer_rail) = Endpoint::parse(part, FRAME_HEADER_BYTES, header.version, body)?;
                Self::Connect(Connect { endpoint, peer_rail })
            }
            FrameKind::Accept => {
                let (endpoint, peer_rail) = Endpoint::parse(part, FRAME_HEADER_BYTES, header.version, body)?;
                Self::Accept(Connect { endpoint, peer_rail })
            }
            FrameKind::Ready => Self::Ready,
            FrameKind::Reject => Self::Reject(Reject::parse(body)?),
        };
        if bytes.len() < end {
            let (field, offset) = if bytes.len() >= header.tag_offset() {
                (Field::Tag, header.tag_offset())
            } else {
                (Field::Trailing, bytes.len())
            };
            return Err(WireError::new(part, field, offset, Reason::Truncated));
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

/// One encoded frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameBuffer {
    bytes: Vec<u8, FRAME_BYTES_MAX>,
}

impl FrameBuffer {
    /// A Hello with the complete list of the initiator's rails.
    #[must_use]
    pub fn hello(hello: &Hello, rails: &Vec<AdvertisedRail, RAILS_MAX>) -> Self {
        Self::new(VERSION_OLDEST, FrameKind::Hello, &hello.encode(rails))
    }

    /// A Welcome with the complete list of the responder's rails.
    #[must_use]
    pub fn welcome(welcome: &Welcome, rails: &Vec<AdvertisedRail, RAILS_MAX>) -> Self {
        Self::new(welcome.version, FrameKind::Welcome, &welcome.encode(rails))
    }

    /// A Connect in `version`.
    #[must_use]
    pub fn connect(version: u8, connect: &Connect) -> Self {
        let body = connect.endpoint.encode(version, connect.peer_rail);
        Self::new(version, FrameKind::Connect, &body)
    }

    /// An Accept in `version`.
    #[must_use]
    pub fn accept(version: u8, accept: &Connect) -> Self {
        let body = accept.endpoint.encode(version, accept.peer_rail);
        Self::new(version, FrameKind::Accept, &body)
    }

    /// A Ready in `version`.
    #[must_use]
    pub fn ready(version: u8) -> Self {
        Self::new(version, FrameKind::Ready, &[])
    }

    /// A Reject.
    #[must_use]
    pub fn reject(reject: &Reject) -> Self {
        Self::new(VERSION_OLDEST, FrameKind::Reject, &reject.encode())
    }

    /// The frame with a tag, which `tag` computes from all bytes before it. A Hello, a Reject and frames of
    /// version 1 cannot have a tag.
    #[must_use]
    pub fn tagged(self, tag: impl FnOnce(&[u8]) -> Tag) -> Self {
        let mut bytes = self.bytes;
        let body_bytes = bytes
            .len()
            .saturating_sub(FRAME_HEADER_BYTES)
            .saturating_add(TAG_BYTES);
        if let Ok((header, _)) = RawHeader::mut_from_prefix(&mut bytes) {
            header.flags = U16::new(FLAG_TAGGED);
            header.body_bytes = U16::new(u16::try_from(body_bytes).unwrap_or(u16::MAX));
        }
        let Tag(tag) = tag(&bytes);
        // Every body with a tag is within FRAME_BODY_BYTES_MAX.
        let _ = bytes.extend_from_slice(&tag);
        Self { bytes }
    }

    /// The frame's bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn new(version: u8, kind: FrameKind, body: &[u8]) -> Self {
        let header = RawHeader {
            magic: U32::new(MAGIC),
            version,
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
