//! Changes of this process's mappings, as the kernel reports them. Only the events of `userfaultfd` are used.
//!
//! Memory is armed for write protection, but never write-protected. So no access to it ever faults, no system call on it
//! fails, and only the events remain: a range was unmapped or moved, or is about to lose its pages.
//!
//! Source: `userfaultfd(2)`, `ioctl_userfaultfd(2)`, and `fs/userfaultfd.c` of Linux for the times at which
//! `mmap_changing` rises and falls, which no manual states.

use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering, fence};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::{Mutex, OnceLock, PoisonError};

use doorbell_core::provider::ProviderError;
use doorbell_core::registrations::AddressRange;

use crate::errno;
use crate::placement::page_bytes;
use crate::signals::block_signals;

/// Argument of `UFFDIO_API`.
#[repr(C)]
struct ApiArgument {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// Argument of `UFFDIO_REGISTER`.
#[repr(C)]
struct RegisterArgument {
    start: u64,
    bytes: u64,
    mode: u64,
    ioctls: u64,
}

/// Argument of `UFFDIO_WRITEPROTECT`.
#[repr(C)]
struct WriteProtectArgument {
    start: u64,
    bytes: u64,
    mode: u64,
}

/// An event, `struct uffd_msg`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Message {
    event: u8,
    reserved: [u8; 7],
    arguments: [u64; 3],
}

const _: () = assert!(size_of::<Message>() == 32, "uffd_msg is packed to 32 bytes");

const API: u64 = 0xaa;
const API_REQUEST: libc::c_ulong = request(0x3f, size_of::<ApiArgument>());
const REGISTER_REQUEST: libc::c_ulong = request(0x00, size_of::<RegisterArgument>());
const WRITE_PROTECT_REQUEST: libc::c_ulong = request(0x06, size_of::<WriteProtectArgument>());
const USER_MODE_ONLY: libc::c_int = 1;
const MODE_WRITE_PROTECT: u64 = 1 << 1;
const FEATURE_WRITE_PROTECT: u64 = 1;
const FEATURE_REMAP: u64 = 1 << 2;
const FEATURE_REMOVE: u64 = 1 << 3;
const FEATURE_UNMAP: u64 = 1 << 6;
const EVENT_REMAP: u8 = 0x14;
const EVENT_REMOVE: u8 = 0x15;
const EVENT_UNMAP: u8 = 0x16;

/// `_IOWR(0xaa, number, bytes)` of most architectures.
#[expect(clippy::cast_possible_truncation, reason = "of constants")]
const fn request(number: u8, bytes: usize) -> libc::c_ulong {
    (3 << 30 | (bytes as u32) << 16 | 0xaa << 8 | number as u32) as libc::c_ulong
}

/// Whether this process is a child that was forked from the one that watches.
static IS_CHILD: AtomicBool = AtomicBool::new(false);
/// The descriptor, which a child closes.
static DESCRIPTOR: AtomicI32 = AtomicI32::new(-1);

/// The watch on the mappings of this process. There is only one, since the kernel allows one for each mapping.
///
/// A thread that unmaps, moves or discards armed memory sleeps until the event is read. So once memory is armed, one
/// thread has to read events for the rest of the process's life. It may not allocate, free or unmap memory, nor take a
/// lock under which another thread does so.
pub struct MappingWatch {
    fd: OwnedFd,
    /// How many threads have read events and not handled all of them.
    handling: AtomicU32,
}

impl MappingWatch {
    /// Returns the watch of this process. The first call that succeeds opens it, and it is never closed.
    ///
    /// # Errors
    /// The kernel or a filter of system calls does not allow it: `ENOSYS`, `EPERM`, or `EINVAL` for a kernel without
    /// these events. Or the process lacks something now, as `EMFILE` says: a later call tries again.
    pub fn of_process() -> Result<&'static Self, ProviderError> {
        static WATCH: OnceLock<MappingWatch> = OnceLock::new();
        static OPENING: Mutex<()> = Mutex::new(());
        if let Some(watch) = WATCH.get() {
            return Ok(watch);
        }
        let _alone = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
        match WATCH.get() {
            Some(watch) => Ok(watch),
            None => Self::open().map(|watch| WATCH.get_or_init(|| watch)),
        }
    }

    fn open() -> Result<Self, ProviderError> {
        const FEATURES: u64 = FEATURE_WRITE_PROTECT | FEATURE_REMAP | FEATURE_REMOVE | FEATURE_UNMAP;
        let odd = cfg!(any(
            target_arch = "powerpc",
            target_arch = "powerpc64",
            target_arch = "sparc64"
        ));
        if odd || cfg!(any(target_arch = "mips", target_arch = "mips64")) {
            // These architectures encode ioctl numbers differently.
            return Err(ProviderError {
                call: "userfaultfd",
                errno: libc::ENOSYS,
            });
        }
        // No privilege is needed to watch faults of user mode, and here no fault is reported at all.
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY;
        // SAFETY: makes a descriptor, and touches no memory (userfaultfd(2)).
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        let fd = errno::from_minus_one("userfaultfd", libc::c_int::try_from(fd).unwrap_or(-1))?;
        // SAFETY: made just now, and nothing else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut argument = ApiArgument {
            api: API,
            features: FEATURES,
            ioctls: 0,
        };
        // SAFETY: an open descriptor, and the argument that this request takes (ioctl_userfaultfd(2)).
        let status = unsafe { libc::ioctl(fd.as_raw_fd(), API_REQUEST, &raw mut argument) };
        errno::from_minus_one("UFFDIO_API", status)?;
        // SAFETY: the handler is async-signal-safe, as the child of a process with several threads requires
        // (pthread_atfork(3)).
        let status = unsafe { libc::pthread_atfork(None, None, Some(close_in_child)) };
        errno::from_value("pthread_atfork", status)?;
        DESCRIPTOR.store(fd.as_raw_fd(), Ordering::Relaxed);
        Ok(Self {
            fd,
            handling: AtomicU32::new(0),
        })
    }

    /// Arms the mappings of all pages of a range. From then on each of their changes is reported.
    ///
    /// Arming splits mappings at the ends of the range, and each part counts towards `vm.max_map_count`.
    ///
    /// # Errors
    /// `EBUSY`: another userfaultfd watches the memory. `EINVAL`: nothing is mapped, or the kernel does not watch this kind
    /// of memory. `ENOMEM`: too many mappings. `ECHILD`: this process is a child that was forked after the watch was
    /// opened.
    pub fn arm(&self, range: AddressRange) -> Result<(), ProviderError> {
        if IS_CHILD.load(Ordering::Relaxed) {
            return Err(ProviderError {
                call: "UFFDIO_REGISTER",
                errno: libc::ECHILD,
            });
        }
        let pages = range.in_pages(page_bytes()).ok_or(ProviderError {
            call: "UFFDIO_REGISTER",
            errno: libc::EINVAL,
        })?;
        let mut argument = RegisterArgument {
            start: pages.start() as u64,
            bytes: pages.bytes() as u64,
            mode: MODE_WRITE_PROTECT,
            ioctls: 0,
        };
        // SAFETY: an open descriptor, and the argument that this request takes. No memory changes, and no access to it
        // behaves differently, since nothing is ever write-protected (ioctl_userfaultfd(2)).
        let status = unsafe { libc::ioctl(self.fd.as_raw_fd(), REGISTER_REQUEST, &raw mut argument) };
        errno::from_minus_one("UFFDIO_REGISTER", status).map(|_| ())
    }

    /// Whether every change of armed memory that happened before this call has been handled. Makes one system call.
    ///
    /// The kernel reports that memory was unmapped or moved only after the change. Until the report is read, it answers
    /// each request to write-protect with `EAGAIN`, before it checks the range. So a request for an empty range tells
    /// whether a change is still unreported: the answer is `EAGAIN` if so, and otherwise `EINVAL`.
    ///
    /// Ordering: the kernel is asked first, and the count of handlers is read afterwards. A handler counts itself before
    /// it reads, so a change whose event has been read is either handled, or its handler is counted.
    #[must_use]
    #[inline]
    pub fn is_settled(&self) -> bool {
        if IS_CHILD.load(Ordering::Relaxed) {
            return false;
        }
        let mut argument = WriteProtectArgument {
            start: 0,
            bytes: 0,
            mode: 0,
        };
        // SAFETY: an open descriptor, and the argument that this request takes; its range is empty, so
        // nothing is protected (ioctl_userfaultfd(2)).
        let status = unsafe { libc::ioctl(self.fd.as_raw_fd(), WRITE_PROTECT_REQUEST, &raw mut argument) };
        if status != -1 || errno::last() != libc::EINVAL {
            return false;
        }
        fence(Ordering::Acquire);
        self.handling.load(Ordering::Acquire) == 0
    }

    /// Handles events on this thread for the rest of the process's life. Calls `changed` for each range, and `settled`
    /// once all events read have been handled. Signals are blocked on this thread, since a signal handler that unmaps
    /// armed memory here would wait for itself.
    pub fn serve(&self, mut changed: impl FnMut(AddressRange), mut settled: impl FnMut()) -> ! {
        block_signals();
        loop {
            self.wait();
            self.handle(&mut changed);
            settled();
        }
    }

    /// Sleeps until there are events. A signal may end the sleep earlier.
    fn wait(&self) {
        let mut entry = libc::pollfd {
            fd: self.fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one writable entry (poll(2)).
        unsafe { libc::poll(&raw mut entry, 1, -1) };
    }

    /// Reads all events, and calls `changed` for each range. Once this has returned, the changes count as handled.
    ///
    /// A thread that waits for its event continues once the event is read. A thread that discards pages does so only
    /// then. Nothing is allocated here.
    fn handle(&self, mut changed: impl FnMut(AddressRange)) {
        // SeqCst: counted before any event is read, on machines of every memory order.
        self.handling.fetch_add(1, Ordering::SeqCst);
        let empty = Message {
            event: 0,
            reserved: [0; 7],
            arguments: [0; 3],
        };
        let mut messages = [empty; 16];
        loop {
            let bytes = size_of_val(&messages);
            // SAFETY: writable memory of this many bytes, of a type for which any bytes are a value (read(2)).
            let read = unsafe { libc::read(self.fd.as_raw_fd(), messages.as_mut_ptr().cast(), bytes) };
            let count = usize::try_from(read)
                .unwrap_or(0)
                .div_euclid(size_of::<Message>());
            if count == 0 {
                break;
            }
            messages
                .iter()
                .take(count)
                .filter_map(range_of)
                .for_each(&mut changed);
        }
        // Release: pairs with the Acquire of `is_settled`. All events read have been handled before.
        self.handling.fetch_sub(1, Ordering::Release);
    }
}

impl fmt::Debug for MappingWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MappingWatch({})", self.fd.as_raw_fd())
    }
}

/// Returns the addresses of an event. For moved memory, these are its old addresses.
fn range_of(message: &Message) -> Option<AddressRange> {
    let [first, second, third] = message.arguments.map(|word| usize::try_from(word).ok());
    let bytes = match message.event {
        EVENT_REMAP => third?,
        EVENT_REMOVE | EVENT_UNMAP => second?.checked_sub(first?)?,
        _ => return None,
    };
    AddressRange::new(first?, bytes)
}

/// Runs in a child after a fork. No memory of a child is armed, and a read of the descriptor would take events of its
/// parent.
extern "C" fn close_in_child() {
    IS_CHILD.store(true, Ordering::Relaxed);
    let fd = DESCRIPTOR.swap(-1, Ordering::Relaxed);
    if fd >= 0 {
        // SAFETY: the child's copy of the descriptor, which nothing in the child uses from here on, since
        // `is_settled` checks the flag first and no other thread of the parent exists here (close(2)).
        unsafe { libc::close(fd) };
    }
}

#[cfg(test)]
mod tests;
