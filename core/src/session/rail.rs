//! One rail of a session: its connection, and how it is.

use super::{Epoch, Health, HealthState};
use crate::{Deadline, Instant};

/// Phase of a rail's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RailPhase {
    /// The session has no such rail.
    Unused,
    /// It has no connection; the side that connects tries again at `retry`.
    Detached { retry: Option<Deadline> },
    /// One is being made.
    Connecting,
    /// There is one, and the peer has not yet answered what we said first; whether we did.
    Attaching { until: Deadline, has_said: bool },
    /// It is the session's; whether we said our first.
    Attached { has_said: bool },
}

#[derive(Debug)]
pub(super) struct Rail {
    pub(super) phase: RailPhase,
    /// The epoch of its connection, or of its last one.
    pub(super) epoch: Epoch,
    pub(super) speed_mbps: u32,
    pub(super) health: Health,
    /// When it last gave a sign of life; kept when it fails.
    pub(super) heard_at: Option<Instant>,
    /// Requests posted and not completed.
    pub(super) outstanding: u32,
    /// Their bytes.
    pub(super) backlog_bytes: u64,
    /// Whether it took no more when it was last tried.
    pub(super) is_blocked: bool,
    /// Whether the caller holds messages back from it.
    pub(super) is_held: bool,
    /// Whether the peer lent memory over its connection, for fragments that are written there.
    pub(super) takes_placed: bool,
    /// Attempts to connect that failed since it was up.
    pub(super) attempts_failed: u32,
    /// Whether, when it was last to be connected, another process than the peer's was there.
    pub(super) leads_elsewhere: bool,
    /// Whether it was up, and failed.
    pub(super) has_failed: bool,
    /// Whether its connection is to be shut.
    pub(super) must_shut: bool,
    /// Whether the peer has another rail on the port it leads to: it is connected once one is lost, or cannot be
    /// connected.
    pub(super) stands_by: bool,
}

impl Rail {
    pub(super) const fn unused() -> Self {
        Self {
            phase: RailPhase::Unused,
            epoch: Epoch::NONE,
            speed_mbps: 0,
            health: Health::down(),
            heard_at: None,
            outstanding: 0,
            backlog_bytes: 0,
            is_blocked: false,
            is_held: false,
            takes_placed: false,
            attempts_failed: 0,
            leads_elsewhere: false,
            has_failed: false,
            must_shut: false,
            stands_by: false,
        }
    }

    /// Whether the peer is to be reached over it.
    pub(super) const fn is_attached(&self) -> bool {
        matches!(self.phase, RailPhase::Attached { .. })
    }

    /// Whether there is something to post on.
    pub(super) const fn has_connection(&self) -> bool {
        matches!(
            self.phase,
            RailPhase::Attaching { .. } | RailPhase::Attached { .. }
        )
    }

    /// Whether messages may go over it.
    pub(super) const fn is_usable(&self) -> bool {
        matches!(self.phase, RailPhase::Attached { has_said: true })
    }

    /// Whether a message may go over it now, if any may.
    pub(super) const fn takes_messages(&self) -> bool {
        !self.is_blocked && !self.is_held
    }

    /// Whether it is among those the session works with.
    pub(super) const fn is_up(&self) -> bool {
        self.is_usable() && matches!(self.health.state(), HealthState::Up | HealthState::Suspect)
    }

    /// Forgets a connection.
    pub(super) fn detach(&mut self, retry: Option<Deadline>) {
        self.has_failed |= self.is_attached();
        self.must_shut |= self.has_connection();
        self.phase = RailPhase::Detached { retry };
        self.clear();
    }

    /// Begins a connection.
    pub(super) fn attach(&mut self, phase: RailPhase, proofs: u8, now: Instant) {
        self.phase = phase;
        self.clear();
        self.health = Health::connected(proofs, now);
    }

    fn clear(&mut self) {
        self.health = Health::down();
        self.outstanding = 0;
        self.backlog_bytes = 0;
        self.is_blocked = false;
        self.takes_placed = false;
    }
}
