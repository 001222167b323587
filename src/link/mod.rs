//! Links: one ordered stream of messages to a peer over all rails that reach it, each message exactly once.
//!
//! `doorbell_core::session` decides what a link does. This module carries it out, with channels of Workers and the handshake
//! that makes them: [`Links`] holds all links of one thread's Workers, and polls them.
//!
//! # Memory
//! All memory of a link exists from its beginning, and no message allocates. A message is copied when it is accepted, since it
//! may have to be retransmitted, and again into a rail's memory when it is sent. An early fragment is copied, so that it holds no
//! receive.
//!
//! # Rails
//! `Links::connect` begins a link over every pair of rails that reach each other. Each rail looks anew for the addresses of its
//! port whenever it connects. The side that connects takes each of its ports for one rail, whatever addresses the port has. The
//! other side takes one connection of a link on each of its ports; the next one stands by until a rail is lost. A suspect rail
//! gives way to it. Only the transport judges a rail: the peer's device answers a probe, even with its process stopped.
//!
//! A changed address is announced over any rail that stands, and the other side connects to it. If no rail stands, that
//! side needs the new handle ([`Links::reroute`]). If a handle has no room for all rails of a process, the side that connects
//! begins with the rails that it has, and asks for all.
//!
//! # Ends
//! A side that ends a link without a farewell sends the reason on each connection that it shuts. It repeats the reason to a peer
//! that comes back, for as many links that ended last as there may be ([`LinkConfig::links_max`]), 64 at least. If windows were
//! granted, connections are shut at once, and the reason may be lost. If no connection stands, nobody is notified, and the side that is connected to waits its time to recover.

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
pub(crate) use sleeping::{Left, WaitedFor, is_ready_to_sleep, poll_settling};
pub use sleeping::{LinkDescriptor, WatchedNetwork};
pub use transfers::{
    EndReason, LoanId, TransferConfig, TransferCounts, TransferEnd, TransferEvent, TransferId,
    TransferOptions, TransferOutcome, TransferRefusal, TransferRole, TransferTotals,
};
