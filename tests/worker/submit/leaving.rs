//! The Worker goes first, or a submitter.

use core::time::Duration;
use std::sync::Barrier;
use std::thread;

use doorbell::Notify;
use doorbell::worker::{SubmissionError, SubmitErrorKind};
use doorbell_sim::Fabric;

use super::{config, home, lease, numbers, silent, submit, until};
use crate::fabric::{pair, pair_on, workers};

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
                a.worker().poll_tending(|_, event| panic!("{event:?}")).unwrap();
            }
        }
        for number in 20..24 {
            submit(&mut submitter, to, number);
        }
        drop((a, b));
        // Whether they are home or not, none of them is lent before its report.
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
        // Failures of a submitter that is gone have no owner.
        let mut gone = a.worker().submitter(&config(8, 8)).unwrap();
        (0..4).for_each(|number| submit(&mut gone, to, number));
        a.worker().channel(to).unwrap().shut().unwrap();
        a.worker().poll_tending(|_, _| ()).unwrap();
        submit(&mut gone, to, 4);
        drop(gone);
        a.worker().poll_tending(|_, _| ()).unwrap();
        assert!(a.worker().submitter(&config(8, 8)).is_ok());
    }
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
