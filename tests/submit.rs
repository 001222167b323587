//! Requests from other threads into a Worker, over the simulated fabric.

mod fabric;

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use doorbell::{
    ArenaConfig, ChannelConfig, ChannelId, CloseProgress, Event, Lease, Listener, Node, Notify, Operation,
    PostFlags, RemoteAccess, RemoteAddress, SubmissionError, SubmitErrorKind, Submitter, SubmitterConfig,
    Wait, WcStatus, Window as _, WindowConfig, Woken, Worker, within,
};
use doorbell_sim::{Fabric, Host};
use fabric::{End, SOON, node, pair, pair_notified, pair_on, pair_with, port, small, workers};

/// A Worker with several channels, each to an end of its own.
struct Hub {
    node: Node<Host, Host>,
    worker: Worker<Host>,
    ids: Vec<ChannelId>,
    ends: Vec<End>,
    listener: Listener<Host, Host>,
    config: ChannelConfig,
}

fn hub(ends: usize, config: ChannelConfig) -> Hub {
    let fabric = Fabric::new();
    let server = node(&fabric, "hub", vec![port("simH", "127.0.0.1/24")]);
    let mut server_workers = workers(&server);
    let address = "127.0.0.1:0".parse().unwrap();
    let mut hub = Hub {
        listener: Listener::bind(&server, &server_workers, address, &config).unwrap(),
        node: server,
        worker: server_workers.swap_remove(0),
        ids: Vec::new(),
        ends: Vec::new(),
        config,
    };
    (0..ends).for_each(|_| hub.connect());
    hub
}

impl Hub {
    /// Connects one more end.
    fn connect(&mut self) {
        let index = self.ends.len();
        let name = format!("end{index}");
        let at = format!("127.0.0.{}/24", index + 2);
        let client = node(self.node.provider().fabric(), &name, vec![port(&name, &at)]);
        let handle = self.listener.handle().to_string().parse().unwrap();
        let config = self.config;
        let connecting = thread::spawn(move || {
            let mut workers = workers(&client);
            let at = client
                .connect(&mut workers, &handle, &config, within(SOON))
                .unwrap();
            End {
                node: client,
                workers,
                at,
                events: VecDeque::new(),
            }
        });
        let workers = core::slice::from_mut(&mut self.worker);
        let at = self.listener.accept(&self.node, workers, within(SOON)).unwrap();
        self.ids.push(at.channel);
        self.ends.push(connecting.join().unwrap());
    }

    fn poll(&mut self) {
        self.worker
            .poll(|_, event| assert!(matches!(event, Event::Done { .. }), "{event:?}"))
            .unwrap();
    }
}

const NOTHING: RemoteAccess = RemoteAccess {
    write: false,
    read: false,
    atomic: false,
};

/// Of a channel whose own requests are not known done before many others are.
fn silent() -> ChannelConfig {
    let mut config = small();
    config.send_depth = 64;
    config.unsignaled_max = 1000;
    config
}

fn config(slots: u32, depth: u32) -> SubmitterConfig {
    let mut config = SubmitterConfig::default();
    config.slots = slots;
    config.slot_bytes = 128;
    config.depth = depth;
    config
}

fn lease(submitter: &mut Submitter<Host>, bytes: &[u8]) -> Lease<Host> {
    let mut lease = submitter.lease().expect("memory");
    lease.fill(bytes).unwrap();
    lease
}

fn submit(submitter: &mut Submitter<Host>, to: ChannelId, number: u32) {
    let lease = lease(submitter, &number.to_be_bytes());
    submitter.send(to, lease).unwrap();
}

/// The numbers that are there now.
fn numbers(end: &mut End) -> Vec<u32> {
    let mut numbers = Vec::new();
    let mut quiet = 0;
    while quiet < 4 {
        quiet += 1;
        let polled = end.worker().poll(|mut turn, event| match event {
            Event::Received { message, .. } => {
                numbers.push(u32::from_be_bytes(message.payload().try_into().unwrap()));
                turn.release(message);
            }
            Event::Done { .. } => {}
            other => panic!("{other:?}"),
        });
        if polled.unwrap() > 0 {
            quiet = 0;
        }
    }
    numbers
}

/// How much memory of a submitter can be leased now.
fn home(submitter: &mut Submitter<Host>) -> u32 {
    let all: Vec<_> = core::iter::from_fn(|| submitter.lease()).collect();
    let count = u32::try_from(all.len()).unwrap();
    all.into_iter().for_each(|lease| submitter.release(lease));
    count
}

/// Asks until it is so.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < SOON, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn what_is_submitted_goes_out_in_order_as_one_doorbell() {
    let (mut a, mut b) = pair();
    let to = a.id();
    let mut submitter = a.worker().submitter(&config(16, 16)).unwrap();
    for number in 0..10 {
        submit(&mut submitter, to, number);
    }
    let before = a.worker().statistics().snapshot();
    numbers(&mut a);
    let since = a.worker().statistics().snapshot().since(&before);
    assert_eq!((since.doorbells, since.requests), (1, 10));
    assert_eq!(numbers(&mut b), (0..10).collect::<Vec<_>>());
    numbers(&mut a);
    assert_eq!(home(&mut submitter), 16, "what was sent is home");
    assert!(submitter.failure().is_none());
}

#[test]
fn every_operation_arrives_as_it_was_submitted() {
    let mut open = small();
    open.remote = RemoteAccess {
        write: true,
        ..NOTHING
    };
    let (mut a, mut b) = pair_with(open, open);
    let to = a.id();
    let window = b.worker().window(&WindowConfig::new(64, open.remote)).unwrap();
    let at = |offset| RemoteAddress::within(&window.remote(), offset, 4).unwrap();
    let mut submitter = a.worker().submitter(&config(8, 8)).unwrap();
    let none = PostFlags::empty();
    for (operation, bytes) in [
        (Operation::Write(at(4)), b"writ"),
        (Operation::WriteWithImmediate(at(8), 77), b"told"),
        (Operation::SendWithImmediate(u32::MAX), b"word"),
        (Operation::Send, b"last"),
    ] {
        let lease = lease(&mut submitter, bytes);
        submitter.submit(to, operation, lease, none).unwrap();
    }
    numbers(&mut a);
    let mut seen = Vec::new();
    until("four arrive", || {
        let polled = b.worker().poll(|_, event| {
            seen.push(match event {
                Event::Written {
                    payload_bytes,
                    immediate,
                } => (payload_bytes, Some(immediate), vec![]),
                Event::Received { message, immediate } => (4, immediate, message.payload().to_vec()),
                other => panic!("{other:?}"),
            });
        });
        polled.unwrap();
        seen.len() == 3
    });
    assert_eq!(
        seen,
        [
            (4, Some(77), vec![]),
            (4, Some(u32::MAX), b"word".to_vec()),
            (4, None, b"last".to_vec())
        ]
    );
    let mut bytes = [0; 12];
    window.copy_out(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"\0\0\0\0writtold");
}

#[test]
fn what_cannot_be_submitted_is_handed_back() {
    let (mut a, mut b) = pair();
    let to = a.id();
    let window = b.worker().window(&WindowConfig::new(64, NOTHING)).unwrap();
    let remote = RemoteAddress::within(&window.remote(), 0, 8).unwrap();
    let mut submitter = a.worker().submitter(&config(8, 4)).unwrap();
    let refused = {
        let lease = lease(&mut submitter, b"read");
        submitter.submit(to, Operation::Read(remote), lease, PostFlags::empty())
    };
    let refused = refused.unwrap_err();
    assert_eq!(refused.kind, SubmitErrorKind::BringsDataBack);
    assert_eq!(refused.lease.unwrap().payload(), b"read");
    let mut other = a.worker().submitter(&config(8, 4)).unwrap();
    for foreign in [a.lease(b"Worker's"), lease(&mut other, b"other's")] {
        let bytes = foreign.payload().to_vec();
        let refused = submitter.send(to, foreign).unwrap_err();
        assert_eq!(refused.kind, SubmitErrorKind::OtherMemory);
        assert_eq!(refused.lease.unwrap().payload(), bytes);
    }
    // The ring holds four.
    for number in 0..4 {
        submit(&mut submitter, to, number);
    }
    let refused = {
        let lease = lease(&mut submitter, b"five");
        submitter.send(to, lease).unwrap_err()
    };
    assert_eq!(refused.kind, SubmitErrorKind::WouldBlock);
    assert_eq!(refused.lease.unwrap().payload(), b"five");
    numbers(&mut a);
    submit(&mut submitter, to, 4);
    numbers(&mut a);
    assert_eq!(numbers(&mut b), [0, 1, 2, 3, 4]);
    assert_eq!(home(&mut submitter), 8);
    for (slots, depth) in [(0, 4), (u32::MAX, 4), (4, u32::MAX)] {
        assert!(
            a.worker().submitter(&config(slots, depth)).is_err(),
            "{slots} {depth}"
        );
    }
    assert!(a.worker().submitters(0, &config(4, 4)).is_err());
    assert!(a.worker().submitters(1025, &config(4, 4)).is_err());
}

#[test]
fn a_channel_without_credits_holds_up_no_other() {
    let mut deep = small();
    deep.send_depth = 64;
    let mut hub = hub(2, deep);
    let [blocked, open] = hub.ids[..] else { panic!() };
    // As many as all its memory, through a ring that is far smaller.
    let mut submitter = hub.worker.submitter(&config(128, 8)).unwrap();
    for number in 0..64 {
        submit(&mut submitter, blocked, number);
        hub.poll();
    }
    assert_eq!(hub.worker.channel(blocked).unwrap().credits(), 0);
    for number in 0..64 {
        submit(&mut submitter, open, number);
        hub.poll();
        assert_eq!(numbers(&mut hub.ends[1]), [number]);
        hub.poll();
    }
    // It goes on where it stood.
    let mut seen = Vec::new();
    until("the rest goes out", || {
        seen.extend(numbers(&mut hub.ends[0]));
        hub.poll();
        seen.len() == 64
    });
    assert_eq!(seen, (0..64).collect::<Vec<_>>());
    until("all is home", || {
        hub.poll();
        home(&mut submitter) == 128
    });
    assert_eq!(hub.node.provider().fabric().receivers_not_ready(), 0);
}

#[test]
fn several_threads_submit_and_each_is_in_order() {
    const EACH: u32 = 5_000;
    for is_shared in [false, true] {
        let (mut a, mut b) = pair();
        let to = a.id();
        let mut submitters = if is_shared {
            a.worker().submitters(3, &config(32, 16)).unwrap()
        } else {
            (0..3)
                .map(|_| a.worker().submitter(&config(32, 16)).unwrap())
                .collect()
        };
        let mut next = [0; 3];
        thread::scope(|scope| {
            for (who, submitter) in (0..).zip(&mut submitters) {
                scope.spawn(move || {
                    let mut number = 0;
                    while number < EACH {
                        let Some(mut lease) = submitter.lease() else {
                            assert!(submitter.failure().is_none());
                            thread::yield_now();
                            continue;
                        };
                        lease.fill(&(number << 2 | who).to_be_bytes()).unwrap();
                        match submitter.send(to, lease) {
                            Ok(()) => number += 1,
                            Err(refused) => {
                                assert_eq!(refused.kind, SubmitErrorKind::WouldBlock);
                                thread::yield_now();
                            }
                        }
                    }
                });
            }
            let began = Instant::now();
            while next != [EACH; 3] {
                assert!(began.elapsed() < 6 * SOON, "{next:?}");
                numbers(&mut a);
                for number in numbers(&mut b) {
                    let who = &mut next[(number & 3) as usize];
                    assert_eq!(number >> 2, *who);
                    *who += 1;
                }
            }
        });
        numbers(&mut a);
        for submitter in &mut submitters {
            assert_eq!(home(submitter), 32);
            assert!(submitter.failure().is_none());
        }
        let doorbells = a.worker().statistics().snapshot();
        assert!(doorbells.requests - doorbells.announcements == u64::from(3 * EACH));
    }
}

#[test]
fn what_waits_for_a_channel_that_is_closed_comes_back() {
    let (mut a, _b) = pair();
    let to = a.id();
    let mut submitter = a.worker().submitter(&config(64, 64)).unwrap();
    // Sixteen have credits; the others wait.
    for number in 0..24_u32 {
        submit(&mut submitter, to, number);
    }
    numbers(&mut a);
    a.worker().begin_close(to, within(SOON)).unwrap();
    until("it is closed", || {
        numbers(&mut a);
        a.worker().close_progress(to) == CloseProgress::Closed(Ok(()))
    });
    // One that never was, and one that is no more.
    for number in 24..26_u32 {
        submit(&mut submitter, to, number);
    }
    numbers(&mut a);
    for number in 16..26_u32 {
        let failed = submitter.failure().unwrap();
        assert_eq!((failed.error, failed.channel), (SubmissionError::NoChannel, to));
        let lease = failed.lease.unwrap();
        assert_eq!(lease.payload(), number.to_be_bytes(), "in order");
        assert_eq!(lease.index(), failed.index);
    }
    assert!(submitter.failure().is_none());
    assert_eq!(home(&mut submitter), 64);
}

#[test]
fn what_ends_with_an_error_comes_back_with_it() {
    let mut open = small();
    open.remote = RemoteAccess {
        write: true,
        ..NOTHING
    };
    let (mut a, mut b) = pair_with(open, open);
    let to = a.id();
    let window = b.worker().window(&WindowConfig::new(64, open.remote)).unwrap();
    let remote = RemoteAddress::within(&window.remote(), 0, 8).unwrap();
    drop(window);
    let mut submitter = a.worker().submitter(&config(8, 8)).unwrap();
    let none = PostFlags::empty();
    // Before it a good one, behind it one of another thread and one of the Worker's own.
    submit(&mut submitter, to, 1);
    let bad = lease(&mut submitter, b"bad");
    let index = bad.index();
    submitter.submit(to, Operation::Write(remote), bad, none).unwrap();
    let behind = lease(&mut submitter, b"behind");
    submitter.send(to, behind).unwrap();
    let mut failed = Vec::new();
    until("it fails", || {
        a.worker()
            .poll(|_, event| {
                if let Event::Failed { status, .. } = event {
                    failed.push(status);
                }
            })
            .unwrap();
        failed.len() >= 2
    });
    assert_eq!(failed, [WcStatus::REM_ACCESS_ERR, WcStatus::WR_FLUSH_ERR]);
    let first = submitter.failure().unwrap();
    assert_eq!(first.error, SubmissionError::Ended(WcStatus::REM_ACCESS_ERR));
    assert_eq!(
        (first.index, first.lease.unwrap().payload()),
        (index, b"bad".as_slice())
    );
    let second = submitter.failure().unwrap();
    assert_eq!(second.error, SubmissionError::Ended(WcStatus::WR_FLUSH_ERR));
    assert_eq!(second.lease.unwrap().payload(), b"behind");
    assert!(submitter.failure().is_none());
    // It failed, and is not closed.
    submit(&mut submitter, to, 2);
    a.worker().poll(|_, _| ()).unwrap();
    let third = submitter.failure().unwrap();
    assert_eq!(
        third.error,
        SubmissionError::ChannelFailed(WcStatus::REM_ACCESS_ERR)
    );
    assert_eq!(third.lease.unwrap().payload(), 2_u32.to_be_bytes());
    assert_eq!(home(&mut submitter), 8);
}

#[test]
fn memory_of_failures_is_taken_until_they_are() {
    let (mut a, _b) = pair();
    let to = a.id();
    a.worker().channel(to).unwrap().shut().unwrap();
    let mut submitter = a.worker().submitter(&config(5, 8)).unwrap();
    for _ in 0..3 {
        for number in 0..5 {
            submit(&mut submitter, to, number);
        }
        a.worker().poll(|_, _| ()).unwrap();
        assert!(submitter.lease().is_none());
        for number in 0..5_u32 {
            let failed = submitter.failure().unwrap();
            assert_eq!(failed.lease.unwrap().payload(), number.to_be_bytes());
        }
        assert!(submitter.failure().is_none());
        assert_eq!(home(&mut submitter), 5);
    }
}

#[test]
fn memory_comes_home_though_the_channel_signals_seldom() {
    let (mut a, mut b) = pair_with(silent(), silent());
    let to = a.id();
    let mut submitter = a.worker().submitter(&config(4, 8)).unwrap();
    for round in 0..10 {
        // All there is, by one doorbell and by one each.
        for number in 0..4 {
            submit(&mut submitter, to, 4 * round + number);
            if round % 2 == 1 {
                numbers(&mut a);
            }
        }
        numbers(&mut a);
        assert_eq!(home(&mut submitter), 4);
        assert_eq!(numbers(&mut b).len(), 4);
    }
}

#[test]
fn a_channel_without_credits_keeps_no_memory_of_what_went() {
    let (mut a, _b) = pair_with(silent(), silent());
    let to = a.id();
    let mut submitter = a.worker().submitter(&config(20, 32)).unwrap();
    // The peer has receives for sixteen.
    (0..20).for_each(|number| submit(&mut submitter, to, number));
    numbers(&mut a);
    assert_eq!(home(&mut submitter), 16);
}

#[test]
fn what_is_in_flight_when_the_worker_goes_is_unknown() {
    for is_shared in [false, true] {
        // Nothing arrives: no time passes here.
        let fabric = Fabric::builder().driven().build();
        let (mut a, b) = pair_on(&fabric, silent(), silent(), Notify::Never);
        let to = a.id();
        let mut submitter = if is_shared {
            a.worker().submitters(1, &config(32, 8)).unwrap().remove(0)
        } else {
            a.worker().submitter(&config(32, 8)).unwrap()
        };
        // Sixteen in flight as far as the Worker knows, four that wait, and four in the ring.
        for number in 0..20 {
            submit(&mut submitter, to, number);
            if number % 4 == 3 {
                a.worker().poll(|_, event| panic!("{event:?}")).unwrap();
            }
        }
        for number in 20..24 {
            submit(&mut submitter, to, number);
        }
        drop((a, b));
        // Whether it is home or not, nothing of them is lent before they are told of.
        thread::sleep(Duration::from_millis(50));
        assert_eq!(home(&mut submitter), 8);
        let (mut unknown, mut returned) = (Vec::new(), Vec::new());
        until("all are told of", || {
            while let Some(failed) = submitter.failure() {
                match failed.error {
                    SubmissionError::Unknown => unknown.push(failed.index),
                    SubmissionError::WorkerGone => returned.push(failed.lease.unwrap()),
                    other => panic!("{other:?}"),
                }
            }
            unknown.len() + returned.len() == 24
        });
        let returned: Vec<_> = returned
            .into_iter()
            .map(|lease| u32::from_be_bytes(lease.payload().try_into().unwrap()))
            .collect();
        assert_eq!(returned, (16..24).collect::<Vec<_>>());
        unknown.sort_unstable();
        unknown.dedup();
        assert_eq!(unknown.len(), 16, "each once");
        until("the memory is home", || home(&mut submitter) == 32);
        let lease = lease(&mut submitter, b"late");
        let refused = submitter.send(to, lease);
        if let Err(refused) = refused {
            assert_eq!(refused.kind, SubmitErrorKind::WorkerGone);
        }
    }
}

#[test]
fn a_submission_wakes_a_worker_that_sleeps() {
    let (mut a, mut b) = pair_notified(small(), small(), Notify::Every);
    let to = a.id();
    let mut submitter = a.worker().submitter(&config(8, 8)).unwrap();
    // A wait far longer than naps would be needed for, and polled but once where nothing wakes it.
    let sleepy = Wait::SpinThenSleep { spins: 0 };
    for number in 0..50_u32 {
        let worker = a.worker();
        thread::scope(|scope| {
            let submitter = &mut submitter;
            scope.spawn(move || {
                if number % 2 == 0 {
                    thread::sleep(Duration::from_millis(3));
                }
                submit(submitter, to, number);
            });
            // It wakes to post it, and once more for the completion.
            let woken = worker.wait(sleepy, within(SOON), |_, event| {
                assert!(matches!(event, Event::Done { .. }), "{event:?}");
            });
            assert_eq!(woken, Ok(Woken::Progress));
        });
        assert_eq!(numbers(&mut b), [number]);
        numbers(&mut a);
    }
    // Nothing is awaited: nobody naps.
    let leave = a
        .worker()
        .ready_to_sleep(|_, _| ())
        .unwrap()
        .expect("nothing happens");
    assert_eq!(leave.at_most(), None);
}

#[test]
fn no_more_is_taken_by_a_poll_than_is_said() {
    let (mut a, _b) = pair_notified(small(), small(), Notify::Every);
    let to = a.id();
    let mut submitters: Vec<_> = (0..3)
        .map(|_| a.worker().submitter(&config(60, 64)).unwrap())
        .collect();
    a.worker().channel(to).unwrap().shut().unwrap();
    for submitter in &mut submitters {
        (0..60).for_each(|number| submit(submitter, to, number));
    }
    // 64 at most, and the first is another each time.
    let mut failed = [0; 3];
    let mut count = |submitters: &mut [Submitter<Host>]| {
        for (count, submitter) in failed.iter_mut().zip(submitters) {
            while let Some(failure) = submitter.failure() {
                assert!(failure.lease.is_some());
                *count += 1;
            }
        }
        failed
    };
    a.worker().poll(|_, _| ()).unwrap();
    assert_eq!(count(&mut submitters), [60, 4, 0]);
    // More may be in the rings: it does not sleep on them.
    let leave = a.worker().ready_to_sleep(|_, _| ()).unwrap();
    assert_eq!(leave.expect("nothing completes").at_most(), Some(Duration::ZERO));
    assert_eq!(count(&mut submitters), [60, 60, 8]);
    let leave = a.worker().ready_to_sleep(|_, _| ()).unwrap();
    assert_eq!(leave.expect("nothing completes").at_most(), None);
    assert_eq!(count(&mut submitters), [60; 3]);
}

#[test]
fn the_half_that_sends_takes_what_is_submitted() {
    let (mut a, mut b) = pair();
    let to = a.id();
    let at = a.at.worker;
    let mut before = a.worker().submitter(&config(8, 8)).unwrap();
    submit(&mut before, to, 0);
    let worker = a.workers.swap_remove(at);
    let (mut sending, mut receiving) = worker.split(&ArenaConfig::new(16, 128)).unwrap();
    let mut shared = sending.submitters(2, &config(8, 8)).unwrap();
    for number in 1..16 {
        sending
            .poll(|_, event| assert!(matches!(event, Event::Done { .. }), "{event:?}"))
            .unwrap();
        receiving.poll(|_, event| panic!("{event:?}")).unwrap();
        let submitter = shared.get_mut(number as usize % 3).unwrap_or(&mut before);
        submit(submitter, to, number);
        sending
            .poll(|_, event| assert!(matches!(event, Event::Done { .. }), "{event:?}"))
            .unwrap();
    }
    assert_eq!(numbers(&mut b), (0..16).collect::<Vec<_>>());
    // Joined again, they go on.
    let mut worker = sending.join(receiving).unwrap();
    submit(&mut before, to, 16);
    submit(&mut shared[1], to, 17);
    worker
        .poll(|_, event| assert!(matches!(event, Event::Done { .. }), "{event:?}"))
        .unwrap();
    assert_eq!(numbers(&mut b), [16, 17]);
    worker
        .poll(|_, event| assert!(matches!(event, Event::Done { .. }), "{event:?}"))
        .unwrap();
    assert_eq!(home(&mut before), 8);
}

#[test]
fn what_a_submitter_left_behind_is_sent() {
    for is_shared in [false, true] {
        let (mut a, mut b) = pair();
        let to = a.id();
        let mut submitters = if is_shared {
            a.worker().submitters(2, &config(8, 8)).unwrap()
        } else {
            (0..2)
                .map(|_| a.worker().submitter(&config(8, 8)).unwrap())
                .collect()
        };
        for number in 0..6 {
            submit(&mut submitters[number as usize % 2], to, number);
        }
        let mut last = submitters.pop().unwrap();
        drop(submitters);
        numbers(&mut a);
        submit(&mut last, to, 6);
        drop(last);
        numbers(&mut a);
        let mut seen = numbers(&mut b);
        seen.sort_unstable();
        assert_eq!(seen, (0..7).collect::<Vec<_>>());
        // What failed of one that is gone is nobody's.
        let mut gone = a.worker().submitter(&config(8, 8)).unwrap();
        (0..4).for_each(|number| submit(&mut gone, to, number));
        a.worker().channel(to).unwrap().shut().unwrap();
        a.worker().poll(|_, _| ()).unwrap();
        submit(&mut gone, to, 4);
        drop(gone);
        a.worker().poll(|_, _| ()).unwrap();
        assert!(a.worker().submitter(&config(8, 8)).is_ok());
    }
}

#[test]
fn a_short_request_goes_inline_where_it_is_alone() {
    let mut long = small();
    long.inline_alone_bytes_max = 8;
    let (mut a, mut b) = pair_with(long, long);
    let to = a.id();
    let mut submitter = a.worker().submitter(&config(8, 8)).unwrap();
    let inline = |a: &mut End| a.worker().statistics().snapshot().inline;
    // Alone and short, alone and long, short and together.
    for (messages, expected) in [(&[8_usize][..], 1), (&[9], 0), (&[1, 1], 0)] {
        let before = inline(&mut a) - a.worker().statistics().snapshot().announcements;
        for bytes in messages {
            let lease = lease(&mut submitter, &vec![7; *bytes]);
            submitter.send(to, lease).unwrap();
        }
        a.worker().poll(|_, _| ()).unwrap();
        let after = inline(&mut a) - a.worker().statistics().snapshot().announcements;
        assert_eq!(after - before, expected, "{messages:?}");
        a.worker().poll(|_, _| ()).unwrap();
    }
    // The same of a channel's own.
    for (bytes, expected) in [(8, 1), (9, 0)] {
        let before = inline(&mut a);
        let lease = a.lease(&vec![7; bytes]);
        a.worker().channel(to).unwrap().send(lease).unwrap();
        assert_eq!(inline(&mut a) - before, expected, "{bytes}");
    }
    let mut sizes = Vec::new();
    until("six arrive", || {
        b.worker()
            .poll(|_, event| {
                if let Event::Received { message, .. } = event {
                    assert!(message.payload().iter().all(|byte| *byte == 7));
                    sizes.push(message.len_bytes());
                }
            })
            .unwrap();
        sizes.len() == 6
    });
    assert_eq!(sizes, [8, 9, 1, 1, 8, 9]);
}

#[test]
fn what_the_device_refuses_comes_back_in_order() {
    let (mut a, mut b) = pair();
    let to = a.id();
    let mut submitter = a.worker().submitter(&config(8, 8)).unwrap();
    let fabric = a.node.provider().fabric().clone();
    let mut parts = Vec::new();
    for round in 0..20 {
        // A part of the doorbell goes, the rest is refused.
        fabric.follow(&"fail 1st post of a with 12".parse().unwrap());
        let all: Vec<_> = (10 * round..10 * round + 5).collect();
        for number in &all {
            submit(&mut submitter, to, *number);
        }
        numbers(&mut a);
        let (came, refused) = all.split_at(numbers(&mut b).len());
        for number in refused {
            let failed = submitter.failure().unwrap();
            assert_eq!(failed.error, SubmissionError::Post { errno: 12 });
            assert_eq!(failed.lease.unwrap().payload(), number.to_be_bytes());
        }
        assert!(submitter.failure().is_none());
        assert!(came.len() < 5);
        parts.push(came.len());
        // The channel goes on, and what was refused is in flight for nobody.
        submit(&mut submitter, to, 10 * round + 9);
        numbers(&mut a);
        assert_eq!(numbers(&mut b), [10 * round + 9]);
        until("all is home", || {
            numbers(&mut a);
            home(&mut submitter) == 8
        });
    }
    assert!(
        parts.contains(&0) && parts.iter().any(|part| *part > 1),
        "{parts:?}"
    );
}

#[test]
fn a_channel_that_took_the_place_of_another_gets_nothing_of_it() {
    let mut hub = hub(1, small());
    let mut submitter = hub.worker.submitter(&config(32, 32)).unwrap();
    let old = hub.ids[0];
    // Sixteen go out, four wait.
    (0..20).for_each(|number| submit(&mut submitter, old, number));
    hub.poll();
    hub.worker.begin_close(old, within(SOON)).unwrap();
    until("it is closed", || {
        hub.poll();
        hub.worker.close_progress(old) == CloseProgress::Closed(Ok(()))
    });
    hub.connect();
    let new = hub.ids[1];
    for number in 20..24 {
        submit(&mut submitter, old, number);
        submit(&mut submitter, new, 100 + number);
    }
    hub.poll();
    assert_eq!(numbers(&mut hub.ends[1]), [120, 121, 122, 123]);
    for number in 16..24_u32 {
        let failed = submitter.failure().unwrap();
        assert_eq!((failed.error, failed.channel), (SubmissionError::NoChannel, old));
        assert_eq!(failed.lease.unwrap().payload(), number.to_be_bytes());
    }
    hub.poll();
    assert!(submitter.failure().is_none());
    assert_eq!(home(&mut submitter), 32);
}

#[test]
fn what_is_submitted_while_the_worker_goes_comes_back() {
    let (a, _b) = pair();
    // A channel of another Worker: here it names none.
    let nowhere = a.id();
    for round in 0..200_u64 {
        let mut worker = workers(&a.node).remove(0);
        let mut submitters = if round % 2 == 0 {
            worker.submitters(2, &config(1024, 2048)).unwrap()
        } else {
            (0..2)
                .map(|_| worker.submitter(&config(1024, 1024)).unwrap())
                .collect()
        };
        let begin = &Barrier::new(3);
        thread::scope(|scope| {
            for submitter in &mut submitters {
                scope.spawn(move || {
                    let mut submitted = 0_u32;
                    begin.wait();
                    while let Some(lease) = submitter.lease() {
                        match submitter.send(nowhere, lease) {
                            Ok(()) => submitted += 1,
                            Err(refused) if refused.kind == SubmitErrorKind::WorkerGone => break,
                            Err(refused) => panic!("{refused:?}"),
                        }
                    }
                    until("all comes back", || {
                        while let Some(failed) = submitter.failure() {
                            assert_eq!(failed.error, SubmissionError::WorkerGone);
                            assert!(failed.lease.is_some());
                            submitted -= 1;
                        }
                        submitted == 0
                    });
                    assert_eq!(home(submitter), 1024);
                });
            }
            begin.wait();
            (0..round * 200).for_each(|_| core::hint::spin_loop());
            drop(worker);
        });
    }
}

#[test]
fn what_is_done_is_not_told_of_when_the_worker_goes() {
    let (mut a, mut b) = pair();
    let to = a.id();
    let mut submitter = a.worker().submitter(&config(8, 8)).unwrap();
    for round in 0..10 {
        (0..6).for_each(|number| submit(&mut submitter, to, 6 * round + number));
        numbers(&mut a);
        assert_eq!(numbers(&mut b).len(), 6);
        numbers(&mut a);
    }
    drop((a, b));
    thread::sleep(Duration::from_millis(50));
    assert!(submitter.failure().is_none());
    assert_eq!(home(&mut submitter), 8);
}

/// A sequence of numbers that looks random and is always the same.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

/// A submitter, and what it submitted: by channel, each a number of its own, and what became of it.
struct Player {
    submitter: Submitter<Host>,
    who: u32,
    next: u32,
    open: BTreeMap<u32, usize>,
}

/// What is sent: who, and the number.
fn word(who: u32, number: u32) -> u32 {
    who << 20 | number
}

#[derive(Default)]
struct Seen {
    /// The last number of each who that came on each channel.
    last: BTreeMap<(usize, u32), u32>,
    all: Vec<u32>,
}

impl Seen {
    fn take(&mut self, channel: usize, numbers: Vec<u32>) {
        for word in numbers {
            let (who, number) = (word >> 20, word & 0xf_ffff);
            let before = self.last.insert((channel, who), number);
            assert!(before.is_none_or(|before| before < number), "in order, and once");
            self.all.push(word);
        }
    }
}

/// The numbers that are there now, of an end that may fail.
fn heard(end: &mut End) -> Vec<u32> {
    let mut numbers = Vec::new();
    for _ in 0..4 {
        end.worker()
            .poll(|mut turn, event| {
                if let Event::Received { message, .. } = event {
                    numbers.push(u32::from_be_bytes(message.payload().try_into().unwrap()));
                    turn.release(message);
                }
            })
            .unwrap();
    }
    numbers
}

/// Takes what failed; what it failed with does not contradict what was seen.
fn take_failures(player: &mut Player) -> Vec<(u32, SubmissionError)> {
    let mut failed = Vec::new();
    while let Some(failure) = player.submitter.failure() {
        if failure.error == SubmissionError::Unknown {
            assert!(failure.lease.is_none());
            continue;
        }
        let lease = failure.lease.unwrap();
        let word = u32::from_be_bytes(lease.payload().try_into().unwrap());
        assert!(
            player.open.remove(&(word & 0xf_ffff)).is_some(),
            "once, and its own"
        );
        failed.push((word, failure.error));
        player.submitter.release(lease);
    }
    failed
}

fn play(seed: u64) {
    let mut chance = Chance(seed);
    let mut quiet = small();
    quiet.unsignaled_max = [0, 4, 1000][chance.below(3)];
    let Hub {
        node,
        worker,
        ids,
        mut ends,
        ..
    } = hub(3, quiet);
    let mut worker = Some(worker);
    let fabric = node.provider().fabric().clone();
    let mut next_who = 0;
    let mut player = |submitter: Submitter<Host>| {
        next_who += 1;
        Player {
            submitter,
            who: next_who,
            next: 0,
            open: BTreeMap::new(),
        }
    };
    let mut players = Vec::new();
    for _ in 0..2 {
        players.push(player(worker.as_mut().unwrap().submitter(&config(6, 4)).unwrap()));
    }
    for submitter in worker.as_mut().unwrap().submitters(2, &config(6, 4)).unwrap() {
        players.push(player(submitter));
    }
    let mut seen = Seen::default();
    for _ in 0..600 {
        let at = chance.below(players.len());
        let channel = chance.below(ids.len());
        match (chance.below(100), &mut worker) {
            (0..60, _) => {
                let player = &mut players[at];
                if let Some(mut lease) = player.submitter.lease() {
                    lease.fill(&word(player.who, player.next).to_be_bytes()).unwrap();
                    if player.submitter.send(ids[channel], lease).is_ok() {
                        player.open.insert(player.next, channel);
                    }
                    player.next += 1;
                }
            }
            (60..80, Some(worker)) => {
                worker.poll(|_, _| ()).unwrap();
            }
            (80..90, _) => seen.take(channel, heard(&mut ends[channel])),
            (90..95, _) => {
                take_failures(&mut players[at]);
            }
            (95, Some(_)) => {
                let plan = format!("fail {}th post of hub with 12", 4 + chance.below(5));
                fabric.follow(&plan.parse().unwrap());
            }
            (96, Some(worker)) if chance.below(4) == 0 => {
                let patience = Duration::from_millis(chance.below(3) as u64);
                let soon = worker.within(patience);
                worker.begin_close(ids[channel], soon).ok();
            }
            (97, Some(worker)) => {
                if let (0, Some(channel)) = (chance.below(4), worker.channel(ids[channel])) {
                    channel.shut().unwrap();
                }
            }
            (98, Some(worker)) => {
                drop(players.remove(at));
                players.push(player(worker.submitter(&config(6, 4)).unwrap()));
            }
            (99, _) if chance.below(20) == 0 => worker = None,
            _ => {}
        }
    }
    // Closed, so that what is in flight unsignaled is told of, too; polled until all is.
    if let Some(worker) = &mut worker {
        for id in &ids {
            let soon = worker.within(Duration::from_millis(5));
            worker.begin_close(*id, soon).ok();
        }
    }
    let mut failed = Vec::new();
    let mut is_over = false;
    let began = Instant::now();
    while !is_over {
        assert!(began.elapsed() < SOON, "seed {seed}: something is never told of");
        if let Some(worker) = &mut worker {
            worker.poll(|_, _| ()).unwrap();
        }
        for (channel, end) in ends.iter_mut().enumerate() {
            seen.take(channel, heard(end));
        }
        is_over = players.iter_mut().all(|player| {
            failed.extend(take_failures(player));
            home(&mut player.submitter) == 6
        });
    }
    for player in &mut players {
        failed.extend(take_failures(player));
    }
    // Nothing that failed before it was posted has come, and nothing twice.
    for (word, error) in failed {
        if !matches!(error, SubmissionError::Ended(_)) {
            assert!(!seen.all.contains(&word), "seed {seed}: {error:?} of what came");
        }
    }
    drop((players, worker));
}

#[test]
fn whatever_happens_everything_is_told_of_and_comes_home() {
    for seed in 0..24 {
        play(seed);
    }
}
