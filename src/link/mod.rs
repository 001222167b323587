//! Links: one ordered stream of messages to a peer over all rails that reach it, each message exactly once.
//!
//! `doorbell_core::session` decides what a link does. This module executes the decisions, with channels of Workers and the
//! handshakes that create them: [`Links`] holds all links of one thread's Workers, and polls them.
//!
//! # Memory
//! A link reserves the memory for messages and requests when it is created. Two things are allocated later: the memory of placed
//! messages, and the list of messages that a mesh shares with it. A message is copied when the link accepts it, since it may have to be
//! retransmitted. A fragment is copied again into a slot of a Worker when a rail sends it. A fragment that arrives early is copied, so
//! that it does not occupy a receive.
//!
//! # Rails
//! `Links::connect` begins a link over every pair of rails that reach each other. Each attempt to connect a rail looks up the present
//! addresses of its port. The connecting side uses each of its ports for one rail, however many addresses the port has. The
//! accepting side takes one connection of a link on each of its ports. Further connections on the port are refused; their rails stand by,
//! and are connected if another rail is lost. A new connection replaces a suspect rail on its port. The health of a rail depends only on
//! the transport: the peer's device answers a probe even if the peer's process is stopped.
//!
//! The accepting side announces a changed address over a connected rail, and the connecting side connects to it. Without a connected
//! rail, the connecting side needs the new handle ([`Links::reroute`]). If a handle has no room for all rails of a process, the
//! connecting side begins with the listed rails, and asks the process for the others.
//!
//! # Ends
//! A side that ends a link without a farewell sends the reason on each connection that it closes, and again to a peer that
//! reconnects. The reasons of the last [`LinkConfig::links_max`] links that peers began, at least 64, are kept for this. If the side
//! granted windows, or if its device still reads memory for a transfer, connections are closed at once, and the reason may be lost.
//! Without a connection the peer is not notified: an accepting peer ends its link when its time to recover is over.

mod acceptor;
mod arrivals;
mod assembly;
mod classes;
mod config;
mod dialing;
mod dispatch;
mod ended;
mod event;
mod fences;
mod grants;
mod links;
mod log;
mod moment;
mod moved;
mod one_sided;
mod placing;
mod question;
mod rail;
mod report;
mod resting;
mod shared;
mod sleeping;
mod state;
mod store;
mod table;
mod transfers;
mod windows;

pub use config::{LinkConfig, LinkError};
pub use doorbell_core::session::{
    Backoff, DETECTION_MAX, Epoch, FinalReason, HealthState, PushRefusal, RequestEnd, RequestId,
    RequestRefusal, SESSION_RAILS_MAX, SESSION_WINDOW_MAX, Sequence, SessionConfig, SessionCounts,
    SessionEvent, SessionId, UnknownReason, Violation,
};
pub use event::{LinkEvent, LinkId};
pub use links::Links;
pub use one_sided::Request;
pub use placing::PlacedMemory;
pub use rail::{LinkRailCounts, NotConnected, RailEnds};
pub use report::LinkRailReport;
pub use sleeping::{LinkDescriptor, WatchedNetwork};
pub(crate) use sleeping::{PendingWork, WaitTarget, is_ready_to_sleep, poll_settling};
pub use transfers::{
    EndReason, LoanId, TransferConfig, TransferCounts, TransferEnd, TransferEvent, TransferId,
    TransferOptions, TransferOutcome, TransferRefusal, TransferRole, TransferTotals,
};
