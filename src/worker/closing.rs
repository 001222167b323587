//! Closing of channels, which advances by polling. Posted requests complete, the rest is flushed, and the reaper destroys the
//! queue pair on another thread. The index is free again once the completion queues have no completion of the channel any more.

use core::fmt;
use core::time::Duration;
use std::sync::Arc;

use doorbell_core::provider::{CompletionQueue, Provider, ProviderError, PushError, QueuePair};
use doorbell_core::{Clock as _, Deadline, Instant};

use doorbell_hotpath::{UnpostedReason, Wait};

use super::channel_table::{Closed, PARTING_MAX};
use super::upkeep::TakenOfBoth;
use super::waiting::Sleeper as _;
use super::{Reservation, Turn, Worker};
use crate::machine::log::log;
use crate::worker::channel::Channel;
use crate::worker::channel::ChannelId;
use crate::worker::event::{ChannelState, Event};
use crate::worker::half::Held;

/// Time limit for the device to flush the remaining requests of a failed queue pair. Flushing does not involve the peer.
const FLUSH_MAX: Duration = Duration::from_millis(500);

/// Time limit for a failed queue pair to finish a shared receive that it had begun, if the device does not report the last
/// receive. A device needs microseconds.
const LAST_RECEIVE_MAX: Duration = Duration::from_millis(50);

/// Time for which a queue pair is kept after its peer closed, so that the device can acknowledge the peer's farewell.
const LINGER: Duration = Duration::from_millis(10);

/// A channel that is being closed.
pub(super) struct Closing {
    reservation: Arc<Reservation>,
    stage: ClosingState,
    /// The shared receives that were granted to the peer when the reaper got the channel.
    granted: u32,
    /// The first error so far.
    outcome: Result<(), CloseError>,
    /// Whether the Worker closes the channel by itself, since the channel is lost.
    pub(super) is_by_itself: bool,
    /// The state of the channel when the reaper got it.
    pub(super) state: Option<ChannelState>,
}

impl Closing {
    /// Whether this is the closing of the channel.
    pub(super) fn is_of(&self, id: ChannelId) -> bool {
        self.reservation.id == id
    }

    /// Begins to close a lost channel, unless it is being closed already. `receives` is how many completions may be in the
    /// receive queue.
    pub(super) fn begin_lost<P: Provider>(
        closings: &mut Vec<Self>,
        channel: &Channel<P>,
        now: Instant,
        receives: u32,
    ) {
        if closings.iter().any(|closing| closing.is_of(channel.id())) {
            return;
        }
        let (linger, receives) = match channel.state() {
            // The farewell came after all messages, so no receive completion with a message is left.
            ChannelState::PeerClosed { .. } => (LINGER, 0),
            _ => (Duration::ZERO, receives),
        };
        let until = Deadline::after(now, linger);
        closings.push(Self {
            reservation: Arc::clone(channel.reservation()),
            stage: ClosingState::Lingering { until, receives },
            granted: 0,
            outcome: Ok(()),
            is_by_itself: true,
            state: None,
        });
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ClosingState {
    /// Waits for the posted requests.
    Draining {
        until: Deadline,
        /// Time limit for the farewell to wait for a credit.
        receive_until: Option<Deadline>,
    },
    /// Waits for the acknowledgement of the farewell, which was posted after all requests.
    Parting { until: Deadline },
    /// The peer closed the channel, or the channel failed. Waits until the deadline, which leaves time for requests in flight,
    /// and until polls took the `receives` completions that may be in the receive queue.
    Lingering { until: Deadline, receives: u32 },
    /// The queue pair is in ERR. Waits for the flushed requests, and for a poll that reports the unsent ones. With shared receives it also waits until the queue pair takes no
    /// more of them.
    Flushing {
        until: Deadline,
        last_receive: Option<Deadline>,
    },
    /// Waits until polls took the channel's completions of shared receives, of which at most `receives` are left. The channel
    /// still exists meanwhile.
    Emptying { receives: u32 },
    /// The reaper has the channel, and destroys the queue pair.
    Destroying,
    /// The queue pair is destroyed. Waits until polls took its remaining completions, at most this many.
    Sweeping { sends: u32, receives: u32 },
}

/// Progress of closing a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloseProgress {
    /// The channel is open, or there was no such channel, or a later channel with the same index was closed.
    Unknown,
    /// The channel is being closed: continue to poll and to call [`Worker::tend`].
    UnderWay,
    /// The closing has ended, with the first error if there was one. After [`CloseError::NotDestroyed`] the queue pair still
    /// exists.
    Closed(Result<(), CloseError>),
}

impl<P: Provider> Worker<P> {
    /// Begins to close a channel. Polling together with [`Worker::tend`] advances the closing, and [`Worker::close_progress`]
    /// reports it. The events of the channel continue until all requests are done, including those that wait after
    /// [`Channel::submit`](crate::Channel::submit).
    ///
    /// The call does not block; another thread destroys the queue pair. Requests that are not done at the deadline are flushed,
    /// and each is reported with its error.
    ///
    /// The channel still takes requests until the peer is notified, and the notice follows them, so stop sending first. After the
    /// notice, messages are refused by [`SendErrorKind::WouldBlock`](crate::SendErrorKind::WouldBlock) until the channel is gone.
    ///
    /// After the posted requests the peer is notified, and gets [`Event::PeerClosed`]. If there is no credit for the notice, the
    /// closing waits up to 20 ms for one. After that the notice is written into the peer's credit word, and the peer finds it
    /// when its next request or announcement fails.
    ///
    /// The Worker closes lost channels by itself ([`ChannelConfig::close_when_lost`](crate::ChannelConfig::close_when_lost)). In
    /// that case this call takes over the closing, which may have ended already.
    ///
    /// # Errors
    /// [`CloseError::Unknown`]: there is no such channel, or a caller is closing it already.
    pub fn begin_close(&mut self, id: ChannelId, deadline: Deadline) -> Result<(), CloseError> {
        if self.take_over(id) {
            return Ok(());
        }
        let channel = self.channel(id).ok_or(CloseError::Unknown)?;
        let reservation = Arc::clone(channel.reservation());
        if self.closing.iter().any(|closing| closing.is_of(id)) {
            return Err(CloseError::Unknown);
        }
        self.closing.push(Closing {
            reservation,
            stage: ClosingState::Draining {
                until: deadline,
                receive_until: None,
            },
            granted: 0,
            outcome: Ok(()),
            is_by_itself: false,
            state: None,
        });
        self.upkeep.is_wanted();
        Ok(())
    }

    /// Returns the progress of closing a channel. The outcome is kept until a later channel with the same index is closed.
    #[must_use]
    pub fn close_progress(&self, id: ChannelId) -> CloseProgress {
        if self.closing.iter().any(|closing| closing.reservation.id == id) {
            return CloseProgress::UnderWay;
        }
        match self
            .table
            .entries
            .get(id.index as usize)
            .and_then(|entry| entry.closed)
        {
            Some(closed) if closed.generation == id.generation => CloseProgress::Closed(closed.outcome),
            _ => CloseProgress::Unknown,
        }
    }

    /// Closes a channel and waits until it is closed, at most half a second past the deadline. `each` gets the events of all
    /// channels that come meanwhile.
    ///
    /// The peer is notified as by [`Worker::begin_close`]. With a peer of handshake version 1, which gets no notice, the call
    /// cannot wait for requests that were posted after the last signaled one. If `unsignaled_max` is set, end with a request with
    /// [`PostFlags::SIGNALED`](crate::PostFlags) there.
    ///
    /// # Errors
    /// Some requests were not done by the deadline, the device refused a call, or polling failed. The channel is closed anyway,
    /// and its memory returns to the Worker, except after [`CloseError::NotDestroyed`]. If this call returns while
    /// [`Worker::close_progress`] is still [`CloseProgress::UnderWay`], later polls with [`Worker::tend`] end the closing.
    pub fn close(
        &mut self,
        id: ChannelId,
        deadline: Deadline,
        mut each: impl FnMut(Turn<'_, P>, Event<'_, P>),
    ) -> Result<(), CloseError> {
        self.begin_close(id, deadline)?;
        let patience = Deadline::after(deadline.instant(), FLUSH_MAX);
        let is_under_way = |worker: &Self| worker.close_progress(id) == CloseProgress::UnderWay;
        self.wait_until(Wait::Busy, patience, |worker| {
            worker.poll_tending(&mut each)?;
            Ok(u32::from(!is_under_way(worker)))
        })
        .map_err(CloseError::Poll)?;
        match self.close_progress(id) {
            CloseProgress::Closed(outcome) => outcome,
            CloseProgress::Unknown => Err(CloseError::Unknown),
            // The time is over. Later polls advance the closing.
            CloseProgress::UnderWay => Err(CloseError::TimedOut),
        }
    }

    /// Advances all closings, after polls that took so many completions since the last time.
    pub(super) fn advance_closings(&mut self, taken: TakenOfBoth) {
        let now = self.context.now();
        self.device_events
            .look(&*self.context, &mut self.receives, &mut self.table.entries);
        let mut at = 0;
        while let Some(closing) = self.closing.get(at) {
            let (stage, outcome) = (closing.stage, closing.outcome);
            let reservation = Arc::clone(&closing.reservation);
            let (next, outcome) = self.step(&reservation, stage, outcome, now, taken);
            match (next, self.closing.get_mut(at)) {
                (Some(next), Some(closing)) => {
                    closing.stage = next;
                    closing.outcome = outcome;
                    at = at.saturating_add(1);
                }
                _ => {
                    let closed = self.closing.swap_remove(at);
                    let gone = closed.reservation.id;
                    let is_left = outcome == Err(CloseError::NotDestroyed);
                    // A queue pair that was not destroyed may still use the receives that it was granted.
                    if let Some(shared) = self.receives.shared.as_mut().filter(|_| !is_left) {
                        shared.release(closed.granted);
                    }
                    match &outcome {
                        Ok(()) => log!(debug, "channel closed", channel = gone.index),
                        Err(reason) if is_left => {
                            log!(error, "channel not closed", channel = gone.index, reason = reason);
                        }
                        Err(reason) => log!(warn, "channel closed", channel = gone.index, reason = reason),
                    }
                    if let Some(entry) = self.table.entries.get_mut(gone.index as usize) {
                        entry.closed = Some(Closed {
                            generation: gone.generation,
                            outcome,
                            state: closed.state.unwrap_or(ChannelState::Open),
                            is_by_itself: closed.is_by_itself,
                        });
                    }
                }
            }
        }
    }

    /// Returns the next stage of a closing, and its outcome so far. The stage is `None` if the closing has ended.
    fn step(
        &mut self,
        reservation: &Arc<Reservation>,
        stage: ClosingState,
        outcome: Result<(), CloseError>,
        now: Instant,
        taken: TakenOfBoth,
    ) -> (Option<ClosingState>, Result<(), CloseError>) {
        let id = reservation.id;
        let is_shared = self.receives.shared.is_some();
        match stage {
            ClosingState::Draining { until, receive_until } => {
                let Some(channel) = self.channel(id) else {
                    return (None, outcome.and(Err(CloseError::Unknown)));
                };
                let has_passed = until.has_passed(now);
                if channel.is_peer_closed() {
                    let until = if has_passed {
                        until
                    } else {
                        Deadline::after(now, LINGER)
                    };
                    return (Some(ClosingState::Lingering { until, receives: 0 }), outcome);
                }
                let awaited = channel.send.has_deferred() || channel.send.sender.awaits_completion();
                if awaited && !has_passed {
                    return (Some(stage), outcome);
                }
                if !awaited && channel.send.may_part() {
                    let receive_until = receive_until.unwrap_or(Deadline::after(now, PARTING_MAX));
                    match channel.say_farewell(has_passed || receive_until.has_passed(now)) {
                        Parted::Said => {
                            let until = until.max(Deadline::after(now, PARTING_MAX));
                            return (Some(ClosingState::Parting { until }), outcome);
                        }
                        Parted::NotYet => {
                            let receive_until = Some(receive_until);
                            return (Some(ClosingState::Draining { until, receive_until }), outcome);
                        }
                        Parted::Never => {}
                    }
                }
                let outcome = outcome.and(if awaited {
                    Err(CloseError::TimedOut)
                } else {
                    Ok(())
                });
                self.end(id, now, outcome)
            }
            ClosingState::Parting { until } => {
                let is_awaited = self.channel(id).is_some_and(|channel| {
                    channel.send.sender.awaits_completion() && !channel.is_peer_closed()
                });
                if is_awaited && !until.has_passed(now) {
                    return (Some(stage), outcome);
                }
                // All earlier requests are done. Without the acknowledgement, the peer detects the close by its next request or
                // probe.
                self.end(id, now, outcome)
            }
            ClosingState::Lingering { until, receives } => {
                let receives = taken.receives.left_of(receives);
                if !until.has_passed(now) || receives > 0 {
                    return (Some(ClosingState::Lingering { until, receives }), outcome);
                }
                self.end(id, now, outcome)
            }
            ClosingState::Flushing { until, last_receive } => {
                let channel = self.channel(id);
                let has_ended = channel
                    .as_ref()
                    .is_some_and(|channel| channel.receive.has_ended());
                // A poll reports the requests that come back.
                let is_unreported = !taken.sends.is_polled()
                    && channel
                        .as_ref()
                        .is_some_and(|channel| channel.send.has_deferred());
                let left = channel.is_some_and(|channel| channel.in_flight() > 0);
                let may_take = last_receive.is_some_and(|until| !has_ended && !until.has_passed(now));
                if is_unreported || may_take || (left && !until.has_passed(now)) {
                    return (Some(stage), outcome);
                }
                let outcome = outcome.and(if left { Err(CloseError::TimedOut) } else { Ok(()) });
                if is_shared {
                    let receives = self.receives.completions.depth();
                    return (Some(ClosingState::Emptying { receives }), outcome);
                }
                (Some(self.hand_over(id)), outcome)
            }
            ClosingState::Emptying { receives } => match taken.receives.left_of(receives) {
                0 => (Some(self.hand_over(id)), outcome),
                receives => (Some(ClosingState::Emptying { receives }), outcome),
            },
            // Two references are the closing's own and the caller's clone. A third one means that the queue pair still exists.
            ClosingState::Destroying if Arc::strong_count(reservation) > 2 => (Some(stage), outcome),
            // The reaper drops the reservation after the queue pair, so a claim that is still held means that the device refused
            // to destroy it.
            ClosingState::Destroying if self.sends.completions.is_claimed(id.index) => {
                (None, Err(CloseError::NotDestroyed))
            }
            ClosingState::Destroying => {
                let sends = self.sends.completions.depth();
                let receives = self.receives.completions.depth();
                (Some(ClosingState::Sweeping { sends, receives }), outcome)
            }
            ClosingState::Sweeping { sends, receives } => {
                match (taken.sends.left_of(sends), taken.receives.left_of(receives)) {
                    (0, 0) => (None, outcome),
                    (sends, receives) => (Some(ClosingState::Sweeping { sends, receives }), outcome),
                }
            }
        }
    }

    /// Moves the queue pair to ERR, so that the closing waits only for flushed requests. A channel without requests goes to the
    /// reaper at once.
    fn end(
        &mut self,
        id: ChannelId,
        now: Instant,
        outcome: Result<(), CloseError>,
    ) -> (Option<ClosingState>, Result<(), CloseError>) {
        let is_shared = self.receives.shared.is_some();
        let Some(channel) = self.channel(id) else {
            return (None, outcome.and(Err(CloseError::Unknown)));
        };
        if channel.in_flight() == 0 && !channel.send.has_deferred() && !is_shared {
            return (Some(self.hand_over(id)), outcome);
        }
        let shut = channel.shut();
        // The next poll reports the waiting requests, and the closing waits for it.
        channel.send.close();
        let (flush_max, outcome) = match shut {
            Ok(()) => (FLUSH_MAX, outcome),
            Err(error) => (Duration::ZERO, outcome.and(Err(CloseError::Provider(error)))),
        };
        let until = Deadline::after(now, flush_max);
        let last_receive = is_shared.then(|| Deadline::after(now, LAST_RECEIVE_MAX.min(flush_max)));
        (Some(ClosingState::Flushing { until, last_receive }), outcome)
    }

    /// Gives a channel to the reaper.
    fn hand_over(&mut self, id: ChannelId) -> ClosingState {
        if let Some(entry) = self.table.entries.get_mut(id.index as usize) {
            if let Some(channel) = entry.channel.take() {
                if let ChannelState::Failed { cause } = channel.state() {
                    let (peer, cause) = (channel.peer().address(), cause.status);
                    log!(
                        warn,
                        "channel failed",
                        channel = id.index,
                        peer = peer,
                        cause = cause
                    );
                }
                entry.generation = entry.generation.wrapping_add(1);
                if let Some(shared) = &mut self.receives.shared {
                    shared.dismiss(channel.send.control.qpn());
                }
                let closing = self
                    .closing
                    .iter_mut()
                    .find(|closing| closing.reservation.id == id);
                if let Some(closing) = closing {
                    closing.granted = channel.receives_posted();
                    closing.state = Some(channel.state());
                }
                self.table.reaper.take(channel);
                self.note_leases();
            }
        }
        ClosingState::Destroying
    }
}

/// The outcome of sending a farewell.
enum Parted {
    Said,
    /// There is no credit or no room yet.
    NotYet,
    /// The device refused the farewell.
    Never,
}

impl<P: Provider> Channel<P> {
    fn is_peer_closed(&self) -> bool {
        self.receive.ending.peer_closed.is_some()
    }

    /// Sends a farewell as a message. If there is no credit and it is `late`, writes the farewell into the peer's credit word
    /// instead.
    fn say_farewell(&mut self, late: bool) -> Parted {
        let said = match self.send.sender.say_farewell() {
            Err(UnpostedReason::Push(PushError::NoCredit | PushError::Full)) if !late => {
                return Parted::NotYet;
            }
            Err(_) => self.send.sender.leave_farewell(),
            said => said,
        };
        if said.is_err() {
            return Parted::Never;
        }
        self.send.close();
        Parted::Said
    }
}

/// Reason why a channel was not closed cleanly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloseError {
    /// There is no such channel, or it was closed already.
    Unknown,
    /// The device refused to move the queue pair to ERR.
    Provider(ProviderError),
    /// The Worker could not be polled.
    Poll(ProviderError),
    /// Some requests were not done by the deadline. Or the closing had not ended when [`Worker::close`] returned, for example
    /// because the queue pair was still being destroyed.
    TimedOut,
    /// The device refused to destroy the queue pair. The queue pair stays until the process ends. Until then its memory stays
    /// registered, and its index on the Worker and its room in the completion queues stay in use.
    NotDestroyed,
}

impl fmt::Display for CloseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str(
                "the Worker has no such channel, or it is being closed already: see Worker::close_progress",
            ),
            Self::Provider(error) => write!(f, "cannot move the queue pair to ERR: {error}"),
            Self::Poll(error) => write!(f, "while closing, the completion queue cannot be polled: {error}"),
            Self::NotDestroyed => f.write_str(
                "the device refused to destroy the queue pair: the memory of the channel stays registered until the process ends; start it again",
            ),
            Self::TimedOut => {
                f.write_str("requests in flight were not acknowledged before the deadline and were flushed: give the closing more time")
            }
        }
    }
}

impl core::error::Error for CloseError {}
