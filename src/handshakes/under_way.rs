//! One handshake that is under way beside the threads that accept, and its queue pair.

use std::sync::mpsc::{self, TryRecvError};
use std::sync::{Arc, Weak};

use doorbell_core::accept_queue::ReserveError;
use doorbell_core::network::{Network, Waited};
use doorbell_core::provider::Provider;
use doorbell_core::wire::{Reject, RejectReason};
use doorbell_core::{Deadline, Instant};

use super::desk::{Desk, Granted, Seat};
use super::limits::Guest;
use crate::answer::{Answer, Made, Next, Wanted};
use crate::bring_up::{self, Ready};
use crate::edge::makers::Makers;
use crate::error::ConnectError;

/// A peer, and how far it is.
pub(super) struct UnderWay<P: Provider, N: Network> {
    stream: N::Stream,
    pub(super) guest: Guest,
    answer: Answer,
    stage: Stage<P>,
    /// Whether something came from the peer, or may have.
    pub(super) is_due: bool,
}

/// How far its queue pair is.
enum Stage<P: Provider> {
    /// None is wanted yet.
    Talking,
    /// The Worker was asked for a place.
    Asking(Seat<P>),
    /// The Worker gave one, and a queue pair can be made as soon as others are done.
    Granted(Box<Granted<P>>, Seat<P>),
    /// It is being made.
    Making(mpsc::Receiver<Result<Made<P>, ConnectError>>, Seat<P>),
    /// The peer was told yes.
    Told(Box<Ready<P>>, Seat<P>),
}

/// What a handshake has beside its peer.
pub(super) struct Around<'h, P: Provider> {
    pub(super) desks: &'h [Arc<Desk<P>>],
    pub(super) next_desk: &'h mut usize,
    pub(super) making: &'h mut Making,
}

impl<P: Provider, N: Network> UnderWay<P, N> {
    pub(super) const fn new(stream: N::Stream, guest: Guest, answer: Answer) -> Self {
        Self {
            stream,
            guest,
            answer,
            stage: Stage::Talking,
            is_due: true,
        }
    }

    pub(super) fn deadline(&self) -> Deadline {
        self.answer.deadline()
    }

    pub(super) fn waited(&self) -> Waited<'_, N::Stream> {
        Waited {
            stream: &self.stream,
            has_unsent: self.answer.has_unsent(),
        }
    }

    /// Whether its peer has not said a word yet.
    pub(super) fn is_silent(&self) -> bool {
        matches!(self.stage, Stage::Talking) && !self.answer.has_heard()
    }

    /// Whether it may move: not where it is the peer's turn, and nothing came of it.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        let is_its_turn = matches!(self.stage, Stage::Talking | Stage::Told(..));
        self.is_due || !is_its_turn || self.deadline().has_passed(now)
    }

    pub(super) fn into_stream(self) -> N::Stream {
        self.stream
    }

    /// Moves as far as it can; the outcome once there is one.
    pub(super) fn poll(
        &mut self,
        now: Instant,
        around: &mut Around<'_, P>,
    ) -> Option<Result<(), ConnectError>> {
        self.is_due = false;
        loop {
            let wanted = match self.answer.poll(now, &mut self.stream) {
                Ok(Next::Nothing) => return None,
                Ok(Next::QueuePair(wanted)) => wanted,
                Ok(Next::Admission(established)) => {
                    let Stage::Told(ready, seat) = core::mem::replace(&mut self.stage, Stage::Talking) else {
                        return Some(Err(ConnectError::OtherWorkers));
                    };
                    seat.publish(*ready, established);
                    return Some(Ok(()));
                }
                Err(error) => return Some(Err(error)),
            };
            match self.prepare(now, &wanted, around) {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => {
                    // The peer is told once; what is kept is the cause, and not that we gave up.
                    self.answer
                        .refuse(now, &mut self.stream, bring_up::reject_for(&error));
                    return Some(Err(error));
                }
            }
        }
    }

    /// Gets on with the queue pair; says whether it did.
    fn prepare(
        &mut self,
        now: Instant,
        wanted: &Wanted,
        around: &mut Around<'_, P>,
    ) -> Result<bool, ConnectError> {
        match core::mem::replace(&mut self.stage, Stage::Talking) {
            Stage::Talking => {
                self.stage = Stage::Asking(around.ask(wanted)?);
                Ok(true)
            }
            Stage::Asking(seat) => match seat.answer() {
                None => {
                    self.stage = Stage::Asking(seat);
                    Ok(false)
                }
                Some(granted) => {
                    self.stage = Stage::Granted(granted?, seat);
                    Ok(true)
                }
            },
            Stage::Granted(granted, seat) => {
                match around.making.begin(self.guest, *granted, wanted, seat.desk()) {
                    Ok(made) => {
                        self.stage = Stage::Making(made, seat);
                        Ok(true)
                    }
                    Err(granted) => {
                        self.stage = Stage::Granted(Box::new(granted), seat);
                        Ok(false)
                    }
                }
            }
            Stage::Making(made, seat) => match made.try_recv() {
                Ok(made) => {
                    let Made { local, ready } = made?;
                    self.answer.accept(now, local)?;
                    self.stage = Stage::Told(Box::new(ready), seat);
                    Ok(true)
                }
                Err(TryRecvError::Empty) => {
                    self.stage = Stage::Making(made, seat);
                    Ok(false)
                }
                Err(TryRecvError::Disconnected) => Err(ConnectError::ListenerClosed),
            },
            told @ Stage::Told(..) => {
                self.stage = told;
                Ok(false)
            }
        }
    }

    /// Gives it up, and tells the peer where it was not told yes.
    pub(super) fn break_off(&mut self, now: Instant) {
        if !matches!(self.stage, Stage::Told(..)) {
            let closing = Reject::new(RejectReason::CLOSING);
            self.answer.refuse(now, &mut self.stream, closing);
        }
    }
}

impl<P: Provider> Around<'_, P> {
    /// Asks for a place on a Worker of the rail's device: each has its turn, and one that is full is passed over.
    fn ask(&mut self, wanted: &Wanted) -> Result<Seat<P>, ConnectError> {
        let device = self.desks.get(wanted.rail.worker).map(|desk| desk.device());
        let of_device = |desk: &&Arc<Desk<P>>| Some(desk.device()) == device;
        let count = self.desks.iter().filter(of_device).count();
        let first = self.next_desk.checked_rem(count).unwrap_or_default();
        *self.next_desk = self.next_desk.wrapping_add(1);
        let mut refused = ReserveError::Closed;
        for desk in self
            .desks
            .iter()
            .filter(of_device)
            .cycle()
            .skip(first)
            .take(count)
        {
            match desk.ask(wanted) {
                Ok(seat) => return Ok(seat),
                Err(ReserveError::Full) => refused = ReserveError::Full,
                Err(_) => {}
            }
        }
        Err(match refused {
            ReserveError::Full => ConnectError::TooManyUnaccepted,
            _ => ConnectError::ListenerClosed,
        })
    }
}

/// The queue pairs that are being made.
pub(super) struct Making {
    makers: Makers,
    at_a_time: usize,
    /// For whom, as long as it lasts: given up too.
    running: Vec<(Guest, Weak<()>)>,
}

impl Making {
    pub(super) const fn new(makers: Makers, at_a_time: usize) -> Self {
        Self {
            makers,
            at_a_time: if at_a_time == 0 { 1 } else { at_a_time },
            running: Vec::new(),
        }
    }

    /// Whether another may be made for this address now: half of those at a time are an address's at most.
    fn has_room(&mut self, guest: Guest) -> bool {
        self.running.retain(|(_, running)| running.strong_count() > 0);
        let own = self.running.iter().filter(|(other, _)| *other == guest).count();
        self.running.len() < self.at_a_time && own < self.at_a_time.div_ceil(2)
    }

    /// Has a queue pair made, and says where it will be.
    ///
    /// # Errors
    /// Others are made first.
    fn begin<P: Provider>(
        &mut self,
        guest: Guest,
        granted: Granted<P>,
        wanted: &Wanted,
        desk: &Arc<Desk<P>>,
    ) -> Result<mpsc::Receiver<Result<Made<P>, ConnectError>>, Granted<P>> {
        if !self.has_room(guest) {
            return Err(granted);
        }
        let running = Arc::new(());
        self.running.push((guest, Arc::downgrade(&running)));
        let (to, from) = mpsc::sync_channel(1);
        let (wanted, desk) = (*wanted, Arc::clone(desk));
        self.makers.run(move || {
            // Where nobody waits for it any more, it is undone here.
            let _ = to.send(granted.make(&wanted, &desk));
            drop(running);
            desk.tell_handshakes();
        });
        Ok(from)
    }
}

#[cfg(test)]
mod tests {
    use super::{Guest, Making};
    use crate::edge::makers::Makers;
    use std::sync::Arc;

    #[test]
    fn half_of_those_at_a_time_are_an_address_s_at_most() {
        let guest = |last: u8| Guest::of(Some(([10, 0, 0, last], 1).into()));
        let mut making = Making::new(Makers::default(), 4);
        let mut running = Vec::new();
        let mut begin = |making: &mut Making, guest| {
            let has_room = making.has_room(guest);
            if has_room {
                let job = Arc::new(());
                making.running.push((guest, Arc::downgrade(&job)));
                running.push(job);
            }
            has_room
        };
        // One whose neighbour does not answer leaves the others half of them.
        assert_eq!(
            [1, 1, 1].map(|last| begin(&mut making, guest(last))),
            [true, true, false]
        );
        assert_eq!(
            [2, 3, 4].map(|last| begin(&mut making, guest(last))),
            [true, true, false]
        );
        running.remove(0);
        assert!(making.has_room(guest(1)) && making.has_room(guest(4)));
        // Where one is made at a time, it is anybody's.
        assert!(Making::new(Makers::default(), 0).has_room(guest(1)));
    }
}
