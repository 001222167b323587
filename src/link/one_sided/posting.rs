//! Posting of frames that are not messages, and of one-sided requests.

use doorbell_core::network::Network;
use doorbell_core::provider::{Context as _, Operation, PostFlags, Provider, PushError};
use doorbell_core::session::{Epoch, HealthState, SESSION_RAILS_MAX};
use doorbell_core::wire::SESSION_HEADER_BYTES;
use doorbell_core::{Instant, Ticket};

use super::{OneSided, OneSidedKind};
use crate::link::moment::Moment;
use crate::link::rail::{At, Carried};
use crate::link::state::{Link, Posted, posted};
use crate::worker::Worker;
use crate::worker::channel::SendErrorKind;
use crate::worker::lease::Lease;

impl<P: Provider, N: Network> Link<P, N> {
    /// Posts a frame that is no message. Returns the ticket if it was posted.
    pub(in crate::link) fn say(
        &mut self,
        (rail, at): (u8, At),
        bytes: &[u8],
        workers: &mut [Worker<P>],
        moment: Moment,
    ) -> Option<Ticket> {
        let outcome = post_frame(at, bytes, workers)?;
        self.took(rail, outcome, bytes.len(), None, moment)
    }

    /// Posts a frame that is no message. Returns whether the peer may get it: it was posted, or it is in doubt, and the rail is given up.
    pub(in crate::link) fn may_have_said(
        &mut self,
        (rail, at): (u8, At),
        bytes: &[u8],
        workers: &mut [Worker<P>],
        moment: Moment,
    ) -> bool {
        let Some(outcome) = post_frame(at, bytes, workers) else {
            return false;
        };
        let is_in_doubt = matches!(outcome, Posted::InDoubt);
        self.took(rail, outcome, bytes.len(), None, moment).is_some() || is_in_doubt
    }

    /// Handles the outcome of posting. Returns the ticket if the request was posted.
    pub(in crate::link) fn took(
        &mut self,
        rail: u8,
        outcome: Posted,
        bytes: usize,
        carried: Option<Carried>,
        Moment { now, random }: Moment,
    ) -> Option<Ticket> {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        match outcome {
            Posted::Done(ticket) => {
                if let Some(rail) = self.rail_mut(rail) {
                    rail.posted(ticket, bytes, carried);
                    rail.did_send(bytes);
                }
                if carried.is_some() {
                    self.in_class.note_posted(rail, bytes);
                }
                self.session.posted_beside(rail, bytes, now);
                Some(ticket)
            }
            Posted::Blocked | Posted::Failed => {
                self.session.blocked(rail);
                None
            }
            // No completion reports it, so the rail is given up: the request ends or is retransmitted, like the others of a failed rail.
            Posted::InDoubt => {
                let epoch = self.session.rail_epoch(rail);
                self.session.given_up(rail, epoch, now, random);
                None
            }
        }
    }

    /// Posts requests that wait for a rail, in the order of their places in the table, and then stretches of long requests. If the device
    /// refuses a request, later ones are posted all the same.
    pub(in crate::link) fn post_requests(&mut self, workers: &mut [Worker<P>], moment: Moment) {
        self.post_waiting(OneSided::waiting, workers, moment);
        if self.one_sided.long.is_any() {
            self.post_waiting(OneSided::waiting_stretch, workers, moment);
        }
    }

    /// Posts the requests that `next` returns. `next` returns the first waiting one from a place on, with its place and its window.
    fn post_waiting(
        &mut self,
        next: impl Fn(&OneSided, usize, Instant) -> Option<(usize, Carried, u32)>,
        workers: &mut [Worker<P>],
        moment: Moment,
    ) {
        let now = moment.now;
        let mut from = 0;
        while !self.in_class.has_had_turn() {
            let Some((place, what, window)) = next(&self.one_sided, from, now) else {
                break;
            };
            from = place.saturating_add(1);
            let mut refused = [false; SESSION_RAILS_MAX as usize];
            while let Some(rail) = self.post_request((what, window), &refused, workers, moment) {
                if let Some(refused) = refused.get_mut(usize::from(rail)) {
                    *refused = true;
                }
                self.one_sided.refused(what, now);
            }
        }
    }

    /// Ends requests and stretches that no rail accepted in time.
    pub(super) fn end_late(&mut self, now: Instant) {
        while let Some((what, window)) = self.one_sided.late(now) {
            let is_reached = (0_u8..).zip(&self.rails).any(|(index, rail)| {
                let is_used = rail.at.is_some() && tier_of(self.session.rail_state(index)).is_some();
                let over = (index, self.session.rail_epoch(index));
                is_used && self.one_sided.operation(what, window, over).is_some()
            });
            self.one_sided.end_late(what, is_reached);
        }
    }

    /// Posts a request over the best rail, except these. Returns the rail if its device refuses the request.
    fn post_request(
        &mut self,
        (what, window): (Carried, u32),
        but: &[bool],
        workers: &mut [Worker<P>],
        moment: Moment,
    ) -> Option<u8> {
        let others = (0_u8..).zip(but).filter(|(_, refused)| !**refused);
        let over = others.filter_map(|(rail, _)| {
            let at = self.rails.get(usize::from(rail))?.at?;
            let (state, epoch) = (self.session.rail_state(rail), self.session.rail_epoch(rail));
            let (operation, asked) = self.one_sided.operation(what, window, (rail, epoch))?;
            let may = self.session.takes_beside(rail) && !self.in_class.is_held(rail);
            // Stretches are distributed by the speed and the backlog of rails, as fragments are.
            let load = match what {
                Carried::Stretch(_) => self.session.done_after(rail, asked.bytes),
                _ => 0,
            };
            Some((state, load, may.then_some((rail, at, epoch, operation, asked))))
        });
        let (rail, at, epoch, operation, asked) = open_of_best(over)?;
        let worker = workers.get_mut(at.worker)?;
        let length = usize::try_from(asked.bytes).unwrap_or(usize::MAX);
        let outcome = match worker.lease() {
            None => Posted::Blocked,
            Some(mut lease) => {
                if let Some(target) = lease.buffer_mut().get_mut(..length) {
                    if asked.kind == OneSidedKind::Write {
                        target.copy_from_slice(self.one_sided.payload(what, asked.bytes));
                    }
                }
                lease.set_len_bytes(length);
                post(worker, at, operation, lease)
            }
        };
        if matches!(outcome, Posted::Failed) {
            return Some(rail);
        }
        let bytes = length.saturating_add(SESSION_HEADER_BYTES);
        let may_be_posted = matches!(outcome, Posted::Done(_) | Posted::InDoubt);
        self.took(rail, outcome, bytes, Some(what), moment);
        if may_be_posted {
            self.one_sided.posted(what, rail, epoch);
        }
        None
    }
}

impl OneSided {
    /// Returns the first request from this place on that waits for a rail.
    fn waiting(&self, from: usize, now: Instant) -> Option<(usize, Carried, u32)> {
        let next = self.requests.waiting(now).find(|(id, _)| id.place() >= from);
        next.map(|(id, window)| (id.place(), Carried::Request(id), window))
    }

    /// Returns the first stretch from this place on that waits for a rail.
    fn waiting_stretch(&self, from: usize, now: Instant) -> Option<(usize, Carried, u32)> {
        let next = self.long.waiting(now).find(|(id, _)| id.place() >= from);
        next.map(|(id, window)| (id.place(), Carried::Stretch(id), window))
    }

    /// Returns the bytes that a request or a stretch writes.
    fn payload(&self, what: Carried, bytes: u32) -> &[u8] {
        match what {
            Carried::Request(id) => self.payloads.get(id.place(), bytes),
            Carried::Stretch(id) => self.long.payload(id),
            Carried::Piece(..) | Carried::Part(_) | Carried::Placed(_) | Carried::PlacedPart => &[],
        }
    }

    fn posted(&mut self, what: Carried, rail: u8, epoch: Epoch) {
        match what {
            Carried::Request(id) => self.requests.posted(id, rail, epoch),
            Carried::Stretch(id) => self.long.posted(id, rail, epoch),
            Carried::Piece(..) | Carried::Part(_) | Carried::Placed(_) | Carried::PlacedPart => {}
        }
    }

    fn refused(&mut self, what: Carried, now: Instant) {
        match what {
            Carried::Request(id) => self.requests.refused(id, now),
            Carried::Stretch(id) => self.long.refused(id, now),
            Carried::Piece(..) | Carried::Part(_) | Carried::Placed(_) | Carried::PlacedPart => {}
        }
    }

    /// Returns the first request or stretch that no rail accepted in time, with its window.
    pub(super) fn late(&mut self, now: Instant) -> Option<(Carried, u32)> {
        if let Some((id, window)) = self.requests.look_at_deadlines(now) {
            return Some((Carried::Request(id), window));
        }
        let (id, window) = self.long.look_at_deadlines(now)?;
        Some((Carried::Stretch(id), window))
    }

    /// Ends a request or a stretch that no rail accepted in time.
    pub(super) fn end_late(&mut self, what: Carried, is_reached: bool) {
        match what {
            Carried::Request(id) => self.requests.end_late(id, is_reached),
            Carried::Stretch(id) => self.long.end_late(id, is_reached),
            Carried::Piece(..) | Carried::Part(_) | Carried::Placed(_) | Carried::PlacedPart => {}
        }
    }
}

fn post_frame<P: Provider>(at: At, bytes: &[u8], workers: &mut [Worker<P>]) -> Option<Posted> {
    let worker = workers.get_mut(at.worker)?;
    let channel = worker.channel(at.channel);
    let inline = channel.filter(|channel| bytes.len() <= channel.limits().inline_bytes_max as usize);
    if let Some(channel) = inline {
        return Some(posted_now(channel.post_inline(Operation::Send, bytes)));
    }
    Some(match worker.lease() {
        None => Posted::Blocked,
        Some(mut lease) => match lease.fill(bytes) {
            Ok(()) => post(worker, at, Operation::Send, lease),
            Err(_) => {
                worker.release(lease);
                Posted::Failed
            }
        },
    })
}

/// Converts the outcome of posting a request without a lease.
pub(in crate::link) fn posted_now(outcome: Result<Ticket, SendErrorKind>) -> Posted {
    match outcome {
        // If the channel has ended, an event reports it, and only the rail is lost.
        Err(
            SendErrorKind::Refused(PushError::State(_))
            | SendErrorKind::Closed
            | SendErrorKind::PeerClosed
            | SendErrorKind::NoMemory
            | SendErrorKind::NoLeases,
        ) => Posted::Blocked,
        // The device may have taken the request, so the rail is given up.
        Err(SendErrorKind::Post(_)) => Posted::InDoubt,
        outcome => posted(outcome),
    }
}

/// Rank of a rail in this state; lower is better. `None` if the rail is not used.
pub(in crate::link) const fn tier_of(state: HealthState) -> Option<u8> {
    match state {
        HealthState::Up => Some(0),
        HealthState::FailingBack => Some(1),
        HealthState::Suspect => Some(2),
        _ => None,
    }
}

/// Returns the open rail in the best state; among several, the first with the least load. If no rail in the best state is open, it
/// returns `None`: rails in a worse state are not used.
fn open_of_best<T>(rails: impl Iterator<Item = (HealthState, u128, Option<T>)>) -> Option<T> {
    let mut best = (u8::MAX, u128::MAX, None);
    for (state, load, open) in rails {
        let Some(tier) = tier_of(state) else { continue };
        let is_better = best.2.is_none() || load < best.1;
        if tier < best.0 || tier == best.0 && open.is_some() && is_better {
            best = (tier, load, open);
        }
    }
    best.2
}

/// Posts a signaled request. The outcome is [`Posted::Failed`] if the device does not support the operation, and [`Posted::Blocked`] if
/// the queue pair has failed, which another completion reports.
fn post<P: Provider>(worker: &mut Worker<P>, at: At, operation: Operation, lease: Lease<P>) -> Posted {
    let has_atomics = !operation.is_atomic() || worker.context().limits().atomics;
    let Some(channel) = worker.channel(at.channel) else {
        worker.release(lease);
        return Posted::Blocked;
    };
    // With a depth of 0, a READ or an atomic would wait for ever, and all requests after it (S28).
    if !has_atomics || operation.writes_slots() && channel.peer().rd_atomic_max() == 0 {
        worker.release(lease);
        return Posted::Failed;
    }
    match channel.post(operation, lease, PostFlags::SIGNALED) {
        Ok(ticket) => Posted::Done(ticket),
        Err(error) => {
            let Some(lease) = error.item else {
                return Posted::InDoubt;
            };
            worker.release(lease);
            match error.kind {
                SendErrorKind::Refused(PushError::State(_)) => Posted::Blocked,
                kind => posted(Err(kind)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::open_of_best;
    use doorbell_core::session::HealthState::{Down, FailingBack, Suspect, Up};

    #[test]
    fn a_request_waits_for_the_best_rails_and_goes_over_any_of_them() {
        let chosen =
            |rails: &[(_, Option<u8>)]| open_of_best(rails.iter().map(|(state, open)| (*state, 0, *open)));
        assert_eq!(
            chosen(&[(Suspect, Some(0)), (Up, None), (FailingBack, Some(2))]),
            None
        );
        assert_eq!(
            chosen(&[(Up, None), (Suspect, Some(1)), (Up, Some(2)), (Up, Some(3))]),
            Some(2)
        );
        assert_eq!(
            chosen(&[(Suspect, Some(0)), (FailingBack, Some(1)), (Down, Some(2))]),
            Some(1)
        );
        assert_eq!(chosen(&[(Down, Some(0)), (Suspect, Some(1))]), Some(1));
        assert_eq!(chosen(&[(Down, Some(0))]), None);
        let loaded = [
            (Up, 1, None),
            (Up, 9, Some(1)),
            (Up, 5, Some(2)),
            (Up, 5, Some(3)),
            (Suspect, 0, Some(4)),
        ];
        assert_eq!(open_of_best(loaded.into_iter()), Some(2));
    }
}
