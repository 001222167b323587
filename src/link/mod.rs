//! Links: one ordered stream of messages to a peer over all rails that reach it, each message exactly once.
//!
//! `doorbell_core::session` decides what a link does. This module carries it out, with channels of Workers and the handshake
//! that makes them: [`Links`] holds all links of one thread's Workers, and polls them.

mod arrivals;
mod config;
mod dialing;
mod dispatch;
mod door;
mod ended;
mod fences;
mod grants;
mod links;
mod moved;
mod one_sided;
mod question;
mod rail;
mod report;
mod state;
mod store;
mod table;
mod told;

pub use config::{LinkConfig, LinkError};
pub use doorbell_core::session::{
    DETECTION_MAX, Epoch, FinalReason, HealthState, PushRefusal, RequestEnd, RequestId, RequestRefusal,
    SESSION_RAILS_MAX, SESSION_WINDOW_MAX, Sequence, SessionCounts, SessionEvent, SessionId, UnknownReason,
    Violation,
};
pub use links::{LinkEvent, LinkId, Links};
pub use one_sided::Request;
pub use rail::{LinkRailCounts, NotConnected, RailEnds};
pub use report::LinkRailReport;
