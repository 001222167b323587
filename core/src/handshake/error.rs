//! Errors of handshakes: the stage, the cause, and the party at fault.

use core::fmt;

use super::io::StreamErrno;
use crate::wire::stage::Stage;
use crate::wire::{Field, FrameKind, InstanceId, KeyId, Reject, RejectReason, VersionRange, WireError};

/// The party that can fix a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// This side: its caller was late or declined, its handle is stale, or the peer rejected its frames or settings.
    Local,
    /// The peer.
    Peer,
    /// The network between the two sides.
    Network,
    /// Both sides: their configurations do not match.
    Both,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Local => "this side",
            Self::Peer => "the peer",
            Self::Network => "the network",
            Self::Both => "both sides",
        })
    }
}

/// The root cause of a failed handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cause {
    /// The peer closed the stream without a Reject.
    PeerClosed,
    /// The stream failed with this errno.
    Stream(i32),
    /// The stream reported more bytes than it was given: a defect of the [`Io`](super::Io).
    StreamMiscounted,
    /// The stage took longer than its limit.
    StageTimedOut,
    /// The whole handshake took longer than its limit.
    WholeTimedOut,
    /// The peer's bytes are not valid wire format, or contradict an earlier frame.
    Wire(WireError),
    /// The peer sent this frame out of turn.
    UnexpectedFrame(FrameKind),
    /// The sides have no version of the wire format in common.
    Version {
        /// The versions that this side speaks.
        ours: VersionRange,
        /// The versions that the peer speaks.
        theirs: VersionRange,
    },
    /// The handle belongs to another listener than the one that answers at its address.
    StaleHandle {
        /// The instance in the handle.
        meant: InstanceId,
        /// The instance that answers.
        found: InstanceId,
    },
    /// The peer does not prove to have a key, and this side requires one.
    Unauthenticated,
    /// The peer names a key that this side does not have.
    UnknownKey(KeyId),
    /// The peer's proof of having the key is wrong: it has another key, or bytes were changed in transit.
    WrongKey,
    /// The peer rejected the connection for this reason.
    RejectedByPeer(Reject),
    /// This side's caller rejected the connection for this reason.
    RejectedHere(Reject),
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PeerClosed => f.write_str("the peer closed the stream"),
            Self::Stream(errno) => write!(f, "the stream failed: {}", StreamErrno(*errno)),
            Self::StreamMiscounted => f.write_str("the stream moved more bytes than it was given: fix the Stream's calls"),
            Self::StageTimedOut => f.write_str("timed out: the stage took longer than handshake_stage; raise it if the peer is only slow"),
            Self::WholeTimedOut => f.write_str(
                "the time for the whole handshake ran out: give the connecting call a longer deadline, \
                 or the listener a longer handshake_stage",
            ),
            Self::Wire(error) => write!(f, "the peer sent invalid bytes: {error}"),
            Self::UnexpectedFrame(kind) => write!(f, "the peer sent {kind} out of turn"),
            Self::Version { ours, theirs } => {
                write!(
                    f,
                    "this side speaks wire format {ours}, the peer {theirs}: run releases with one in common"
                )
            }
            Self::StaleHandle { meant, found } => {
                write!(
                    f,
                    "the handle is of listener {meant}, and listener {found} answers there: read its new handle"
                )
            }
            Self::Unauthenticated => f.write_str("the peer has no key: open its Node with Trust::keys"),
            Self::UnknownKey(key) => write!(
                f,
                "the peer names key {key}, which this side does not have: add it to this side's keys"
            ),
            Self::WrongKey => f.write_str(
                "the peer's proof of having the key is wrong: another key of that id, or changed on its way; copy one key file to both sides",
            ),
            Self::RejectedByPeer(reject) => write!(f, "the peer rejected the connection: {reject}"),
            Self::RejectedHere(reject) => write!(f, "this side rejected the connection: {reject}"),
        }
    }
}

/// The error of a failed handshake. The caller has to destroy the queue pair that it made for the handshake, if any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HandshakeError {
    /// The stage in which it failed.
    pub stage: Stage,
    /// The root cause.
    pub cause: Cause,
}

impl HandshakeError {
    /// Returns the party that can fix the failure.
    #[must_use]
    pub const fn fault(&self) -> Fault {
        match self.cause {
            Cause::PeerClosed | Cause::Wire(_) | Cause::UnexpectedFrame(_) => Fault::Peer,
            Cause::Stream(_) => Fault::Network,
            Cause::StreamMiscounted | Cause::RejectedHere(_) => Fault::Local,
            Cause::StageTimedOut | Cause::WholeTimedOut => match self.stage {
                Stage::ChooseRail | Stage::Prepare => Fault::Local,
                _ => Fault::Peer,
            },
            Cause::Version { .. } | Cause::Unauthenticated | Cause::UnknownKey(_) | Cause::WrongKey => {
                Fault::Both
            }
            // The initiator has an old handle, so the fault is on that side.
            Cause::StaleHandle { .. } => match self.stage {
                Stage::Welcome => Fault::Local,
                _ => Fault::Peer,
            },
            Cause::RejectedByPeer(reject) => match reject.reason {
                RejectReason::VERSION
                | RejectReason::NO_COMMON_SUBNET
                | RejectReason::UNAUTHENTICATED
                | RejectReason::UNKNOWN_KEY
                | RejectReason::WRONG_KEY
                | RejectReason::NOT_ALLOWED => Fault::Both,
                RejectReason::STALE_HANDLE
                | RejectReason::MALFORMED
                | RejectReason::UNEXPECTED
                | RejectReason::TIMED_OUT
                | RejectReason::PARAMETERS => Fault::Local,
                _ => Fault::Peer,
            },
        }
    }

    /// Returns the Reject to send to the peer; `None` if the peer knows already or the stream is broken.
    pub(crate) fn reject(&self) -> Option<Reject> {
        let (reason, detail) = match self.cause {
            Cause::PeerClosed | Cause::Stream(_) | Cause::StreamMiscounted | Cause::RejectedByPeer(_) => {
                return None;
            }
            Cause::StageTimedOut | Cause::WholeTimedOut => {
                (RejectReason::TIMED_OUT, u32::from(self.stage.to_wire()))
            }
            Cause::Wire(error) => (RejectReason::MALFORMED, u32::from(error.offset)),
            Cause::UnexpectedFrame(kind) => (RejectReason::UNEXPECTED, u32::from(kind.to_wire())),
            Cause::Version { ours, .. } => (
                RejectReason::VERSION,
                u32::from(ours.oldest()) << 8 | u32::from(ours.newest()),
            ),
            Cause::StaleHandle { .. } => (RejectReason::STALE_HANDLE, 0),
            Cause::Unauthenticated => (RejectReason::UNAUTHENTICATED, 0),
            Cause::UnknownKey(key) => (RejectReason::UNKNOWN_KEY, key.to_u32()),
            Cause::WrongKey => (RejectReason::WRONG_KEY, 0),
            Cause::RejectedHere(reject) => (reject.reason, reject.detail),
        };
        Some(Reject { reason, detail })
    }
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "handshake failed while {}: {}", self.stage, self.cause)
    }
}

impl core::error::Error for HandshakeError {}

/// A call that is invalid now: a mistake of the caller. The handshake continues unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Misuse {
    /// The machine did not ask for this call.
    OutOfTurn(Stage),
    /// The handshake is over.
    Over,
    /// The index is not one of this side's rails, or not the rail that the peer chose.
    NoSuchLocalRail(u8),
    /// The index is not one of the peer's rails.
    NoSuchPeerRail(u8),
    /// The GID is not that of the rail.
    GidNotOfRail,
    /// This field of the endpoint is outside its range on the wire, or the peer's version of the wire format lacks it.
    Unsendable(Field),
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfTurn(stage) => write!(f, "not now: the handshake is {stage}"),
            Self::Over => f.write_str("the handshake is over"),
            Self::NoSuchLocalRail(index) => write!(f, "rail {index} of this side is not to be used here"),
            Self::NoSuchPeerRail(index) => write!(f, "the peer has no rail {index}"),
            Self::GidNotOfRail => f.write_str("the GID is not that of the rail"),
            Self::Unsendable(field) => {
                write!(f, "the {field} is outside the range of the wire format")
            }
        }
    }
}

impl core::error::Error for Misuse {}
