//! Submissions that fail come back, each with its reason.

use core::time::Duration;

use doorbell::provider::Window as _;
use doorbell::worker::{CloseProgress, SubmissionError};
use doorbell::{Event, Operation, PostFlags, RemoteAccess, RemoteAddress, WcStatus, WindowConfig};

use super::{NOTHING, config, home, hub, lease, numbers, submit, until};
use crate::fabric::{LONG, pair, pair_with, small};

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
    let long = a.worker().within(LONG);
    a.worker().begin_close(to, long).unwrap();
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
            .poll_tending(|_, event| {
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
    a.worker().poll_tending(|_, _| ()).unwrap();
    let third = submitter.failure().unwrap();
    assert_eq!(
        third.error,
        SubmissionError::ChannelFailed(WcStatus::REM_ACCESS_ERR)
    );
    assert_eq!(third.lease.unwrap().payload(), 2_u32.to_be_bytes());
    assert_eq!(home(&mut submitter), 8);
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
    // Its peer has no receive for a farewell, and is not waited for.
    hub.worker
        .begin_close(old, hub.worker.within(Duration::ZERO))
        .unwrap();
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
