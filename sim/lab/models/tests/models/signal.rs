//! The flag and the descriptor by which threads wake each other, as in `src/machine/signal.rs`.

use doorbell_hotpath::NotifyFlag;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

/// A signal, and the work that it announces.
struct Work {
    flag: NotifyFlag,
    /// The count of the `eventfd`. A lock of the kernel serializes the calls on it.
    descriptor: AtomicU32,
    /// Relaxed, so that the flag alone orders it.
    work: [AtomicU32; 2],
}

impl Work {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            flag: NotifyFlag::new(),
            descriptor: AtomicU32::new(0),
            work: [AtomicU32::new(0), AtomicU32::new(0)],
        })
    }

    fn announce(&self, at: usize, work: u32) {
        self.work[at].store(work, Ordering::Relaxed);
        if self.flag.notify() {
            self.descriptor.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Takes the signal, if it was given, and looks at the work.
    fn look(&self) -> [u32; 2] {
        self.flag
            .take_heard(|| self.descriptor.swap(0, Ordering::AcqRel) != 0);
        [0, 1].map(|at| self.work[at].load(Ordering::Relaxed))
    }

    fn is_readable(&self) -> bool {
        self.descriptor.load(Ordering::Relaxed) != 0
    }

    /// Checks, after all signals: all work was seen, or the descriptor is readable and wakes the waiting thread.
    fn settle(&self, seen: [u32; 2], all: [u32; 2]) {
        assert!(
            seen == all || self.is_readable(),
            "{seen:?} of {all:?}, and asleep for ever"
        );
        assert_eq!(self.look(), all);
        assert!(!self.is_readable(), "it rings for nothing");
    }
}

#[test]
fn what_is_announced_is_seen_or_rings() {
    loom::model(|| {
        let work = Work::new();
        let announcing = {
            let work = Arc::clone(&work);
            thread::spawn(move || (1..=2).for_each(|round| work.announce(0, round)))
        };
        work.look();
        let seen = work.look();
        announcing.join().unwrap();
        work.settle(seen, [2, 0]);
    });
}

#[test]
fn of_two_that_tell_neither_is_missed() {
    loom::model(|| {
        let work = Work::new();
        let announcing = [0, 1].map(|at| {
            let work = Arc::clone(&work);
            thread::spawn(move || work.announce(at, 1))
        });
        let seen = work.look();
        announcing.into_iter().for_each(|thread| thread.join().unwrap());
        work.settle(seen, [1, 1]);
    });
}
