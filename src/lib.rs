//! An RDMA stack for engines: messages and one-sided access over reliable connections, with a
//! data path that never allocates and a safe API that is sound.
//!
//! A [`Node`] is a host's RDMA stack. A [`Worker`] is one thread's owner of completion queues,
//! registered memory and [`Channel`]s on one device. A [`Listener`] hands out a
//! [`Handle`]; a peer's [`Node::connect`] takes it and chooses the rail. Everything is
//! generic over the traits of [`provider`]; [`Rdma`], on libibverbs, is the default.
//!
//! The root has the names of a first program. Each module exports its subject whole, those names included:
//!
//! | module | subject |
//! |---|---|
//! | [`connect`] | Nodes, listeners, connections that are polled or made on threads, and their errors |
//! | [`worker`] | Workers and their halves, channels, batches, leases, windows, rings, submitters, events |
//! | [`memory`] | regions, registration caches and GPU memory of the engine's own |
//! | [`requests`] | requests and answers with deadlines, over a channel or a link |
//! | [`link`] | one ordered stream of messages to a peer over all rails that reach it |
//! | [`mesh`] | members by rank, messages through others, collectives |
//! | [`rails`] | ports and addresses that are used, and pairs of them |
//! | [`trust`] | keys, and peers that are trusted |
//! | [`wire`] | handles and frames, parsed in place |
//! | [`interprocess`] | memory that two processes map, and rings in it |
//! | [`provider`] | the traits of devices, memory and networks, and the units of verbs |
//!
//! Other packages have settings, topology and metrics (`doorbell-operation`), events in tokio (`doorbell-tokio`), the node daemon
//! (`doorbell-daemon`), the broker for sandboxes (`doorbell-broker`), the plugin for NCCL (`doorbell-nccl`), the simulator
//! (`doorbell-sim`) and the program (`doorbell-program`).
//!
//! ```no_run
//! use std::time::Duration;
//! use doorbell::{ChannelConfig, Event, KeyRing, Listener, Node, Trust, Wait, WorkerConfig};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let node = Node::open(Trust::keys(KeyRing::from_file("/etc/doorbell/keys")?))?;
//! let mut workers = node.workers(&WorkerConfig::default())?;
//! let config = ChannelConfig::default();
//! let mut listener = Listener::bind(&node, &workers, "[::]:0".parse()?, &config)?;
//! println!("{}", listener.handle());
//!
//! let peer = listener.accept(&node, &mut workers, node.within(Duration::from_secs(30)))?;
//! let worker = &mut workers[peer.worker];
//! let deadline = worker.within(Duration::from_secs(60));
//! worker.wait_for(Wait::Busy, deadline, |turn, event| match event {
//!     Event::Received { message, .. } => turn.channel.send_lease(message.keep()).err().map(drop),
//!     Event::Failed { .. } | Event::ChannelFailed { .. } | Event::PeerClosed { .. } => Some(()),
//!     _ => None,
//! })?;
//! # Ok(())
//! # }
//! ```

#[cfg(doctest)]
mod book;
pub mod connect;
mod error;
pub mod interprocess;
pub mod link;
mod machine;
pub mod memory;
pub mod mesh;
pub mod provider;
pub mod rails;
#[cfg(test)]
#[path = "../fuzz/replay.rs"]
mod replay;
pub mod requests;
pub mod trust;
pub mod wire;
pub mod worker;

pub use connect::{ConnectError, Connection, Listener, Node, NodeError};
pub use machine::clock::{now, within};
pub use provider::{
    Clock, Deadline, Network, Operation, PostFlags, Provider, Rdma, RemoteAccess, RemoteAddress, Ticket,
    WcStatus, WindowConfig,
};
pub use rails::RailFilter;
pub use trust::{KeyRing, Trust};
pub use wire::{Handle, RemoteWindow};
pub use worker::{
    Batch, Channel, ChannelConfig, ChannelId, ChannelState, Claim, Event, Lease, LocalWindow, Message,
    Notify, Peer, SendError, SendErrorKind, Statistics, Turn, Wait, WaitError, Woken, Worker, WorkerConfig,
};
