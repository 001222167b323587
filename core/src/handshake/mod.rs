//! The handshake as two state machines without sockets, threads, clocks or entropy.
//!
//! `poll(now, io)` advances an [`Initiator`] or a [`Responder`], and returns a [`Step`]: the next thing that the
//! machine needs from its caller.
//!
//! | initiator | on the wire | responder |
//! |---|---|---|
//! | polls | Hello → | polls |
//! | | ← Welcome | |
//! | `ChooseRail`: chooses, creates its queue pair, [`offer`](Initiator::offer) | Connect → | |
//! | | | `Prepare`: creates its queue pair, posts receives, RTR, RTS, [`accept`](Responder::accept) |
//! | | ← Accept | |
//! | `Prepare`: posts receives, RTR, RTS, [`ready`](Initiator::ready) | Ready → | |
//! | | ← Ready | `Connected` |
//! | `Connected` | | |
//!
//! An Accept means that the responder's queue pair is in RTS, and the initiator's Ready means the same of its own. So
//! neither side is `Connected` before it knows that the other can send and receive. Each frame is read only up to its
//! last byte: bytes after the handshake stay in the stream.
//!
//! An initiator with keys ([`Authenticator`]) names one in its Hello. From Welcome on, each frame ends with a tag over
//! all bytes that both sides sent so far, which proves that the sender has that key. So an initiator sends its
//! endpoint only to a listener that has the key. A responder reaches `Prepare` only for an initiator that has it.
//!
//! This module does not know queue pairs, the choice of a rail, or the source of the bytes.

mod authentication;
mod error;
mod initiator;
mod io;
mod responder;
mod session;

use core::time::Duration;

pub use crate::wire::stage::Stage;
pub use authentication::{Authenticator, NoTranscript, Transcript, Unauthenticated};
pub use error::{Cause, Fault, HandshakeError, Misuse};
pub use initiator::{Initiator, InitiatorConfig};
pub use io::{Io, IoError};
pub use responder::{Responder, ResponderConfig};

use crate::Mtu;
use crate::wire::{Endpoint, EndpointParameters, InstanceId, KeyId};

/// The time limits of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// The limit of each stage, whether it waits for the peer or for the caller. Default 1 s: a
    /// thousand round trips in a data centre, and many times the set-up time of a queue pair.
    pub stage: Duration,
    /// The limit of the whole handshake. Default 5 s, so that a slow peer does not hold its place
    /// among the handshakes under way for longer.
    pub whole: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            stage: Duration::from_secs(1),
            whole: Duration::from_secs(5),
        }
    }
}

/// The next thing that a machine needs from its caller. Every poll returns it again until it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// The machine waits for bytes of the peer, or for room to send, until its [`deadline`](Initiator::deadline).
    Pending,
    /// Initiator only: choose among [`peer_rails`](Initiator::peer_rails), create a queue pair, and
    /// [`offer`](Initiator::offer) it.
    ChooseRail,
    /// Connect the queue pair to this peer; the responder creates it first. Then call
    /// [`ready`](Initiator::ready) or [`accept`](Responder::accept).
    Prepare(Prepare),
    /// Done: both queue pairs are in RTS.
    Connected(Established),
    /// The handshake failed. The peer got a Reject if the stream still accepted one.
    Failed(HandshakeError),
}

/// The endpoint to which the caller has to connect its queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Prepare {
    /// The peer's endpoint.
    pub peer: Endpoint,
    /// The local rail of the connection, as an index into the caller's list of rails.
    pub local_rail: u8,
}

/// Settings that both sides use, derived from the parameters of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Agreed {
    /// The lower of both MTUs.
    pub mtu: Mtu,
    /// The READs and atomics that this side may have in flight, at most as many as the peer serves.
    pub max_rd_atomic: u8,
    /// The READs and atomics that this side has to serve, at most as many as the peer sends.
    pub max_dest_rd_atomic: u8,
}

impl Agreed {
    /// Returns the settings that follow from the parameters of both sides, as seen by `local`.
    #[must_use]
    pub fn between(local: &EndpointParameters, peer: &EndpointParameters) -> Self {
        Self {
            mtu: local.mtu.min(peer.mtu),
            max_rd_atomic: local.max_rd_atomic.min(peer.max_dest_rd_atomic),
            max_dest_rd_atomic: local.max_dest_rd_atomic.min(peer.max_rd_atomic),
        }
    }
}

/// A connection that both sides are ready to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Established {
    /// The endpoint of this side.
    pub local: Endpoint,
    /// The endpoint of the peer.
    pub peer: Endpoint,
    /// The settings that both use.
    pub agreed: Agreed,
    /// The instance of the peer.
    pub peer_instance: InstanceId,
    /// The version of the wire format in use.
    pub version: u8,
    /// The key that the peer proved to have; `None` if this side has no keys.
    pub key: Option<KeyId>,
}
