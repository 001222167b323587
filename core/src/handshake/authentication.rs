//! Authentication: a side proves that it has a key, and requires this proof from its peer.
//!
//! This module does not know the function that computes a tag from a key and bytes.

use core::fmt;

use crate::wire::{FrameKind, KeyId, Tag};

/// The keys of a side, if it has any.
///
/// A side with keys accepts only peers that prove to have the same key. It speaks only versions whose frames can carry
/// proofs.
pub trait Authenticator {
    /// The running tag of one handshake's bytes under a key.
    type Transcript: Transcript;

    /// Returns the key that proves this side's frames when it connects, and a new transcript under it; `None` if the
    /// side has no keys.
    fn sending(&self) -> Option<(KeyId, Self::Transcript)>;

    /// Returns a new transcript under this key; `None` if this side does not have it.
    fn begin(&self, key: KeyId) -> Option<Self::Transcript>;
}

/// All bytes of one handshake so far, under a key. The `Debug` output must not reveal the key.
pub trait Transcript: Clone + fmt::Debug {
    /// Appends these bytes.
    fn absorb(&mut self, bytes: &[u8]);

    /// Returns the tag of the bytes so far: HMAC-SHA-256. Only a holder of the key can compute it. Other bytes have
    /// another tag.
    ///
    /// Source: RFC 2104, FIPS 180-4.
    fn tag(&self) -> Tag;
}

/// A side without keys. Any peer that reaches it may connect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unauthenticated;

/// The transcript of a side without keys, which has no values.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_enums, reason = "there will never be a value of it")]
pub enum NoTranscript {}

impl Authenticator for Unauthenticated {
    type Transcript = NoTranscript;

    fn sending(&self) -> Option<(KeyId, NoTranscript)> {
        None
    }

    fn begin(&self, _: KeyId) -> Option<NoTranscript> {
        None
    }
}

impl Transcript for NoTranscript {
    fn absorb(&mut self, _: &[u8]) {
        match *self {}
    }

    fn tag(&self) -> Tag {
        match *self {}
    }
}

/// The side that sends a frame. The same bytes from the other side have another tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Initiator = 1,
    Responder = 2,
}

impl Role {
    pub(super) const fn peer(self) -> Self {
        match self {
            Self::Initiator => Self::Responder,
            Self::Responder => Self::Initiator,
        }
    }
}

/// The prefix of every transcript. With it, a tag made with the same key in another protocol proves nothing here.
const PROTOCOL: &[u8] = b"doorbell handshake";

/// The transcript of the frames of both sides in the order of sending, from which tags are computed and checked.
#[derive(Clone, Debug)]
pub(super) struct Proven<T>(T);

impl<T: Transcript> Proven<T> {
    pub(super) fn new(mut transcript: T) -> Self {
        transcript.absorb(PROTOCOL);
        Self(transcript)
    }

    /// Appends a frame without a tag.
    pub(super) fn absorb(&mut self, frame: &[u8]) {
        self.0.absorb(frame);
    }

    /// Appends a frame up to its tag, and returns the tag of the sender `from`.
    pub(super) fn seal(&mut self, from: Role, kind: FrameKind, covered: &[u8]) -> Tag {
        self.0.absorb(covered);
        let mut ending = self.0.clone();
        ending.absorb(&[from as u8, kind.to_wire()]);
        let tag = ending.tag();
        self.0.absorb(&tag.0);
        tag
    }
}
