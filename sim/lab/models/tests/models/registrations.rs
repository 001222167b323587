//! Uses of registrations without the lock, beside what the table does under it.

use doorbell_core::Access;
use doorbell_core::registrations::{
    AddressRange, Committed, Ended, Key, Limits, Mark, Reservation, Slot, Table, Use, Uses,
};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

type Marks = std::sync::Arc<Uses<Vec<Mark>>>;

/// Witnesses of two registrations, one after the other, and what finds them. A use reads one, and making and deregistering it write.
#[derive(Clone)]
struct Cache {
    uses: Marks,
    registered: Arc<[UnsafeCell<()>; 2]>,
}

/// One place, and the thread that has the lock.
struct Owner {
    cache: Cache,
    table: Table<usize, Vec<Slot<usize>>, Marks>,
}

const STARTS: [usize; 2] = [0x10, 0x20];

fn key(number: usize) -> Key {
    Key {
        range: AddressRange::new(STARTS[number], 8).unwrap(),
        access: Access::LOCAL_WRITE,
        is_kept: true,
    }
}

impl Cache {
    /// Begins a use, if the registration is found.
    fn find(&self, number: usize) -> Option<Use> {
        let (used, tag) = self.uses.look_up(&key(number))?;
        assert_eq!(tag as usize, number, "the registration of another key");
        Some(used)
    }

    /// Ends a use. Returns the registration if it is to be retired.
    fn end(&self, number: usize, used: Use) -> Option<Ended> {
        self.registered[number].with(|_| ());
        self.uses.release(used)
    }

    /// Begins and ends a use of the first registration, which is live.
    fn find_and_end(&self) {
        let used = self.find(0).expect("a live registration is found");
        assert_eq!(self.end(0, used), None);
    }

    fn use_once(&self, number: usize) -> Option<Ended> {
        self.end(number, self.find(number)?)
    }
}

impl Owner {
    fn new() -> Self {
        let uses: Marks = std::sync::Arc::new(Uses::new(vec![Mark::new()]));
        let limits = Limits { entries: 1, bytes: 8 };
        let table = Table::new(vec![Slot::new()], std::sync::Arc::clone(&uses), limits);
        let registered = Arc::new([UnsafeCell::new(()), UnsafeCell::new(())]);
        let cache = Cache { uses, registered };
        Self { cache, table }
    }

    /// Makes a registration, if there is room, with one user.
    fn add(&mut self, number: usize) -> Option<Use> {
        let Reservation::Reserved(id) = self.table.reserve(key(number)) else {
            return None;
        };
        self.cache.registered[number].with_mut(|_| ());
        let tag = u32::try_from(number).unwrap();
        match self.table.commit(id, number, tag) {
            Ok(Committed::Shared(used)) => Some(used),
            other => panic!("{other:?}"),
        }
    }

    /// Makes the first registration, which nobody uses then.
    fn add_idle(&mut self) {
        let used = self.add(0).unwrap();
        assert!(!self.table.release(used));
    }

    /// A thread that uses the first registration once, if it finds it.
    fn user(&self) -> thread::JoinHandle<Option<Ended>> {
        let cache = self.cache.clone();
        thread::spawn(move || cache.use_once(0))
    }

    /// A thread that uses the first registration once, and has to find it.
    fn user_that_finds(&self) -> thread::JoinHandle<()> {
        let cache = self.cache.clone();
        thread::spawn(move || cache.find_and_end())
    }

    fn invalidate(&mut self, number: usize) {
        self.table.invalidate(key(number).range);
        self.deregister();
    }

    fn deregister(&mut self) {
        while let Some((id, number)) = self.table.take_retired() {
            self.cache.registered[number].with_mut(|_| ());
            self.table.deregistered(id);
        }
    }

    /// Retires what a last use said.
    fn retire(&mut self, last: Option<Ended>) {
        if let Some(ended) = last {
            assert!(self.table.retire(ended), "it was not the last use");
            self.deregister();
        }
    }
}

#[test]
fn one_that_is_found_is_made() {
    loom::model(|| {
        let mut owner = Owner::new();
        let user = owner.user();
        let _ = owner.add(0).unwrap();
        assert_eq!(user.join().unwrap(), None, "it is live");
    });
}

#[test]
fn one_that_is_invalidated_is_deregistered_behind_its_last_use() {
    loom::model(|| {
        let mut owner = Owner::new();
        owner.add_idle();
        let user = owner.user();
        owner.invalidate(0);
        let last = user.join().unwrap();
        owner.retire(last);
        assert_eq!(owner.table.counts().entries, 0);
    });
}

#[test]
fn the_last_of_two_ends_retires_it() {
    loom::model(|| {
        let mut owner = Owner::new();
        let first = owner.add(0).unwrap();
        let user = owner.user();
        owner.invalidate(0);
        let last = owner.cache.end(0, first);
        owner.retire(last);
        let last = user.join().unwrap();
        owner.retire(last);
        assert_eq!(owner.table.counts().entries, 0);
    });
}

#[test]
fn one_that_follows_at_the_same_place_is_no_other() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let mut owner = Owner::new();
        owner.add_idle();
        let user = owner.user();
        owner.invalidate(0);
        owner.add(1);
        let last = user.join().unwrap();
        owner.retire(last);
    });
}

#[test]
fn one_that_is_evicted_has_no_users() {
    loom::model(|| {
        let mut owner = Owner::new();
        owner.add_idle();
        let user = owner.user();
        owner.table.evict_idle();
        owner.deregister();
        assert_eq!(user.join().unwrap(), None, "it is live, or was not found");
    });
}

#[test]
fn one_that_nobody_takes_away_is_found_by_all_that_look_it_up_at_once() {
    loom::model(|| {
        let mut owner = Owner::new();
        owner.add_idle();
        let user = owner.user_that_finds();
        owner.cache.find_and_end();
        user.join().unwrap();
    });
}
