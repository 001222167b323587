//! Handshakes beside the threads that accept, in the time of a simulated fabric. One that is silent, slow, dying or
//! hostile costs no other a nanosecond. Limits are reported, and any end leaves nothing behind.

mod flood;
mod halfway;
mod hub;
mod ticks;

use core::net::IpAddr;
use core::sync::atomic::Ordering;
use core::time::Duration;

use crate::stranger::Stranger;
use doorbell::connect::HandshakeLimits;
use doorbell::provider::Network as _;
use doorbell::wire::RejectReason;
use doorbell::worker::SharedReceivesConfig;
use doorbell::{ConnectError, WorkerConfig};
use hub::{Guest, Hub, LATENCY, SLOTS, STAGE, at, config, is_undisturbed, rabble, rejection};

#[test]
fn with_nobody_else_it_takes_four_round_trips() {
    let mut hub = Hub::new(&HandshakeLimits::default());
    let mut guest = Guest::new(&hub, 1);
    let (outcome, took) = hub.connect(&mut guest);
    outcome.unwrap();
    assert!(is_undisturbed(took), "{took:?}");
    hub.run(LATENCY);
    assert_eq!(hub.accepted.len(), 1);
    assert_eq!((hub.counts().begun, hub.counts().connected), (1, 1));
    hub.end(vec![guest]);
}

#[test]
fn hundreds_of_others_cost_nobody_time() {
    for shared in [None, Some(SharedReceivesConfig::default())] {
        let shared = shared.map(|mut shared: SharedReceivesConfig| {
            shared.depth = 128;
            shared
        });
        let mut hub = Hub::with(&HandshakeLimits::default(), shared);
        // From each host, two of six are refused or gone.
        let others = rabble(&mut hub, 10, 36);
        hub.run(10 * LATENCY);
        let counts = hub.counts();
        assert!(counts.begun == 360 && counts.failed == 120, "{counts:?}");
        let mut guests = Vec::new();
        for number in 1..=4 {
            let mut guest = Guest::new(&hub, number);
            let (outcome, took) = hub.connect(&mut guest);
            outcome.unwrap();
            assert!(is_undisturbed(took), "{took:?}");
            guests.push(guest);
        }
        // Silent peers have their time, and no more.
        let waiting = hub.handshakes.as_ref().unwrap().under_way();
        assert_eq!(waiting, 240);
        hub.run(STAGE);
        assert_eq!(hub.handshakes.as_ref().unwrap().under_way(), 0);
        let counts = hub.counts();
        assert_eq!((counts.connected, hub.accepted.len()), (4, 4));
        drop(others);
        hub.end(guests);
    }
}

#[test]
fn who_has_all_places_makes_room_for_who_has_none() {
    let mut limits = HandshakeLimits::default();
    (limits.under_way, limits.per_address) = (32, 32);
    let mut hub = Hub::new(&limits);
    let host = hub.guest(200);
    let silent: Vec<_> = (0..48).map(|_| host.network().connect(at()).unwrap()).collect();
    hub.run(4 * LATENCY);
    assert_eq!(hub.handshakes.as_ref().unwrap().under_way(), 32);
    assert_eq!(hub.counts().refused, 16);
    let mut guest = Guest::new(&hub, 1);
    let (outcome, took) = hub.connect(&mut guest);
    outcome.unwrap();
    assert!(is_undisturbed(took), "{took:?}");
    assert_eq!(hub.counts().refused, 17, "one made room");
    drop(silent);
    hub.end(vec![guest]);
}

#[test]
fn one_too_many_of_an_address_is_told_so_at_once_and_when_to_come_again() {
    let mut limits = HandshakeLimits::default();
    limits.per_address = 2;
    let mut hub = Hub::new(&limits);
    let mut guest = Guest::new(&hub, 1);
    // Each with a queue pair, and never ready: so neither makes room.
    let mut held = [0, 1].map(|number| {
        let stream = guest.node.network().connect(at()).unwrap();
        (stream, Stranger::new([10, 1, 0, 1].into(), number))
    });
    for _ in 0..8 {
        hub.run(LATENCY);
        for (stream, stranger) in &mut held {
            stranger.connect(stream);
        }
    }
    let (outcome, took) = hub.connect(&mut guest);
    let (reason, retry_after_ms) = rejection(outcome);
    assert_eq!(reason, RejectReason::BUSY);
    // They have their time until then.
    assert!((2_900..=3_000).contains(&retry_after_ms), "{retry_after_ms}");
    assert!(took < 5 * LATENCY, "{took:?}");
    let mut other = Guest::new(&hub, 2);
    hub.connect(&mut other).0.unwrap();
    hub.run(Duration::from_millis(retry_after_ms.into()));
    hub.connect(&mut guest).0.unwrap();
    drop(held);
    hub.end(vec![guest, other]);
}

#[test]
fn one_address_has_no_more_channels_than_it_may_and_has_them_again_once_they_are_closed() {
    let mut own = WorkerConfig::default();
    (own.slots, own.channels_per_address) = (SLOTS, 2);
    let mut hub = Hub::on(&HandshakeLimits::default(), &own);
    let [mut guest, mut other] = [1, 2].map(|number| Guest::new(&hub, number));
    for _ in 0..2 {
        hub.connect(&mut guest).0.unwrap();
    }
    let (outcome, took) = hub.connect(&mut guest);
    assert_eq!(rejection(outcome).0, RejectReason::BUSY);
    assert!(took <= 6 * LATENCY + LATENCY / 2, "{took:?}");
    let why = hub.handshakes.as_ref().unwrap().take_failure();
    let from = [10, 1, 0, 1];
    assert!(
        matches!(why, Some(ConnectError::TooManyChannelsFrom { address, .. }) if address == IpAddr::from(from)),
        "{why:?}"
    );
    hub.connect(&mut other).0.unwrap();
    let now = hub.worker.within(Duration::ZERO);
    let first = hub.accepted.remove(0);
    hub.worker.begin_close(first, now).unwrap();
    hub.run(LATENCY);
    hub.connect(&mut guest).0.unwrap();
    hub.end(vec![guest, other]);
}

#[test]
fn where_nobody_accepts_no_more_are_told_yes_than_there_is_room_for() {
    let mut limits = HandshakeLimits::default();
    limits.unaccepted = 2;
    let mut hub = Hub::new(&limits);
    // The Worker's thread has no time: no place is granted, and peers have theirs.
    hub.accepts = false;
    let mut guests: Vec<_> = (1..=3).map(|number| Guest::new(&hub, number)).collect();
    let mut waiting: Vec<_> = guests.iter().take(2).map(|guest| guest.begin(&hub)).collect();
    for _ in 0..10 {
        hub.run(LATENCY);
        for (connecting, guest) in waiting.iter_mut().zip(&mut guests) {
            assert!(guest.poll(connecting).is_none());
        }
    }
    let (outcome, took) = hub.connect(&mut guests[2]);
    assert_eq!(rejection(outcome).0, RejectReason::BUSY);
    assert!(took <= 6 * LATENCY + LATENCY / 2, "{took:?}");
    hub.run(STAGE + 10 * LATENCY);
    for (connecting, guest) in waiting.iter_mut().zip(&mut guests) {
        let outcome = guest.poll(connecting).unwrap();
        assert!(outcome.is_err(), "{outcome:?}");
    }
    // It has some again. The memory asked for meanwhile is taken back, so all of it is there.
    hub.accepts = true;
    for guest in &mut guests {
        hub.connect(guest).0.unwrap();
    }
    hub.run(LATENCY);
    assert_eq!(hub.accepted.len(), 3);
    drop(waiting);
    hub.end(guests);
}

#[test]
fn a_peer_that_goes_at_any_moment_leaves_nothing() {
    let mut shared = SharedReceivesConfig::default();
    shared.depth = 64;
    for shared in [None, Some(shared)] {
        for half_latencies in 0..20 {
            let mut hub = Hub::with(&HandshakeLimits::default(), shared);
            let mut guest = Guest::new(&hub, 1);
            let mut connecting = guest.begin(&hub);
            let until = hub.fabric.now().after(half_latencies * LATENCY / 2);
            while hub.fabric.now() < until {
                hub.poll();
                if guest.poll(&mut connecting).is_some() {
                    break;
                }
                hub.step(until);
            }
            drop(connecting);
            drop(guest);
            hub.run(2 * STAGE);
            let counts = hub.counts();
            assert_eq!(counts.begun, counts.connected + counts.failed, "{half_latencies}");
            assert_eq!(counts.connected, hub.accepted.len() as u64);
            // All shares of shared receives are free again, except those of accepted peers.
            let mut guests = Vec::new();
            for number in 2..6 - hub.accepted.len() as u8 {
                let mut guest = Guest::new(&hub, number);
                hub.connect(&mut guest).0.unwrap();
                guests.push(guest);
            }
            hub.end(guests);
        }
    }
}

#[test]
fn ended_at_any_moment_it_leaves_nothing_and_keeps_its_word() {
    for half_latencies in 0..20 {
        let mut hub = Hub::new(&HandshakeLimits::default());
        hub.accepts = half_latencies % 2 == 0;
        let mut guest = Guest::new(&hub, 1);
        let others = rabble(&mut hub, 3, 8);
        let mut connecting = guest.begin(&hub);
        let (began, mut outcome) = (hub.fabric.now(), None);
        let stop_at = began.after(half_latencies * LATENCY / 2);
        while outcome.is_none() && hub.fabric.now() < began.after(STAGE) {
            hub.poll();
            outcome = guest.poll(&mut connecting);
            if hub.fabric.now() >= stop_at {
                drop(hub.handshakes.take());
            }
            hub.step(stop_at.max(hub.fabric.now().after(LATENCY / 2)));
        }
        // Told at once, one way or the other.
        let outcome = outcome.expect("an outcome");
        let took = hub.fabric.now().to_ns() - began.to_ns();
        let by = Duration::from_nanos(stop_at.to_ns() - began.to_ns()).max(8 * LATENCY) + 3 * LATENCY;
        assert!(Duration::from_nanos(took) <= by, "{took}");
        // A peer that has a connection is accepted, though it is over.
        hub.accepts = true;
        hub.poll();
        assert_eq!(
            usize::from(outcome.is_ok()),
            hub.accepted.len(),
            "{half_latencies}: {outcome:?}"
        );
        let mut acceptances = hub.acceptances.take().unwrap();
        if hub.handshakes.is_none() {
            let none = acceptances.poll_accept(&mut hub.worker);
            assert!(matches!(none, Err(ConnectError::ListenerClosed)), "{none:?}");
        }
        drop((connecting, others, acceptances));
        hub.end(vec![guest]);
    }
}

#[test]
fn what_was_asked_for_or_granted_is_taken_back_when_the_peer_goes() {
    for is_granted in [false, true] {
        let (mut hub, guest, connecting) = Hub::with_guest_that_waits();
        if is_granted {
            let none = hub.acceptances.as_mut().unwrap().poll_accept(&mut hub.worker);
            assert!(matches!(none, Ok(None)), "{none:?}");
        }
        let leases: Vec<_> = core::iter::from_fn(|| hub.worker.lease()).collect();
        let granted = if is_granted { config().receive_depth } else { 0 };
        assert_eq!(leases.len(), (SLOTS - granted) as usize);
        drop((leases, connecting, guest));
        hub.run(4 * LATENCY);
        assert_eq!(hub.counts().failed, 1);
        hub.accepts = true;
        hub.run(LATENCY);
        hub.is_clean();
        hub.end(Vec::new());
    }
}

#[test]
fn with_nobody_to_accept_any_more_nobody_is_kept() {
    for half_latencies in 0..20 {
        let mut hub = Hub::new(&HandshakeLimits::default());
        let mut guest = Guest::new(&hub, 1);
        let mut connecting = guest.begin(&hub);
        let began = hub.fabric.now();
        let gone_at = began.after(half_latencies * LATENCY / 2);
        let mut outcome = None;
        while hub.fabric.now() < began.after(STAGE) {
            hub.poll();
            if outcome.is_none() {
                outcome = guest.poll(&mut connecting);
            }
            if hub.fabric.now() >= gone_at {
                drop(hub.acceptances.take());
            }
            hub.step(hub.fabric.now().after(LATENCY / 2));
        }
        assert!(outcome.is_some(), "{half_latencies}");
        drop((connecting, guest));
        for channel in core::mem::take(&mut hub.accepted) {
            hub.worker.begin_close(channel, hub.node.within(LATENCY)).unwrap();
        }
        for _ in 0..100 {
            hub.run(10 * LATENCY);
        }
        // The handshakes go on, and hold nothing.
        hub.is_clean();
        let mut late = Guest::new(&hub, 2);
        let refused = hub.connect(&mut late).0;
        assert_eq!(rejection(refused).0, RejectReason::CLOSING, "{half_latencies}");
        hub.end(vec![late]);
    }
}

#[test]
fn without_descriptors_the_port_rests_and_handshakes_go_on() {
    let mut hub = Hub::new(&HandshakeLimits::default());
    let mut guests: Vec<_> = (1..=2).map(|number| Guest::new(&hub, number)).collect();
    let mut first = guests[0].begin(&hub);
    hub.run(4 * LATENCY);
    guests[0].poll(&mut first);
    assert_eq!(hub.counts().begun, 1);
    // Six failures: with rests of 10, 20, 40, 80, 160 and 320 ms between.
    hub.failures.store(6, Ordering::Relaxed);
    let began = hub.fabric.now();
    let mut second = guests[1].begin(&hub);
    let (mut first_took, mut second_took) = (None, None);
    while second_took.is_none() {
        hub.poll();
        let now = Duration::from_nanos(hub.fabric.now().to_ns() - began.to_ns());
        if first_took.is_none() {
            let outcome = guests[0].poll(&mut first);
            first_took = outcome.map(|outcome| outcome.map(|_| now).unwrap());
        }
        let outcome = guests[1].poll(&mut second);
        second_took = outcome.map(|outcome| outcome.map(|_| now).unwrap());
        hub.step(hub.fabric.now().after(LATENCY));
    }
    assert!(first_took.unwrap() < 10 * LATENCY, "{first_took:?}");
    let second_took = second_took.unwrap();
    let rests = Duration::from_millis(630);
    assert!(
        second_took > rests && second_took < rests + 20 * LATENCY,
        "{second_took:?}"
    );
    assert_eq!(hub.counts().port_failures, 6);
    let told = hub.handshakes.as_ref().unwrap().take_failure();
    assert!(matches!(told, Some(ConnectError::Tcp(_))), "{told:?}");
    hub.run(LATENCY);
    assert_eq!(hub.accepted.len(), 2);
    drop((first, second));
    hub.end(core::mem::take(&mut guests));
}

#[test]
fn a_port_that_fails_rests_for_a_second_at_most_and_briefly_again_once_it_took_a_peer_in() {
    let mut hub = Hub::new(&HandshakeLimits::default());
    let host = hub.guest(200);
    for round in 1..=2 {
        hub.failures.store(12, Ordering::Relaxed);
        let began = hub.fabric.now();
        let silent = host.network().connect(at()).unwrap();
        // 10 ms, and twice as long up to 640 ms; then five of a second.
        let rests = Duration::from_millis(1270 + 5 * 1000);
        hub.poll();
        while hub.counts().begun < round && hub.fabric.now() < began.after(2 * rests) {
            hub.step(hub.fabric.now().after(STAGE));
            hub.poll();
        }
        assert_eq!(hub.counts().begun, round);
        let took = Duration::from_nanos(hub.fabric.now().to_ns() - began.to_ns());
        assert!((rests..rests + 20 * LATENCY).contains(&took), "{took:?}");
        drop(silent);
    }
}

#[test]
fn a_poll_takes_in_a_bounded_number_and_the_next_is_due_at_once() {
    const PEERS: usize = 50;
    let mut hub = Hub::new(&HandshakeLimits::default());
    let host = hub.guest(200);
    let silent: Vec<_> = (0..PEERS)
        .map(|_| host.network().connect(at()).unwrap())
        .collect();
    hub.fabric.run_for(4 * LATENCY);
    let now = hub.fabric.now();
    let handshakes = hub.handshakes.as_mut().unwrap();
    handshakes.poll();
    let first = handshakes.under_way();
    assert!(first > 0 && first < PEERS, "{first}");
    for _ in 0..PEERS {
        if handshakes.deadline().is_some_and(|next| next.has_passed(now)) {
            handshakes.poll();
        }
    }
    assert_eq!(handshakes.under_way(), PEERS);
    let next = handshakes.deadline();
    assert!(next.is_some_and(|next| !next.has_passed(now)), "{next:?}");
    drop(silent);
}

#[test]
fn another_workers_acceptances_are_refused() {
    let mut hub = Hub::new(&HandshakeLimits::default());
    let mut own = WorkerConfig::default();
    own.slots = SLOTS;
    let mut other = hub.node.workers(&own).unwrap();
    hub.accepts = false;
    let guest = Guest::new(&hub, 1);
    let mut connecting = guest.begin(&hub);
    let Guest { node, mut workers } = guest;
    for _ in 0..8 {
        connecting.poll(&node, &mut workers);
        hub.run(LATENCY);
    }
    let refused = hub.acceptances.as_mut().unwrap().poll_accept(&mut other[0]);
    assert!(matches!(refused, Err(ConnectError::OtherWorkers)), "{refused:?}");
    drop(connecting);
    hub.end(vec![Guest { node, workers }]);
}

#[test]
fn calls_that_cannot_work_say_what_to_call() {
    let mut hub = Hub::new(&HandshakeLimits::default());
    let deadline = hub.node.within(LATENCY);
    let blocking = hub
        .acceptances
        .as_mut()
        .unwrap()
        .accept(&mut hub.worker, deadline);
    let told = blocking.unwrap_err().to_string();
    assert!(told.contains("these are polled: call poll_accept"), "{told}");
    let nowhere = "10.0.0.9:0".parse().unwrap();
    let told = hub.node.begin_ask(nowhere, deadline).unwrap_err().to_string();
    assert_eq!(
        told,
        "the address 10.0.0.9:0 has port 0: give the port where the peer listens"
    );
    hub.end(vec![]);
}
