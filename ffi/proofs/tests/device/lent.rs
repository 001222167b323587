//! Requests of memory that a registration cache serves: each use's bytes arrive, while the memory is unmapped, moved, discarded and mapped
//! anew between uses. A device that had the pages of a mapping that is gone would send bytes of long ago, or write where nobody looks.

use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use doorbell::memory::{LentMemory, LentWindow, RegistrationCache, RegistrationCacheConfig};
use doorbell::provider::{Access, PushError, Window as _};
use doorbell::worker::SendErrorKind;
use doorbell::{Event, LocalWindow, Operation, PostFlags, Rdma, RemoteAddress, WindowConfig};
use doorbell_sim::Random;

use super::table::Two;
use super::{SOON, config, two};

/// While one test changes mappings, the registrations of another could be made for one use: one at a time.
static ALONE: Mutex<()> = Mutex::new(());

const PAGE: usize = 4096;
const PIECES: usize = 6;
const PIECE: usize = 4 * PAGE;
const ROUNDS: usize = 3000;

/// Addresses that are lent.
#[derive(Debug)]
struct Lent(usize, usize);

// SAFETY: 1. to 4. the test lends only what is mapped, and changes and looks at it only while nobody has it; 5. nothing forks here; 8. to
// caches alone.
unsafe impl LentMemory for Lent {
    fn region(&self) -> (NonNull<u8>, usize) {
        (NonNull::new(at(self.0).cast()).unwrap(), self.1)
    }
}

fn at(address: usize) -> *mut libc::c_void {
    ptr::with_exposed_provenance_mut(address)
}

/// Maps anonymous memory: at this address, over what is there, unless it is 0.
fn map(address: usize, bytes: usize) -> usize {
    let fixed = if address == 0 { 0 } else { libc::MAP_FIXED };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fixed;
    // SAFETY: a new mapping at an address of the kernel's choice, or over memory of this test (mmap(2)).
    let address = unsafe {
        libc::mmap(
            at(address),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            -1,
            0,
        )
    };
    assert_ne!(address, libc::MAP_FAILED);
    address.expose_provenance()
}

/// Changes what is mapped at some pages that nobody has. `spare` is a page. It leaves no hole at any time: another thread's memory could
/// come to lie there.
fn change(how: usize, address: usize, bytes: usize, spare: usize) {
    match how {
        0 => {
            // SAFETY: pages of this test that nobody uses (madvise(2)).
            let status = unsafe { libc::madvise(at(address), bytes, libc::MADV_DONTNEED) };
            assert_eq!(status, 0);
        }
        1 => {
            let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
            // It moves pages of one mapping alone.
            for page in (address..address + bytes).step_by(PAGE) {
                // SAFETY: as above, to where nobody looks (mremap(2)).
                let moved = unsafe { libc::mremap(at(page), PAGE, PAGE, flags, at(spare)) };
                assert_ne!(moved, libc::MAP_FAILED);
            }
        }
        _ => {
            map(address, bytes);
        }
    }
}

/// Writes bytes that follow from a number, and returns them.
fn fill(lent: &Lent, number: usize) -> Vec<u8> {
    let bytes: Vec<u8> = (0..lent.1)
        .map(|at| (at * 31 + number * 7 + at / 251) as u8)
        .collect();
    // SAFETY: mapped, as long, and nobody's meanwhile.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), at(lent.0).cast(), bytes.len()) };
    bytes
}

fn look(lent: &Lent) -> Vec<u8> {
    let mut bytes = vec![0; lent.1];
    // SAFETY: as in `fill`.
    unsafe { ptr::copy_nonoverlapping(at(lent.0).cast(), bytes.as_mut_ptr(), bytes.len()) };
    bytes
}

fn post(two: &mut Two<Rdma>, operation: Operation, window: &LentWindow<Lent>, bytes: usize) {
    // Two ranges, of which the first ends on no page.
    let first = u32::try_from(bytes / 3).unwrap();
    let rest = u32::try_from(bytes).unwrap() - first;
    let ranges = [window.range(0, first), window.range(first as usize, rest)];
    let channel = two.near.channel(two.from).unwrap();
    channel
        .post_ranges(operation, ranges, PostFlags::empty())
        .unwrap();
}

/// Polls both until the request is done, and a message has come if one is to.
fn settle(two: &mut Two<Rdma>, comes: bool) -> Vec<u8> {
    let (mut is_done, mut message, since) = (false, None, Instant::now());
    while !is_done || comes && message.is_none() {
        two.near
            .poll(|_, event| match event {
                Event::Done { .. } => is_done = true,
                Event::Failed { status, .. } => panic!("{status:?}"),
                _ => {}
            })
            .unwrap();
        two.far
            .poll_tending(|_, event| {
                if let Event::Received { message: came, .. } = event {
                    message = Some(came.payload().to_vec());
                }
            })
            .unwrap();
        assert!(since.elapsed() < SOON, "nothing came");
    }
    message.unwrap_or_default()
}

/// Ends a thread when it is dropped.
struct Ends<'e>(&'e AtomicBool);
impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn cache(two: &Two<Rdma>) -> RegistrationCache {
    let mut config = RegistrationCacheConfig::default();
    // Few, so that some are evicted.
    config.entries_max = 12;
    two.near.registration_cache(&config)
}

#[test]
fn each_uses_bytes_arrive_while_memory_is_mapped_anew_between_them() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut two = two(&config());
    let cache = cache(&two);
    let page = two
        .far
        .window(&WindowConfig::new(PIECE, doorbell::RemoteAccess::ALL));
    let page: LocalWindow = page.unwrap();
    let (base, spare) = (map(0, PIECES * PIECE), map(0, PAGE));
    let is_watched = cache.watches().is_ok();
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Others change their mappings meanwhile, and have them in the cache.
            let (noise, spare) = (map(0, PAGE), map(0, PAGE));
            let mut random = Random::new(99);
            while !end.load(Ordering::Relaxed) {
                drop(cache.register(Lent(noise, PAGE), Access::empty()).unwrap());
                change(random.index(3), noise, PAGE, spare);
            }
        });
        // A test that fails ends the other thread, too.
        let _end = Ends(&end);
        let mut random = Random::new(5);
        for round in 0..ROUNDS {
            let piece = base + random.index(PIECES) * PIECE;
            if random.index(3) == 0 {
                let first = random.index(4);
                let pages = 1 + random.index(4 - first);
                change(random.index(3), piece + first * PAGE, pages * PAGE, spare);
            }
            let (offset, bytes) = [(0, PIECE), (8, PAGE), (PAGE, 2 * PAGE)][random.index(3)];
            let lent = Lent(piece + offset, bytes);
            let is_writable = random.index(2) == 0;
            let access = if is_writable {
                Access::LOCAL_WRITE
            } else {
                Access::empty()
            };
            let sent = fill(&lent, round);
            let window = cache.lend_window(lent, access).unwrap();
            let to = RemoteAddress::within(&page.remote(), 0, bytes as u64).unwrap();
            match random.index(3) {
                0 => {
                    post(&mut two, Operation::Write(to), &window, bytes);
                    // It may go before the request does.
                    drop((random.index(2) == 0).then_some(window));
                    settle(&mut two, false);
                    let mut came = vec![0; bytes];
                    page.copy_out(0, &mut came).unwrap();
                    assert!(came == sent, "round {round}: bytes of another time were written");
                }
                1 => {
                    post(&mut two, Operation::Send, &window, 1500);
                    let came = settle(&mut two, true);
                    assert!(
                        came == sent[..1500],
                        "round {round}: bytes of another time were sent"
                    );
                    window.into_memory().unwrap();
                }
                _ if is_writable => {
                    let back: Vec<u8> = sent.iter().map(|byte| !byte).collect();
                    page.copy_in(0, &back).unwrap();
                    post(&mut two, Operation::Read(to), &window, bytes);
                    let window = window.into_memory().unwrap_err();
                    settle(&mut two, false);
                    let lent = window.into_memory().unwrap();
                    assert!(look(&lent) == back, "round {round}: bytes were read to elsewhere");
                }
                _ => drop(window.into_memory().unwrap()),
            }
        }
    });
    let counts = cache.statistics();
    println!("{counts:?}");
    assert_eq!(counts.entries_used, 0);
    if is_watched {
        assert!(counts.hits > 10 && counts.invalidations > 10, "{counts:?}");
    }
}

#[test]
fn a_request_uses_the_registration_until_it_is_done() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut two = two(&config());
    let cache = cache(&two);
    let memory = map(0, PAGE);
    let used = |cache: &RegistrationCache| cache.statistics().entries_used;
    if cache.watches().is_err() {
        println!("SKIPPED: this kernel gives no userfaultfd, so nothing is kept");
        return;
    }
    let window = cache
        .lend_window(Lent(memory, PAGE), Access::LOCAL_WRITE)
        .unwrap();
    window.copy_in(0, b"kept until it is done").unwrap();
    post(&mut two, Operation::Send, &window, 21);
    drop(window);
    assert_eq!(used(&cache), 1);
    // Nobody finds it any more, and its user keeps it.
    cache.forget(at(memory).cast(), 1);
    assert_eq!((used(&cache), cache.statistics().entries), (1, 1));
    assert_eq!(settle(&mut two, true), b"kept until it is done");
    assert_eq!(used(&cache), 0);
    // So after the cache and its Worker.
    let window = cache
        .lend_window(Lent(memory, PAGE), Access::LOCAL_WRITE)
        .unwrap();
    drop((cache, two));
    window.copy_in(0, b"later").unwrap();
    window.into_memory().unwrap();
    assert_eq!(look(&Lent(memory, 5)), b"later");
}

#[test]
fn memory_lent_for_reading_takes_no_bytes() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut two = two(&config());
    let cache = cache(&two);
    let window = cache
        .lend_window(Lent(map(0, PAGE), PAGE), Access::empty())
        .unwrap();
    assert!(!window.is_writable() && window.copy_in(0, &[1]).is_err());
    let from = RemoteAddress::within(&two.all.remote(), 0, 8).unwrap();
    let channel = two.near.channel(two.from).unwrap();
    let refused = channel.post_ranges(Operation::Read(from), [window.range(0, 8)], PostFlags::empty());
    assert!(
        matches!(refused, Err(SendErrorKind::Refused(PushError::ReadOnly))),
        "{refused:?}"
    );
    post(&mut two, Operation::Send, &window, 8);
    assert_eq!(settle(&mut two, true), [0; 8]);
    // Another Worker's channel does not take it.
    let other = two.other.registration_cache(&RegistrationCacheConfig::default());
    let window = other
        .lend_window(window.into_memory().unwrap(), Access::empty())
        .unwrap();
    let channel = two.near.channel(two.from).unwrap();
    let refused = channel.post_ranges(Operation::Send, [window.range(0, 8)], PostFlags::empty());
    assert!(
        matches!(refused, Err(SendErrorKind::Refused(PushError::OtherMemory))),
        "{refused:?}"
    );
}
