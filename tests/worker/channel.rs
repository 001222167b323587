//! Channels over the simulated fabric: messages, one-sided access, backpressure, failure, close.

use core::time::Duration;
use std::sync::Arc;

use crate::fabric::{LONG, pair, pair_on, pair_with, small};
use doorbell::provider::{ArenaConfig, Pages, PlacementConfig, Window as _};
use doorbell::worker::{CloseError, CloseProgress};
use doorbell::{
    ChannelState, ConnectError, Event, Listener, Notify, Operation, PostFlags, RemoteAccess, RemoteAddress,
    SendErrorKind, WcStatus, WindowConfig, Worker, WorkerConfig,
};
use doorbell_sim::{Fabric, Quirks};

/// Makes a message of an event, or says why not.
fn received(event: Event<'_, doorbell_sim::Host>) -> Option<(Vec<u8>, Option<u32>)> {
    match event {
        Event::Received { message, immediate } => Some((message.payload().to_vec(), immediate)),
        _ => None,
    }
}

#[test]
fn messages_arrive_as_they_were_sent() {
    let (mut a, mut b) = pair();
    for round in 0..100_usize {
        let bytes: Vec<u8> = (0..round * 41 % 8192).map(|at| (at * 7 + round) as u8).collect();
        let (from, to) = if round % 2 == 0 {
            (&mut a, &mut b)
        } else {
            (&mut b, &mut a)
        };
        let (lease, id) = (from.lease(&bytes), from.id());
        let ticket = from.worker().channel(id).unwrap().send_lease(lease).unwrap();
        assert_eq!(to.until(received), (bytes, None));
        assert_eq!(
            from.until(|event| matches!(event, Event::Done { through } if through == ticket).then_some(())),
            ()
        );
    }
}

#[test]
fn a_batch_gathers_and_rings_once() {
    let (mut a, mut b) = pair();
    let leases = [a.lease(b"head"), a.lease(b"er and "), a.lease(b"page")];
    let last = a.lease(b"!");
    let id = a.id();
    let mut batch = a.worker().channel(id).unwrap().batch();
    batch.push(Operation::Send, leases, PostFlags::empty()).unwrap();
    batch
        .push(Operation::SendWithImmediate(7), [last], PostFlags::empty())
        .unwrap();
    batch
        .push_inline(Operation::Send, b"inline", PostFlags::empty())
        .unwrap();
    assert_eq!(batch.ring().unwrap(), 3);
    assert_eq!(b.until(received), (b"header and page".to_vec(), None));
    assert_eq!(b.until(received), (b"!".to_vec(), Some(7)));
    assert_eq!(b.until(received), (b"inline".to_vec(), None));
}

#[test]
fn a_dropped_batch_sends_nothing_and_loses_nothing() {
    let (mut a, mut b) = pair();
    let before = leasable(&mut a);
    let (lease, id) = (a.lease(b"never"), a.id());
    let mut batch = a.worker().channel(id).unwrap().batch();
    batch.push(Operation::Send, [lease], PostFlags::empty()).unwrap();
    drop(batch);
    assert_eq!(leasable(&mut a), before);
    assert_eq!(b.worker().poll(|_, _| panic!("something came")).unwrap(), 0);
}

#[test]
fn one_sided_access_reaches_the_window_and_nothing_else() {
    let mut listening = small();
    listening.remote = RemoteAccess::ALL;
    let (mut a, mut b) = pair_with(listening, small());
    let window = a
        .worker()
        .window(&WindowConfig::new(4096, RemoteAccess::ALL))
        .unwrap();
    let remote = window.remote();
    let at = |offset, bytes| RemoteAddress::within(&remote, offset, bytes).unwrap();
    assert_eq!(RemoteAddress::within(&remote, 4090, 7), None);
    let id = b.id();

    let lease = b.lease(b"written");
    b.worker()
        .channel(id)
        .unwrap()
        .post(Operation::Write(at(8, 7)), lease, PostFlags::empty())
        .unwrap();
    b.until(|event| matches!(event, Event::Done { .. }).then_some(()));
    let mut bytes = [0; 9];
    window.copy_out(7, &mut bytes).unwrap();
    assert_eq!(&bytes, b"\0written\0");

    let mut lease = b.lease(b"");
    lease.set_len_bytes(7);
    b.worker()
        .channel(id)
        .unwrap()
        .post(Operation::Read(at(8, 7)), lease, PostFlags::empty())
        .unwrap();
    let read = b.until(|event| match event {
        Event::Fetched { data, .. } => Some(data.payload().to_vec()),
        _ => None,
    });
    assert_eq!(read, b"written");

    window.copy_in(64, &40_u64.to_ne_bytes()).unwrap();
    let add = Operation::FetchAndAdd {
        remote: at(64, 8),
        add: 2,
    };
    let swap = |compare, swap| Operation::CompareAndSwap {
        remote: at(64, 8),
        compare,
        swap,
    };
    for (operation, before) in [(add, 40), (swap(41, 1), 42), (swap(42, 9), 42), (add, 9)] {
        let lease = b.lease(b"");
        b.worker()
            .channel(id)
            .unwrap()
            .post(operation, lease, PostFlags::empty())
            .unwrap();
        let old = b.until(|event| match event {
            Event::Fetched { data, .. } => Some(u64::from_ne_bytes(data.payload().try_into().unwrap())),
            _ => None,
        });
        assert_eq!(old, before, "{operation:?}");
    }
    assert_eq!(window.load_u64(64).unwrap(), 11);
    assert!(window.load_u64(4096 - 7).is_err());

    let lease = b.lease(b"with a word");
    b.worker()
        .channel(id)
        .unwrap()
        .post(
            Operation::WriteWithImmediate(at(100, 11), 0xfeed),
            lease,
            PostFlags::empty(),
        )
        .unwrap();
    let told = a.until(|event| match event {
        Event::Written {
            payload_bytes,
            immediate,
        } => Some((payload_bytes, immediate)),
        _ => None,
    });
    assert_eq!(told, (11, 0xfeed));
}

#[test]
fn access_that_was_not_granted_fails_with_its_cause() {
    let mut listening = small();
    listening.remote = RemoteAccess::ALL;
    let (mut a, mut b) = pair_with(listening, small());
    let window = a
        .worker()
        .window(&WindowConfig::new(64, RemoteAccess::READ))
        .unwrap();
    // An address that says nothing of the right: with it the WRITE would be refused when it is posted.
    let target = RemoteAddress::new(window.remote().address(), window.remote().rkey());
    let (lease, id) = (b.lease(b"evil"), b.id());
    let behind = b.lease(b"behind");
    let channel = b.worker().channel(id).unwrap();
    let mut batch = channel.batch();
    let culprit = batch
        .push(Operation::Write(target), [lease], PostFlags::empty())
        .unwrap();
    batch.push(Operation::Send, [behind], PostFlags::empty()).unwrap();
    batch.ring().unwrap();
    let failed = b.until(|event| match event {
        Event::Failed { ticket, status } => Some((ticket, status)),
        _ => None,
    });
    assert_eq!(failed, (culprit, WcStatus::REM_ACCESS_ERR));
    b.until(|event| matches!(event, Event::Failed { status, .. } if status.is_flush()).then_some(()));
    let Some(ChannelState::Failed { cause }) = b.worker().state(id) else {
        panic!("it is open")
    };
    assert_eq!(
        (cause.status, cause.ticket),
        (WcStatus::REM_ACCESS_ERR, culprit),
        "the flushes do not hide it"
    );
    let lease = b.lease(b"late");
    let late = b.worker().channel(id).unwrap().send_lease(lease);
    assert!(
        late.is_ok() || late.is_err_and(|error| error.item.is_some()),
        "nothing is lost"
    );
}

#[test]
fn a_full_queue_hands_the_message_back() {
    let mut listening = small();
    listening.receive_depth = 1;
    let (mut a, mut b) = pair_with(listening, small());
    let id = b.id();
    let mut sent = 0_u32;
    let refused = loop {
        let lease = b.lease(&sent.to_be_bytes());
        match b.worker().channel(id).unwrap().send_lease(lease) {
            Ok(_) => sent += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(refused.kind, SendErrorKind::WouldBlock);
    assert_eq!(refused.item.as_ref().unwrap().payload(), sent.to_be_bytes());
    for expected in 0..sent {
        assert_eq!(a.until(received).0, expected.to_be_bytes());
    }
    b.until(|event| matches!(event, Event::Done { .. }).then_some(()));
    assert!(
        b.worker()
            .channel(id)
            .unwrap()
            .send_lease(refused.item.unwrap())
            .is_ok()
    );
    assert_eq!(a.until(received).0, sent.to_be_bytes());
}

#[test]
fn a_receiver_that_keeps_its_messages_starves_and_recovers() {
    let (mut a, mut b) = pair();
    let mut held = Vec::new();
    let all = leasable(&mut a) + 16;
    let id = b.id();
    let mut sent = 0_u32;
    let mut rounds_without = 0;
    while rounds_without < 100 {
        rounds_without += 1;
        let channel = b.worker().channel(id).unwrap();
        if channel.room() > 0 && channel.credits() > 0 {
            let lease = b.lease(&sent.to_be_bytes());
            b.worker().channel(id).unwrap().send_lease(lease).unwrap();
            sent += 1;
        }
        b.worker().poll(|_, _| {}).unwrap();
        a.worker()
            .poll(|_, event| {
                if let Event::Received { message, .. } = event {
                    held.push(message.keep());
                    rounds_without = 0;
                }
            })
            .unwrap();
    }
    assert_eq!(held.len(), all, "every piece of memory holds a message");
    let mut expected = 0_u32;
    for message in held.drain(..) {
        assert_eq!(message.payload(), expected.to_be_bytes());
        expected += 1;
        a.worker().release(message);
    }
    while expected < sent {
        assert_eq!(a.until(received).0, expected.to_be_bytes());
        expected += 1;
    }
}

#[test]
fn without_memory_for_all_receives_there_is_no_channel() {
    let fabric = Fabric::new();
    let [a, b] = crate::fabric::nodes(&fabric);
    let mut server = crate::fabric::workers(&a);
    let mut listener = Listener::bind(&a, &server, "127.0.0.1:0".parse().unwrap(), &small()).unwrap();
    let handle = *listener.handle();
    let accepting = std::thread::spawn(move || {
        listener.accept(&a, &mut server, a.within(LONG)).unwrap();
        (server, listener.failed())
    });
    let mut workers = crate::fabric::workers(&b);
    let mut held: Vec<_> = core::iter::from_fn(|| workers[0].lease()).collect();
    for _ in 0..15 {
        workers[0].release(held.pop().unwrap());
    }
    // The peer was promised sixteen.
    let error = b
        .connect(&mut workers, &handle, &small(), b.within(LONG))
        .unwrap_err();
    assert!(matches!(error, ConnectError::NoMemory), "{error}");
    workers[0].release(held.pop().unwrap());
    let at = b
        .connect(&mut workers, &handle, &small(), b.within(LONG))
        .unwrap();
    let (_server, failed) = accepting.join().unwrap();
    assert_eq!(failed, 1, "the peer was told");
    assert_eq!(
        workers[0].channel(at.channel).unwrap().receives_posted(),
        16,
        "what was posted in vain came back"
    );
}

#[test]
fn a_peer_that_goes_away_fails_what_was_posted_and_memory_comes_back() {
    let (a, mut b) = pair();
    let before = leasable(&mut b);
    drop(a);
    let (lease, id) = (b.lease(b"to nobody"), b.id());
    b.worker().channel(id).unwrap().send_lease(lease).unwrap();
    let status = b.until(|event| match event {
        Event::Failed { status, .. } => Some(status),
        _ => None,
    });
    assert_eq!(status, WcStatus::RETRY_EXC_ERR);
    let long = b.worker().within(LONG);
    b.worker().close(id, long, |_, _| {}).unwrap();
    assert_eq!(leasable(&mut b), before + 16, "its receives came back too");
    assert!(b.worker().channel(id).is_none());
    assert!(
        b.worker().close(id, long, |_, _| {}).is_err(),
        "it is closed already"
    );
}

#[test]
fn a_lease_comes_home_from_another_thread() {
    let (mut a, _b) = pair();
    let before = leasable(&mut a);
    let lease = a.lease(b"wanderer");
    std::thread::spawn(move || drop(lease)).join().unwrap();
    assert_eq!(leasable(&mut a), before);
}

#[test]
fn unsignaled_messages_are_done_with_the_next_that_is_told() {
    let mut config = small();
    config.unsignaled_max = 8;
    let (mut a, mut b) = pair_with(config, config);
    let id = b.id();
    let before = leasable(&mut b);
    for round in 0..1000_u32 {
        let lease = b.lease(&round.to_be_bytes());
        b.worker().channel(id).unwrap().send_lease(lease).unwrap();
        assert_eq!(a.until(received).0, round.to_be_bytes());
        b.worker().poll(|_, _| {}).unwrap();
        assert!(b.worker().channel(id).unwrap().in_flight() < 16);
    }
    assert!(leasable(&mut b) >= before - 16);
    let long = b.worker().within(LONG);
    b.worker().close(id, long, |_, _| {}).unwrap();
    assert_eq!(
        leasable(&mut b),
        before + 16,
        "what was never told of came back too"
    );
}

#[test]
fn closing_has_a_deadline() {
    // A device that tries without end where the peer's queue pair failed.
    let quirks = Quirks {
        failed_peers_are_waited_for: true,
        ..Quirks::IBA
    };
    let fabric = Fabric::builder().quirks(quirks).build();
    let (mut a, mut b) = pair_on(&fabric, small(), small(), Notify::Never);
    let (id, before) = (b.id(), leasable(&mut b));
    let theirs = a.id();
    a.worker().channel(theirs).unwrap().shut().unwrap();
    let lease = b.lease(b"unread");
    b.worker().channel(id).unwrap().send_lease(lease).unwrap();
    let soon = b.worker().within(Duration::from_millis(50));
    let closed = b.worker().close(id, soon, |_, _| {});
    assert_eq!(closed, Err(CloseError::TimedOut));
    assert!(b.worker().channels().next().is_none());
    assert_eq!(leasable(&mut b), before + 16, "all of it came home");
}

#[test]
fn closed_channels_give_their_completions_room_back() {
    const ROUNDS: u32 = 4;
    let fabric = Fabric::new();
    let [a, b] = crate::fabric::nodes(&fabric);
    let mut server = crate::fabric::workers(&a);
    let mut listener = Listener::bind(&a, &server, "127.0.0.1:0".parse().unwrap(), &small()).unwrap();
    let handle = *listener.handle();
    let accepting = std::thread::spawn(move || {
        for round in 0..=ROUNDS {
            let at = listener.accept(&a, &mut server, a.within(LONG)).unwrap();
            if round < ROUNDS {
                server[0].close(at.channel, a.within(LONG), |_, _| {}).unwrap();
            }
        }
        server
    });
    // Room for one channel and what announces its receives, and none to spare.
    let mut config = WorkerConfig::default();
    config.completion_depth = 17;
    let mut workers = b.workers(&config).unwrap();
    let connect = |workers: &mut Vec<_>| {
        b.connect(workers, &handle, &small(), b.within(LONG))
            .unwrap()
            .channel
    };
    for _ in 0..ROUNDS {
        let id = connect(&mut workers);
        workers[0].close(id, b.within(LONG), |_, _| {}).unwrap();
    }
    let id = connect(&mut workers);
    let _server = accepting.join().unwrap();
    let mut lease = workers[0].lease().unwrap();
    lease.fill(b"through").unwrap();
    workers[0].channel(id).unwrap().send_lease(lease).unwrap();
    // Which waits for its completion.
    assert_eq!(
        workers[0].close(id, b.within(LONG), |_, event| assert!(
            !matches!(event, Event::Failed { .. }),
            "{event:?}"
        )),
        Ok(())
    );
}

/// How many leases can be had now; all go back.
fn leasable(end: &mut crate::fabric::End) -> usize {
    let leases: Vec<_> = core::iter::from_fn(|| end.worker().lease()).collect();
    let count = leases.len();
    leases.into_iter().for_each(|lease| end.worker().release(lease));
    count
}

#[test]
fn closing_by_polling_waits_for_nothing() {
    let (_a, mut b) = pair();
    let (id, before) = (b.id(), leasable(&mut b));
    assert_eq!(b.worker().close_progress(id), CloseProgress::Unknown);
    let lease = b.lease(b"the last");
    let ticket = b.worker().channel(id).unwrap().send_lease(lease).unwrap();
    let long = b.worker().within(LONG);
    b.worker().begin_close(id, long).unwrap();
    assert_eq!(b.worker().close_progress(id), CloseProgress::UnderWay);
    assert_eq!(
        b.worker().begin_close(id, long),
        Err(CloseError::Unknown),
        "it is being closed already"
    );
    let (mut done, mut polls) = (None, 0);
    while b.worker().close_progress(id) == CloseProgress::UnderWay {
        polls += 1;
        assert!(polls < 100, "nothing here takes time");
        b.worker()
            .poll_tending(|_, event| match event {
                Event::Done { through } => done = Some(through),
                other => panic!("{other:?}"),
            })
            .unwrap();
    }
    assert_eq!(done, Some(ticket), "what was posted before is told");
    assert_eq!(b.worker().close_progress(id), CloseProgress::Closed(Ok(())));
    assert!(b.worker().channel(id).is_none());
    assert_eq!(leasable(&mut b), before + 16, "its receives came home");
}

#[test]
fn what_went_and_came_is_counted() {
    let (mut a, mut b) = pair();
    let id = b.id();
    let (sent, received_by) = (
        Arc::clone(b.worker().statistics()),
        Arc::clone(a.worker().statistics()),
    );
    let (before, before_there) = (sent.snapshot(), received_by.snapshot());
    let leases = [b.lease(b"four"), b.lease(b"and five!")];
    let [one, two] = leases;
    let mut batch = b.worker().channel(id).unwrap().batch();
    batch.push(Operation::Send, [one], PostFlags::empty()).unwrap();
    batch.push(Operation::Send, [two], PostFlags::empty()).unwrap();
    batch
        .push_inline(Operation::Send, b"three", PostFlags::empty())
        .unwrap();
    batch.ring().unwrap();
    for _ in 0..3 {
        a.until(received);
    }
    b.until(|event| matches!(event, Event::Done { .. }).then_some(()));
    // From another thread than the one that counts.
    let since = std::thread::spawn(move || sent.snapshot().since(&before))
        .join()
        .unwrap();
    assert_eq!((since.doorbells, since.requests, since.bytes), (1, 3, 18));
    assert_eq!((since.inline, since.completions, since.rejected), (1, 1, 0));
    assert_eq!(since.batches[2], 1, "three or four at a time");
    let there = received_by.snapshot().since(&before_there);
    assert_eq!((there.received, there.received_bytes), (3, 18));
    // Refusals for want of a credit are counted too.
    let mut refused = 0_u64;
    while refused == 0 {
        let channel = b.worker().channel(id).unwrap();
        match channel.post_inline(Operation::Send, b"more") {
            Ok(_) => b.worker().poll(|_, _| {}).map(drop).unwrap(),
            Err(kind) => {
                assert_eq!(kind, SendErrorKind::WouldBlock);
                refused += 1;
            }
        }
    }
    assert_eq!(b.worker().statistics().would_block.value(), refused);
}

#[test]
fn placement_is_told_and_what_is_required_of_it_is_kept() {
    let fabric = Fabric::new();
    let node = crate::fabric::node(&fabric, "a", vec![crate::fabric::port("simA", "127.0.0.1/24")]);
    let mut config = WorkerConfig::default();
    config.slots = 4;
    let worker = node.worker("simA", &config).unwrap();
    let placement = worker.placement();
    assert_eq!(placement.asked, PlacementConfig::default());
    assert_eq!(placement.bytes, 4 * 4096);
    // A simulation has none of it, and reports that.
    assert_eq!(placement.shortfalls().count(), 3, "{placement}");
    config.placement.pages = Pages::Huge2M;
    config.placement.pages_required = true;
    let error = node.worker("simA", &config).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot provide the required huge pages of 2 MiB: there is no such thing here"
    );
}

#[test]
fn a_request_gathers_from_memory_of_two_sizes() {
    let (mut a, mut b) = pair();
    let id = b.id();
    let mut headers = b.worker().arena(&ArenaConfig::new(2, 64)).unwrap();
    assert_eq!((headers.slots(), headers.slot_bytes()), (2, 64));
    assert_eq!(headers.placement().bytes, 128);
    for round in 0..8 {
        let mut header = headers.lease().expect("it comes home when its request is done");
        assert_eq!(header.len_bytes(), 0);
        header.fill(b"header ").unwrap();
        let page = b.lease(b"page");
        let mut batch = b.worker().channel(id).unwrap().batch();
        batch
            .push(Operation::Send, [header, page], PostFlags::SIGNALED)
            .unwrap();
        batch.ring().unwrap();
        assert_eq!(a.until(received).0, b"header page", "round {round}");
        b.until(|event| matches!(event, Event::Done { .. }).then_some(()));
    }
    let [one, other] = [headers.lease().unwrap(), headers.lease().unwrap()];
    assert_ne!(one.index(), other.index());
    assert!(headers.lease().is_none(), "backpressure");
    headers.release(one);
    assert!(headers.lease().is_some());
    // The memory of a lease outlives what it is from.
    drop(headers);
    assert_eq!(other.capacity_bytes(), 64);
}

#[test]
fn what_was_taken_of_a_refused_doorbell_is_told_without_another_request() {
    let (mut a, mut b) = pair();
    let id = a.id();
    let fabric = a.node.provider().fabric().clone();
    let home = |worker: &mut Worker<doorbell_sim::Host>| {
        let leases: Vec<_> = core::iter::from_fn(|| worker.lease()).collect();
        leases.len()
    };
    let all = home(a.worker());
    let mut parts = Vec::new();
    for round in 0..24 {
        let before = a.worker().statistics().snapshot();
        fabric.follow(&"fail 1st post of a with 12".parse().unwrap());
        let leases: [_; 4] = core::array::from_fn(|_| a.lease(b"part"));
        let mut batch = a.worker().channel(id).unwrap().batch();
        let mut tickets = Vec::new();
        for lease in leases {
            tickets.push(batch.push(Operation::Send, [lease], PostFlags::empty()).unwrap());
        }
        let error = batch.ring().unwrap_err();
        let part = error.posted as usize;
        let is_more_refused = round % 2 == 1 && part > 0;
        if is_more_refused {
            // The announcement that would report it is refused, too.
            fabric.follow(&"fail 1st post of a with 12".parse().unwrap());
        }
        let mut refused = 0;
        if let Some(last) = part.checked_sub(1).and_then(|last| tickets.get(last)) {
            a.until(|event| {
                refused += usize::from(matches!(event, Event::AnnouncementRefused { .. }));
                matches!(event, Event::Done { through } if through == *last).then_some(())
            });
        }
        assert_eq!(refused, usize::from(is_more_refused));
        assert_eq!(home(a.worker()), all);
        a.worker().poll(|_, event| panic!("{event:?}")).unwrap();
        let since = a.worker().statistics().snapshot().since(&before);
        assert_eq!(since.announcements, u64::from(part > 0));
        assert_eq!(since.refused, 1 + u64::from(is_more_refused));
        parts.push(part);
        for _ in 0..part {
            assert_eq!(b.until(received), (b"part".to_vec(), None));
        }
    }
    assert!(
        parts.contains(&0) && parts.iter().any(|part| *part > 1),
        "{parts:?}"
    );
}
