//! Configurations of a device's resources, and the limits that the device grants.

use crate::remote::RemoteAccess;
use crate::{Gid, Mtu, Psn, Qpn};

use super::PlacementConfig;

/// Registered memory cut into slots of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaConfig {
    /// The number of slots, at least one.
    pub slots: u32,
    /// The capacity of each slot in bytes, at least one. A provider may round it up, so that
    /// slots do not share cache lines.
    pub slot_bytes: u32,
    /// The NUMA node, the pages and the lock of its memory.
    pub placement: PlacementConfig,
}

impl ArenaConfig {
    /// An arena of `slots` slots of `slot_bytes`, with the default placement.
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
    /// The size in bytes, at least one.
    pub bytes: usize,
    /// The rights of peers.
    pub remote: RemoteAccess,
    /// The NUMA node, the pages and the lock of its memory.
    pub placement: PlacementConfig,
}

impl WindowConfig {
    /// A window of `bytes` bytes, with the default placement.
    #[must_use]
    pub const fn new(bytes: usize, remote: RemoteAccess) -> Self {
        Self {
            bytes,
            remote,
            placement: PlacementConfig::DEFAULT,
        }
    }
}

/// The configuration of a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletionQueueConfig {
    /// The number of completions that it must hold, at least one; the device may grant more.
    pub depth: u32,
    /// Whether it can be armed for notifications through a file descriptor.
    pub notify: bool,
}

/// The configuration of a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedReceiveQueueConfig {
    /// The maximum number of posted receives, at least one.
    pub depth: u32,
    /// The maximum number of scatter elements of a receive, up to [`super::GATHER_MAX`].
    pub scatter_max: u8,
}

/// The configuration of a reliable-connection queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePairConfig {
    /// The number that its completions carry: unique among the live queue pairs of each of its
    /// completion queues, below [`crate::work_id::CHANNELS_MAX`].
    pub channel: u32,
    /// The maximum number of requests in flight on the send queue.
    pub send_depth: u32,
    /// The maximum number of posted receives; zero with a shared receive queue.
    pub receive_depth: u32,
    /// The maximum number of gather elements of a send request, up to [`super::GATHER_MAX`].
    pub gather_max: u8,
    /// The maximum number of scatter elements of a receive, up to [`super::GATHER_MAX`]; zero with a
    /// shared receive queue.
    pub scatter_max: u8,
    /// The maximum number of inline bytes of a request. A device with a lower limit may grant only 96 or 64 ([`QueuePairLimits`])
    /// instead of refusing.
    pub inline_bytes_max: u32,
}

/// The configuration of a datagram queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramConfig {
    /// The number that its completions carry, as for [`QueuePairConfig::channel`].
    pub channel: u32,
    /// The maximum number of requests in flight on the send queue.
    pub send_depth: u32,
    /// The maximum number of posted receives.
    pub receive_depth: u32,
    /// The maximum number of gather elements of a send request, up to [`super::GATHER_MAX`].
    pub gather_max: u8,
    /// The maximum number of inline bytes of a request.
    pub inline_bytes_max: u32,
    /// The maximum number of address handles, and so of peers that it sends to: 1 to 65,536.
    pub addresses_max: u32,
}

impl DatagramConfig {
    /// The configuration of its queues: a receive scatters into the place of the header and one slot.
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

/// The limits granted to a queue pair: at least the requested ones, except possibly `inline_bytes_max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePairLimits {
    /// The maximum number of requests in flight on the send queue.
    pub send_depth: u32,
    /// The maximum number of posted receives.
    pub receive_depth: u32,
    /// The maximum number of gather elements of a send request.
    pub gather_max: u8,
    /// The maximum number of scatter elements of a receive.
    pub scatter_max: u8,
    /// The maximum number of inline bytes of a request.
    pub inline_bytes_max: u32,
}

/// The address of the peer, and the route of packets to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressVector {
    /// The peer's GID.
    pub destination: Gid,
    /// The index of the local GID in the port's table.
    pub source_gid_index: u8,
    /// The local port, from 1.
    pub port: u8,
    /// The IP time to live.
    pub hop_limit: u8,
    /// The IP traffic class: DSCP in the upper six bits.
    pub traffic_class: u8,
    /// The IPv6 flow label, 20 bits. On some devices it selects the UDP source port, which spreads paths.
    pub flow_label: u32,
    /// The service level, 4 bits.
    pub service_level: u8,
}

/// The attributes of the transition from INIT to RTR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyToReceive {
    /// The address of the peer.
    pub address: AddressVector,
    /// The path MTU, which both sides support.
    pub path_mtu: Mtu,
    /// The peer's queue pair.
    pub destination_qpn: Qpn,
    /// The first PSN that the peer sends.
    pub receive_psn: Psn,
    /// The maximum number of outstanding READs and atomics of the peer.
    pub max_dest_rd_atomic: u8,
    /// The time that a receiver-not-ready NAK asks the peer to wait, as its 5-bit code.
    pub min_rnr_timer: u8,
}

/// The attributes of the transition from RTR to RTS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyToSend {
    /// The first PSN that this side sends.
    pub send_psn: Psn,
    /// The maximum number of outstanding READs and atomics of this side.
    pub max_rd_atomic: u8,
    /// The acknowledgement timeout: 4.096 us * 2^timeout. 0 would be infinite, and is not allowed.
    pub timeout: u8,
    /// The number of retransmissions without an acknowledgement, 0..=7.
    pub retry_count: u8,
    /// The number of retransmissions when the receiver is not ready, 0..=6; 7 is unlimited.
    pub rnr_retry: u8,
}
