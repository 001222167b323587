//! Sessions: one ordered stream of messages to a peer, each exactly once, over one rail or several that may fail.
//!
//! A [`Session`] decides; it knows no queue pair, socket, thread or clock. Its tables stand in storage of the caller's.
//!
//! Sends are retained by number until the peer's session acknowledges them ([`Outbox`]). Fragments in flight on a rail
//! that fails are retransmitted over the other rails, or over the rail's next connection. Arriving fragments are put in
//! order and taken once ([`Inbox`]).
//!
//! Each connection of a rail has an epoch of its own, above all epochs before it, and a frame of another epoch is
//! refused. `docs/wire-format.md` has the frames.
//!
//! The caller asks [`Session::poll_action`] for actions and [`Session::poll_event`] for events. It reports back its
//! finished actions, arrived frames and completed requests. Time and entropy are arguments.

mod backoff;
mod config;
mod health;
mod inbox;
mod machine;
mod outbox;
mod rail;
mod requests;
mod striping;

pub use crate::sequence::{Epoch, SESSION_RAILS_MAX, SESSION_WINDOW_MAX, Sequence};
pub use crate::wire::SessionId;
pub use backoff::Backoff;
pub use config::{DETECTION_MAX, SessionConfig, TRANSPORT_RETRY_COUNT, TRANSPORT_TIMEOUT};
use health::Health;
pub use health::HealthState;
pub use inbox::{Held, Inbox, Kept, Verdict};
pub use machine::{
    Action, FinalReason, Offer, PushRefusal, Received, Role, Session, SessionCounts, SessionEvent, Unsent,
    Violation,
};
pub use outbox::{Fragment, Outbox, Retained};
pub use requests::{KeptRequest, Repeat, RequestEnd, RequestId, RequestRefusal, Requests, UnknownReason};

/// Windows that a side grants in a session at a time at most.
pub const SESSION_GRANTS_MAX: u8 = 64;
