//! One handshake in progress on the accepting side, and its queue pair.

use core::task::Waker;
use core::time::Duration;
use std::sync::Arc;

use doorbell_core::network::{Network, Stream as _, Waited};
use doorbell_core::provider::Provider;
use doorbell_core::wire::{Reject, RejectReason};
use doorbell_core::{Deadline, Instant};

use super::admission::{Admission, ReservedPlace};
use super::counts::Counts;
use super::limits::{ShareWait, Source};
use crate::connect::answer::{Answer, Next, PeerRequest};
use crate::connect::attempt::{self, Connected};
use crate::error::ConnectError;
use crate::machine::makers::{Commission, Makers, Whom};
use crate::machine::reaper::{Reaped, Reaper};

/// One handshake in progress.
pub(super) struct ActiveHandshake<P: Provider, N: Network> {
    stream: N::Stream,
    pub(super) from: Source,
    answer: Answer,
    stage: AttemptState<P>,
    /// The place in the accept queue, from the request until the connection is published.
    place: Option<ReservedPlace<P>>,
    share_wait: ShareWait,
    began: Instant,
    /// Whether a valid Connect has arrived. With keys it proves the peer's key.
    is_proven: bool,
    /// When an unproven peer is rejected, while places are scarce.
    patience: Option<Deadline>,
    /// Whether the stream has or may have something new.
    is_due: bool,
}

/// Progress of the queue pair. If the handshake is given up, the reaper destroys the queue pair.
enum AttemptState<P: Provider> {
    /// No queue pair is needed yet.
    Talking,
    /// A place was requested from the Worker.
    Reserving,
    /// A thread makes and connects the queue pair.
    Creating(Commission<Connected<P>>),
    /// The peer was sent an Accept.
    Accepted(Box<Reaped<Connected<P>>>),
}

/// State of the backlog that handshakes share.
pub(super) struct AttemptContext<'h, P: Provider> {
    pub(super) admissions: &'h [Arc<Admission<P>>],
    /// For each Worker, how many places were requested of its device, counted at the first Worker of a device.
    pub(super) turns: &'h mut [usize],
    pub(super) makers: &'h Makers,
    pub(super) reaper: &'h Reaper,
    /// Wakes the thread that polls the handshakes. `None` if that thread does not sleep.
    pub(super) waker: Option<&'h Waker>,
    /// The Reject for a peer for which there is no room.
    pub(super) busy: Reject,
    pub(super) counts: &'h Counts,
}

impl<P: Provider, N: Network> ActiveHandshake<P, N> {
    pub(super) fn new(now: Instant, stream: N::Stream, from: Source, answer: Answer) -> Self {
        Self {
            stream,
            from,
            answer,
            stage: AttemptState::Talking,
            place: None,
            share_wait: ShareWait::default(),
            began: now,
            is_proven: false,
            patience: None,
            is_due: true,
        }
    }

    /// Returns the latest time of the next poll.
    pub(super) fn deadline(&self) -> Deadline {
        self.share_wait.deadline(self.end())
    }

    /// Returns when the time of the peer ends.
    pub(super) fn end(&self) -> Deadline {
        let end = self.answer.deadline();
        self.patience.map_or(end, |patience| patience.min(end))
    }

    pub(super) fn waited(&self) -> Waited<'_, N::Stream> {
        Waited {
            stream: &self.stream,
            has_unsent: self.answer.has_unsent(),
        }
    }

    /// Whether a place was requested, and the Worker's answer was not seen yet.
    pub(super) const fn is_reserving(&self) -> bool {
        matches!(self.stage, AttemptState::Reserving)
    }

    /// Whether a thread makes the queue pair now.
    pub(super) const fn is_making(&self) -> bool {
        matches!(self.stage, AttemptState::Creating(_))
    }

    /// Whether the peer has not sent a valid Connect yet.
    pub(super) const fn is_unproven(&self) -> bool {
        !self.is_proven
    }

    /// Limits the time that an unproven peer has, counted from the beginning of its handshake; `None` sets no limit. Returns whether the
    /// time is over.
    pub(super) fn has_lost_patience(&mut self, now: Instant, patience: Option<Duration>) -> bool {
        let patience = patience.filter(|_| !self.is_proven);
        self.patience = patience.map(|span| Deadline::after(self.began, span));
        self.patience.is_some_and(|patience| patience.has_passed(now))
    }

    /// Whether the peer waits until other handshakes of its address finish.
    pub(super) const fn is_waiting(&self) -> bool {
        matches!(self.stage, AttemptState::Talking) && self.share_wait.is_on()
    }

    /// Rejects a peer that was not sent an Accept yet.
    pub(super) fn reject(&mut self, now: Instant, reject: Reject) {
        self.answer.reject(now, &mut self.stream, reject);
    }

    /// Whether a poll may make progress. It cannot while the handshake waits for the peer and the stream has nothing new.
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        let is_its_turn = matches!(self.stage, AttemptState::Talking | AttemptState::Accepted(_));
        self.is_due |= self.stream.is_due();
        self.is_due || !is_its_turn || self.deadline().has_passed(now)
    }

    pub(super) fn into_stream(self) -> N::Stream {
        self.stream
    }

    /// Advances the handshake as far as possible. Returns the outcome when there is one.
    pub(super) fn poll(
        &mut self,
        now: Instant,
        around: &mut AttemptContext<'_, P>,
    ) -> Option<Result<(), ConnectError>> {
        self.is_due = false;
        loop {
            let request = match self.answer.poll(now, &mut self.stream) {
                Ok(Next::Nothing) => return None,
                Ok(Next::QueuePair(request)) => {
                    (self.is_proven, self.patience) = (true, None);
                    request
                }
                Ok(Next::Admission(established)) => {
                    let stage = core::mem::replace(&mut self.stage, AttemptState::Talking);
                    let (AttemptState::Accepted(connected), Some(place)) = (stage, self.place.take()) else {
                        return Some(Err(ConnectError::OtherWorkers));
                    };
                    // Counted before it is published, so that the count includes each accepted connection.
                    around.counts.note_connected();
                    let unaccepted = place.publish(Reaped::into_inner(*connected).finish(established));
                    if !unaccepted.is_empty() {
                        around.reaper.take(unaccepted);
                    }
                    return Some(Ok(()));
                }
                Err(error) => return Some(Err(error)),
            };
            match self.prepare(now, &request, around) {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => {
                    // The peer gets one Reject. The returned error is the cause, not the error of the rejected handshake.
                    let reject = attempt::reject_or(&error, around.busy);
                    self.reject(now, reject);
                    return Some(Err(error));
                }
            }
        }
    }

    /// Advances the queue pair by one step, or waits for the share of the address. Returns whether a step was made.
    fn prepare(
        &mut self,
        now: Instant,
        request: &PeerRequest,
        around: &mut AttemptContext<'_, P>,
    ) -> Result<bool, ConnectError> {
        if self.share_wait.goes_on(now) {
            return Ok(false);
        }
        let outcome = self.get_on(now, request, around);
        if outcome.is_err() {
            (self.stage, self.place) = (AttemptState::Talking, None);
        }
        match outcome {
            Err(ConnectError::TooManyUnfinishedFrom { .. }) if self.share_wait.may_begin(now, self.end()) => {
                Ok(false)
            }
            outcome => outcome,
        }
    }

    fn get_on(
        &mut self,
        now: Instant,
        request: &PeerRequest,
        around: &mut AttemptContext<'_, P>,
    ) -> Result<bool, ConnectError> {
        self.stage = match &self.stage {
            AttemptState::Talking => {
                self.place = Some(around.ask(request)?);
                AttemptState::Reserving
            }
            AttemptState::Reserving if self.place.as_ref().is_some_and(ReservedPlace::is_abandoned) => {
                // Another Worker of the device may have a place. Otherwise the next request fails, and the peer is rejected.
                self.place = None;
                AttemptState::Talking
            }
            AttemptState::Reserving => {
                let Some(reserved) = self.place.as_ref().and_then(ReservedPlace::answer) else {
                    return Ok(false);
                };
                let (reserved, peer) = (reserved?, request.peer);
                let whom = Whom::Address(self.from.address());
                let create = move || reserved.create()?.connect(&peer);
                AttemptState::Creating(around.makers.make(whom, around.waker, create))
            }
            AttemptState::Creating(creating) => {
                let Some(connected) = creating.take()? else {
                    return Ok(false);
                };
                self.answer.accept(now, connected.local)?;
                AttemptState::Accepted(Box::new(connected))
            }
            AttemptState::Accepted(_) => return Ok(false),
        };
        Ok(true)
    }

    /// Gives up the handshake. The peer gets a Reject if it was not sent an Accept yet.
    pub(super) fn break_off(&mut self, now: Instant) {
        if !matches!(self.stage, AttemptState::Accepted(_)) {
            let closing = Reject::new(RejectReason::CLOSING);
            self.reject(now, closing);
        }
    }
}

impl<P: Provider> AttemptContext<'_, P> {
    /// Requests a place on a Worker of the rail's device. The Workers of each device take turns, and a full Worker is skipped.
    fn ask(&mut self, request: &PeerRequest) -> Result<ReservedPlace<P>, ConnectError> {
        // The first Worker of the device.
        let at = request.requested.rail.worker;
        let device = self.admissions.get(at).map(|admission| admission.device());
        let of_device = |admission: &&Arc<Admission<P>>| Some(admission.device()) == device;
        let count = self.admissions.iter().filter(of_device).count();
        let turn = self.turns.get_mut(at).map_or(0, |turn| {
            let next = turn.wrapping_add(1);
            core::mem::replace(turn, next)
        });
        let first = turn.checked_rem(count).unwrap_or_default();
        let mut refused = ConnectError::ListenerClosed;
        for admission in self
            .admissions
            .iter()
            .filter(of_device)
            .cycle()
            .skip(first)
            .take(count)
        {
            match admission.ask(request) {
                Ok(place) => return Ok(place),
                Err(ConnectError::ListenerClosed) => {}
                // This error is kept in preference to others, since the handshake may wait and try again.
                Err(_) if matches!(refused, ConnectError::TooManyUnfinishedFrom { .. }) => {}
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }
}
