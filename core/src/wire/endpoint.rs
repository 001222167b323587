//! The endpoint of a connection: the body that Connect and Accept share.

use core::fmt;
use core::mem::{offset_of, size_of};

use heapless::Vec;
use static_assertions::const_assert_eq;
use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::resumption::RawResumption;
use super::{Field, Part, Reason, Resumption, VERSION_AUTHENTICATED, WireError};
use crate::{Gid, Mtu, Psn, Qpn, Rkey};

/// How many bytes an application may send along in Connect and in Accept.
pub const PRIVATE_DATA_BYTES_MAX: usize = 64;

/// The most receives a side may announce: a slot has 16 bits in a `wr_id`.
pub const RECEIVE_DEPTH_MAX: u32 = 1 << 16;

/// The most bytes a receive may announce: the longest message there is.
///
/// Source: InfiniBand Architecture volume 1, section 9.7.1.5.
pub const SLOT_BYTES_MAX: u32 = 1 << 31;

/// The largest flow label: 20 bits.
pub const FLOW_LABEL_MAX: u32 = 0x000f_ffff;

/// The largest service level: 4 bits.
pub const SERVICE_LEVEL_MAX: u8 = 0xf;

/// The longest body.
pub(crate) const ENDPOINT_BYTES_MAX: usize = endpoint_bytes(VERSION_AUTHENTICATED) + PRIVATE_DATA_BYTES_MAX;

/// The body in `version`, without private data.
pub(crate) const fn endpoint_bytes(version: u8) -> usize {
    if version < VERSION_AUTHENTICATED {
        size_of::<RawEndpoint>()
    } else {
        SESSION_OFFSET.saturating_add(size_of::<RawResumption>())
    }
}

/// Offset of the session, from the version on that has it.
const SESSION_OFFSET: usize = size_of::<RawEndpoint>();

/// A credit word lies at a multiple of its size.
const CREDIT_ALIGN_MASK: u64 = 7;

/// Queue pairs 0 and 1 are those of the subnet and general management; no connection ends there.
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

/// Settings of a side's queue pair, as it announces them.
///
/// Depths and sizes say how much the side can take. Traffic class, flow label and service level are the ones it sends
/// with; it announces them so that the peer may use the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EndpointParameters {
    /// The MTU the side's port works with now; the connection uses the lower of both. Default 1024
    /// bytes: what a port on an ordinary Ethernet link has.
    pub mtu: Mtu,
    /// READs and atomics the side would like to have in flight. Default 16: what common devices
    /// grant; a provider must lower it to what its device says.
    pub max_rd_atomic: u8,
    /// READs and atomics the side serves at a time. Default 16, with the same reserve.
    pub max_dest_rd_atomic: u8,
    /// The IP traffic class (DSCP and ECN bits) the side sends with. Default 0.
    pub traffic_class: u8,
    /// The flow label the side sends with, 20 bits. Default 0.
    pub flow_label: u32,
    /// The service level (priority) the side sends with, 4 bits. Default 0.
    pub service_level: u8,
    /// Receives the side keeps posted, at most [`RECEIVE_DEPTH_MAX`]. Default 0: a side that is only
    /// written to.
    pub receive_depth: u32,
    /// Bytes each of them holds, at most [`SLOT_BYTES_MAX`]. Default 0.
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

/// The word in which a peer reports how many receives it posted, so that this side never sends more messages than there
/// are receives.
///
/// The peer writes it by an RDMA WRITE, as two big-endian words. The first is `start` plus the number of receives
/// posted since the connection was made, modulo 2^32. The second is the complement of the first. No device promises
/// that eight bytes are seen at once: a mixture of two counts fails the check of the complement.
///
/// The peer does not announce its first receives, as many as its receive depth: they are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CreditWord {
    /// Its address, a multiple of its eight bytes.
    pub address: u64,
    /// The key that opens it.
    pub rkey: Rkey,
    /// The count it holds before anything is announced, so that what an earlier connection left
    /// there is not taken for an announcement.
    pub start: u32,
}

/// Application bytes that do not fit into the private data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PrivateDataTooLong {
    /// How many there were.
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

/// Bytes of the application that go with Connect or Accept, such as a [`RemoteWindow`](super::RemoteWindow).
#[derive(Clone, Copy)]
pub struct PrivateData {
    bytes: [u8; PRIVATE_DATA_BYTES_MAX],
    length: u8,
}

impl PrivateData {
    /// None.
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
    /// The index of the rail in the list the side advertised.
    pub rail: u8,
    /// The GID of that rail.
    pub gid: Gid,
    /// The queue pair's number.
    pub qpn: Qpn,
    /// The number of the first packet it sends: random for each attempt.
    pub psn: Psn,
    /// Its settings.
    pub parameters: EndpointParameters,
    /// The word in which it wants receives to be reported.
    pub credit: CreditWord,
    /// The session the connection is for, if it is for one. Version 1 has no place for it.
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
    /// Whether it lies within what the wire can say.
    #[must_use]
    pub fn is_sendable(&self) -> bool {
        self.fault().is_none()
    }

    /// The first field that cannot be sent in this version.
    pub(crate) fn unsendable(&self, version: u8) -> Option<Field> {
        let has_session = self.session.is_some() && version < VERSION_AUTHENTICATED;
        self.fault().or(has_session.then_some(Field::Session))
    }

    /// The first field a peer would refuse.
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

    /// Reads the body of `part` in `version`, which starts at `base` of its frame, and the receiver's rail in it.
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

    /// The body in `version`, with the receiver's rail.
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

/// An endpoint and the receiver's rail it connects to: the content of Connect and Accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect {
    /// The sender's endpoint.
    pub endpoint: Endpoint,
    /// The index of the receiver's rail in the list the receiver advertised.
    pub peer_rail: u8,
}
