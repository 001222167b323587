//! The table against a plain model, and each way a completion can be wrong.

use core::convert::Infallible;
use std::collections::VecDeque;
use std::vec::Vec;
use std::{format, vec};

use core::panic::AssertUnwindSafe;
use std::boxed::Box;
use std::panic::{catch_unwind, resume_unwind};
use std::rc::Rc;

use super::{InFlight, Request, storage_for};
use crate::{Ticket, WorkId, WorkKind};

type Table = InFlight<u32, Vec<Request<u32>>>;

fn storage(requests: usize) -> Vec<Request<u32>> {
    (0..requests).map(|_| Request::default()).collect()
}

fn table(depth: u32, generation: u32) -> Table {
    let requests = storage(storage_for(depth).unwrap());
    Table::new(requests, WorkKind::Send, 7, depth, generation).unwrap()
}

fn retire(table: &mut Table, id: WorkId) -> Option<Vec<u32>> {
    let mut slots = Vec::new();
    table.retire(id, |_, slot| slots.push(slot)).ok().map(|_| slots)
}

#[test]
fn a_completion_retires_what_came_before_it() {
    let mut table = table(4, 0);
    let (_, _) = table.stage([1]).unwrap();
    let (_, second) = table.stage([2, 3]).unwrap();
    let (third_ticket, third) = table.stage([]).unwrap();
    assert_eq!(retire(&mut table, second), None, "staged is not posted");
    table.post(3);
    assert_eq!(retire(&mut table, second), Some(vec![1, 2, 3]));
    assert_eq!(retire(&mut table, second), None, "a duplicate");
    let range = table.retire(third, |_, _| {}).unwrap();
    assert_eq!((range.first, range.last), (third_ticket, third_ticket));
    assert_eq!(table.in_flight(), 0);
}

#[test]
fn the_oldest_is_retired_with_its_one_slot() {
    let mut table = table(4, 0);
    for generation in 0..5 {
        let first = table.stage([1]).unwrap();
        let second = table.stage([2]).unwrap();
        assert_eq!(table.retire_oldest(first.1), None, "staged is not posted");
        assert!(!table.is_oldest(first.1));
        assert_eq!((table.posted(), table.room(), table.missing()), (0, 2, 4));
        table.post_all();
        assert_eq!((table.posted(), table.room(), table.missing()), (2, 2, 2));
        assert_eq!(table.retire_oldest(second.1), None, "it is not the oldest");
        assert_eq!([first.1, second.1].map(|id| table.is_oldest(id)), [true, false]);
        assert_eq!(table.retire_oldest(first.1), Some(1));
        assert_eq!(table.retire_oldest(first.1), None, "a duplicate");
        assert_eq!((table.posted(), table.room()), (1, 3));
        assert_eq!(table.retire_oldest(second.1), Some(2));
        assert_eq!((table.in_flight(), table.room()), (0, 4), "{generation}");
    }
    let (ticket, id) = table.stage([1]).unwrap();
    table.post_all();
    let other = WorkId::new(WorkKind::Receive, 7, 0, 0).at(ticket.position());
    assert_eq!(table.retire_oldest(other), None, "another queue's");
    assert_eq!(retire(&mut table, id), Some(vec![1]));
    let (_, id) = table.stage([1, 2]).unwrap();
    table.post_all();
    assert_eq!(table.retire_oldest(id), None, "it has two");
    assert_eq!(retire(&mut table, id), Some(vec![1, 2]));
    let (_, id) = table.stage([]).unwrap();
    table.post_all();
    assert_eq!(table.retire_oldest(id), None, "it has none");
    assert_eq!(retire(&mut table, id), Some(vec![]));
}

#[test]
fn of_a_table_without_slots_the_oldest_is_retired() {
    for generation in [0, 0x00ff_ffff] {
        let requests: Vec<Request<Infallible>> = (0..4).map(|_| Request::default()).collect();
        let mut table = InFlight::new(requests, WorkKind::Receive, 7, 4, generation).unwrap();
        for round in 0..100_000 {
            let ids = [(); 2].map(|()| table.stage([]).unwrap().1);
            assert_eq!(
                [table.oldest(), table.end().back(1)].map(|at| table.work_id(at)),
                ids
            );
            assert!(!table.retire_next(), "staged is not posted");
            table.post(1);
            assert!(table.retire_next());
            assert!(!table.retire_next(), "the next one is not posted");
            assert_eq!((table.posted(), table.room(), table.missing()), (0, 3, 4));
            table.post_all();
            assert_eq!(table.work_id(table.oldest()), ids[1]);
            assert!(table.retire_next() && !table.retire_next());
            assert_eq!((table.in_flight(), table.room()), (0, 4), "{round}");
        }
    }
}

#[test]
fn a_run_is_posted_beside_what_is_staged() {
    let mut table = table(4, 0);
    let first = table.next();
    let id = |requests| WorkId::new(WorkKind::Send, 7, 0, 0).forward(first.position() + requests);
    assert_eq!((table.work_id(first), table.room()), (id(0), 4));
    // Two without slots, one with, and one without.
    table.stage_vacant_to(first.forward(2));
    let (ticket, third) = table.stage([1]).unwrap();
    assert_eq!((ticket, third), (first.forward(2), id(2)));
    assert_eq!(retire(&mut table, id(0)), None, "staged is not posted");
    table.post_to(first.forward(4));
    assert_eq!((table.posted(), table.room(), table.staged()), (4, 0, 0));
    assert_eq!(retire(&mut table, id(4)), None, "nothing was posted there");
    assert_eq!(retire(&mut table, id(1)), Some(vec![]));
    assert_eq!(table.room(), 2);
    assert_eq!(retire(&mut table, id(3)), Some(vec![1]));
    assert_eq!(table.room(), 4);
}

#[test]
fn what_is_found_by_a_look_is_retired_alike() {
    fn retire_found(table: &mut Table, id: WorkId) -> Option<(Ticket, Vec<u32>)> {
        let mut slots = Vec::new();
        let ticket = table.retire_found(id, |_, slot| slots.push(slot))?;
        Some((ticket, slots))
    }
    let mut table = table(4, 0x00ff_ffff);
    table.post_to(table.next().forward(1));
    let before = WorkId::new(WorkKind::Send, 7, 0, 0).at(table.oldest().position());
    assert_eq!(
        retire_found(&mut table, before),
        Some((table.next().back(1), vec![]))
    );
    for lap in 0..0x8001_u64 {
        let (first, id) = table.stage([1]).unwrap();
        assert_eq!(retire_found(&mut table, id), None, "staged is not posted");
        let (last, last_id) = table.stage([]).unwrap();
        table.post_all();
        let beside = |position| id.at(position);
        assert_eq!(
            retire_found(&mut table, beside(last.position() + 1)),
            None,
            "not posted"
        );
        assert_eq!(
            retire_found(&mut table, beside(first.position() - 1)),
            None,
            "retired"
        );
        let other = WorkId::new(WorkKind::Send, 8, 0, 0).at(last.position());
        assert_eq!(retire_found(&mut table, other), None, "another queue's");
        // At the last lap positions come round between both.
        assert_eq!(retire_found(&mut table, last_id), Some((last, vec![1])), "{lap}");
        assert_eq!(retire_found(&mut table, last_id), None, "a duplicate");
        assert_eq!((table.in_flight(), table.room()), (0, 4));
    }
}

#[test]
fn full_hands_the_slots_back() {
    let mut table = table(3, 0);
    for slot in 0..3 {
        assert!(table.stage([slot]).is_ok());
    }
    assert_eq!(table.room(), 0);
    assert_eq!(table.stage([9, 10]).unwrap_err(), [9, 10]);
}

#[test]
fn what_was_not_posted_comes_back() {
    let mut table = table(4, 0);
    table.stage([1, 2]).unwrap();
    let (_, second) = table.stage([3]).unwrap();
    let (third, _) = table.stage([4, 5, 6, 7]).unwrap();
    table.post(2);
    let mut back = Vec::new();
    table.unstage(|ticket, slot| back.push((ticket, slot)));
    assert_eq!(back, [(third, 4), (third, 5), (third, 6), (third, 7)]);
    let (again, id) = table.stage([8]).unwrap();
    assert_eq!(again, third, "the ticket is free for the next request");
    table.post(1);
    assert_eq!(retire(&mut table, second), Some(vec![1, 2, 3]));
    assert_eq!(retire(&mut table, id), Some(vec![8]));
}

#[test]
fn foreign_ids_are_rejected() {
    let mut table = table(4, 5);
    let (_, id) = table.stage([1]).unwrap();
    table.post(1);
    let (slot, generation) = (id.slot(), id.generation());
    assert_eq!(generation, 5);
    for wrong in [
        WorkId::new(WorkKind::Receive, 7, slot, generation),
        WorkId::new(WorkKind::Send, 8, slot, generation),
        WorkId::new(WorkKind::Send, 7, slot + 1, generation),
        WorkId::new(WorkKind::Send, 7, slot, generation + 1),
        WorkId::new(WorkKind::Send, 7, slot, generation - 1),
        WorkId::new(WorkKind::Send, 7, slot + 4, generation),
        WorkId::from_raw(0),
        WorkId::from_raw(u64::MAX),
    ] {
        assert_eq!(retire(&mut table, wrong), None, "{wrong:?}");
    }
    assert_eq!(retire(&mut table, id), Some(vec![1]));
}

#[test]
fn the_next_table_begins_one_generation_on() {
    assert_eq!(table(4, 5).next_generation(), 6);
    assert_eq!(table(4, 0x00ff_ffff).next_generation(), 0, "it comes round");
}

#[test]
fn the_next_table_on_a_channel_knows_no_id_of_the_last() {
    for requests in 0..9_u32 {
        let mut old = table(4, 0x00ff_fffe);
        let mut ids = Vec::new();
        for slot in 0..requests {
            let (_, id) = old.stage([slot]).unwrap();
            old.post(1);
            ids.push(id);
            if slot % 2 == 1 {
                assert!(retire(&mut old, id).is_some());
            }
        }
        let mut new = table(8, old.next_generation());
        for slot in 0..8 {
            new.stage([slot]).unwrap();
        }
        new.post(8);
        for id in ids {
            assert_eq!(retire(&mut new, id), None, "{id:?} after {requests}");
        }
    }
}

#[test]
fn generations_wrap() {
    let mut table = table(2, 0x00ff_ffff);
    for round in 0..100_000 {
        let (_, first) = table.stage([round]).unwrap();
        let (_, second) = table.stage([round + 100]).unwrap();
        table.post(2);
        assert_eq!(retire(&mut table, second), Some(vec![round, round + 100]));
        assert_eq!(retire(&mut table, first), None);
    }
}

#[test]
fn drain_takes_everything() {
    let mut table = table(4, 0);
    table.stage([1, 2]).unwrap();
    table.post(1);
    table.stage([3]).unwrap();
    let mut slots = Vec::new();
    table.drain(|slot| slots.push(slot));
    assert_eq!(slots, [1, 2, 3]);
    assert_eq!((table.in_flight(), table.room()), (0, 4));
}

#[test]
fn storage_is_checked() {
    assert_eq!(storage_for(0), None);
    assert_eq!(storage_for(65_536), Some(65_536));
    assert_eq!(storage_for(65_537), None);
    let wrong = Table::new(storage(3), WorkKind::Send, 0, 3, 0).unwrap_err();
    assert_eq!(
        format!("{wrong}"),
        "an in-flight table cannot be made of 3 requests"
    );
    let mut used = storage(4);
    used[2].0[3] = Some(1);
    assert!(Table::new(used, WorkKind::Send, 0, 3, 0).is_err());
}

/// A long run of random operations, each compared with a queue of vectors.
#[test]
fn agrees_with_a_model() {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    let mut table = table(5, 0x00ff_fff0);
    let mut model: VecDeque<(Ticket, WorkId, Vec<u32>)> = VecDeque::new();
    let mut posted = 0;
    for step in 0..200_000_u32 {
        match next(5) {
            0 | 1 => {
                let staged = match next(4) {
                    0 => table.stage([]).map(|named| (named, vec![])).ok(),
                    1 => table.stage([step]).map(|named| (named, vec![step])).ok(),
                    2 => table.stage([step, 1]).map(|named| (named, vec![step, 1])).ok(),
                    _ => table
                        .stage([step, 1, 2, 3])
                        .map(|named| (named, vec![step, 1, 2, 3]))
                        .ok(),
                };
                assert_eq!(staged.is_some(), model.len() < 5);
                model.extend(staged.map(|((ticket, id), slots)| (ticket, id, slots)));
            }
            2 => {
                let count = next(1 + (model.len() - posted) as u64) as usize;
                table.post(count as u32);
                posted += count;
            }
            3 => {
                let mut back = Vec::new();
                table.unstage(|ticket, slot| back.push((ticket, slot)));
                let expected: Vec<_> = model
                    .drain(posted..)
                    .flat_map(|(ticket, _, slots)| slots.into_iter().map(move |slot| (ticket, slot)))
                    .collect();
                assert_eq!(back, expected);
            }
            _ if posted > 0 => {
                let which = next(posted as u64) as usize;
                let id = model[which].1;
                let expected: Vec<u32> = model.drain(..=which).flat_map(|(_, _, slots)| slots).collect();
                posted -= which + 1;
                assert_eq!(retire(&mut table, id), Some(expected));
                assert_eq!(retire(&mut table, id), None);
            }
            _ => {}
        }
        assert_eq!(table.in_flight() as usize, model.len());
        assert_eq!(table.staged() as usize, model.len() - posted);
    }
}

/// A table of slots that count themselves.
type CountedTable = InFlight<Rc<()>, Vec<Request<Rc<()>>>>;

/// An empty table, and the slot whose count shows what is lost.
fn counted(depth: u32) -> (CountedTable, Rc<()>) {
    let requests = (0..storage_for(depth).unwrap()).map(|_| Request::default());
    let table = InFlight::new(requests.collect(), WorkKind::Send, 7, depth, 0);
    (table.unwrap(), Rc::new(()))
}

/// Calls back until the `at`th call, which panics.
fn panicking<S>(at: usize, call: impl FnOnce(&mut dyn FnMut(Ticket, S))) -> usize {
    let mut calls = 0;
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        call(&mut |_, _| {
            calls += 1;
            if calls == at {
                resume_unwind(Box::new("the callback's own"));
            }
        });
    }));
    assert_eq!(outcome.is_err(), calls == at);
    calls
}

#[test]
fn a_panic_of_the_callback_loses_no_place_and_no_slot() {
    for at in 1..=6 {
        let (mut table, slot) = counted(4);
        for round in 0..3 {
            // One, two, none and three slots.
            table.stage([slot.clone()]).unwrap();
            table.stage([slot.clone(), slot.clone()]).unwrap();
            table.stage([]).unwrap();
            let last = [slot.clone(), slot.clone(), slot.clone()];
            let (_, last) = table.stage(last).unwrap();
            table.post_all();
            let calls = panicking(at, |each| {
                let _ = table.retire(last, each);
            });
            assert_eq!(calls, at, "round {round}");
            assert_eq!(Rc::strong_count(&slot), 1);
            assert_eq!((table.in_flight(), table.room()), (0, 4));
        }
    }
}

#[test]
fn a_panic_where_requests_come_back_loses_none() {
    for at in 1..=4 {
        let (mut table, slot) = counted(4);
        let (_, first) = table.stage([slot.clone()]).unwrap();
        table.post(1);
        table.stage([slot.clone(), slot.clone()]).unwrap();
        table.stage([slot.clone(), slot.clone()]).unwrap();
        assert_eq!(panicking(at, |each| table.unstage(each)), at);
        assert_eq!((table.staged(), table.in_flight()), (0, 1));
        assert_eq!(Rc::strong_count(&slot), 2);
        table.retire(first, |_, _| {}).unwrap();
        assert_eq!(Rc::strong_count(&slot), 1);
    }
}

#[test]
fn requests_without_slots_are_retired_beside_those_with() {
    for generation in [0, 0x00ff_ffff] {
        let mut table = table(4, generation);
        for round in 0..40_u32 {
            let mut last = None;
            let with_slots = round % 3 + round % 2;
            for request in 0..4 {
                let staged = if request < with_slots {
                    table.stage([round * 4 + request]).unwrap()
                } else {
                    table.stage([]).unwrap()
                };
                last = Some(staged.1);
            }
            table.post(4);
            let back = retire(&mut table, last.unwrap()).unwrap();
            let expected: Vec<u32> = (0..with_slots.min(4))
                .map(|request| round * 4 + request)
                .collect();
            assert_eq!(back, expected, "round {round}");
            assert_eq!((table.in_flight(), table.room()), (0, 4));
        }
    }
}

#[test]
fn slots_staged_behind_a_request_without_any_come_back_with_their_own_completion() {
    let mut table = table(4, 0);
    let (_, bare) = table.stage([]).unwrap();
    let (_, own) = table.stage([7]).unwrap();
    let (_, behind) = table.stage([]).unwrap();
    table.post(3);
    assert_eq!(retire(&mut table, bare), Some(vec![]));
    assert_eq!(retire(&mut table, own), Some(vec![7]));
    assert_eq!(retire(&mut table, behind), Some(vec![]));
}

#[test]
fn no_two_requests_in_flight_have_one_place() {
    for depth in [1, 3, 4, 5, 8] {
        let mut table = table(depth, 0);
        assert_eq!(table.places(), depth.next_power_of_two() as usize);
        let mut flying = VecDeque::new();
        for step in 0..200_u32 {
            if let Some(vacancy) = table.vacancy() {
                let place = vacancy.place();
                let (_, id, table) = vacancy.stage();
                assert!(place < table.places());
                assert!(
                    flying.iter().all(|(taken, _)| *taken != place),
                    "{depth} at {step}"
                );
                flying.push_back((place, id));
                table.post_all();
            } else {
                assert_eq!(table.room(), 0);
            }
            if step % 3 == 2 || table.room() == 0 {
                let (_, id) = flying.pop_front().unwrap();
                table.retire(id, |_, _| ()).unwrap();
            }
        }
    }
}

#[test]
fn a_request_that_was_not_posted_leaves_its_place_to_the_next() {
    let mut table = table(4, 0);
    let mut place = || table.vacancy().unwrap().place();
    let first = place();
    assert_eq!(place(), first, "it was not staged");
    table.vacancy().unwrap().stage();
    let mut place = || table.vacancy().unwrap().place();
    assert_ne!(place(), first);
    table.unstage(|_, _| ());
    assert_eq!(table.vacancy().unwrap().place(), first);
}
