//! One-sided requests of links: each ends, done or unknown with the reason, whatever fails; and what is done again undoes
//! nothing that came after.

use std::collections::BTreeMap;

use doorbell::vocabulary::provider::{Provider, Window as _};
use doorbell::vocabulary::session::{RequestEnd, RequestId, RequestRefusal, SessionEvent, UnknownReason};
use doorbell::{RemoteAccess, Request, WindowConfig};
use doorbell_sim::{Host, PortConfig};

use crate::anything::{Chance, plan, seeds};
use crate::fabric::port;
use crate::processes::{A, Aside, B, Process, Two, config, ms};

type Memory = <Host as Provider>::Window;

/// Words of the window that are written, each with numbers that only grow; behind them one that is added to.
const CELLS: u64 = 4;
const SUM: u64 = CELLS * 8;
const BYTES: usize = 4096;

/// Both rails are ports of one device, so that both lead to one window.
fn ports(host: u8) -> Vec<PortConfig> {
    (0..2)
        .map(|rail| {
            let mut port = port("sim0", &format!("10.0.{rail}.{host}/24"));
            port.interface = format!("eth{rail}");
            port
        })
        .collect()
}

/// A link whose rails are up, and a window of B's that A may reach.
fn granted(plan: &str, access: RemoteAccess) -> (Two, Memory, u32) {
    let mut two = Two::between([ports(1), ports(2)], plan, None);
    two.connected(2);
    let b = two.process_mut(B);
    let memory = b.workers[0]
        .window(&WindowConfig::new(BYTES, RemoteAccess::ALL))
        .unwrap();
    let link = b.link.unwrap();
    let number = b.links.grant(link, &[(0, memory.remote())], access).unwrap();
    let is_told = two.run(ms(150), |two| !two.process(A).asides.is_empty());
    assert!(is_told);
    let told = two.process_mut(A).asides.drain(..).collect::<Vec<_>>();
    assert_eq!(told, [Aside::Granted(number, BYTES as u64, access)]);
    (two, memory, number)
}

fn ask(two: &mut Two, at: (u32, u64), request: &Request<'_>) -> Result<RequestId, RequestRefusal> {
    let a = two.process_mut(A);
    let Some(link) = a.link else {
        return Err(RequestRefusal::Closing);
    };
    a.links.request(&a.node, link, at, request)
}

/// Asks, and waits for the end.
fn done(two: &mut Two, at: (u32, u64), request: &Request<'_>) -> (RequestEnd, Vec<u8>) {
    let id = ask(two, at, request).unwrap();
    let until = ms(two.fabric.now().to_ns() / 1_000_000 + 12_000);
    let has_ended = two.run(until, |two| !two.process(A).asides.is_empty());
    assert!(has_ended, "{:?} {:?}", two.process(A).events, two.counts(A));
    match two.process_mut(A).asides.remove(0) {
        Aside::Ended(ended, end, data) if ended == id => (end, data),
        other => panic!("{other:?}"),
    }
}

fn word(number: u64) -> [u8; 8] {
    number.to_ne_bytes()
}

#[test]
fn a_window_is_written_read_and_added_to() {
    let (mut two, memory, window) = granted("", RemoteAccess::ALL);
    let bytes: Vec<u8> = (0..2048).map(|at| at as u8).collect();
    let nothing = (RequestEnd::Done, Vec::new());
    assert_eq!(done(&mut two, (window, 100), &Request::Write(&bytes)), nothing);
    let mut there = vec![0; 2048];
    memory.copy_out(100, &mut there).unwrap();
    assert_eq!(there, bytes);
    let fetched = |data: &[u8]| (RequestEnd::Done, data.to_vec());
    assert_eq!(
        done(&mut two, (window, 200), &Request::Read(64)),
        fetched(&bytes[100..164])
    );
    assert_eq!(
        done(&mut two, (window, 8), &Request::FetchAndAdd(5)),
        fetched(&word(0))
    );
    let swap = Request::CompareAndSwap { compare: 5, swap: 9 };
    assert_eq!(done(&mut two, (window, 8), &swap), fetched(&word(5)));
    assert_eq!(done(&mut two, (window, 8), &swap), fetched(&word(9)));
    assert_eq!(memory.load_u64(8), Ok(9));
    two.fabric.audit().unwrap();
}

#[test]
fn what_cannot_be_asked_is_refused_and_what_is_withdrawn_ends() {
    let (mut two, memory, window) = granted("", RemoteAccess::WRITE);
    let refused = |two: &mut Two, at, request: &Request<'_>| ask(two, at, request).unwrap_err();
    let long = vec![0; 2049];
    for (at, request, refusal) in [
        ((window + 1, 0), Request::Write(b"x"), RequestRefusal::NoWindow),
        ((window, 4096), Request::Write(b"x"), RequestRefusal::OutOfRange),
        (
            (window, u64::MAX),
            Request::Write(b"x"),
            RequestRefusal::OutOfRange,
        ),
        ((window, 0), Request::Write(&long), RequestRefusal::OutOfRange),
        ((window, 4), Request::FetchAndAdd(1), RequestRefusal::OutOfRange),
        ((window, 0), Request::FetchAndAdd(1), RequestRefusal::NotGranted),
        ((window, 0), Request::Read(1), RequestRefusal::NotGranted),
    ] {
        assert_eq!(refused(&mut two, at, &request), refusal, "{request:?}");
    }
    for _ in 0..16 {
        ask(&mut two, (window, 0), &Request::Write(b"x")).unwrap();
    }
    assert_eq!(
        refused(&mut two, (window, 0), &Request::Write(b"x")),
        RequestRefusal::Full
    );
    two.run(ms(200), |two| two.process(A).asides.len() == 16);
    assert_eq!(two.process_mut(A).asides.drain(..).count(), 16);
    let b = two.process_mut(B);
    let link = b.link.unwrap();
    b.links.withdraw(link, window);
    two.run(ms(250), |two| !two.process(A).asides.is_empty());
    assert_eq!(two.process_mut(A).asides, [Aside::Withdrawn(window)]);
    assert_eq!(
        refused(&mut two, (window, 0), &Request::Write(b"x")),
        RequestRefusal::NoWindow
    );
    drop(memory);
    two.run(ms(400), |_| false);
    assert_eq!(two.counts(A).recoveries, 0);
    two.fabric.audit().unwrap();
}

#[test]
fn what_the_device_refuses_ends_with_that_and_the_link_goes_on() {
    let (mut two, memory, window) = granted("", RemoteAccess::ALL);
    // Gone, and nobody was told.
    drop(memory);
    let (end, _) = done(&mut two, (window, 0), &Request::Write(b"x"));
    let denied = RequestEnd::Unknown {
        was_posted: true,
        reason: UnknownReason::Denied,
    };
    assert_eq!(end, denied);
    two.sends_every = [Some(ms(1)), Some(ms(1))];
    let until = two.fabric.now().to_ns() / 1_000_000;
    two.run(ms(until + 100), |_| false);
    assert!(
        two.settle(ms(until + 2000)),
        "{:?} {:?}",
        two.counts(A),
        two.counts(B)
    );
}

#[test]
fn a_write_of_a_rail_that_fails_is_done_over_the_other_and_an_atomic_ends_unknown() {
    for at_us in [150_020, 150_060, 150_110] {
        let (mut two, memory, window) = granted(
            &format!("at {at_us}us link a/sim0:1-b/sim0:1 down"),
            RemoteAccess::ALL,
        );
        two.run(ms(150), |_| false);
        let add = ask(&mut two, (window, SUM), &Request::FetchAndAdd(1)).unwrap();
        let write = ask(&mut two, (window, 0), &Request::Write(&word(7))).unwrap();
        let once = ask(&mut two, (window, 8), &Request::WriteOnce(&word(8))).unwrap();
        let read = ask(&mut two, (window, 16), &Request::Read(8)).unwrap();
        assert!(
            two.run(ms(600), |two| two.process(A).asides.len() == 4),
            "{:?}",
            two.process(A).asides
        );
        let ends: BTreeMap<usize, _> = two
            .process_mut(A)
            .asides
            .drain(..)
            .map(|aside| match aside {
                Aside::Ended(id, end, _) => (id.place(), end),
                other => panic!("{other:?}"),
            })
            .collect();
        let of = |id: RequestId| ends[&id.place()];
        let unknown = RequestEnd::Unknown {
            was_posted: true,
            reason: UnknownReason::RailFailed,
        };
        assert_eq!((of(write), of(read)), (RequestEnd::Done, RequestEnd::Done));
        assert!([RequestEnd::Done, unknown].contains(&of(add)), "{:?}", of(add));
        assert!([RequestEnd::Done, unknown].contains(&of(once)), "{:?}", of(once));
        if at_us == 150_020 {
            // Cut before anything came back.
            assert_eq!((of(add), of(once)), (unknown, unknown));
        }
        assert_eq!(memory.load_u64(0), Ok(7));
        two.fabric.audit().unwrap();
    }
}

#[test]
fn every_request_ends_where_a_process_dies() {
    for at_us in (0..400).step_by(37) {
        let (mut two, _memory, window) = granted("", RemoteAccess::ALL);
        let mut open = Vec::new();
        for cell in 0..CELLS {
            open.push(ask(&mut two, (window, cell * 8), &Request::Write(&word(1))).unwrap());
            open.push(ask(&mut two, (window, SUM), &Request::FetchAndAdd(1)).unwrap());
            open.push(ask(&mut two, (window, cell * 8), &Request::Read(8)).unwrap());
        }
        let now_us = two.fabric.now().to_ns() / 1000;
        two.run(core::time::Duration::from_micros(now_us + at_us), |_| false);
        two.processes[B] = None;
        two.run(ms(300), |_| false);
        two.processes[B] = Some(Process::on(&two.hosts[B], &config(), true));
        assert!(
            two.run(ms(13_000), |two| two.process(A).over.is_some()),
            "{at_us}"
        );
        let mut ended = Vec::new();
        for aside in two.process_mut(A).asides.drain(..) {
            let Aside::Ended(id, end, _) = aside else { continue };
            let is_told = match end {
                RequestEnd::Done => true,
                RequestEnd::Unknown { reason, .. } => matches!(
                    reason,
                    UnknownReason::Over(_) | UnknownReason::RailFailed | UnknownReason::NoRail
                ),
            };
            assert!(is_told, "{end:?}");
            ended.push(id.place());
        }
        ended.sort_unstable();
        assert_eq!(ended, (0..open.len()).collect::<Vec<_>>(), "{at_us}");
    }
}

/// What A knows of a cell of the window.
#[derive(Default)]
struct Cell {
    /// The number that is written, by which request.
    open: Option<RequestId>,
    written: u64,
    /// The highest that was seen there.
    seen: u64,
}

#[test]
fn whatever_fails_requests_end_and_no_late_write_undoes_a_later_one() {
    let mut repeated = 0_u64;
    for seed in seeds() {
        let mut chance = Chance(seed);
        let plan = plan(&mut chance, 2, |rail| format!("sim0:{}", rail + 1), 150_000);
        let (mut two, memory, window) = granted(&plan, RemoteAccess::ALL);
        let mut cells: [Cell; CELLS as usize] = Default::default();
        let (mut added, mut maybe_added, mut adding) = (0_u64, 0_u64, None);
        let mut is_stopping = false;
        loop {
            let now = two.fabric.now().to_ns() / 1000;
            is_stopping |= now > 900_000;
            for (index, cell) in cells.iter_mut().enumerate() {
                if cell.open.is_none() && !is_stopping {
                    let next = cell.written + 1;
                    if let Ok(id) = ask(&mut two, (window, index as u64 * 8), &Request::Write(&word(next))) {
                        (cell.open, cell.written) = (Some(id), next);
                    }
                }
            }
            if adding.is_none() && !is_stopping {
                adding = ask(&mut two, (window, SUM), &Request::FetchAndAdd(1)).ok();
            }
            if is_stopping && adding.is_none() && cells.iter().all(|cell| cell.open.is_none()) {
                break;
            }
            assert!(now < 14_000_000, "seed {seed}: something hangs: {plan}");
            two.run(core::time::Duration::from_micros(now + 200), |_| false);
            for (index, cell) in cells.iter_mut().enumerate() {
                let there = memory.load_u64(index * 8).unwrap();
                assert!(
                    there >= cell.seen,
                    "seed {seed}: {there} after {}: {plan}",
                    cell.seen
                );
                cell.seen = there;
            }
            let asides: Vec<_> = two.process_mut(A).asides.drain(..).collect();
            for aside in asides {
                let Aside::Ended(id, end, data) = aside else {
                    panic!("{aside:?}")
                };
                if adding == Some(id) {
                    adding = None;
                    match end {
                        RequestEnd::Done => {
                            let before = u64::from_ne_bytes(data.try_into().unwrap());
                            assert!((added..=added + maybe_added).contains(&before), "seed {seed}");
                            added += 1;
                        }
                        RequestEnd::Unknown { was_posted, .. } => maybe_added += u64::from(was_posted),
                    }
                    continue;
                }
                let cell = cells.iter_mut().find(|cell| cell.open == Some(id)).unwrap();
                cell.open = None;
                if end == RequestEnd::Done {
                    assert!(cell.seen >= cell.written, "seed {seed}: done, and not there");
                }
            }
        }
        let sum = memory.load_u64(SUM as usize).unwrap();
        assert!((added..=added + maybe_added).contains(&sum), "seed {seed}: {sum}");
        let process = two.process(A);
        let is_down = |(_, event): &&(_, SessionEvent)| matches!(event, SessionEvent::RailDown { .. });
        repeated += process.events.iter().filter(is_down).count() as u64;
        assert!(
            cells.iter().map(|cell| cell.written).sum::<u64>() > 100,
            "seed {seed}: {plan}"
        );
        two.fabric.audit().unwrap();
    }
    assert!(repeated > 0);
}
