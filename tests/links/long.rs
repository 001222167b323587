//! One-sided requests that are longer than a fragment: all of their bytes and one end each, under any failure.

use core::time::Duration;

use doorbell::link::{
    FinalReason, LinkConfig, Request, RequestEnd, RequestId, RequestRefusal, UnknownReason,
};
use doorbell::provider::Window as _;
use doorbell::{RemoteAccess, RemoteWindow, WindowConfig};

use crate::anything::{Chance, plan, seeds};
use crate::one_sided::{Memory, ask, close, done, downs, grant};
use crate::processes::{A, Aside, B, Process, Two, config, ms, ports_of_one_device};

/// The fragments of the configuration of these tests.
const FRAGMENT: usize = 2048;
/// The bytes of a request: of many fragments, and of no whole number of them.
const LONG: usize = 100_001;
const BYTES: usize = 300_000;
const ALL: RemoteAccess = RemoteAccess::ALL;

/// A link of two rails to one device, and a window of B's, with A configured so.
fn granted_to(own: &LinkConfig, plan: &str, mbps: Option<u32>) -> (Two, Memory, u32) {
    let mut two = Two::apart([1, 2].map(ports_of_one_device), plan, mbps);
    two.processes[A] = None;
    two.processes[A] = Some(Process::on(&two.hosts[A], own, false));
    two.begin();
    two.connected(2);
    let worker = &two.process(B).workers[0];
    let memory = worker.window(&WindowConfig::new(BYTES, ALL)).unwrap();
    let number = grant(&mut two, memory.remote(), ALL);
    (two, memory, number)
}

fn granted(plan: &str) -> (Two, Memory, u32) {
    granted_to(&config(), plan, None)
}

/// Bytes of which each eight say which these are.
fn pattern(number: u64, bytes: usize) -> Vec<u8> {
    (0..bytes)
        .map(|at| (number as usize * 37 + at / 8 * 7 + at) as u8)
        .collect()
}

fn there(memory: &Memory, offset: usize, bytes: usize) -> Vec<u8> {
    let mut there = vec![0; bytes];
    memory.copy_out(offset, &mut there).unwrap();
    there
}

/// How a request ended, once it has, and that is by this time after the beginning.
fn end_of(two: &mut Two, id: RequestId, by: Duration) -> (RequestEnd, Vec<u8>) {
    let is_it = |aside: &Aside| matches!(aside, Aside::Ended(ended, ..) if *ended == id);
    let has_ended = two.run(by, |two| two.process(A).asides.iter().any(is_it));
    assert!(has_ended, "{id:?} has no end");
    let asides = &mut two.process_mut(A).asides;
    let at = asides.iter().position(is_it).unwrap();
    match asides.remove(at) {
        Aside::Ended(_, end, data) => (end, data),
        _ => unreachable!(),
    }
}

const fn unknown(was_posted: bool, reason: UnknownReason) -> RequestEnd {
    RequestEnd::Unknown { was_posted, reason }
}

#[test]
fn a_long_request_is_done_as_one_over_all_rails() {
    let (mut two, memory, window) = granted("");
    for (number, bytes) in [(1, FRAGMENT + 1), (2, 2 * FRAGMENT), (3, LONG)] {
        let written = pattern(number, bytes);
        let nothing = (RequestEnd::Done, Vec::new());
        let once = Request::WriteOnce(&written);
        let write = [Request::Write(&written), once][number as usize % 2];
        assert_eq!(done(&mut two, (window, 13), &write), nothing);
        assert_eq!(there(&memory, 13, bytes), written);
        assert_eq!(
            (there(&memory, 0, 13), there(&memory, 13 + bytes, 8)),
            (vec![0; 13], vec![0; 8])
        );
        let read = done(&mut two, (window, 14), &Request::Read(bytes as u32 - 1));
        assert!(read == (RequestEnd::Done, written[1..].to_vec()));
    }
    // A shorter one in the memory of a longer one has its own bytes alone.
    let read = done(&mut two, (window, 13), &Request::Read(5000));
    assert!(read == (RequestEnd::Done, pattern(3, 5000)));
    let a = two.process(A);
    let sent: Vec<u64> = a
        .links
        .rails(a.link.unwrap())
        .map(|rail| rail.counts.sent_bytes)
        .collect();
    assert!(
        sent.len() == 2 && sent.iter().all(|bytes| *bytes > 90_000),
        "{sent:?}"
    );
    assert_eq!(downs(&two), 0);
    two.fabric.audit().unwrap();
}

#[test]
fn a_request_has_the_bytes_that_it_may_have_and_not_one_more() {
    let mut own = config();
    own.request_bytes_max = LONG as u32;
    let (mut two, _memory, window) = granted_to(&own, "", None);
    let read = |two: &mut Two, bytes: usize| ask(two, (window, 0), &Request::Read(bytes as u32));
    let too_long = |bytes: usize, bytes_max: usize| {
        Err(RequestRefusal::TooLong {
            bytes: bytes as u64,
            bytes_max: bytes_max as u32,
        })
    };
    assert_eq!(read(&mut two, LONG + 1), too_long(LONG + 1, LONG));
    // Two long ones at a time, and beside them as many short ones as there are places.
    let long = [LONG, FRAGMENT + 1].map(|bytes| read(&mut two, bytes).unwrap());
    assert_eq!(read(&mut two, FRAGMENT + 1), Err(RequestRefusal::Full));
    let short: Vec<_> = (0..14).map(|_| read(&mut two, FRAGMENT).unwrap()).collect();
    assert_eq!(read(&mut two, 1), Err(RequestRefusal::Full));
    for id in short {
        assert_eq!(
            end_of(&mut two, id, ms(200)),
            (RequestEnd::Done, vec![0; FRAGMENT])
        );
    }
    assert!(end_of(&mut two, long[1], ms(200)).0 == RequestEnd::Done);
    assert!(end_of(&mut two, long[0], ms(200)) == (RequestEnd::Done, vec![0; LONG]));
    for (long_requests, request_bytes_max) in [(0, 1 << 20), (2, 0), (2, FRAGMENT as u32)] {
        (own.long_requests, own.request_bytes_max) = (long_requests, request_bytes_max);
        let (mut two, _memory, window) = granted_to(&own, "", None);
        let read = |two: &mut Two, bytes: usize| ask(two, (window, 0), &Request::Read(bytes as u32));
        assert_eq!(read(&mut two, FRAGMENT + 1), too_long(FRAGMENT + 1, FRAGMENT));
        let id = read(&mut two, FRAGMENT).unwrap();
        assert_eq!(
            end_of(&mut two, id, ms(200)),
            (RequestEnd::Done, vec![0; FRAGMENT])
        );
    }
}

#[test]
fn a_peer_that_takes_no_such_message_and_makes_no_such_request_executes_them() {
    let mut two = Two::apart([1, 2].map(ports_of_one_device), "", None);
    let mut other = config();
    (other.message_bytes_max, other.long_requests, other.requests) = (64, 0, 1);
    two.processes[B] = None;
    two.processes[B] = Some(Process::on(&two.hosts[B], &other, true));
    two.begin();
    two.connected(2);
    let worker = &two.process(B).workers[0];
    let memory = worker.window(&WindowConfig::new(BYTES, ALL)).unwrap();
    let window = grant(&mut two, memory.remote(), ALL);
    let written = pattern(9, LONG);
    done(&mut two, (window, 0), &Request::Write(&written));
    let read = done(&mut two, (window, 0), &Request::Read(LONG as u32));
    assert!(read == (RequestEnd::Done, written));
}

#[test]
fn short_ones_and_messages_do_not_wait_for_long_ones_and_two_long_ones_share() {
    // 100 KB take 400 µs over two such rails.
    let (mut two, _memory, window) = granted_to(&config(), "", Some(1000));
    let begun = two.fabric.now();
    let long = [(); 2].map(|()| ask(&mut two, (window, 0), &Request::Read(LONG as u32)).unwrap());
    two.run(
        Duration::from_nanos(begun.to_ns()) + Duration::from_micros(200),
        |_| false,
    );
    let short = ask(&mut two, (window, 0), &Request::Read(8)).unwrap();
    assert_eq!(end_of(&mut two, short, ms(200)).0, RequestEnd::Done);
    assert_eq!(two.process(A).asides, []);
    two.process_mut(A).send().unwrap();
    two.run(ms(200), |two| two.process(B).delivered == 1);
    assert_eq!(two.process(A).asides, []);
    end_of(&mut two, long[0], ms(200));
    let first = two.fabric.now();
    end_of(&mut two, long[1], ms(200));
    let second = two.fabric.now();
    // They end nearly together, since they took turns.
    assert!(second.to_ns() - first.to_ns() < (first.to_ns() - begun.to_ns()) / 4);
}

#[test]
fn a_rail_that_is_cut_in_mid_request_costs_no_byte_and_no_late_write_comes() {
    let mut once_ends = [0, 0];
    for at_us in (0..1600).step_by(130) {
        let cut = format!("at {}us link a/sim0:1-b/sim0:1 down for 400ms", 150_010 + at_us);
        let (mut two, memory, window) = granted_to(&config(), &cut, Some(1000));
        two.run(ms(150), |_| false);
        let (first, second) = (pattern(1, LONG), pattern(2, LONG));
        let write = ask(&mut two, (window, 0), &Request::Write(&first)).unwrap();
        let read = ask(&mut two, (window, 150_000), &Request::Read(LONG as u32)).unwrap();
        assert_eq!(end_of(&mut two, write, ms(900)).0, RequestEnd::Done, "{at_us}");
        assert!(there(&memory, 0, LONG) == first);
        assert!(end_of(&mut two, read, ms(900)) == (RequestEnd::Done, vec![0; LONG]));
        // The rail is back.
        assert!(two.process(A).asides.is_empty());
        two.run(ms(1200), |_| false);
        let (end, _) = done(&mut two, (window, 0), &Request::Write(&second));
        assert_eq!(end, RequestEnd::Done);
        two.run(ms(1500), |_| false);
        assert!(there(&memory, 0, LONG) == second, "a late WRITE came");
        two.fabric.audit().unwrap();

        let (mut two, memory, window) = granted_to(&config(), &cut, Some(1000));
        two.run(ms(150), |_| false);
        let once = ask(&mut two, (window, 0), &Request::WriteOnce(&first)).unwrap();
        let (end, _) = end_of(&mut two, once, ms(900));
        match end {
            RequestEnd::Done => assert!(there(&memory, 0, LONG) == first),
            end => assert_eq!(end, unknown(true, UnknownReason::RailFailed)),
        }
        once_ends[usize::from(end == RequestEnd::Done)] += 1;
        // Its memory and its places are free again.
        assert_eq!(
            done(&mut two, (window, 0), &Request::Write(&second)).0,
            RequestEnd::Done
        );
        assert!(there(&memory, 0, LONG) == second);
        two.fabric.audit().unwrap();
    }
    assert!(once_ends[0] > 0 && once_ends[1] > 0, "{once_ends:?}");
}

#[test]
fn a_write_whose_rail_stays_away_is_done_over_the_other_behind_a_fence() {
    for at_us in [100, 300, 500] {
        let cut = format!("at {}us link a/sim0:1-b/sim0:1 down", 150_010 + at_us);
        let (mut two, memory, window) = granted_to(&config(), &cut, Some(1000));
        two.run(ms(150), |_| false);
        let written = pattern(1, LONG);
        let write = ask(&mut two, (window, 0), &Request::Write(&written)).unwrap();
        assert_eq!(end_of(&mut two, write, ms(600)).0, RequestEnd::Done, "{at_us}");
        assert!(there(&memory, 0, LONG) == written);
    }
}

#[test]
fn where_no_rail_is_left_each_ends_once_and_with_the_end_of_the_link() {
    let (mut two, _memory, window) = granted_to(&config(), "at 150500us link a-b down", Some(1000));
    two.run(ms(150), |_| false);
    let posted = [Request::Read(LONG as u32), Request::Write(&pattern(1, LONG))];
    let posted = posted.map(|request| ask(&mut two, (window, 0), &request).unwrap());
    assert!(two.run(ms(13_000), |two| two.process(A).over.is_some()));
    let over = two.process(A).over.unwrap();
    for id in posted {
        let (end, data) = end_of(&mut two, id, ms(13_000));
        // One that waited for a rail when there was none any more did so for longer.
        let reasons = [UnknownReason::Over(over), UnknownReason::NoRail];
        assert!(
            reasons.map(|reason| unknown(true, reason)).contains(&end),
            "{end:?}"
        );
        assert!(data.is_empty());
    }
    assert_eq!(two.process(A).asides, []);
}

#[test]
fn closing_waits_for_a_long_request_until_its_deadline() {
    for (within, end) in [
        (ms(500), RequestEnd::Done),
        (
            Duration::from_micros(400),
            unknown(true, UnknownReason::Over(FinalReason::Closed)),
        ),
    ] {
        let (mut two, _memory, window) = granted_to(&config(), "", Some(1000));
        let read = ask(&mut two, (window, 0), &Request::Read(BYTES as u32)).unwrap();
        two.run(Duration::from_nanos(two.fabric.now().to_ns() + 200_000), |_| {
            false
        });
        close(&mut two, within);
        let refused = ask(&mut two, (window, 0), &Request::Read(BYTES as u32));
        assert_eq!(refused, Err(RequestRefusal::Closing));
        assert_eq!(end_of(&mut two, read, ms(900)).0, end);
        assert!(two.run(ms(900), |two| two.process(A).over == Some(FinalReason::Closed)));
    }
}

#[test]
fn a_withdrawal_in_mid_request_ends_it_and_nothing_more_is_posted() {
    for (request, is_read) in [
        (Request::Read(BYTES as u32), true),
        (Request::Write(&[3; BYTES]), false),
    ] {
        let (mut two, memory, window) = granted_to(&config(), "", Some(1000));
        let id = ask(&mut two, (window, 0), &request).unwrap();
        two.run(Duration::from_nanos(two.fabric.now().to_ns() + 300_000), |_| {
            false
        });
        let b = two.process_mut(B);
        b.links.withdraw(b.link.unwrap(), window);
        let (end, data) = end_of(&mut two, id, ms(900));
        assert_eq!((end, data.len()), (unknown(true, UnknownReason::Withdrawn), 0));
        assert_eq!(downs(&two), 0);
        // The end came after all that was posted of it.
        let now = there(&memory, 0, BYTES);
        assert!(is_read || now[0] == 3 && now[BYTES - 1] == 0);
        two.run(ms(1500), |_| false);
        assert!(there(&memory, 0, BYTES) == now);
        assert_eq!(two.process(A).asides, [Aside::Withdrawn(window)]);
    }
}

#[test]
fn what_the_peers_device_refuses_costs_no_more_than_a_rail_each() {
    for request in [
        Request::Read(LONG as u32),
        Request::Write(&[1; LONG]),
        Request::WriteOnce(&[1; LONG]),
    ] {
        let (mut two, memory, window) = granted("");
        // Gone, without a withdrawal.
        drop(memory);
        let (end, _) = done(&mut two, (window, 0), &request);
        assert_eq!(end, unknown(true, UnknownReason::Denied), "{request:?}");
        two.sends_every = [Some(ms(1)), Some(ms(1))];
        let until = two.fabric.now().to_ns() / 1_000_000;
        two.run(ms(until + 500), |_| false);
        assert!(two.settle(ms(until + 2000)));
        assert!(downs(&two) <= 2, "{}", downs(&two));
        two.fabric.audit().unwrap();
    }
}

#[test]
fn the_refusal_of_the_peers_device_is_the_cause_though_others_fail_with_its_rail() {
    let mut failed = 0;
    for offset in (20_000..200_000).step_by(15_000) {
        let (mut two, memory, _) = granted_to(&config(), "", Some(1000));
        // The window is longer than the memory.
        let whole = memory.remote();
        let window = RemoteWindow::new(whole.address(), 2 * BYTES as u64, whole.rkey());
        let window = grant(&mut two, window, ALL);
        let bytes = BYTES + 100_000 - offset;
        let once = ask(
            &mut two,
            (window, offset as u64),
            &Request::WriteOnce(&vec![9; bytes]),
        )
        .unwrap();
        let (end, _) = end_of(&mut two, once, ms(900));
        assert_eq!(end, unknown(true, UnknownReason::Denied), "{offset}");
        failed += downs(&two);
    }
    assert!(failed > 0);
}

#[test]
fn a_withdrawal_ends_what_waits_for_a_device_at_once() {
    let (mut two, _memory, window) = granted("fail every 1st read post of a with 22");
    let read = ask(&mut two, (window, 0), &Request::Read(4 * FRAGMENT as u32)).unwrap();
    let begun = two.fabric.now();
    two.run(Duration::from_nanos(begun.to_ns() + 500_000), |_| false);
    // It is tried again after 10 ms.
    let now = two.fabric.now();
    let wake = two.process(A).links.wake(now).unwrap();
    assert!(wake.instant() <= begun.after(ms(11)), "{wake:?} {begun:?}");
    let b = two.process_mut(B);
    b.links.withdraw(b.link.unwrap(), window);
    let (end, _) = end_of(&mut two, read, Duration::from_nanos(begun.to_ns()) + ms(5));
    assert_eq!(end, unknown(false, UnknownReason::Withdrawn));
}

#[test]
fn what_our_device_refuses_ends_so_in_time() {
    let plan = "fail every 1st read post of a with 22";
    let (mut two, memory, window) = granted(plan);
    let begun = two.fabric.now().to_ns() / 1_000_000;
    let read = ask(&mut two, (window, 0), &Request::Read(LONG as u32)).unwrap();
    let written = pattern(1, LONG);
    let write = ask(&mut two, (window, 0), &Request::Write(&written)).unwrap();
    assert_eq!(end_of(&mut two, write, ms(begun + 20)).0, RequestEnd::Done);
    assert!(there(&memory, 0, LONG) == written);
    let refused = unknown(false, UnknownReason::Refused);
    assert_eq!(end_of(&mut two, read, ms(begun + 10_100)).0, refused);
    assert_eq!(downs(&two), 0);
}

#[test]
fn what_our_device_refused_before_the_rails_failed_ends_for_lack_of_a_rail() {
    let (mut two, _memory, window) = granted("fail every 1st read post of a with 22; at 300ms link a-b down");
    let begun = Duration::from_nanos(two.fabric.now().to_ns());
    let read = ask(&mut two, (window, 0), &Request::Read(LONG as u32)).unwrap();
    let (end, _) = end_of(&mut two, read, begun + ms(10_100));
    assert_eq!(end, unknown(false, UnknownReason::NoRail));
}

#[test]
fn a_callback_that_panics_loses_no_end_of_a_long_request() {
    let (mut two, _memory, window) = granted("");
    two.process_mut(A).panics_every = Some(1);
    let written = pattern(5, LONG);
    assert_eq!(
        done(&mut two, (window, 0), &Request::Write(&written)).0,
        RequestEnd::Done
    );
    assert!(done(&mut two, (window, 0), &Request::Read(LONG as u32)).1 == written);
    assert!(two.process(A).panics >= 2);
}

#[test]
fn whatever_fails_long_requests_end_and_no_late_write_undoes_a_later_one() {
    const EACH: usize = 8000;
    let number = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().unwrap());
    let words = |memory: &Memory| -> Vec<u64> { there(memory, 0, EACH).chunks(8).map(number).collect() };
    let (mut all, mut lost) = (0, 0);
    for seed in seeds() {
        let mut chance = Chance(seed);
        let plan = plan(&mut chance, 2, |rail| format!("sim0:{}", rail + 1), 150_000);
        let (mut two, memory, window) = granted_to(&config(), &plan, Some(100));
        let (mut write, mut read, mut written) = (None, None, 0_u64);
        let mut seen = words(&memory);
        let (mut done, mut is_stopping) = (0_u64, false);
        while !is_stopping || write.is_some() || read.is_some() {
            let now = two.fabric.now().to_ns() / 1000;
            is_stopping |= now > 900_000;
            assert!(now < 14_000_000, "seed {seed}: something hangs: {plan}");
            if write.is_none() && !is_stopping {
                let next: Vec<u8> = (0..EACH / 8).flat_map(|_| (written + 1).to_ne_bytes()).collect();
                write = ask(&mut two, (window, 0), &Request::Write(&next)).ok();
                written += u64::from(write.is_some());
            }
            if read.is_none() && !is_stopping {
                let asked = ask(&mut two, (window, 0), &Request::Read(EACH as u32));
                read = asked.ok().map(|id| (id, done));
            }
            let downs_before = downs(&two);
            two.run(Duration::from_micros(now + 250), |_| false);
            lost += downs(&two) - downs_before;
            let words = words(&memory);
            assert!(
                seen.iter().zip(&words).all(|(seen, word)| seen <= word),
                "seed {seed}: {plan}"
            );
            seen = words;
            for aside in two.process_mut(A).asides.drain(..) {
                let Aside::Ended(id, RequestEnd::Done, data) = aside else {
                    panic!("seed {seed}: {aside:?}: {plan}")
                };
                if write == Some(id) {
                    (write, done, all) = (None, written, all + 1);
                    assert!(
                        seen.iter().all(|word| *word == written),
                        "seed {seed}: done, and not there"
                    );
                } else {
                    let (asked, least) = read.take().unwrap();
                    assert_eq!((asked, data.len()), (id, EACH));
                    let mut read = data.chunks(8).map(number);
                    assert!(read.all(|word| (least..=written).contains(&word)), "seed {seed}");
                }
            }
        }
        two.fabric.audit().unwrap();
    }
    let count = seeds().end - seeds().start;
    assert!(all > 80 * count && (lost > 0 || count < 6), "{all} {lost}");
}
