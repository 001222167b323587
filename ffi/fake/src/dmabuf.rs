//! Buffers that devices share: the mapping by which this device reaches one.
//!
//! A dma-buf is mapped as its exporter allows. A memory file (memfd) stands for one if it is sealed against shrinking,
//! which `/dev/udmabuf` asks for, too. The kernel refuses every other descriptor, and so does this.

use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::ptr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _};

use rdma_sys::ibv_access_flags;

/// Type of the file system that dma-bufs are in (`DMA_BUF_MAGIC` of linux/magic.h).
const DMA_BUF_MAGIC: u64 = 0x444d_4142;

/// Access flags that a registration of a dma-buf may have. Source: `ibv_reg_mr(3)`.
pub(crate) const KNOWN_ACCESS: u32 = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0
    | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0
    | ibv_access_flags::IBV_ACCESS_REMOTE_READ.0
    | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0
    | ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0;

/// A memory file of zeros that the fake registers as a dma-buf, and of which `/dev/udmabuf` makes a true one.
///
/// # Errors
/// The system has no such files, or no memory.
pub fn memory_file(bytes: u64) -> io::Result<File> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: a C string and known flags (memfd_create(2)).
    let fd = unsafe { libc::memfd_create(c"doorbell".as_ptr(), flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor just made, which nobody else has.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(bytes)?;
    // SAFETY: an open descriptor, and a known seal (fcntl(2)).
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(file)
}

/// Part of a buffer that is to be registered.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    pub(crate) fd: c_int,
    pub(crate) offset: u64,
    pub(crate) bytes: usize,
    /// The address under which requests know its first byte.
    pub(crate) iova: u64,
}

/// A part of a buffer, mapped as long as this lives. The descriptor may be closed before.
pub(crate) struct Import {
    pages: *mut libc::c_void,
    mapped_bytes: usize,
    /// How far the part begins behind the first page.
    lead_bytes: usize,
}

impl Import {
    /// Maps the part.
    ///
    /// # Errors
    /// An errno value. `EBADF`: the descriptor is none. `EINVAL`: it is of another kind of file, or the part is empty, passes
    /// the end of the buffer, or has another page offset than its address. Others are of `mmap(2)`.
    pub(crate) fn new(part: Part, is_written: bool) -> Result<Self, c_int> {
        let in_page = page_bytes().wrapping_sub(1);
        let lead = part.offset & in_page;
        if lead != part.iova & in_page {
            return Err(libc::EINVAL);
        }
        let buffer_bytes = buffer_bytes(part.fd)?;
        let end = part.offset.checked_add(part.bytes as u64);
        let is_within = end.is_some_and(|end| end <= buffer_bytes);
        if part.bytes == 0 || !is_within {
            return Err(libc::EINVAL);
        }
        let lead_bytes = usize::try_from(lead).map_err(|_| libc::EINVAL)?;
        let mapped_bytes = part.bytes.checked_add(lead_bytes).ok_or(libc::EINVAL)?;
        let first = part.offset.wrapping_sub(lead);
        let first = libc::off_t::try_from(first).map_err(|_| libc::EINVAL)?;
        let write = if is_written { libc::PROT_WRITE } else { 0 };
        let (protection, flags) = (libc::PROT_READ | write, libc::MAP_SHARED);
        // SAFETY: a new mapping at an address that the kernel chooses (mmap(2)).
        let pages = unsafe { libc::mmap(ptr::null_mut(), mapped_bytes, protection, flags, part.fd, first) };
        if pages == libc::MAP_FAILED {
            return Err(last_errno());
        }
        Ok(Self {
            pages,
            mapped_bytes,
            lead_bytes,
        })
    }

    /// The first byte of the part.
    pub(crate) fn start(&self) -> *mut u8 {
        self.pages.cast::<u8>().wrapping_add(self.lead_bytes)
    }
}

impl Drop for Import {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, and unmapped here once. Nothing of ours reaches it: the key is gone (munmap(2)).
        unsafe { libc::munmap(self.pages, self.mapped_bytes) };
    }
}

/// The size of the buffer behind a descriptor.
fn buffer_bytes(fd: c_int) -> Result<u64, c_int> {
    let mut system = MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: a writable structure (fstatfs(2)).
    if unsafe { libc::fstatfs(fd, system.as_mut_ptr()) } != 0 {
        return Err(last_errno());
    }
    // SAFETY: integers only, zeroed before the call filled them in.
    let system = unsafe { system.assume_init() };
    let is_dmabuf = u64::try_from(system.f_type).is_ok_and(|magic| magic == DMA_BUF_MAGIC);
    // SAFETY: asks for the seals of a descriptor, and fails for a file that has none (fcntl(2)).
    let seals = unsafe { libc::fcntl(fd, libc::F_GET_SEALS) };
    if !is_dmabuf && (seals < 0 || seals & libc::F_SEAL_SHRINK == 0) {
        return Err(libc::EINVAL);
    }
    let mut file = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: a writable structure (fstat(2)).
    if unsafe { libc::fstat(fd, file.as_mut_ptr()) } != 0 {
        return Err(last_errno());
    }
    // SAFETY: integers only, zeroed before the call filled them in.
    let file = unsafe { file.assume_init() };
    u64::try_from(file.st_size).map_err(|_| libc::EINVAL)
}

/// A power of two.
fn page_bytes() -> u64 {
    // SAFETY: a plain query (sysconf(3)).
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(bytes).unwrap_or(4096)
}

fn last_errno() -> c_int {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}
