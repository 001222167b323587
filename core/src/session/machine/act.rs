//! The actions of a session, which its caller executes.

use core::time::Duration;

use super::{Action, FinalReason, Owed, Phase, Role, Session};
use crate::session::health::Due;
use crate::session::rail::{Rail, RailPhase};
use crate::session::striping::{Way, choose, choose_any, done_after};
use crate::session::{Epoch, Kept, Retained, SESSION_RAILS_MAX};
use crate::wire::{SESSION_HEADER_BYTES, SessionHeader};
use crate::{Deadline, Instant};

/// The delay before an action that could not be done is repeated.
const TRY_AGAIN: Duration = Duration::from_millis(1);

impl<O, I> Session<O, I>
where
    O: AsRef<[Retained]> + AsMut<[Retained]>,
    I: AsRef<[Kept]> + AsMut<[Kept]>,
{
    /// Begins a turn: rails that had no room are tried again.
    pub fn begin_turn(&mut self) {
        // Usually none is blocked. Without this check the stores are vectorized, and take some 170 instructions.
        if self.rails().iter().any(|rail| rail.is_blocked) {
            for rail in self.rails_mut() {
                rail.is_blocked = false;
            }
        }
    }

    /// Holds messages back from the rails whose bits are set, until the next call. Heartbeats, acknowledgements and the farewell are still
    /// sent.
    pub fn hold(&mut self, rails: u8) {
        for (index, rail) in (0..SESSION_RAILS_MAX).zip(&mut self.rails) {
            rail.is_held = rails & (1 << index) != 0;
        }
    }

    /// The bytes that were posted on a rail and are not completed.
    pub fn backlog_bytes(&self, rail: u8) -> u64 {
        self.rails
            .get(usize::from(rail))
            .map_or(0, |rail| rail.backlog_bytes)
    }

    /// The time after which a rail is done with its posted bytes and `bytes` more, in a unit that is the same for all rails.
    pub fn done_after(&self, rail: u8, bytes: u32) -> u128 {
        let rail = self.rails.get(usize::from(rail));
        rail.map_or(u128::MAX, |rail| done_after(rail, bytes))
    }

    /// Returns the next action, until there is none. `random` is a new random number for each call, or at least for each turn.
    pub fn poll_action(&mut self, now: Instant, random: u64) -> Option<Action> {
        self.look_at_deadlines(now);
        for index in 0..self.rails_end {
            if let Some(action) = self.act_on(index, now, random) {
                return Some(action);
            }
        }
        if !matches!(self.phase, Phase::Connected) {
            return None;
        }
        self.look_for_stall(now);
        self.transmit()
            .or_else(|| self.say_farewell())
            .or_else(|| self.acknowledge(now))
    }

    fn look_at_deadlines(&mut self, now: Instant) {
        match self.phase {
            Phase::Beginning { until } | Phase::Recovering { until } if until.has_passed(now) => {
                // One address may lead to two hosts, one of which is the peer. But its time to answer is over.
                let is_another = self.rails.iter().any(|rail| rail.leads_elsewhere);
                self.end(match is_another {
                    true => FinalReason::PeerRestarted,
                    false => FinalReason::Unreachable,
                });
            }
            _ => {}
        }
        let Some(closing) = self.closing else {
            return;
        };
        let has_nobody = !matches!(self.phase, Phase::Connected) && self.has_nothing_open();
        if has_nobody || closing.until.has_passed(now) {
            self.end(FinalReason::Closed);
        }
    }

    /// Returns the action that is due on one rail.
    fn act_on(&mut self, index: u8, now: Instant, random: u64) -> Option<Action> {
        let (role, is_over) = (self.role, self.over().is_some());
        let next = self.epoch.next();
        let config = &self.config;
        let rail = self.rails.get_mut(usize::from(index))?;
        let mut dead = false;
        match rail.phase {
            RailPhase::Detached { retry: Some(retry) }
                if role == Role::Initiator && !rail.must_shut && !is_over && retry.has_passed(now) =>
            {
                let Some(epoch) = next else {
                    self.end(FinalReason::EpochsExhausted);
                    return None;
                };
                rail.phase = RailPhase::Connecting;
                rail.epoch = epoch;
                self.epoch = epoch;
                return Some(Action::Connect { rail: index, epoch });
            }
            RailPhase::Attaching { until, .. } if until.has_passed(now) => dead = true,
            RailPhase::Attaching { .. } | RailPhase::Attached { .. } => match rail.health.due(config, now) {
                Due::Dead => dead = true,
                Due::Probe if !rail.is_blocked && rail.is_usable() => {
                    return Some(Action::Probe { rail: index });
                }
                Due::Probe | Due::Nothing => {}
            },
            RailPhase::Unused | RailPhase::Detached { .. } | RailPhase::Connecting => {}
        }
        if dead {
            self.counts.rails_dead = self.counts.rails_dead.saturating_add(1);
            self.give_up(index, now, random);
        }
        let rail = self.rail_mut(index)?;
        if rail.must_shut {
            rail.must_shut = false;
            return Some(Action::Shut { rail: index });
        }
        let has_to_say = matches!(
            rail.phase,
            RailPhase::Attaching { has_said: false, .. } | RailPhase::Attached { has_said: false }
        );
        if has_to_say && !rail.is_blocked {
            let epoch = rail.epoch;
            let said = self.attach_said(index, epoch);
            return Some(Action::Attach { rail: index, said });
        }
        None
    }

    fn look_for_stall(&mut self, now: Instant) {
        let silent = Deadline::after(self.progress_at, self.config.stalled_after).has_passed(now);
        // A suspect rail does not show that the peer's transport answers.
        let answers = self
            .rails()
            .iter()
            .any(|rail| rail.is_usable() && rail.health.state() == crate::session::HealthState::Up);
        if self.outbox.has_sent() && silent && answers {
            self.is_stalled = true;
        }
    }

    fn transmit(&mut self) -> Option<Action> {
        let end = self.outbox.oldest().plus(self.peer_window);
        let fragment = self.outbox.next_waiting(end)?;
        let (way, header): (_, fn(_, _, _, _, _) -> _) = match fragment.is_placed {
            true => (Way::Placed, SessionHeader::placed),
            false if fragment.is_first && fragment.is_last => (Way::Whole, SessionHeader::data),
            false => (Way::Part, SessionHeader::data),
        };
        let rail = choose(self.rails(), fragment.bytes, way)?;
        let header = header(
            self.rail_epoch(rail),
            fragment.sequence,
            self.inbox.expected(),
            fragment.is_first,
            fragment.is_last,
        );
        Some(Action::Transmit {
            rail,
            header,
            fragment,
        })
    }

    fn say_farewell(&self) -> Option<Action> {
        if self.closing?.farewell.is_some() || !self.has_nothing_open() {
            return None;
        }
        let rail = choose_any(self.rails())?;
        let header =
            SessionHeader::farewell(self.rail_epoch(rail), self.outbox.next(), self.inbox.expected());
        Some(Action::Farewell { rail, header })
    }

    fn acknowledge(&self, now: Instant) -> Option<Action> {
        let owed = self.owed;
        let is_due = owed.fragments >= self.config.acknowledge_fragments.max(1)
            || owed
                .since
                .is_some_and(|since| Deadline::after(since, self.config.acknowledge_after).has_passed(now));
        if !is_due {
            return None;
        }
        let rail = choose_any(self.rails())?;
        let header = SessionHeader::acknowledgement_only(self.rail_epoch(rail), self.inbox.expected());
        Some(Action::Acknowledge { rail, header })
    }

    /// Notes that an action is done: its frame or request is posted.
    pub fn did(&mut self, action: &Action, now: Instant) {
        let index = match *action {
            Action::Connect { .. } | Action::Shut { .. } => return,
            Action::Attach { rail, .. } => {
                self.said_first(rail);
                rail
            }
            Action::Transmit { rail, fragment, .. } => {
                self.begin_waiting(now);
                let again = u64::from(fragment.was_sent);
                self.counts.sent = self.counts.sent.saturating_add(1);
                self.counts.sent_again = self.counts.sent_again.saturating_add(again);
                self.counts.placed = self.counts.placed.saturating_add(u64::from(fragment.is_placed));
                self.outbox.sent(fragment.sequence, rail);
                self.owed = Owed::default();
                rail
            }
            Action::Acknowledge { rail, .. } => {
                self.owed = Owed::default();
                self.counts.acknowledgements = self.counts.acknowledgements.saturating_add(1);
                rail
            }
            Action::Probe { rail } => {
                self.counts.probes = self.counts.probes.saturating_add(1);
                rail
            }
            Action::Farewell { rail, .. } => {
                if let Some(closing) = &mut self.closing {
                    (closing.farewell, closing.was_said) = (Some(rail), true);
                }
                rail
            }
        };
        let bytes = action.backlog_bytes();
        if let Some(rail) = self.rail_mut(index) {
            rail.outstanding = rail.outstanding.saturating_add(1);
            rail.backlog_bytes = rail.backlog_bytes.saturating_add(bytes);
            rail.health.posted(now);
        }
    }

    /// Notes that it is unknown whether an action was posted. The peer may have the fragment, and may acknowledge it on
    /// another connection. The caller has to fail this connection, since no completion may come.
    pub fn in_doubt(&mut self, action: &Action, now: Instant) {
        if let Action::Transmit { rail, fragment, .. } = *action {
            self.begin_waiting(now);
            self.outbox.sent(fragment.sequence, rail);
        }
    }

    /// Notes that the peer's progress is awaited from now on, if no earlier fragment is unacknowledged.
    fn begin_waiting(&mut self, now: Instant) {
        if !self.outbox.has_sent() {
            self.progress_at = now;
        }
    }

    /// Notes that the caller posted another request of `bytes` bytes on a rail. The session awaits its completion like all
    /// others, and the caller reports it to [`Session::completed`].
    pub fn posted_beside(&mut self, rail: u8, bytes: u64, now: Instant) {
        if let Some(rail) = self.rail_mut(rail) {
            rail.outstanding = rail.outstanding.saturating_add(1);
            rail.backlog_bytes = rail.backlog_bytes.saturating_add(bytes);
            rail.health.posted(now);
        }
    }

    /// Whether the caller may post another request on a rail now.
    pub fn takes_beside(&self, rail: u8) -> bool {
        let rail = self.rails.get(usize::from(rail));
        rail.is_some_and(|rail| rail.is_usable() && !rail.is_blocked) && self.is_connected()
    }

    /// Notes that the peer lent memory over a rail's connection of this epoch, so that fragments can be written over it.
    pub fn lent(&mut self, rail: u8, epoch: Epoch) {
        if let Some(rail) = self.rail_mut(rail).filter(|rail| rail.epoch == epoch) {
            rail.takes_placed = rail.is_attached();
        }
    }

    /// Gives up a rail's connection of this epoch or an earlier one, because the peer did. Without such a connection,
    /// this call changes nothing.
    pub fn given_up(&mut self, rail: u8, through: Epoch, now: Instant, random: u64) {
        let has_connection = self.rail_mut(rail).is_some_and(|rail| rail.has_connection());
        if has_connection && self.rail_epoch(rail) <= through {
            self.give_up(rail, now, random);
        }
    }

    /// Notes that a rail has no room for now.
    pub fn blocked(&mut self, rail: u8) {
        if let Some(rail) = self.rail_mut(rail) {
            rail.is_blocked = true;
        }
    }

    fn said_first(&mut self, index: u8) {
        if let Some(rail) = self.rail_mut(index) {
            match &mut rail.phase {
                RailPhase::Attaching { has_said, .. } | RailPhase::Attached { has_said } => *has_said = true,
                _ => {}
            }
        }
    }

    /// The time until which the session has nothing to do, if nothing is reported to it and no call changes it. `None` if that is
    /// unknown: the session has no rail, is closing, or has something to post that no rail takes now.
    pub fn rests_until(&mut self, now: Instant) -> Option<Deadline> {
        let end = self.outbox.oldest().plus(self.peer_window);
        let awaits_rails = self.rails().iter().any(|rail| rail.is_blocked || rail.must_shut);
        let is_settled = self.is_connected() && self.closing.is_none() && !awaits_rails;
        if !is_settled || self.outbox.next_waiting(end).is_some() {
            return None;
        }
        self.due().filter(|due| !due.has_passed(now))
    }

    /// The latest time to poll again if nothing happens before. `None` if the session is over.
    pub fn wake(&self, now: Instant) -> Option<Deadline> {
        if self.over().is_some() {
            return None;
        }
        let wake = self.due();
        let is_to_end = self.closing.is_some_and(|closing| closing.farewell.is_none())
            && self.is_connected()
            && self.has_nothing_open();
        // No event reports that a rail has room again.
        let is_soon = is_to_end || self.rails().iter().any(|rail| rail.is_blocked);
        let again = Deadline::after(now, TRY_AGAIN);
        match wake {
            Some(wake) if wake.has_passed(now) => Some(again),
            Some(wake) if is_soon => Some(wake.min(again)),
            None if is_soon => Some(again),
            wake => wake,
        }
    }

    /// The earliest deadline.
    fn due(&self) -> Option<Deadline> {
        let phase = match self.phase {
            Phase::Beginning { until } | Phase::Recovering { until } => Some(until),
            Phase::Connected => self.stalls_at(),
            Phase::Over(_) => None,
        };
        let owed = self
            .owed
            .since
            .filter(|_| self.is_connected())
            .map(|since| Deadline::after(since, self.config.acknowledge_after));
        let closing = self.closing.map(|closing| closing.until);
        let rails = self.rails().iter().filter_map(|rail| self.wake_of(rail));
        phase.into_iter().chain(owed).chain(closing).chain(rails).min()
    }

    /// The time at which the peer counts as stalled, unless it makes progress.
    fn stalls_at(&self) -> Option<Deadline> {
        let may = self.outbox.has_sent() && !self.is_stalled;
        may.then(|| Deadline::after(self.progress_at, self.config.stalled_after))
    }

    fn wake_of(&self, rail: &Rail) -> Option<Deadline> {
        match rail.phase {
            RailPhase::Detached { retry } => retry,
            RailPhase::Attaching { until, .. } if rail.outstanding == 0 => Some(until),
            RailPhase::Attaching { until, .. } => {
                let health = rail.health.wake(&self.config);
                Some(health.map_or(until, |health| health.min(until)))
            }
            RailPhase::Attached { .. } => rail.health.wake(&self.config),
            RailPhase::Unused | RailPhase::Connecting => None,
        }
    }
}

impl Action {
    /// Returns the bytes that the action adds to its rail's backlog until it completes. The caller reports the same number
    /// to [`Session::completed`].
    #[must_use]
    pub const fn backlog_bytes(&self) -> u64 {
        match self {
            Self::Transmit { fragment, .. } => {
                (fragment.bytes as u64).saturating_add(SESSION_HEADER_BYTES as u64)
            }
            _ => 0,
        }
    }
}
