//! The ring between two processes: batches of different lengths, each side at its own pace, and one that sleeps.

use std::sync::Arc;

use doorbell_core::interprocess::SharedWords;
use doorbell_hotpath::{
    SharedConsumer, SharedProducer, SharedRing, announce_sleep, must_wake, withdraw_sleep,
};
use shuttle::sync::atomic::{AtomicU32, AtomicU64};
use shuttle::sync::mpsc;
use shuttle::thread;

use crate::explore;

const ITEMS: u64 = 16;

struct Mapping {
    words: Vec<AtomicU64>,
    flag: AtomicU32,
}

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
}

fn halves() -> (SharedProducer<View>, SharedConsumer<View>) {
    let ring = SharedRing::new(0, 4).unwrap();
    let view = View(Arc::new(Mapping {
        words: (0..ring.words()).map(|_| AtomicU64::new(0)).collect(),
        flag: AtomicU32::new(0),
    }));
    (
        SharedProducer::new(view.clone(), ring),
        SharedConsumer::new(view, ring),
    )
}

fn push_all(producer: &mut SharedProducer<View>, mut published: impl FnMut(&View)) {
    let mut number = 0;
    while number < ITEMS {
        let mut staged = 0;
        while staged <= number % 3 && number < ITEMS && producer.stage(&[number; 8]).unwrap() {
            number += 1;
            staged += 1;
        }
        if producer.publish() {
            published(producer.memory());
        } else {
            thread::yield_now();
        }
    }
}

#[test]
fn all_come_whole_and_in_order() {
    explore("shared ring", || {
        let (mut producer, mut consumer) = halves();
        let pushing = thread::spawn(move || push_all(&mut producer, |_| {}));
        let mut expected = 0;
        while expected < ITEMS {
            for _ in 0..consumer.look().unwrap() {
                assert_eq!(consumer.peek(), Ok(Some([expected; 8])));
                consumer.advance();
                expected += 1;
            }
            if !consumer.hand_back() {
                thread::yield_now();
            }
        }
        pushing.join().unwrap();
    });
}

#[test]
fn a_consumer_that_sleeps_is_woken() {
    explore("shared ring asleep", || {
        let (mut producer, mut consumer) = halves();
        // A wake-up that nobody sends is a deadlock, which is found.
        let (wake, woken) = mpsc::channel();
        let pushing = thread::spawn(move || {
            push_all(&mut producer, |view| {
                if must_wake(view.flag(0).unwrap()) {
                    wake.send(()).unwrap();
                }
            });
            wake
        });
        let mut expected = 0;
        while expected < ITEMS {
            let mut there = consumer.look().unwrap();
            if there == 0 {
                announce_sleep(consumer.memory().flag(0).unwrap());
                there = consumer.look().unwrap();
                if there == 0 {
                    woken.recv().unwrap();
                }
                withdraw_sleep(consumer.memory().flag(0).unwrap());
            }
            for _ in 0..there {
                assert_eq!(consumer.peek(), Ok(Some([expected; 8])));
                consumer.advance();
                expected += 1;
            }
            consumer.hand_back();
        }
        drop(pushing.join().unwrap());
    });
}
