//! The accept queue, which hands connections from the threads that do handshakes to those that accept.

use doorbell_core::accept_queue::{AcceptQueue, AcceptSlot, Reservation, ReserveError, TakeError};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

/// The queue, a table of the caller's, and memory that is written before the queue is closed.
struct Shared {
    queue: AcceptQueue<Vec<AcceptSlot>>,
    table: Vec<Entry>,
    reason: UnsafeCell<()>,
}

/// A connection by its number, 0 for none, and a witness for what it is.
///
/// The number is relaxed, so that the queue alone orders it.
struct Entry {
    memory: UnsafeCell<()>,
    number: AtomicU32,
}

impl Shared {
    fn new(places: usize) -> Arc<Self> {
        Arc::new(Self {
            queue: AcceptQueue::new((0..places).map(|_| AcceptSlot::new()).collect()),
            table: (0..places)
                .map(|_| Entry {
                    memory: UnsafeCell::new(()),
                    number: AtomicU32::new(0),
                })
                .collect(),
            reason: UnsafeCell::new(()),
        })
    }

    /// Puts something else into an entry; gives what was there.
    fn replace(&self, index: u32, number: u32) -> u32 {
        let entry = &self.table[index as usize];
        entry.memory.with_mut(|_| ());
        let before = entry.number.load(Ordering::Relaxed);
        entry.number.store(number, Ordering::Relaxed);
        before
    }

    fn reserve(&self) -> Result<Reservation<&AcceptQueue<Vec<AcceptSlot>>>, ReserveError> {
        AcceptQueue::reserve(&self.queue)
    }

    /// Does a handshake, with a place for it as soon as there is one.
    fn connect(&self, number: u32) {
        loop {
            if let Ok(place) = self.reserve() {
                assert_eq!(self.replace(place.index(), number), 0, "a place has one owner");
                return place.publish();
            }
            thread::yield_now();
        }
    }

    /// Accepts one if there is one.
    fn poll(&self) -> Result<u32, TakeError> {
        let taken = AcceptQueue::take(&self.queue)?;
        let number = self.replace(taken.index(), 0);
        assert_ne!(number, 0, "an empty place was published");
        Ok(number)
    }

    /// Accepts one, however long that takes; none once no more come.
    fn accept(&self) -> Option<u32> {
        loop {
            match self.poll() {
                Ok(number) => return Some(number),
                Err(TakeError::Closed) => return None,
                Err(_) => thread::yield_now(),
            }
        }
    }

    /// Frees everything, as a thread may once the queue is over.
    fn free(&self) {
        self.reason.with_mut(|_| ());
        self.table.iter().for_each(|entry| entry.memory.with_mut(|_| ()));
    }
}

#[test]
fn a_place_is_used_again() {
    loom::model(|| {
        let shared = Shared::new(1);
        let connecting = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                shared.connect(1);
                shared.connect(2);
            })
        };
        assert_eq!(shared.accept(), Some(1));
        assert_eq!(shared.accept(), Some(2));
        assert_eq!(shared.poll(), Err(TakeError::Empty));
        connecting.join().unwrap();
    });
}

#[test]
fn two_that_connect_are_both_accepted() {
    loom::model(|| {
        let shared = Shared::new(2);
        let threads: Vec<_> = (1..=2)
            .map(|number| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || shared.connect(number))
            })
            .collect();
        let mut accepted: Vec<_> = shared.poll().into_iter().collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        while let Ok(number) = shared.poll() {
            accepted.push(number);
        }
        accepted.sort_unstable();
        assert_eq!(accepted, [1, 2]);
    });
}

#[test]
fn one_that_connects_is_accepted_once() {
    loom::model(|| {
        let shared = Shared::new(1);
        shared.connect(7);
        let other = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.poll())
        };
        let (here, there) = (shared.poll(), other.join().unwrap());
        assert!(here.is_ok() != there.is_ok(), "{here:?} {there:?}");
    });
}

#[test]
fn of_two_for_one_place_one_is_told_no() {
    loom::model(|| {
        let shared = Shared::new(1);
        let ask = |shared: &Shared, number| match shared.reserve() {
            Ok(place) => {
                assert_eq!(shared.replace(place.index(), number), 0);
                place.publish();
                true
            }
            Err(error) => {
                assert_eq!(error, ReserveError::Full);
                false
            }
        };
        let other = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || ask(&shared, 1))
        };
        let here = ask(&shared, 2);
        assert!(here != other.join().unwrap(), "one of them");
        assert_eq!(shared.poll(), Ok(if here { 2 } else { 1 }));
    });
}

#[test]
fn a_place_that_was_given_up_is_anothers() {
    loom::model(|| {
        let shared = Shared::new(1);
        let giving_up = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                if let Ok(place) = shared.reserve() {
                    shared.replace(place.index(), 1);
                    shared.replace(place.index(), 0);
                }
            })
        };
        shared.connect(2);
        assert_eq!(shared.accept(), Some(2));
        giving_up.join().unwrap();
    });
}

#[test]
fn nothing_is_lost_when_it_is_closed_while_one_connects() {
    loom::model(|| {
        let shared = Shared::new(1);
        let connecting = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || match shared.reserve() {
                Ok(place) => {
                    shared.replace(place.index(), 1);
                    place.publish();
                    true
                }
                Err(error) => {
                    assert_eq!(error, ReserveError::Closed);
                    shared.reason.with_mut(|_| ());
                    false
                }
            })
        };
        shared.reason.with_mut(|_| ());
        shared.queue.close();
        let accepted = shared.accept();
        assert_eq!(accepted.is_some(), connecting.join().unwrap(), "{accepted:?}");
        assert_eq!(shared.accept(), None);
    });
}

#[test]
fn whoever_learns_that_all_is_over_has_the_table() {
    loom::model(|| {
        let shared = Shared::new(1);
        let connecting = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                if let Ok(place) = shared.reserve() {
                    shared.replace(place.index(), 1);
                    shared.replace(place.index(), 0);
                }
            })
        };
        let closing = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                shared.reason.with_mut(|_| ());
                shared.queue.close();
            })
        };
        while !shared.queue.is_over() {
            thread::yield_now();
        }
        shared.free();
        connecting.join().unwrap();
        closing.join().unwrap();
    });
}

#[test]
fn whoever_learns_that_none_comes_knows_what_was_before() {
    loom::model(|| {
        let shared = Shared::new(1);
        let closing = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                shared.connect(1);
                shared.reason.with_mut(|_| ());
                shared.queue.close();
            })
        };
        assert_eq!(shared.accept(), Some(1));
        assert_eq!(shared.accept(), None);
        shared.reason.with_mut(|_| ());
        closing.join().unwrap();
    });
}
