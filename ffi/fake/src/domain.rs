//! Protection domains.

use core::cell::UnsafeCell;
use core::ffi::c_int;

use rdma_sys::{ibv_context, ibv_pd};

use crate::context::{Children, OpenDevice};
use crate::handle::{Handle, hand_out, look_at, take_back};

#[repr(C)]
pub(crate) struct Domain {
    verbs: UnsafeCell<ibv_pd>,
    context: *mut ibv_context,
    pub(crate) children: Children,
}

// SAFETY: `repr(C)`, and the structure comes first.
unsafe impl Handle for Domain {
    type Verbs = ibv_pd;
}

impl Domain {
    pub(crate) const fn context(&self) -> *mut ibv_context {
        self.context
    }
}

/// # Safety
/// The context is open.
pub(crate) unsafe fn alloc(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: open, as the caller vouches.
    let open = unsafe { OpenDevice::of(context) };
    open.children.add();
    hand_out(Domain {
        verbs: UnsafeCell::new(ibv_pd { context, handle: 0 }),
        context,
        children: Children::new(),
    })
}

/// # Safety
/// The domain is live, and not used again after a success.
pub(crate) unsafe fn dealloc(pd: *mut ibv_pd) -> Result<(), c_int> {
    // SAFETY: live, as the caller vouches.
    let domain: &Domain = unsafe { look_at(pd) };
    domain.children.none()?;
    // SAFETY: a domain's context is open as long as the domain lives: it counts as its child.
    let open = unsafe { OpenDevice::of(domain.context) };
    open.children.remove();
    // SAFETY: nobody uses it any more.
    drop(unsafe { take_back::<Domain>(pd) });
    Ok(())
}
