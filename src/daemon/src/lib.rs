//! The node daemon: one process of a host owns the RDMA devices, and the other processes exchange messages through it.
//!
//! A process attaches over a Unix socket and gets an [`Endpoint`]: a name in its job, two rings, and cells for message payloads, all
//! in sealed memfds. While both the process and the daemon poll, a message causes no system call on either side. Processes do not
//! trust each other. The daemon validates a copy of everything that a client writes. If a client violates the protocol, the daemon
//! cuts off that client alone, with the reason.
//!
//! [`Router`] makes the decisions, without a socket, thread or clock. [`Server`] executes them, and [`Client`] is the side of a
//! process.
//!
//! # Reasons
//! [`Client::wait`] sleeps on the socket, so one descriptor wakes it for events, for room, and for the end of the daemon. A futex in the
//! shared memory would not wake a client whose daemon died.
//!
//! A client makes new memory for each daemon, and copies its arena. The seal `F_SEAL_FUTURE_WRITE` refuses each later mapping that can be
//! written, so the next daemon cannot map the old memory.
//!
//! Processes never map arenas of others: a mapping cannot be revoked, and has no access rights per range. Operations between nodes are frames,
//! and not one-sided requests of a link. A request that a peer made before a grant is withdrawn may be executed afterwards, and one wrong
//! request fails a connection that all processes share.

mod client;
mod client_state;
mod descriptor;
mod endpoint;
mod frame;
mod grants;
#[cfg(any(test, fuzzing))]
pub mod hostile;
mod job_keys;
mod layout;
mod log;
mod name;
mod one_sided;
mod packet;
mod peers;
mod quota;
mod reason;
#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;
mod router;
mod routes;
mod serving;
mod settled;
mod status;
mod stopped;

pub use client::{Client, ClientError};
pub use endpoint::{
    ArenaTransfer, ArenaTransferEnd, Endpoint, EndpointEvent, EndpointRefusal, TRANSFERS_MAX,
};
pub use job_keys::JobKeys;
pub use layout::{ARENA_BYTES_MAX, DEPTH_MAX, EndpointLayout, EndpointMemory, MESSAGE_BYTES_MAX};
pub use name::{Credentials, EndpointAddress, JobKey, JobNumber, NodeNumber};
pub use one_sided::{ArenaGrant, ArenaOffer, ArenaOperation, ArenaRange, GRANTS_MAX, OPERATION_BYTES_MAX};
pub use packet::AttachRequest;
pub use peers::{LANES_MAX, Peers};
pub use reason::{AttachRefusal, CutReason, GoneReason, UndeliveredReason};
pub use router::{ClientId, Ended, Retired, Router, RouterCounts, RouterLimits};
pub use serving::{Server, ServerConfig, ServerError, StatusError};
pub use status::{
    CutCount, DaemonStatus, EndpointStatus, JobStatus, LinkState, LinkStatus, NodeStatus, RefusedCount,
    Traffic,
};

/// The examples of the book's page on the node daemon compile.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/concepts/node-daemon.md")]
struct NodeDaemon;

#[cfg(test)]
mod tests;
