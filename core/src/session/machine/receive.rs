//! Received frames and completed requests.

use super::{FinalReason, Phase, Received, Session, Violation};
use crate::Instant;
use crate::session::rail::RailPhase;
use crate::session::{Epoch, Held, Kept, Retained, Sequence, Verdict};
use crate::wire::{
    End, Fence, Granted, Landed, Lend, Open, Progress, RefusalReason, SessionFrame, SessionHeader, Take,
};

impl<O, I> Session<O, I>
where
    O: AsRef<[Retained]> + AsMut<[Retained]>,
    I: AsRef<[Kept]> + AsMut<[Kept]>,
{
    /// Takes a frame that was received over a rail's connection.
    ///
    /// # Errors
    /// No honest peer sends this frame: the session is over.
    pub fn received(
        &mut self,
        rail: u8,
        frame: &SessionFrame<'_>,
        now: Instant,
    ) -> Result<Received, Violation> {
        if self.over().is_some() {
            return Ok(Received::Nothing);
        }
        let outcome = self.take(rail, frame, now);
        if let Err(violation) = outcome {
            self.end(FinalReason::Violation(violation));
        }
        outcome
    }

    fn take(&mut self, index: u8, frame: &SessionFrame<'_>, now: Instant) -> Result<Received, Violation> {
        let Some(rail) = self.rail_mut(index).filter(|rail| rail.has_connection()) else {
            // The connection of the frame was given up.
            return Ok(Received::Nothing);
        };
        rail.health.heard(now);
        rail.heard_at = Some(now);
        let (phase, epoch) = (rail.phase, rail.epoch);
        match frame {
            SessionFrame::Attach(said) if matches!(phase, RailPhase::Attaching { has_said: true, .. }) => {
                self.answered(index, said, now)?;
                Ok(Received::Nothing)
            }
            SessionFrame::Refusal(of, reason) if matches!(phase, RailPhase::Attaching { .. }) => {
                if self.is_of(*of, epoch) {
                    self.refused(index, *reason);
                }
                Ok(Received::Nothing)
            }
            SessionFrame::Refusal(of, reason) if reason.is_end() => {
                if self.is_of(*of, epoch) {
                    self.ended(*reason);
                }
                Ok(Received::Nothing)
            }
            SessionFrame::Attach(_) | SessionFrame::Refusal(..) => Err(Violation::Malformed),
            SessionFrame::Data(header, payload) => {
                if !self.is_of(header.epoch(), epoch) {
                    return Ok(Received::Nothing);
                }
                self.acknowledged(header, phase, now)?;
                let bytes = u32::try_from(payload.len()).map_err(|_| Violation::TooLong)?;
                self.take_data(header, (bytes, false), now)
            }
            SessionFrame::Placed(header, placed) => {
                if !self.is_of(header.epoch(), epoch) {
                    return Ok(Received::Nothing);
                }
                self.acknowledged(header, phase, now)?;
                self.take_data(header, (placed.bytes, true), now)
            }
            SessionFrame::Acknowledgement(header) => {
                if self.is_of(header.epoch(), epoch) {
                    self.acknowledged(header, phase, now)?;
                }
                Ok(Received::Nothing)
            }
            SessionFrame::Farewell(header) => {
                if self.is_of(header.epoch(), epoch) {
                    self.acknowledged(header, phase, now)?;
                    self.take_farewell(header.sequence())?;
                }
                Ok(Received::Nothing)
            }
            SessionFrame::Moved(header, _) => self.take_beside((header.epoch(), epoch), phase),
            SessionFrame::Grant(Granted { epoch: said, .. })
            | SessionFrame::Fence(Fence { epoch: said, .. })
            | SessionFrame::Fenced(Fence { epoch: said, .. })
            | SessionFrame::Open(Open { epoch: said, .. })
            | SessionFrame::Take(Take { epoch: said, .. })
            | SessionFrame::Landed(Landed { epoch: said, .. })
            | SessionFrame::Progress(Progress { epoch: said, .. })
            | SessionFrame::End(End { epoch: said, .. })
            | SessionFrame::Lend(Lend { epoch: said, .. }) => self.take_beside((*said, epoch), phase),
        }
    }

    /// Takes a frame without messages and acknowledgements, which has to come over an attached connection.
    fn take_beside(
        &mut self,
        (said, epoch): (Epoch, Epoch),
        phase: RailPhase,
    ) -> Result<Received, Violation> {
        if !self.is_of(said, epoch) {
            return Ok(Received::Nothing);
        }
        match phase {
            RailPhase::Attached { .. } => Ok(Received::Beside),
            _ => Err(Violation::Malformed),
        }
    }

    /// Whether a frame has the epoch of its connection; counts the frame if not.
    fn is_of(&mut self, said: Epoch, epoch: Epoch) -> bool {
        let is_same = said == epoch;
        self.counts.old_epoch = self.counts.old_epoch.saturating_add(u64::from(!is_same));
        is_same
    }

    /// Takes the acknowledgement in a header.
    fn acknowledged(
        &mut self,
        header: &SessionHeader,
        phase: RailPhase,
        now: Instant,
    ) -> Result<(), Violation> {
        if !matches!(phase, RailPhase::Attached { .. }) {
            return Err(Violation::Malformed);
        }
        let count = self
            .outbox
            .acknowledge(header.expected())
            .ok_or(Violation::AcknowledgedUnsent)?;
        if count > 0 {
            self.progress_at = now;
            self.is_stalled = false;
        }
        Ok(())
    }

    fn take_data(
        &mut self,
        header: &SessionHeader,
        (bytes, is_placed): (u32, bool),
        now: Instant,
    ) -> Result<Received, Violation> {
        let sequence = header.sequence();
        if self.peer_end.is_some_and(|end| sequence >= end) {
            return Err(Violation::FarewellEarly);
        }
        // A duplicate is acknowledged again, since the first acknowledgement may be lost.
        self.owed.fragments = self.owed.fragments.saturating_add(1);
        self.owed.since.get_or_insert(now);
        if is_placed && header.is_last() {
            // The peer reuses the lent memory only after this acknowledgement, so it is sent at once.
            self.owed.fragments = self.owed.fragments.max(self.config.acknowledge_fragments);
        }
        let verdict = self
            .inbox
            .offer(sequence, bytes, header.is_first(), header.is_last(), is_placed)
            .ok_or(Violation::OutOfPlace)?;
        Ok(match verdict {
            Verdict::InOrder => Received::InOrder,
            Verdict::Early { place } => Received::Early { place },
            Verdict::Duplicate => Received::Nothing,
        })
    }

    /// Returns the expected fragment if it arrived early. Call this after each delivered fragment, until there is none.
    ///
    /// # Errors
    /// No honest peer sends this fragment: the session is over.
    pub fn take_held(&mut self) -> Result<Option<Held>, Violation> {
        if self.over().is_some() {
            return Ok(None);
        }
        let Ok(held) = self.inbox.take_held() else {
            self.end(FinalReason::Violation(Violation::OutOfPlace));
            return Err(Violation::OutOfPlace);
        };
        if held.is_none() {
            self.look_for_end();
        }
        Ok(held)
    }

    fn take_farewell(&mut self, end: Sequence) -> Result<(), Violation> {
        if end < self.inbox.expected() {
            return Err(Violation::FarewellEarly);
        }
        self.peer_end = Some(end);
        self.look_for_end();
        Ok(())
    }

    /// Ends the session if the peer's last fragment was taken.
    fn look_for_end(&mut self) {
        if self.peer_end.is_some_and(|end| end == self.inbox.expected()) {
            self.end(FinalReason::PeerClosed);
        }
    }

    /// The peer refused a connection as a rail.
    fn refused(&mut self, index: u8, reason: RefusalReason) {
        match reason {
            // The next connection has a higher epoch. This one is shut at once.
            RefusalReason::OLD_EPOCH => {}
            reason if reason.is_end() => self.ended(reason),
            // The other rail on the port is not affected.
            RefusalReason::PORT_IN_USE => return self.stand_by(index),
            RefusalReason::UNKNOWN_SESSION if self.was_attached => {
                self.end(FinalReason::EndedByPeer(reason));
            }
            reason if !self.was_attached => self.end(FinalReason::Refused(reason)),
            RefusalReason::CONTRADICTION => self.end(FinalReason::Violation(Violation::LetGo)),
            _ => {}
        }
        if let Some(rail) = self.rail_mut(index) {
            if let RailPhase::Attaching { until, .. } = &mut rail.phase {
                *until = crate::Deadline::at(Instant::from_ns(0));
            }
        }
    }

    /// The peer has ended the session.
    fn ended(&mut self, reason: RefusalReason) {
        self.end(match reason {
            // The peer received the farewell, though no completion reported it. After it, only requests of the peer can be open.
            RefusalReason::OVER
                if self
                    .closing
                    .is_some_and(|closing| closing.was_said || self.has_nothing_open()) =>
            {
                FinalReason::Closed
            }
            RefusalReason::OVER => FinalReason::PeerClosed,
            reason => FinalReason::EndedByPeer(reason),
        });
    }

    /// Notes that requests on a rail's connection completed, with their total bytes.
    pub fn completed(&mut self, index: u8, requests: u32, bytes: u64, now: Instant) {
        let Some(rail) = self.rail_mut(index).filter(|rail| rail.has_connection()) else {
            return;
        };
        rail.outstanding = rail.outstanding.saturating_sub(requests);
        rail.backlog_bytes = rail.backlog_bytes.saturating_sub(bytes);
        rail.health.completed(rail.outstanding > 0, now);
        rail.heard_at = Some(now);
        if rail.is_up() {
            rail.attempts_failed = 0;
        }
        let is_quiet = rail.outstanding == 0;
        let said_here = self
            .closing
            .is_some_and(|closing| closing.farewell == Some(index));
        if is_quiet && said_here && matches!(self.phase, Phase::Connected) {
            self.end(FinalReason::Closed);
        }
    }
}
