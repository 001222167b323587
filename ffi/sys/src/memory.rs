//! Memory: registration as the C macros do it, memory windows, device memory, advice.

use core::ffi::{c_int, c_uint, c_void};

use crate::bindings::{
    ib_uverbs_access_flags, ib_uverbs_advise_mr_advice, ibv_alloc_dm_attr, ibv_context, ibv_dm, ibv_mr,
    ibv_mw, ibv_mw_bind, ibv_mw_type, ibv_pd, ibv_qp, ibv_sge,
};
use crate::context::extended;
use crate::errno;
use crate::functions::{self, ibv_reg_mr_iova2};

/// The advice of [`ibv_advise_mr`], under the name verbs.h gives it.
pub type ibv_advise_mr_advice = ib_uverbs_advise_mr_advice;

/// The access bits a kernel may ignore; only `ibv_reg_mr_iova2` takes them.
pub const IBV_ACCESS_OPTIONAL_RANGE: c_uint = ib_uverbs_access_flags::IB_UVERBS_ACCESS_OPTIONAL_RANGE.0;

/// The same bits: C passes these flags now as one, now as the other.
const fn unsigned(access: c_int) -> c_uint {
    c_uint::from_ne_bytes(access.to_ne_bytes())
}

/// The same bits, the other way.
const fn signed(access: c_uint) -> c_int {
    c_int::from_ne_bytes(access.to_ne_bytes())
}

extended! {
    /// Gives advice about ranges of memory, see `ibv_advise_mr(3)`.
    fn ibv_advise_mr(
        pd: *mut ibv_pd, advice: ibv_advise_mr_advice, flags: u32, sg_list: *mut ibv_sge, num_sge: u32,
    ) -> c_int = advise_mr of [(*pd).context];
    /// A memory region that swallows writes and reads as zero, see `ibv_alloc_null_mr(3)`.
    fn ibv_alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr = alloc_null_mr of [(*pd).context];
    /// Allocates memory of the device, see `ibv_alloc_dm(3)`.
    fn ibv_alloc_dm(context: *mut ibv_context, attr: *mut ibv_alloc_dm_attr) -> *mut ibv_dm
        = alloc_dm of [context];
    /// Releases memory of the device, see `ibv_alloc_dm(3)`.
    fn ibv_free_dm(dm: *mut ibv_dm) -> c_int = free_dm of [(*dm).context];
    /// Registers memory of the device, see `ibv_alloc_dm(3)`.
    fn ibv_reg_dm_mr(
        pd: *mut ibv_pd, dm: *mut ibv_dm, dm_offset: u64, length: usize, access: c_uint,
    ) -> *mut ibv_mr = reg_dm_mr of [(*pd).context];
}

/// Registers memory, see `ibv_reg_mr(3)`.
///
/// Access that holds an optional bit (relaxed ordering) goes to `ibv_reg_mr_iova2`, as the C macro does it:
/// the plain function would hand the bit to kernels that do not know it.
///
/// # Errors
/// Null, with errno; `ENOSYS` where the library lacks the function needed.
///
/// # Safety
/// `pd` is live, and the memory stays valid for what `access` allows until it is deregistered.
#[inline]
pub unsafe fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr {
    // SAFETY: the same contract.
    unsafe { __ibv_reg_mr(pd, addr, length, unsigned(access), 1) }
}

/// Registers memory that the device shall know under the addresses from `iova` on, see `ibv_reg_mr(3)`.
///
/// Optional access bits are treated as in [`ibv_reg_mr`].
///
/// # Errors
/// Null, with errno; `ENOSYS` where the library lacks the function needed.
///
/// # Safety
/// As for [`ibv_reg_mr`].
#[inline]
pub unsafe fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the same contract.
    unsafe { __ibv_reg_mr_iova(pd, addr, length, iova, unsigned(access), 1) }
}

/// The function behind the C macro `ibv_reg_mr`: with `is_access_const` zero it takes the newer path always.
///
/// # Errors
/// As for [`ibv_reg_mr`].
///
/// # Safety
/// As for [`ibv_reg_mr`].
#[inline]
pub unsafe fn __ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_uint,
    is_access_const: c_int,
) -> *mut ibv_mr {
    if is_access_const != 0 && access & IBV_ACCESS_OPTIONAL_RANGE == 0 {
        // SAFETY: the same contract.
        unsafe { functions::ibv_reg_mr(pd, addr, length, signed(access)) }
    } else {
        // SAFETY: the same contract; the device knows the memory under its own address.
        unsafe { ibv_reg_mr_iova2(pd, addr, length, addr.expose_provenance() as u64, access) }
    }
}

/// The function behind the C macro `ibv_reg_mr_iova`.
///
/// # Errors
/// As for [`ibv_reg_mr`].
///
/// # Safety
/// As for [`ibv_reg_mr`].
#[inline]
pub unsafe fn __ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
    is_access_const: c_int,
) -> *mut ibv_mr {
    if is_access_const != 0 && access & IBV_ACCESS_OPTIONAL_RANGE == 0 {
        // SAFETY: the same contract.
        unsafe { functions::ibv_reg_mr_iova(pd, addr, length, iova, signed(access)) }
    } else {
        // SAFETY: the same contract.
        unsafe { ibv_reg_mr_iova2(pd, addr, length, iova, access) }
    }
}

/// Allocates a memory window, see `ibv_alloc_mw(3)`.
///
/// # Errors
/// Null, with errno; `EOPNOTSUPP` where the provider has no such operation.
///
/// # Safety
/// `pd` is live.
#[inline]
pub unsafe fn ibv_alloc_mw(pd: *mut ibv_pd, type_: ibv_mw_type) -> *mut ibv_mw {
    // SAFETY: the caller vouches for the protection domain.
    let context = unsafe { (*pd).context };
    // SAFETY: a protection domain's context outlives it.
    let Some(alloc_mw) = (unsafe { (*context).ops.alloc_mw }) else {
        return errno::unsupported_null();
    };
    // SAFETY: the provider's own operation, with the arguments the caller vouches for.
    unsafe { alloc_mw(pd, type_) }
}

/// Releases a memory window, see `ibv_alloc_mw(3)`.
///
/// # Errors
/// An errno value; `EOPNOTSUPP` where the provider has no such operation.
///
/// # Safety
/// `mw` is live and not used after.
#[inline]
pub unsafe fn ibv_dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: the caller vouches for the window.
    let context = unsafe { (*mw).context };
    // SAFETY: a window's context outlives it.
    let Some(dealloc_mw) = (unsafe { (*context).ops.dealloc_mw }) else {
        return errno::unsupported();
    };
    // SAFETY: the provider's own operation, with the arguments the caller vouches for.
    unsafe { dealloc_mw(mw) }
}

/// Binds a memory window of type 1, see `ibv_bind_mw(3)`.
///
/// # Errors
/// An errno value: `EINVAL` for a window of another type, or an address without a region; `EPERM` where
/// window and region are of different protection domains; `EOPNOTSUPP` where the provider has no such
/// operation.
///
/// # Safety
/// `qp`, `mw` and the region in `mw_bind` are live, and `mw_bind` satisfies the manual page.
#[inline]
pub unsafe fn ibv_bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, mw_bind: *mut ibv_mw_bind) -> c_int {
    // SAFETY: the caller vouches for the window.
    let window_type = unsafe { (*mw).type_ };
    // SAFETY: the caller vouches for the request, a plain structure.
    let bind_info = unsafe { (*mw_bind).bind_info };
    if window_type != ibv_mw_type::IBV_MW_TYPE_1 {
        return libc::EINVAL;
    }
    if bind_info.mr.is_null() {
        if bind_info.addr != 0 || bind_info.length != 0 {
            return libc::EINVAL;
        }
    } else {
        // SAFETY: the caller vouches for the window.
        let window_pd = unsafe { (*mw).pd };
        // SAFETY: the caller vouches for the region, which is not null.
        let region_pd = unsafe { (*bind_info.mr).pd };
        if window_pd != region_pd {
            return libc::EPERM;
        }
    }
    // SAFETY: the caller vouches for the window.
    let context = unsafe { (*mw).context };
    // SAFETY: a window's context outlives it.
    let Some(bind_mw) = (unsafe { (*context).ops.bind_mw }) else {
        return errno::unsupported();
    };
    // SAFETY: the provider's own operation, with the arguments the caller vouches for.
    unsafe { bind_mw(qp, mw, mw_bind) }
}

/// The key with its lowest eight bits counted up; they wrap without touching the others.
#[inline]
#[must_use]
pub const fn ibv_inc_rkey(rkey: u32) -> u32 {
    (rkey & !0xff) | (rkey.wrapping_add(1) & 0xff)
}

/// Copies into memory of the device, see `ibv_memcpy_to_dm(3)`.
///
/// # Errors
/// An errno value; `EOPNOTSUPP` where the provider has no such operation.
///
/// # Safety
/// `dm` is live, and `length` bytes at `host_addr` are readable.
#[inline]
pub unsafe fn ibv_memcpy_to_dm(
    dm: *mut ibv_dm,
    dm_offset: u64,
    host_addr: *const c_void,
    length: usize,
) -> c_int {
    // SAFETY: the caller vouches for the device memory.
    let Some(memcpy_to_dm) = (unsafe { (*dm).memcpy_to_dm }) else {
        return errno::unsupported();
    };
    // SAFETY: the provider's own operation, with the arguments the caller vouches for.
    unsafe { memcpy_to_dm(dm, dm_offset, host_addr, length) }
}

/// Copies out of memory of the device, see `ibv_memcpy_from_dm(3)`.
///
/// # Errors
/// An errno value; `EOPNOTSUPP` where the provider has no such operation.
///
/// # Safety
/// `dm` is live, and `length` bytes at `host_addr` are writable.
#[inline]
pub unsafe fn ibv_memcpy_from_dm(
    host_addr: *mut c_void,
    dm: *mut ibv_dm,
    dm_offset: u64,
    length: usize,
) -> c_int {
    // SAFETY: the caller vouches for the device memory.
    let Some(memcpy_from_dm) = (unsafe { (*dm).memcpy_from_dm }) else {
        return errno::unsupported();
    };
    // SAFETY: the provider's own operation, with the arguments the caller vouches for.
    unsafe { memcpy_from_dm(host_addr, dm, dm_offset, length) }
}
