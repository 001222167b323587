use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use doorbell_core::registrations::AddressRange;

use super::{EVENT_REMAP, EVENT_REMOVE, EVENT_UNMAP, MappingWatch, Message, range_of};

const PAGE: usize = 4096;

fn map(pages: usize, flags: i32, fd: i32) -> usize {
    // SAFETY: a new mapping at an address of the kernel's choice touches no memory that exists (mmap(2)).
    let address = unsafe {
        libc::mmap(
            ptr::null_mut(),
            pages * PAGE,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            fd,
            0,
        )
    };
    assert_ne!(address, libc::MAP_FAILED);
    address.expose_provenance()
}

fn private(pages: usize) -> usize {
    map(pages, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
}

fn at(address: usize) -> *mut libc::c_void {
    ptr::with_exposed_provenance_mut(address)
}

fn range(start: usize, pages: usize) -> AddressRange {
    AddressRange::new(start, pages * PAGE).unwrap()
}

/// The watch, the changes that it reported, and the lock of the test that has it.
type Watched = (
    &'static MappingWatch,
    &'static Mutex<Vec<AddressRange>>,
    MutexGuard<'static, ()>,
);

/// The watch with a thread that reads and records, for one test at a time; `None` if the kernel gives none.
fn watch() -> Option<Watched> {
    static ALONE: Mutex<()> = Mutex::new(());
    static SEEN: Mutex<Vec<AddressRange>> = Mutex::new(Vec::new());
    static STARTED: AtomicUsize = AtomicUsize::new(0);
    let watch = match MappingWatch::of_process() {
        Ok(watch) => watch,
        Err(error) => {
            println!("SKIPPED: no userfaultfd here, so nothing about it was tested: {error}");
            return None;
        }
    };
    if STARTED.fetch_add(1, Ordering::SeqCst) == 0 {
        SEEN.lock().unwrap().reserve(1 << 16);
        thread::spawn(move || watch.serve(|range| SEEN.lock().unwrap().push(range), || {}));
    }
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    SEEN.lock().unwrap().clear();
    Some((watch, &SEEN, alone))
}

fn saw(seen: &Mutex<Vec<AddressRange>>, range: AddressRange) -> bool {
    seen.lock().unwrap().contains(&range)
}

fn settles(watch: &MappingWatch) -> bool {
    let since = Instant::now();
    while !watch.is_settled() {
        if since.elapsed() > Duration::from_secs(10) {
            return false;
        }
        thread::yield_now();
    }
    true
}

#[test]
fn changes_of_armed_memory_are_reported_before_the_watch_is_settled() {
    let Some((watch, seen, _alone)) = watch() else {
        return;
    };
    let memory = private(8);
    watch
        .arm(AddressRange::new(memory + 100, 8 * PAGE - 100).unwrap())
        .unwrap();
    watch
        .arm(range(memory, 2))
        .expect("it may be armed more than once");
    // SAFETY: mapped above, and this test's alone.
    unsafe { ptr::write_bytes(at(memory).cast::<u8>(), 7, 8 * PAGE) };
    // SAFETY: as above; the pages are discarded (madvise(2)).
    assert_eq!(unsafe { libc::madvise(at(memory), PAGE, libc::MADV_DONTNEED) }, 0);
    assert!(settles(watch) && saw(seen, range(memory, 1)));
    // SAFETY: as above (munmap(2)).
    assert_eq!(unsafe { libc::munmap(at(memory + PAGE), PAGE) }, 0);
    assert!(settles(watch) && saw(seen, range(memory + PAGE, 1)));
    let to = private(2);
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: two mappings of this test (mremap(2)).
    let moved = unsafe { libc::mremap(at(memory + 2 * PAGE), 2 * PAGE, 2 * PAGE, flags, at(to)) };
    assert_eq!(moved, at(to));
    assert!(settles(watch) && saw(seen, range(memory + 2 * PAGE, 2)));
    // SAFETY: over a page of this test's own mapping (mmap(2)).
    let over = unsafe {
        libc::mmap(
            at(memory + 4 * PAGE),
            PAGE,
            libc::PROT_READ,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
            -1,
            0,
        )
    };
    assert_ne!(over, libc::MAP_FAILED);
    assert!(settles(watch) && saw(seen, range(memory + 4 * PAGE, 1)));
    // SAFETY: what is left of the mappings of this test; holes do not matter (munmap(2)).
    assert_eq!(unsafe { libc::munmap(at(memory), 8 * PAGE) }, 0);
    // SAFETY: as above.
    assert_eq!(unsafe { libc::munmap(at(to), 2 * PAGE) }, 0);
    assert!(
        settles(watch) && saw(seen, range(to, 2)),
        "moved memory stays armed"
    );
}

#[test]
fn armed_memory_never_faults_in_a_system_call() {
    let Some((watch, _, _alone)) = watch() else { return };
    let memory = private(1);
    watch.arm(range(memory, 1)).unwrap();
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors (pipe(2)).
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    // SAFETY: an open descriptor and one byte (write(2)).
    assert_eq!(unsafe { libc::write(ends[1], b"x".as_ptr().cast(), 1) }, 1);
    // SAFETY: an open descriptor, and a page of this test that no thread touched (read(2)).
    assert_eq!(unsafe { libc::read(ends[0], at(memory), 1) }, 1);
    // SAFETY: mapped, and written by the call above.
    assert_eq!(unsafe { at(memory).cast::<u8>().read() }, b'x');
    // SAFETY: this test's mapping (munmap(2)).
    assert_eq!(unsafe { libc::munmap(at(memory), PAGE) }, 0);
    for end in ends {
        // SAFETY: open, and not used again (close(2)).
        unsafe { libc::close(end) };
    }
}

#[test]
fn a_child_has_no_watch() {
    let Some((watch, seen, _alone)) = watch() else {
        return;
    };
    let memory = private(1);
    watch.arm(range(memory, 1)).unwrap();
    // SAFETY: the child calls only what is async-signal-safe (fork(2)).
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_settled = watch.is_settled();
        // SAFETY: the child's own copy of the mapping, which is not armed (munmap(2)).
        let status = unsafe { libc::munmap(at(memory), PAGE) };
        // SAFETY: ends the child (_exit(2)).
        unsafe { libc::_exit(i32::from(is_settled || status != 0)) };
    }
    let mut status = -1;
    // SAFETY: a child of this process and a writable status (waitpid(2)).
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(
        status, 0,
        "the child trusts nothing, and its unmapping does not hang"
    );
    assert!(
        settles(watch) && !saw(seen, range(memory, 1)),
        "nothing changed here"
    );
    // SAFETY: this test's mapping (munmap(2)).
    assert_eq!(unsafe { libc::munmap(at(memory), PAGE) }, 0);
    assert!(settles(watch) && saw(seen, range(memory, 1)));
}

#[test]
fn memory_of_a_file_is_not_watched_by_all_kernels_and_never_watchable() {
    // SAFETY: a name (memfd_create(2)).
    let fd = unsafe { libc::memfd_create(c"shared".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0);
    // SAFETY: an open descriptor (ftruncate(2)).
    assert_eq!(unsafe { libc::ftruncate(fd, 4096) }, 0);
    for flags in [libc::MAP_SHARED, libc::MAP_PRIVATE] {
        let memory = map(1, flags, fd);
        assert!(!crate::is_watchable(range(memory, 1)));
        // SAFETY: this test's mapping (munmap(2)).
        assert_eq!(unsafe { libc::munmap(at(memory), PAGE) }, 0);
    }
    let memory = map(1, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1);
    assert!(!crate::is_watchable(range(memory, 1)));
    // SAFETY: as above.
    assert_eq!(unsafe { libc::munmap(at(memory), PAGE) }, 0);
    // SAFETY: open, and not used again (close(2)).
    unsafe { libc::close(fd) };
}

#[test]
fn an_event_names_the_addresses_that_changed() {
    let of = |event, arguments| {
        range_of(&Message {
            event,
            reserved: [0; 7],
            arguments,
        })
    };
    assert_eq!(of(EVENT_UNMAP, [4096, 8192, 0]), AddressRange::new(4096, 4096));
    assert_eq!(of(EVENT_REMOVE, [4096, 12288, 0]), AddressRange::new(4096, 8192));
    assert_eq!(
        of(EVENT_REMAP, [4096, 1 << 30, 8192]),
        AddressRange::new(4096, 8192)
    );
    assert_eq!(of(EVENT_UNMAP, [8192, 4096, 0]), None);
    assert_eq!(
        of(0x12, [4096, 8192, 0]),
        None,
        "a fault, which is never reported here"
    );
}
