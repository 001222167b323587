//! The handshake as two state machines without sockets, threads, clocks or entropy of their own.
//!
//! An [`Initiator`] and a [`Responder`] are advanced by `poll(now, io)`. Each returns a [`Step`] that says what it
//! needs of its caller:
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
//! Accept says that the responder's queue pair is in RTS and the initiator's Ready says the same, so
//! neither side is `Connected` before it knows that the other sends and receives. Each frame is read
//! to its last byte and no further: what follows the handshake on the stream is left there.
//!
//! A side that has keys ([`Authenticator`]) names one in its Hello. From Welcome on, each frame ends with a tag over
//! all bytes that both sides sent so far, which proves that the sender has that key. An initiator therefore gives its
//! endpoint only to a listener that has the key. A responder reaches `Prepare` only for an initiator that has it.
//!
//! Queue pairs, the choice of a rail and the source of the bytes must not be known here.

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

/// How long a handshake may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// The most any one stage takes, whether it waits for the peer or for the caller. Default 1 s: a
    /// thousand round trips of a data centre, and many times what a queue pair takes to set up.
    pub stage: Duration,
    /// The most the whole takes. Default 5 s: no more than a peer should hold a place among those
    /// that are connecting.
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

/// Next thing that a machine needs from its caller. Every poll returns it again until it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// Bytes of the peer, or room for our own, by [`deadline`](Initiator::deadline).
    Pending,
    /// Initiator only: choose among [`peer_rails`](Initiator::peer_rails), create a queue pair, and
    /// [`offer`](Initiator::offer) it.
    ChooseRail,
    /// Connect the queue pair to this peer: the responder creates it first. Then
    /// [`ready`](Initiator::ready) or [`accept`](Responder::accept).
    Prepare(Prepare),
    /// Done: both queue pairs are in RTS.
    Connected(Established),
    /// Failed for good. The peer got a Reject if the stream still took it.
    Failed(HandshakeError),
}

/// Endpoint to which the caller has to connect its queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Prepare {
    /// The peer's endpoint.
    pub peer: Endpoint,
    /// Which of the caller's own rails the connection is on, as an index into the list it gave.
    pub local_rail: u8,
}

/// Settings that both sides use, derived from the parameters of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Agreed {
    /// The lower of both MTUs.
    pub mtu: Mtu,
    /// READs and atomics this side may have in flight: no more than the peer serves.
    pub max_rd_atomic: u8,
    /// READs and atomics this side has to serve: no more than the peer sends.
    pub max_dest_rd_atomic: u8,
}

impl Agreed {
    /// Returns the settings that follow from the two sides' parameters, seen from `local`.
    #[must_use]
    pub fn between(local: &EndpointParameters, peer: &EndpointParameters) -> Self {
        Self {
            mtu: local.mtu.min(peer.mtu),
            max_rd_atomic: local.max_rd_atomic.min(peer.max_dest_rd_atomic),
            max_dest_rd_atomic: local.max_dest_rd_atomic.min(peer.max_rd_atomic),
        }
    }
}

/// A connection both sides are ready to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Established {
    /// Our endpoint.
    pub local: Endpoint,
    /// The peer's.
    pub peer: Endpoint,
    /// The settings that both use.
    pub agreed: Agreed,
    /// The instance that is the peer.
    pub peer_instance: InstanceId,
    /// The version of the wire format that was spoken.
    pub version: u8,
    /// The key that the peer proved to have; `None` where this side goes without.
    pub key: Option<KeyId>,
}
