//! An RDMA stack for engines: messages and one-sided access over reliable connections, with a
//! data path that never allocates and a safe API that is sound.
//!
//! A [`Node`] is a host's RDMA stack. A [`Worker`] belongs to one thread and one device. It owns completion queues,
//! registered memory and [`Channel`]s. A [`Listener`] hands out a [`Handle`]. A peer passes the handle to
//! [`Node::connect`], which chooses the rail. Everything is generic over the traits of [`provider`]; the default
//! provider is [`Rdma`], which uses libibverbs.
//!
//! The crate root exports the names that most programs need. Each module exports all names of its subject:
//!
//! | module | subject |
//! |---|---|
//! | [`connect`] | Nodes, listeners, connecting and accepting by polling or on threads, and their errors |
//! | [`worker`] | Workers and their halves, channels, batches, leases, windows, rings, submitters, events |
//! | [`memory`] | regions, registration caches, and the engine's own GPU memory |
//! | [`requests`] | requests and answers with deadlines, over a channel or a link |
//! | [`link`] | one ordered stream of messages to a peer over all rails that reach it |
//! | [`mesh`] | members by rank, relayed messages, collectives |
//! | [`rails`] | the ports and addresses that are used, and how they are paired with those of a peer |
//! | [`trust`] | keys, and the peers that a Node trusts |
//! | [`wire`] | handles and frames, parsed in place |
//! | [`interprocess`] | memory shared by two processes, and rings in it |
//! | [`provider`] | the traits of devices, memory and networks, and the units of verbs |
//!
//! Other packages contain settings, topology and metrics (`doorbell-operation`), support for tokio (`doorbell-tokio`), the node daemon
//! (`doorbell-daemon`), the broker for sandboxes (`doorbell-broker`), the plugin for NCCL (`doorbell-nccl`), the simulator
//! (`doorbell-sim`) and the command `doorbell` (`doorbell-program`).
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
