//! Tests of the cache with stand-ins for the device and the kernel.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, Weak};
use std::thread;

use doorbell_core::provider::ProviderError;
use doorbell_core::registrations::{AddressRange, Key, Limits};
use doorbell_core::{Access, Lkey};
use doorbell_ffi::PinnedMemory;

use super::error::RegistrationError;
use super::seam::{Registrar, Subscriber, Watch};
use super::shared::{Hold, Shared};
use super::statistics::Uncached;

/// State of the stand-ins.
#[derive(Default)]
struct World {
    registrations: AtomicU32,
    live: Mutex<BTreeSet<u32>>,
    /// How many of the next registrations fail.
    fails: AtomicU32,
    errno: AtomicU32,
    limit_bytes: AtomicU64,
    unsettled: AtomicU32,
    refusal: Mutex<Option<Uncached>>,
    armed: Mutex<Vec<AddressRange>>,
    /// Invalidates a range during the next registration.
    during: Mutex<Vec<AddressRange>>,
    cache: Mutex<Weak<Cache>>,
    has_thread: AtomicBool,
    /// Locked, no registration leaves.
    gate: Mutex<()>,
}

type Cache = Shared<Arc<World>, Arc<World>>;

/// A registration. Dropping it removes it from the list of live ones.
struct Registered {
    world: Arc<World>,
    number: u32,
}

impl Drop for Registered {
    fn drop(&mut self) {
        assert!(
            self.world.live.lock().unwrap().remove(&self.number),
            "deregistered twice"
        );
        drop(self.world.gate.lock());
    }
}

impl Registrar for Arc<World> {
    type Registered = Registered;

    fn register(&self, _: AddressRange, _: Access) -> Result<Registered, ProviderError> {
        let fails = self.fails.load(Ordering::Relaxed);
        if fails != 0 {
            self.fails.store(fails - 1, Ordering::Relaxed);
            return Err(ProviderError {
                call: "ibv_reg_mr",
                errno: self.errno.load(Ordering::Relaxed).cast_signed(),
            });
        }
        if let Some(range) = self.during.lock().unwrap().pop() {
            let cache = self.cache.lock().unwrap().upgrade().unwrap();
            cache.invalidate(range);
        }
        let number = self.registrations.fetch_add(1, Ordering::Relaxed) + 1;
        self.live.lock().unwrap().insert(number);
        Ok(Registered {
            world: Arc::clone(self),
            number,
        })
    }

    fn lkey(registered: &Registered) -> Lkey {
        Lkey(registered.number)
    }

    fn pinned(&self) -> PinnedMemory {
        let mut pinned = doorbell_ffi::pinned_memory();
        pinned.limit_bytes = Some(self.limit_bytes.load(Ordering::Relaxed)).filter(|limit| *limit != 0);
        pinned.pinned_bytes = Some(7);
        pinned
    }
}

impl Watch for Arc<World> {
    fn arm(&self, range: AddressRange) -> Result<(), Uncached> {
        self.armed.lock().unwrap().push(range);
        self.refusal.lock().unwrap().map_or(Ok(()), Err)
    }

    fn is_settled(&self) -> bool {
        let left = self.unsettled.load(Ordering::Relaxed);
        self.unsettled.store(left.saturating_sub(1), Ordering::Relaxed);
        left == 0
    }

    fn deregister_elsewhere(&self) -> bool {
        self.has_thread.load(Ordering::Relaxed)
    }
}

fn cache(entries: u32, bytes: u64) -> (Arc<World>, Arc<Cache>) {
    let world = Arc::new(World::default());
    let limits = Limits { entries, bytes };
    let cache = Arc::new(Shared::new(Arc::clone(&world), Some(Arc::clone(&world)), limits));
    *world.cache.lock().unwrap() = Arc::downgrade(&cache);
    (world, cache)
}

fn range(start: usize, bytes: usize) -> AddressRange {
    AddressRange::new(start, bytes).unwrap()
}

fn key(start: usize, bytes: usize) -> Key {
    Key {
        range: range(start, bytes),
        access: Access::LOCAL_WRITE,
        is_kept: false,
    }
}

fn acquire(cache: &Arc<Cache>, key: &Key) -> Hold<Arc<World>, Arc<World>> {
    cache.acquire(key).unwrap_or_else(|error| panic!("{error}"))
}

fn live(world: &World) -> usize {
    world.live.lock().unwrap().len()
}

#[test]
fn a_second_use_finds_the_registration_of_the_first() {
    let (world, cache) = cache(4, 1 << 20);
    let first = acquire(&cache, &key(4096, 64));
    let second = acquire(&cache, &key(4096, 64));
    assert!(first.is_cached() && first.lkey() == second.lkey());
    drop((first, second));
    assert_eq!(acquire(&cache, &key(4096, 64)).lkey(), Lkey(1));
    let other = acquire(&cache, &key(4096, 65));
    assert_eq!(other.lkey(), Lkey(2), "another size is another registration");
    let counts = cache.statistics();
    assert_eq!(
        (counts.hits, counts.misses, counts.entries, counts.entries_used),
        (2, 2, 2, 1)
    );
    assert_eq!(*world.armed.lock().unwrap(), [range(4096, 64), range(4096, 65)]);
}

#[test]
fn what_changed_is_never_found_and_what_is_used_stays() {
    let (world, cache) = cache(4, 1 << 20);
    let used = acquire(&cache, &key(4096, 4096));
    drop(acquire(&cache, &key(8192, 4096)));
    assert!(
        cache.invalidate(range(8191, 2)),
        "an idle one waits to be deregistered"
    );
    assert_eq!(live(&world), 2, "a report deregisters nothing");
    cache.deregister();
    assert_eq!(live(&world), 1);
    let fresh = acquire(&cache, &key(4096, 4096));
    assert_ne!(fresh.lkey(), used.lkey());
    drop(used);
    assert_eq!(live(&world), 1, "its last use deregisters it");
    assert_eq!(acquire(&cache, &key(4096, 4096)).lkey(), fresh.lkey());
    assert_eq!(cache.statistics().invalidations, 2);
}

#[test]
fn a_change_while_it_is_registered_makes_it_again() {
    let (world, cache) = cache(4, 1 << 20);
    world.during.lock().unwrap().push(range(4096, 1));
    let hold = acquire(&cache, &key(4096, 64));
    assert_eq!((hold.lkey(), live(&world)), (Lkey(2), 1));
    assert!(hold.is_cached());
    // The mapping keeps changing, so the registration serves only one use.
    world.during.lock().unwrap().extend([range(8192, 1); 4]);
    let hold = acquire(&cache, &key(8192, 64));
    assert!(!hold.is_cached());
    assert_eq!(cache.statistics().uncached(Uncached::Changing), 1);
    drop(hold);
    assert_eq!(live(&world), 1);
}

#[test]
fn a_hit_is_not_trusted_while_a_change_is_on_its_way() {
    let (world, cache) = cache(4, 1 << 20);
    drop(acquire(&cache, &key(4096, 64)));
    world.unsettled.store(2, Ordering::Relaxed);
    assert_eq!(acquire(&cache, &key(4096, 64)).lkey(), Lkey(1), "settled soon");
    world.unsettled.store(100, Ordering::Relaxed);
    assert_eq!(acquire(&cache, &key(4096, 64)).lkey(), Lkey(2));
    let kept = Key {
        is_kept: true,
        ..key(4096, 64)
    };
    assert_eq!(acquire(&cache, &kept).lkey(), Lkey(3));
    assert_eq!(
        acquire(&cache, &kept).lkey(),
        Lkey(3),
        "a promise needs no question"
    );
    assert_eq!(world.armed.lock().unwrap().len(), 1, "nor a report");
}

#[test]
fn each_reason_to_cache_nothing_is_counted_and_no_error() {
    let (world, cache) = cache(1, 1 << 20);
    for reason in [Uncached::NotWatchable, Uncached::Occupied, Uncached::NotArmed] {
        *world.refusal.lock().unwrap() = Some(reason);
        for times in 1..3 {
            assert!(!acquire(&cache, &key(4096, 64)).is_cached());
            assert_eq!(cache.statistics().uncached(reason), times);
        }
    }
    *world.refusal.lock().unwrap() = None;
    let _fills = acquire(&cache, &key(4096, 64));
    assert!(!acquire(&cache, &key(8192, 64)).is_cached());
    assert_eq!(cache.statistics().uncached(Uncached::Full), 1);
    assert_eq!((cache.statistics().entries, live(&world)), (1, 1));
    let limits = Limits {
        entries: 4,
        bytes: 64,
    };
    let unwatched = Arc::new(Shared::<_, Arc<World>>::new(Arc::clone(&world), None, limits));
    assert!(!acquire(&unwatched, &key(4096, 64)).is_cached());
    assert_eq!(unwatched.statistics().uncached(Uncached::NoWatch), 1);
    let kept = Key {
        is_kept: true,
        ..key(4096, 64)
    };
    assert!(acquire(&unwatched, &kept).is_cached(), "a promise is enough");
    unwatched.forget(range(4096, 1));
    assert_eq!(unwatched.statistics().entries, 0);
}

#[test]
fn what_is_idle_leaves_before_the_lock_limit_is_an_error() {
    const ENOMEM: u32 = 12;
    let (world, cache) = cache(4, 1 << 20);
    drop(acquire(&cache, &key(4096, 64)));
    world.errno.store(ENOMEM, Ordering::Relaxed);
    world.limit_bytes.store(65536, Ordering::Relaxed);
    world.fails.store(1, Ordering::Relaxed);
    let hold = acquire(&cache, &key(8192, 64));
    assert_eq!(live(&world), 1, "the idle one left");
    world.fails.store(2, Ordering::Relaxed);
    let error = cache.acquire(&key(12288, 4096)).err().unwrap();
    assert_eq!(
        error.to_string(),
        "registering 4096 bytes exceeds RLIMIT_MEMLOCK of 65536 bytes, of which 7 are pinned; \
         raise it with `ulimit -l unlimited`, or `LimitMEMLOCK=infinity` in a unit of systemd"
    );
    world.limit_bytes.store(0, Ordering::Relaxed);
    world.fails.store(2, Ordering::Relaxed);
    let error = cache.acquire(&key(12288, 4096)).err().unwrap();
    assert!(
        matches!(error, RegistrationError::Device(_)),
        "no limit, no advice about it"
    );
    assert_eq!(
        cache.statistics().entries,
        1,
        "the reserved places are free again"
    );
    drop(hold);
}

#[test]
fn a_closed_cache_deregisters_with_the_last_use() {
    let (world, cache) = cache(4, 1 << 20);
    world.has_thread.store(true, Ordering::Relaxed);
    let used = acquire(&cache, &key(4096, 64));
    drop(acquire(&cache, &key(8192, 64)));
    cache.close();
    assert_eq!(live(&world), 1);
    drop(used);
    assert_eq!(live(&world), 0);
}

#[test]
fn a_place_that_another_thread_empties_is_waited_for() {
    let (world, cache) = cache(2, 1 << 20);
    let used = acquire(&cache, &key(4096, 64));
    drop(acquire(&cache, &key(8192, 64)));
    let gate = world.gate.lock().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| cache.evict_idle());
        while live(&world) != 1 {
            thread::yield_now();
        }
        let misses = cache.statistics().misses;
        let acquired = scope.spawn(|| acquire(&cache, &key(12288, 64)).is_cached());
        while cache.statistics().misses == misses {
            thread::yield_now();
        }
        drop(gate);
        assert!(acquired.join().unwrap(), "registered for one use alone");
    });
    drop(used);
    let counts = cache.statistics();
    assert_eq!((counts.evictions, counts.uncached(Uncached::Full)), (1, 0));
}

#[test]
fn threads_that_use_and_change_leave_nothing_behind() {
    let (world, cache) = cache(8, 24 * 64);
    thread::scope(|scope| {
        for seed in 0..4_usize {
            let (world, cache) = (&world, &cache);
            scope.spawn(move || {
                for step in 0..2000_usize {
                    let start = 4096 + (step * 7 + seed * 13) % 24 * 64;
                    if step % 16 == seed {
                        cache.invalidate(range(start, 200));
                        cache.deregister();
                        continue;
                    }
                    let hold = acquire(cache, &key(start, 64));
                    let Lkey(number) = hold.lkey();
                    assert!(
                        world.live.lock().unwrap().contains(&number),
                        "used and deregistered"
                    );
                }
            });
        }
    });
    cache.close();
    assert_eq!((live(&world), cache.statistics().entries), (0, 0));
}
