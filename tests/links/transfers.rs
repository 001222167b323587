//! Transfers of links: all of the bytes or a reason, over any rails and under any failure, and nothing written behind the end.

use core::time::Duration;

use doorbell::link::{
    EndReason, FinalReason, HealthState, TransferCounts, TransferEnd, TransferEvent, TransferId,
    TransferOptions, TransferOutcome, TransferRefusal, TransferRole,
};
use doorbell::memory::Region;
use doorbell::provider::PlacementConfig;
use doorbell_sim::Host;

use crate::anything::{Chance, plan, seeds};
use crate::processes::{A, Aside, B, Process, Two, ms};

mod rates;

type Memory = Region<Host>;

pub(crate) fn region(process: &Process, bytes: usize) -> Memory {
    let placement = PlacementConfig::DEFAULT;
    process.node.region(&process.workers, bytes, &placement).unwrap()
}

/// Bytes that follow from a number.
pub(crate) fn bytes_of(number: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64)
        .map(|at| (at.wrapping_mul(number | 1) >> 7) as u8 ^ at as u8)
        .collect()
}

/// A region with these bytes.
pub(crate) fn filled(process: &Process, number: u64, bytes: usize) -> Memory {
    let region = region(process, bytes);
    region.copy_in(0, &bytes_of(number, bytes)).unwrap();
    region
}

pub(crate) fn read(region: &Memory) -> Vec<u8> {
    let mut bytes = vec![0; region.bytes()];
    region.copy_out(0, &mut bytes).unwrap();
    bytes
}

pub(crate) fn offer(two: &mut Two, at: usize, region: &Memory, options: &TransferOptions) -> TransferId {
    let process = two.process_mut(at);
    let bytes = region.bytes() as u64;
    let link = process.link.unwrap();
    process
        .links
        .offer(&process.node, link, (region, 0, bytes), options)
        .unwrap()
}

fn ask(two: &mut Two, at: usize, region: &Memory) -> TransferId {
    let process = two.process_mut(at);
    let bytes = region.bytes() as u64;
    let link = process.link.unwrap();
    let options = TransferOptions::default();
    process
        .links
        .ask(&process.node, link, (region, 0, bytes), &options)
        .unwrap()
}

pub(crate) fn join(two: &mut Two, at: usize, id: TransferId, region: &Memory) {
    let process = two.process_mut(at);
    let link = process.link.unwrap();
    let options = TransferOptions::default();
    process
        .links
        .join(&process.node, (link, id), (region, 0), &options)
        .unwrap();
}

fn cancel(two: &mut Two, at: usize, id: TransferId) {
    let process = two.process_mut(at);
    let link = process.link.unwrap();
    process.links.cancel(&process.node, (link, id)).unwrap();
}

/// Waits until a process is offered a transfer.
pub(crate) fn offered(two: &mut Two, at: usize) -> (TransferId, TransferRole, u64, u64) {
    let until = ms(two.fabric.now().to_ns() / 1_000_000 + 500);
    let find = |aside: &Aside| match aside {
        Aside::Transfer(id, TransferEvent::Offered { role, bytes, tag }) => Some((*id, *role, *bytes, *tag)),
        _ => None,
    };
    assert!(two.run(until, |two| {
        two.process(at).asides.iter().any(|aside| find(aside).is_some())
    }));
    let asides = &mut two.process_mut(at).asides;
    let place = asides.iter().position(|aside| find(aside).is_some()).unwrap();
    find(&asides.remove(place)).unwrap()
}

pub(crate) fn end_of(process: &Process, id: TransferId) -> Option<(TransferEnd, TransferCounts)> {
    process.asides.iter().find_map(|aside| match aside {
        Aside::Transfer(of, TransferEvent::Ended { end, counts, .. }) if *of == id => Some((*end, *counts)),
        _ => None,
    })
}

/// Waits until a transfer has ended at these processes.
fn ended(
    two: &mut Two,
    at: &[usize],
    id: TransferId,
    within: Duration,
) -> Vec<(TransferEnd, TransferCounts)> {
    let until = Duration::from_nanos(two.fabric.now().to_ns()) + within;
    let has_ended = |two: &Two| at.iter().all(|at| end_of(two.process(*at), id).is_some());
    assert!(
        two.run(until, has_ended),
        "{:?} {:?}",
        two.process(A).asides,
        two.process(B).asides
    );
    at.iter()
        .map(|at| end_of(two.process(*at), id).unwrap())
        .collect()
}

fn done(bytes: usize) -> TransferCounts {
    let mut counts = TransferCounts::default();
    counts.landed_bytes = bytes as u64;
    counts
}

/// The totals of a process agree with the events that it got, and with the transfers that it began.
fn totals_agree(process: &Process, begun: usize, gives: impl Fn(TransferId) -> bool) {
    let totals = process.links.transfer_totals();
    let (mut offered, mut ends, mut bytes) = (0, [0; TransferOutcome::ALL.len()], [0; 4]);
    for aside in &process.asides {
        match aside {
            Aside::Transfer(_, TransferEvent::Offered { .. }) => offered += 1,
            Aside::Transfer(id, TransferEvent::Ended { end, counts, .. }) => {
                ends[TransferOutcome::of(*end) as usize] += 1;
                bytes[usize::from(gives(*id))] += counts.landed_bytes;
                bytes[2] += counts.repeated_bytes;
                bytes[3] += counts.duplicates;
            }
            _ => {}
        }
    }
    assert_eq!((totals.begun, totals.offered), (begun as u64, offered));
    assert_eq!(TransferOutcome::ALL.map(|outcome| totals.ended(outcome)), ends);
    let counted = [
        totals.taken_bytes,
        totals.given_bytes,
        totals.repeated_bytes,
        totals.duplicates,
    ];
    assert_eq!(counted, bytes);
}

/// Numbers of totals that only grow.
fn grows(process: &Process) -> [u64; 5] {
    let totals = process.links.transfer_totals();
    let ended = TransferOutcome::ALL.iter().map(|outcome| totals.ended(*outcome));
    let (given, taken) = (totals.given_bytes, totals.taken_bytes);
    [totals.begun, totals.offered, given, taken, ended.sum()]
}

#[test]
fn all_bytes_arrive_whoever_begins_and_over_any_number_of_rails() {
    for rails in [1, 2, 3] {
        for bytes in [1, 4096, 300_001, 1 << 20] {
            for taker_begins in [false, true] {
                let mut two = Two::new(rails, "");
                two.connected(rails as u8);
                let from = filled(two.process(A), 77, bytes);
                let to = region(two.process(B), bytes);
                let id = if taker_begins {
                    let id = ask(&mut two, B, &to);
                    assert_eq!(offered(&mut two, A), (id, TransferRole::Giver, bytes as u64, 0));
                    join(&mut two, A, id, &from);
                    id
                } else {
                    let mut options = TransferOptions::default();
                    options.tag = 9;
                    let id = offer(&mut two, A, &from, &options);
                    assert_eq!(offered(&mut two, B), (id, TransferRole::Taker, bytes as u64, 9));
                    join(&mut two, B, id, &to);
                    id
                };
                let ends = ended(&mut two, &[A, B], id, ms(1000));
                assert_eq!(ends, [(TransferEnd::Done, done(bytes)); 2]);
                assert!(read(&to) == bytes_of(77, bytes));
                two.sends_every = [Some(ms(1)); 2];
                two.run(ms(1200), |_| false);
                assert!(two.settle(ms(2000)));
                // Both have forgotten it.
                for at in [A, B] {
                    let process = two.process(at);
                    assert_eq!(process.links.transfer_counts(process.link.unwrap(), id), None);
                }
                two.fabric.audit().unwrap();
            }
        }
    }
}

#[test]
fn every_byte_arrives_or_the_end_has_a_reason_under_random_plans_and_nothing_is_written_behind_it() {
    for seed in seeds() {
        let mut chance = Chance(seed);
        let rails = 1 + chance.below(3);
        let plan = plan(&mut chance, rails, |rail| format!("sim{rail}:1"), 5_000);
        // So slow that faults hit transfers under way.
        let mut two = Two::with(rails as usize, &plan, Some(200));
        two.run(ms(300), |two| {
            two.process(A)
                .saw(doorbell::link::SessionEvent::Connected)
                .is_some()
        });
        let mut transfers = Vec::new();
        for number in 0..1 + chance.below(4) {
            let bytes = 1 + chance.below(3_000_000) as usize;
            let (giver, begins) = (chance.below(2) as usize, chance.below(2) == 0);
            let from = filled(two.process(giver), number, bytes);
            let to = region(two.process(1 - giver), bytes);
            let id = match begins {
                true => offer(&mut two, giver, &from, &TransferOptions::default()),
                false => ask(&mut two, 1 - giver, &to),
            };
            transfers.push((id, number, giver, begins, from, to, false));
        }
        let cancelled = (chance.below(3) == 0).then(|| (chance.below(2) as usize, chance.below(600)));
        let mut reused = vec![false; transfers.len()];
        let (mut quiet, mut grown) = (0, [[0; 5]; 2]);
        for step in 0..12_000 / 20_u64 {
            // When all have ended, a while longer.
            quiet += u64::from(reused.iter().all(|is_reused| *is_reused));
            if quiet > 20 {
                break;
            }
            two.run(ms(300 + step * 20), |_| false);
            for (at, before) in grown.iter_mut().enumerate() {
                let now = grows(two.process(at));
                assert!(
                    before.iter().zip(now).all(|(before, now)| *before <= now),
                    "{before:?} {now:?}"
                );
                *before = now;
            }
            for (place, (id, number, giver, begins, from, to, has_joined)) in transfers.iter_mut().enumerate()
            {
                let joiner = if *begins { 1 - *giver } else { *giver };
                let is_offered = |aside: &Aside| matches!(aside, Aside::Transfer(of, TransferEvent::Offered { .. }) if *of == *id);
                if !*has_joined && two.process(joiner).asides.iter().any(is_offered) {
                    join(&mut two, joiner, *id, if *begins { to } else { from });
                    *has_joined = true;
                }
                if let Some((at, _)) = cancelled.filter(|(_, when)| place == 0 && *when == step) {
                    let process = two.process_mut(at);
                    let link = process.link.unwrap();
                    let _ = process.links.cancel(&process.node, (link, *id));
                }
                // The memory is the application's again, and it writes there.
                if let Some((end, _)) = end_of(two.process(1 - *giver), *id).filter(|_| !reused[place]) {
                    if end == TransferEnd::Done {
                        assert!(read(to) == bytes_of(*number, to.bytes()), "seed {seed}: {plan}");
                    }
                    to.copy_in(0, &bytes_of(1234, to.bytes())).unwrap();
                    reused[place] = true;
                }
            }
        }
        for at in [A, B] {
            let begun = |(_, _, giver, begins, ..): &&(_, _, usize, bool, _, _, _)| (*giver == at) == *begins;
            let gives = |id| {
                transfers
                    .iter()
                    .any(|(of, _, giver, ..)| *of == id && *giver == at)
            };
            totals_agree(two.process(at), transfers.iter().filter(begun).count(), gives);
            let mut over = std::collections::BTreeSet::new();
            for aside in &two.process(at).asides {
                let Aside::Transfer(id, event) = aside else {
                    panic!("{aside:?}");
                };
                assert!(!over.contains(&id.0), "seed {seed}: {event:?} behind the end");
                if matches!(event, TransferEvent::Ended { .. }) {
                    over.insert(id.0);
                }
            }
        }
        for (place, (id, _, giver, _, _, to, _)) in transfers.iter().enumerate() {
            let ends = [*giver, 1 - *giver].map(|at| end_of(two.process(at), *id));
            let [Some((gave, _)), Some((took, counts))] = ends else {
                panic!("seed {seed}: {plan}: {id} of {} bytes: {ends:?}", to.bytes());
            };
            assert!(
                reused[place] && read(to) == bytes_of(1234, to.bytes()),
                "seed {seed}: written behind the end"
            );
            assert_eq!(counts.duplicates, 0);
            let is_done = (gave, took) == (TransferEnd::Done, TransferEnd::Done);
            assert!(
                is_done || cancelled.is_some() && place == 0,
                "seed {seed}: {plan}: {gave:?} {took:?}"
            );
        }
        two.fabric
            .audit()
            .unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
    }
}

#[test]
fn a_transfer_begins_and_ends_beside_a_rail_in_doubt() {
    let mut two = Two::with(2, "at 100ms link a/sim0:1-b/sim0:1 down for 20s", Some(1000));
    two.connected(2);
    let [from, to] = [A, B].map(|at| region(two.process(at), 4096));
    let declined = offer(&mut two, A, &from, &TransferOptions::default());
    offered(&mut two, B);
    let in_doubt = |two: &Two, at: usize| {
        let process = two.process(at);
        process.links.rail_state(process.link.unwrap(), 0) == HealthState::Suspect
    };
    assert!(two.run(ms(300), |two| in_doubt(two, A) && in_doubt(two, B)));
    let id = offer(&mut two, A, &from, &TransferOptions::default());
    offered(&mut two, B);
    cancel(&mut two, B, declined);
    join(&mut two, B, id, &to);
    for id in [declined, id] {
        ended(&mut two, &[A, B], id, ms(50));
    }
    assert!(in_doubt(&two, A) && in_doubt(&two, B));
}

#[test]
fn a_rail_that_dies_under_way_costs_time_and_no_byte() {
    let mut two = Two::with(2, "at 40ms link a/sim0:1-b/sim0:1 down for 20s", Some(1000));
    two.connected(2);
    let bytes = 16_000_000;
    let (from, to) = (filled(two.process(A), 5, bytes), region(two.process(B), bytes));
    let id = offer(&mut two, A, &from, &TransferOptions::default());
    offered(&mut two, B);
    join(&mut two, B, id, &to);
    let ends = ended(&mut two, &[A, B], id, ms(2000));
    let repeated = ends[0].1.repeated_bytes;
    // A rail of 1 Gbit/s carries no more in 10 ms, a quarter of `suspect_after`.
    assert!(repeated > 0 && repeated <= 1_250_000, "{repeated}");
    assert_eq!(
        (ends[0].0, ends[1]),
        (TransferEnd::Done, (TransferEnd::Done, done(bytes)))
    );
    assert!(read(&to) == bytes_of(5, bytes));
}

#[test]
fn either_side_ends_one_and_both_learn_why() {
    let bytes = 20_000_000;
    let by_peer = |reason| TransferEnd::ByPeer(reason);
    let here = |reason| TransferEnd::Here(reason);
    for who in [A, B] {
        let mut two = Two::with(2, "", Some(1000));
        two.connected(2);
        let (from, to) = (filled(two.process(A), 5, bytes), region(two.process(B), bytes));
        let id = offer(&mut two, A, &from, &TransferOptions::default());
        offered(&mut two, B);
        join(&mut two, B, id, &to);
        two.run(ms(50), |_| false);
        cancel(&mut two, who, id);
        let ends = ended(&mut two, &[who, 1 - who], id, ms(100));
        assert_eq!(
            [ends[0].0, ends[1].0],
            [here(EndReason::CANCELLED), by_peer(EndReason::CANCELLED)]
        );
        // No rail was lost for it.
        let is_down = |event: &(_, _)| matches!(event, (_, doorbell::link::SessionEvent::RailDown { .. }));
        assert!(!two.process(A).events.iter().any(is_down) && !two.process(B).events.iter().any(is_down));
        let (now, before) = (two.fabric.now().to_ns() / 1_000_000, read(&to));
        two.run(ms(now + 200), |_| false);
        assert!(read(&to) == before);
        // One that is declined, and one whose time is over before the peer joins.
        let declined = offer(&mut two, A, &from, &TransferOptions::default());
        assert_eq!(offered(&mut two, B).0, declined);
        cancel(&mut two, B, declined);
        let ends = ended(&mut two, &[A, B], declined, ms(100));
        assert_eq!(
            [ends[0].0, ends[1].0],
            [by_peer(EndReason::REFUSED), here(EndReason::REFUSED)]
        );
        let mut options = TransferOptions::default();
        options.within = Some(ms(30));
        let late = offer(&mut two, A, &from, &options);
        offered(&mut two, B);
        let ends = ended(&mut two, &[A, B], late, ms(100));
        assert_eq!(
            [ends[0].0, ends[1].0],
            [here(EndReason::DEADLINE), by_peer(EndReason::DEADLINE)]
        );
    }
}

#[test]
fn the_end_of_the_link_or_of_the_peer_ends_all_with_the_reason() {
    let mut two = Two::with(2, "", Some(1000));
    two.connected(2);
    let bytes = 20_000_000;
    let mut ids = Vec::new();
    for _ in 0..2 {
        let (from, to) = (filled(two.process(A), 5, bytes), region(two.process(B), bytes));
        let id = offer(&mut two, A, &from, &TransferOptions::default());
        offered(&mut two, B);
        join(&mut two, B, id, &to);
        ids.push(id);
    }
    two.run(ms(50), |_| false);
    let deadline = two.deadline(ms(1));
    let link = two.process(B).link.unwrap();
    two.process_mut(B).links.close(link, deadline);
    let over = |two: &Two| [A, B].iter().all(|at| two.process(*at).over.is_some());
    assert!(two.run(ms(2000), over));
    for id in ids {
        // The reason is reported in front of the end of the link.
        let [giver, taker] = [A, B].map(|at| end_of(two.process(at), id).unwrap().0);
        assert!(matches!(giver, TransferEnd::Over(_)), "{giver:?}");
        assert_eq!(taker, TransferEnd::Over(FinalReason::Closed));
    }
    // The process that gives dies.
    let mut two = Two::with(2, "", Some(1000));
    two.connected(2);
    let (from, to) = (filled(two.process(A), 5, bytes), region(two.process(B), bytes));
    let id = offer(&mut two, A, &from, &TransferOptions::default());
    offered(&mut two, B);
    join(&mut two, B, id, &to);
    two.run(ms(50), |_| false);
    drop(from);
    two.processes[A] = None;
    let ends = ended(&mut two, &[B], id, Duration::from_secs(20));
    assert!(matches!(ends[0].0, TransferEnd::Over(_)), "{ends:?}");
}

#[test]
fn a_side_that_closes_the_link_declines_what_nobody_joined() {
    let mut two = Two::new(2, "");
    two.connected(2);
    let from = filled(two.process(A), 5, 4096);
    let reported = offer(&mut two, A, &from, &TransferOptions::default());
    offered(&mut two, B);
    let (deadline, link) = (two.deadline(ms(5000)), two.process(B).link.unwrap());
    two.process_mut(B).links.close(link, deadline);
    // This one comes while the link is being closed.
    let later = offer(&mut two, A, &from, &TransferOptions::default());
    let ends = ended(&mut two, &[A, B], reported, ms(50));
    let [there, here] = [TransferEnd::ByPeer, TransferEnd::Here].map(|end| end(EndReason::REFUSED));
    assert_eq!([ends[0].0, ends[1].0], [there, here]);
    // So nothing holds the closing up.
    let until = Duration::from_nanos(two.fabric.now().to_ns()) + ms(100);
    assert!(two.run(until, |two| {
        [A, B].iter().all(|at| two.process(*at).over.is_some())
    }));
    assert_eq!(end_of(two.process(A), later).unwrap().0, there);
    let knows = |aside: &Aside| matches!(aside, Aside::Transfer(id, _) if *id == later);
    assert!(
        !two.process(B).asides.iter().any(knows),
        "it was reported, and nobody could join"
    );
}

#[test]
fn what_cannot_be_is_refused_and_no_more_than_allowed_are_open() {
    let mut two = Two::new(2, "");
    two.connected(2);
    let a = two.process_mut(A);
    let (link, memory) = (a.link.unwrap(), region(a, 100));
    let options = TransferOptions::default();
    let outside = |offset, bytes| TransferRefusal::OutOfRegion {
        offset,
        bytes,
        region_bytes: 100,
    };
    for (offset, bytes, refusal) in [
        (0, 0, TransferRefusal::Length { bytes: 0 }),
        (0, u64::MAX, TransferRefusal::Length { bytes: u64::MAX }),
        (1, 100, outside(1, 100)),
        (usize::MAX, 2, outside(usize::MAX, 2)),
    ] {
        let refused = a.links.offer(&a.node, link, (&memory, offset, bytes), &options);
        assert_eq!(refused, Err(refusal));
        assert_eq!(
            a.links.ask(&a.node, link, (&memory, offset, bytes), &options),
            Err(refusal)
        );
    }
    let one_worker = a
        .node
        .region(&a.workers[..1], 100, &PlacementConfig::DEFAULT)
        .unwrap();
    let refused = a.links.offer(&a.node, link, (&one_worker, 0, 1), &options);
    assert_eq!(refused, Err(TransferRefusal::OtherWorkers));
    let mut ids = Vec::new();
    let refusal = loop {
        match a.links.offer(&a.node, link, (&memory, 0, 100), &options) {
            Ok(id) => ids.push(id),
            Err(refusal) => break refusal,
        }
    };
    assert_eq!(
        (ids.len(), refusal),
        (16, TransferRefusal::Full { transfers_max: 16 })
    );
    let joined = a.links.join(&a.node, (link, ids[0]), (&memory, 0), &options);
    assert_eq!(joined, Err(TransferRefusal::NotOpen), "it is ours");
    two.run(ms(300), |_| false);
    let b = two.process_mut(B);
    let (link, short) = (b.link.unwrap(), region(b, 99));
    assert_eq!(b.asides.len(), 16);
    let joined = b.links.join(&b.node, (link, ids[3]), (&short, 0), &options);
    assert_eq!(
        joined,
        Err(TransferRefusal::OutOfRegion {
            offset: 0,
            bytes: 100,
            region_bytes: 99
        })
    );
    // The offer stands.
    let enough = region(two.process(B), 100);
    for id in &ids {
        join(&mut two, B, *id, &enough);
    }
    for id in ids {
        ended(&mut two, &[A, B], id, ms(100));
    }
}

#[test]
fn an_offer_that_nobody_joins_holds_up_no_other() {
    let mut two = Two::new(2, "");
    two.connected(2);
    let bytes = 1_000_000;
    let (from, to) = (filled(two.process(A), 5, bytes), region(two.process(B), bytes));
    let mut options = TransferOptions::default();
    options.priority = 7;
    let first = offer(&mut two, A, &from, &options);
    assert_eq!(offered(&mut two, B).0, first);
    let id = offer(&mut two, A, &from, &TransferOptions::default());
    assert_eq!(offered(&mut two, B).0, id);
    join(&mut two, B, id, &to);
    let ends = ended(&mut two, &[A, B], id, ms(500));
    assert_eq!(ends, [(TransferEnd::Done, done(bytes)); 2]);
}

#[test]
fn a_frame_that_may_have_gone_ends_no_link() {
    let bytes = 300_001;
    let posts = ["a", "b"]
        .into_iter()
        .flat_map(|host| (1..40).map(move |nth| (host, nth)));
    for (host, nth) in posts {
        let ending = match nth % 10 {
            1 if nth != 11 => "st",
            2 if nth != 12 => "nd",
            3 if nth != 13 => "rd",
            _ => "th",
        };
        let plan = format!("fail {nth}{ending} unclear-post of {host} with 5");
        let mut two = Two::with(2, &plan, Some(1000));
        two.run(ms(300), |_| false);
        let (from, to) = (filled(two.process(A), 5, bytes), region(two.process(B), bytes));
        let id = offer(&mut two, A, &from, &TransferOptions::default());
        offered(&mut two, B);
        join(&mut two, B, id, &to);
        let ends = ended(&mut two, &[A, B], id, ms(3000));
        assert_eq!([ends[0].0, ends[1].0], [TransferEnd::Done; 2], "{plan}");
        assert!(read(&to) == bytes_of(5, bytes), "{plan}");
    }
}

/// A stopped peer takes no frame over the first rail, which is up, while the second one is suspect.
#[test]
fn a_frame_waits_for_room_on_a_rail_that_is_up_rather_than_go_over_a_suspect_one() {
    let mut two = Two::new(2, "at 200ms link a/sim1-b/sim1 down");
    two.connected(2);
    two.run(ms(190), |_| false);
    two.process_mut(B).is_stopped = true;
    // As many as the first rail carries, and more.
    for _ in 0..20 {
        two.process_mut(A).send().unwrap();
    }
    let rails = |two: &Two| {
        let a = two.process(A);
        let rails = a.links.rails(a.link.unwrap());
        let rails: Vec<_> = rails.map(|rail| (rail.state, rail.counts.sent)).collect();
        [rails[0], rails[1]]
    };
    assert!(two.run(ms(400), |two| rails(two)[1].0 == HealthState::Suspect));
    let [_, (_, sent)] = rails(&two);
    let from = filled(two.process(A), 5, 300_001);
    let id = offer(&mut two, A, &from, &TransferOptions::default());
    let until = Duration::from_nanos(two.fabric.now().to_ns()) + ms(20);
    two.run(until, |_| false);
    assert_eq!(
        rails(&two).map(|(state, _)| state),
        [HealthState::Up, HealthState::Suspect]
    );
    assert_eq!(rails(&two)[1].1, sent, "the offer went over the suspect rail");
    two.process_mut(B).is_stopped = false;
    assert_eq!(offered(&mut two, B).0, id);
    assert_eq!(rails(&two)[1].0, HealthState::Suspect);
    let to = region(two.process(B), 300_001);
    join(&mut two, B, id, &to);
    let ends = ended(&mut two, &[A, B], id, ms(1000));
    assert!(ends.iter().all(|(end, _)| *end == TransferEnd::Done), "{ends:?}");
    assert!(read(&to) == bytes_of(5, 300_001));
}
