//! How a side proves that it has a key, and demands that proof of its peer.
//!
//! The function that makes a tag from a key and bytes must not be known here.

use core::fmt;

use crate::wire::{FrameKind, KeyId, Tag};

/// The keys of a side, if it has any.
///
/// A side that has keys accepts no peer that does not prove to have the same key. It speaks no version that has no
/// place for proofs.
pub trait Authenticator {
    /// Running tag of one handshake's bytes under a key.
    type Transcript: Transcript;

    /// Returns the key that proves this side's frames when it connects, and a new transcript under it; `None` if the
    /// side has no keys.
    fn sending(&self) -> Option<(KeyId, Self::Transcript)>;

    /// Returns a new transcript under this key; `None` if this side does not have it.
    fn begin(&self, key: KeyId) -> Option<Self::Transcript>;
}

/// All bytes of one handshake so far, under a key. Its `Debug` output must reveal nothing of the key.
pub trait Transcript: Clone + fmt::Debug {
    /// Goes on with these bytes.
    fn absorb(&mut self, bytes: &[u8]);

    /// Returns the tag of the bytes so far: HMAC-SHA-256. Only a holder of the key can make it. Other bytes have
    /// another tag.
    ///
    /// Source: RFC 2104, FIPS 180-4.
    fn tag(&self) -> Tag;
}

/// A side without keys. Any peer that reaches it may connect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unauthenticated;

/// The transcript of a side without keys: there is none.
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

/// Which side sends a frame: the same bytes from the other side make another tag.
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

/// Prefix of every transcript. With it, a tag that the key made in another protocol proves nothing here.
const PROTOCOL: &[u8] = b"doorbell handshake";

/// Transcript of the frames of both sides in the order they were sent, from which tags are made and checked.
#[derive(Clone, Debug)]
pub(super) struct Proven<T>(T);

impl<T: Transcript> Proven<T> {
    pub(super) fn new(mut transcript: T) -> Self {
        transcript.absorb(PROTOCOL);
        Self(transcript)
    }

    /// Takes a frame that has no tag.
    pub(super) fn absorb(&mut self, frame: &[u8]) {
        self.0.absorb(frame);
    }

    /// Takes a frame up to its tag, and gives the tag of `from`.
    pub(super) fn seal(&mut self, from: Role, kind: FrameKind, covered: &[u8]) -> Tag {
        self.0.absorb(covered);
        let mut ending = self.0.clone();
        ending.absorb(&[from as u8, kind.to_wire()]);
        let tag = ending.tag();
        self.0.absorb(&tag.0);
        tag
    }
}
