//! Connecting and closing in the time of a simulated fabric: one thread, no TCP, no clock of this machine, and
//! deadlines that hold to the nanosecond.

use core::net::SocketAddr;
use core::time::Duration;

use crate::fabric::{node, pair_on, port, small, workers};
use doorbell::connect::{Cause, Connecting, HandshakeLimits, Stage};
use doorbell::provider::{Instant, Io as _, IoError, Network as _, Stream as _};
use doorbell::worker::{CloseProgress, RingChannel, RingConfig, RingError, SharedReceivesConfig};
use doorbell::{
    ChannelConfig, ConnectError, Connection, Deadline, Event, Listener, Node, Notify, Operation, Worker,
    WorkerConfig,
};
use doorbell_sim::{Fabric, Frame, Host, LinkConfig, Plan};

const STAGE: Duration = Duration::from_secs(3);
const WHOLE: Duration = Duration::from_secs(10);
const LATENCY: Duration = Duration::from_millis(1);
const PORT: u16 = 7000;

fn config() -> ChannelConfig {
    let mut config = small();
    config.handshake_stage = STAGE;
    config
}

fn driven(latency: Duration, seed: u64, plan: &str) -> Fabric {
    let link = LinkConfig {
        latency_ns: latency.as_nanos() as u64,
        bandwidth_mbps: None,
    };
    let plan: Plan = plan.parse().unwrap();
    Fabric::builder()
        .seed(seed)
        .link(link)
        .plan(plan)
        .driven()
        .build()
}

/// How one side's part came out, and when.
type Outcome = Option<(Instant, Result<Connection, ConnectError>)>;

/// Two hosts, of which one listens and the other connects.
struct Two {
    fabric: Fabric,
    nodes: [Node<Host, Host>; 2],
    workers: [Vec<Worker<Host>>; 2],
    listener: Option<Listener<Host, Host>>,
    connecting: Connecting<Host, Host>,
    connected: Outcome,
    accepted: Outcome,
}

impl Two {
    fn new(fabric: Fabric) -> Self {
        Self::with(fabric, None)
    }

    /// The same, where the side that connects has receives of its channels in common.
    fn with(fabric: Fabric, shared: Option<SharedReceivesConfig>) -> Self {
        let a = node(&fabric, "a", vec![port("simA", "10.0.0.1/24")]);
        let b = node(&fabric, "b", vec![port("simB", "10.0.0.2/24")]);
        let mut own = WorkerConfig::default();
        own.slots = 64;
        own.slot_bytes = 8192;
        own.shared_receives = shared;
        let workers = [workers(&a), b.workers(&own).unwrap()];
        let at = SocketAddr::from(([10, 0, 0, 1], PORT));
        let listener = Listener::bind(&a, &workers[0], at, &config()).unwrap();
        let connecting = b
            .begin_connect(&workers[1], listener.handle(), &config(), b.within(WHOLE))
            .unwrap();
        Self {
            fabric,
            nodes: [a, b],
            workers,
            listener: Some(listener),
            connecting,
            connected: None,
            accepted: None,
        }
    }

    /// Polls both sides whenever something happens, or has to by a deadline.
    fn run(&mut self, until: Instant) {
        while self.fabric.now() < until && (self.connected.is_none() || self.accepted.is_none()) {
            self.turn(until);
        }
        self.poll();
    }

    /// Polls both sides, and lets the next thing happen, or a deadline come.
    fn turn(&mut self, until: Instant) {
        let before = [self.connected.is_some(), self.accepted.is_some()];
        self.poll();
        if before != [self.connected.is_some(), self.accepted.is_some()] {
            // There may be more reports now.
            return;
        }
        let mut next = until;
        if self.connected.is_none() {
            next = next.min(self.connecting.deadline().instant());
        }
        let polled = self.listener.as_ref().filter(|_| self.accepted.is_none());
        if let Some(deadline) = polled.and_then(Listener::deadline) {
            next = next.min(deadline.instant());
        }
        step(&self.fabric, Deadline::at(next));
    }

    fn poll(&mut self) {
        let now = self.fabric.now();
        let [a, b] = &self.nodes;
        let [at_a, at_b] = &mut self.workers;
        if self.connected.is_none() {
            self.connected = self.connecting.poll(b, at_b).map(|outcome| (now, outcome));
        }
        if let (None, Some(listener)) = (&self.accepted, &mut self.listener) {
            let outcome = listener.poll_accept(a, at_a).transpose();
            self.accepted = outcome.map(|outcome| (now, outcome));
        }
    }

    fn run_for(&mut self, span: Duration) {
        self.run(self.fabric.now().after(span));
    }

    /// Nothing is left of sides that failed, and everything adds up.
    fn check(&self, case: &str) {
        for (outcome, workers) in [
            (&self.accepted, &self.workers[0]),
            (&self.connected, &self.workers[1]),
        ] {
            let there = usize::from(matches!(outcome, Some((_, Ok(_)))));
            assert_eq!(workers[0].channels().count(), there, "{case}");
        }
        self.fabric.audit().unwrap();
    }
}

/// Receives of its own for each channel, and receives that all have in common.
fn own_and_shared() -> [Option<SharedReceivesConfig>; 2] {
    let mut shared = SharedReceivesConfig::default();
    shared.depth = 32;
    shared.repost_batch = 4;
    [None, Some(shared)]
}

/// Two of which the second connects, until the first has accepted and sent as much as it may, and the second has
/// polled its Worker over all of that, but not yet the connection.
fn sent_early(shared: Option<SharedReceivesConfig>) -> (Two, u64) {
    let mut two = Two::with(driven(LATENCY, 0, ""), shared);
    while two.accepted.is_none() {
        two.turn(Instant::from_ns(0).after(WHOLE));
    }
    assert!(two.connected.is_none());
    let sent = send_all(&mut two, 0);
    assert_eq!(sent, 16);
    for _ in 0..64 {
        two.fabric.run_for(LATENCY / 16);
        let polled = two.workers[1][0].poll_tending(|_, event| panic!("{event:?} of no channel"));
        polled.unwrap();
    }
    (two, sent)
}

/// Sends numbers from the side that accepted while it has credits; gives the next one.
fn send_all(two: &mut Two, mut next: u64) -> u64 {
    let at = *two.accepted.as_ref().unwrap().1.as_ref().unwrap();
    let worker = &mut two.workers[0][at.worker];
    worker.poll_tending(|_, _| {}).unwrap();
    let channel = worker.channel(at.channel).unwrap();
    while channel.post_inline(Operation::Send, &next.to_be_bytes()).is_ok() {
        next += 1;
    }
    next
}

#[test]
fn what_is_sent_before_the_connection_is_seen_to_stand_is_kept() {
    for shared in own_and_shared() {
        let (mut two, mut sent) = sent_early(shared);
        two.poll();
        let at = *two.connected.as_ref().unwrap().1.as_ref().unwrap();
        let mut heard = 0_u64;
        while heard < 200 {
            let worker = &mut two.workers[1][at.worker];
            let taken = worker.poll_tending(|turn, event| match event {
                Event::Received { message, .. } => {
                    assert_eq!(turn.channel.id(), at.channel);
                    assert_eq!(message.payload(), heard.to_be_bytes());
                    heard += 1;
                }
                other => assert!(matches!(other, Event::Done { .. }), "{other:?}"),
            });
            assert!(taken.unwrap() > 0 || two.fabric.now() < Instant::from_ns(0).after(WHOLE));
            two.fabric.run_for(LATENCY);
            sent = send_all(&mut two, sent);
        }
        let counts = two.workers[1][at.worker].statistics().snapshot();
        assert_eq!((counts.orphaned, counts.rejected), (0, 0));
        two.check("early messages");
    }
}

#[test]
fn what_came_early_for_a_connection_that_is_given_up_is_let_go() {
    for shared in own_and_shared() {
        let (mut two, sent) = sent_early(shared);
        let [a, b] = &two.nodes;
        let to = two.listener.as_ref().unwrap().handle();
        // Its place is used again at once, and by another whose numbers begin anew.
        two.connecting = b
            .begin_connect(&two.workers[1], to, &config(), b.within(WHOLE))
            .unwrap();
        let (_, first) = two.accepted.take().unwrap();
        let first = first.unwrap();
        let gone = two.workers[0][first.worker].begin_close(first.channel, a.within(LATENCY));
        gone.unwrap();
        while two.workers[0][first.worker].close_progress(first.channel) == CloseProgress::UnderWay {
            two.fabric.run_for(LATENCY);
            two.workers[0][0].poll_tending(|_, event| drop(event)).unwrap();
        }
        two.workers[1][0].poll_tending(|_, event| drop(event)).unwrap();
        let end = two.fabric.now().after(WHOLE);
        two.run(end);
        two.check("given up");
        send_all(&mut two, 1000);
        two.fabric.run_for(4 * LATENCY);
        let mut heard = Vec::new();
        for _ in 0..8 {
            let polled = two.workers[1][0].poll_tending(|_, event| match event {
                Event::Received { message, .. } => {
                    heard.push(u64::from_be_bytes(message.payload().try_into().unwrap()));
                }
                other => panic!("{other:?}"),
            });
            polled.unwrap();
        }
        assert_eq!(heard, (1000..1016).collect::<Vec<_>>());
        let counts = two.workers[1][0].statistics().snapshot();
        assert_eq!(counts.orphaned + counts.rejected, sent);
    }
}

fn handshake_failure(outcome: &Outcome) -> (Instant, Stage, Cause) {
    match outcome {
        Some((at, Err(ConnectError::Handshake(error)))) => (*at, error.stage, error.cause),
        other => panic!("{other:?}"),
    }
}

#[test]
fn connecting_takes_four_round_trips_of_the_link() {
    for latency in [LATENCY, 10 * LATENCY, 150 * LATENCY] {
        let mut two = Two::new(driven(latency, 0, ""));
        two.run_for(WHOLE);
        let (connected, accepted) = (two.connected.as_ref().unwrap(), two.accepted.as_ref().unwrap());
        assert!(
            connected.1.is_ok() && accepted.1.is_ok(),
            "{connected:?} {accepted:?}"
        );
        let took = Duration::from_nanos(connected.0.to_ns());
        let sending = Duration::from_micros(5);
        assert!(
            took >= 8 * latency && took < 8 * latency + sending,
            "{took:?} of {latency:?}"
        );
        assert_eq!(
            accepted.0.to_ns().div_ceil(latency.as_nanos() as u64),
            8,
            "{accepted:?}"
        );
        two.check("a slow link");
    }
}

#[test]
fn a_link_that_is_down_for_a_while_costs_a_while_at_every_stage() {
    for at_us in (0..9_000).step_by(250) {
        let plan = format!("at {at_us}us link a-b down for 300ms");
        let mut two = Two::new(driven(LATENCY, 0, &plan));
        two.run_for(WHOLE);
        for outcome in [&two.connected, &two.accepted] {
            assert!(matches!(outcome, Some((_, Ok(_)))), "{plan}: {outcome:?}");
        }
        two.check(&plan);
    }
}

#[test]
fn a_link_that_stays_down_ends_every_stage_at_its_deadline() {
    let mut stages = Vec::new();
    for at_us in (0..9_000).step_by(250) {
        let plan = format!("at {at_us}us link a-b down");
        let mut two = Two::new(driven(LATENCY, 0, &plan));
        // The deadline of a stage stands when the stage before it ends.
        let mut deadline = two.connecting.deadline().instant();
        let end = two.fabric.now().after(WHOLE);
        while two.connected.is_none() && two.fabric.now() < end {
            deadline = two.connecting.deadline().instant();
            two.turn(end);
        }
        match &two.connected {
            Some((_, Ok(_))) => assert!(at_us >= 7_000, "{plan}"),
            Some((at, Err(ConnectError::Unanswered(_)))) => {
                assert_eq!(*at, deadline, "{plan}");
                stages.push(None);
            }
            failed => {
                let (at, stage, cause) = handshake_failure(failed);
                assert_eq!((at, cause), (deadline, Cause::StageTimedOut), "{plan}");
                stages.push(Some(stage));
            }
        }
        // The listening side gives the peer up by its own deadline.
        two.run_for(WHOLE);
        two.check(&plan);
    }
    stages.dedup();
    let all = [
        None,
        Some(Stage::Welcome),
        Some(Stage::Accept),
        Some(Stage::Ready),
    ];
    assert_eq!(stages, all);
}

#[test]
fn nobody_there_is_told_after_one_round_trip_and_a_dead_host_not_at_all() {
    let fabric = driven(LATENCY, 0, "");
    let mut two = Two::new(fabric.clone());
    two.listener = None;
    two.run_for(WHOLE / 2);
    let (at, _, cause) = handshake_failure(&two.connected);
    assert_eq!(cause, Cause::Stream(111));
    assert!(at.to_ns() > 2_000_000 && at.to_ns() < 2_001_000, "{at:?}");

    let mut two = Two::new(driven(LATENCY, 0, "at 0ns kill a"));
    two.run_for(WHOLE);
    let Some((at, Err(ConnectError::Unanswered(_)))) = two.connected else {
        panic!("{:?}", two.connected)
    };
    assert_eq!(at, Instant::from_ns(0).after(STAGE));
}

#[test]
fn a_host_that_comes_back_knows_of_nothing() {
    let mut two = Two::new(driven(LATENCY, 0, "at 2500us kill a; at 100ms restart a"));
    two.run_for(WHOLE);
    let (at, stage, cause) = handshake_failure(&two.connected);
    assert_eq!((stage, cause), (Stage::Welcome, Cause::PeerClosed));
    // Unanswered bytes are sent again, and then the answer is that there is no such stream.
    assert!(at.to_ns() > 200_000_000 && at.to_ns() < 210_000_000, "{at:?}");
}

#[test]
fn garbage_silence_and_haste_of_clients_hold_up_nobody() {
    let mut two = Two::new(driven(LATENCY, 0, ""));
    let host = two.nodes[1].network().clone();
    let at = SocketAddr::from(([10, 0, 0, 1], PORT));
    let mut streams: Vec<_> = (0..20).map(|_| host.connect(at).unwrap()).collect();
    two.fabric.run_for(4 * LATENCY);
    assert!(streams.iter().all(|stream| !stream.is_connecting()));
    for (index, stream) in streams.iter_mut().enumerate() {
        match index % 4 {
            // Silent; garbage; the beginning of a frame; a frame that announces too much.
            0 => Ok(0),
            1 => stream.write(&[0xff; 4096]),
            2 => stream.write(b"DBLF\x01\x01"),
            _ => stream.write(b"DBLF\x01\x01\xff\xff\xff\xff\xff\xff\xff\xff"),
        }
        .unwrap();
    }
    // One that is gone before it is looked at.
    drop(streams.pop());
    let began = two.fabric.now();
    let mut failures = Vec::new();
    while two.fabric.now() < began.after(2 * STAGE) {
        two.turn(began.after(2 * STAGE));
        if let Some((at, Err(error))) = two.accepted.take() {
            failures.push((at, error.to_string()));
        } else if two.connected.is_some()
            && two
                .listener
                .as_ref()
                .is_some_and(|listener| listener.deadline().is_none())
        {
            break;
        }
    }
    let (at, connected) = two.connected.as_ref().unwrap();
    assert!(
        connected.is_ok() && at.to_ns() < 15_000_000,
        "{at:?} {connected:?}"
    );
    assert_eq!(failures.len(), 20, "{failures:?}");
    // Peers that send too little are given up a stage after they were accepted, to the nanosecond.
    let late: Vec<_> = failures
        .iter()
        .filter(|(at, _)| at.to_ns() > 100_000_000)
        .collect();
    assert_eq!(late.len(), 10, "{late:?}");
    assert!(
        late.iter().all(|(at, _)| *at == began.after(STAGE)),
        "{began:?} {late:?}"
    );
    two.fabric.run_for(2 * LATENCY);
    let mut buffer = [0; 4096];
    let heard: Vec<_> = streams
        .iter_mut()
        .map(|stream| stream.read(&mut buffer))
        .collect();
    assert!(
        heard
            .iter()
            .all(|heard| !matches!(heard, Err(IoError::WouldBlock))),
        "{heard:?}"
    );
}

/// Silent streams of one address, and a peer beside them: of another address, or of the same.
#[test]
fn silent_streams_of_one_address_hold_up_nobody() {
    for (count, is_of_it) in [(64, false), (64, true), (264, false), (264, true)] {
        let mut two = Two::new(driven(LATENCY, 0, ""));
        let silent = if is_of_it {
            two.nodes[1].network().clone()
        } else {
            let silent = node(&two.fabric, "c", vec![port("simC", "10.0.0.3/24")]);
            silent.network().clone()
        };
        let at = SocketAddr::from(([10, 0, 0, 1], PORT));
        let _streams: Vec<_> = (0..count).map(|_| silent.connect(at).unwrap()).collect();
        two.fabric.run_for(4 * LATENCY);
        let ([a, b], [at_a, at_b]) = (&two.nodes, &mut two.workers);
        let listener = two.listener.as_mut().unwrap();
        for _ in 0..16 {
            assert!(matches!(listener.poll_accept(a, at_a), Ok(None)));
        }
        let began = two.fabric.now();
        two.connecting = b
            .begin_connect(at_b, listener.handle(), &config(), b.within(WHOLE))
            .unwrap();
        while two.connected.is_none() {
            // The number of the streams that were there before.
            two.accepted = two.accepted.filter(|(_, outcome)| outcome.is_ok());
            two.turn(began.after(WHOLE));
        }
        let (at, connected) = two.connected.as_ref().unwrap();
        connected.as_ref().unwrap();
        // Four round trips, as with nobody else.
        let took = at.to_ns() - began.to_ns();
        assert!(took < 8_500_000, "{count} {is_of_it}: {took}");
        let counts = two.listener.as_ref().unwrap().counts();
        // The address has its share of places at a time, and the others were rejected as busy.
        assert!(counts.refused >= count - 64, "{counts:?}");
    }
}

#[test]
fn a_peer_beyond_the_limits_of_a_listener_makes_an_older_one_go() {
    let mut two = Two::new(driven(LATENCY, 0, ""));
    let mut limits = HandshakeLimits::default();
    (limits.under_way, limits.per_address) = (4, 4);
    two.listener = None;
    let host = two.nodes[1].network().clone();
    let at = SocketAddr::from(([10, 0, 0, 1], PORT));
    let listener = Listener::bind_with_limits(&two.nodes[0], &two.workers[0], at, &config(), &limits);
    two.listener = Some(listener.unwrap());
    // One is there already.
    let _silent: Vec<_> = (0..4).map(|_| host.connect(at).unwrap()).collect();
    two.fabric.run_for(4 * LATENCY);
    let listener = two.listener.as_mut().unwrap();
    let [a, _] = &two.nodes;
    assert!(matches!(listener.poll_accept(a, &mut two.workers[0]), Ok(None)));
    assert_eq!(listener.counts().refused, 1);
    let began = two.fabric.now();
    let error = listener
        .accept(a, &mut two.workers[0], a.within(WHOLE))
        .unwrap_err();
    assert!(matches!(error, ConnectError::TimedOut { .. }), "{error}");
    assert_eq!(two.fabric.now(), began.after(WHOLE));
    assert!(listener.deadline().is_none() && listener.failed() + listener.counts().refused == 5);
}

#[test]
fn blocking_calls_let_time_pass_to_their_deadlines() {
    const DAY: Duration = Duration::from_secs(86_400);
    let fabric = driven(LATENCY, 0, "at 0ns kill b");
    let a = node(&fabric, "a", vec![port("simA", "10.0.0.1/24")]);
    let b = node(&fabric, "b", vec![port("simB", "10.0.0.2/24")]);
    let mut at_a = workers(&a);
    let mut listener = Listener::bind(&a, &at_a, "[::]:0".parse().unwrap(), &config()).unwrap();
    let deadline = a.within(DAY);
    let error = listener.accept(&a, &mut at_a, deadline).unwrap_err();
    assert!(
        matches!(error, ConnectError::TimedOut { last_failure: None }),
        "{error}"
    );
    assert_eq!(fabric.now(), deadline.instant());
    let mut patient = config();
    patient.handshake_stage = DAY;
    let soon = a.within(Duration::from_nanos(1_234_567));
    let to = SocketAddr::from(([10, 0, 0, 2], PORT));
    let error = a.connect_at(&mut at_a, to, &patient, soon).unwrap_err();
    assert!(matches!(error, ConnectError::Unanswered(_)), "{error}");
    assert_eq!(fabric.now(), soon.instant());
    // There is no way there, which is known at once.
    let nowhere = SocketAddr::from(([10, 9, 0, 2], PORT));
    let error = b
        .connect_at(&mut workers(&b), nowhere, &patient, b.within(DAY))
        .unwrap_err();
    assert!(matches!(error, ConnectError::Tcp(_)), "{error}");
    assert_eq!(fabric.now(), soon.instant());
}

#[test]
fn both_sides_block_in_threads_of_their_own_too() {
    let fabric = Fabric::new();
    let a = node(&fabric, "a", vec![port("simA", "10.0.0.1/24")]);
    let b = node(&fabric, "b", vec![port("simB", "10.0.0.2/24")]);
    let mut at_a = workers(&a);
    let mut listener = Listener::bind(&a, &at_a, "[::]:0".parse().unwrap(), &config()).unwrap();
    let handle = *listener.handle();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut at_b = workers(&b);
            b.connect(&mut at_b, &handle, &config(), b.within(60 * WHOLE))
                .unwrap();
        });
        listener.accept(&a, &mut at_a, a.within(60 * WHOLE)).unwrap();
    });
}

#[test]
fn a_port_is_had_once_and_only_at_own_addresses() {
    let fabric = Fabric::new();
    let a = node(&fabric, "a", vec![port("simA", "10.0.0.1/24")]);
    let listen = |text: &str| {
        a.network()
            .listen(text.parse().unwrap())
            .map_err(|error| error.errno)
    };
    let first = listen("10.0.0.1:9").unwrap();
    assert_eq!(listen("10.0.0.1:9").err(), Some(98));
    assert_eq!(listen("[::]:9").err(), Some(98));
    assert_eq!(listen("10.0.0.2:9").err(), Some(99));
    drop(first);
    assert!(listen("0.0.0.0:9").is_ok());
}

/// All that can be seen of a connection that has to do with a link that goes down, and of its first messages.
fn trace(seed: u64) -> (Vec<Frame>, String) {
    let plan = "at 4ms link a-b down for 50ms; at 6ms pause a for 3ms";
    let mut two = Two::new(driven(LATENCY, seed, plan));
    two.fabric.capture(1000);
    two.run_for(WHOLE);
    let at = *two.connected.as_ref().unwrap().1.as_ref().unwrap();
    let worker = &mut two.workers[1][at.worker];
    for number in 0..8_u64 {
        let channel = worker.channel(at.channel).unwrap();
        channel
            .post_inline(Operation::Send, &number.to_be_bytes())
            .unwrap();
    }
    two.fabric.run_for(20 * LATENCY);
    let tally = two.fabric.audit().unwrap();
    let seen = format!("{:?} {:?} {tally:?}", two.connected, two.accepted);
    (two.fabric.take_captured(), seen)
}

#[test]
fn one_seed_gives_one_trace() {
    let (frames, seen) = trace(7);
    assert!(frames.len() >= 8, "{}", frames.len());
    assert!(
        trace(7) == (frames.clone(), seen.clone()),
        "the same seed, the same run"
    );
    assert!(trace(8) != (frames, seen), "another draws other numbers");
}

#[test]
fn closing_and_opening_rings_are_polled_to_their_deadlines() {
    let fabric = driven(LATENCY, 0, "");
    let (a, mut b) = pair_on(&fabric, small(), small(), Notify::Never);
    let (id_a, id_b) = (a.id(), b.id());
    let config = RingConfig::default();
    let deadline = b.worker().within(Duration::from_millis(20));
    // The peer says nothing.
    let mut opening = RingChannel::begin_open(b.worker(), id_b, &config, deadline).unwrap();
    let refused = loop {
        if let Some(outcome) = opening.poll(b.worker(), |_, _| {}) {
            break outcome;
        }
        step(&fabric, opening.deadline());
    };
    assert_eq!(refused.err(), Some(RingError::TimedOut));
    assert_eq!(fabric.now(), deadline.instant());
    // Now both do.
    let (mut a, mut b) = {
        drop((a, b));
        pair_on(&driven(LATENCY, 0, ""), small(), small(), Notify::Never)
    };
    let fabric = a.node.network().fabric().clone();
    let deadline = b.worker().within(WHOLE);
    let mut openings = [&mut a, &mut b].map(|end| {
        let id = end.id();
        RingChannel::begin_open(end.worker(), id, &config, deadline).unwrap()
    });
    let mut rings = [None, None];
    while rings.iter().any(Option::is_none) {
        for ((end, opening), ring) in [&mut a, &mut b].into_iter().zip(&mut openings).zip(&mut rings) {
            if ring.is_none() {
                *ring = opening.poll(end.worker(), |_, _| {}).transpose().unwrap();
            }
        }
        step(&fabric, deadline);
    }
    // A request that never ends holds a closing up until its deadline.
    fabric.follow(&"at 0ns link a-b down".parse().unwrap());
    step(&fabric, deadline);
    let lease = b.lease(b"x");
    b.worker().channel(id_b).unwrap().send_lease(lease).unwrap();
    let deadline = b.worker().within(Duration::from_millis(7));
    b.worker().begin_close(id_b, deadline).unwrap();
    let mut flushed = None;
    while b.worker().close_progress(id_b) == CloseProgress::UnderWay {
        let now = fabric.now();
        b.worker()
            .poll_tending(|_, event| {
                flushed = flushed.or(matches!(event, Event::Failed { .. }).then_some(now))
            })
            .unwrap();
        step(&fabric, deadline.min(Deadline::after(now, LATENCY)));
    }
    assert!(matches!(
        b.worker().close_progress(id_b),
        CloseProgress::Closed(Err(_))
    ));
    assert!(fabric.now() >= deadline.instant() && fabric.now() < deadline.instant().after(WHOLE));
    assert_eq!(flushed.map(|at| at >= deadline.instant()), Some(true));
    assert!(a.worker().channel(id_a).is_some());
}

/// Lets the next thing happen that does by a deadline, or the deadline come.
fn step(fabric: &Fabric, deadline: Deadline) {
    match fabric.next_at() {
        Some(at) if at <= deadline.instant() => assert!(fabric.step()),
        _ => fabric.run_until(deadline.instant()),
    }
}
