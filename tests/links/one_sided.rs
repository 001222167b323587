//! One-sided requests of links: each ends, done or unknown with the reason, under any failure; and a repeated one undoes
//! nothing that came after.

use core::num::NonZeroU64;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use doorbell::link::{
    FinalReason, Request, RequestEnd, RequestId, RequestRefusal, SessionEvent, UnknownReason,
};
use doorbell::provider::Window as _;
use doorbell::worker::Classes;
use doorbell::{LocalWindow, RemoteAccess, RemoteWindow, WindowConfig};
use doorbell_sim::{Host, Quirks};

use crate::anything::{Chance, plan, seeds};
use crate::processes::{A, Aside, B, Process, Two, config, ms, ports_of_one_device};

pub(crate) type Memory = LocalWindow<Host>;

/// Words of the window that are written, each with numbers that only grow; behind them one that is added to.
const CELLS: u64 = 4;
const SUM: u64 = CELLS * 8;
const BYTES: usize = 4096;

/// A link whose rails are up, and a window of B's that A may reach.
pub(crate) fn granted(plan: &str, access: RemoteAccess) -> (Two, Memory, u32) {
    let mut two = Two::between([1, 2].map(ports_of_one_device), plan, None);
    two.connected(2);
    let memory = memory(&two);
    let number = grant(&mut two, memory.remote(), access);
    (two, memory, number)
}

/// Memory of B's.
fn memory(two: &Two) -> Memory {
    let worker = &two.process(B).workers[0];
    worker
        .window(&WindowConfig::new(BYTES, RemoteAccess::ALL))
        .unwrap()
}

/// Lets A reach this; its number.
pub(crate) fn grant(two: &mut Two, window: RemoteWindow, access: RemoteAccess) -> u32 {
    let b = two.process_mut(B);
    let link = b.link.unwrap();
    let number = b.links.grant(link, &[(0, window)], access).unwrap();
    let is_told = two.run(ms(150), |two| !two.process(A).asides.is_empty());
    assert!(is_told);
    let told = two.process_mut(A).asides.drain(..).collect::<Vec<_>>();
    assert_eq!(told, [Aside::Granted(number, window.length_bytes(), access)]);
    number
}

/// How each that ended did, by its place.
fn ends(two: &mut Two) -> BTreeMap<usize, RequestEnd> {
    let asides = two.process_mut(A).asides.drain(..);
    let ends = asides.map(|aside| match aside {
        Aside::Ended(id, end, _) => (id.place(), end),
        other => panic!("{other:?}"),
    });
    ends.collect()
}

pub(crate) fn downs(two: &Two) -> usize {
    let is_down = |(_, event): &&(_, SessionEvent)| matches!(event, SessionEvent::RailDown { .. });
    two.process(A).events.iter().filter(is_down).count()
}

pub(crate) fn close(two: &mut Two, within: Duration) {
    let deadline = two.deadline(within);
    let a = two.process_mut(A);
    a.links.close(a.link.unwrap(), deadline);
}

pub(crate) fn ask(two: &mut Two, at: (u32, u64), request: &Request<'_>) -> Result<RequestId, RequestRefusal> {
    let a = two.process_mut(A);
    let Some(link) = a.link else {
        return Err(RequestRefusal::Closing);
    };
    a.links.request(&a.node, link, at, request)
}

/// Asks, and waits for the end.
pub(crate) fn done(two: &mut Two, at: (u32, u64), request: &Request<'_>) -> (RequestEnd, Vec<u8>) {
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
    let long = vec![0; (1 << 20) + 1];
    let beyond = |offset| RequestRefusal::OutOfWindow {
        offset,
        bytes: 1,
        window_bytes: 4096,
    };
    let too_long = RequestRefusal::TooLong {
        bytes: (1 << 20) + 1,
        bytes_max: 1 << 20,
    };
    let misaligned = RequestRefusal::Misaligned { offset: 4 };
    for (at, request, refusal) in [
        ((window + 1, 0), Request::Write(b"x"), RequestRefusal::NoWindow),
        ((window, 4096), Request::Write(b"x"), beyond(4096)),
        ((window, u64::MAX), Request::Write(b"x"), beyond(u64::MAX)),
        ((window, 0), Request::Write(&long), too_long),
        ((window, 4), Request::FetchAndAdd(1), misaligned),
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
    // Gone, without a withdrawal.
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
        let ends = ends(&mut two);
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
fn closing_waits_for_requests_which_end_as_they_would() {
    let (mut two, memory, window) = granted("", RemoteAccess::ALL);
    let (seven, now) = (word(7), two.fabric.now());
    for (offset, request) in [
        (0, Request::Write(&seven)),
        (8, Request::Read(8)),
        (SUM, Request::FetchAndAdd(1)),
        (16, Request::WriteOnce(&seven)),
    ] {
        ask(&mut two, (window, offset), &request).unwrap();
    }
    close(&mut two, ms(2000));
    assert_eq!(
        ask(&mut two, (window, 0), &Request::Read(8)),
        Err(RequestRefusal::Closing)
    );
    assert!(two.run(ms(1000), |two| {
        two.processes.iter().flatten().all(|each| each.over.is_some())
    }));
    assert_eq!(
        ends(&mut two),
        (0..4).map(|place| (place, RequestEnd::Done)).collect()
    );
    assert_eq!(
        (
            memory.load_u64(0),
            memory.load_u64(16),
            memory.load_u64(SUM as usize)
        ),
        (Ok(7), Ok(7), Ok(1))
    );
    let overs = [A, B].map(|at| two.process(at).over.unwrap());
    assert_eq!(overs, [FinalReason::Closed, FinalReason::PeerClosed]);
    assert!(two.fabric.now() < now.after(ms(3)), "{:?}", two.fabric.now());
    two.fabric.audit().unwrap();
}

#[test]
fn what_has_no_end_by_the_deadline_of_a_closing_ends_unknown() {
    let (mut two, _memory, window) = granted("at 150ms link a-b down", RemoteAccess::ALL);
    two.run(ms(150), |_| false);
    for (offset, request) in [
        (0, Request::Write(b"lost")),
        (8, Request::Read(8)),
        (SUM, Request::FetchAndAdd(1)),
    ] {
        ask(&mut two, (window, offset), &request).unwrap();
    }
    two.run(ms(160), |_| false);
    close(&mut two, ms(50));
    assert!(!two.run(ms(209), |two| two.process(A).over.is_some()));
    assert!(two.run(ms(211), |two| two.process(A).over.is_some()));
    let unknown = RequestEnd::Unknown {
        was_posted: true,
        reason: UnknownReason::Over(FinalReason::Closed),
    };
    assert_eq!(ends(&mut two), (0..3).map(|place| (place, unknown)).collect());
}

/// A request that A's own device refuses ends with that, and a request beside it is done at once.
fn refused_beside_done(two: &mut Two, window: u32, refused: &Request<'_>) {
    ask(two, (window, 0), refused).unwrap();
    ask(two, (window, 8), &Request::Write(&word(5))).unwrap();
    ask(two, (window, 0), refused).unwrap();
    ask(two, (window, 16), &Request::WriteOnce(&word(6))).unwrap();
    let now = two.fabric.now();
    let until = |span| Duration::from_nanos(now.to_ns()) + span;
    assert!(two.run(until(ms(3)), |two| two.process(A).asides.len() == 2));
    assert_eq!(ends(two), [1, 3].map(|place| (place, RequestEnd::Done)).into());
    // Messages proceed, too.
    two.sends_every = [Some(ms(20)), Some(ms(20))];
    assert!(!two.run(until(ms(9_999)), |two| !two.process(A).asides.is_empty()));
    assert!(two.run(until(ms(10_010)), |two| two.process(A).asides.len() == 2));
    let unknown = RequestEnd::Unknown {
        was_posted: false,
        reason: UnknownReason::Refused,
    };
    assert_eq!(ends(two), [0, 2].map(|place| (place, unknown)).into());
    assert_eq!(downs(two), 0);
    assert!(
        two.settle(until(ms(11_000))),
        "{:?} {:?}",
        two.counts(A),
        two.counts(B)
    );
}

#[test]
fn what_our_device_refuses_holds_up_nothing_behind_it() {
    let plan = "fail every 1st read post of a with 22; fail every 1st atomic post of a with 95";
    for refused in [Request::Read(8), Request::FetchAndAdd(1)] {
        let (mut two, memory, window) = granted(plan, RemoteAccess::ALL);
        refused_beside_done(&mut two, window, &refused);
        assert_eq!((memory.load_u64(8), memory.load_u64(16)), (Ok(5), Ok(6)));
        two.fabric.audit().unwrap();
    }
}

/// The same as [`granted`], where A's Workers have these classes.
fn granted_in(classes: Option<Classes>, plan: &str) -> (Two, Memory, u32) {
    let mut two = Two::apart([1, 2].map(ports_of_one_device), plan, None);
    two.processes[A] = None;
    two.processes[A] = Some(Process::in_classes(&two.hosts[A], &config(), classes));
    two.begin();
    two.connected(2);
    let memory = memory(&two);
    let number = grant(&mut two, memory.remote(), RemoteAccess::ALL);
    (two, memory, number)
}

#[test]
fn what_our_device_refused_before_the_rails_failed_ends_for_lack_of_a_rail() {
    let plan = "fail every 1st read post of a with 22; at 300ms link a-b down";
    for classes in [None, Some(Classes::default())] {
        let (mut two, _memory, window) = granted_in(classes, plan);
        let begun = two.fabric.now();
        let until = |span| Duration::from_nanos(begun.to_ns()) + span;
        ask(&mut two, (window, 0), &Request::Read(8)).unwrap();
        assert!(two.run(until(ms(1_000)), |two| downs(two) == 2));
        two.run(until(ms(1_050)), |_| false);
        // Nothing is due before the next attempt of a rail, or the deadline of the request.
        let now = two.fabric.now();
        let one_sided = two.process(A).links.wake(now).unwrap();
        assert!(one_sided.instant() > now.after(ms(1)), "{one_sided:?} {now:?}");
        assert!(two.run(until(ms(10_010)), |two| !two.process(A).asides.is_empty()));
        let unknown = RequestEnd::Unknown {
            was_posted: false,
            reason: UnknownReason::NoRail,
        };
        assert_eq!(ends(&mut two), [(0, unknown)].into());
    }
}

/// The rate of the class lets one request through, and the next one only after its time is over.
#[test]
fn what_the_limit_of_its_class_holds_back_ends_for_lack_of_room() {
    let mut classes = Classes::default();
    classes.table[0].bytes_per_second_max = NonZeroU64::new(64);
    let plan = "fail every 1st read post of a with 22";
    let (mut two, _memory, window) = granted_in(Some(classes), plan);
    let begun = two.fabric.now();
    let until = |span| Duration::from_nanos(begun.to_ns()) + span;
    ask(&mut two, (window, 0), &Request::Read(8)).unwrap();
    two.run(until(ms(2)), |_| false);
    for offset in [0, 1024] {
        ask(&mut two, (window, offset), &Request::Write(&[1; 1024])).unwrap();
    }
    assert!(two.run(until(ms(5)), |two| !two.process(A).asides.is_empty()));
    assert_eq!(ends(&mut two), [(1, RequestEnd::Done)].into());
    // Both wait for the class, and wake nobody each millisecond.
    let mut polls = 0;
    two.run(until(ms(1_000)), |_| {
        polls += 1;
        false
    });
    assert!(polls < 800, "{polls}");
    assert!(two.run(until(ms(10_010)), |two| two.process(A).asides.len() == 2));
    let unknown = |reason| RequestEnd::Unknown {
        was_posted: false,
        reason,
    };
    let expected = [
        (0, unknown(UnknownReason::Refused)),
        (2, unknown(UnknownReason::NoRoom)),
    ];
    assert_eq!(ends(&mut two), expected.into());
    assert_eq!(downs(&two), 0);
}

#[test]
fn where_nothing_can_be_fetched_nobody_waits_behind_what_would_be() {
    let mut own = config();
    own.channel.rd_atomic_max = 0;
    for refused in [Request::Read(8), Request::FetchAndAdd(1)] {
        let mut two = Two::waiting(1, "");
        two.processes[A] = None;
        two.processes[A] = Some(Process::on(&two.hosts[A], &own, false));
        two.begin();
        two.connected(1);
        let memory = memory(&two);
        let window = grant(&mut two, memory.remote(), RemoteAccess::ALL);
        refused_beside_done(&mut two, window, &refused);
        two.fabric.audit().unwrap();
    }
}

#[test]
fn an_atomic_where_the_device_has_none_is_not_posted() {
    let quirks = Quirks {
        has_no_atomics: true,
        ..Quirks::IBA
    };
    for refused in [
        Request::FetchAndAdd(1),
        Request::CompareAndSwap { compare: 0, swap: 1 },
    ] {
        let mut two = Two::on(quirks, [1, 2].map(ports_of_one_device), "", None);
        two.begin();
        two.connected(2);
        let memory = memory(&two);
        let window = grant(&mut two, memory.remote(), RemoteAccess::ALL);
        refused_beside_done(&mut two, window, &refused);
        // Requests that the device has proceed.
        let read = done(&mut two, (window, 8), &Request::Read(8));
        assert_eq!(read, (RequestEnd::Done, word(5).to_vec()));
        two.fabric.audit().unwrap();
    }
}

#[test]
fn an_atomic_wants_a_word_that_is_aligned_wherever_its_window_begins() {
    let mut two = Two::waiting(1, "");
    two.begin();
    two.connected(1);
    let memory = memory(&two);
    let whole = memory.remote();
    let odd = RemoteWindow::new(whole.address() + 4, whole.length_bytes() - 4, whole.rkey());
    let window = grant(&mut two, odd, RemoteAccess::ALL);
    for offset in [0, 1, 8] {
        assert_eq!(
            ask(&mut two, (window, offset), &Request::FetchAndAdd(1)),
            Err(RequestRefusal::Misaligned { offset })
        );
    }
    let fetched = (RequestEnd::Done, word(0).to_vec());
    assert_eq!(done(&mut two, (window, 4), &Request::FetchAndAdd(3)), fetched);
    assert_eq!(memory.load_u64(8), Ok(3));
    assert_eq!(downs(&two), 0);
}

#[test]
fn every_request_ends_where_a_process_dies() {
    let mut all = BTreeSet::new();
    for at_us in (0..400).step_by(37) {
        let (mut two, memory, window) = granted("", RemoteAccess::ALL);
        // By their places a WRITE, an atomic and a READ of each cell.
        for (place, cell) in (0..).step_by(3).zip(0..CELLS) {
            let places = [
                ask(&mut two, (window, cell * 8), &Request::Write(&word(1))),
                ask(&mut two, (window, SUM), &Request::FetchAndAdd(1)),
                ask(&mut two, (window, cell * 8), &Request::Read(8)),
            ]
            .map(|id| id.unwrap().place());
            assert_eq!(places, [place, place + 1, place + 2]);
        }
        let now_us = two.fabric.now().to_ns() / 1000;
        two.run(Duration::from_micros(now_us + at_us), |_| false);
        two.processes[B] = None;
        two.run(ms(300), |_| false);
        two.processes[B] = Some(Process::on(&two.hosts[B], &config(), true));
        assert!(
            two.run(ms(13_000), |two| two.process(A).over.is_some()),
            "{at_us}"
        );
        let reason = two.process(A).over.unwrap();
        let (mut added, mut maybe_added) = (0, 0);
        let ends = ends(&mut two);
        assert_eq!(
            ends.keys().copied().collect::<Vec<_>>(),
            (0..12).collect::<Vec<_>>(),
            "{at_us}"
        );
        for (place, end) in ends {
            let (cell, is_write, is_atomic) = (place / 3, place % 3 == 0, place % 3 == 1);
            match end {
                RequestEnd::Done if is_write => assert_eq!(memory.load_u64(cell * 8), Ok(1), "{at_us}"),
                RequestEnd::Done => added += u64::from(is_atomic),
                RequestEnd::Unknown {
                    was_posted,
                    reason: why,
                } => {
                    // An atomic is not done again; the rest waits for a rail until there is none any more.
                    let due = match is_atomic && was_posted {
                        true => UnknownReason::RailFailed,
                        false => UnknownReason::Over(reason),
                    };
                    assert_eq!(why, due, "{at_us} {place}");
                    maybe_added += u64::from(is_atomic && was_posted);
                }
            }
            all.insert((place % 3, end == RequestEnd::Done));
        }
        let sum = memory.load_u64(SUM as usize).unwrap();
        assert!((added..=added + maybe_added).contains(&sum), "{at_us}: {sum}");
    }
    // Each kind has requests that were done, and requests that were not.
    assert_eq!(all.len(), 6, "{all:?}");
}

/// A's knowledge of a cell of the window.
#[derive(Default)]
struct Cell {
    /// The number that is written, by which request.
    open: Option<RequestId>,
    written: u64,
    /// The highest that was seen there.
    seen: u64,
    /// Whether a rail was lost since it was asked for.
    has_lost: bool,
}

#[test]
fn whatever_fails_requests_end_and_no_late_write_undoes_a_later_one() {
    let (mut repeated, mut failed) = (0, 0);
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
            let downs_before = downs(&two);
            two.run(Duration::from_micros(now + 200), |_| false);
            let has_lost = downs(&two) > downs_before;
            for (index, cell) in cells.iter_mut().enumerate() {
                let there = memory.load_u64(index * 8).unwrap();
                assert!(
                    there >= cell.seen,
                    "seed {seed}: {there} after {}: {plan}",
                    cell.seen
                );
                cell.seen = there;
                cell.has_lost |= has_lost && cell.open.is_some();
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
                        RequestEnd::Unknown { was_posted, reason } => {
                            assert_eq!(
                                (was_posted, reason),
                                (true, UnknownReason::RailFailed),
                                "seed {seed}"
                            );
                            (maybe_added, failed) = (maybe_added + 1, failed + 1);
                        }
                    }
                    continue;
                }
                let cell = cells.iter_mut().find(|cell| cell.open == Some(id)).unwrap();
                cell.open = None;
                // No rail is away as long as a link waits for one.
                assert_eq!(end, RequestEnd::Done, "seed {seed}: {plan}");
                assert!(cell.seen >= cell.written, "seed {seed}: done, and not there");
                repeated += u32::from(core::mem::take(&mut cell.has_lost));
            }
        }
        let sum = memory.load_u64(SUM as usize).unwrap();
        assert!((added..=added + maybe_added).contains(&sum), "seed {seed}: {sum}");
        assert!(
            cells.iter().map(|cell| cell.written).sum::<u64>() > 100,
            "seed {seed}: {plan}"
        );
        two.fabric.audit().unwrap();
    }
    // A rail was lost that had something: WRITEs that were open were done all the same, and atomics were not.
    assert!(repeated > 0 && failed > 0, "{repeated} {failed}");
}
