//! The endpoint of a connection, which is the body of both Connect and Accept.

use core::fmt;
use core::mem::{offset_of, size_of};

use heapless::Vec;
use static_assertions::const_assert_eq;
use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::resumption::RawResumption;
use super::{Field, Part, Reason, Resumption, VERSION_AUTHENTICATED, WireError};
use crate::{Gid, Mtu, Psn, Qpn, Rkey};

/// The maximum number of application bytes in a Connect or an Accept.
pub const PRIVATE_DATA_BYTES_MAX: usize = 64;

/// The maximum receive depth that a side may announce: a slot has 16 bits in a `wr_id`.
pub const RECEIVE_DEPTH_MAX: u32 = 1 << 16;

/// The maximum size of a receive that a side may announce: the longest possible message.
///
/// Source: InfiniBand Architecture volume 1, section 9.7.1.5.
pub const SLOT_BYTES_MAX: u32 = 1 << 31;

/// The largest flow label: 20 bits.
pub const FLOW_LABEL_MAX: u32 = 0x000f_ffff;

/// The largest service level: 4 bits.
pub const SERVICE_LEVEL_MAX: u8 = 0xf;

/// The maximum length of the body.
pub(crate) const ENDPOINT_BYTES_MAX: usize = endpoint_bytes(VERSION_AUTHENTICATED) + PRIVATE_DATA_BYTES_MAX;

/// The length of the body in `version`, without private data.
pub(crate) const fn endpoint_bytes(version: u8) -> usize {
    if version < VERSION_AUTHENTICATED {
        size_of::<RawEndpoint>()
    } else {
        SESSION_OFFSET.saturating_add(size_of::<RawResumption>())
    }
}

/// The offset of the session, in the versions that have one.
const SESSION_OFFSET: usize = size_of::<RawEndpoint>();

/// The address of a credit word is a multiple of its size.
const CREDIT_ALIGN_MASK: u64 = 7;

/// Queue pairs 0 and 1 are for subnet management and general management, not for connections.
const QPN_MIN: u32 = 2;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawEndpoint {
    gid: [u8; 16],
    qpn: U32,
    psn: U32,
    mtu: u8,
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
    traffic_class: u8,
    flow_label: U32,
    service_level: u8,
    own_rail: u8,
    peer_rail: u8,
    private_bytes: u8,
    receive_depth: U32,
    slot_bytes: U32,
    credit_address: U64,
    credit_rkey: U32,
    credit_start: U32,
}

const_assert_eq!(size_of::<RawEndpoint>(), 60);
const_assert_eq!(ENDPOINT_BYTES_MAX, 144);
const_assert_eq!(offset_of!(RawEndpoint, qpn), 16);
const_assert_eq!(offset_of!(RawEndpoint, mtu), 24);
const_assert_eq!(offset_of!(RawEndpoint, flow_label), 28);
const_assert_eq!(offset_of!(RawEndpoint, own_rail), 33);
const_assert_eq!(offset_of!(RawEndpoint, receive_depth), 36);
const_assert_eq!(offset_of!(RawEndpoint, credit_address), 44);

pub(super) const LAYOUT: &[(Field, usize)] = &[
    (Field::Gid, offset_of!(RawEndpoint, gid)),
    (Field::Qpn, offset_of!(RawEndpoint, qpn)),
    (Field::Psn, offset_of!(RawEndpoint, psn)),
    (Field::Mtu, offset_of!(RawEndpoint, mtu)),
    (Field::MaxRdAtomic, offset_of!(RawEndpoint, max_rd_atomic)),
    (
        Field::MaxDestRdAtomic,
        offset_of!(RawEndpoint, max_dest_rd_atomic),
    ),
    (Field::TrafficClass, offset_of!(RawEndpoint, traffic_class)),
    (Field::FlowLabel, offset_of!(RawEndpoint, flow_label)),
    (Field::ServiceLevel, offset_of!(RawEndpoint, service_level)),
    (Field::OwnRail, offset_of!(RawEndpoint, own_rail)),
    (Field::PeerRail, offset_of!(RawEndpoint, peer_rail)),
    (Field::PrivateLength, offset_of!(RawEndpoint, private_bytes)),
    (Field::ReceiveDepth, offset_of!(RawEndpoint, receive_depth)),
    (Field::SlotBytes, offset_of!(RawEndpoint, slot_bytes)),
    (Field::CreditAddress, offset_of!(RawEndpoint, credit_address)),
    (Field::CreditRkey, offset_of!(RawEndpoint, credit_rkey)),
    (Field::CreditStart, offset_of!(RawEndpoint, credit_start)),
    (
        Field::Session,
        SESSION_OFFSET.saturating_add(offset_of!(RawResumption, session)),
    ),
    (
        Field::NextSequence,
        SESSION_OFFSET.saturating_add(offset_of!(RawResumption, next_sequence)),
    ),
    (
        Field::Epoch,
        SESSION_OFFSET.saturating_add(offset_of!(RawResumption, epoch)),
    ),
];

/// The settings of a side's queue pair, as the side announces them.
///
/// Depths and sizes are what the side can receive. It sends with this traffic class, flow label and service level, and
/// announces them so that the peer can use the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EndpointParameters {
    /// The present MTU of the side's port; the connection uses the lower MTU of both sides. Default
    /// 1024 bytes, as on a port with an ordinary Ethernet link.
    pub mtu: Mtu,
    /// The READs and atomics that the side wants to have in flight. Default 16, which common
    /// devices grant; a provider must lower it to the limit of its device.
    pub max_rd_atomic: u8,
    /// The READs and atomics that the side serves at a time. Default 16, lowered in the same way.
    pub max_dest_rd_atomic: u8,
    /// The IP traffic class (DSCP and ECN bits) of the side's packets. Default 0.
    pub traffic_class: u8,
    /// The flow label of the side's packets, 20 bits. Default 0.
    pub flow_label: u32,
    /// The service level (priority) of the side's packets, 4 bits. Default 0.
    pub service_level: u8,
    /// The number of receives that the side keeps posted, at most [`RECEIVE_DEPTH_MAX`]. Default 0,
    /// for a side that gets only one-sided requests.
    pub receive_depth: u32,
    /// The bytes of each receive, at most [`SLOT_BYTES_MAX`]. Default 0.
    pub slot_bytes: u32,
}

impl Default for EndpointParameters {
    fn default() -> Self {
        Self {
            mtu: Mtu::B1024,
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            traffic_class: 0,
            flow_label: 0,
            service_level: 0,
            receive_depth: 0,
            slot_bytes: 0,
        }
    }
}

/// The word in which a peer reports the number of its posted receives, so that this side never sends more messages
/// than there are receives.
///
/// The peer writes it by an RDMA WRITE, as two big-endian words. The first is `start` plus the number of receives
/// posted since the connection was made, modulo 2^32. The second is the complement of the first. No device guarantees
/// that eight bytes become visible at once. A mixture of two counts fails the check of the complement.
///
/// The peer does not announce its first receives, since their number is its announced receive depth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CreditWord {
    /// The address of the word, a multiple of eight.
    pub address: u64,
    /// The remote key of the word.
    pub rkey: Rkey,
    /// The count in the word before the first announcement, so that a value of an earlier
    /// connection is not mistaken for an announcement.
    pub start: u32,
}

/// Application bytes that do not fit into the private data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PrivateDataTooLong {
    /// The number of bytes.
    pub bytes: usize,
}

impl fmt::Display for PrivateDataTooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} bytes of private data, but at most {PRIVATE_DATA_BYTES_MAX} fit: send the rest over the channel",
            self.bytes
        )
    }
}

impl core::error::Error for PrivateDataTooLong {}

/// Application bytes in a Connect or an Accept, such as a [`RemoteWindow`](super::RemoteWindow).
#[derive(Clone, Copy)]
pub struct PrivateData {
    bytes: [u8; PRIVATE_DATA_BYTES_MAX],
    length: u8,
}

impl PrivateData {
    /// No bytes.
    pub const EMPTY: Self = Self {
        bytes: [0; PRIVATE_DATA_BYTES_MAX],
        length: 0,
    };

    /// A copy of `bytes`.
    ///
    /// # Errors
    /// There are more than [`PRIVATE_DATA_BYTES_MAX`].
    pub fn new(bytes: &[u8]) -> Result<Self, PrivateDataTooLong> {
        let too_long = PrivateDataTooLong { bytes: bytes.len() };
        let mut data = Self::EMPTY;
        data.bytes
            .get_mut(..bytes.len())
            .ok_or(too_long)?
            .copy_from_slice(bytes);
        data.length = u8::try_from(bytes.len()).map_err(|_| too_long)?;
        Ok(data)
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.length)).unwrap_or_default()
    }
}

impl Default for PrivateData {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl PartialEq for PrivateData {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for PrivateData {}

impl fmt::Debug for PrivateData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateData({:02x?})", self.as_bytes())
    }
}

/// One end of a connection: a queue pair on a rail, and its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The index of the rail in the list that the side advertised.
    pub rail: u8,
    /// The GID of that rail.
    pub gid: Gid,
    /// The queue pair's number.
    pub qpn: Qpn,
    /// The PSN of the first packet that the side sends, random for each attempt.
    pub psn: Psn,
    /// The settings of the queue pair.
    pub parameters: EndpointParameters,
    /// The word in which the peer reports its receives.
    pub credit: CreditWord,
    /// The session that the connection belongs to, if any. Version 1 has no field for it.
    pub session: Option<Resumption>,
    /// Bytes of the application.
    pub private_data: PrivateData,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "queue pair {} at {}, rail {}", self.qpn, self.gid, self.rail)
    }
}

impl Endpoint {
    /// Whether all fields are within their ranges on the wire.
    #[must_use]
    pub fn is_sendable(&self) -> bool {
        self.fault().is_none()
    }

    /// The first field that this version cannot carry.
    pub(crate) fn unsendable(&self, version: u8) -> Option<Field> {
        let has_session = self.session.is_some() && version < VERSION_AUTHENTICATED;
        self.fault().or(has_session.then_some(Field::Session))
    }

    /// The first field that a peer would refuse.
    fn fault(&self) -> Option<Field> {
        let parameters = &self.parameters;
        if self.gid.is_zero() {
            Some(Field::Gid)
        } else if self.qpn.to_u32() < QPN_MIN {
            Some(Field::Qpn)
        } else if parameters.flow_label > FLOW_LABEL_MAX {
            Some(Field::FlowLabel)
        } else if parameters.service_level > SERVICE_LEVEL_MAX {
            Some(Field::ServiceLevel)
        } else if parameters.receive_depth > RECEIVE_DEPTH_MAX {
            Some(Field::ReceiveDepth)
        } else if parameters.slot_bytes > SLOT_BYTES_MAX {
            Some(Field::SlotBytes)
        } else if self.credit.address & CREDIT_ALIGN_MASK != 0 {
            Some(Field::CreditAddress)
        } else {
            None
        }
    }

    /// Parses the body of `part` in `version`, which starts at `base` of its frame. Also returns the receiver's rail.
    pub(crate) fn parse(part: Part, base: usize, version: u8, body: &[u8]) -> Result<(Self, u8), WireError> {
        let truncated = || WireError::truncated(part, LAYOUT, base, body.len());
        let (raw, rest) = RawEndpoint::ref_from_prefix(body).map_err(|_| truncated())?;
        let (session, private) = if version < VERSION_AUTHENTICATED {
            (RawResumption::new(None), rest)
        } else {
            RawResumption::read_from_prefix(rest).map_err(|_| truncated())?
        };
        let wrong = |field, reason| WireError::at(part, LAYOUT, base, field, reason);
        let Some(qpn) = Qpn::new(raw.qpn.get()) else {
            return Err(wrong(Field::Qpn, Reason::OutOfRange));
        };
        let Some(psn) = Psn::new(raw.psn.get()) else {
            return Err(wrong(Field::Psn, Reason::OutOfRange));
        };
        let Some(mtu) = Mtu::from_wire(raw.mtu) else {
            return Err(wrong(Field::Mtu, Reason::Unknown));
        };
        let private_offset = base.saturating_add(endpoint_bytes(version));
        let announced = usize::from(raw.private_bytes);
        if announced > PRIVATE_DATA_BYTES_MAX {
            return Err(wrong(Field::PrivateLength, Reason::TooLong));
        }
        if private.len() < announced {
            return Err(WireError::new(
                part,
                Field::PrivateData,
                private_offset,
                Reason::Truncated,
            ));
        }
        let trailing = WireError::new(
            part,
            Field::Trailing,
            private_offset.saturating_add(announced),
            Reason::TooLong,
        );
        if private.len() > announced {
            return Err(trailing);
        }
        let endpoint = Self {
            rail: raw.own_rail,
            gid: Gid(raw.gid),
            qpn,
            psn,
            parameters: EndpointParameters {
                mtu,
                max_rd_atomic: raw.max_rd_atomic,
                max_dest_rd_atomic: raw.max_dest_rd_atomic,
                traffic_class: raw.traffic_class,
                flow_label: raw.flow_label.get(),
                service_level: raw.service_level,
                receive_depth: raw.receive_depth.get(),
                slot_bytes: raw.slot_bytes.get(),
            },
            credit: CreditWord {
                address: raw.credit_address.get(),
                rkey: Rkey(raw.credit_rkey.get()),
                start: raw.credit_start.get(),
            },
            session: session.to_resumption(),
            private_data: PrivateData::new(private).map_err(|_| trailing)?,
        };
        // Without a session, the fields that describe one have to be zero.
        if endpoint.session.is_none() && session.next_sequence.get() != 0 {
            return Err(wrong(Field::NextSequence, Reason::NotZero));
        }
        if endpoint.session.is_none() && session.epoch.get() != 0 {
            return Err(wrong(Field::Epoch, Reason::NotZero));
        }
        match endpoint.fault() {
            Some(Field::Gid) => Err(wrong(Field::Gid, Reason::Zero)),
            Some(field) => Err(wrong(field, Reason::OutOfRange)),
            None => Ok((endpoint, raw.peer_rail)),
        }
    }

    /// Encodes the body in `version`, with the receiver's rail.
    pub(crate) fn encode(&self, version: u8, peer_rail: u8) -> Vec<u8, ENDPOINT_BYTES_MAX> {
        let parameters = &self.parameters;
        let raw = RawEndpoint {
            gid: self.gid.0,
            qpn: U32::new(self.qpn.to_u32()),
            psn: U32::new(self.psn.to_u32()),
            mtu: parameters.mtu.to_wire(),
            max_rd_atomic: parameters.max_rd_atomic,
            max_dest_rd_atomic: parameters.max_dest_rd_atomic,
            traffic_class: parameters.traffic_class,
            flow_label: U32::new(parameters.flow_label),
            service_level: parameters.service_level,
            own_rail: self.rail,
            peer_rail,
            private_bytes: self.private_data.length,
            receive_depth: U32::new(parameters.receive_depth),
            slot_bytes: U32::new(parameters.slot_bytes),
            credit_address: U64::new(self.credit.address),
            credit_rkey: U32::new(self.credit.rkey.0),
            credit_start: U32::new(self.credit.start),
        };
        let mut body = Vec::new();
        // The capacity is that of the longest body, so nothing here can be cut.
        let _ = body.extend_from_slice(raw.as_bytes());
        if version >= VERSION_AUTHENTICATED {
            let _ = body.extend_from_slice(RawResumption::new(self.session).as_bytes());
        }
        let _ = body.extend_from_slice(self.private_data.as_bytes());
        body
    }
}

/// An endpoint and the receiver's rail that it connects to: the content of Connect and Accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect {
    /// The sender's endpoint.
    pub endpoint: Endpoint,
    /// The index of the receiver's rail in the list that the receiver advertised.
    pub peer_rail: u8,
}
