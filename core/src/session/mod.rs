//! Sessions: one ordered stream of messages to a peer, each delivered exactly once, over one or more rails that may fail.
//!
//! A [`Session`] only makes decisions: it uses no queue pair, socket, thread or clock. Its tables are in storage from the caller.
//!
//! Fragments are retained by number until the peer's session acknowledges them ([`Outbox`]). If a rail fails, its
//! fragments in flight are retransmitted over the other rails, or over the rail's next connection. Received fragments are
//! put in order, and each is taken once ([`Inbox`]).
//!
//! Each connection of a rail has a new epoch, greater than all earlier epochs. A frame of another epoch is dropped and
//! counted. `docs/wire-format.md` has the frames.
//!
//! The caller polls [`Session::poll_action`] for actions and [`Session::poll_event`] for events. It reports its
//! finished actions, received frames and completed requests. Time and entropy are arguments.

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

/// The maximum number of windows that a side grants in a session at a time.
pub const SESSION_GRANTS_MAX: u8 = 64;
