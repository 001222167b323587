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

mod acceptances;
mod answer;
mod arena;
mod asking;
mod batch;
mod bring_up;
mod cells;
mod channel;
mod claim;
mod config;
#[cfg(test)]
mod connected;
mod connecting;
mod dial;
mod edge;
mod ending;
mod error;
mod event;
mod half;
mod handshakes;
mod lease;
mod link;
mod listener;
mod lobby;
mod look;
mod mesh;
mod message;
mod metrics;
mod node;
mod peer;
mod preflight;
mod rail_filter;
mod rails;
#[cfg(test)]
#[path = "../fuzz/replay.rs"]
mod replay;
pub mod requests;
mod ring_channel;
mod scan;
#[cfg(feature = "settings")]
mod settings;
mod sizing;
mod submission;
mod tell;
mod topology;
mod trust;
mod unfinished;
mod window;
mod worker;

pub use acceptances::Acceptances;
pub use arena::Arena;
pub use asking::Asking;
pub use batch::Batch;
pub use cells::CellCounts;
pub use channel::{Channel, ChannelId, SendError, SendErrorKind};
pub use claim::{BatchClaim, Claim};
pub use config::{ChannelConfig, Notify, SharedReceivesConfig, SubmitterConfig, WorkerConfig};
pub use connecting::Connecting;
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
pub use edge::background::Background;
pub use edge::clock::{now, within};
pub use edge::metrics_server::MetricsServer;
pub use edge::port_counters::PortCounters;
pub use edge::tcp::{Tcp, TcpAcceptor, TcpHandshake};
pub use error::{ConnectError, NoRoute, NodeError};
pub use event::{ChannelState, Event};
pub use half::{ReceiveHalf, SendHalf};
pub use handshakes::{HandshakeCounts, HandshakeLimits, Handshakes};
pub use lease::{Lease, TooLong};
pub use link::{
    LinkConfig, LinkError, LinkEvent, LinkId, LinkRailCounts, LinkRailReport, Links, NotConnected, RailEnds,
    Request,
};
pub use listener::Listener;
pub use mesh::{
    Group, GroupError, Leaving, Mesh, MeshConfig, MeshCounts, MeshError, MeshEvent, MeshMemberCounts,
    MeshSendError, NotLinked, Running,
};
pub use message::Message;
pub use metrics::{LabelError, Labels, Metrics};
pub use node::{Connection, Node};
pub use peer::Peer;
pub use preflight::{Finding, FindingKind, Severity, preflight};
pub use rail_filter::{FilterSubject, FilterVerdict, RailFilter, RailFilterError, RuleFault};
pub use ring_channel::{Publications, RingChannel, RingConfig, RingError, RingOpening};
#[cfg(feature = "settings")]
pub use settings::{
    LogLevel, MeshSettings, Setting, SettingSource, SettingValues, Settings, SettingsError, SettingsFault,
    Subnets,
};
pub use submission::{Submission, SubmissionError, SubmitError, SubmitErrorKind, Submitter};
#[cfg(feature = "snapshot")]
pub use topology::SnapshotError;
pub use topology::{
    ArpFacts, InterfaceFacts, Map, NeighbourFacts, NeighbourState, PortFacts, Reach, RouteFacts, Topology,
};
pub use trust::{KEY_BYTES_MIN, Key, KeyError, KeyRing, KeyRingError, Refusals, Trust};
pub use window::LocalWindow;
pub use worker::{
    CloseError, CloseProgress, NotAPair, NotSplit, ReceiveWorker, SendWorker, SharedReceives, Sleep,
    SplitError, Turn, WaitError, Watched, Worker,
};

/// The README's example compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The examples of the page on testing run.
#[cfg(doctest)]
#[doc = include_str!("../docs/testing.md")]
struct Testing;
