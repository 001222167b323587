//! Handshakes beside the threads that accept: every peer's, side by side, and none of them on a Worker's thread.
//!
//! What decides is here, by polling and without a thread, a socket or a clock of its own; the threads are in
//! `edge`. What only a Worker's thread may do it is asked for at a [`desk`].

mod counts;
pub(crate) mod desk;
mod limits;
pub(crate) mod places;
mod refusals;
mod told;
mod under_way;

/// Where `places` has its locks from, which the models replace.
mod locks {
    pub(super) use std::sync::{Arc, Mutex, MutexGuard};
}

use core::fmt;
use core::net::SocketAddr;
use core::time::Duration;
use std::sync::{Arc, Mutex, PoisonError};

use doorbell_core::handshake::Timing;
use doorbell_core::network::{Acceptor as _, Network, Stream as _, Waited};
use doorbell_core::provider::Provider;
use doorbell_core::wire::{Handle, InstanceId, Reject, RejectReason};
use doorbell_core::{Deadline, Instant};
use doorbell_ffi::Rdma;

use crate::answer::Answer;
use crate::edge::makers::{LOOK_AGAIN, Makers};
use crate::edge::signal::Signal;
use crate::error::ConnectError;
use crate::lobby::{Lobby, tell_reject};
use crate::look::Looking;
use crate::rails::Rails;
use crate::tell::tell;
use crate::{Acceptances, ChannelConfig, Node, Tcp, Trust, Worker};

pub(crate) use counts::Counts;
pub use counts::HandshakeCounts;
use desk::{Desk, Signals};
pub use limits::HandshakeLimits;
use limits::{Crowd, Crowding, Guest, Guests};
pub(crate) use limits::{Line, Unfinished, busy, network, source};
use refusals::Refusals;
pub(crate) use told::ToldRefusals;
use under_way::{Around, UnderWay};

/// How many peers one poll takes in at most, so that those there are get their turn.
const TAKEN_IN_MAX: usize = 32;

/// How long a look at the rails is good for: looking opens devices.
const RAILS_MAX_AGE: Duration = Duration::from_secs(1);

/// How long nobody is taken in after that failed, at first and at most.
const REST: core::ops::RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(1);

/// What handshakes are made with that begin from now on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) config: ChannelConfig,
    pub(crate) timing: Timing,
}

impl Settings {
    pub(crate) fn new(config: &ChannelConfig) -> Self {
        Self {
            config: *config,
            timing: timing(config),
        }
    }
}

/// The time a handshake may take, from that of one stage.
pub(crate) fn timing(config: &ChannelConfig) -> Timing {
    let whole = Timing::default().whole;
    Timing {
        stage: config.handshake_stage,
        whole: whole.max(config.handshake_stage.saturating_mul(2)),
    }
}

/// Every handshake at one port, and the port.
///
/// They advance while [`Handshakes::poll`] runs, on whatever thread, and are accepted by the [`Acceptances`] that came
/// with them, each on its Worker's thread. On a [`Node::open`] no device is waited for: that node's threads look at the ports, and
/// make the queue pairs. [`Listener::background`](crate::Listener::background) is the same with a
/// thread that polls.
///
/// Dropped, it gives up the port and all that is under way, and tells the peers that were not told yes. What waits
/// to be accepted still can be.
pub struct Handshakes<P: Provider = Rdma, N: Network = Tcp> {
    node: Arc<Node<P, N>>,
    /// Each by itself: it is 10 KiB, and leaves from anywhere.
    under_way: Vec<Box<UnderWay<P, N>>>,
    /// Those whose handshakes begin once our ports were looked at.
    arrived: Lobby<Arrived<N>>,
    refusals: Refusals<N>,
    told: ToldRefusals,
    /// Its own, where they are not the Node's.
    makers: Option<Makers>,
    /// When to look again for what threads do of whom nothing tells.
    again: Option<Deadline>,
    acceptor: N::Acceptor,
    handle: Handle,
    instance: InstanceId,
    settings: Arc<Mutex<Settings>>,
    desks: Vec<Arc<Desk<P>>>,
    /// The desk to ask next, so that Workers of one device have their turns.
    next_desk: usize,
    guests: Guests,
    counts: Arc<Counts>,
    rails: Option<(Instant, Rails)>,
    /// Nobody is taken in before, and how long it then is the next time.
    rest: Option<Deadline>,
    next_rest: Duration,
}

/// A peer that was let in.
struct Arrived<N: Network> {
    stream: N::Stream,
    guest: Guest,
    trust: Trust,
}

/// What a listener hands over.
pub(crate) struct Port<N: Network> {
    pub(crate) acceptor: N::Acceptor,
    pub(crate) handle: Handle,
    pub(crate) instance: InstanceId,
    pub(crate) settings: Settings,
}

impl<P: Provider, N: Network> Handshakes<P, N> {
    /// Handshakes at a port, for these Workers, with an [`Acceptances`] for each. What the two sides wake each other
    /// by, where they may sleep, `signal` makes.
    pub(crate) fn new<E>(
        port: Port<N>,
        node: &Arc<Node<P, N>>,
        workers: &[Worker<P>],
        limits: &HandshakeLimits,
        makers: Option<Makers>,
        signal: impl Fn() -> Result<Option<Signals>, E>,
    ) -> Result<(Self, Vec<Acceptances<P>>), E> {
        let mut desks = Vec::with_capacity(workers.len());
        for worker in workers {
            desks.push(Arc::new(Desk::new(worker, limits.unaccepted, signal()?)));
        }
        let counts = Arc::new(Counts::default());
        let way = (port.handle, port.acceptor.address());
        let acceptances = desks
            .iter()
            .map(|desk| Acceptances::new(Arc::clone(desk), Arc::clone(&counts), node.reaper().clone(), way))
            .collect();
        let handshakes = Self {
            node: Arc::clone(node),
            under_way: Vec::new(),
            arrived: Lobby::new(),
            refusals: Refusals::new(),
            told: ToldRefusals::default(),
            makers,
            again: None,
            acceptor: port.acceptor,
            handle: port.handle,
            instance: port.instance,
            settings: Arc::new(Mutex::new(port.settings)),
            desks,
            next_desk: 0,
            guests: Guests::new(*limits),
            counts,
            rails: None,
            rest: None,
            next_rest: *REST.start(),
        };
        Ok((handshakes, acceptances))
    }

    /// What to hand to peers: at most 128 bytes, or a line of text.
    #[must_use]
    pub const fn handle(&self) -> &Handle {
        &self.handle
    }

    /// The TCP address it listens at.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.acceptor.address()
    }

    /// What the handshakes came to so far.
    #[must_use]
    pub fn counts(&self) -> HandshakeCounts {
        self.counts.snapshot()
    }

    /// How many are under way.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.under_way.len().saturating_add(self.arrived.len())
    }

    /// Why the last handshake that failed did, or why nobody could be taken in; once.
    #[must_use]
    pub fn take_failure(&self) -> Option<ConnectError> {
        self.counts.take_failure()
    }

    pub(crate) const fn counting(&self) -> &Arc<Counts> {
        &self.counts
    }

    pub(crate) const fn shared_settings(&self) -> &Arc<Mutex<Settings>> {
        &self.settings
    }

    /// Takes peers in or turns them away, and moves every handshake as far as it can. Never waits.
    pub fn poll(&mut self) {
        for one in &mut self.under_way {
            one.is_due = true;
        }
        self.poll_due();
    }

    /// The same, but of the handshakes whose peers have the word those alone that are due.
    pub(crate) fn poll_due(&mut self) {
        let now = self.node.network.now();
        // Before others come: a proof that is there by now is one.
        self.advance(now);
        self.take_in(now);
        self.begin_arrived(now);
        self.advance(now);
        self.turn_away_unproven(now);
        self.refusals.poll(now);
        self.told.poll(now);
        let is_awaited = self.arrived.is_looking() || self.under_way.iter().any(|one| one.is_making());
        let is_told = self.signal().is_some();
        self.again = (is_awaited && !is_told).then(|| Deadline::after(now, LOOK_AGAIN));
    }

    /// What is raised once a thread has done something for it, where it may sleep.
    fn signal(&self) -> Option<&Arc<Signal>> {
        self.desks.first()?.told_to_handshakes()
    }

    /// When to poll again at the latest, whatever comes; `None` where nothing is under way.
    #[must_use]
    pub fn deadline(&self) -> Option<Deadline> {
        let under_way = self.under_way.iter().map(|one| one.deadline());
        let told = self.refusals.deadline().into_iter().chain(self.told.deadline());
        let arrived = self.arrived.deadline().into_iter();
        let others = arrived.chain(self.again).chain(self.rest);
        under_way.chain(told).chain(others).min()
    }

    /// Waits until something comes from a peer, or the deadline. What the Workers' threads grant meanwhile does not
    /// end the wait.
    ///
    /// # Errors
    /// The network cannot wait.
    pub fn wait(&self, deadline: Deadline) -> Result<(), ConnectError> {
        let deadline = self.deadline().map_or(deadline, |wake| wake.min(deadline));
        Ok(self
            .node
            .network
            .wait(self.waited_port(), self.waited(), deadline)?)
    }

    /// The port, where somebody who arrives is a reason to poll.
    pub(crate) fn waited_port(&self) -> Option<&N::Acceptor> {
        self.rest.is_none().then_some(&self.acceptor)
    }

    /// The streams to wait at; those of the handshakes first, in the order of [`Self::note_ready`].
    pub(crate) fn waited(&self) -> impl Iterator<Item = Waited<'_, N::Stream>> {
        self.under_way
            .iter()
            .map(|one| one.waited())
            .chain(self.refusals.waited())
    }

    /// Says of each handshake whether something came.
    pub(crate) fn note_ready(&mut self, ready: impl Iterator<Item = bool>) {
        for (one, is_ready) in self.under_way.iter_mut().zip(ready) {
            one.is_due = is_ready;
        }
    }

    fn take_in(&mut self, now: Instant) {
        if self.rest.is_some_and(|rest| !rest.has_passed(now)) {
            return;
        }
        self.rest = None;
        for _ in 0..TAKEN_IN_MAX {
            match self.node.network.accept(&self.acceptor) {
                Ok(Some(stream)) => {
                    self.next_rest = *REST.start();
                    self.welcome(now, stream);
                }
                Ok(None) => break,
                Err(error) => {
                    // Whoever is there stays there: asked at once again, the port would only fail again.
                    tell!(error, "the port takes nobody in", reason = error);
                    self.counts.note_port_failure(error.into());
                    self.rest = Some(Deadline::after(now, self.next_rest));
                    self.next_rest = self.next_rest.saturating_mul(2).min(*REST.end());
                    break;
                }
            }
        }
    }

    /// Lets a peer in, or turns it away.
    fn welcome(&mut self, now: Instant, stream: N::Stream) {
        let address = stream.peer_address();
        let trust = self.node.trust();
        if let Err(error) = address.map_or(Ok(()), |at| trust.check_address(at.ip())) {
            if self.told.is_first(now, Some(&error)) {
                tell!(
                    warn,
                    "handshake refused",
                    from = Guest::of(address),
                    reason = error
                );
            }
            let reject = crate::bring_up::reject_for(&error);
            self.counts.note_failed(error);
            self.refusals.refuse(now, stream, &reject);
            return;
        }
        let guest = Guest::of(address);
        let entered = match self.guests.enter(guest) {
            Err(crowd) if self.make_room(now, crowd) => self.guests.enter(guest),
            entered => entered,
        };
        if entered.is_err() {
            if self.told.is_first(now, None) {
                tell!(warn, "handshake refused: too many", from = guest);
            }
            self.turn_away(now, stream);
            return;
        }
        // As long as a stage may take for which it is our turn.
        let until = Deadline::after(now, self.settings().timing.stage);
        let arrived = Arrived { stream, guest, trust };
        match self.fresh_rails(now) {
            Some(rails) => self.begin(now, arrived, Ok(rails)),
            None => {
                let signal = self.signal().cloned();
                self.arrived
                    .enter(arrived, || Looking::beside(&self.node, signal.as_ref(), until));
            }
        }
    }

    fn turn_away(&mut self, now: Instant, stream: N::Stream) {
        self.counts.note_refused();
        let reject = self.busy(now);
        self.refusals.refuse(now, stream, &reject);
    }

    /// That there are too many, with when to come again.
    fn busy(&self, now: Instant) -> Reject {
        let under_way = self.under_way.iter().map(|one| one.end());
        busy(now, under_way.chain(self.arrived.deadline()))
    }

    /// Turns the oldest peer away that has proven nothing, or else one that waits for others of its address; says whether
    /// there was one.
    fn make_room(&mut self, now: Instant, crowd: Crowd) -> bool {
        let is_made = crowd
            .above
            .is_some_and(|above| self.make_room_unproven(now, above) || self.make_room_in_line(now, above));
        is_made || self.make_room_unproven(now, crowd.even)
    }

    fn make_room_unproven(&mut self, now: Instant, crowding: Crowding) -> bool {
        let mut under_way = self.under_way.iter();
        let (guest, stream) =
            if let Some(at) = under_way.position(|one| crowding.has(one.guest) && one.is_unproven()) {
                let one = self.under_way.remove(at);
                (one.guest, one.into_stream())
            } else {
                let arrived = self.arrived.waiting();
                let Some(at) = arrived.iter().position(|one| crowding.has(one.guest)) else {
                    return false;
                };
                let Arrived { stream, guest, .. } = arrived.remove(at);
                (guest, stream)
            };
        self.guests.leave(guest);
        self.turn_away(now, stream);
        true
    }

    /// Turns those away that have proven nothing for too long where there are many.
    fn turn_away_unproven(&mut self, now: Instant) {
        let mut index = 0_usize;
        while let Some(one) = self.under_way.get_mut(index) {
            if one.has_lost_patience(now, self.guests.patience(one.guest)) {
                let one = self.under_way.remove(index);
                self.guests.leave(one.guest);
                self.turn_away(now, one.into_stream());
            } else {
                index = index.saturating_add(1);
            }
        }
    }

    fn make_room_in_line(&mut self, now: Instant, crowding: Crowding) -> bool {
        let mut under_way = self.under_way.iter();
        let Some(at) = under_way.position(|one| crowding.has(one.guest) && one.is_in_line()) else {
            return false;
        };
        let mut one = self.under_way.remove(at);
        one.refuse(now, self.busy(now));
        self.guests.leave(one.guest);
        self.counts
            .note_failed(ConnectError::TooManyUnfinishedFrom(one.guest.address()));
        true
    }

    fn settings(&self) -> Settings {
        *self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the last look found, where that was not long ago.
    fn fresh_rails(&self, now: Instant) -> Option<Rails> {
        let (at, rails) = self.rails.as_ref()?;
        let is_fresh = !Deadline::after(*at, RAILS_MAX_AGE).has_passed(now);
        is_fresh.then(|| rails.clone())
    }

    /// Begins the handshakes of those for whom our ports were looked at.
    fn begin_arrived(&mut self, now: Instant) {
        if !self.arrived.is_looking() {
            return;
        }
        let devices: Vec<_> = self.desks.iter().map(|desk| desk.device()).collect();
        let Some((arrived, rails)) = self.arrived.leave(&self.node, &devices) else {
            return;
        };
        if let Ok(rails) = &rails {
            self.rails = Some((now, rails.clone()));
        }
        for one in arrived {
            self.begin(now, one, rails.clone().map_err(ConnectError::from));
        }
    }

    fn begin(&mut self, now: Instant, arrived: Arrived<N>, rails: Result<Rails, ConnectError>) {
        let Arrived { stream, guest, trust } = arrived;
        match rails.and_then(|rails| self.answer(guest, trust, rails)) {
            Ok(answer) => {
                self.counts.note_begun();
                self.under_way
                    .push(Box::new(UnderWay::new(now, stream, guest, answer)));
            }
            Err(error) => {
                self.guests.leave(guest);
                let reject = crate::bring_up::reject_for(&error);
                self.counts.note_failed(error);
                self.refusals.refuse(now, stream, &reject);
            }
        }
    }

    fn answer(&self, guest: Guest, trust: Trust, rails: Rails) -> Result<Answer, ConnectError> {
        if self.desks.iter().any(|desk| desk.node() != self.node.instance()) {
            return Err(ConnectError::OtherTrust);
        }
        let (network, settings) = (&self.node.network, self.settings());
        Answer::new(network, self.instance, rails, &settings, trust, guest.address())
    }

    fn advance(&mut self, now: Instant) {
        let busy = self.busy(now);
        let mut around = Around {
            busy,
            counts: &self.counts,
            desks: &self.desks,
            next_desk: &mut self.next_desk,
            makers: self.makers.as_ref().unwrap_or_else(|| self.node.makers()),
        };
        let (guests, counts, told) = (&mut self.guests, &self.counts, &mut self.told);
        self.under_way.retain_mut(|one| {
            if !one.is_due(now) {
                return true;
            }
            let Some(outcome) = one.poll(now, &mut around) else {
                return true;
            };
            guests.leave(one.guest);
            match outcome {
                Ok(()) => tell!(info, "handshake done", from = one.guest),
                Err(error) => {
                    if told.is_first(now, Some(&error)) {
                        tell!(warn, "handshake refused", from = one.guest, reason = error);
                    }
                    counts.note_failed(error);
                }
            }
            false
        });
    }
}

impl<P: Provider, N: Network> Drop for Handshakes<P, N> {
    fn drop(&mut self) {
        let now = self.node.network.now();
        for one in &mut self.under_way {
            one.break_off(now);
        }
        self.under_way.clear();
        for one in self.arrived.waiting() {
            tell_reject(&mut one.stream, &Reject::new(RejectReason::CLOSING));
        }
        for desk in &self.desks {
            desk.close();
        }
    }
}

impl<P: Provider, N: Network> fmt::Debug for Handshakes<P, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handshakes")
            .field("address", &self.address())
            .field("under_way", &self.under_way())
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}

/// What threads wake each other by.
pub(crate) fn signals(handshakes: &Arc<Signal>) -> std::io::Result<Option<Signals>> {
    Ok(Some(Signals {
        handshakes: Arc::clone(handshakes),
        accepting: Signal::new()?,
    }))
}
