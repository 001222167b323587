//! What goes from host to host: messages and their answers, and the one place they pass.
//!
//! A message stands for all its packets. The fabric loses none, so it is delivered whole,
//! and its answer comes back with the call.

use doorbell_core::provider::RemoteAddress;
use doorbell_core::{Gid, Mtu, Psn, Qpn, WcStatus};

use crate::fabric::{QueuePairKey, World};

/// The longest message. Source: InfiniBand Architecture volume 1, section 9.7.7.
pub(crate) const MESSAGE_BYTES_MAX: usize = 1 << 31;

/// A request on its way from requester to responder.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) from: Gid,
    pub(crate) from_qpn: Qpn,
    pub(crate) to: Gid,
    pub(crate) to_qpn: Qpn,
    /// The PSN of its first packet.
    pub(crate) psn: Psn,
    /// How many PSNs it takes: one for each packet, of a READ for each packet that comes back.
    pub(crate) packets: u32,
    /// What the requester cuts packets to.
    pub(crate) mtu: Mtu,
    /// Whether the responder's completion is to wake it.
    pub(crate) solicited: bool,
    pub(crate) body: Body,
}

/// What a message asks for.
#[derive(Debug)]
pub(crate) enum Body {
    Send {
        payload: Vec<u8>,
        immediate: Option<u32>,
    },
    Write {
        remote: RemoteAddress,
        payload: Vec<u8>,
        immediate: Option<u32>,
    },
    Read {
        remote: RemoteAddress,
        bytes: usize,
    },
    Atomic {
        remote: RemoteAddress,
        change: Change,
    },
}

impl Body {
    /// The bytes it carries, or brings back in packets.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Send { payload, .. } | Self::Write { payload, .. } => payload.len(),
            Self::Read { bytes, .. } => *bytes,
            Self::Atomic { .. } => 0,
        }
    }
}

/// What an atomic does to a word.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    Add(u64),
    CompareAndSwap { compare: u64, swap: u64 },
}

/// What comes back.
#[derive(Debug)]
pub(crate) enum Answer {
    /// It was done; these bytes were asked for.
    Done(Vec<u8>),
    /// No receive is posted.
    NotReady,
    /// It was refused, and the responder's queue pair fails.
    Refused(Refusal),
}

/// Why a responder refused. Source: InfiniBand Architecture volume 1, section 9.7.5.2.8.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Refusal {
    InvalidRequest,
    Access,
    Operation,
}

impl Refusal {
    /// How it ends the request.
    pub(crate) const fn status(self) -> WcStatus {
        match self {
            Self::InvalidRequest => WcStatus::REM_INV_REQ_ERR,
            Self::Access => WcStatus::REM_ACCESS_ERR,
            Self::Operation => WcStatus::REM_OP_ERR,
        }
    }
}

impl World {
    /// Brings a message to where it is meant for, and the answer back. `None` where none will
    /// ever come: there is no way, or nobody there who listens to the sender.
    pub(crate) fn deliver(&mut self, message: &Message) -> Option<Answer> {
        let (device, port) = self.route(message.from, message.to)?;
        self.respond(
            QueuePairKey {
                device,
                qpn: message.to_qpn,
            },
            port,
            message,
        )
    }
}
