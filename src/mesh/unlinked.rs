//! Reasons why there is no link to a member: the results of the last attempts, kept until there is a link.

use core::fmt;
use core::net::SocketAddr;

use doorbell_core::session::FinalReason;

use crate::error::ConnectError;
use crate::link::{LinkError, NotConnected};

/// A reason why there is no link to a member, from the last attempt.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum NotLinked<'m> {
    /// The member was asked for its handle at this TCP address, and the query failed.
    NotFound {
        /// The address.
        address: SocketAddr,
        /// The reason.
        why: &'m ConnectError,
    },
    /// No link could be begun with the member's handle. If no rail reaches the member, messages to it need a relay.
    NotBegun(&'m LinkError),
    /// No local rail reaches the member, or a rail of the link to it could not be connected.
    NotConnected(&'m NotConnected),
    /// The last link has ended.
    Over(FinalReason),
    /// The member has an earlier start than the known one, and was rejected. Its clock was set back.
    StartedBefore,
    /// The member knows a later start of this rank, and rejected this process. The clock of this host was set back. A process with a later
    /// [`MeshConfig::started`](crate::mesh::MeshConfig::started) is accepted.
    StartedLater,
    /// The member, or another member about it, announced a start that is further ahead of the time here than
    /// [`MeshConfig::start_ahead_max`](crate::mesh::MeshConfig::start_ahead_max). A clock is wrong, here or there, or the announcement is
    /// false.
    StartedAhead,
    /// The link is up, but the member has not sent its Join.
    Silent,
}

impl fmt::Display for NotLinked<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound { address, why } => write!(f, "asked at {address}: {why}"),
            Self::NotBegun(why) => fmt::Display::fmt(why, f),
            Self::NotConnected(rail) => fmt::Display::fmt(rail, f),
            Self::Over(reason) => write!(f, "the last link is over: {reason}"),
            Self::StartedBefore => {
                f.write_str("turned away: it says that it was started earlier than it was last heard of")
            }
            Self::StartedLater => f.write_str(
                "it turned this member away, of which it knows a later start: the clock was set back",
            ),
            Self::StartedAhead => f.write_str(
                "its start is said to be further ahead of the time here than mesh.start_ahead_max: set the clocks of both hosts; if this host slept, or its clock was set since this member started, restart this member",
            ),
            Self::Silent => f.write_str("linked, and it has not said who it is"),
        }
    }
}

/// Failures of the last attempts to link to a member.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    pub(super) not_begun: Option<LinkError>,
    /// Why the last link ended.
    pub(super) over: Option<FinalReason>,
    /// A conflict about the start of this or the other member.
    pub(super) start: Option<NotLinked<'static>>,
    /// The rails of the last link that could not be connected.
    pub(super) rails: Vec<NotConnected>,
}

impl Attempts {
    /// Returns the reasons. `rails` are the failed rails of a link that is being made. If there are any, they replace those of the last
    /// link.
    pub(super) fn reasons<'m>(
        &'m self,
        rails: impl Iterator<Item = &'m NotConnected>,
    ) -> impl Iterator<Item = NotLinked<'m>> {
        let mut rails = rails.peekable();
        let has_later = rails.peek().is_some();
        let before = self.rails.iter().filter(move |_| !has_later);
        let rails = rails.chain(before).map(NotLinked::NotConnected);
        let not_begun = self.not_begun.iter().map(NotLinked::NotBegun);
        let reasons = not_begun.chain(rails).chain(self.start);
        reasons.chain(self.over.map(NotLinked::Over))
    }
}

#[cfg(test)]
mod tests {
    use super::{Attempts, NotLinked};
    use crate::error::ConnectError;
    use crate::link::NotConnected;

    #[test]
    fn failed_rails_of_a_later_link_replace_those_of_the_last_one() {
        let rail = |number: u16| NotConnected {
            between: None,
            why: ConnectError::NoPort(([10, 0, 0, 1], number).into()),
        };
        let attempts = Attempts {
            rails: vec![rail(1), rail(2)],
            ..Attempts::default()
        };
        let port = |reason: NotLinked<'_>| match reason {
            NotLinked::NotConnected(NotConnected {
                why: ConnectError::NoPort(at),
                ..
            }) => at.port(),
            other => panic!("{other}"),
        };
        assert!(attempts.reasons([].iter()).map(port).eq([1, 2]));
        let later = [rail(3)];
        assert!(attempts.reasons(later.iter()).map(port).eq([3]));
    }
}
