//! Address handles: the ways that datagrams take.

use core::cell::UnsafeCell;
use core::ffi::c_int;

use rdma_sys::{ibv_ah, ibv_ah_attr, ibv_gid_entry, ibv_global_route, ibv_pd};

use crate::domain::Domain;
use crate::handle::{Handle, hand_out, look_at, take_back};
use crate::port;

#[repr(C)]
pub(crate) struct AddressHandle {
    verbs: UnsafeCell<ibv_ah>,
    pd: *mut ibv_pd,
    /// Our own GID.
    pub(crate) source: [u8; 16],
    pub(crate) route: ibv_global_route,
}

// SAFETY: `repr(C)`, and the structure comes first.
unsafe impl Handle for AddressHandle {
    type Verbs = ibv_ah;
}

impl AddressHandle {
    pub(crate) const fn pd(&self) -> *mut ibv_pd {
        self.pd
    }
}

/// The GID that a way begins at: RoCE needs a global route from one that we have.
pub(crate) fn source(wanted: &ibv_ah_attr) -> Option<ibv_gid_entry> {
    let entry = port::gid(u32::from(wanted.port_num), u32::from(wanted.grh.sgid_index)).ok()?;
    entry.filter(|_| wanted.is_global == 1)
}

/// Makes one, see `ibv_create_ah(3)`.
///
/// # Errors
/// `EINVAL`: no way begins there.
///
/// # Safety
/// The domain is live.
pub(crate) unsafe fn create(pd: *mut ibv_pd, wanted: &ibv_ah_attr) -> Result<*mut ibv_ah, c_int> {
    let entry = source(wanted).ok_or(libc::EINVAL)?;
    // SAFETY: live, as the caller vouches.
    let domain: &Domain = unsafe { look_at(pd) };
    domain.children.add();
    Ok(hand_out(AddressHandle {
        verbs: UnsafeCell::new(ibv_ah {
            context: domain.context(),
            pd,
            handle: 0,
        }),
        pd,
        // SAFETY: of its two views the bytes are always good.
        source: unsafe { entry.gid.raw },
        route: wanted.grh,
    }))
}

/// Destroys one.
///
/// # Safety
/// It is live, and not used again.
pub(crate) unsafe fn destroy(ah: *mut ibv_ah) {
    // SAFETY: live, as the caller vouches.
    let address = unsafe { take_back::<AddressHandle>(ah) };
    // SAFETY: live as long as the handle: it counts as its child.
    let domain: &Domain = unsafe { look_at(address.pd) };
    domain.children.remove();
}
