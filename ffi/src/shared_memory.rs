//! Memory that two processes map, and that neither can take away from the other once it is sealed: memfds.
//!
//! One process creates the file, allocates all its pages, which are charged to this process, and sends the descriptor. The
//! other adopts it: it maps the file, seals it, and only then checks its size and its pages. Seals cannot be removed, so the
//! checked facts stay true: the file neither shrinks nor loses pages, and no access to the mapping can raise SIGBUS.
//!
//! Until the other process has sealed the file, it can still shrink it, and then an access of the creator raises SIGBUS. A
//! creator that does not trust the other process has to check [`SharedMemory::is_sealed`] before it accesses the memory.
//!
//! Rust code accesses words and flags only by atomics. Bytes are copied by code that Rust's memory model does not see
//! ([`access`] explains why).

use core::fmt;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use doorbell_core::interprocess::{SharedBytes, SharedWords};
use doorbell_core::provider::ProviderError;

use crate::errno;
use crate::placement::page_bytes;
use crate::window::access;

/// The seals of adopted shared memory. `F_SEAL_SHRINK` does not prevent that holes are punched, but `F_SEAL_FUTURE_WRITE`
/// does.
const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL;

/// The seal against execution, which a host may put on every memfd (`vm.memfd_noexec`). It changes nothing here.
const SEAL_EXEC: i32 = 0x20;

/// Bytes before the words, for flags.
const FLAGS_BYTES: usize = 4096;

/// Distance of two flags: two cache lines.
const FLAG_STRIDE_BYTES: usize = 128;

/// The most bytes of one mapping.
const BYTES_MAX: usize = 1 << 30;

/// The most bytes of pages after the end of a file. They may be the rest of a huge page, and must not take long to free.
const BYTES_BEHIND_MAX: u64 = 64 << 20;

/// The most words of one mapping.
const WORDS_MAX: usize = BYTES_MAX / size_of::<u64>();

/// Reason why memory cannot be shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SharedMemoryError {
    /// The descriptor is not of a file in memory that can be sealed.
    Foreign,
    /// The file already has seals, or none can be put on it.
    Seals {
        /// The seals found, as in `fcntl(2)`.
        found: i32,
    },
    /// The file does not have the expected size.
    Bytes {
        /// The size found.
        found: u64,
        /// The expected size.
        expected: u64,
    },
    /// The file has holes, whose pages would be charged to the process that touches them first.
    Holes {
        /// The bytes that have pages.
        found: u64,
        /// The bytes that should have pages.
        expected: u64,
    },
    /// A system call failed. `EINVAL` also stands for a size of 0 or above 1 GiB.
    System(ProviderError),
}

impl fmt::Display for SharedMemoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign => f.write_str("the descriptor is of no memfd: make it by memfd_create(2)"),
            Self::Seals { found } => write!(
                f,
                "the memfd has the seals {found:#x}: it must have none, and allow sealing"
            ),
            Self::Bytes { found, expected } => {
                write!(f, "the memfd has {found} bytes instead of {expected}")
            }
            Self::Holes { found, expected } => write!(
                f,
                "{found} of the {expected} bytes of the memfd have pages: allocate all by fallocate(2)"
            ),
            Self::System(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for SharedMemoryError {}

impl From<ProviderError> for SharedMemoryError {
    fn from(error: ProviderError) -> Self {
        Self::System(error)
    }
}

/// Words and flags that another process also maps. Clones share the same memory.
#[derive(Clone, Debug)]
pub struct SharedMemory(Arc<Mapping>);

/// Bytes that another process also maps.
#[derive(Debug)]
pub struct SharedArena(Mapping);

impl SharedMemory {
    /// The number of flags.
    pub const FLAGS_MAX: usize = FLAGS_BYTES / FLAG_STRIDE_BYTES;

    /// Creates zeroed memory whose pages are present. Makes system calls.
    ///
    /// # Errors
    /// There are no words or too many, or the system has no memory.
    pub fn create(words: usize) -> Result<Self, SharedMemoryError> {
        Mapping::create(c"doorbell-rings", bytes_of(words)).map(|mapping| Self(Arc::new(mapping)))
    }

    /// Maps and seals the memory that another process created with the same number of words. Makes system calls, none of
    /// which waits for a file system that another process serves. Afterwards the descriptor is not needed. Closing a
    /// descriptor that was refused may block.
    ///
    /// # Errors
    /// The descriptor is not a memfd, or the memfd has seals, another size, or holes.
    pub fn adopt(descriptor: BorrowedFd<'_>, words: usize) -> Result<Self, SharedMemoryError> {
        let mapping = Mapping::adopt(descriptor, bytes_of(words))?;
        mapping.populate(0, mapping.bytes);
        Ok(Self(Arc::new(mapping)))
    }

    /// Whether the memory has its size and the seals of adopted memory, so that no access can raise SIGBUS. A creator that does
    /// not trust the other process accesses the memory only after this returned `true`. Makes system calls.
    #[must_use]
    pub fn is_sealed(&self) -> bool {
        self.0.is_sealed()
    }

    /// The descriptor, for another process. `None` for memory that was adopted, which keeps none open.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.0.file.as_ref().map(OwnedFd::as_fd)
    }
}

impl SharedArena {
    /// Creates zeroed memory whose pages are present. Makes system calls.
    ///
    /// # Errors
    /// There are no bytes or too many, or the system has no memory.
    pub fn create(bytes: usize) -> Result<Self, SharedMemoryError> {
        Mapping::create(c"doorbell-arena", bytes).map(Self)
    }

    /// Maps and seals the memory that another process created with the same number of bytes, as [`SharedMemory::adopt`] does.
    /// The first touch of each page is a page fault, unless the page is [populated](Self::populate) before.
    ///
    /// # Errors
    /// The descriptor is not a memfd, or the memfd has seals, another size, or holes.
    pub fn adopt(descriptor: BorrowedFd<'_>, bytes: usize) -> Result<Self, SharedMemoryError> {
        Mapping::adopt(descriptor, bytes).map(Self)
    }

    /// Whether no access can raise SIGBUS, as [`SharedMemory::is_sealed`] tells.
    #[must_use]
    pub fn is_sealed(&self) -> bool {
        self.0.is_sealed()
    }

    /// Puts the pages of a range into this process's page table, so that accesses cause no page faults. Makes a system call,
    /// which takes time in proportion to the bytes. On kernels before 5.14 it has no effect.
    pub fn populate(&self, offset: usize, bytes: usize) {
        self.0.populate(offset, bytes);
    }

    /// Copies bytes into another arena. Each copied byte is one that the source held at some time during the call. Returns
    /// `false` and copies nothing unless the ranges lie within their arenas, and these are not the same value.
    #[inline]
    #[must_use]
    pub fn copy_to(&self, offset: usize, to: &Self, at: usize, bytes: usize) -> bool {
        let Some((from, into)) = self.0.at(offset, bytes).zip(to.0.at(at, bytes)) else {
            return false;
        };
        if ptr::eq(self, to) {
            return false;
        }
        // The index that named these bytes was read before.
        fence(Ordering::Acquire);
        // SAFETY: 1. Inside both mappings (`at`), which live as long as both borrows. 2. Two mappings have no address in
        // common. If both are of one file, the copy acts as if another process wrote meanwhile. 3. No slice lies in a
        // mapping, which nothing borrows.
        unsafe { access::copy(into.as_ptr(), from.as_ptr(), bytes) };
        // The index that names these bytes is published afterwards.
        fence(Ordering::Release);
        true
    }

    /// Adds to the aligned word at `offset`, wrapping, and returns its previous value. Returns `None` and changes nothing if
    /// there is no such word.
    #[must_use]
    pub fn fetch_add(&self, offset: usize, number: u64) -> Option<u64> {
        Some(self.word(offset)?.fetch_add(number, Ordering::AcqRel))
    }

    /// Replaces the aligned word at `offset` if it equals `compare`, and returns its previous value. Returns `None` if there is
    /// no such word.
    #[must_use]
    pub fn compare_and_swap(&self, offset: usize, compare: u64, swap: u64) -> Option<u64> {
        let exchanged =
            self.word(offset)?
                .compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire);
        Some(exchanged.unwrap_or_else(|there| there))
    }

    /// The word at `offset`, which is atomic among all processes that map it. `None` unless it is aligned and lies within the
    /// arena.
    #[inline]
    #[must_use]
    pub fn word(&self, offset: usize) -> Option<&AtomicU64> {
        let word = self.0.at(offset, size_of::<u64>())?.cast::<u64>();
        if !word.is_aligned() {
            return None;
        }
        // SAFETY: inside the mapping (`at`), which lives as long as `self`, and aligned, as just checked. The language reaches
        // these bytes only by atomics of this size, since the copies are outside the language ([`access`]).
        Some(unsafe { AtomicU64::from_ptr(word.as_ptr()) })
    }

    /// The descriptor, for another process. `None` for memory that was adopted, which keeps none open.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.0.file.as_ref().map(OwnedFd::as_fd)
    }
}

/// The bytes of this many words, including the flags. If they overflow, it is a size that is refused.
fn bytes_of(words: usize) -> usize {
    let bytes = words.checked_mul(size_of::<u64>());
    bytes
        .and_then(|bytes| bytes.checked_add(FLAGS_BYTES))
        .unwrap_or(usize::MAX)
}

/// The offset of a word. `None` for a word beyond every mapping, so that nothing overflows.
#[inline]
const fn offset_of(word: usize) -> Option<usize> {
    if word >= WORDS_MAX {
        return None;
    }
    Some(word.wrapping_mul(size_of::<u64>()).wrapping_add(FLAGS_BYTES))
}

impl SharedWords for SharedMemory {
    #[inline]
    fn word(&self, index: usize) -> Option<&AtomicU64> {
        let word = self.0.at(offset_of(index)?, size_of::<u64>())?.cast::<u64>();
        // SAFETY: inside the mapping (`at`), which lives as long as `self`, and aligned, since the mapping is aligned and the
        // offset is a multiple of 8. After the flags, the language makes only atomic accesses of this size.
        Some(unsafe { AtomicU64::from_ptr(word.as_ptr()) })
    }

    #[inline]
    fn line(&self, first: usize) -> Option<&[AtomicU64; 8]> {
        let line = self
            .0
            .at(offset_of(first)?, size_of::<[AtomicU64; 8]>())?
            .cast::<[AtomicU64; 8]>();
        // SAFETY: as above, for each of the eight words. An `AtomicU64` has the layout of a `u64` of eight bytes, and its
        // alignment on the processors that this crate supports.
        Some(unsafe { line.as_ref() })
    }

    #[inline]
    fn flag(&self, index: usize) -> Option<&AtomicU32> {
        let offset = index
            .checked_mul(FLAG_STRIDE_BYTES)
            .filter(|offset| *offset < FLAGS_BYTES)?;
        let flag = self.0.at(offset, size_of::<u32>())?.cast::<u32>();
        // SAFETY: as above. Before the words, the language makes only atomic accesses of this size.
        Some(unsafe { AtomicU32::from_ptr(flag.as_ptr()) })
    }
}

impl SharedBytes for SharedArena {
    fn bytes(&self) -> usize {
        self.0.bytes
    }

    #[inline]
    fn copy_out(&self, offset: usize, into: &mut [u8]) -> bool {
        let Some(from) = self.0.at(offset, into.len()) else {
            return false;
        };
        // The index that named these bytes was read before.
        fence(Ordering::Acquire);
        // SAFETY: 1. Inside the mapping (`at`), which lives as long as `self`, and a slice. 2. No slice lies in the mapping,
        // which nothing borrows. 3. The slice is borrowed exclusively.
        unsafe { access::copy(into.as_mut_ptr(), from.as_ptr(), into.len()) };
        true
    }

    #[inline]
    fn copy_in(&self, offset: usize, from: &[u8]) -> bool {
        let Some(to) = self.0.at(offset, from.len()) else {
            return false;
        };
        // SAFETY: as in `copy_out`, but the slice is read.
        unsafe { access::copy(to.as_ptr(), from.as_ptr(), from.len()) };
        // The index that names these bytes is published afterwards.
        fence(Ordering::Release);
        true
    }
}

/// A whole memfd, mapped.
#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
    /// The descriptor, in the process that created the memory. A mapping needs none, and a process that adopts many would run
    /// out of descriptors.
    file: Option<OwnedFd>,
}

// SAFETY: only this value owns the mapping. The code that follows its pointer gives its own argument for each access.
unsafe impl Send for Mapping {}
// SAFETY: through a shared reference, accesses are atomics, or copies outside the language, which other accesses may overlap.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn create(name: &core::ffi::CStr, bytes: usize) -> Result<Self, SharedMemoryError> {
        let length = length(bytes)?;
        // SAFETY: a string that ends with a zero byte. The call touches no other memory (memfd_create(2)).
        let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
        let fd = errno::from_minus_one("memfd_create", fd)?;
        // SAFETY: made just now, and nothing else owns it.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: an open descriptor; the call touches no memory of this process (ftruncate(2)).
        let status = unsafe { libc::ftruncate(file.as_raw_fd(), length) };
        errno::from_minus_one("ftruncate", status)?;
        // SAFETY: as above (fallocate(2)).
        let status = unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, length) };
        errno::from_minus_one("fallocate", status)?;
        let mut mapping = Self::map(file.as_fd(), bytes)?;
        mapping.populate(0, bytes);
        mapping.file = Some(file);
        Ok(mapping)
    }

    fn adopt(file: BorrowedFd<'_>, bytes: usize) -> Result<Self, SharedMemoryError> {
        let expected = u64::try_from(length(bytes)?).unwrap_or(u64::MAX);
        // The seals are checked first, since that does not ask the file system. One that another process serves may never
        // answer.
        let found = seals(file)?;
        if !is_in_memory(file)? {
            return Err(SharedMemoryError::Foreign);
        }
        if found & !SEAL_EXEC != 0 {
            return Err(SharedMemoryError::Seals { found });
        }
        // Mapped before it is sealed, since the seals prevent every later writable mapping. Nothing is touched before the seals
        // are on.
        let mapping = Self::map(file, bytes)?;
        // SAFETY: an open descriptor; the call touches no memory (fcntl(2)).
        let status = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS) };
        let found = seals(file)?;
        if status == -1 || found & !SEAL_EXEC != SEALS {
            return Err(SharedMemoryError::Seals { found });
        }
        let (found, held) = size(file)?;
        if found != expected {
            return Err(SharedMemoryError::Bytes { found, expected });
        }
        // Pages after the end also count as blocks, and would hide holes. The seals prevent more of them. Too many take long to
        // free.
        if held > expected.saturating_add(BYTES_BEHIND_MAX) {
            let found = held;
            return Err(SharedMemoryError::Bytes { found, expected });
        }
        // SAFETY: an open descriptor. The size stays, and the call touches no memory of this process (ftruncate(2)).
        let status = unsafe { libc::ftruncate(file.as_raw_fd(), length(bytes)?) };
        errno::from_minus_one("ftruncate", status)?;
        let (_, held) = size(file)?;
        if held < expected {
            return Err(SharedMemoryError::Holes {
                found: held,
                expected,
            });
        }
        Ok(mapping)
    }

    /// Whether the file has the seals and the size of adopted memory. Memory without a descriptor was adopted here.
    fn is_sealed(&self) -> bool {
        self.file.as_ref().is_none_or(|file| {
            let has_seals = seals(file.as_fd()).is_ok_and(|found| found & SEALS == SEALS);
            // The size is read after the seals: from then on it stays.
            has_seals && size(file.as_fd()).is_ok_and(|(found, _)| found == self.bytes as u64)
        })
    }

    /// Maps a file without keeping a descriptor.
    fn map(file: BorrowedFd<'_>, bytes: usize) -> Result<Self, SharedMemoryError> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses touches no existing memory (mmap(2)).
        let address = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes,
                protection,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        let base = NonNull::new(address.cast::<u8>()).filter(|_| address != libc::MAP_FAILED);
        let base = base.ok_or_else(|| ProviderError {
            call: "mmap",
            errno: errno::last(),
        })?;
        let file = None;
        Ok(Self { base, bytes, file })
    }

    /// Puts the pages of a range into the page table, beginning with the page of the byte at `offset`. Does nothing if the
    /// range is not within the mapping. Returns whether the kernel succeeded.
    fn populate(&self, offset: usize, bytes: usize) -> bool {
        // The call only takes addresses of pages (madvise(2)). The page size is a power of two.
        let within = offset & page_bytes().saturating_sub(1);
        let first = offset.saturating_sub(within);
        let bytes = bytes.saturating_add(within);
        let Some(first) = self.at(first, bytes) else {
            return false;
        };
        // SAFETY: a part of this value's own mapping. The call does not change its bytes (madvise(2)).
        let status = unsafe { libc::madvise(first.as_ptr().cast(), bytes, libc::MADV_POPULATE_WRITE) };
        status == 0
    }

    /// The address of `bytes` bytes at `offset`. `None` unless all lie within the mapping.
    #[inline]
    fn at(&self, offset: usize, bytes: usize) -> Option<NonNull<u8>> {
        let end = offset.checked_add(bytes)?;
        if end > self.bytes {
            return None;
        }
        // SAFETY: within the mapping, as just checked.
        Some(unsafe { self.base.add(offset) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this value's own mapping, which no borrow outlives (munmap(2)).
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// The size of the file, and how many bytes have pages.
fn size(file: BorrowedFd<'_>) -> Result<(u64, u64), SharedMemoryError> {
    // SAFETY: zero bytes are a value of this structure of integers.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: an open descriptor, and a writable structure (fstat(2)).
    let status = unsafe { libc::fstat(file.as_raw_fd(), &raw mut stat) };
    errno::from_minus_one("fstat", status)?;
    let [bytes, blocks] = [stat.st_size, stat.st_blocks].map(|count| u64::try_from(count).unwrap_or(0));
    // Blocks have 512 bytes on every file system (stat(2)).
    Ok((bytes, blocks.saturating_mul(512)))
}

fn length(bytes: usize) -> Result<libc::off_t, SharedMemoryError> {
    let refused = ProviderError {
        call: "mmap",
        errno: libc::EINVAL,
    };
    let is_right = (1..=BYTES_MAX).contains(&bytes);
    let length = libc::off_t::try_from(bytes).ok().filter(|_| is_right);
    length.ok_or(SharedMemoryError::System(refused))
}

/// Whether a file is of tmpfs, as files of `memfd_create(2)` without huge pages are.
fn is_in_memory(file: BorrowedFd<'_>) -> Result<bool, SharedMemoryError> {
    // SAFETY: zero bytes are a value of this structure of integers.
    let mut of: libc::statfs = unsafe { core::mem::zeroed() };
    // SAFETY: an open descriptor, and a writable structure (fstatfs(2)).
    let status = unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut of) };
    errno::from_minus_one("fstatfs", status)?;
    Ok(of.f_type == libc::TMPFS_MAGIC)
}

fn seals(file: BorrowedFd<'_>) -> Result<i32, SharedMemoryError> {
    // SAFETY: an open descriptor; the call touches no memory (fcntl(2)).
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    if seals == -1 {
        return Err(SharedMemoryError::Foreign);
    }
    Ok(seals)
}

#[cfg(test)]
mod tests;
