//! Reports of failures, and what is lent meanwhile.

use std::sync::Arc;
use std::vec::Vec;

use doorbell_core::sync::AtomicU32;

use super::{FailureTaker, Failures, take_late};
use crate::ring::{Consumer, Descriptor, MpscProducer, MpscRing, PushError, Slot, TakeError};

type Ring = Arc<MpscRing<Vec<Slot>>>;
type Reports = Failures<Ring, Vec<AtomicU32>>;
type Taker = FailureTaker<Ring, Vec<Option<u32>>>;

const SLOTS: u32 = 4;

fn ring() -> Ring {
    Arc::new(MpscRing::new((0..SLOTS).map(|_| Slot::new()).collect()).unwrap())
}

fn failures() -> (Reports, Taker) {
    let failures = Reports::new(ring(), (0..SLOTS).map(|_| AtomicU32::new(0)).collect());
    let taker = failures.taker((0..SLOTS).map(|_| None).collect()).unwrap();
    (failures, taker)
}

fn of(index: u32) -> Descriptor {
    Descriptor {
        words: [7, 8, 9],
        index,
        kind: 3,
    }
}

/// Returns the slot that is lent if these slots come home in this order.
fn lend(failures: &Reports, taker: &mut Taker, home: &mut Vec<u32>) -> Option<u32> {
    home.reverse();
    let lent = taker.lend(failures, || home.pop(), |index| *index);
    home.reverse();
    lent
}

#[test]
fn reports_are_taken_in_order_and_needs_nothing_set_aside() {
    let (failures, mut taker) = failures();
    assert_eq!(taker.take::<u32>(&failures), Err(TakeError::Empty));
    for index in [2, 0] {
        failures.report(of(index)).unwrap();
        assert!(!failures.is_apart(index));
    }
    assert_eq!(taker.take::<u32>(&failures), Ok((of(2), None)));
    assert_eq!(taker.take::<u32>(&failures), Ok((of(0), None)));
    assert!(
        failures.taker(Vec::<Option<u32>>::new()).is_none(),
        "there is one"
    );
}

#[test]
fn a_slot_reported_apart_is_not_lent_until_its_report_is_taken() {
    let (failures, mut taker) = failures();
    failures.report_apart(of(1)).unwrap();
    assert_eq!(lend(&failures, &mut taker, &mut std::vec![1, 3, 2]), Some(3));
    assert_eq!(
        lend(&failures, &mut taker, &mut std::vec![1]),
        None,
        "again it would be another's"
    );
    assert_eq!(taker.take(&failures), Ok((of(1), Some(1))), "and then it is");
    assert_eq!(lend(&failures, &mut taker, &mut std::vec![1]), Some(1));
}

#[test]
fn what_comes_home_after_that_was_taken_is_lent_at_once() {
    let (failures, mut taker) = failures();
    failures.report_apart(of(1)).unwrap();
    assert_eq!(taker.take::<u32>(&failures), Ok((of(1), None)));
    assert_eq!(lend(&failures, &mut taker, &mut std::vec![1]), Some(1));
}

#[test]
fn what_nobody_takes_is_given_back() {
    let (failures, taker) = failures();
    taker.close();
    assert_eq!(failures.report(of(1)), Err(PushError::Closed(of(1))));
    assert_eq!(failures.report_apart(of(2)), Err(PushError::Closed(of(2))));
}

#[test]
fn a_report_without_a_slot_is_taken_all_the_same() {
    let (failures, mut taker) = failures();
    failures.report_apart(of(SLOTS)).unwrap();
    assert!(!failures.is_apart(SLOTS));
    assert_eq!(taker.take::<u32>(&failures), Ok((of(SLOTS), None)));
}

#[test]
fn late_is_what_is_in_a_closed_ring_that_nobody_takes_from() {
    let ring = ring();
    let mut producer = MpscProducer::new(Arc::clone(&ring));
    let consumer = Consumer::claim(Arc::clone(&ring)).unwrap();
    producer.push(of(1)).unwrap();
    let late = || {
        let mut late = Vec::new();
        take_late(&*ring, |item| late.push(item.index));
        late
    };
    assert_eq!(late(), [], "somebody takes");
    drop(consumer);
    assert_eq!(late(), [], "it is open");
    Consumer::claim(Arc::clone(&ring)).unwrap().close();
    assert_eq!(late(), [1]);
    assert_eq!(late(), []);
}
