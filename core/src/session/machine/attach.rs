//! Connections: how they become rails, and how rails are lost.

use super::{Offer, Phase, Role, Session, Violation};
use crate::session::rail::{Rail, RailPhase};
use crate::session::{Epoch, FinalReason, Health, Kept, Retained};
use crate::wire::{AttachParameters, RefusalReason};
use crate::{Deadline, Instant};

impl<O, I> Session<O, I>
where
    O: AsRef<[Retained]> + AsMut<[Retained]>,
    I: AsRef<[Kept]> + AsMut<[Kept]>,
{
    /// Adds a rail on the connecting side, and schedules its first connection attempt at once. Returns `None` if the maximum
    /// number of rails is reached.
    pub fn add_rail(&mut self, speed_mbps: u32, now: Instant) -> Option<u8> {
        let (index, rail) = (0_u8..)
            .zip(&mut self.rails)
            .find(|(_, rail)| rail.phase == RailPhase::Unused)?;
        rail.speed_mbps = speed_mbps;
        rail.phase = RailPhase::Detached {
            retry: Some(Deadline::at(now)),
        };
        self.rails_end = self.rails_end.max(index.saturating_add(1));
        Some(index)
    }

    /// Frees the place of a rail that has no connection. Attempts to connect it count no more. Returns whether it is free.
    pub fn remove_rail(&mut self, rail: u8) -> bool {
        let rail = self.rail_mut(rail);
        let Some(rail) = rail.filter(|rail| !rail.has_connection() && !rail.must_shut) else {
            return false;
        };
        *rail = Rail {
            epoch: rail.epoch,
            ..Rail::unused()
        };
        true
    }

    /// Notes that a connection for a rail is established.
    pub fn connected(&mut self, rail: u8, now: Instant) {
        let until = Deadline::after(now, self.config.attach_within);
        if let Some(rail) = self
            .rail_mut(rail)
            .filter(|rail| rail.phase == RailPhase::Connecting)
        {
            let has_said = false;
            rail.leads_elsewhere = false;
            rail.attach(RailPhase::Attaching { until, has_said }, 0, now);
        }
    }

    /// Notes that an attempt to connect a rail failed. `is_another` tells that a process other than the peer's answered
    /// at the address, which may be temporary. The session ends only if this is so for every rail and none is connected.
    pub fn connect_failed(&mut self, rail: u8, is_another: bool, now: Instant, random: u64) {
        let backoff = self.config.backoff;
        if let Some(rail) = self
            .rail_mut(rail)
            .filter(|rail| rail.phase == RailPhase::Connecting)
        {
            rail.leads_elsewhere = is_another;
            rail.attempts_failed = rail.attempts_failed.saturating_add(1);
            let wait = backoff.wait(rail.attempts_failed, random);
            rail.phase = RailPhase::Detached {
                retry: Some(Deadline::after(now, wait)),
            };
            // The peer may have refused another rail because of this one, and may know by now that this one is
            // lost.
            self.release_standing_by();
            if is_another && !self.is_connected() {
                self.look_for_another(now);
            }
        }
    }

    /// Notes that a rail leads to another address from now on. So another process at the old address no longer counts.
    pub fn readdressed(&mut self, rail: u8) {
        if let Some(rail) = self.rail_mut(rail) {
            rail.leads_elsewhere = false;
        }
    }

    /// Ends the session if every rail leads to another process than the peer's. Rails that may still lead to the peer
    /// are tried at once.
    fn look_for_another(&mut self, now: Instant) {
        let mut is_everywhere = true;
        for rail in &mut self.rails {
            if rail.leads_elsewhere || rail.phase == RailPhase::Unused {
                continue;
            }
            is_everywhere = false;
            if let RailPhase::Detached { retry: Some(retry) } = &mut rail.phase {
                *retry = (*retry).min(Deadline::at(now));
            }
        }
        if is_everywhere {
            self.end(FinalReason::PeerRestarted);
        }
    }

    /// Takes a connection from the peer, whose Attach names a rail of this session. For the listening side.
    ///
    /// # Errors
    /// The [`RefusalReason`] to send to the peer, if the connection does not become a rail.
    pub fn offered(
        &mut self,
        said: &AttachParameters,
        speed_mbps: u32,
        now: Instant,
    ) -> Result<Offer, RefusalReason> {
        if let Some(reason) = self.over() {
            return Err(reason.to_refusal());
        }
        if self.role != Role::Responder || said.session != self.id {
            return Err(RefusalReason::UNKNOWN_SESSION);
        }
        let had = self
            .rail_mut(said.rail)
            .map(|rail| (rail.epoch, rail.has_connection()));
        let Some((epoch, replaces)) = had else {
            return Err(RefusalReason::CONTRADICTION);
        };
        if said.epoch <= epoch {
            return Err(RefusalReason::OLD_EPOCH);
        }
        // The Attach is applied only after all of it was checked.
        if said.oldest > self.inbox.expected() || said.expected > self.sent_end() {
            return Err(RefusalReason::CONTRADICTION);
        }
        self.lose(said.rail, None);
        let proofs = self.proofs(said.rail);
        if let Some(rail) = self.rail_mut(said.rail) {
            rail.must_shut = false;
            rail.attach(RailPhase::Attached { has_said: false }, proofs, now);
            (rail.epoch, rail.speed_mbps) = (said.epoch, speed_mbps);
        }
        self.rails_end = self.rails_end.max(said.rail.saturating_add(1));
        self.epoch = self.epoch.max(said.epoch);
        self.agree(said, now);
        Ok(Offer {
            rail: said.rail,
            replaces,
        })
    }

    /// Notes that a rail's connection failed. Its fragments in flight are retransmitted over other rails, or over its
    /// next connection.
    pub fn failed(&mut self, rail: u8, now: Instant, random: u64) {
        let retry = self.retry_at(rail, now, random);
        self.lose(rail, retry);
        if let Some(rail) = self.rail_mut(rail) {
            // The caller knows already.
            rail.must_shut = false;
        }
        self.note_rails(now);
    }

    /// Gives up a rail's connection, which the caller has to shut.
    pub(super) fn give_up(&mut self, rail: u8, now: Instant, random: u64) {
        let retry = self.retry_at(rail, now, random);
        self.lose(rail, retry);
        self.note_rails(now);
    }

    fn retry_at(&mut self, rail: u8, now: Instant, random: u64) -> Option<Deadline> {
        let (role, backoff) = (self.role, self.config.backoff);
        let rail = self.rail_mut(rail)?;
        if !rail.is_attached() {
            rail.attempts_failed = rail.attempts_failed.saturating_add(1);
        }
        let wait = backoff.wait(rail.attempts_failed, random);
        (role == Role::Initiator).then(|| Deadline::after(now, wait))
    }

    /// Puts a rail on standby, because the peer has another rail of the session on the same port.
    pub(super) fn stand_by(&mut self, rail: u8) {
        if let Some(rail) = self.rail_mut(rail) {
            rail.detach(None);
            rail.stands_by = true;
        }
    }

    /// Drops a rail's connection, and makes its fragments wait for retransmission.
    fn lose(&mut self, index: u8, retry: Option<Deadline>) {
        let Some(rail) = self.rail_mut(index).filter(|rail| rail.has_connection()) else {
            return;
        };
        rail.detach(retry);
        self.outbox.lost(index);
        self.release_standing_by();
        // An acknowledgement or a farewell may be lost with the connection.
        self.owed.fragments = u32::MAX;
        if let Some(closing) = &mut self.closing {
            closing.farewell = closing.farewell.filter(|rail| *rail != index);
        }
    }

    /// Has rails on standby connected at once.
    fn release_standing_by(&mut self) {
        for rail in &mut self.rails {
            if core::mem::take(&mut rail.stands_by) {
                rail.phase = RailPhase::Detached {
                    retry: Some(Deadline::at(Instant::from_ns(0))),
                };
            }
        }
    }

    /// Begins to recover if the last rail was lost.
    fn note_rails(&mut self, now: Instant) {
        let is_any = self.rails.iter().any(Rail::is_attached);
        if !is_any && self.phase == Phase::Connected {
            self.phase = Phase::Recovering {
                until: Deadline::after(now, self.config.recover_within),
            };
            self.is_stalled = false;
            self.counts.recoveries = self.counts.recoveries.saturating_add(1);
        }
    }

    /// Takes the peer's answer to the Attach on a connection.
    pub(super) fn answered(
        &mut self,
        index: u8,
        said: &AttachParameters,
        now: Instant,
    ) -> Result<(), Violation> {
        let (id, epoch) = (self.id, self.rail_epoch(index));
        if said.session != id || said.epoch != epoch || said.rail != index {
            return Err(Violation::Malformed);
        }
        if said.oldest > self.inbox.expected() {
            return Err(Violation::LetGo);
        }
        if said.expected > self.sent_end() {
            return Err(Violation::AcknowledgedUnsent);
        }
        let proofs = self.proofs(index);
        if let Some(rail) = self.rail_mut(index) {
            rail.phase = RailPhase::Attached { has_said: true };
            // The health starts anew, but requests posted on the connection are still awaited.
            let awaited = rail.outstanding > 0;
            rail.health = Health::connected(proofs, now);
            if awaited {
                rail.health.posted(now);
            }
        }
        self.agree(said, now);
        Ok(())
    }

    /// Applies the peer's Attach on a connection that became a rail.
    fn agree(&mut self, said: &AttachParameters, now: Instant) {
        // The callers checked that these fragments were sent.
        if self
            .outbox
            .acknowledge(said.expected)
            .is_some_and(|count| count > 0)
        {
            self.is_stalled = false;
        }
        self.peer_window = u64::from(said.window);
        self.progress_at = now;
        self.was_attached = true;
        if self.over().is_none() {
            self.phase = Phase::Connected;
        }
    }

    /// The number of heartbeats that a reconnected rail must answer before it is used; zero if no other rail is up.
    fn proofs(&self, index: u8) -> u8 {
        let is_another_up = (0_u8..)
            .zip(&self.rails)
            .any(|(other, rail)| other != index && rail.is_up());
        let has_failed = self
            .rails
            .get(usize::from(index))
            .is_some_and(|rail| rail.has_failed);
        if is_another_up && has_failed {
            self.config.fail_back_proofs
        } else {
            0
        }
    }

    /// Returns the first frame to send on a rail's connection.
    pub(super) fn attach_said(&self, rail: u8, epoch: Epoch) -> AttachParameters {
        AttachParameters {
            session: self.id,
            epoch,
            rail,
            begins: self.role == Role::Initiator && !self.was_attached,
            oldest: self.outbox.oldest(),
            expected: self.inbox.expected(),
            window: self.window_announced(),
        }
    }

    /// The number after the last fragment that was sent.
    fn sent_end(&self) -> crate::session::Sequence {
        self.outbox.sent_end()
    }

    pub(super) fn rail_mut(&mut self, rail: u8) -> Option<&mut Rail> {
        self.rails.get_mut(usize::from(rail))
    }
}
