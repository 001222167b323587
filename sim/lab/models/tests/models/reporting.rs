//! Reports of submitted requests that were not done. Each request is reported once, and its memory is not lent before its report
//! is taken.
//!
//! The memory's way home and the ring of requests are the shipped ones. The tests marked `should_panic` report in a wrong order, and the
//! model has to notice that.

use doorbell_core::free_list::FreeList;
use doorbell_core::sync::AtomicU32;
use doorbell_hotpath::ring::{Consumer, Descriptor, MpscProducer, MpscRing, Slot};
use doorbell_hotpath::{FailureTaker, Failures, take_late};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use crate::ring::{item, slots, take};

type Ring = Arc<MpscRing<Vec<Slot>>>;
type Taker = FailureTaker<Ring, Vec<Option<u32>>>;

fn ring(capacity: usize) -> Ring {
    Arc::new(MpscRing::new(slots(capacity)).unwrap())
}

/// State that a Worker and a submitter share, for memory of one slot.
struct ReturnPath {
    failures: Failures<Ring, Vec<AtomicU32>>,
    home: FreeList<Vec<AtomicU32>>,
    memory: UnsafeCell<()>,
}

fn return_path() -> (Arc<ReturnPath>, Taker) {
    let word = || vec![AtomicU32::new(0)];
    let failures = Failures::new(ring(1), word());
    let taker = failures.taker(vec![None]).unwrap();
    let return_path = ReturnPath {
        failures,
        home: FreeList::new(word()),
        memory: UnsafeCell::new(()),
    };
    (Arc::new(return_path), taker)
}

impl ReturnPath {
    /// Lends the slot if it is home and has no report left to take.
    fn lend(&self, taker: &mut Taker) -> Option<u32> {
        let mut home = None;
        self.home.take_all(|index| home = Some(index));
        let lent = taker.lend(&self.failures, || home.take(), |index| *index);
        lent.inspect(|_| self.memory.with_mut(|_| ()))
    }

    /// Takes a report if there is one; returns the slot that can be lent with it.
    fn take(&self, taker: &mut Taker, number: u16) -> Option<Option<u32>> {
        let (reported, home) = taker.take(&self.failures).ok()?;
        assert_eq!(reported, of_the_slot(number));
        Some(home)
    }
}

/// A report of the only slot.
fn of_the_slot(number: u16) -> Descriptor {
    Descriptor {
        index: 0,
        ..item(number)
    }
}

/// A mistake of the thread that destroys a queue pair.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// The slot goes home before its request is reported.
    HomeFirst,
    /// The report claims to carry the slot, which comes home by itself.
    NotApart,
}

/// Ends a request in flight together with its queue pair, with an unknown outcome.
fn destroy(return_path: &ReturnPath, number: u16, fault: Fault) {
    return_path.memory.with_mut(|_| ());
    if fault == Fault::HomeFirst {
        return_path.home.put(0);
    }
    let reported = of_the_slot(number);
    let reported = if fault == Fault::NotApart {
        return_path.failures.report(reported)
    } else {
        return_path.failures.report_apart(reported)
    };
    assert_eq!(reported, Ok(()), "there is room for each slot");
    if fault != Fault::HomeFirst {
        return_path.home.put(0);
    }
}

fn unknown_and_lent(fault: Fault) {
    loom::model(move || {
        let (return_path, mut taker) = return_path();
        let destroying = {
            let return_path = Arc::clone(&return_path);
            thread::spawn(move || destroy(&return_path, 7, fault))
        };
        // Asked at any moment.
        let early = return_path.lend(&mut taker);
        let reported = return_path.take(&mut taker, 7);
        assert!(early.is_none(), "lent, and not reported");
        let mut home = reported.flatten().or_else(|| return_path.lend(&mut taker));
        assert!(home.is_none() || reported.is_some(), "lent, and not reported");
        destroying.join().unwrap();
        if reported.is_none() {
            let reported = return_path.take(&mut taker, 7);
            home = home.or(reported.expect("reported"));
        }
        assert_eq!(home.or_else(|| return_path.lend(&mut taker)), Some(0), "lost");
        assert_eq!(return_path.lend(&mut taker), None, "lent twice");
        assert_eq!(return_path.take(&mut taker, 7), None, "reported twice");
    });
}

#[test]
fn what_is_unknown_is_not_lent_before_it_was_reported() {
    unknown_and_lent(Fault::None);
}

#[test]
#[should_panic(expected = "lent, and not reported")]
fn to_let_it_home_before_telling_lends_it_too_early() {
    unknown_and_lent(Fault::HomeFirst);
}

#[test]
#[should_panic(expected = "lent, and not reported")]
fn to_tell_of_it_as_of_others_lends_it_too_early() {
    unknown_and_lent(Fault::NotApart);
}

/// The slot is submitted again as soon as it can be lent, and ends with an unknown outcome again. The ring of reports has room for one.
fn unknown_again(fault: Fault) {
    loom::model(move || {
        let (return_path, mut taker) = return_path();
        let requests = ring(1);
        let mut consumer = Consumer::claim(Arc::clone(&requests)).unwrap();
        let destroying = {
            let return_path = Arc::clone(&return_path);
            thread::spawn(move || {
                destroy(&return_path, 1, fault);
                if take(&mut consumer).is_some() {
                    destroy(&return_path, 2, fault);
                }
            })
        };
        let mut producer = MpscProducer::new(requests);
        let mut reported = 0;
        let mut lent = return_path.lend(&mut taker);
        if lent.is_none() {
            let taken = return_path.take(&mut taker, 1);
            reported += usize::from(taken.is_some());
            lent = taken.flatten().or_else(|| return_path.lend(&mut taker));
        }
        if lent.is_some() {
            producer.push(item(2)).unwrap();
        }
        producer.close();
        destroying.join().unwrap();
        reported += core::iter::from_fn(|| taker.take::<u32>(&return_path.failures).ok()).count();
        assert_eq!(reported, 1 + usize::from(lent.is_some()), "each once");
    });
}

#[test]
fn there_is_room_to_tell_of_every_slot() {
    unknown_again(Fault::None);
}

#[test]
#[should_panic(expected = "there is room for each slot")]
fn to_lend_what_is_not_reported_leaves_no_room() {
    unknown_again(Fault::NotApart);
}

/// Requests that are in the ring when the Worker closes it come back, by the Worker or by the submitters.
fn closing(is_late_looked_for: bool) {
    loom::model(move || {
        let requests = ring(2);
        let reported = ring(2);
        let report =
            |reported: Ring| move |item| MpscProducer::new(&*reported).push(item).expect("reported once");
        let mut consumer = Consumer::claim(Arc::clone(&requests)).unwrap();
        MpscProducer::new(Arc::clone(&requests)).push(item(1)).unwrap();
        let worker = {
            let report = report(Arc::clone(&reported));
            thread::spawn(move || {
                consumer.close();
                while let Ok(item) = consumer.take() {
                    report(item);
                }
            })
        };
        let late = || {
            if is_late_looked_for {
                take_late(&*requests, report(Arc::clone(&reported)));
            }
        };
        let is_in = MpscProducer::new(Arc::clone(&requests)).push(item(2)).is_ok();
        late();
        worker.join().unwrap();
        late();
        let mut came_back = [false; 2];
        let mut taker = Consumer::claim(reported).unwrap();
        while let Ok(item) = taker.take() {
            let at = usize::from(item.kind) - 1;
            assert!(!came_back[at], "reported twice");
            came_back[at] = true;
        }
        assert_eq!(came_back, [true, is_in], "what was in the ring, and nothing else");
    });
}

#[test]
fn what_gets_in_while_the_worker_closes_comes_back_once() {
    closing(true);
}

#[test]
#[should_panic(expected = "what was in the ring, and nothing else")]
fn the_worker_alone_does_not_find_all_of_it() {
    closing(false);
}
