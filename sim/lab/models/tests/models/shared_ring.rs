//! The ring between two processes, and the sleep of one of them at a flag beside it.

use doorbell_core::interprocess::SharedWords;
use doorbell_core::sync::RaceWitness;
use doorbell_hotpath::{SharedConsumer, SharedProducer, SharedRing, announce_sleep, must_wake};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use loom::thread;

/// A mapping: words, a flag, and what stands for the payload of each slot.
struct Mapping {
    words: Vec<AtomicU64>,
    flag: AtomicU32,
    witnesses: Vec<RaceWitness>,
}

impl Mapping {
    fn new(slots: usize) -> Self {
        Self {
            words: (0..ring(slots).words()).map(|_| AtomicU64::new(0)).collect(),
            flag: AtomicU32::new(0),
            witnesses: (0..slots).map(|_| RaceWitness::new()).collect(),
        }
    }
}

/// One side's view of it.
#[derive(Clone)]
struct View(Arc<Mapping>);

impl SharedWords for View {
    fn word(&self, index: usize) -> Option<&AtomicU64> {
        self.0.words.get(index)
    }

    fn line(&self, first: usize) -> Option<&[AtomicU64; 8]> {
        self.0.words.get(first..first.checked_add(8)?)?.try_into().ok()
    }

    fn flag(&self, _index: usize) -> Option<&AtomicU32> {
        Some(&self.0.flag)
    }

    fn witness(&self, slot: usize) -> Option<&RaceWitness> {
        self.0.witnesses.get(slot)
    }
}

fn ring(slots: usize) -> SharedRing {
    SharedRing::new(0, slots.try_into().unwrap()).unwrap()
}

fn halves(slots: usize) -> (SharedProducer<View>, SharedConsumer<View>) {
    let view = View(Arc::new(Mapping::new(slots)));
    let producer = SharedProducer::new(view.clone(), ring(slots));
    (producer, SharedConsumer::new(view, ring(slots)))
}

#[test]
fn descriptors_come_whole_and_in_order_and_slots_are_used_again() {
    loom::model(|| {
        let (mut producer, mut consumer) = halves(1);
        let pushing = thread::spawn(move || {
            for number in 1..=2 {
                while !producer.stage(&[number; 8]).unwrap() {
                    thread::yield_now();
                }
                producer.publish();
            }
        });
        for number in 1..=2 {
            let found = loop {
                match consumer.peek().unwrap() {
                    Some(found) => break found,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(found, [number; 8]);
            consumer.advance();
            consumer.hand_back();
        }
        pushing.join().unwrap();
    });
}

#[test]
fn a_batch_is_seen_at_once_or_not_at_all() {
    loom::model(|| {
        let (mut producer, mut consumer) = halves(2);
        let pushing = thread::spawn(move || {
            assert_eq!(producer.stage(&[1; 8]), Ok(true));
            assert_eq!(producer.stage(&[2; 8]), Ok(true));
            producer.publish();
        });
        let there = consumer.look().unwrap();
        assert!(there == 0 || there == 2, "{there}");
        for number in 0..u64::from(there) {
            assert_eq!(consumer.peek(), Ok(Some([number + 1; 8])));
            consumer.advance();
        }
        pushing.join().unwrap();
    });
}

#[test]
fn a_descriptor_that_is_published_is_found_or_wakes() {
    loom::model(|| {
        let (mut producer, mut consumer) = halves(1);
        let woken = Arc::new(AtomicU32::new(0));
        let wakes = Arc::clone(&woken);
        let pushing = thread::spawn(move || {
            producer.stage(&[1; 8]).unwrap();
            producer.publish();
            if must_wake(producer.memory().flag(0).unwrap()) {
                wakes.fetch_add(1, Ordering::Relaxed);
            }
        });
        announce_sleep(consumer.memory().flag(0).unwrap());
        let is_found = consumer.look().unwrap() == 1;
        pushing.join().unwrap();
        assert!(is_found || woken.load(Ordering::Relaxed) == 1, "asleep for ever");
    });
}

#[test]
fn reports_of_what_is_settled_were_published_before() {
    loom::model(|| {
        let (submissions, taken) = halves(1);
        let (mut reports, mut reported) = halves(1);
        let settling = thread::spawn(move || {
            reports.stage(&[1; 8]).unwrap();
            reports.publish();
            taken.settle(1);
        });
        if submissions.settled() == 1 {
            assert_eq!(reported.look(), Ok(1));
        }
        settling.join().unwrap();
    });
}
