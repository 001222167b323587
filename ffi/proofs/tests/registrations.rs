//! The registration cache over this machine's kernel and the fake libibverbs: threads map, unmap, move and discard
//! memory and fork, while others have it registered.
//!
//! The fake numbers its registrations. So a registration that is older than the last change of one of its pages is
//! stale, and one whose number is gone while it is used was deregistered under its user.
#![expect(clippy::unwrap_used, reason = "tests")]

use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use std::path::PathBuf;
use std::sync::{PoisonError, RwLock};
use std::thread;
use std::time::Instant;

use doorbell::memory::{LentMemory, RegistrationCache, RegistrationCacheConfig, RegistrationError, Uncached};
use doorbell::provider::Access;
use doorbell::{Node, Trust, Worker, WorkerConfig};
use doorbell_fake::{Call, Control};
use doorbell_sim::Random;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const PAGE: usize = 4096;
/// Pieces of memory that change on their own, and pages of each.
const PIECES: usize = 12;
const PAGES: usize = 4;
const PATIENCE: Duration = Duration::from_secs(20);
const TORTURE: Duration = Duration::from_secs(4);

/// Addresses that are lent.
struct Lent(usize, usize);

// SAFETY: the tests lend only what is mapped, and change it only while nobody has it; 4. nothing here reads or writes
// it meanwhile; 5. children end at once.
unsafe impl LentMemory for Lent {
    fn region(&self) -> (NonNull<u8>, usize) {
        (NonNull::new(at(self.0).cast()).unwrap(), self.1)
    }
}

/// Memory that stays.
struct Kept(usize, usize);

// SAFETY: as above; 6. it is forgotten before it is unmapped.
unsafe impl LentMemory for Kept {
    const IS_KEPT: bool = true;

    fn region(&self) -> (NonNull<u8>, usize) {
        (NonNull::new(at(self.0).cast()).unwrap(), self.1)
    }
}

fn at(address: usize) -> *mut libc::c_void {
    ptr::with_exposed_provenance_mut(address)
}

fn map(address: usize, bytes: usize, flags: i32, fd: i32) -> usize {
    // SAFETY: a new mapping at an address of the kernel's choice, or over memory of these tests (mmap(2)).
    let address = unsafe {
        libc::mmap(
            at(address),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            fd,
            0,
        )
    };
    assert_ne!(address, libc::MAP_FAILED);
    address.expose_provenance()
}

fn anonymous(bytes: usize) -> usize {
    map(0, bytes, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
}

fn anonymous_at(address: usize, bytes: usize) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    assert_eq!(map(address, bytes, flags, -1), address);
}

fn unmap(address: usize, bytes: usize) {
    // SAFETY: a mapping of these tests that nobody uses (munmap(2)).
    assert_eq!(unsafe { libc::munmap(at(address), bytes) }, 0);
}

fn workers() -> (Node, Vec<Worker>, PathBuf) {
    let path = doorbell_fake::library_path().unwrap();
    // SAFETY: the fake was built from this workspace and stands for libibverbs of the machine's ABI.
    unsafe { rdma_sys::load_from(&path) }.unwrap();
    let node = Node::open(Trust::unauthenticated_on_purpose()).unwrap();
    let workers = node.workers(&WorkerConfig::default()).unwrap();
    (node, workers, path)
}

/// One piece, and for each page the newest registration at its last change.
struct Piece {
    start: usize,
    changed: [AtomicU32; PAGES],
}

impl Piece {
    fn note(&self, control: Control, pages: core::ops::Range<usize>) {
        for page in &self.changed[pages] {
            page.store(control.newest_registration(), Ordering::SeqCst);
        }
    }

    /// Changes it, while nobody has any of it. `spare` is a page of the caller's. All addresses are fixed: memory that the
    /// kernel places could come to lie where another thread has just unmapped.
    fn change(&self, control: Control, spare: usize, random: &mut Random) {
        let page = random.index(PAGES);
        let one = self.start + page * PAGE;
        match random.index(5) {
            0 => {
                unmap(self.start, PAGES * PAGE);
                anonymous_at(self.start, PAGES * PAGE);
                self.note(control, 0..PAGES);
            }
            1 => {
                anonymous_at(one, PAGE);
                self.note(control, page..page + 1);
            }
            2 => {
                // SAFETY: pages of these tests that nobody uses (madvise(2)).
                assert_eq!(unsafe { libc::madvise(at(one), PAGE, libc::MADV_DONTNEED) }, 0);
                self.note(control, page..page + 1);
            }
            3 => {
                let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
                // SAFETY: as above, to where nobody looks (mremap(2)).
                let moved = unsafe { libc::mremap(at(one), PAGE, PAGE, flags, at(spare)) };
                assert_ne!(moved, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
                anonymous_at(one, PAGE);
                self.note(control, page..page + 1);
                anonymous_at(spare, PAGE);
            }
            _ => {
                unmap(one, PAGE);
                anonymous_at(one, PAGE);
                self.note(control, page..page + 1);
            }
        }
    }

    /// Registers a part of it, and looks at what comes.
    fn register(&self, cache: &RegistrationCache, control: Control, random: &mut Random) {
        // Few different regions, so that they are found again.
        let (first, count) = [(0, PAGES), (0, 1), (1, 2), (3, 1)][random.index(4)];
        let access = [Access::LOCAL_WRITE, Access::empty()][random.index(2)];
        let lent = Lent(self.start + first * PAGE + 8, count * PAGE - 16);
        let registration = cache.register(lent, access).unwrap();
        let key = registration.lkey().0;
        let serial = control.registration(key).expect("it is registered");
        for page in &self.changed[first..first + count] {
            let changed = page.load(Ordering::SeqCst);
            assert!(
                serial > changed,
                "registration {serial} is stale: its pages changed at {changed}"
            );
        }
        if random.index(4) == 0 {
            thread::yield_now();
        }
        assert_eq!(
            control.registration(key),
            Some(serial),
            "deregistered while it is used"
        );
    }
}

/// A child that unmaps its own copy, and ends.
fn fork(start: usize) {
    // SAFETY: the child calls only what is async-signal-safe (fork(2)).
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: the child's own copy (munmap(2)).
        let status = unsafe { libc::munmap(at(start), PAGE) };
        // SAFETY: ends the child (_exit(2)).
        unsafe { libc::_exit(status) };
    }
    let mut status = -1;
    // SAFETY: a child of this process and a writable status (waitpid(2)).
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// One test, since the numbers are those of the whole process.
#[test]
fn no_registration_is_stale_and_none_is_deregistered_in_use() {
    let (node, workers, path) = workers();
    let control = Control::of(&path).unwrap();
    let mut config = RegistrationCacheConfig::default();
    // Few, so that some are evicted.
    config.entries_max = 40;
    config.bytes_max = 80 * PAGE as u64;
    a_watch_that_cannot_begin_is_counted(&workers[0]);
    let cache = workers[0].registration_cache(&config);
    kept_memory_is_cached_until_it_is_forgotten(&cache);
    if let Err(error) = cache.watches() {
        println!("SKIPPED: this kernel gives no userfaultfd, so no change of mappings was tested: {error}");
        return;
    }
    what_is_not_watched_serves_one_use(&cache);
    torture(&cache, control);
    drop(cache);
    control.heal();
    let cache = workers[0].registration_cache(&config);
    let memory = anonymous(PAGE);
    let used = cache.register(Lent(memory, PAGE), Access::LOCAL_WRITE).unwrap();
    drop(cache);
    assert_eq!(control.calls(Call::DeregMr), 0);
    drop((workers, node));
    let before = control.calls(Call::DeregMr);
    drop(used);
    eventually("the last use ends it, after cache and Worker", || {
        control.calls(Call::DeregMr) > before
    });
    unmap(memory, PAGE);
}

/// The process has no descriptor left as its first cache is made, and has some again as the next one is.
fn a_watch_that_cannot_begin_is_counted(worker: &Worker) {
    let before = getrlimit(Resource::Nofile);
    let none = Rlimit {
        current: Some(0),
        ..before
    };
    setrlimit(Resource::Nofile, none).unwrap();
    let cache = worker.registration_cache(&RegistrationCacheConfig::default());
    setrlimit(Resource::Nofile, before).unwrap();
    assert!(cache.watches().is_err());
    assert_eq!(cache.statistics().watch_failures, 1);
    // The next attempt is made a second after the last one.
    thread::sleep(Duration::from_secs(1));
}

fn kept_memory_is_cached_until_it_is_forgotten(cache: &RegistrationCache) {
    let memory = anonymous(PAGE);
    let mut keys = Vec::new();
    for _ in 0..2 {
        keys.push(
            cache
                .register(Kept(memory, PAGE), Access::LOCAL_WRITE)
                .unwrap()
                .lkey(),
        );
    }
    assert_eq!(keys[0], keys[1]);
    cache.forget(at(memory).cast(), 1);
    let again = cache
        .register(Kept(memory, PAGE), Access::LOCAL_WRITE)
        .unwrap()
        .lkey();
    assert_ne!(again, keys[0]);
    cache.forget(at(memory).cast(), PAGE);
    unmap(memory, PAGE);
    let refused = cache.register(Lent(PAGE, 0), Access::LOCAL_WRITE).unwrap_err();
    assert_eq!(refused.error, RegistrationError::Region { bytes: 0 });
    let for_a_peer = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let refused = cache.register(Lent(PAGE, 1), for_a_peer).unwrap_err();
    assert_eq!(refused.error, RegistrationError::RemoteAccess);
}

fn what_is_not_watched_serves_one_use(cache: &RegistrationCache) {
    let shared = map(0, PAGE, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1);
    for times in 1..3 {
        let registration = cache.register(Lent(shared, PAGE), Access::LOCAL_WRITE).unwrap();
        assert!(!registration.is_cached());
        assert_eq!(cache.statistics().uncached(Uncached::NotWatchable), times);
    }
    unmap(shared, PAGE);
}

fn torture(cache: &RegistrationCache, control: Control) {
    let base = anonymous(PIECES * PAGES * PAGE);
    let pieces: Vec<RwLock<Piece>> = (0..PIECES)
        .map(|piece| {
            RwLock::new(Piece {
                start: base + piece * PAGES * PAGE,
                changed: Default::default(),
            })
        })
        .collect();
    // Placed before anything changes: the kernel would place them where something was just unmapped.
    let spares = [anonymous(PAGE), anonymous(PAGE)];
    let (end, uses, changes, children) = (
        AtomicBool::new(false),
        AtomicU64::new(0),
        AtomicU64::new(0),
        AtomicU64::new(0),
    );
    thread::scope(|scope| {
        for seed in 1..4 {
            let (pieces, end, uses) = (&pieces, &end, &uses);
            scope.spawn(move || {
                let mut random = Random::new(seed);
                while !end.load(Ordering::Relaxed) {
                    let piece = pieces[random.index(PIECES)].read();
                    let piece = piece.unwrap_or_else(PoisonError::into_inner);
                    piece.register(cache, control, &mut random);
                    uses.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for (seed, spare) in [11, 12].into_iter().zip(spares) {
            let (pieces, end, changes) = (&pieces, &end, &changes);
            scope.spawn(move || {
                let mut random = Random::new(seed);
                while !end.load(Ordering::Relaxed) {
                    let piece = pieces[random.index(PIECES)].write();
                    piece
                        .unwrap_or_else(PoisonError::into_inner)
                        .change(control, spare, &mut random);
                    changes.fetch_add(1, Ordering::Relaxed);
                    if random.index(3) == 0 {
                        thread::sleep(Duration::from_micros(300));
                    }
                }
            });
        }
        let (end_of_forks, children) = (&end, &children);
        scope.spawn(move || {
            while !end_of_forks.load(Ordering::Relaxed) {
                fork(base);
                children.fetch_add(1, Ordering::Relaxed);
                thread::sleep(Duration::from_millis(3));
            }
        });
        thread::sleep(TORTURE);
        end.store(true, Ordering::Relaxed);
    });
    let counts = cache.statistics();
    println!("{uses:?} uses, {changes:?} changes, {children:?} children: {counts:?}");
    assert!(
        counts.hits > 100 && counts.invalidations > 100 && counts.evictions > 0,
        "{counts:?}"
    );
    assert_eq!(counts.entries_used, 0);
    unmap(base, PIECES * PAGES * PAGE);
    eventually("unmapped memory leaves the cache", || {
        cache.statistics().entries == 0
    });
}
