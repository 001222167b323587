//! Reasons why no link leads to a member: the results of the last attempts, kept until there is a link.

use core::fmt;
use core::net::SocketAddr;

use doorbell_core::session::FinalReason;

use crate::error::ConnectError;
use crate::link::{LinkError, NotConnected};

/// A reason why no link leads to a member, as the last attempt left it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum NotLinked<'m> {
    /// The member listens at an address, and did not say there by which rails it is reached.
    NotFound {
        /// The address.
        address: SocketAddr,
        /// Why.
        why: &'m ConnectError,
    },
    /// No link could be begun by its handle. If that is for want of a rail, other members are to be between.
    NotBegun(&'m LinkError),
    /// The member's link has no rail, or a rail of it could not be connected.
    NotConnected(&'m NotConnected),
    /// The link there was is over.
    Over(FinalReason),
    /// The member claims a start before the last one known, and was turned away: its clock was set back.
    StartedBefore,
    /// The member knows of a later start of this one, and turned this one away: the clock was set back. A member with a later
    /// [`MeshConfig::started`](crate::mesh::MeshConfig::started) is let in.
    StartedLater,
    /// The member says, or another says of it, that it was started further ahead of the time here than
    /// [`MeshConfig::start_ahead_max`](crate::mesh::MeshConfig::start_ahead_max): a clock is wrong, here or there, or that member lies.
    StartedAhead,
    /// There is a link, on which it has not said who it is.
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
                "its start is said to be further ahead of the time here than mesh.start_ahead_max: set the clocks of both hosts",
            ),
            Self::Silent => f.write_str("linked, and it has not said who it is"),
        }
    }
}

/// Failures of the last attempts to link to a member.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    pub(super) not_begun: Option<LinkError>,
    /// Why the last link is over.
    pub(super) over: Option<FinalReason>,
    /// Conflict between the starts of this member and the other.
    pub(super) start: Option<NotLinked<'static>>,
    /// Its rails that were not connected.
    pub(super) rails: Vec<NotConnected>,
}

impl Attempts {
    /// The reasons. `rails` are those of a link that is being made, which count before those of the last.
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
