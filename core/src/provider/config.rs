//! Requests for resources of a device, and the limits that it grants.

use crate::remote::RemoteAccess;
use crate::{Gid, Mtu, Psn, Qpn};

use super::PlacementConfig;

/// Registered memory cut into slots of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaConfig {
    /// How many slots, at least one.
    pub slots: u32,
    /// The capacity of each in bytes, at least one. A provider may round it up to keep
    /// slots on cache lines of their own.
    pub slot_bytes: u32,
    /// The NUMA node, the pages and the lock of its memory.
    pub placement: PlacementConfig,
}

impl ArenaConfig {
    /// So many slots of so many bytes, placed as by default.
    #[must_use]
    pub const fn new(slots: u32, slot_bytes: u32) -> Self {
        Self {
            slots,
            slot_bytes,
            placement: PlacementConfig::DEFAULT,
        }
    }
}

/// Configuration of a window: memory that peers may access by WRITE, READ and atomics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowConfig {
    /// Its size in bytes, at least one.
    pub bytes: usize,
    /// The rights of peers on it.
    pub remote: RemoteAccess,
    /// The NUMA node, the pages and the lock of its memory.
    pub placement: PlacementConfig,
}

impl WindowConfig {
    /// So many bytes, placed as by default.
    #[must_use]
    pub const fn new(bytes: usize, remote: RemoteAccess) -> Self {
        Self {
            bytes,
            remote,
            placement: PlacementConfig::DEFAULT,
        }
    }
}

/// A completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletionQueueConfig {
    /// How many completions it must hold, at least one; the device may grant more.
    pub depth: u32,
    /// Whether it can be armed to notify through a file descriptor.
    pub notify: bool,
}

/// A shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedReceiveQueueConfig {
    /// Receives posted at most, at least one.
    pub depth: u32,
    /// Scatter elements of a receive at most, up to [`super::GATHER_MAX`].
    pub scatter_max: u8,
}

/// A reliable-connection queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePairConfig {
    /// The number its completions carry: unique among the live queue pairs of either
    /// completion queue, below [`crate::work_id::CHANNELS_MAX`].
    pub channel: u32,
    /// Requests in flight at most on the send queue.
    pub send_depth: u32,
    /// Receives posted at most; zero on a shared receive queue, where it has none of its own.
    pub receive_depth: u32,
    /// Gather elements of a send request at most, up to [`super::GATHER_MAX`].
    pub gather_max: u8,
    /// Scatter elements of a receive at most, up to [`super::GATHER_MAX`]; zero on a shared
    /// receive queue.
    pub scatter_max: u8,
    /// Bytes a request may carry inline at most. A device that takes fewer grants 96 or 64 ([`QueuePairLimits`]) instead of refusing.
    pub inline_bytes_max: u32,
}

/// A datagram queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramConfig {
    /// The number its completions carry, as of [`QueuePairConfig::channel`].
    pub channel: u32,
    /// Requests in flight at most on the send queue.
    pub send_depth: u32,
    /// Receives posted at most.
    pub receive_depth: u32,
    /// Gather elements of a send request at most, up to [`super::GATHER_MAX`].
    pub gather_max: u8,
    /// Bytes a request may carry inline at most.
    pub inline_bytes_max: u32,
    /// Address handles at most: peers that it sends to. At least one, and at most 65,536.
    pub addresses_max: u32,
}

impl DatagramConfig {
    /// The queues it has: a receive scatters into the header's place and one slot.
    #[must_use]
    pub const fn queues(&self) -> QueuePairConfig {
        QueuePairConfig {
            channel: self.channel,
            send_depth: self.send_depth,
            receive_depth: self.receive_depth,
            gather_max: self.gather_max,
            scatter_max: 2,
            inline_bytes_max: self.inline_bytes_max,
        }
    }
}

/// Limits granted to a queue pair: at least the ones requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePairLimits {
    /// Requests in flight at most on the send queue.
    pub send_depth: u32,
    /// Receives posted at most.
    pub receive_depth: u32,
    /// Gather elements of a send request at most.
    pub gather_max: u8,
    /// Scatter elements of a receive at most.
    pub scatter_max: u8,
    /// Bytes a request may carry inline at most.
    pub inline_bytes_max: u32,
}

/// Address of the peer and the route of packets to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressVector {
    /// The peer's GID.
    pub destination: Gid,
    /// The index of our own GID in the port's table.
    pub source_gid_index: u8,
    /// Our port, from 1.
    pub port: u8,
    /// The IP time to live.
    pub hop_limit: u8,
    /// The IP traffic class: DSCP in the upper six bits.
    pub traffic_class: u8,
    /// The IPv6 flow label, 20 bits; spreads paths by the UDP source port on some devices.
    pub flow_label: u32,
    /// The service level, 4 bits.
    pub service_level: u8,
}

/// INIT to RTR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyToReceive {
    /// The address of the peer.
    pub address: AddressVector,
    /// The path MTU, which both sides support.
    pub path_mtu: Mtu,
    /// The peer's queue pair.
    pub destination_qpn: Qpn,
    /// The first PSN the peer will send.
    pub receive_psn: Psn,
    /// READs and atomics of the peer outstanding at most.
    pub max_dest_rd_atomic: u8,
    /// How long a receiver-not-ready answer asks the peer to wait, as its 5-bit code.
    pub min_rnr_timer: u8,
}

/// RTR to RTS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyToSend {
    /// The first PSN we will send.
    pub send_psn: Psn,
    /// Our READs and atomics outstanding at most.
    pub max_rd_atomic: u8,
    /// The acknowledgement timeout: 4.096 us * 2^timeout; 0 is for ever and not allowed here.
    pub timeout: u8,
    /// How often to retry without an acknowledgement, 0..=7.
    pub retry_count: u8,
    /// How often to retry when the receiver is not ready, 0..=6; 7 is without end.
    pub rnr_retry: u8,
}
