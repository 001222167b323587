//! The links of a mesh, and the Joins and announcements that still have to be sent on each.

use core::time::Duration;

use doorbell_core::rank::{Rank, Ranks};
use doorbell_core::wire::InstanceId;
use doorbell_core::{Deadline, Instant};

use crate::link::LinkId;

/// A link to a member that shares a subnet.
#[derive(Debug)]
pub(super) struct Neighbour {
    pub(super) link: LinkId,
    /// The instance in the handle that this side connected with. `None` if the other side connected.
    pub(super) instance: Option<InstanceId>,
    /// Rank of the neighbour: known from the beginning if this side connected, otherwise from its Join.
    pub(super) rank: Option<Rank>,
    /// Whether the link is up, so that frames can be sent.
    pub(super) is_up: bool,
    /// When the link came up, or when its peer was found to be outdated.
    pub(super) since: Instant,
    /// Whether the link has lost all its rails and is trying to reconnect one.
    pub(super) is_without_rail: bool,
    /// Whether this member has sent its Join.
    pub(super) has_joined: bool,
    /// Whether a valid Join of the neighbour has arrived.
    pub(super) was_joined: bool,
    /// The start of the neighbour, from its Join.
    pub(super) started: u64,
    /// The rank that the peer claims, if a later start of that member is known. The peer is sent the later start, and is rejected.
    pub(super) outdated: Option<Rank>,
    /// Whether the link is being closed, since its peer is not a member.
    pub(super) is_turned_away: bool,
    /// Members whose announcements still have to be sent to the neighbour.
    pub(super) unreported: Ranks,
}

impl Neighbour {
    pub(super) const fn new(
        link: LinkId,
        instance: Option<InstanceId>,
        rank: Option<Rank>,
        now: Instant,
    ) -> Self {
        Self {
            link,
            instance,
            rank,
            is_up: false,
            since: now,
            is_without_rail: false,
            has_joined: false,
            was_joined: false,
            started: 0,
            outdated: None,
            is_turned_away: false,
            unreported: Ranks::NONE,
        }
    }

    /// Marks the peer as outdated: a later start of the member with this rank is known. The later start will be announced to the peer.
    pub(super) fn turn_away_as(&mut self, rank: Rank, now: Instant) {
        (self.was_joined, self.since) = (false, now);
        (self.outdated, self.unreported) = (Some(rank), Ranks::NONE.with(rank));
    }

    /// Whether frames of the peer are processed. They are not if the link is about to be closed.
    pub(super) const fn is_heard(&self) -> bool {
        !self.is_turned_away && self.outdated.is_none()
    }

    /// Returns when the link is closed if no Join of the peer arrives before. `None` for a link that is not up: it has another deadline.
    pub(super) fn silent_until(&self, within: Duration) -> Option<Deadline> {
        let is_silent = self.is_up && !self.is_without_rail && !self.was_joined && !self.is_turned_away;
        is_silent.then(|| Deadline::after(self.since, within))
    }

    /// Whether a Join or an announcement has to be sent to the neighbour, and the link can carry it.
    pub(super) fn has_to_say(&self) -> bool {
        let is_heard = self.was_joined || self.outdated.is_some();
        let is_unreported = !self.has_joined || (is_heard && !self.unreported.is_empty());
        is_unreported && self.is_up && !self.is_without_rail
    }

    /// Returns the member at the other end, after both sides have sent a Join.
    pub(super) fn joined(&self) -> Option<Rank> {
        self.rank.filter(|_| self.has_joined && self.was_joined)
    }
}
