//! Credits over the simulated fabric: a message without a receive at the peer is refused at once, nothing is
//! lost, and no message ever finds a receiver that is not ready.

use std::collections::{HashSet, VecDeque};

use crate::fabric::{End, LONG, pair, pair_with, small};
use doorbell::provider::Window as _;
use doorbell::{
    ConnectError, Event, Lease, Listener, Operation, PostFlags, RemoteAccess, RemoteAddress, SendErrorKind,
    Ticket, WindowConfig, WorkerConfig,
};
use doorbell_sim::{Fabric, Host};

/// How often a message found no receive, on the whole network.
fn not_ready(end: &End) -> u64 {
    end.node.provider().fabric().receivers_not_ready()
}

/// Sends messages numbered from `first` until one is handed back; says how many went.
fn flood(end: &mut End, first: u32) -> u32 {
    let id = end.id();
    for sent in 0.. {
        let number = (first + sent).to_be_bytes();
        let lease = end.lease(&number);
        if let Err(error) = end.worker().channel(id).unwrap().send_lease(lease) {
            assert_eq!(error.kind, SendErrorKind::WouldBlock);
            assert_eq!(error.item.unwrap().payload(), number, "handed back as it was");
            return sent;
        }
    }
    unreachable!()
}

/// Polls until nothing comes; gives the numbers of the messages.
fn drain(end: &mut End) -> Vec<u32> {
    let mut numbers = Vec::new();
    let mut quiet = 0;
    while quiet < 4 {
        quiet += 1;
        end.worker()
            .poll(|_, event| match event {
                Event::Received { message, .. } => {
                    numbers.push(u32::from_be_bytes(message.payload().try_into().unwrap()));
                    quiet = 0;
                }
                Event::Done { .. } => quiet = 0,
                other => panic!("{other:?}"),
            })
            .unwrap();
    }
    numbers
}

fn credits(end: &mut End) -> u32 {
    let id = end.id();
    end.worker().channel(id).unwrap().credits()
}

#[test]
fn one_side_floods_and_the_other_does_not_look() {
    let mut deep = small();
    deep.send_depth = 64;
    let (mut a, mut b) = pair_with(small(), deep);
    let mut next = 0;
    for _ in 0..100 {
        assert_eq!(credits(&mut b), 16);
        let sent = flood(&mut b, next);
        assert_eq!(
            sent, 16,
            "the receives of the other side, whatever the queue holds"
        );
        assert_eq!(credits(&mut b), 0);
        assert_eq!(drain(&mut a), (next..next + sent).collect::<Vec<_>>());
        drain(&mut b);
        next += sent;
    }
    assert_eq!(not_ready(&a), 0);
}

#[test]
fn a_queue_pair_of_any_depth_goes_on() {
    for (send_depth, receive_depth, repost_batch) in [
        (1, 1, 1),
        (1, 3, 16),
        (2, 2, 1),
        (3, 7, 16),
        (16, 1, 0),
        (5, 40, 16),
    ] {
        let mut config = small();
        (config.send_depth, config.receive_depth, config.repost_batch) =
            (send_depth, receive_depth, repost_batch);
        let (mut a, mut b) = pair_with(config, config);
        let (mut next, mut heard) = (0, 0);
        while next < 500 {
            let sent = flood(&mut b, next);
            next += sent;
            let numbers = drain(&mut a);
            assert!(numbers.iter().copied().eq(heard..heard + numbers.len() as u32));
            heard += numbers.len() as u32;
            drain(&mut b);
            assert!(sent > 0 || !numbers.is_empty(), "nothing moves: {config:?}");
        }
        heard += drain(&mut a).len() as u32;
        assert_eq!(heard, next);
        assert_eq!(not_ready(&a), 0, "{config:?}");
    }
}

/// One end of traffic both ways.
struct Talker {
    end: End,
    sent: u32,
    heard: u32,
    /// Leases that are kept for a while before they are given back.
    held: VecDeque<Lease<Host>>,
    tickets: HashSet<Ticket>,
    refusals: u32,
}

impl Talker {
    fn new(end: End) -> Self {
        Self {
            end,
            sent: 0,
            heard: 0,
            held: VecDeque::new(),
            tickets: HashSet::new(),
            refusals: 0,
        }
    }

    fn send(&mut self, count: u32) {
        let id = self.end.id();
        for _ in 0..count {
            let Some(mut lease) = self.end.worker().lease() else {
                return;
            };
            lease.fill(&self.sent.to_be_bytes()).unwrap();
            match self.end.worker().channel(id).unwrap().send_lease(lease) {
                Ok(ticket) => {
                    self.sent += 1;
                    self.tickets.insert(ticket);
                }
                Err(error) => {
                    assert_eq!(error.kind, SendErrorKind::WouldBlock);
                    assert_eq!(error.item.unwrap().payload(), self.sent.to_be_bytes());
                    self.refusals += 1;
                    return;
                }
            }
        }
    }

    fn poll(&mut self) {
        let Self {
            end,
            heard,
            held,
            tickets,
            ..
        } = self;
        end.worker()
            .poll(|_, event| match event {
                Event::Received { message, .. } => {
                    assert_eq!(message.payload(), heard.to_be_bytes(), "in order, and none lost");
                    *heard += 1;
                    held.push_back(message.keep());
                }
                Event::Done { through } => {
                    assert!(tickets.contains(&through), "a request that was the application's");
                }
                other => panic!("{other:?}"),
            })
            .unwrap();
    }

    fn give_back(&mut self, count: usize) {
        for _ in 0..count.min(self.held.len()) {
            let message = self.held.pop_front().unwrap();
            self.end.worker().release(message);
        }
    }
}

#[test]
fn both_sides_flood_in_any_order() {
    for seed in 1..=40_u64 {
        let mut state = seed;
        let mut draw = move |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let mut config = || {
            let mut config = small();
            config.send_depth = 1 + draw(20) as u32;
            config.receive_depth = 1 + draw(20) as u32;
            config.repost_batch = draw(12) as u32;
            config.unsignaled_max = draw(12) as u32;
            config
        };
        let (listening, connecting) = (config(), config());
        let (a, b) = pair_with(listening, connecting);
        let mut talkers = [Talker::new(a), Talker::new(b)];
        for _ in 0..2_000 {
            let talker = &mut talkers[draw(2) as usize];
            match draw(3) {
                0 => talker.send(1 + draw(30) as u32),
                1 => talker.poll(),
                _ => talker.give_back(draw(30) as usize),
            }
        }
        for _ in 0..200 {
            for talker in &mut talkers {
                talker.give_back(usize::MAX);
                talker.poll();
            }
        }
        let [a, b] = &mut talkers;
        assert_eq!((a.heard, b.heard), (b.sent, a.sent), "seed {seed}");
        assert!(a.sent > 20 && b.sent > 20, "seed {seed}: {} {}", a.sent, b.sent);
        assert!(a.refusals > 0 && b.refusals > 0, "seed {seed}");
        assert_eq!(not_ready(&a.end), 0, "seed {seed}");
        // All posted receives are consumed: each side has credit again.
        for talker in &mut talkers {
            assert!(credits(&mut talker.end) > 0, "seed {seed}");
        }
    }
}

#[test]
fn a_side_that_never_sends_announces_all_the_same() {
    let (mut a, mut b) = pair();
    let mut next = 0;
    for _ in 0..1_000 {
        let sent = flood(&mut b, next).min(16);
        next += sent;
        let id = a.id();
        // Any other event makes the test fail; `drain` would take it for one of the application's.
        let mut heard = 0;
        for _ in 0..4 {
            a.worker()
                .poll(|_, event| match event {
                    Event::Received { .. } => {
                        heard += 1;
                    }
                    other => panic!("{other:?}"),
                })
                .unwrap();
        }
        assert_eq!(heard, sent);
        let channel = a.worker().channel(id).unwrap();
        assert_eq!(channel.in_flight(), 0, "none of the application's");
        assert!(channel.room() >= 8, "{}", channel.room());
        drain(&mut b);
    }
    assert!(next >= 8_000, "{next}");
    assert_eq!(not_ready(&a), 0);
    let (id, long) = (a.id(), a.node.within(LONG));
    assert_eq!(a.worker().close(id, long, |_, _| {}), Ok(()));
}

#[test]
fn a_write_with_a_word_takes_a_credit_and_other_operations_none() {
    let (mut a, mut b) = pair_with(small(), {
        let mut config = small();
        config.send_depth = 64;
        config
    });
    let window = a
        .worker()
        .window(&WindowConfig::new(64, RemoteAccess::ALL))
        .unwrap();
    let at = RemoteAddress::within(&window.remote(), 0, 8).unwrap();
    let id = b.id();
    for left in (0..16).rev() {
        let lease = b.lease(b"8 bytes.");
        let channel = b.worker().channel(id).unwrap();
        channel
            .post(Operation::WriteWithImmediate(at, left), lease, PostFlags::empty())
            .unwrap();
        assert_eq!(channel.credits(), left);
    }
    let lease = b.lease(b"8 bytes.");
    let channel = b.worker().channel(id).unwrap();
    let refused = channel
        .post(Operation::WriteWithImmediate(at, 0), lease, PostFlags::empty())
        .unwrap_err();
    assert_eq!(refused.kind, SendErrorKind::WouldBlock);
    assert_eq!(
        channel.post_inline(Operation::Send, b"inline"),
        Err(SendErrorKind::WouldBlock)
    );
    channel
        .post(Operation::Write(at), refused.item.unwrap(), PostFlags::empty())
        .unwrap();
    channel.post_inline(Operation::Write(at), b"inline").unwrap();
    let mut words = Vec::new();
    a.worker()
        .poll(|_, event| match event {
            Event::Written { immediate, .. } => words.push(immediate),
            other => panic!("{other:?}"),
        })
        .unwrap();
    assert_eq!(words, (0..16).rev().collect::<Vec<_>>());
    assert!(credits(&mut b) >= 8);
    assert_eq!(not_ready(&a), 0);
}

#[test]
fn of_a_batch_the_one_without_a_credit_is_handed_back() {
    let mut deep = small();
    deep.send_depth = 64;
    let (mut a, mut b) = pair_with(small(), deep);
    let id = b.id();
    let leases: Vec<_> = (0..20_u32).map(|number| b.lease(&number.to_be_bytes())).collect();
    let mut batch = b.worker().channel(id).unwrap().batch();
    let mut refused = 0;
    for (number, lease) in (0_u32..).zip(leases) {
        match batch.push(Operation::Send, [lease], PostFlags::empty()) {
            Ok(_) => assert!(number < 16),
            Err(error) => {
                assert_eq!(error.kind, SendErrorKind::WouldBlock);
                let [lease] = error.item.unwrap();
                assert_eq!(lease.payload(), number.to_be_bytes());
                refused += 1;
            }
        }
    }
    assert_eq!((batch.staged(), refused), (16, 4));
    drop(batch);
    assert_eq!(credits(&mut b), 16, "a dropped batch takes none");
    assert_eq!(flood(&mut b, 0), 16);
    assert_eq!(drain(&mut a).len(), 16);
}

#[test]
fn what_an_earlier_channel_was_told_is_not_believed() {
    let fabric = Fabric::new();
    let [a, b] = crate::fabric::nodes(&fabric);
    let (mut server, mut client) = (crate::fabric::workers(&a), crate::fabric::workers(&b));
    let mut listener = Listener::bind(&a, &server, "127.0.0.1:0".parse().unwrap(), &small()).unwrap();
    let handle = *listener.handle();
    for round in 0..12_u32 {
        let (at, from) = std::thread::scope(|scope| {
            let connecting = scope.spawn(|| b.connect(&mut client, &handle, &small(), b.within(LONG)));
            let at = listener.accept(&a, &mut server, a.within(LONG)).unwrap();
            (at.channel, connecting.join().unwrap().unwrap().channel)
        });
        let (server, client) = (&mut server[0], &mut client[0]);
        // As many as there are receives, with any leftover value in the word.
        let mut sent = 0;
        while client
            .channel(from)
            .unwrap()
            .post_inline(Operation::Send, b"flood")
            .is_ok()
        {
            sent += 1;
            client.poll(|_, _| {}).unwrap();
        }
        assert_eq!(sent, 16);
        // Another number each time, so that it is left with another count.
        let mut heard = 0;
        while heard < 16 + round {
            server
                .poll(|_, event| {
                    if let Event::Received { .. } = event {
                        heard += 1;
                    }
                })
                .unwrap();
            if sent < 16 + round {
                let channel = client.channel(from).unwrap();
                sent += u32::from(channel.post_inline(Operation::Send, b"more").is_ok());
            }
            client.poll(|_, _| {}).unwrap();
        }
        assert_eq!(fabric.receivers_not_ready(), 0, "round {round}");
        client.close(from, b.within(LONG), |_, _| {}).unwrap();
        server.close(at, a.within(LONG), |_, _| {}).unwrap();
    }
}

#[test]
fn a_worker_has_as_many_channels_as_it_was_made_for() {
    let fabric = Fabric::new();
    let [a, b] = crate::fabric::nodes(&fabric);
    let mut server = crate::fabric::workers(&a);
    let mut listener = Listener::bind(&a, &server, "127.0.0.1:0".parse().unwrap(), &small()).unwrap();
    let handle = *listener.handle();
    let mut config = WorkerConfig::default();
    config.channels_max = 2;
    let mut workers = b.workers(&config).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| while listener.poll_accept(&a, &mut server).is_ok() {});
        let mut connect = || b.connect(&mut workers, &handle, &small(), b.within(LONG));
        assert!(connect().is_ok() && connect().is_ok());
        let error = connect().unwrap_err();
        assert!(matches!(error, ConnectError::TooManyChannels { .. }), "{error}");
    });
    assert_eq!(workers[0].channels().count(), 2);
}
