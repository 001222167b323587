//! Memory that is adopted, and each reason to refuse it.

use core::sync::atomic::Ordering;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use doorbell_core::interprocess::{SharedBytes, SharedWords};

use super::{
    BYTES_BEHIND_MAX, FLAGS_BYTES, Mapping, SEALS, SharedArena, SharedMemory, SharedMemoryError, length,
    page_bytes, seals, size,
};

const BYTES: usize = 3 * 4096;

fn file_of(ours: &Mapping) -> BorrowedFd<'_> {
    ours.file.as_ref().unwrap().as_fd()
}

fn seal(file: BorrowedFd<'_>, seals: i32) {
    // SAFETY: an open descriptor; the call touches no memory (fcntl(2)).
    let status = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) };
    assert_eq!(status, 0);
}

#[test]
fn both_sides_see_words_flags_and_bytes() {
    let ours = SharedMemory::create(100).unwrap();
    let theirs = SharedMemory::adopt(ours.descriptor().unwrap(), 100).unwrap();
    ours.word(99).unwrap().store(7, Ordering::Relaxed);
    theirs
        .flag(SharedMemory::FLAGS_MAX - 1)
        .unwrap()
        .store(8, Ordering::Relaxed);
    assert_eq!(theirs.word(99).unwrap().load(Ordering::Relaxed), 7);
    assert_eq!(
        ours.flag(SharedMemory::FLAGS_MAX - 1)
            .unwrap()
            .load(Ordering::Relaxed),
        8
    );
    assert_eq!(theirs.line(92).unwrap()[7].load(Ordering::Relaxed), 7);
    assert!(ours.line(93).is_none() && ours.line(usize::MAX).is_none());
    assert!(ours.word(100).is_none() && ours.flag(SharedMemory::FLAGS_MAX).is_none());
    assert!(ours.word(usize::MAX).is_none() && ours.flag(usize::MAX).is_none());

    let ours = SharedArena::create(BYTES).unwrap();
    let theirs = SharedArena::adopt(ours.descriptor().unwrap(), BYTES).unwrap();
    let mut copy = [0; 5];
    assert!(ours.copy_in(BYTES - 5, b"hello") && theirs.copy_out(BYTES - 5, &mut copy));
    assert_eq!(&copy, b"hello");
    assert!(!ours.copy_in(BYTES - 4, b"hello") && !theirs.copy_out(usize::MAX, &mut copy));

    let other = SharedArena::create(BYTES).unwrap();
    assert!(theirs.copy_to(BYTES - 4, &other, 1, 4) && other.copy_out(0, &mut copy));
    assert_eq!(&copy, b"\0ello");
    assert!(!theirs.copy_to(BYTES - 3, &other, 0, 4) && !theirs.copy_to(0, &other, BYTES - 3, 4));
    assert!(!theirs.copy_to(0, &theirs, 64, 4), "to itself");
    assert_eq!(ours.word(8).unwrap().fetch_add(7, Ordering::Relaxed), 0);
    assert_eq!(theirs.word(8).unwrap().load(Ordering::Relaxed), 7);
    let mut copy = [0; 9];
    assert!(theirs.copy_out(8, &mut copy));
    assert_eq!(copy, [7, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert!(ours.word(BYTES - 8).is_some());
    assert_eq!(
        (ours.fetch_add(8, u64::MAX), theirs.compare_and_swap(8, 6, 9)),
        (Some(7), Some(6))
    );
    assert_eq!(
        (ours.compare_and_swap(8, 6, 1), theirs.fetch_add(8, 0)),
        (Some(9), Some(9))
    );
    assert_eq!(
        (ours.fetch_add(4, 1), ours.compare_and_swap(BYTES, 0, 1)),
        (None, None)
    );
    for wrong in [4, BYTES - 7, BYTES, usize::MAX, usize::MAX - 7] {
        assert!(ours.word(wrong).is_none(), "{wrong}");
    }
}

/// The page faults of this thread so far.
fn faults() -> i64 {
    let mut usage = core::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: room for the structure (getrusage(2)).
    let status = unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
    assert_eq!(status, 0);
    // SAFETY: integers, written by the call, or zero.
    unsafe { usage.assume_init() }.ru_minflt
}

#[test]
fn populated_pages_are_there_and_the_others_are_found_at_their_first_touch() {
    let (pages, page) = (64, page_bytes());
    let ours = SharedArena::create(2 * pages * page).unwrap();
    let theirs = SharedArena::adopt(ours.descriptor().unwrap(), 2 * pages * page).unwrap();
    if !theirs.0.populate(0, 1) {
        eprintln!("SKIPPED: populating of pages: this kernel is older than Linux 5.14");
        return;
    }
    // From within a page, of any size.
    assert!(theirs.0.populate(page - 1, (pages - 1) * page + 1));
    assert!(!theirs.0.populate(usize::MAX, 1));
    assert!(!theirs.0.populate(0, usize::MAX));
    let mut touched = |first: usize| {
        let before = faults();
        for number in first..first + pages {
            assert!(theirs.copy_in(number * page, &[1]));
        }
        faults() - before
    };
    let [populated, other] = [0, pages].map(&mut touched);
    // A fault of the test's own code may be among them.
    assert!(
        populated < 8 && other >= 1 && other > populated,
        "{populated} {other}"
    );
}

#[test]
fn adopted_memory_keeps_its_size_and_its_pages() {
    let ours = Mapping::create(c"test", BYTES).unwrap();
    let theirs = Mapping::adopt(file_of(&ours), BYTES).unwrap();
    assert!(
        theirs.file.is_none(),
        "a process that adopts many has no descriptor of any"
    );
    assert_eq!(seals(file_of(&ours)).unwrap() & SEALS, SEALS);
    let file = file_of(&ours).as_raw_fd();
    // SAFETY: an open descriptor; refused, so that nothing changes (ftruncate(2)).
    assert_eq!(unsafe { libc::ftruncate(file, 0) }, -1);
    // SAFETY: as above.
    assert_eq!(unsafe { libc::ftruncate(file, 1 << 20) }, -1);
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: as above (fallocate(2)).
    assert_eq!(unsafe { libc::fallocate(file, punch, 0, 4096) }, -1);
    assert_eq!(size(file_of(&ours)).unwrap(), (BYTES as u64, BYTES as u64));
}

#[test]
fn memory_is_sealed_once_it_is_adopted_with_its_whole_size() {
    let ours = SharedArena::create(BYTES).unwrap();
    let file = ours.descriptor().unwrap();
    assert!(!ours.is_sealed());
    let some = [libc::F_SEAL_SHRINK, libc::F_SEAL_GROW, libc::F_SEAL_FUTURE_WRITE];
    let half = SharedArena::create(BYTES).unwrap();
    for found in some {
        seal(half.descriptor().unwrap(), found);
        assert!(!half.is_sealed());
    }
    let theirs = SharedArena::adopt(file, BYTES).unwrap();
    assert!(ours.is_sealed() && theirs.is_sealed());

    // The other process shrinks the memory, and only then seals it.
    let ours = SharedMemory::create(1024).unwrap();
    let file = ours.descriptor().unwrap();
    // SAFETY: an open descriptor, whose mapping is not touched again (ftruncate(2)).
    assert_eq!(unsafe { libc::ftruncate(file.as_raw_fd(), 4096) }, 0);
    seal(file, SEALS);
    assert!(!ours.is_sealed());
}

#[test]
fn a_descriptor_of_something_else_is_refused() {
    for path in ["/dev/zero", "/proc/self/exe", "/dev/null"] {
        let file = File::open(path).unwrap();
        assert_eq!(
            Mapping::adopt(file.as_fd(), BYTES).unwrap_err(),
            SharedMemoryError::Foreign,
            "{path}"
        );
    }
    let unsealable = tempfile::tempfile_in("/dev/shm").unwrap();
    let refused = Mapping::adopt(unsealable.as_fd(), BYTES).unwrap_err();
    let found = libc::F_SEAL_SEAL;
    assert!(
        refused == SharedMemoryError::Foreign || refused == SharedMemoryError::Seals { found },
        "{refused:?}"
    );
}

#[test]
fn seals_of_others_are_refused() {
    for found in [libc::F_SEAL_SHRINK, libc::F_SEAL_SEAL, libc::F_SEAL_FUTURE_WRITE] {
        let ours = Mapping::create(c"test", BYTES).unwrap();
        seal(file_of(&ours), found);
        let refused = Mapping::adopt(file_of(&ours), BYTES).unwrap_err();
        assert!(
            matches!(refused, SharedMemoryError::Seals { found: seen } if seen & found != 0),
            "{refused:?}"
        );
    }
    // Once adopted, it is not adopted again.
    let ours = Mapping::create(c"test", BYTES).unwrap();
    drop(Mapping::adopt(file_of(&ours), BYTES).unwrap());
    assert!(Mapping::adopt(file_of(&ours), BYTES).is_err());
}

#[test]
fn another_size_and_holes_are_refused() {
    let expected = BYTES as u64;
    for found in [0, BYTES - 1, BYTES + 1, 2 * BYTES] {
        let ours = Mapping::create(c"test", BYTES).unwrap();
        let changed = length(found.max(1)).unwrap() - i64::from(found == 0);
        // SAFETY: an open descriptor, whose mapping is not touched again (ftruncate(2)).
        assert_eq!(unsafe { libc::ftruncate(file_of(&ours).as_raw_fd(), changed) }, 0);
        let refused = Mapping::adopt(file_of(&ours), BYTES).unwrap_err();
        let found = found as u64;
        assert_eq!(refused, SharedMemoryError::Bytes { found, expected });
    }
    let ours = Mapping::create(c"test", BYTES).unwrap();
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: an open descriptor, whose mapping is not touched again (fallocate(2)).
    let status = unsafe { libc::fallocate(file_of(&ours).as_raw_fd(), punch, 4096, 4096) };
    assert_eq!(status, 0);
    let refused = Mapping::adopt(file_of(&ours), BYTES).unwrap_err();
    let found = expected - 4096;
    assert_eq!(refused, SharedMemoryError::Holes { found, expected });
    // Pages behind the end stand for none in front of it.
    let ours = Mapping::create(c"test", BYTES).unwrap();
    for (mode, at) in [(libc::FALLOC_FL_KEEP_SIZE, length(BYTES).unwrap()), (punch, 4096)] {
        // SAFETY: an open descriptor, whose mapping is not touched again (fallocate(2)).
        let status = unsafe { libc::fallocate(file_of(&ours).as_raw_fd(), mode, at, 4096) };
        assert_eq!(status, 0);
    }
    let refused = Mapping::adopt(file_of(&ours), BYTES).unwrap_err();
    assert_eq!(refused, SharedMemoryError::Holes { found, expected });
    // So many of them are not freed here.
    let ours = Mapping::create(c"test", BYTES).unwrap();
    let (mode, at) = (libc::FALLOC_FL_KEEP_SIZE, length(BYTES).unwrap());
    let behind = BYTES_BEHIND_MAX + 4096;
    // SAFETY: an open descriptor; the bytes lie behind the mapping (fallocate(2)).
    let status = unsafe {
        libc::fallocate(
            file_of(&ours).as_raw_fd(),
            mode,
            at,
            length(behind as usize).unwrap(),
        )
    };
    assert_eq!(status, 0);
    let found = expected + behind;
    let refused = Mapping::adopt(file_of(&ours), BYTES).unwrap_err();
    assert_eq!(refused, SharedMemoryError::Bytes { found, expected });
    for words in [usize::MAX, usize::MAX / 8, 1 << 30] {
        assert!(SharedMemory::create(words).is_err(), "{words}");
    }
    assert!(SharedArena::create(0).is_err());
    assert_eq!(SharedMemory::create(1).unwrap().0.bytes, FLAGS_BYTES + 8);
}
