//! Closing of a channel, by polling. Posted requests complete, the rest is flushed, and the reaper destroys the queue pair away
//! from this thread. The place is free again once the completion queues hold nothing of the channel.

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

/// Longest time for a device to flush what is left when the deadline passes. Flushing needs no peer.
const FLUSH_MAX: Duration = Duration::from_millis(500);

/// Longest time for a failed queue pair on shared receives to finish a receive that it had begun, if the device does not report
/// its last one. A device needs microseconds for it.
const LAST_RECEIVE_MAX: Duration = Duration::from_millis(50);

/// How long a queue pair is kept whose peer closed, so that the device may acknowledge its farewell.
const LINGER: Duration = Duration::from_millis(10);

/// A channel on its way out.
pub(super) struct Closing {
    reservation: Arc<Reservation>,
    stage: ClosingState,
    /// The shared receives that its peer may have used until its queue pair was gone.
    granted: u32,
    /// Errors so far.
    outcome: Result<(), CloseError>,
    /// Whether the Worker closes it by itself, since it is lost.
    pub(super) is_by_itself: bool,
    /// How the channel was when it was given to the reaper.
    pub(super) state: Option<ChannelState>,
}

impl Closing {
    /// Whether it is of this channel.
    pub(super) fn is_of(&self, id: ChannelId) -> bool {
        self.reservation.id == id
    }

    /// Begins to close a channel that is lost, unless it is being closed.
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
            // The farewell came behind all messages.
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
    /// Posted requests are waited for.
    Draining {
        until: Deadline,
        /// Until when the farewell waits for a receive of the peer.
        receive_until: Option<Deadline>,
    },
    /// Farewell was said behind all that was posted, and is waited for.
    Parting { until: Deadline },
    /// The peer closed it, or it failed: what is in flight has until then to come back by itself, and of what had come no more is left
    /// in the completion queue than this.
    Lingering { until: Deadline, receives: u32 },
    /// The queue pair failed: what is left comes back, each request with its error. On shared receives it is
    /// waited for, too, that it takes no more of them.
    Flushing {
        until: Deadline,
        last_receive: Option<Deadline>,
    },
    /// The channel's completions of shared receives are taken out of the completion queue while the channel exists: this many
    /// at most.
    Emptying { receives: u32 },
    /// The reaper has the channel.
    Destroying,
    /// The queue pair is gone. Its remaining completions are taken out of the completion queues: this many at most.
    Sweeping { sends: u32, receives: u32 },
}

/// Progress of closing a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloseProgress {
    /// The channel is open, or there never was such a channel, or so many were closed since that it is forgotten.
    Unknown,
    /// The channel is being closed: continue to poll.
    UnderWay,
    /// The channel is gone: cleanly, or with what went wrong. With [`CloseError::NotDestroyed`] it is not, and will not be.
    Closed(Result<(), CloseError>),
}

impl<P: Provider> Worker<P> {
    /// Begins to close a channel; polling and [`Worker::tend`] advance it, and [`Worker::close_progress`] says
    /// how far it is. Its events come as before until everything posted is done, with what was
    /// submitted to it on this thread.
    ///
    /// Nothing here waits or destroys: what takes long happens on another thread. At the deadline, what is
    /// not done is flushed, and each request gets its error.
    ///
    /// Behind the posted requests the peer is notified: [`Event::PeerClosed`]. If the peer has no receive left, the notice
    /// waits 20 ms for one. After that, the peer finds the channel closed when it next sends or announces something.
    ///
    /// A channel that is lost the Worker closes by itself ([`ChannelConfig::close_when_lost`](crate::ChannelConfig::close_when_lost)):
    /// then this goes on with that, or has nothing left to do.
    ///
    /// # Errors
    /// [`CloseError::Unknown`]: there is no such channel, or it is being closed already.
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

    /// Closes a channel and waits until it is closed, at most half a second past the deadline. `each` gets the events that come
    /// meanwhile, of all channels.
    ///
    /// The peer is notified as by [`Worker::begin_close`]. If the peer does not understand that notice, requests posted after
    /// the last signaled one cannot be waited for: with `unsignaled_max` set, end with a request of
    /// [`PostFlags::SIGNALED`](crate::PostFlags).
    ///
    /// # Errors
    /// Something was not done by the deadline, the device refused, or polling failed. The
    /// channel is closed all the same, and its memory goes home, but for [`CloseError::NotDestroyed`].
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
            // The reaper has it by now, and goes on.
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
                    // A queue pair that is left may take the receives it was granted.
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

    /// The stage a closing goes on to; none where it is over.
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
                // All that was posted before was done: the peer finds out by itself that nobody is here.
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
                let left = channel.is_some_and(|channel| channel.in_flight() > 0);
                let may_take = last_receive.is_some_and(|until| !has_ended && !until.has_passed(now));
                if may_take || (left && !until.has_passed(now)) {
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
            // The list of closings holds it, and the clone that the caller passed.
            ClosingState::Destroying if Arc::strong_count(reservation) > 2 => (Some(stage), outcome),
            // Its end, if it came, was before the reaper let go of the reservation, which was seen.
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

    /// Ends a channel: nothing more is waited for but what is flushed.
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
        // The waiting events are reported by the next poll, which the channel is there for in any case.
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

/// The outcome of saying farewell.
enum Parted {
    Said,
    /// The peer has no receive for it, so far.
    NotYet,
    /// The device refuses it.
    Never,
}

impl<P: Provider> Channel<P> {
    fn is_peer_closed(&self) -> bool {
        self.receive.ending.peer_closed.is_some()
    }

    /// Says farewell, or leaves it in the peer's word where it is `late`.
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
    /// The queue pair could not be failed.
    Provider(ProviderError),
    /// The Worker could not be polled.
    Poll(ProviderError),
    /// Some requests were not done by the deadline.
    TimedOut,
    /// The device would not destroy the queue pair. It is there as long as the process is, with all it may use: its memory,
    /// which stays registered, its place on the Worker, and its room in the completion queues.
    NotDestroyed,
}

impl fmt::Display for CloseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("the Worker has no such channel: it was closed before"),
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
