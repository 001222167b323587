//! The links of a mesh, and what is still to be said on each.

use core::time::Duration;

use doorbell_core::rank::{Rank, Ranks};
use doorbell_core::wire::InstanceId;
use doorbell_core::{Deadline, Instant};

use crate::link::LinkId;

/// A link to a member that shares a subnet.
#[derive(Debug)]
pub(super) struct Neighbour {
    pub(super) link: LinkId,
    /// Process whose handle this side connected by.
    pub(super) instance: Option<InstanceId>,
    /// Rank of the neighbour: known from the beginning if this side connected, else once it said so.
    pub(super) rank: Option<Rank>,
    /// Whether the link is up, so that frames can be sent.
    pub(super) is_up: bool,
    /// When its link came up, or when it was found to be outdated.
    pub(super) since: Instant,
    /// Whether the link lost its rails, and is trying to get one again.
    pub(super) is_without_rail: bool,
    /// Whether this member has sent its Join.
    pub(super) has_joined: bool,
    /// Whether its Join came.
    pub(super) was_joined: bool,
    /// Its start, by its Join.
    pub(super) started: u64,
    /// Rank that it claims, if a later start of that member is known. It gets the later start, and is turned away.
    pub(super) outdated: Option<Rank>,
    /// Whether its link is being closed, since its peer is no member.
    pub(super) is_turned_away: bool,
    /// Members whose neighbours are yet to be announced to it.
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

    /// Marks it as turned away under this rank: a later start of that member is known, and is announced to it.
    pub(super) fn turn_away_as(&mut self, rank: Rank, now: Instant) {
        (self.was_joined, self.since) = (false, now);
        (self.outdated, self.unreported) = (Some(rank), Ranks::NONE.with(rank));
    }

    /// Whether frames of it count: its link is not about to be closed.
    pub(super) const fn is_heard(&self) -> bool {
        !self.is_turned_away && self.outdated.is_none()
    }

    /// By when its link is closed, if its peer does not say before who it is. A link that is not up has a deadline of its own.
    pub(super) fn silent_until(&self, within: Duration) -> Option<Deadline> {
        let is_silent = self.is_up && !self.is_without_rail && !self.was_joined && !self.is_turned_away;
        is_silent.then(|| Deadline::after(self.since, within))
    }

    /// Whether a Join or an announcement is owed to it, and its link can carry one.
    pub(super) fn has_to_say(&self) -> bool {
        let is_heard = self.was_joined || self.outdated.is_some();
        let is_unreported = !self.has_joined || (is_heard && !self.unreported.is_empty());
        is_unreported && self.is_up && !self.is_without_rail
    }

    /// The member there, once both sides said who they are.
    pub(super) fn joined(&self) -> Option<Rank> {
        self.rank.filter(|_| self.has_joined && self.was_joined)
    }
}
