//! The handshakes at one port: admission and rejection of peers, and the progress of each handshake.
//!
//! All ways to accept use this engine. It is polled, and has no thread, socket or clock of its own. Through an
//! [`admission`](super::admission) it requests places from Workers, which may be on other threads.

use core::task::Waker;
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use doorbell_core::network::{Acceptor as _, Network, Stream as _, Waited};
use doorbell_core::provider::Provider;
use doorbell_core::wire::{Reject, RejectReason};
use doorbell_core::{Deadline, Instant};

use super::active::{ActiveHandshake, AttemptContext};
use super::admission::Admission;
use super::counts::Counts;
use super::limits::{Crowd, Crowding, Source, Sources, busy};
use super::rejection_log::RejectionLog;
use super::rejections::Rejections;
use super::{HandshakeLimits, Port, Settings};
use crate::connect::answer::Answer;
use crate::connect::node::Node;
use crate::connect::port_scan::PendingScan;
use crate::connect::scan_queue::{ScanQueue, send_reject};
use crate::error::ConnectError;
use crate::machine::log::log;
use crate::machine::makers::{Makers, POLL_AGAIN};
use crate::rails::{RailFilter, Rails};
use crate::trust::Trust;

/// The maximum number of streams that one poll accepts, so that new peers do not delay handshakes in progress.
const TAKEN_IN_MAX: usize = 32;

/// The maximum number of failures that wait to be taken. The caller takes one a poll, and a flood of peers fails faster.
const FAILURES_MAX: usize = 1024;

/// How long the result of a port scan is used again. A scan is slow, since it opens devices.
const RAILS_MAX_AGE: Duration = Duration::from_secs(1);

/// The first and the longest pause after accepting a stream failed.
const REST: core::ops::RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(1);

/// The handshakes at one port: see the [module](self).
pub(crate) struct Backlog<P: Provider, N: Network> {
    port: Port<N>,
    settings: Arc<Mutex<Settings>>,
    /// The handshakes in progress, oldest first. Boxed: one has 10 KiB, and is removed from any position.
    under_way: Vec<Box<ActiveHandshake<P, N>>>,
    /// The peers whose handshakes begin after the scan of the local ports.
    arrived: ScanQueue<AcceptedStream<N>>,
    rejections: Rejections<N>,
    rejection_log: RejectionLog,
    /// The makers of the queue pairs. `None` uses the Node's.
    makers: Option<Makers>,
    /// Other threads end a wait by this waker.
    waker: Option<Waker>,
    /// When to poll again, since more peers have arrived, or other threads do work whose end no waker announces.
    again: Option<Deadline>,
    admissions: Vec<Arc<Admission<P>>>,
    /// The requested places of each device, counted at its first Worker, so that the Workers of one device take turns.
    turns: Vec<usize>,
    sources: Sources,
    counts: Arc<Counts>,
    /// The rails of the last scan, and the rules that they are by.
    rails: Option<(Instant, RailFilter, Rails)>,
    /// The end of the current pause, in which no stream is accepted. `next_rest` is the length of the next pause.
    rest: Option<Deadline>,
    next_rest: Duration,
    /// The last failures of handshakes that were not taken yet. If this is `None`, only the last failure is kept, in `counts`.
    failures: Option<VecDeque<ConnectError>>,
    /// The last failure of the port, if `failures` is used.
    port_failure: Option<ConnectError>,
}

/// A peer whose stream was accepted, and whose handshake has not begun.
struct AcceptedStream<N: Network> {
    stream: N::Stream,
    from: Source,
    trust: Trust,
}

impl<P: Provider, N: Network> Backlog<P, N> {
    pub(crate) fn new(port: Port<N>, limits: &HandshakeLimits) -> Self {
        Self {
            settings: Arc::new(Mutex::new(port.settings)),
            waker: port.acceptor.waker(),
            port,
            under_way: Vec::new(),
            arrived: ScanQueue::new(),
            rejections: Rejections::new(),
            rejection_log: RejectionLog::default(),
            makers: None,
            again: None,
            admissions: Vec::new(),
            turns: Vec::new(),
            sources: Sources::new(*limits),
            counts: Arc::new(Counts::default()),
            rails: None,
            rest: None,
            next_rest: *REST.start(),
            failures: None,
            port_failure: None,
        }
    }

    /// Makes queue pairs with these makers instead of the Node's.
    pub(crate) fn made_by(mut self, makers: Option<Makers>) -> Self {
        self.makers = makers;
        self
    }

    /// Keeps each failure, up to a limit, until [`Self::take_failure`] or [`Self::take_port_failure`] returns it.
    pub(crate) fn keeping_each_failure(mut self) -> Self {
        self.failures = Some(VecDeque::new());
        self
    }

    pub(crate) fn into_port(self) -> Port<N> {
        self.port
    }

    pub(crate) const fn port(&self) -> &Port<N> {
        &self.port
    }

    pub(crate) const fn counts(&self) -> &Arc<Counts> {
        &self.counts
    }

    pub(crate) const fn shared_settings(&self) -> &Arc<Mutex<Settings>> {
        &self.settings
    }

    pub(crate) fn admissions(&self) -> &[Arc<Admission<P>>] {
        &self.admissions
    }

    /// Requests places at these admissions from now on.
    pub(crate) fn admit_by(&mut self, admissions: Vec<Arc<Admission<P>>>) {
        self.turns = vec![0; admissions.len()];
        self.admissions = admissions;
        // The rails contain indices of the earlier Workers.
        self.rails = None;
    }

    /// Uses these settings for handshakes from now on, and expects new admissions ([`Self::admit_by`]). Handshakes in progress are given
    /// up, and count as failed. Their peers see the stream end.
    pub(crate) fn reconfigure(&mut self, settings: Settings) {
        *self.settings.lock().unwrap_or_else(PoisonError::into_inner) = settings;
        self.port.settings = settings;
        for _ in 0..self.give_up() {
            self.counts.count_failed(&ConnectError::ListenerClosed);
        }
    }

    /// Gives up all handshakes in progress, since their Workers were replaced.
    pub(crate) fn change_workers(&mut self) {
        for _ in 0..self.give_up() {
            self.note_failed(ConnectError::OtherWorkers);
        }
    }

    /// Drops the handshakes in progress and the admissions. Returns the number of handshakes.
    fn give_up(&mut self) -> usize {
        self.admissions.clear();
        let given_up = core::mem::take(&mut self.under_way);
        for one in &given_up {
            self.sources.leave(one.from);
        }
        given_up.len()
    }

    pub(crate) fn under_way(&self) -> usize {
        self.under_way.len().saturating_add(self.arrived.len())
    }

    /// Returns the oldest failure of a handshake, and removes it.
    pub(crate) fn take_failure(&mut self) -> Option<ConnectError> {
        self.failures.as_mut()?.pop_front()
    }

    /// Returns the last failure of the port, once.
    pub(crate) const fn take_port_failure(&mut self) -> Option<ConnectError> {
        self.port_failure.take()
    }

    /// Admits or rejects new peers, and advances the handshakes as far as possible. A handshake that waits for its peer is skipped until
    /// its stream has something new.
    pub(crate) fn poll(&mut self, node: &Node<P, N>) {
        let now = node.network.now();
        self.port.acceptor.collect();
        // Before new peers are accepted, so that a peer whose proof has arrived does not have to make room.
        self.advance(now, node);
        let has_more = self.take_in(now, node);
        self.begin_arrived(now, node);
        self.advance(now, node);
        self.turn_away_unproven(now);
        self.rejections.poll(now);
        self.rejection_log.poll(now);
        let is_awaited = self.arrived.is_scanning() || self.under_way.iter().any(|one| one.is_making());
        self.again = if has_more {
            Some(Deadline::at(now))
        } else {
            let is_notified = self.waker.is_some();
            let is_unannounced = (is_awaited && !is_notified) || self.awaits_silent_worker();
            is_unannounced.then(|| Deadline::after(now, POLL_AGAIN))
        };
    }

    /// Whether a handshake waits for a place of a Worker whose answer wakes nobody.
    fn awaits_silent_worker(&self) -> bool {
        let is_notified = self.admissions.iter().all(|one| one.wakes_handshakes());
        !is_notified && self.under_way.iter().any(|one| one.is_reserving())
    }

    /// Returns the latest time of the next poll; `None` if nothing is in progress.
    pub(crate) fn deadline(&self) -> Option<Deadline> {
        let under_way = self.under_way.iter().map(|one| one.deadline());
        let rejections = self
            .rejections
            .deadline()
            .into_iter()
            .chain(self.rejection_log.deadline());
        let arrived = self.arrived.deadline().into_iter();
        let others = arrived.chain(self.again).chain(self.rest);
        under_way.chain(rejections).chain(others).min()
    }

    /// Waits until a peer or another thread has something for the handshakes, or until the deadline.
    pub(crate) fn wait(&self, node: &Node<P, N>, deadline: Deadline) -> Result<(), ConnectError> {
        let deadline = self.deadline().map_or(deadline, |wake| wake.min(deadline));
        let (acceptor, waited) = self.waited();
        Ok(node.network.wait(acceptor, waited, deadline)?)
    }

    /// Returns the port and the streams to wait for.
    pub(crate) fn waited(&self) -> (Option<&N::Acceptor>, impl Iterator<Item = Waited<'_, N::Stream>>) {
        // In a pause no stream is accepted. A port with a waker reports each peer once, and its waker has to end the wait. Other ports
        // would end it again and again.
        let is_waited = self.rest.is_none() || self.waker.is_some();
        let acceptor = is_waited.then_some(&self.port.acceptor);
        let under_way = self.under_way.iter().map(|one| one.waited());
        (acceptor, under_way.chain(self.rejections.waited()))
    }

    /// Accepts new streams. Returns whether there may be more.
    fn take_in(&mut self, now: Instant, node: &Node<P, N>) -> bool {
        if self.rest.is_some_and(|rest| !rest.has_passed(now)) {
            return false;
        }
        self.rest = None;
        for _ in 0..TAKEN_IN_MAX {
            match node.network.accept(&self.port.acceptor) {
                Ok(Some(stream)) => {
                    self.next_rest = *REST.start();
                    self.welcome(now, node, stream);
                }
                Ok(None) => return false,
                Err(error) => {
                    // The streams stay in the queue of the port, and accepting at once would fail again. So accepting pauses.
                    log!(error, "the port takes nobody in", reason = error);
                    self.note_port_failure(error.into());
                    self.rest = Some(Deadline::after(now, self.next_rest));
                    self.next_rest = self.next_rest.saturating_mul(2).min(*REST.end());
                    return false;
                }
            }
        }
        true
    }

    fn note_port_failure(&mut self, error: ConnectError) {
        self.counts.count_port_failure();
        match self.failures {
            Some(_) => self.port_failure = Some(error),
            None => self.counts.keep(error),
        }
    }

    fn note_failed(&mut self, error: ConnectError) {
        self.counts.count_failed(&error);
        match &mut self.failures {
            Some(failures) => {
                if failures.len() >= FAILURES_MAX {
                    failures.pop_front();
                }
                failures.push_back(error);
            }
            None => self.counts.keep(error),
        }
    }

    /// Admits a new peer, or rejects it.
    fn welcome(&mut self, now: Instant, node: &Node<P, N>, stream: N::Stream) {
        let address = stream.peer_address();
        let (from, trust) = (Source::of(address), node.trust());
        if let Err(error) = address.map_or(Ok(()), |at| trust.check_address(at.ip())) {
            // Nothing that the peer sends is interpreted, and its failure is no outcome of `poll_accept`.
            self.log_rejected(now, from, &error);
            let reject = crate::connect::attempt::reject_for(&error);
            self.counts.count_failed(&error);
            if self.failures.is_none() {
                self.counts.keep(error);
            }
            self.rejections.reject(now, stream, &reject);
            return;
        }
        let entered = match self.sources.enter(from) {
            Err(crowd) if self.make_room(now, crowd) => self.sources.enter(from),
            entered => entered,
        };
        if entered.is_err() {
            self.turn_away(now, from, stream);
            return;
        }
        // The scan may take as long as one stage of the handshake.
        let until = Deadline::after(now, self.settings().timing.stage);
        let arrived = AcceptedStream { stream, from, trust };
        match self.fresh_rails(now, &node.rail_filter) {
            Some(rails) => self.begin(now, node, arrived, Ok(rails)),
            None => {
                let waker = self.waker.clone();
                self.arrived
                    .enter(arrived, || PendingScan::beside(node, waker, until));
            }
        }
    }

    fn log_rejected(&mut self, now: Instant, from: Source, error: &ConnectError) {
        if self.rejection_log.is_first(now, Some(error)) {
            let at = self.port.acceptor.address();
            log!(warn, "handshake refused", from = from, at = at, reason = error);
        }
    }

    fn turn_away(&mut self, now: Instant, from: Source, stream: N::Stream) {
        if self.rejection_log.is_first(now, None) {
            log!(warn, "handshake refused: too many", from = from);
        }
        self.counts.note_refused();
        let reject = self.busy(now);
        self.rejections.reject(now, stream, &reject);
    }

    /// Returns the Reject for too many handshakes, with the time to retry.
    fn busy(&self, now: Instant) -> Reject {
        let under_way = self.under_way.iter().map(|one| one.end());
        busy(now, under_way.chain(self.arrived.deadline()))
    }

    /// Makes room for a new peer. It rejects the oldest unproven peer of the crowd above, or a peer of that crowd that waits for others
    /// of its address, or else the oldest unproven peer of the even crowd. Returns whether there was one.
    fn make_room(&mut self, now: Instant, crowd: Crowd) -> bool {
        let is_made = crowd
            .above
            .is_some_and(|above| self.make_room_unproven(now, above) || self.make_room_waiting(now, above));
        is_made || self.make_room_unproven(now, crowd.even)
    }

    fn make_room_unproven(&mut self, now: Instant, crowding: Crowding) -> bool {
        let mut under_way = self.under_way.iter();
        let (from, stream) =
            if let Some(at) = under_way.position(|one| crowding.has(one.from) && one.is_unproven()) {
                let one = self.under_way.remove(at);
                (one.from, one.into_stream())
            } else {
                let arrived = self.arrived.waiting();
                let Some(at) = arrived.iter().position(|one| crowding.has(one.from)) else {
                    return false;
                };
                let AcceptedStream { stream, from, .. } = arrived.remove(at);
                (from, stream)
            };
        self.sources.leave(from);
        self.turn_away(now, from, stream);
        true
    }

    fn make_room_waiting(&mut self, now: Instant, crowding: Crowding) -> bool {
        let mut under_way = self.under_way.iter();
        let Some(at) = under_way.position(|one| crowding.has(one.from) && one.is_waiting()) else {
            return false;
        };
        let mut one = self.under_way.remove(at);
        one.reject(now, self.busy(now));
        let unfinished = self.sources.count(one.from);
        self.sources.leave(one.from);
        self.note_failed(ConnectError::TooManyUnfinishedFrom {
            address: one.from.address(),
            unfinished,
            room: 0,
        });
        true
    }

    /// Rejects peers that have not proven themselves within the time that they have while places are scarce.
    fn turn_away_unproven(&mut self, now: Instant) {
        let mut index = 0_usize;
        while let Some(one) = self.under_way.get_mut(index) {
            if one.has_lost_patience(now, self.sources.patience(one.from)) {
                let one = self.under_way.remove(index);
                self.sources.leave(one.from);
                self.turn_away(now, one.from, one.into_stream());
            } else {
                index = index.saturating_add(1);
            }
        }
    }

    fn settings(&self) -> Settings {
        *self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the rails of the last scan, if it is recent enough, and by these rules.
    fn fresh_rails(&self, now: Instant, filter: &RailFilter) -> Option<Rails> {
        let (at, by, rails) = self.rails.as_ref()?;
        let is_fresh = by == filter && !Deadline::after(*at, RAILS_MAX_AGE).has_passed(now);
        is_fresh.then(|| rails.clone())
    }

    /// Begins the handshakes of the peers that waited for the scan, if it has ended.
    fn begin_arrived(&mut self, now: Instant, node: &Node<P, N>) {
        if !self.arrived.is_scanning() {
            return;
        }
        let devices: Vec<_> = self
            .admissions
            .iter()
            .map(|admission| admission.device())
            .collect();
        let Some((arrived, rails)) = self.arrived.leave(node, &devices) else {
            return;
        };
        if let Ok(rails) = &rails {
            self.rails = Some((now, node.rail_filter.clone(), rails.clone()));
        }
        for one in arrived {
            self.begin(now, node, one, rails.clone().map_err(ConnectError::from));
        }
    }

    fn begin(
        &mut self,
        now: Instant,
        node: &Node<P, N>,
        arrived: AcceptedStream<N>,
        rails: Result<Rails, ConnectError>,
    ) {
        let AcceptedStream { stream, from, trust } = arrived;
        match rails.and_then(|rails| self.answer(node, from, trust, rails)) {
            Ok(answer) => {
                self.counts.note_begun();
                self.under_way
                    .push(Box::new(ActiveHandshake::new(now, stream, from, answer)));
            }
            Err(error) => {
                self.sources.leave(from);
                self.log_rejected(now, from, &error);
                let reject = crate::connect::attempt::reject_for(&error);
                self.note_failed(error);
                self.rejections.reject(now, stream, &reject);
            }
        }
    }

    fn answer(
        &self,
        node: &Node<P, N>,
        from: Source,
        trust: Trust,
        rails: Rails,
    ) -> Result<Answer, ConnectError> {
        if self
            .admissions
            .iter()
            .any(|admission| admission.node() != node.instance())
        {
            return Err(ConnectError::OtherTrust);
        }
        let (instance, settings) = (self.port.instance, self.settings());
        Answer::new(&node.network, instance, rails, &settings, trust, from.address())
    }

    fn advance(&mut self, now: Instant, node: &Node<P, N>) {
        let busy = self.busy(now);
        let mut around = AttemptContext {
            busy,
            counts: &self.counts,
            admissions: &self.admissions,
            turns: &mut self.turns,
            makers: self.makers.as_ref().unwrap_or_else(|| node.makers()),
            waker: self.waker.as_ref(),
            reaper: node.reaper(),
        };
        let (sources, mut failed) = (&mut self.sources, Vec::new());
        self.under_way.retain_mut(|one| {
            if !one.is_due(now) {
                return true;
            }
            let Some(outcome) = one.poll(now, &mut around) else {
                return true;
            };
            sources.leave(one.from);
            match outcome {
                Ok(()) => log!(info, "handshake done", from = one.from),
                Err(error) => failed.push((one.from, error)),
            }
            false
        });
        for (from, error) in failed {
            self.log_rejected(now, from, &error);
            self.note_failed(error);
        }
    }

    /// Ends all handshakes in progress. Connections that were published can still be accepted.
    pub(crate) fn end(&mut self, now: Instant) {
        for one in &mut self.under_way {
            one.break_off(now);
        }
        self.under_way.clear();
        for one in self.arrived.waiting() {
            send_reject(&mut one.stream, &Reject::new(RejectReason::CLOSING));
        }
        for admission in &self.admissions {
            admission.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;
    use std::sync::Arc;

    use doorbell_core::network::{Acceptor as _, Network};
    use doorbell_core::{Clock as _, Deadline, Instant, IpPrefix};
    use doorbell_sim::{Fabric, Host, PortConfig};

    use super::{AcceptedStream, Backlog, FAILURES_MAX, RAILS_MAX_AGE, Source};
    use crate::connect::handshakes::HandshakeLimits;
    use crate::connect::listener::Listener;
    use crate::connect::node::Node;
    use crate::error::ConnectError;
    use crate::machine::clock;
    use crate::trust::Trust;
    use crate::worker::config::{ChannelConfig, WorkerConfig};

    fn host() -> Host {
        let prefix = IpPrefix::new([127, 0, 0, 1].into(), 24).unwrap();
        Fabric::new()
            .host("a", vec![PortConfig::new("simA", &[prefix])])
            .unwrap()
    }

    /// The backlog of a port on the loopback interface.
    fn backlog<N: Network>(node: &Node<Host, N>) -> Backlog<Host, N> {
        let workers = node.workers(&WorkerConfig::default()).unwrap();
        let at = "127.0.0.1:0".parse().unwrap();
        let listener = Listener::bind(node, &workers, at, &ChannelConfig::default()).unwrap();
        Backlog::new(listener.into_port(), &HandshakeLimits::default())
    }

    #[test]
    fn the_oldest_failure_makes_room_for_the_newest() {
        let node = Node::simulated(host(), Trust::unauthenticated_on_purpose()).unwrap();
        let mut backlog = backlog(&node).keeping_each_failure();
        let failure = |number: u16| ConnectError::NoPort(([127, 0, 0, 1], number).into());
        let number = |error| match error {
            ConnectError::NoPort(address) => address.port(),
            other => panic!("{other}"),
        };
        let count = FAILURES_MAX as u16 + 2;
        (0..count).for_each(|number| backlog.note_failed(failure(number)));
        let kept = core::iter::from_fn(|| backlog.take_failure()).map(number);
        assert!(kept.eq(2..count));
        assert_eq!(backlog.counts().snapshot().failed, u64::from(count));
    }

    #[test]
    fn the_last_failure_of_the_port_is_told_once() {
        let node = Node::simulated(host(), Trust::unauthenticated_on_purpose()).unwrap();
        let mut backlog = backlog(&node).keeping_each_failure();
        for number in [1, 2] {
            backlog.note_port_failure(ConnectError::NoPort(([127, 0, 0, 1], number).into()));
        }
        let told = backlog.take_port_failure();
        assert!(
            matches!(&told, Some(ConnectError::NoPort(at)) if at.port() == 2),
            "{told:?}"
        );
        assert!(backlog.take_port_failure().is_none());
        assert_eq!(backlog.counts().snapshot().port_failures, 2);
    }

    #[test]
    fn a_peer_that_arrives_while_no_port_can_be_looked_at_keeps_no_place() {
        let node = Node::simulated(host(), Trust::unauthenticated_on_purpose()).unwrap();
        let mut backlog = backlog(&node);
        let stream = node.network().connect(backlog.port().acceptor.address()).unwrap();
        let (from, trust, now) = (Source::of(None), node.trust(), node.network().now());
        backlog.sources.enter(from).unwrap();
        let arrived = AcceptedStream { stream, from, trust };
        backlog.begin(now, &node, arrived, Err(ConnectError::PortsTimedOut));
        assert_eq!((backlog.sources.count(from), backlog.under_way.len()), (0, 0));
        assert_eq!(backlog.counts().snapshot().failed, 1);
    }

    #[test]
    fn rails_of_a_scan_are_used_for_a_while_and_by_its_rules() {
        let node = Node::simulated(host(), Trust::unauthenticated_on_purpose()).unwrap();
        let mut backlog = backlog(&node);
        let (rules, others) = (node.rail_filter().clone(), "^simA".parse().unwrap());
        let workers = node.workers(&WorkerConfig::default()).unwrap();
        let scanned = Instant::from_ns(5);
        backlog.rails = Some((scanned, rules.clone(), node.worker_rails(&workers).unwrap()));
        let end = scanned.after(RAILS_MAX_AGE);
        let last = Instant::from_ns(end.to_ns() - 1);
        let is_fresh = |now, rules| backlog.fresh_rails(now, rules).is_some();
        assert!(is_fresh(scanned, &rules) && is_fresh(last, &rules));
        assert!(!is_fresh(end, &rules) && !is_fresh(scanned, &others));
    }

    /// An event of another port would end the wait again and again, since no stream is accepted.
    #[test]
    fn a_wait_at_a_port_at_rest_is_ended_by_its_waker_and_by_nothing_else_of_the_port() {
        let rest = Duration::from_secs(60);
        let node = Node::with_provider(host(), Trust::unauthenticated_on_purpose()).unwrap();
        let mut with_waker = backlog(&node);
        let until = Deadline::after(clock::now(), rest);
        with_waker.rest = Some(until);
        with_waker.waker.as_ref().unwrap().wake_by_ref();
        with_waker.wait(&node, until).unwrap();
        assert!(!until.has_passed(clock::now()), "the waker ended the wait");

        let node = Arc::new(Node::simulated(host(), Trust::unauthenticated_on_purpose()).unwrap());
        let mut without = backlog(&node);
        assert!(without.waited().0.is_some());
        without.rest = Some(node.within(rest));
        assert!(without.waited().0.is_none());
    }
}
