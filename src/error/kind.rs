//! Groups of connection failures, by the party that can correct the failure.

use core::fmt;
use std::io;

use doorbell_core::handshake::{Cause, Fault};
use doorbell_core::wire::{Reject, RejectReason};

use super::ConnectError;

/// Group of a [`ConnectError`], for callers that handle groups of errors alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConnectErrorKind {
    /// The configuration of one side or both: settings, keys, subnets, or the given address or handle. Another attempt fails in the same
    /// way.
    Configuration,
    /// A limit of this side is reached: channels, links, memory or unfinished handshakes. Another attempt may succeed later.
    Full,
    /// This host: its device, its memory or its system.
    Host,
    /// The network between the two sides, or a peer that does not answer. Another attempt may succeed.
    Network,
    /// The peer rejected the connection ([`ConnectError::rejected`] has its reason), or broke the protocol.
    Peer,
    /// The call does not fit the object that it was made on.
    Misuse,
    /// A defect of doorbell.
    Bug,
}

impl fmt::Display for ConnectErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Configuration => "configuration",
            Self::Full => "limit reached",
            Self::Host => "this host",
            Self::Network => "network",
            Self::Peer => "peer",
            Self::Misuse => "misuse",
            Self::Bug => "bug",
        })
    }
}

impl ConnectError {
    /// Returns the group of the failure. For [`ConnectError::TimedOut`] of a listener this is the group of the last attempt's failure, or
    /// [`Network`](ConnectErrorKind::Network) if no peer tried.
    #[must_use]
    pub fn kind(&self) -> ConnectErrorKind {
        use ConnectErrorKind::{Bug, Configuration, Full, Host, Misuse, Network, Peer};
        match self {
            Self::Handshake(error) => match (error.cause, error.fault()) {
                (Cause::StageTimedOut | Cause::WholeTimedOut, Fault::Peer) => Network,
                (Cause::StreamMiscounted, _) => Bug,
                (Cause::RejectedByPeer(reject), fault) => match reject.reason {
                    RejectReason::NO_COMMON_SUBNET => Network,
                    RejectReason::STALE_HANDLE | RejectReason::PARAMETERS => Configuration,
                    RejectReason::TIMED_OUT => Host,
                    _ if fault == Fault::Both => Configuration,
                    _ => Peer,
                },
                (_, Fault::Peer) => Peer,
                (_, Fault::Network) => Network,
                (Cause::StageTimedOut | Cause::WholeTimedOut, _) => Host,
                _ => Configuration,
            },
            Self::NotAllowed(_)
            | Self::NoPort(_)
            | Self::OnlyLinkLocal
            | Self::Configuration(_)
            | Self::Setting(_) => Configuration,
            Self::NoRoom { .. }
            | Self::NoShare { .. }
            | Self::NoSlots { .. }
            | Self::NoMemory
            | Self::TooManyChannels { .. }
            | Self::TooManyChannelsFrom { .. }
            | Self::TooManyUnaccepted { .. }
            | Self::TooManyUnfinishedFrom { .. }
            | Self::TooManyLinks { .. }
            | Self::TooManyLinksFrom { .. } => Full,
            Self::Provider(_)
            | Self::PortsTimedOut
            | Self::Cells(_)
            | Self::NoRails
            | Self::Port(_)
            | Self::Entropy(_) => Host,
            Self::Tcp(error) => match error.kind() {
                io::ErrorKind::AddrInUse
                | io::ErrorKind::AddrNotAvailable
                | io::ErrorKind::PermissionDenied => Configuration,
                io::ErrorKind::OutOfMemory => Host,
                // EAGAIN, ENFILE and EMFILE: the system gave no thread or no descriptor.
                _ if matches!(error.raw_os_error(), Some(11 | 23 | 24)) => Host,
                _ => Network,
            },
            Self::NoRoute(_) | Self::Unanswered(_) => Network,
            Self::TimedOut { last_failure } => last_failure.as_ref().map_or(Network, |error| error.kind()),
            Self::OtherWorkers | Self::OtherTrust | Self::ListenerClosed | Self::Misuse(_) => Misuse,
            Self::Unreachable(_) => Bug,
        }
    }

    /// Returns the peer's reason, if the peer rejected the connection.
    #[must_use]
    pub fn rejected(&self) -> Option<Reject> {
        match self {
            Self::Handshake(error) => match error.cause {
                Cause::RejectedByPeer(reject) => Some(reject),
                _ => None,
            },
            Self::TimedOut {
                last_failure: Some(error),
            } => error.rejected(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use doorbell_core::handshake::{HandshakeError, Stage};

    use super::*;

    fn handshake(stage: Stage, cause: Cause) -> ConnectError {
        ConnectError::Handshake(HandshakeError { stage, cause })
    }

    #[test]
    fn a_rejected_connection_has_the_peers_reason_and_a_group_by_it() {
        let by = |reason| {
            let reject = Reject { reason, detail: 7 };
            let error = handshake(Stage::Welcome, Cause::RejectedByPeer(reject));
            assert_eq!(error.rejected(), Some(reject));
            let late = ConnectError::TimedOut {
                last_failure: Some(Box::new(error)),
            };
            assert_eq!(late.rejected(), Some(reject));
            late.kind()
        };
        assert_eq!(by(RejectReason::BUSY), ConnectErrorKind::Peer);
        assert_eq!(by(RejectReason::MALFORMED), ConnectErrorKind::Peer);
        assert_eq!(by(RejectReason::WRONG_KEY), ConnectErrorKind::Configuration);
        assert_eq!(by(RejectReason::STALE_HANDLE), ConnectErrorKind::Configuration);
        assert_eq!(by(RejectReason::NO_COMMON_SUBNET), ConnectErrorKind::Network);
        assert_eq!(by(RejectReason::TIMED_OUT), ConnectErrorKind::Host);
    }

    #[test]
    fn a_port_in_use_is_a_matter_of_configuration() {
        let of = |errno| ConnectError::Tcp(io::Error::from_raw_os_error(errno)).kind();
        // EADDRINUSE, EMFILE, ECONNRESET.
        assert_eq!(of(98), ConnectErrorKind::Configuration);
        assert_eq!(of(24), ConnectErrorKind::Host);
        assert_eq!(of(104), ConnectErrorKind::Network);
    }

    #[test]
    fn a_silent_peer_is_a_matter_of_the_network_and_a_slow_device_one_of_this_host() {
        let silent = handshake(Stage::Welcome, Cause::StageTimedOut);
        assert_eq!(silent.kind(), ConnectErrorKind::Network);
        let slow = handshake(Stage::Prepare, Cause::WholeTimedOut);
        assert_eq!(slow.kind(), ConnectErrorKind::Host);
        assert_eq!(silent.rejected(), None);
        let nobody = ConnectError::TimedOut { last_failure: None };
        assert_eq!(nobody.kind(), ConnectErrorKind::Network);
    }
}
