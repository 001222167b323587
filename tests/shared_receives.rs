//! Receives that channels share, over the simulated fabric: one hub, and peers that use their shares in any order.

mod fabric;

use std::thread;

use doorbell::{
    ArenaConfig, AsyncEvent, ChannelConfig, ChannelId, ChannelState, CloseError, CloseProgress, ConnectError,
    Event, Lease, Listener, Node, NodeError, Operation, PostFlags, RemoteAccess, RemoteAddress, RingChannel,
    RingConfig, SendErrorKind, SharedReceives, SharedReceivesConfig, Window as _, WindowConfig, Worker,
    WorkerConfig, within,
};
use doorbell_sim::{Fabric, Host};
use fabric::SOON;

/// A Worker whose channels share their receives, and those at the other ends.
struct Hub {
    fabric: Fabric,
    node: Node<Host, Host>,
    workers: Vec<Worker<Host>>,
    listener: Listener<Host, Host>,
    peers: Vec<Peer>,
    /// What the hub's application looks at.
    held: Vec<Lease<Host>>,
    /// How many hosts there were beside it.
    made: usize,
}

struct Peer {
    /// What keeps the reaper.
    _node: Node<Host, Host>,
    workers: Vec<Worker<Host>>,
    /// Its end, and the hub's.
    id: ChannelId,
    at_hub: ChannelId,
    sent: u32,
    heard: u32,
}

fn shared(depth: u32, limit: u32) -> SharedReceivesConfig {
    let mut config = SharedReceivesConfig::default();
    config.depth = depth;
    config.repost_batch = 8;
    config.limit = limit;
    config
}

/// A channel with this share at the hub.
fn share(receives: u32) -> ChannelConfig {
    let mut config = fabric::small();
    config.send_depth = 64;
    config.receive_depth = receives;
    config
}

impl Hub {
    fn new(depth: u32, limit: u32, slots: u32) -> Self {
        let fabric = Fabric::new();
        let node = fabric::node(&fabric, "hub", vec![fabric::port("simHub", "127.0.0.1/24")]);
        let mut config = WorkerConfig::default();
        config.slots = slots;
        config.slot_bytes = 256;
        config.shared_receives = Some(shared(depth, limit));
        let workers = node.workers(&config).unwrap();
        let listener = Listener::bind(&node, &workers, "127.0.0.1:0".parse().unwrap(), &share(1)).unwrap();
        Self {
            fabric,
            node,
            workers,
            listener,
            peers: Vec::new(),
            held: Vec::new(),
            made: 0,
        }
    }

    /// With peers that have these shares.
    fn with(depth: u32, slots: u32, shares: &[u32]) -> Self {
        let mut hub = Self::new(depth, 0, slots);
        for receives in shares {
            hub.add(*receives).unwrap();
        }
        hub
    }

    fn worker(&mut self) -> &mut Worker<Host> {
        &mut self.workers[0]
    }

    fn counts(&self) -> SharedReceives {
        self.workers[0].shared_receives().unwrap()
    }

    fn not_ready(&self) -> u64 {
        self.fabric.receivers_not_ready()
    }

    /// Another host; names and addresses are used once.
    fn host(&mut self) -> Node<Host, Host> {
        self.made += 1;
        let number = self.made;
        let port = fabric::port(&format!("sim{number}"), &format!("127.0.0.{}/24", 1 + number));
        fabric::node(&self.fabric, &format!("peer{number}"), vec![port])
    }

    /// Connects another peer, whose share is so large; gives its index.
    fn add(&mut self, receives: u32) -> Result<usize, ConnectError> {
        let number = self.peers.len();
        let node = self.host();
        let Self {
            node: hub,
            workers,
            listener,
            ..
        } = self;
        *listener = Listener::bind(hub, workers, "127.0.0.1:0".parse().unwrap(), &share(receives)).unwrap();
        let address = listener.address();
        let mut own = WorkerConfig::default();
        own.slots = 128;
        own.slot_bytes = 256;
        let mut theirs = node.workers(&own).unwrap();
        let mut connecting = node.begin_connect_at(&theirs, address, &share(8), node.within(SOON))?;
        let (mut connected, mut accepted) = (None, Ok(None));
        while connected.is_none() || matches!(accepted, Ok(None)) {
            if connected.is_none() {
                connected = connecting.poll(&node, &mut theirs);
            }
            if let Ok(None) = accepted {
                accepted = listener.poll_accept(hub, workers);
            }
            if matches!((&connected, &accepted), (Some(Err(_)), Ok(None))) {
                break;
            }
        }
        let connected = connected.unwrap();
        let at_hub = match accepted? {
            Some(connection) => connection.channel,
            None => return Err(connected.unwrap_err()),
        };
        self.peers.push(Peer {
            _node: node,
            workers: theirs,
            id: connected.unwrap().channel,
            at_hub,
            sent: 0,
            heard: 0,
        });
        Ok(number)
    }

    /// Polls the hub until nothing comes; what it received it holds.
    fn poll(&mut self) {
        let Self {
            workers, peers, held, ..
        } = self;
        let mut quiet = 0;
        while quiet < 3 {
            quiet += 1;
            workers[0]
                .poll(|turn, event| match event {
                    Event::Received { message, .. } => {
                        quiet = 0;
                        let id = turn.channel.id();
                        let peer = peers.iter_mut().find(|peer| peer.at_hub == id).unwrap();
                        assert_eq!(message.payload(), peer.heard.to_be_bytes(), "in order");
                        peer.heard += 1;
                        held.push(message);
                    }
                    Event::Done { .. } => quiet = 0,
                    other => panic!("{other:?}"),
                })
                .unwrap();
        }
        self.check();
    }

    fn give_back(&mut self, count: usize) {
        for message in self.held.drain(..count.min(self.held.len())) {
            self.workers[0].release(message);
        }
    }

    /// Polls, and gives all back, until nothing more happens.
    fn settle(&mut self) {
        for _ in 0..3 {
            self.poll();
            self.give_back(usize::MAX);
        }
        self.poll();
    }

    /// What all peers may send, as they know it.
    fn credits(&mut self) -> u32 {
        self.peers.iter_mut().map(Peer::credits).sum()
    }

    fn check(&mut self) {
        let counts = self.counts();
        let credits = self.credits();
        assert!(counts.granted <= counts.posted, "{counts:?}");
        assert!(credits <= counts.granted, "{credits} {counts:?}");
        assert_eq!(self.not_ready(), 0);
    }

    /// Closes the hub's end of a connection.
    fn close(&mut self, at: usize) -> Result<(), CloseError> {
        let id = self.peers[at].at_hub;
        let closed = self.worker().close(id, within(SOON), |_, event| {
            assert!(!matches!(event, Event::Failed { .. }), "{event:?}");
        });
        self.peers.swap_remove(at);
        closed
    }
}

impl Peer {
    fn worker(&mut self) -> &mut Worker<Host> {
        &mut self.workers[0]
    }

    fn credits(&mut self) -> u32 {
        let id = self.id;
        self.worker().channel(id).unwrap().credits()
    }

    /// Sends one message; says whether it went.
    fn send(&mut self) -> bool {
        let (id, bytes) = (self.id, self.sent.to_be_bytes());
        let worker = self.worker();
        worker
            .poll(|_, event| assert!(matches!(event, Event::Done { .. }), "{event:?}"))
            .unwrap();
        match worker.channel(id).unwrap().post_inline(Operation::Send, &bytes) {
            Ok(_) => self.sent += 1,
            Err(kind) => {
                assert_eq!(kind, SendErrorKind::WouldBlock);
                return false;
            }
        }
        true
    }

    /// Sends until it may not; says how many went.
    fn flood(&mut self) -> u32 {
        let mut sent = 0;
        while self.send() {
            sent += 1;
        }
        sent
    }
}

fn draws(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed;
    move |below| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    }
}

#[test]
fn every_peer_may_send_its_share_at_once() {
    let mut hub = Hub::with(32, 32, &[16, 8, 4, 2, 1, 1]);
    let counts = hub.counts();
    assert_eq!((counts.depth, counts.posted, counts.granted), (32, 32, 32));
    for round in 0..50 {
        let sent: Vec<_> = hub.peers.iter_mut().map(Peer::flood).collect();
        assert_eq!(sent, [16, 8, 4, 2, 1, 1], "round {round}");
        hub.settle();
    }
    for peer in &hub.peers {
        assert_eq!(peer.heard, peer.sent);
    }
    assert_eq!(hub.credits(), 32);
}

#[test]
fn receives_are_posted_for_all_channels_in_one_call() {
    let mut hub = Hub::with(32, 64, &[2; 8]);
    let before = hub.worker().statistics().snapshot();
    for _ in 0..16 {
        for at in 0..8 {
            assert!(hub.peers[at].send());
            hub.poll();
            hub.give_back(1);
        }
    }
    let since = hub.worker().statistics().snapshot().since(&before);
    assert_eq!((since.received, since.rejected, since.orphaned), (128, 0, 0));
    assert_eq!(since.receives_posted % 8, 0, "batches of eight");
    assert!(since.receives_posted >= 120);
}

#[test]
fn memory_that_is_kept_holds_peers_back_and_loses_nothing() {
    for seed in 1..=20 {
        let mut draw = draws(seed);
        let shares: Vec<_> = (0..1 + draw(6)).map(|_| 1 + draw(6) as u32).collect();
        let depth = shares.iter().sum::<u32>() + draw(5) as u32;
        let mut hub = Hub::with(depth, depth + draw(8) as u32, &shares);
        for _ in 0..600 {
            let peer = draw(shares.len());
            match draw(4) {
                0 => hub.give_back(draw(12)),
                1 => hub.poll(),
                _ => {
                    hub.peers[peer].send();
                    hub.check();
                }
            }
        }
        hub.settle();
        for (peer, share) in hub.peers.iter_mut().zip(shares) {
            assert_eq!(peer.heard, peer.sent, "seed {seed}");
            assert!(peer.sent > 20, "seed {seed}: {}", peer.sent);
            assert!((1..=share).contains(&peer.credits()), "seed {seed}");
        }
    }
}

#[test]
fn the_hub_sends_as_any_other() {
    let mut hub = Hub::with(16, 64, &[8, 8]);
    let id = hub.peers[1].at_hub;
    for number in 0..100_u32 {
        let mut lease = hub.worker().lease().unwrap();
        lease.fill(&number.to_be_bytes()).unwrap();
        hub.worker().channel(id).unwrap().send(lease).unwrap();
        let mut heard = None;
        hub.peers[1]
            .worker()
            .poll(|mut turn, event| {
                if let Event::Received { message, .. } = event {
                    heard = Some(message.payload().to_vec());
                    turn.release(message);
                }
            })
            .unwrap();
        assert_eq!(heard.as_deref(), Some(&number.to_be_bytes()[..]));
        assert!(hub.peers[1].send(), "announcements go both ways");
        hub.poll();
        hub.give_back(1);
    }
    let channel = hub.worker().channel(id).unwrap();
    assert_eq!(
        (channel.state(), channel.receives_posted()),
        (ChannelState::Open, 8)
    );
}

#[test]
fn a_write_with_a_word_uses_a_shared_receive() {
    let mut hub = Hub::with(8, 16, &[4, 4]);
    let window = hub
        .worker()
        .window(&WindowConfig::new(64, RemoteAccess::ALL))
        .unwrap();
    let at = RemoteAddress::within(&window.remote(), 0, 4).unwrap();
    for round in 0..20_u32 {
        let peer = &mut hub.peers[1];
        let id = peer.id;
        peer.worker().poll(|_, _| {}).unwrap();
        for word in 0..4 {
            let channel = peer.worker().channel(id).unwrap();
            channel
                .post_inline(Operation::WriteWithImmediate(at, word), &round.to_be_bytes())
                .unwrap();
        }
        let channel = peer.worker().channel(id).unwrap();
        let more = channel.post_inline(Operation::WriteWithImmediate(at, 9), b"more");
        assert_eq!(more, Err(SendErrorKind::WouldBlock));
        let mut words = Vec::new();
        while words.len() < 4 {
            hub.worker()
                .poll(|_, event| match event {
                    Event::Written {
                        payload_bytes: 4,
                        immediate,
                    } => words.push(immediate),
                    other => panic!("{other:?}"),
                })
                .unwrap();
        }
        assert_eq!(words, [0, 1, 2, 3]);
    }
    assert_eq!(hub.not_ready(), 0);
}

#[test]
fn channels_are_admitted_as_far_as_their_shares_fit() {
    let mut hub = Hub::with(16, 16, &[8, 6]);
    let refused = hub.add(3).unwrap_err();
    assert!(
        matches!(refused, ConnectError::NoShare { receives_left: 2 }),
        "{refused}"
    );
    assert!(
        refused
            .to_string()
            .starts_with("of the shared receives 2 are left"),
        "{refused}"
    );
    hub.add(2).unwrap();
    assert!(matches!(
        hub.add(1).unwrap_err(),
        ConnectError::NoShare { receives_left: 0 }
    ));
    for peer in &mut hub.peers {
        assert!(peer.flood() > 0);
    }
    hub.settle();
    // What a closed channel had can be given to others, whatever it had used of it.
    for round in 0..20 {
        let gone = round % hub.peers.len();
        let shares = [8, 6, 2];
        let share = hub.peers[gone].worker().channels().count();
        assert_eq!(share, 1);
        if round % 3 == 0 {
            hub.peers[gone].flood();
        }
        let id = hub.peers[gone].at_hub;
        let left = hub.worker().channel(id).unwrap().receives_posted();
        assert_eq!(hub.close(gone), Ok(()), "round {round}");
        hub.settle();
        let counts = hub.counts();
        assert_eq!((counts.posted, counts.granted), (16, 16 - left), "round {round}");
        let added = hub.add(left).unwrap();
        assert!(shares.contains(&left));
        assert_eq!(hub.peers[added].flood(), left);
        hub.settle();
    }
    assert_eq!(hub.credits(), 16);
}

#[test]
fn a_worker_wants_a_slot_for_each_shared_receive() {
    let fabric = Fabric::new();
    let node = fabric::node(&fabric, "hub", vec![fabric::port("simHub", "127.0.0.1/24")]);
    let mut config = WorkerConfig::default();
    config.slots = 15;
    config.shared_receives = Some(shared(16, 0));
    let error = node.workers(&config).unwrap_err();
    assert!(matches!(error, NodeError::Memory(_)));
    assert!(error.to_string().contains("fewer slots than receives"), "{error}");
    config.slots = 16;
    config.shared_receives = Some(shared(16, 17));
    assert!(node.workers(&config).is_err(), "a limit beyond the depth");
    config.shared_receives = Some(shared(16, 16));
    config.completion_depth = 1;
    assert!(
        node.workers(&config).is_ok(),
        "the queue is as deep as there are receives"
    );
}

#[test]
fn what_fails_disturbs_no_other() {
    let mut hub = Hub::with(16, 32, &[4, 4, 4, 4]);
    for round in 0..10 {
        // Messages that came before are told; then one end goes, in each of three ways.
        let sent = hub.peers[0].flood();
        assert_eq!(sent, 4);
        let id = hub.peers[0].at_hub;
        match round % 3 {
            0 => hub.worker().channel(id).unwrap().shut().unwrap(),
            1 => {
                let theirs = hub.peers[0].id;
                hub.peers[0].worker().channel(theirs).unwrap().shut().unwrap();
            }
            _ => {
                // One that does not fit the slot.
                hub.poll();
                hub.give_back(usize::MAX);
                hub.poll();
                let theirs = hub.peers[0].id;
                let worker = hub.peers[0].worker();
                let (mut one, mut other) = (worker.lease().unwrap(), worker.lease().unwrap());
                one.set_len_bytes(256);
                other.set_len_bytes(256);
                let mut batch = worker.channel(theirs).unwrap().batch();
                batch
                    .push(Operation::Send, [one, other], PostFlags::empty())
                    .unwrap();
                batch.ring().unwrap();
            }
        }
        let (mut heard, mut failed) = (0, 0);
        for _ in 0..10 {
            hub.workers[0]
                .poll(|mut turn, event| match event {
                    Event::Received { message, .. } => {
                        assert_eq!(turn.channel.id(), id);
                        heard += 1;
                        turn.release(message);
                    }
                    Event::ReceiveFailed { .. } => {
                        assert_eq!(turn.channel.id(), id);
                        failed += 1;
                    }
                    Event::Failed { .. } | Event::Done { .. } => assert_eq!(turn.channel.id(), id),
                    other => panic!("{other:?}"),
                })
                .unwrap();
        }
        if round % 3 == 2 {
            assert_eq!((heard, failed), (0, 1));
            let state = hub.worker().channel(id).unwrap().state();
            assert!(matches!(state, ChannelState::Failed { .. }), "{state:?}");
        } else {
            assert_eq!((heard, failed), (4, 0));
        }
        // The others have all they had.
        for peer in &mut hub.peers[1..] {
            assert_eq!(peer.flood(), 4, "round {round}");
        }
        let held = hub.peers.remove(0);
        hub.settle();
        assert_eq!(hub.worker().close(id, within(SOON), |_, _| {}), Ok(()));
        drop(held);
        hub.settle();
        assert_eq!(hub.counts().posted, 16, "nothing was lost");
        hub.add(4).unwrap();
        assert_eq!(hub.credits(), 16);
    }
}

#[test]
fn what_came_before_a_closing_is_told_and_what_comes_after_is_taken() {
    let mut hub = Hub::with(64, 64, &[60, 4]);
    let id = hub.peers[0].at_hub;
    // More than one poll takes.
    assert_eq!(hub.peers[0].flood(), 60);
    hub.worker().begin_close(id, within(SOON)).unwrap();
    let mut heard = 0;
    while hub.worker().close_progress(id) == CloseProgress::UnderWay {
        hub.worker()
            .poll(|mut turn, event| match event {
                Event::Received { message, .. } => {
                    heard += 1;
                    turn.release(message);
                }
                // An announcement that was under way.
                Event::Failed { .. } | Event::Done { .. } => {}
                other => panic!("{other:?}"),
            })
            .unwrap();
    }
    assert_eq!(hub.worker().close_progress(id), CloseProgress::Closed(Ok(())));
    assert_eq!(heard, 60);
    hub.peers.remove(0);
    hub.settle();
    assert_eq!((hub.counts().posted, hub.counts().granted), (64, 4));
}

#[test]
fn a_share_granted_for_nothing_is_given_to_another() {
    let mut hub = Hub::new(8, 0, 16);
    for round in 0..5 {
        // One that learns what it may send, and then finds that it has no memory for what it is to receive.
        let peer = hub.host();
        let mut poor = WorkerConfig::default();
        poor.slots = 4;
        let mut theirs = peer.workers(&poor).unwrap();
        let Hub {
            node,
            workers,
            fabric,
            ..
        } = &mut hub;
        let any = "127.0.0.1:0".parse().unwrap();
        let mut listener = Listener::bind(node, workers, any, &share(8)).unwrap();
        let address = listener.address();
        let failed = thread::scope(|scope| {
            let connecting = scope.spawn(|| peer.connect_at(&mut theirs, address, &share(8), within(SOON)));
            while listener.failed() == 0 {
                assert!(!matches!(listener.poll_accept(node, workers), Ok(Some(_))));
            }
            connecting.join().unwrap().unwrap_err()
        });
        assert!(matches!(failed, ConnectError::NoMemory), "{failed}");
        assert_eq!(workers[0].channels().count(), 0);
        assert_eq!(fabric.receivers_not_ready(), 0);
        assert_eq!(hub.counts().granted, 8, "round {round}: what it may have used");
        // Nobody gets it before it is seen that none of its messages is left.
        let refused = hub.add(8).unwrap_err();
        assert!(
            matches!(refused, ConnectError::NoShare { receives_left: 0 }),
            "{refused}"
        );
        hub.poll();
        hub.add(8).unwrap();
        assert_eq!((hub.credits(), hub.counts().granted), (8, 8));
        assert_eq!(hub.peers[0].flood(), 8);
        hub.settle();
        hub.close(0).unwrap();
        assert_eq!(hub.counts().granted, 0);
    }
}

#[test]
fn the_limit_is_told_once_and_again_after_refilling() {
    let mut hub = Hub::new(8, 4, 8);
    hub.add(8).unwrap();
    let limit = AsyncEvent::SharedReceiveLimit(hub.counts().id);
    for round in 0..5 {
        for _ in 0..4 {
            assert!(hub.peers[0].send());
        }
        hub.poll();
        assert_eq!(
            hub.worker().next_event(),
            Ok(None),
            "as many as the limit are left"
        );
        for _ in 0..2 {
            assert!(hub.peers[0].send());
        }
        hub.poll();
        assert_eq!(hub.worker().next_event(), Ok(Some(limit)), "round {round}");
        assert_eq!(hub.worker().next_event(), Ok(None));
        hub.poll();
        // What it holds comes back: from then on it is told again.
        hub.give_back(usize::MAX);
        hub.poll();
        assert_eq!(hub.counts().posted, 8);
    }
    // Nobody who asks: nobody who sets it again.
    for _ in 0..2 {
        while hub.peers[0].send() {}
        hub.settle();
    }
    assert_eq!(hub.worker().next_event(), Ok(Some(limit)));
    assert_eq!(hub.worker().next_event(), Ok(None));
}

#[test]
fn a_closing_keeps_the_events_it_finds() {
    let mut hub = Hub::new(8, 8, 8);
    hub.add(4).unwrap();
    hub.add(4).unwrap();
    assert!(hub.peers[0].send() && hub.peers[1].send());
    assert_eq!(hub.close(1), Ok(()));
    let limit = AsyncEvent::SharedReceiveLimit(hub.counts().id);
    assert_eq!(hub.worker().next_event(), Ok(Some(limit)));
    assert_eq!(
        hub.worker().next_event(),
        Ok(None),
        "and not that a queue pair ended"
    );
}

#[test]
fn rings_beside_shared_receives() {
    let mut hub = Hub::with(12, 32, &[8, 4]);
    let (at_hub, id) = (hub.peers[0].at_hub, hub.peers[0].id);
    let mut config = RingConfig::default();
    config.cells = 16;
    let Hub { workers, peers, .. } = &mut hub;
    let (mut ours, mut theirs) = thread::scope(|scope| {
        let opening = scope
            .spawn(|| RingChannel::open(&mut workers[0], at_hub, &config, within(SOON), |_, _| {}).unwrap());
        let theirs = RingChannel::open(peers[0].worker(), id, &config, within(SOON), |_, _| {}).unwrap();
        (opening.join().unwrap(), theirs)
    });
    for number in 0..200_u32 {
        let peer = &mut hub.peers[0];
        peer.worker()
            .poll(|_, event| {
                if let Event::Written { immediate, .. } = event {
                    theirs.note_written(immediate)
                }
            })
            .unwrap();
        let channel = peer.worker().channel(id).unwrap();
        theirs.send_inline(channel, &number.to_be_bytes()).unwrap();
        let mut into = [0; 16];
        hub.worker()
            .poll(|_, event| match event {
                Event::Written { immediate, .. } => ours.note_written(immediate),
                Event::Done { .. } => {}
                other => panic!("{other:?}"),
            })
            .unwrap();
        let channel = hub.worker().channel(at_hub).unwrap();
        assert_eq!(ours.receive(channel, &mut into), Ok(Some(4)));
        assert_eq!(into[..4], number.to_be_bytes());
        // Messages of the other channel, in between.
        assert!(hub.peers[1].send());
        let Hub { workers, held, .. } = &mut hub;
        workers[0]
            .poll(|_, event| match event {
                Event::Received { message, .. } => held.push(message),
                Event::Written { immediate, .. } => ours.note_written(immediate),
                Event::Done { .. } => {}
                other => panic!("{other:?}"),
            })
            .unwrap();
        hub.give_back(1);
    }
    assert_eq!(hub.not_ready(), 0);
}

#[test]
fn taken_apart_the_half_that_receives_has_them() {
    let mut hub = Hub::new(12, 6, 32);
    for _ in 0..3 {
        hub.add(4).unwrap();
    }
    let Hub {
        fabric,
        mut workers,
        mut peers,
        node,
        ..
    } = hub;
    let (mut sending, mut receiving) = workers.remove(0).split(&ArenaConfig::new(16, 256)).unwrap();
    let ids: Vec<_> = peers.iter().map(|peer| peer.at_hub).collect();
    let stop = core::sync::atomic::AtomicBool::new(false);
    let is_over = || stop.load(core::sync::atomic::Ordering::Acquire);
    thread::scope(|scope| {
        // What announces is another thread than what receives.
        scope.spawn(|| {
            while !is_over() {
                sending.poll(|_, event| panic!("{event:?}")).unwrap();
                thread::yield_now();
            }
        });
        let receiver = scope.spawn(|| {
            let mut heard = [0_u32; 3];
            while heard != [300; 3] {
                receiving
                    .poll(|mut turn, event| match event {
                        Event::Received { message, .. } => {
                            let id = turn.channel.id();
                            let at = ids.iter().position(|known| *known == id).unwrap();
                            assert_eq!(message.payload(), heard[at].to_be_bytes());
                            heard[at] += 1;
                            turn.release(message);
                        }
                        other => panic!("{other:?}"),
                    })
                    .unwrap();
                thread::yield_now();
            }
        });
        while !receiver.is_finished() {
            for peer in peers.iter_mut().filter(|peer| peer.sent < 300) {
                peer.send();
            }
            thread::yield_now();
        }
        receiver.join().unwrap();
        stop.store(true, core::sync::atomic::Ordering::Release);
    });
    assert_eq!(fabric.receivers_not_ready(), 0);
    while receiving.next_event().unwrap().is_some() {}
    let mut worker = sending.join(receiving).unwrap();
    let counts = worker.shared_receives().unwrap();
    assert_eq!(counts.granted, counts.posted, "{counts:?}");
    for id in ids {
        worker.close(id, within(SOON), |_, _| {}).unwrap();
    }
    assert_eq!(worker.shared_receives().unwrap().granted, 0);
    drop(worker);
    assert!(node.settle(within(SOON)));
}

#[test]
fn dropped_in_any_order_with_messages_under_way() {
    for order in 0..6 {
        let mut hub = Hub::with(8, 16, &[4, 4]);
        for peer in &mut hub.peers {
            peer.flood();
        }
        if order % 2 == 0 {
            hub.poll();
        }
        let Hub {
            workers,
            peers,
            held,
            node,
            listener,
            fabric,
            ..
        } = hub;
        match order / 2 {
            0 => {
                drop(workers);
                drop(held);
                drop(peers);
            }
            1 => {
                drop(peers);
                drop(workers);
                drop(held);
            }
            _ => {
                drop(held);
                drop(peers);
                drop(workers);
            }
        }
        drop(listener);
        assert!(node.settle(within(SOON)));
        drop(fabric);
    }
}
