//! Packets: the `RoCEv2` transport headers as typed values, and the kinds a plan names.
//!
//! A packet lives in the pool while it is under way. As bytes it exists only in a capture.

pub(crate) mod encode;
pub(crate) mod icrc;
pub(crate) mod opcode;
pub(crate) mod pool;
#[cfg(test)]
mod tests;

use doorbell_core::{Gid, Psn, Qkey, Qpn, Rkey};

pub(crate) use opcode::Opcode;

/// The base transport header. Source: InfiniBand Architecture volume 1, section 9.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bth {
    pub(crate) opcode: Opcode,
    /// Whether the responder's completion is to wake it.
    pub(crate) solicited: bool,
    pub(crate) destination_qpn: Qpn,
    /// Whether the requester wants to hear of it.
    pub(crate) ack_request: bool,
    pub(crate) psn: Psn,
}

/// The RDMA extended transport header: which memory. Source: section 9.3.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reth {
    pub(crate) address: u64,
    pub(crate) rkey: Rkey,
    pub(crate) bytes: u32,
}

/// The atomic extended transport header. Source: section 9.3.4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AtomicEth {
    pub(crate) address: u64,
    pub(crate) rkey: Rkey,
    pub(crate) swap_or_add: u64,
    pub(crate) compare: u64,
}

/// The acknowledge extended transport header. Source: section 9.3.5.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Aeth {
    pub(crate) syndrome: Syndrome,
    /// How many messages the responder has done, modulo 2^24.
    pub(crate) msn: u32,
}

/// The datagram extended transport header: the key it needs, and its sender. Source: section 9.3.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deth {
    pub(crate) qkey: Qkey,
    pub(crate) source_qpn: Qpn,
}

/// Content of an acknowledgement. Source: section 9.7.5.2, tables 45 to 47.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Syndrome {
    /// Done, up to here.
    Done,
    /// No receive is posted: to be tried again after a time, by its code.
    NotReady(u8),
    /// Refused.
    Refused(Refusal),
}

/// Why a responder refused. Source: section 9.7.5.2.8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Packets before it are missing.
    Sequence,
    InvalidRequest,
    Access,
    Operation,
}

/// Source and destination of a packet, as its IP header has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flow {
    pub(crate) source: Gid,
    pub(crate) destination: Gid,
    /// The UDP source port.
    pub(crate) port: u16,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
}

/// A packet. Which headers follow the first is the operation's matter.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) flow: Flow,
    pub(crate) bth: Bth,
    pub(crate) reth: Option<Reth>,
    pub(crate) atomic: Option<AtomicEth>,
    pub(crate) aeth: Option<Aeth>,
    pub(crate) deth: Option<Deth>,
    /// Value that an atomic found.
    pub(crate) before: Option<u64>,
    pub(crate) immediate: Option<u32>,
    pub(crate) payload: Vec<u8>,
    /// A bit of it changed under way, so that its checksum is wrong.
    pub(crate) is_corrupt: bool,
}

impl Packet {
    /// One that says nothing yet.
    pub(crate) const fn blank() -> Self {
        Self {
            flow: Flow {
                source: Gid([0; 16]),
                destination: Gid([0; 16]),
                port: 0,
                traffic_class: 0,
                hop_limit: 0,
            },
            bth: Bth {
                opcode: Opcode::Acknowledge,
                solicited: false,
                destination_qpn: Qpn::from_low_bits(0),
                ack_request: false,
                psn: Psn::from_low_bits(0),
            },
            reth: None,
            atomic: None,
            aeth: None,
            deth: None,
            before: None,
            immediate: None,
            payload: Vec::new(),
            is_corrupt: false,
        }
    }

    /// Makes it one of this operation, with nothing but the base header.
    pub(crate) fn begin(&mut self, opcode: Opcode, destination_qpn: Qpn, psn: Psn) {
        self.bth = Bth {
            opcode,
            solicited: false,
            destination_qpn,
            ack_request: false,
            psn,
        };
        self.reth = None;
        self.atomic = None;
        self.aeth = None;
        self.deth = None;
        self.before = None;
        self.immediate = None;
        self.payload.clear();
        self.is_corrupt = false;
    }

    /// Makes it the same as another; its buffer stays its own.
    pub(crate) fn copy_from(&mut self, other: &Self) {
        let mut payload = core::mem::take(&mut self.payload);
        payload.clear();
        payload.extend_from_slice(&other.payload);
        *self = Self { payload, ..*other };
    }

    /// Returns the packet's kind in a plan.
    pub(crate) const fn kind(&self) -> PacketKind {
        match (self.bth.opcode.group(), self.aeth) {
            (opcode::Group::Send, _) => PacketKind::Send,
            (opcode::Group::Datagram, _) => PacketKind::Datagram,
            (opcode::Group::Write, _) => PacketKind::Write,
            (opcode::Group::Read, _) => PacketKind::Read,
            (opcode::Group::ReadResponse, _) => PacketKind::Response,
            (opcode::Group::Atomic, _) => PacketKind::Atomic,
            (opcode::Group::AtomicAcknowledge, _) => PacketKind::AtomicResult,
            (opcode::Group::Acknowledge, Some(aeth)) => match aeth.syndrome {
                Syndrome::Done => PacketKind::Ack,
                Syndrome::NotReady(_) => PacketKind::NotReady,
                Syndrome::Refused(_) => PacketKind::Nak,
            },
            (opcode::Group::Acknowledge, None) => PacketKind::Ack,
        }
    }
}

/// Purpose of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PacketKind {
    /// Part of a SEND.
    Send,
    /// Part of a WRITE.
    Write,
    /// A READ request.
    Read,
    /// Data that a READ returns.
    Response,
    /// An atomic request.
    Atomic,
    /// Value that an atomic returns.
    AtomicResult,
    /// An acknowledgement.
    Ack,
    /// A refusal: packets are missing, or the request cannot be done.
    Nak,
    /// A receiver that is not ready.
    NotReady,
    /// No packet of a queue pair, but part of a stream: what connections are made over.
    Stream,
    /// A datagram.
    Datagram,
}

impl PacketKind {
    /// Every kind, with its name in a plan.
    pub(crate) const NAMES: [(Self, &'static str); 11] = [
        (Self::Send, "send"),
        (Self::Write, "write"),
        (Self::Read, "read"),
        (Self::Response, "response"),
        (Self::Atomic, "atomic"),
        (Self::AtomicResult, "result"),
        (Self::Ack, "ack"),
        (Self::Nak, "nak"),
        (Self::NotReady, "rnr"),
        (Self::Stream, "stream"),
        (Self::Datagram, "datagram"),
    ];

    /// Its name in a plan.
    pub(crate) fn name(self) -> &'static str {
        let mut names = Self::NAMES.iter();
        let found = names.find(|(known, _)| *known == self);
        found.map_or("", |(_, name)| name)
    }
}
