//! Registered memory: a table that keys lead into, read without a lock.
//!
//! A key is an index and eight bits that change each time the index is used again, so a key that was given back
//! names nothing. A request that reaches memory by its peer's key pins the entry, and deregistering waits for the
//! pins. Afterwards nothing of ours touches the memory, as with a device.

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rdma_sys::{ibv_access_flags, ibv_fork_status, ibv_mr, ibv_pd};

use crate::context::OpenDevice;
use crate::copy::Piece;
use crate::dmabuf::{self, Import, Part};
use crate::domain::Domain;
use crate::handle::{Handle, hand_out, look_at, take_back};

/// How many regions there are at most, those of all devices together.
pub(crate) const REGIONS_MAX: u32 = 8192;

/// How far a key's index stands from its right end.
const INDEX_SHIFT: u32 = 8;

/// One region, while its key is not zero.
struct RegionEntry {
    key: AtomicU32,
    /// How many requests reach it by a peer's right at this moment.
    pins: AtomicU32,
    access: AtomicU32,
    start: AtomicPtr<u8>,
    /// The address under which requests that name the key know it.
    address: AtomicU64,
    bytes: AtomicU64,
    pd: AtomicPtr<ibv_pd>,
    /// Which registration of the process it is, from one.
    serial: AtomicU32,
}

/// How many registrations there were.
static SERIALS: AtomicU32 = AtomicU32::new(0);

static ENTRIES: [RegionEntry; REGIONS_MAX as usize] = [const {
    RegionEntry {
        key: AtomicU32::new(0),
        pins: AtomicU32::new(0),
        access: AtomicU32::new(0),
        start: AtomicPtr::new(ptr::null_mut()),
        address: AtomicU64::new(0),
        bytes: AtomicU64::new(0),
        pd: AtomicPtr::new(ptr::null_mut()),
        serial: AtomicU32::new(0),
    }
}; REGIONS_MAX as usize];

/// The keys that can be given out: those given back, and the first index never used.
struct Free {
    back: Vec<u32>,
    next: u32,
}

static FREE: Mutex<Free> = Mutex::new(Free {
    back: Vec::new(),
    // Not zero, so that no key is.
    next: 1,
});

/// Whether children were asked for before anything was registered, see `ibv_fork_init(3)`.
static CHILDREN: AtomicU8 = AtomicU8::new(UNASKED);
const UNASKED: u8 = 0;
const IN_TIME: u8 = 1;
const TOO_LATE: u8 = 2;

/// As a library does on a kernel that does not copy for children what a device has; here no memory changes place.
pub(crate) fn ask_for_children() -> c_int {
    match CHILDREN.compare_exchange(UNASKED, IN_TIME, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) | Err(IN_TIME) => 0,
        Err(_) => libc::EINVAL,
    }
}

/// Whether they were, in time.
pub(crate) fn children() -> ibv_fork_status {
    if CHILDREN.load(Ordering::Relaxed) == IN_TIME {
        rdma_sys::IBV_FORK_ENABLED
    } else {
        rdma_sys::IBV_FORK_DISABLED
    }
}

fn entry(key: u32) -> Option<&'static RegionEntry> {
    ENTRIES.get((key >> INDEX_SHIFT) as usize)
}

impl RegionEntry {
    /// Returns the place of `bytes` bytes at `address`, if they lie within and all of `access` is allowed.
    fn piece(&self, pd: *mut ibv_pd, access: u32, address: u64, bytes: u64) -> Option<Piece> {
        let offset = address.checked_sub(self.address.load(Ordering::Relaxed))?;
        let end = offset.checked_add(bytes)?;
        let allowed = self.access.load(Ordering::Relaxed) & access == access;
        if end > self.bytes.load(Ordering::Relaxed) || !allowed || self.pd.load(Ordering::Relaxed) != pd {
            return None;
        }
        Some(Piece {
            start: self
                .start
                .load(Ordering::Relaxed)
                .wrapping_add(usize::try_from(offset).ok()?),
            bytes: usize::try_from(bytes).ok()?,
        })
    }
}

/// Returns the bytes that a local element names; `None` if the key does not allow it.
///
/// The program keeps the memory until its request is done, so nothing is pinned.
#[inline]
pub(crate) fn local(key: u32, pd: *mut ibv_pd, access: u32, address: u64, bytes: u32) -> Option<Piece> {
    let entry = entry(key)?;
    // Acquire: pairs with the release of `register`, so the other fields are its.
    if key == 0 || entry.key.load(Ordering::Acquire) != key {
        return None;
    }
    entry.piece(pd, access, address, u64::from(bytes))
}

/// The serial number of the registration that has this key now, or 0; for the key 0, that of the newest one.
pub(crate) fn serial(key: u32) -> u32 {
    if key == 0 {
        return SERIALS.load(Ordering::SeqCst);
    }
    match entry(key) {
        // Acquire: pairs with the release of `register`, so the serial number is its.
        Some(entry) if entry.key.load(Ordering::Acquire) == key => entry.serial.load(Ordering::Relaxed),
        _ => 0,
    }
}

/// Memory that a peer's request reaches, kept registered as long as this lives.
pub(crate) struct Pinned {
    entry: &'static RegionEntry,
    pub(crate) piece: Piece,
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // Release: what was copied is done when `deregister` sees the count.
        self.entry.pins.fetch_sub(1, Ordering::Release);
    }
}

/// Returns the bytes that a remote key opens; `None` if it does not allow it.
#[inline]
pub(crate) fn remote(key: u32, pd: *mut ibv_pd, access: u32, address: u64, bytes: u64) -> Option<Pinned> {
    let entry = entry(key)?;
    // SeqCst here and in `deregister`: either that one sees the pin, or this one the key gone.
    entry.pins.fetch_add(1, Ordering::SeqCst);
    let mut pinned = Pinned {
        entry,
        piece: Piece::EMPTY,
    };
    if key == 0 || entry.key.load(Ordering::SeqCst) != key {
        return None;
    }
    pinned.piece = entry.piece(pd, access, address, bytes)?;
    Some(pinned)
}

#[repr(C)]
pub(crate) struct Region {
    verbs: UnsafeCell<ibv_mr>,
    key: u32,
    pd: *mut ibv_pd,
    /// The mapping of a dma-buf, if it is a region of one. It is unmapped with the region.
    import: Option<Import>,
}

// SAFETY: `repr(C)`, and the structure comes first.
unsafe impl Handle for Region {
    type Verbs = ibv_mr;
}

const fn bits(flags: ibv_access_flags) -> u32 {
    flags.0
}

/// Access flags that a registration may have here.
const KNOWN: u32 = bits(ibv_access_flags::IBV_ACCESS_LOCAL_WRITE)
    | bits(ibv_access_flags::IBV_ACCESS_REMOTE_WRITE)
    | bits(ibv_access_flags::IBV_ACCESS_REMOTE_READ)
    | bits(ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC)
    | bits(ibv_access_flags::IBV_ACCESS_HUGETLB)
    | rdma_sys::IBV_ACCESS_OPTIONAL_RANGE;

/// Access flags that need LOCAL_WRITE beside them (S26).
const WRITES: u32 =
    bits(ibv_access_flags::IBV_ACCESS_REMOTE_WRITE) | bits(ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC);

/// Registers memory, see `ibv_reg_mr(3)`.
///
/// # Errors
/// An errno value: `EINVAL` for what cannot be, `ENOMEM` where the table is full.
///
/// # Safety
/// The domain is live, and the memory stays until it is deregistered.
pub(crate) unsafe fn register(
    pd: *mut ibv_pd,
    start: *mut c_void,
    bytes: usize,
    address: u64,
    access: u32,
) -> Result<*mut ibv_mr, c_int> {
    // SAFETY: live, as the caller vouches.
    let domain: &Domain = unsafe { look_at(pd) };
    // SAFETY: a domain's context is open as long as the domain lives.
    let known = if unsafe { OpenDevice::of(domain.context()) }.pages_on_demand {
        KNOWN | bits(ibv_access_flags::IBV_ACCESS_ON_DEMAND)
    } else {
        KNOWN
    };
    let past_the_end = start.addr().checked_add(bytes).is_none();
    if access & !known != 0 || writes_without_local(access) || bytes == 0 || past_the_end {
        return Err(libc::EINVAL);
    }
    // If the exchange fails, the program asked, or registered memory, before.
    let _ = CHILDREN.compare_exchange(UNASKED, TOO_LATE, Ordering::Relaxed, Ordering::Relaxed);
    let known_as = KnownAs {
        access,
        start: start.cast(),
        address,
        bytes,
    };
    // SAFETY: the caller's own words.
    unsafe { enter(pd, &known_as, start, None) }
}

/// Registers a part of a dma-buf, see `ibv_reg_mr(3)`.
///
/// # Errors
/// An errno value, in the order in which the kernel looks: `EOPNOTSUPP` if the device imports none, `EINVAL` for flags that
/// cannot be, those of [`Import::new`], `ENOMEM` if the table is full.
///
/// # Safety
/// The domain is live.
pub(crate) unsafe fn register_dmabuf(pd: *mut ibv_pd, part: Part, access: u32) -> Result<*mut ibv_mr, c_int> {
    // SAFETY: live, as the caller vouches.
    let domain: &Domain = unsafe { look_at(pd) };
    // SAFETY: a domain's context is open as long as the domain lives.
    if !unsafe { OpenDevice::of(domain.context()) }.imports_dmabufs {
        return Err(libc::EOPNOTSUPP);
    }
    if access & !dmabuf::KNOWN_ACCESS != 0 || writes_without_local(access) {
        return Err(libc::EINVAL);
    }
    let is_written = access & bits(ibv_access_flags::IBV_ACCESS_LOCAL_WRITE) != 0;
    let import = Import::new(part, is_written)?;
    let known_as = KnownAs {
        access,
        start: import.start(),
        address: part.iova,
        bytes: part.bytes,
    };
    // libibverbs shows the offset as the address of such a region.
    let shown = ptr::without_provenance_mut(usize::try_from(part.offset).unwrap_or(usize::MAX));
    // SAFETY: live, as the caller vouches; the mapping stays as long as the region, which owns it.
    unsafe { enter(pd, &known_as, shown, Some(import)) }
}

const fn writes_without_local(access: u32) -> bool {
    access & WRITES != 0 && access & bits(ibv_access_flags::IBV_ACCESS_LOCAL_WRITE) == 0
}

/// A region as requests know it.
struct KnownAs {
    access: u32,
    start: *mut u8,
    address: u64,
    bytes: usize,
}

/// Enters a region into the table, and gives it out under a new key.
///
/// # Errors
/// `ENOMEM` if the table is full.
///
/// # Safety
/// The domain is live, and the memory stays until it is deregistered.
unsafe fn enter(
    pd: *mut ibv_pd,
    known_as: &KnownAs,
    shown: *mut c_void,
    import: Option<Import>,
) -> Result<*mut ibv_mr, c_int> {
    let key = free_key().ok_or(libc::ENOMEM)?;
    let entry = entry(key).ok_or(libc::ENOMEM)?;
    entry.access.store(known_as.access, Ordering::Relaxed);
    entry.start.store(known_as.start, Ordering::Relaxed);
    entry.address.store(known_as.address, Ordering::Relaxed);
    entry.bytes.store(known_as.bytes as u64, Ordering::Relaxed);
    entry.pd.store(pd, Ordering::Relaxed);
    let serial = SERIALS.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
    entry.serial.store(serial, Ordering::Relaxed);
    // Release: a thread that finds the key finds the fields above.
    entry.key.store(key, Ordering::Release);
    // SAFETY: live, as the caller vouches.
    let domain: &Domain = unsafe { look_at(pd) };
    domain.children.add();
    Ok(hand_out(Region {
        verbs: UnsafeCell::new(ibv_mr {
            context: domain.context(),
            pd,
            addr: shown,
            length: known_as.bytes,
            handle: key,
            lkey: key,
            rkey: key,
        }),
        key,
        pd,
        import,
    }))
}

fn free_key() -> Option<u32> {
    let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
    // The oldest first would be harsher to stale keys; the newest is, since its bits differ by one.
    if let Some(key) = free.back.pop() {
        // The low eight bits count up and skip zero, so that an index alone is no key.
        let low = (key & 0xff).wrapping_add(1);
        return Some(key & !0xff | if low > 0xff { 1 } else { low });
    }
    let index = free.next;
    if index >= REGIONS_MAX {
        return None;
    }
    free.next = index.wrapping_add(1);
    Some(index << INDEX_SHIFT | 1)
}

/// Deregisters memory: once it returns, no request reaches it.
///
/// # Safety
/// The region is live, and not used again.
pub(crate) unsafe fn deregister(mr: *mut ibv_mr) {
    // SAFETY: live, as the caller vouches, and taken back once.
    let region = unsafe { take_back::<Region>(mr) };
    if let Some(entry) = entry(region.key) {
        entry.key.store(0, Ordering::SeqCst);
        while entry.pins.load(Ordering::SeqCst) != 0 {
            std::thread::yield_now();
        }
    }
    // No request reaches the memory any more.
    drop(region.import);
    let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
    free.back.push(region.key);
    drop(free);
    // SAFETY: a region's domain is live as long as the region: it counts as its child.
    let domain: &Domain = unsafe { look_at(region.pd) };
    domain.children.remove();
}

#[cfg(test)]
mod tests {
    use super::{deregister, local, register, remote};
    use crate::context::OpenDevice;
    use crate::device;
    use crate::domain;

    #[test]
    #[expect(clippy::multiple_unsafe_ops_per_block, reason = "a test of unsafe functions")]
    fn a_key_opens_what_it_was_made_for_and_no_more() {
        let (list, _) = device::list();
        // SAFETY: the list has a device; everything below is made from it and given back.
        unsafe {
            let context = OpenDevice::open(device::Device::of(list.read()));
            let (pd, other) = (domain::alloc(context), domain::alloc(context));
            let mut memory = [0_u8; 64];
            let start = memory.as_mut_ptr();
            assert_eq!(register(pd, start.cast(), 0, 0, 1), Err(libc::EINVAL));
            assert_eq!(register(pd, start.cast(), 64, 0, 2), Err(libc::EINVAL), "S26");
            assert_eq!(register(pd, start.cast(), 64, 0, 1 << 16), Err(libc::EINVAL));
            let mr = register(pd, start.cast(), 64, 0x1000, 3).unwrap();
            let key = (*mr).lkey;
            assert_eq!(
                local(key, pd, 1, 0x1003, 61).unwrap().start,
                start.wrapping_add(3)
            );
            assert!(local(key, pd, 1, 0x1003, 62).is_none());
            assert!(local(key, pd, 1, 0xfff, 1).is_none());
            assert!(local(key, pd, 1, u64::MAX, 2).is_none());
            assert!(local(key, other, 1, 0x1000, 1).is_none());
            assert!(local(key + 1, pd, 1, 0x1000, 1).is_none());
            assert!(local(0, pd, 1, 0x1000, 1).is_none());
            assert!(local(u32::MAX, pd, 1, 0x1000, 1).is_none());
            assert!(remote(key, pd, 2, 0x1000, 64).is_some());
            assert!(remote(key, pd, 4, 0x1000, 64).is_none(), "READ was not granted");
            assert_eq!(domain::dealloc(pd), Err(libc::EBUSY));
            deregister(mr);
            assert!(local(key, pd, 1, 0x1000, 1).is_none());
            assert!(remote(key, pd, 2, 0x1000, 1).is_none());
            let again = register(pd, start.cast(), 64, 0x1000, 3).unwrap();
            assert_ne!((*again).lkey, key);
            deregister(again);
            assert_eq!((domain::dealloc(pd), domain::dealloc(other)), (Ok(()), Ok(())));
            assert_eq!(OpenDevice::close(context), 0);
            device::free_list(list);
        }
    }
}
