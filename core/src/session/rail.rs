//! One rail of a session: its connection, and its health.

use super::{Epoch, Health, HealthState};
use crate::{Deadline, Instant};

/// The phase of a rail's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RailPhase {
    /// The session has no such rail.
    Unused,
    /// The rail has no connection; the connecting side tries again at `retry`.
    Detached { retry: Option<Deadline> },
    /// A connection is being made.
    Connecting,
    /// The rail is connected, and the peer has not yet answered the Attach. `has_said`: whether the Attach was sent.
    Attaching { until: Deadline, has_said: bool },
    /// The connection belongs to the session. `has_said`: whether the Attach was sent.
    Attached { has_said: bool },
}

#[derive(Debug)]
pub(super) struct Rail {
    pub(super) phase: RailPhase,
    /// The epoch of its connection, or of its last one.
    pub(super) epoch: Epoch,
    pub(super) speed_mbps: u32,
    pub(super) health: Health,
    /// The time of the last sign of life, kept after a failure.
    pub(super) heard_at: Option<Instant>,
    /// The number of requests posted and not completed.
    pub(super) outstanding: u32,
    /// The bytes of these requests.
    pub(super) backlog_bytes: u64,
    /// Whether it had no room when it was last tried.
    pub(super) is_blocked: bool,
    /// Whether the caller holds messages back from it.
    pub(super) is_held: bool,
    /// Whether the peer lent memory over this connection, into which fragments can be written.
    pub(super) takes_placed: bool,
    /// The number of failed attempts to connect since the rail was up.
    pub(super) attempts_failed: u32,
    /// Whether the last attempt to connect reached another process than the peer's.
    pub(super) leads_elsewhere: bool,
    /// Whether the rail was attached, and failed.
    pub(super) has_failed: bool,
    /// Whether its connection has to be shut.
    pub(super) must_shut: bool,
    /// Whether the rail is on standby, since the peer has another rail on the same port. It is connected when a rail is
    /// lost or cannot be connected.
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

    /// Whether its connection belongs to the session.
    pub(super) const fn is_attached(&self) -> bool {
        matches!(self.phase, RailPhase::Attached { .. })
    }

    /// Whether requests can be posted on it.
    pub(super) const fn has_connection(&self) -> bool {
        matches!(
            self.phase,
            RailPhase::Attaching { .. } | RailPhase::Attached { .. }
        )
    }

    /// Whether messages may be sent over it.
    pub(super) const fn is_usable(&self) -> bool {
        matches!(self.phase, RailPhase::Attached { has_said: true })
    }

    /// Whether it accepts a message now, if it is usable.
    pub(super) const fn takes_messages(&self) -> bool {
        !self.is_blocked && !self.is_held
    }

    /// Whether the session counts it as up: usable, and up or suspect.
    pub(super) const fn is_up(&self) -> bool {
        self.is_usable() && matches!(self.health.state(), HealthState::Up | HealthState::Suspect)
    }

    /// Drops the connection.
    pub(super) fn detach(&mut self, retry: Option<Deadline>) {
        self.has_failed |= self.is_attached();
        self.must_shut |= self.has_connection();
        self.phase = RailPhase::Detached { retry };
        self.clear();
    }

    /// Starts a connection.
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
