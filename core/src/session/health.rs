//! The health of a rail: whether its transport answers.

use super::SessionConfig;
use crate::{Deadline, Instant};

/// The state of a rail's transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HealthState {
    /// The transport answers.
    Up,
    /// The transport has not answered for a while: the rail gets no new messages if another rail can take them.
    Suspect,
    /// The rail has no connection, or none that answers.
    Down,
    /// The rail is connected again, and has to answer heartbeats before it is used together with others.
    FailingBack,
}

/// An action that is due on a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    Nothing,
    /// A heartbeat has to be sent.
    Probe,
    /// The rail has to be given up.
    Dead,
}

/// The health of a rail, judged by its posted requests and their completions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Health {
    state: HealthState,
    /// Since when no request completed although one is posted.
    awaited_since: Option<Instant>,
    /// The time of the last sign of life.
    heard_at: Instant,
    proofs_left: u8,
}

impl Health {
    /// Makes the health of a rail without a connection.
    pub(super) const fn down() -> Self {
        Self {
            state: HealthState::Down,
            awaited_since: None,
            heard_at: Instant::from_ns(0),
            proofs_left: 0,
        }
    }

    /// Makes the health of a rail that was just connected, and has to answer `proofs` heartbeats before it is up.
    pub(super) const fn connected(proofs: u8, now: Instant) -> Self {
        Self {
            state: if proofs == 0 {
                HealthState::Up
            } else {
                HealthState::FailingBack
            },
            awaited_since: None,
            heard_at: now,
            proofs_left: proofs,
        }
    }

    /// Returns the state.
    pub(super) const fn state(&self) -> HealthState {
        self.state
    }

    /// Notes that a request was posted.
    pub(super) fn posted(&mut self, now: Instant) {
        self.awaited_since.get_or_insert(now);
    }

    /// Notes that a request completed, and whether another one is still outstanding.
    pub(super) fn completed(&mut self, is_more_awaited: bool, now: Instant) {
        self.heard_at = now;
        self.awaited_since = is_more_awaited.then_some(now);
        match self.state {
            HealthState::Suspect => self.state = HealthState::Up,
            HealthState::FailingBack => {
                self.proofs_left = self.proofs_left.saturating_sub(1);
                if self.proofs_left == 0 {
                    self.state = HealthState::Up;
                }
            }
            HealthState::Up | HealthState::Down => {}
        }
    }

    /// Notes that a frame arrived, so no heartbeat is needed now. Completions of posted requests are still awaited, since a
    /// route may work in only one direction. A rail that is failing back is probed all the same.
    pub(super) fn heard(&mut self, now: Instant) {
        if self.state != HealthState::FailingBack {
            self.heard_at = now;
        }
    }

    /// Returns the action that is due now.
    pub(super) fn due(&mut self, config: &SessionConfig, now: Instant) -> Due {
        if self.state == HealthState::Down {
            return Due::Nothing;
        }
        let Some(since) = self.awaited_since else {
            return if self.probe_at(config).has_passed(now) {
                Due::Probe
            } else {
                Due::Nothing
            };
        };
        if Deadline::after(since, config.dead_after).has_passed(now) {
            self.state = HealthState::Down;
            return Due::Dead;
        }
        if Deadline::after(since, config.suspect_after).has_passed(now) {
            match self.state {
                HealthState::Up => self.state = HealthState::Suspect,
                HealthState::FailingBack => self.proofs_left = config.fail_back_proofs.max(1),
                HealthState::Suspect | HealthState::Down => {}
            }
        }
        Due::Nothing
    }

    /// The time of the next check.
    pub(super) fn wake(&self, config: &SessionConfig) -> Option<Deadline> {
        match (self.state, self.awaited_since) {
            (HealthState::Down, _) => None,
            (HealthState::Up, Some(since)) => Some(Deadline::after(since, config.suspect_after)),
            (_, Some(since)) => Some(Deadline::after(since, config.dead_after)),
            (_, None) => Some(self.probe_at(config)),
        }
    }

    fn probe_at(&self, config: &SessionConfig) -> Deadline {
        let span = if self.state == HealthState::FailingBack {
            config.fail_back_interval
        } else {
            config.heartbeat_idle
        };
        Deadline::after(self.heard_at, span)
    }
}

#[cfg(test)]
mod tests {
    use super::{Due, Health, HealthState};
    use crate::Instant;
    use crate::session::SessionConfig;

    const fn ms(ms: u64) -> Instant {
        Instant::from_ns(ms * 1_000_000)
    }

    #[test]
    fn asks_when_idle_and_only_then() {
        let config = SessionConfig::default();
        let mut health = Health::connected(0, ms(0));
        assert_eq!(health.due(&config, ms(49)), Due::Nothing);
        assert_eq!(health.due(&config, ms(50)), Due::Probe);
        health.heard(ms(49));
        assert_eq!(health.due(&config, ms(50)), Due::Nothing);
        assert_eq!(health.due(&config, ms(99)), Due::Probe);
        health.posted(ms(99));
        assert_eq!(health.due(&config, ms(120)), Due::Nothing);
        health.completed(false, ms(120));
        assert_eq!(health.due(&config, ms(169)), Due::Nothing);
        assert_eq!(health.wake(&config).unwrap().instant(), ms(170));
    }

    #[test]
    fn is_suspect_then_dead_to_the_nanosecond() {
        let config = SessionConfig::default();
        let mut health = Health::connected(0, ms(0));
        health.posted(ms(10));
        health.posted(ms(20));
        assert_eq!(health.wake(&config).unwrap().instant(), ms(50));
        assert_eq!(
            (health.due(&config, ms(49)), health.state()),
            (Due::Nothing, HealthState::Up)
        );
        assert_eq!(
            (health.due(&config, ms(50)), health.state()),
            (Due::Nothing, HealthState::Suspect)
        );
        // Arriving frames do not make up for requests without an answer.
        health.heard(ms(100));
        let just_before = Instant::from_ns(129_999_999);
        assert_eq!(health.due(&config, just_before), Due::Nothing);
        let mut saved = health;
        saved.completed(true, just_before);
        assert_eq!(
            (saved.due(&config, ms(130)), saved.state()),
            (Due::Nothing, HealthState::Up)
        );
        assert_eq!(
            (health.due(&config, ms(130)), health.state()),
            (Due::Dead, HealthState::Down)
        );
        assert_eq!(
            (health.due(&config, ms(999)), health.wake(&config)),
            (Due::Nothing, None)
        );
    }

    #[test]
    fn one_that_came_back_proves_itself_and_begins_anew_where_it_does_not() {
        let config = SessionConfig::default();
        let mut health = Health::connected(3, ms(0));
        for proof in 1..=2 {
            assert_eq!(health.due(&config, ms(10 * proof)), Due::Probe);
            health.posted(ms(10 * proof));
            health.completed(false, ms(10 * proof));
            assert_eq!(health.state(), HealthState::FailingBack);
        }
        health.posted(ms(30));
        assert_eq!(health.due(&config, ms(70)), Due::Nothing);
        health.completed(false, ms(71));
        assert_eq!(health.state(), HealthState::FailingBack);
        for _ in 0..2 {
            health.completed(false, ms(90));
        }
        assert_eq!(health.state(), HealthState::Up);
    }
}
