//! Posting: in order, as one doorbell, of several threads and by either kind of Worker.

use std::thread;
use std::time::Instant;

use doorbell::provider::{ArenaConfig, Window as _};
use doorbell::worker::SubmitErrorKind;
use doorbell::{Event, Operation, PostFlags, RemoteAccess, RemoteAddress, WindowConfig};

use super::{NOTHING, config, home, lease, numbers, submit, until};
use crate::fabric::{End, SOON, pair, pair_with, small};

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
fn what_several_submit_to_one_channel_is_one_doorbell() {
    let (mut a, mut b) = pair();
    let to = a.id();
    let mut submitters = [0; 2].map(|_| a.worker().submitter(&config(8, 8)).unwrap());
    for number in 0..5 {
        for (at, submitter) in submitters.iter_mut().enumerate() {
            submit(submitter, to, number * 2 + at as u32);
        }
    }
    let before = a.worker().statistics().snapshot();
    numbers(&mut a);
    let since = a.worker().statistics().snapshot().since(&before);
    assert_eq!((since.doorbells, since.requests), (1, 10));
    let came = numbers(&mut b);
    for at in 0..2 {
        let of_one: Vec<_> = came.iter().copied().filter(|number| number % 2 == at).collect();
        assert_eq!(of_one, (0..5).map(|number| number * 2 + at).collect::<Vec<_>>());
    }
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
        a.worker().channel(to).unwrap().send_lease(lease).unwrap();
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
