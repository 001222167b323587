//! An RDMA stack for engines: messages and one-sided access over reliable connections, with a
//! data path that never allocates and a safe API that is sound.
//!
//! A [`Node`] is a host's RDMA stack. A [`Worker`] is one thread's owner of completion queues,
//! registered memory and [`Channel`]s on one device. A [`Listener`] hands out a
//! [`Handle`]; a peer's [`Node::connect`] takes it and chooses the rail. Everything is
//! generic over the provider traits of `doorbell-core`; [`Rdma`], on libibverbs, is the default.
//!
//! ```no_run
//! use std::time::Duration;
//! use doorbell::{
//!     ChannelConfig, Event, KeyRing, Listener, Node, Trust, Wait, Woken, WorkerConfig,
//! };
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
//! let (deadline, mut done) = (worker.within(Duration::from_secs(60)), false);
//! while !done {
//!     let woken = worker.wait(Wait::Busy, deadline, |turn, event| match event {
//!         Event::Received { message, .. } => done = turn.channel.send_lease(message.keep()).is_err(),
//!         Event::Failed { .. } | Event::ChannelFailed { .. } | Event::PeerClosed { .. } => done = true,
//!         _ => {}
//!     })?;
//!     done |= woken == Woken::Deadline;
//! }
//! # Ok(())
//! # }
//! ```

#[cfg(doctest)]
mod book;
mod connect;
mod error;
pub mod link;
mod machine;
pub mod mesh;
mod operation;
pub mod provider;
mod rails;
#[cfg(test)]
#[path = "../fuzz/replay.rs"]
mod replay;
pub mod requests;
mod trust;
mod worker;

pub use connect::acceptances::Acceptances;
pub use connect::asking::Asking;
pub use connect::background::Background;
pub use connect::connecting::Connecting;
pub use connect::handshakes::{HandshakeCounts, HandshakeLimits, Handshakes};
pub use connect::listener::Listener;
pub use connect::node::{Connection, Node};
pub use doorbell_core as vocabulary;
pub use doorbell_core::network::Network;
pub use doorbell_core::provider::{
    ArenaConfig, AsyncEvent, MemoryError, NumaNode, Operation, Pages, Placement, PlacementConfig, PostFlags,
    RemoteAccess, RemoteAddress, Window, WindowConfig,
};
pub use doorbell_core::wire::{
    Handle, InstanceId, KeyId, PrivateData, Publication, RemoteWindow, Resumption, SessionId,
};
pub use doorbell_core::{Clock, Deadline, PortReport, Ticket, WcStatus};
pub use doorbell_ffi::{Rdma, StableMemory};
pub use doorbell_hotpath::{FirstCause, RingReadError, Statistics, StatisticsSnapshot, Wait, Woken};
pub use error::{ConnectError, NoRoute, NodeError};
pub use link::{
    LinkConfig, LinkError, LinkEvent, LinkId, LinkRailCounts, LinkRailReport, Links, NotConnected, RailEnds,
    Request,
};
pub use machine::clock::{now, within};
pub use machine::tcp::{Tcp, TcpAcceptor, TcpHandshake};
pub use mesh::{
    Group, GroupError, Leaving, Mesh, MeshConfig, MeshCounts, MeshError, MeshEvent, MeshMemberCounts,
    MeshSendError, NotLinked, Running,
};
pub use operation::metrics::{LabelError, Labels, Metrics};
pub use operation::metrics_server::MetricsServer;
pub use operation::port_counters::PortCounters;
pub use operation::preflight::{Finding, FindingKind, Severity, preflight};
#[cfg(feature = "settings")]
pub use operation::settings::{
    LogLevel, MeshSettings, Setting, SettingSource, SettingValues, Settings, SettingsError, SettingsFault,
    Subnets,
};
#[cfg(feature = "snapshot")]
pub use operation::topology::SnapshotError;
pub use operation::topology::{
    ArpFacts, InterfaceFacts, Map, NeighbourFacts, NeighbourState, PortFacts, Reach, RouteFacts, Topology,
};
pub use rails::filter::{FilterSubject, FilterVerdict, RailFilter, RailFilterError, RuleFault};
pub use trust::{KEY_BYTES_MIN, Key, KeyError, KeyRing, KeyRingError, Refusals, Trust};
pub use worker::arena::Arena;
pub use worker::batch::Batch;
pub use worker::cells::CellCounts;
pub use worker::channel::{Channel, ChannelId, SendError, SendErrorKind};
pub use worker::claim::{BatchClaim, Claim};
pub use worker::config::{ChannelConfig, Notify, SharedReceivesConfig, SubmitterConfig, WorkerConfig};
pub use worker::event::{ChannelState, Event};
pub use worker::half::{ReceiveHalf, SendHalf};
pub use worker::lease::{Lease, TooLong};
pub use worker::message::Message;
pub use worker::peer::Peer;
pub use worker::ring_channel::{Publications, RingChannel, RingConfig, RingError, RingOpening};
pub use worker::submission::{Submission, SubmissionError, SubmitError, SubmitErrorKind, Submitter};
pub use worker::window::LocalWindow;
pub use worker::{
    CloseError, CloseProgress, NotAPair, NotSplit, ReceiveWorker, SendWorker, SharedReceives, Sleep,
    SplitError, Turn, WaitError, Watched, Worker,
};
