use super::{Commission, Makers, Whom};
use crate::error::ConnectError;
use crate::machine::reaper::tests::Hostile;
use crate::machine::reaper::{Reaped, Reaper};
use crate::machine::signal::Signal;
use core::any::Any;
use core::net::{IpAddr, Ipv4Addr};
use core::time::Duration;
use doorbell_core::wire::InstanceId;
use std::panic::resume_unwind;
use std::sync::{Arc, mpsc};
use std::thread::{self, ThreadId};
use std::time::Instant;

const SOON: Duration = Duration::from_secs(20);
const A_WHILE: Duration = Duration::from_millis(20);

const fn address(last: u8) -> Whom {
    Whom::Address(IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)))
}

fn peer(number: u64) -> Whom {
    Whom::Peer(InstanceId::new(number).unwrap())
}

/// A job that returns a number once it is allowed to, and reports that it began.
struct Slow {
    go: mpsc::Sender<()>,
    made: Commission<u8>,
}

fn slow(makers: &Makers, whom: Whom, number: u8, began: &mpsc::Sender<u8>) -> Slow {
    let (go, wait) = mpsc::channel();
    let began = began.clone();
    let made = makers.make(whom, None, move || {
        began.send(number).unwrap();
        let _ = wait.recv();
        Ok(number)
    });
    Slow { go, made }
}

fn taken<T: Send + 'static>(made: &Commission<T>) -> Option<T> {
    made.take().unwrap().map(Reaped::into_inner)
}

/// Waits until a job has raised the signal.
fn assert_raised(signal: &Signal) {
    let began = Instant::now();
    signal.wait(SOON).unwrap();
    assert!(began.elapsed() < SOON);
    signal.take();
}

/// Sends the id of the thread on which it is dropped.
struct Ends(mpsc::Sender<ThreadId>);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.send(thread::current().id());
    }
}

#[test]
fn one_that_takes_long_holds_up_no_other() {
    let makers = Makers::background(2, &Reaper::default()).unwrap();
    let signal = makers.signal().unwrap().unwrap();
    let (began, begins) = mpsc::channel();
    let long = slow(&makers, peer(1), 9, &began);
    assert_eq!(begins.recv_timeout(SOON), Ok(9));
    for number in 0..3 {
        let made = makers.make(peer(2), Some(&signal.clone().into()), move || Ok(number));
        assert_raised(&signal);
        assert_eq!(taken(&made), Some(number));
    }
    assert_eq!(taken(&long.made), None);
    // The job is wanted, so `settle` does not wait for it.
    assert!(makers.settle(SOON));
    long.go.send(()).unwrap();
    // A job that is added last is run, too.
    let last = makers.make(peer(2), None, || Ok(1));
    drop(makers);
    assert_eq!((taken(&long.made), taken(&last)), (Some(9), Some(1)));
}

#[test]
fn half_of_those_at_a_time_are_a_peer_s_at_most() {
    let makers = Makers::background(4, &Reaper::default()).unwrap();
    let (began, begins) = mpsc::channel();
    // A peer whose neighbour does not resolve leaves half of the threads to others.
    let mut all: Vec<_> = (1..=3)
        .map(|number| slow(&makers, address(1), number, &began))
        .collect();
    all.extend((4..=5).map(|number| slow(&makers, peer(number.into()), number, &began)));
    let mut first: Vec<_> = (0..4).map(|_| begins.recv_timeout(SOON).unwrap()).collect();
    first.sort_unstable();
    assert_eq!(first, [1, 2, 4, 5]);
    // A thread is idle, and the third job still waits.
    all[3].go.send(()).unwrap();
    assert!(begins.recv_timeout(A_WHILE).is_err());
    all[0].go.send(()).unwrap();
    assert_eq!(begins.recv_timeout(SOON), Ok(3));
    drop(all);
    assert!(makers.settle(SOON));
    // With one job at a time, any peer may have it.
    let one = Makers::background(0, &Reaper::default()).unwrap();
    let alone = slow(&one, address(1), 6, &began);
    assert_eq!(begins.recv_timeout(SOON), Ok(6));
    drop(alone);
}

#[test]
fn a_network_that_one_host_may_have_leaves_the_others_one() {
    let makers = Makers::background(4, &Reaper::default()).unwrap();
    let (began, begins) = mpsc::channel();
    let of = |address: &str| Whom::Address(address.parse().unwrap());
    let mut all: Vec<_> = (1..=4)
        .map(|number| slow(&makers, of(&format!("fd00::{}", number / 3)), number, &began))
        .collect();
    all.push(slow(&makers, of("fd00:0:0:1::1"), 5, &began));
    let mut first: Vec<_> = (0..4).map(|_| begins.recv_timeout(SOON).unwrap()).collect();
    first.sort_unstable();
    assert_eq!(first, [1, 2, 3, 5]);
    // When a job of the network is done, the next one of the network runs.
    all[0].go.send(()).unwrap();
    assert_eq!(begins.recv_timeout(SOON), Ok(4));
    drop(all);
}

#[test]
fn looks_are_one_at_a_time_and_come_last() {
    let makers = Makers::background(2, &Reaper::default()).unwrap();
    let (began, begins) = mpsc::channel();
    let scans: Vec<_> = [1, 2]
        .map(|number| slow(&makers, Whom::All, number, &began))
        .into();
    assert_eq!(begins.recv_timeout(SOON), Ok(1));
    // The second waits, although a thread is idle.
    assert!(begins.recv_timeout(A_WHILE).is_err());
    let made = slow(&makers, peer(1), 3, &began);
    assert_eq!(begins.recv_timeout(SOON), Ok(3));
    let behind = slow(&makers, peer(2), 4, &began);
    scans[0].go.send(()).unwrap();
    assert_eq!(begins.recv_timeout(SOON), Ok(4));
    assert!(begins.recv_timeout(A_WHILE).is_err());
    drop((made, behind));
    assert_eq!(begins.recv_timeout(SOON), Ok(2));
    drop(scans);
}

#[test]
fn who_holds_all_others_up_holds_no_look_up() {
    let makers = Makers::with_scans(2, &Reaper::default()).unwrap();
    let (began, begins) = mpsc::channel();
    let made = [(peer(1), 1), (peer(2), 2)].map(|(whom, number)| {
        let made = slow(&makers, whom, number, &began);
        assert_eq!(begins.recv_timeout(SOON), Ok(number));
        made
    });
    let another = slow(&makers, peer(3), 3, &began);
    let scan = slow(&makers, Whom::All, 4, &began);
    assert_eq!(begins.recv_timeout(SOON), Ok(4));
    // No further job for a peer runs, although a thread is idle.
    scan.go.send(()).unwrap();
    assert!(begins.recv_timeout(A_WHILE).is_err());
    drop((made, another));
}

#[test]
fn what_is_given_up_leaves_the_line_and_goes_to_the_reaper() {
    let reaper = Reaper::background().unwrap();
    let makers = Makers::background(1, &reaper).unwrap();
    let (began, begins) = mpsc::channel();
    let long = slow(&makers, peer(1), 1, &began);
    assert_eq!(begins.recv_timeout(SOON), Ok(1));
    let (ends, ended) = mpsc::channel();
    let held = Ends(ends.clone());
    let waiting = makers.make(peer(2), None, move || {
        drop(held);
        Ok::<_, ConnectError>(())
    });
    assert_eq!(ended.try_recv(), Err(mpsc::TryRecvError::Empty));
    drop(waiting);
    // The reaper drops it, and neither the helper thread nor this one.
    let reaping = ended.recv_timeout(SOON).unwrap();
    assert_ne!(reaping, thread::current().id());
    // So do a result that is not taken, and the result of a job that still runs.
    let Slow { go, made } = long;
    let and_then = makers.make(peer(1), None, move || Ok::<_, ConnectError>(Ends(ends)));
    drop(made);
    assert!(!makers.settle(A_WHILE));
    drop(go);
    assert!(makers.settle(SOON));
    while and_then.queued.as_ref().is_some_and(|(jobs, _)| {
        let state = jobs.state();
        !state.waiting.is_empty() || !state.running.is_empty()
    }) {
        thread::yield_now();
    }
    drop(and_then);
    assert_eq!(ended.recv_timeout(SOON), Ok(reaping));
}

#[test]
fn who_detaches_them_waits_for_none_and_they_end_by_themselves() {
    let makers = Makers::background(3, &Reaper::default()).unwrap().detached();
    let jobs = Arc::downgrade(makers.jobs.as_ref().unwrap());
    let (began, begins) = mpsc::channel();
    let running: Vec<_> = [1, 2].map(|number| slow(&makers, peer(1), number, &began)).into();
    assert!(begins.recv_timeout(SOON).is_ok() && begins.recv_timeout(SOON).is_ok());
    let waiting = slow(&makers, peer(1), 3, &began);
    drop(makers);
    drop(waiting);
    drop(running);
    let began = Instant::now();
    while jobs.strong_count() > 0 {
        assert!(began.elapsed() < SOON);
        thread::yield_now();
    }
    assert!(begins.try_recv().is_err());
}

#[test]
fn one_that_panics_costs_no_other() {
    let makers = Makers::background(1, &Reaper::default()).unwrap();
    let signal = makers.signal().unwrap().unwrap();
    for payload in [
        Box::new("a provider that does") as Box<dyn Any + Send>,
        Box::new(Hostile),
    ] {
        let lost = makers.make(peer(1), Some(&signal.clone().into()), || -> Result<(), _> {
            resume_unwind(payload)
        });
        assert_raised(&signal);
        assert!(matches!(lost.take(), Err(ConnectError::Unreachable(_))));
    }
    let made = makers.make(peer(1), Some(&signal.clone().into()), || Ok(1));
    assert_raised(&signal);
    assert_eq!(taken(&made), Some(1));
}

#[test]
fn without_threads_it_is_made_at_once() {
    let makers = Makers::default();
    assert!(makers.signal().unwrap().is_none());
    assert_eq!(taken(&makers.make(address(1), None, || Ok(1))), Some(1));
    assert!(makers.settle(Duration::ZERO));
}
