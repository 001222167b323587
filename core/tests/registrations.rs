//! The index of the registration cache against a plain model, in any order of calls: a stale registration is never
//! handed out, and one in use is never deregistered.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "a test fails by panicking"
)]

use std::collections::BTreeMap;
use std::sync::Arc;

use doorbell_core::Access;
use doorbell_core::registrations::{
    AddressRange, Committed, EntryId, Key, Limits, Mark, Reservation, Slot, Table, TableCounts, Use, Uses,
};
use proptest::prelude::*;

type Marks = Arc<Uses<Vec<Mark>>>;
type Index = Table<u64, Vec<Slot<u64>>, Marks>;

fn marks(count: usize) -> Marks {
    Arc::new(Uses::new((0..count).map(|_| Mark::new()).collect()))
}

const LIMITS: Limits = Limits {
    entries: 5,
    bytes: 40,
};

/// Change of mappings, as a process makes it.
#[derive(Clone, Copy, Debug)]
enum Change {
    Unmap,
    Discard,
    /// The range is found at another address afterwards.
    Move,
    /// A child has its own mappings: nothing changes for the parent.
    Fork,
}

#[derive(Clone, Debug)]
enum Step {
    /// A lookup, and a registration of one that is missing. `between` happens to the mappings before the commit.
    Acquire {
        key: Key,
        between: Option<(Change, AddressRange)>,
    },
    /// A registration that fails.
    Fail {
        key: Key,
    },
    /// A registration that stays pending, until `Finish`.
    Begin {
        key: Key,
    },
    Finish {
        which: usize,
    },
    Release {
        which: usize,
    },
    Change {
        change: Change,
        range: AddressRange,
    },
    Deregister {
        wholly: bool,
    },
    EvictIdle,
}

fn ranges() -> impl Strategy<Value = AddressRange> {
    (0_usize..48, 1_usize..16).prop_map(|(start, bytes)| AddressRange::new(0x1000 + start, bytes).unwrap())
}

fn keys() -> impl Strategy<Value = Key> {
    let fixed = prop::sample::select(vec![
        (0_usize, 8_usize),
        (4, 8),
        (8, 8),
        (0, 16),
        (32, 4),
        (40, 8),
    ]);
    let access = prop::sample::select(vec![
        Access::empty(),
        Access::LOCAL_WRITE,
        Access::LOCAL_WRITE | Access::RELAXED_ORDERING,
    ]);
    (fixed, access, any::<bool>()).prop_map(|((start, bytes), access, is_kept)| Key {
        range: AddressRange::new(0x1000 + start, bytes).unwrap(),
        access,
        is_kept,
    })
}

fn changes() -> impl Strategy<Value = (Change, AddressRange)> {
    let kinds = prop::sample::select(vec![Change::Unmap, Change::Discard, Change::Move, Change::Fork]);
    (kinds, ranges())
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (keys(), prop::option::weighted(0.2, changes())).prop_map(|(key, between)| Step::Acquire { key, between }),
        1 => keys().prop_map(|key| Step::Fail { key }),
        1 => keys().prop_map(|key| Step::Begin { key }),
        2 => any::<usize>().prop_map(|which| Step::Finish { which }),
        5 => any::<usize>().prop_map(|which| Step::Release { which }),
        3 => changes().prop_map(|(change, range)| Step::Change { change, range }),
        2 => any::<bool>().prop_map(|wholly| Step::Deregister { wholly }),
        1 => Just(Step::EvictIdle),
    ]
}

/// Facts about one registration. Its number is the value that the table stores.
#[derive(Clone, Copy, Debug)]
struct Known {
    key: Key,
    users: u32,
    is_stale: bool,
    is_registered: bool,
}

#[derive(Debug)]
struct World {
    table: Index,
    uses: Marks,
    known: BTreeMap<u64, Known>,
    used: Vec<(Use, u64)>,
    pending: Vec<(EntryId, u64)>,
    leaving: Vec<EntryId>,
    now: u64,
    hits: u64,
    misses: u64,
}

impl World {
    fn new() -> Self {
        let uses = marks(8);
        Self {
            table: Table::new((0..8).map(|_| Slot::new()).collect(), Arc::clone(&uses), LIMITS),
            uses,
            known: BTreeMap::new(),
            used: Vec::new(),
            pending: Vec::new(),
            leaving: Vec::new(),
            now: 0,
            hits: 0,
            misses: 0,
        }
    }

    fn look_up(&mut self, key: Key) -> bool {
        // Each other one without the lock; what that does not find is looked up once more.
        let found = (self.now % 2 == 0).then(|| self.uses.look_up(&key)).flatten();
        let found = found.map(|(used, tag)| (used, u64::from(tag)));
        let under_lock = || self.table.look_up(&key).map(|(used, number)| (used, *number));
        let Some((used, number)) = found.or_else(under_lock) else {
            self.misses += 1;
            return false;
        };
        self.hits += 1;
        let known = self.known.get_mut(&number).unwrap();
        assert_eq!(known.key, key, "the registration of another key was handed out");
        assert!(!known.is_stale, "a stale registration was handed out");
        assert!(known.is_registered, "a deregistered one was handed out");
        known.users += 1;
        assert_eq!(self.table.used(&used), Some(&number));
        self.used.push((used, number));
        true
    }

    fn deregister_one(&mut self, wholly: bool) -> bool {
        let Some((id, number)) = self.table.take_retired() else {
            return false;
        };
        let known = self.known.get_mut(&number).unwrap();
        assert_eq!(known.users, 0, "a registration in use was deregistered");
        assert!(known.is_registered, "a registration was deregistered twice");
        known.is_registered = false;
        if wholly {
            self.table.deregistered(id);
            self.known.remove(&number);
        } else {
            self.leaving.push(id);
        }
        true
    }

    /// Reports that those that were taken are deregistered. Returns whether there were any.
    fn end_leaving(&mut self) -> bool {
        let is_any = !self.leaving.is_empty();
        for id in self.leaving.drain(..) {
            self.table.deregistered(id);
            self.table.deregistered(id);
        }
        self.known.retain(|_, known| known.is_registered);
        is_any
    }

    fn reserve(&mut self, key: Key) -> Option<(EntryId, u64)> {
        let before = self.table.counts();
        let id = loop {
            match self.table.reserve(key) {
                Reservation::Reserved(id) => break id,
                Reservation::DeregisterFirst => {
                    assert!(self.deregister_one(true) || self.end_leaving());
                }
                Reservation::Full => {
                    let after = self.table.counts();
                    assert_eq!(
                        before.evictions, after.evictions,
                        "evicted, and full nevertheless"
                    );
                    return None;
                }
            }
        };
        self.now += 1;
        let known = Known {
            key,
            users: 0,
            is_stale: false,
            is_registered: true,
        };
        self.known.insert(self.now, known);
        Some((id, self.now))
    }

    fn commit(&mut self, id: EntryId, number: u64) {
        let known = self.known[&number];
        let same = |other: &Known| other.key == known.key && !other.is_stale;
        let is_found = self.known.iter().any(|(other, known)| {
            *other != number && same(known) && self.pending.iter().all(|(_, pending)| pending != other)
        });
        let committed = self.table.commit(id, number, number as u32).unwrap();
        let is_alone = matches!(committed, Committed::Alone(_));
        match committed {
            Committed::Stale => assert!(known.is_stale),
            Committed::Shared(used) | Committed::Alone(used) => {
                assert!(
                    !known.is_stale,
                    "invalidated while it was registered, and handed out"
                );
                assert!(is_found || !is_alone);
                let known = self.known.get_mut(&number).unwrap();
                known.users = 1;
                // No lookup may find it: another of its key may be found.
                known.is_stale |= is_alone;
                self.used.push((used, number));
            }
        }
        assert_eq!(
            self.table.commit(id, number, number as u32),
            Err(number),
            "committed twice"
        );
    }

    fn change(&mut self, change: Change, range: AddressRange) {
        if matches!(change, Change::Fork) {
            return;
        }
        self.table.invalidate(range);
        for known in self.known.values_mut() {
            known.is_stale |= known.key.range.overlaps(range);
        }
    }

    fn step(&mut self, step: Step) {
        self.now += 1;
        match step {
            Step::Acquire { key, between } => {
                if self.look_up(key) {
                    return;
                }
                let Some((id, number)) = self.reserve(key) else {
                    return;
                };
                if let Some((change, range)) = between {
                    self.change(change, range);
                }
                self.commit(id, number);
            }
            Step::Fail { key } => {
                if let Some((id, number)) = self.reserve(key) {
                    self.table.abandon(id);
                    self.table.abandon(id);
                    self.known.remove(&number);
                }
            }
            Step::Begin { key } => {
                let begun = self.reserve(key);
                self.pending.extend(begun);
            }
            Step::Finish { which } => {
                if !self.pending.is_empty() {
                    let (id, number) = self.pending.remove(which % self.pending.len());
                    self.commit(id, number);
                }
            }
            Step::Release { which } => {
                if self.used.is_empty() {
                    return;
                }
                let (used, number) = self.used.remove(which % self.used.len());
                let known = self.known.get_mut(&number).unwrap();
                known.users -= 1;
                let (users, is_stale) = (known.users, known.is_stale);
                let is_retired = match self.now % 2 {
                    0 => {
                        let ended = self.uses.release(used);
                        ended.is_some_and(|ended| self.table.retire(ended))
                    }
                    _ => self.table.release(used),
                };
                assert_eq!(is_retired, users == 0 && is_stale);
                let of_same = self.used.iter().filter(|(_, other)| *other == number);
                let values: Vec<_> = of_same.map(|(used, _)| self.table.used(used)).collect();
                assert_eq!(values, vec![Some(&number); users as usize], "others use it");
            }
            Step::Change { change, range } => self.change(change, range),
            Step::Deregister { wholly } => {
                self.deregister_one(wholly);
                self.end_leaving();
            }
            Step::EvictIdle => {
                self.table.evict_idle();
            }
        }
    }

    fn check(&self) {
        let counts = self.table.counts();
        assert!(
            counts.entries <= LIMITS.entries && counts.bytes <= LIMITS.bytes,
            "{counts:?}"
        );
        assert_eq!(counts.entries as usize, self.known.len());
        let bytes: u64 = self
            .known
            .values()
            .map(|known| known.key.range.bytes() as u64)
            .sum();
        assert_eq!(counts.bytes, bytes);
        let used = self.known.values().filter(|known| known.users != 0).count();
        assert_eq!(counts.entries_used as usize, used);
        assert_eq!((counts.hits, counts.misses), (self.hits, self.misses));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_order_of_calls_agrees_with_the_model(steps in prop::collection::vec(steps(), 1..120)) {
        let mut world = World::new();
        for step in steps {
            world.step(step);
            world.check();
        }
        // All of it can leave, in the end.
        for (id, number) in core::mem::take(&mut world.pending) {
            world.commit(id, number);
        }
        for (used, number) in core::mem::take(&mut world.used) {
            world.known.get_mut(&number).unwrap().users -= 1;
            world.table.release(used);
        }
        for id in core::mem::take(&mut world.leaving) {
            world.table.deregistered(id);
        }
        world.table.evict_idle();
        while world.deregister_one(true) {}
        let TableCounts { entries, entries_used, bytes, .. } = world.table.counts();
        prop_assert_eq!((entries, entries_used, bytes), (0, 0, 0));
    }
}

fn key(start: usize, bytes: usize) -> Key {
    Key {
        range: AddressRange::new(start, bytes).unwrap(),
        access: Access::LOCAL_WRITE,
        is_kept: false,
    }
}

fn add(table: &mut Index, key: Key, value: u64) -> Use {
    let Reservation::Reserved(id) = table.reserve(key) else {
        panic!("no room for {key:?}");
    };
    match table.commit(id, value, value as u32) {
        Ok(Committed::Shared(used)) => used,
        other => panic!("{other:?}"),
    }
}

fn table(limits: Limits) -> Index {
    Table::new((0..4).map(|_| Slot::new()).collect(), marks(4), limits)
}

#[test]
fn the_least_recently_used_leaves_first() {
    let mut table = table(Limits {
        entries: 3,
        bytes: 100,
    });
    let ids = [(0x10, 1), (0x20, 2), (0x30, 3)].map(|(start, value)| add(&mut table, key(start, 8), value));
    let [first, second, third] = ids;
    for used in [second, first, third] {
        assert!(!table.release(used));
    }
    // The second was released first, but is used once more.
    let (again, _) = table.look_up(&key(0x20, 8)).unwrap();
    assert!(!table.release(again));
    for (leaves, comes) in [(1, 0x40), (3, 0x50), (2, 0x60)] {
        assert_eq!(table.reserve(key(comes, 8)), Reservation::DeregisterFirst);
        let (id, value) = table.take_retired().unwrap();
        assert_eq!(value, leaves);
        assert_eq!(table.counts().entries, 3, "its pages are still pinned");
        table.deregistered(id);
        let _ = add(&mut table, key(comes, 8), 9);
    }
    assert_eq!(table.counts().evictions, 3);
}

#[test]
fn one_that_is_being_deregistered_makes_room_and_no_other_leaves_for_it() {
    let mut table = table(Limits {
        entries: 3,
        bytes: 100,
    });
    let first = add(&mut table, key(0x10, 8), 1);
    let second = add(&mut table, key(0x20, 8), 2);
    let third = add(&mut table, key(0x30, 8), 3);
    assert!(!table.release(first) && !table.release(second));
    assert_eq!(table.reserve(key(0x40, 8)), Reservation::DeregisterFirst);
    let (id, value) = table.take_retired().unwrap();
    assert_eq!((value, table.has_retired()), (1, false));
    // Another thread reserves meanwhile: the place of the first is the one that it gets.
    assert_eq!(table.reserve(key(0x40, 8)), Reservation::DeregisterFirst);
    assert_eq!((table.counts().evictions, table.has_retired()), (1, false));
    // Also if nothing else could leave.
    let (again, _) = table.look_up(&key(0x20, 8)).unwrap();
    assert_eq!(table.reserve(key(0x40, 8)), Reservation::DeregisterFirst);
    assert_eq!(table.reserve(key(0x40, 85)), Reservation::Full);
    table.deregistered(id);
    let fourth = add(&mut table, key(0x40, 8), 4);
    assert_eq!(table.reserve(key(0x50, 8)), Reservation::Full);
    for used in [again, third, fourth] {
        assert!(!table.release(used));
    }
    assert_eq!(table.counts().evictions, 1);
}

#[test]
fn limits_hold_at_the_last_entry_and_at_the_last_byte() {
    let mut few = table(Limits {
        entries: 2,
        bytes: 100,
    });
    let _ = add(&mut few, key(0x10, 1), 1);
    let _ = add(&mut few, key(0x20, 1), 2);
    assert_eq!(few.reserve(key(0x30, 1)), Reservation::Full);
    let mut small = table(Limits {
        entries: 9,
        bytes: 16,
    });
    assert_eq!(small.limits().entries, 4, "no more than there are slots");
    assert_eq!(small.reserve(key(0x10, 17)), Reservation::Full);
    let whole = add(&mut small, key(0x10, 16), 1);
    assert_eq!(small.reserve(key(0x30, 1)), Reservation::Full);
    assert!(!small.release(whole));
    assert_eq!(
        small.reserve(key(0x30, 17)),
        Reservation::Full,
        "nothing leaves for what never fits"
    );
    assert_eq!(small.reserve(key(0x30, 1)), Reservation::DeregisterFirst);
    let mut none = Index::new(Vec::new(), marks(4), LIMITS);
    assert_eq!(none.reserve(key(1, 1)), Reservation::Full);
    assert!(none.look_up(&key(1, 1)).is_none());
    assert_eq!(none.invalidate(AddressRange::new(0, usize::MAX).unwrap()), 0);
}

#[test]
fn as_many_uses_as_can_be_counted_and_one_more() {
    let uses = marks(4);
    let mut table = Index::new((0..4).map(|_| Slot::new()).collect(), Arc::clone(&uses), LIMITS);
    let one = key(0x10, 8);
    let first = add(&mut table, one, 1);
    // 2^19 uses that began without the lock: the next one begins under it, and all are counted.
    let mut hits = 0_u64;
    while let Some((used, _)) = uses.look_up(&one) {
        assert_eq!(uses.release(used), None);
        hits += 1;
    }
    assert_eq!((hits, table.counts().hits), (1 << 19, 1 << 19));
    assert!(table.look_up(&one).is_some());
    assert!(uses.look_up(&one).is_some(), "it goes on without the lock");
    assert_eq!(table.counts().hits, hits + 2);
    // 2^18 users at once, three of them above: the next one gets a registration of its own.
    let mut users = 3_u64;
    while uses.look_up(&one).is_some() || (users < 1 << 18 && table.look_up(&one).is_some()) {
        users += 1;
    }
    assert_eq!(users, 1 << 18);
    assert!(table.look_up(&one).is_none());
    assert_eq!(uses.release(first), None);
    assert!(table.look_up(&one).is_some() && table.look_up(&one).is_none());
}

#[test]
fn buffers_in_a_row_are_found_without_the_lock() {
    for power in 6..=30 {
        let bytes = 1_usize << power;
        let uses = marks(1024);
        let limits = Limits {
            entries: 1024,
            bytes: u64::MAX,
        };
        let slots = (0..1024).map(|_| Slot::new()).collect();
        let mut table = Index::new(slots, Arc::clone(&uses), limits);
        let keys = (1..=1024).map(|place| key(place * bytes, bytes));
        for key in keys.clone() {
            let _ = add(&mut table, key, 1);
        }
        let found = keys.filter(|key| uses.look_up(key).is_some()).count();
        assert_eq!(found, 1024, "{bytes} bytes each");
    }
}

#[test]
fn each_field_of_the_key_distinguishes() {
    let mut table = table(Limits {
        entries: 4,
        bytes: 100,
    });
    let one = key(0x10, 8);
    let _ = add(&mut table, one, 1);
    for other in [
        key(0x11, 8),
        key(0x10, 7),
        Key {
            access: Access::empty(),
            ..one
        },
        Key {
            access: Access::LOCAL_WRITE | Access::RELAXED_ORDERING,
            ..one
        },
        Key { is_kept: true, ..one },
    ] {
        assert!(table.look_up(&other).is_none(), "{other:?}");
    }
    assert!(table.look_up(&one).is_some());
}

#[test]
fn ranges_have_a_first_and_a_last_byte() {
    let range = |start, bytes| AddressRange::new(start, bytes).unwrap();
    assert_eq!(AddressRange::new(5, 0), None);
    assert_eq!(AddressRange::new(usize::MAX, 1), None);
    assert_eq!(range(usize::MAX - 1, 1).in_pages(4096), None);
    assert!(!range(0, 8).overlaps(range(8, 1)) && !range(8, 1).overlaps(range(0, 8)));
    assert!(range(0, 9).overlaps(range(8, 1)) && range(8, 1).overlaps(range(0, 9)));
    assert_eq!(range(4097, 1).in_pages(4096), Some(range(4096, 4096)));
    assert_eq!(range(4096, 4097).in_pages(4096), Some(range(4096, 8192)));
}
