//! The table against a plain model, and each way a completion can be wrong.

use core::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::rc::Rc;
use std::vec;
use std::vec::Vec;

use super::{Entry, SharedInFlight, entries_for};
use crate::{Ticket, WorkId, WorkKind};

type Table = SharedInFlight<u32, Vec<Entry<u32>>>;

const NUMBER: u32 = 7;

fn table(depth: u32) -> Table {
    let entries = core::iter::repeat_with(Entry::default).take(entries_for(depth).unwrap());
    Table::new(entries.collect(), NUMBER, depth).unwrap()
}

fn retire(table: &mut Table, id: WorkId, sequence: u64) -> Option<Vec<u32>> {
    let mut slots = Vec::new();
    let retired = table.retire(id, sequence, |_, slot| slots.push(slot));
    retired.ok().map(|_| slots)
}

/// Stages and posts one request of one slot.
fn post(table: &mut Table, slot: u32) -> WorkId {
    let (_, id) = table.stage([slot]).unwrap();
    table.post(1);
    id
}

#[test]
fn each_completion_retires_its_own() {
    let mut table = table(4);
    assert_eq!(table.number(), NUMBER);
    let ids: Vec<_> = [[1, 2], [3, 4], [5, 6]]
        .map(|slots| table.stage(slots).unwrap().1)
        .into();
    assert_eq!(retire(&mut table, ids[1], 1), None, "staged is not posted");
    table.post(3);
    assert_eq!(retire(&mut table, ids[1], 1), Some(vec![3, 4]));
    assert_eq!(retire(&mut table, ids[1], 2), None, "a duplicate");
    assert_eq!(table.in_flight(), 2);
    assert_eq!(retire(&mut table, ids[2], 3), Some(vec![5, 6]));
    assert_eq!(
        retire(&mut table, ids[0], 2),
        Some(vec![1, 2]),
        "polled before, redeemed after"
    );
    assert_eq!((table.in_flight(), table.room()), (0, 4));
}

#[test]
fn full_hands_the_slots_back() {
    let mut table = table(3);
    for slot in 0..3 {
        assert!(table.stage([slot]).is_ok());
    }
    assert_eq!(table.stage([9, 10]).unwrap_err(), [9, 10]);
    table.post(3);
    assert_eq!(table.stage([9, 10]).unwrap_err(), [9, 10]);
}

#[test]
fn what_was_not_posted_comes_back() {
    let mut table = table(4);
    let (first, first_id) = table.stage([1]).unwrap();
    let (second, _) = table.stage([2, 3]).unwrap();
    let (third, _) = table.stage([4]).unwrap();
    table.post(1);
    let mut back = Vec::new();
    table.unstage(|ticket, slot| back.push((ticket, slot)));
    assert_eq!(back, [(second, 2), (second, 3), (third, 4)]);
    assert_eq!((table.staged(), table.in_flight(), table.room()), (0, 1, 3));
    let (again, again_id) = table.stage([5]).unwrap();
    assert!(![first, second, third].contains(&again));
    table.post(1);
    assert_eq!(retire(&mut table, again_id, 1), Some(vec![5]));
    assert_eq!(retire(&mut table, first_id, 2), Some(vec![1]));
}

#[test]
fn foreign_ids_are_rejected() {
    let mut table = table(4);
    let id = post(&mut table, 1);
    let (slot, generation) = (id.slot(), id.generation());
    for wrong in [
        WorkId::new(WorkKind::Receive, NUMBER, slot, generation),
        WorkId::new(WorkKind::Send, NUMBER, slot, generation),
        WorkId::new(WorkKind::SharedReceive, NUMBER + 1, slot, generation),
        WorkId::new(WorkKind::SharedReceive, NUMBER, slot + 1, generation),
        WorkId::new(WorkKind::SharedReceive, NUMBER, slot + 4, generation),
        WorkId::new(WorkKind::SharedReceive, NUMBER, u16::MAX, generation),
        WorkId::new(WorkKind::SharedReceive, NUMBER, slot, generation + 1),
        WorkId::new(WorkKind::SharedReceive, NUMBER, slot, generation - 1),
        WorkId::from_raw(0),
        WorkId::from_raw(u64::MAX),
    ] {
        assert_eq!(retire(&mut table, wrong, 1), None, "{wrong:?}");
    }
    assert_eq!(retire(&mut table, id, 1), Some(vec![1]));
}

#[test]
fn a_stale_completion_names_nothing_of_a_later_use() {
    let mut table = table(1);
    let mut stale = Vec::new();
    for sequence in 1..100 {
        let id = post(&mut table, 1);
        for old in &stale {
            assert_eq!(retire(&mut table, *old, sequence), None);
        }
        assert_eq!(retire(&mut table, id, sequence), Some(vec![1]));
        stale.push(id);
    }
}

#[test]
fn a_completion_kept_until_generations_came_round_is_too_old() {
    let mut table = table(1);
    let kept = post(&mut table, 1);
    // Its own completion, the third that was polled, is kept; another one retires the use after
    // next, and the generation comes round.
    table.drain(drop);
    let mut table = self::table(1);
    assert_eq!(post(&mut table, 1), kept);
    assert_eq!(retire(&mut table, kept, 4), Some(vec![1]));
    for entry in &mut table.entries {
        entry.uses = 1 << 24;
    }
    assert_eq!(post(&mut table, 2), kept, "the same id");
    assert_eq!(retire(&mut table, kept, 3), None);
    assert_eq!(retire(&mut table, kept, 4), None);
    assert_eq!(retire(&mut table, kept, 5), Some(vec![2]));
}

#[test]
fn a_panic_of_the_callback_loses_no_place() {
    let mut table = table(2);
    let id = post(&mut table, 1);
    let outcome = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| {
        let _ = table.retire(id, 1, |_, _| panic!("the callback's own"));
    }));
    assert!(outcome.is_err());
    assert_eq!((table.in_flight(), table.room()), (0, 2));
    for slot in 0..8 {
        let id = post(&mut table, slot);
        assert_eq!(retire(&mut table, id, u64::from(slot) + 2), Some(vec![slot]));
    }
}

#[test]
fn a_panic_of_the_callback_drops_the_slots_it_did_not_get() {
    let slot = Rc::new(());
    for at in 1..=4 {
        let entries = core::iter::repeat_with(Entry::default).take(4);
        let mut table = SharedInFlight::new(entries.collect::<Vec<_>>(), NUMBER, 4).unwrap();
        let mut calls = 0;
        let mut each = |_, _| {
            calls += 1;
            if calls % 4 == at % 4 {
                std::panic::resume_unwind(std::boxed::Box::new("the callback's own"));
            }
        };
        let mut caught = 0;
        let slots = || [slot.clone(), slot.clone()];
        for _ in 0..2 {
            table.stage(slots()).unwrap();
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| table.unstage(&mut each)));
        caught += u32::from(outcome.is_err());
        assert_eq!((table.staged(), table.room()), (0, 4));
        let (_, id) = table.stage(slots()).unwrap();
        table.post(1);
        let outcome = catch_unwind(AssertUnwindSafe(|| table.retire(id, 1, &mut each)));
        caught += u32::from(outcome.is_err());
        assert!(caught > 0);
        assert_eq!((table.in_flight(), table.room()), (0, 4));
        assert_eq!(Rc::strong_count(&slot), 1);
    }
}

#[test]
fn drain_takes_everything() {
    let mut table = table(4);
    table.stage([1, 2]).unwrap();
    table.post(1);
    table.stage([3]).unwrap();
    let mut slots = Vec::new();
    table.drain(|slot| slots.push(slot));
    slots.sort_unstable();
    assert_eq!(slots, [1, 2, 3]);
    assert_eq!(table.stage([4]).unwrap_err(), [4], "it is of no use after");
}

#[test]
fn storage_is_checked() {
    assert_eq!(entries_for(0), None);
    assert_eq!(entries_for(65_536), Some(65_536));
    assert_eq!(entries_for(65_537), None);
    let entries = |count| core::iter::repeat_with(Entry::default).take(count).collect();
    assert!(Table::new(entries(3), 0, 3).is_none());
    assert!(Table::new(entries(8), 0, 4).is_none());
    assert!(Table::new(entries(4), 1 << 20, 3).is_none());
    assert!(Table::new(entries(4), (1 << 20) - 1, 3).is_some());
}

#[test]
fn the_deepest_table_names_each_of_its_requests() {
    let mut table = table(65_536);
    let ids: Vec<_> = (0..65_536).map(|slot| post(&mut table, slot)).collect();
    assert_eq!(table.room(), 0);
    assert_eq!(table.stage([1]).unwrap_err(), [1]);
    for (slot, id) in (0..65_536).zip(ids).rev() {
        assert_eq!(retire(&mut table, id, 1), Some(vec![slot]));
    }
    assert_eq!(table.room(), 65_536);
}

/// The model's record of a request.
struct Known {
    ticket: Ticket,
    id: WorkId,
    slots: Vec<u32>,
}

/// A long run of random operations, each compared with plain lists.
#[test]
fn agrees_with_a_model() {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    let mut table = table(5);
    let (mut posted, mut staged): (Vec<Known>, Vec<Known>) = Default::default();
    let mut gone: Vec<WorkId> = Vec::new();
    for step in 0..200_000_u32 {
        match next(6) {
            0 | 1 => {
                let taken = match next(4) {
                    0 => table.stage([]).map(|named| (named, vec![])).ok(),
                    1 => table.stage([step]).map(|named| (named, vec![step])).ok(),
                    2 => table.stage([step, 1]).map(|named| (named, vec![step, 1])).ok(),
                    _ => table
                        .stage([step, 1, 2, 3])
                        .map(|named| (named, vec![step, 1, 2, 3]))
                        .ok(),
                };
                assert_eq!(taken.is_some(), posted.len() + staged.len() < 5);
                staged.extend(taken.map(|((ticket, id), slots)| Known { ticket, id, slots }));
            }
            2 => {
                let count = next(1 + staged.len() as u64) as usize;
                table.post(count as u32);
                posted.extend(staged.drain(..count));
            }
            3 => {
                let mut back = Vec::new();
                table.unstage(|ticket, slot| back.push((ticket, slot)));
                let expected: Vec<_> = staged
                    .drain(..)
                    .flat_map(|known| {
                        gone.push(known.id);
                        known.slots.into_iter().map(move |slot| (known.ticket, slot))
                    })
                    .collect();
                assert_eq!(back, expected);
            }
            4 => {
                let wrong = staged
                    .iter()
                    .map(|known| known.id)
                    .chain(gone.iter().rev().take(8).copied());
                for id in wrong {
                    assert_eq!(retire(&mut table, id, u64::from(step) + 1), None, "{id:?}");
                }
            }
            _ if !posted.is_empty() => {
                let known = posted.swap_remove(next(posted.len() as u64) as usize);
                let mut slots = Vec::new();
                let ticket = table.retire(known.id, u64::from(step) + 1, |ticket, slot| {
                    assert_eq!(ticket, known.ticket);
                    slots.push(slot);
                });
                assert_eq!((ticket, slots), (Ok(known.ticket), known.slots));
                gone.push(known.id);
            }
            _ => {}
        }
        assert_eq!(table.in_flight() as usize, posted.len() + staged.len());
        assert_eq!(table.staged() as usize, staged.len());
        assert_eq!(table.room() as usize, 5 - posted.len() - staged.len());
    }
    assert!(gone.len() > 10_000, "the run did something");
}
