//! A flag and a descriptor that rings for it, as threads tell each other of by `src/machine/signal.rs`.

use doorbell_hotpath::ToldFlag;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

/// A signal, and what it tells of.
struct Told {
    flag: ToldFlag,
    /// What an `eventfd` counts. The calls are one after the other, by a lock of the kernel's.
    descriptor: AtomicU32,
    /// Relaxed: what there is to order it is the flag.
    work: [AtomicU32; 2],
}

impl Told {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            flag: ToldFlag::new(),
            descriptor: AtomicU32::new(0),
            work: [AtomicU32::new(0), AtomicU32::new(0)],
        })
    }

    fn tell(&self, at: usize, work: u32) {
        self.work[at].store(work, Ordering::Relaxed);
        if self.flag.tell() {
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

    /// Now that all was told: it was seen, or whoever waits is woken to see it.
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
fn what_is_told_is_seen_or_rings() {
    loom::model(|| {
        let told = Told::new();
        let telling = {
            let told = Arc::clone(&told);
            thread::spawn(move || (1..=2).for_each(|work| told.tell(0, work)))
        };
        told.look();
        let seen = told.look();
        telling.join().unwrap();
        told.settle(seen, [2, 0]);
    });
}

#[test]
fn of_two_that_tell_neither_is_missed() {
    loom::model(|| {
        let told = Told::new();
        let telling = [0, 1].map(|at| {
            let told = Arc::clone(&told);
            thread::spawn(move || told.tell(at, 1))
        });
        let seen = told.look();
        telling.into_iter().for_each(|thread| thread.join().unwrap());
        told.settle(seen, [1, 1]);
    });
}
