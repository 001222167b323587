//! Announcing a sleep, against threads that push into rings and wake a sleeper whose announcement they see.

use doorbell_hotpath::SleepFlag;
use doorbell_hotpath::ring::{Descriptor, Slot, SpscRing};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

const ITEM: Descriptor = Descriptor {
    words: [1, 2, 3],
    index: 4,
    kind: 5,
};

/// A sleeper, and the number of calls that woke it.
struct Sleeper {
    flag: SleepFlag,
    wakes: AtomicU32,
}

impl Sleeper {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            flag: SleepFlag::new(),
            wakes: AtomicU32::new(0),
        })
    }

    fn wake_if_asleep(&self) {
        if self.flag.must_wake() {
            self.wakes.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[test]
fn what_is_put_is_found_or_wakes() {
    loom::model(|| {
        let sleeper = Sleeper::new();
        let ring = Arc::new(SpscRing::new(vec![Slot::new(), Slot::new()]).unwrap());
        let (mut producer, mut consumer) = SpscRing::split(ring).unwrap();
        let putting = {
            let sleeper = Arc::clone(&sleeper);
            thread::spawn(move || {
                producer.push(ITEM).unwrap();
                sleeper.wake_if_asleep();
            })
        };
        sleeper.flag.announce();
        let is_found = consumer.take().is_ok();
        putting.join().unwrap();
        let wakes = sleeper.wakes.load(Ordering::Relaxed);
        assert!(is_found || wakes == 1, "asleep for ever");
    });
}

#[test]
fn of_two_that_put_something_neither_is_missed() {
    loom::model(|| {
        let sleeper = Sleeper::new();
        let put = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
        let putting = [0, 1].map(|at: usize| {
            let (sleeper, put) = (Arc::clone(&sleeper), Arc::clone(&put));
            thread::spawn(move || {
                put[at].store(1, Ordering::Relaxed);
                sleeper.wake_if_asleep();
            })
        });
        sleeper.flag.announce();
        let found = put.iter().all(|put| put.load(Ordering::Relaxed) == 1);
        putting.into_iter().for_each(|thread| thread.join().unwrap());
        let wakes = sleeper.wakes.load(Ordering::Relaxed);
        assert!(wakes <= 1, "woken by one of them");
        assert!(found || wakes == 1, "asleep for ever");
    });
}
