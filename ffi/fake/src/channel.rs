//! Completion channels: a descriptor that is readable while an event of a completion queue waits.

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::ptr;

use rdma_sys::{ibv_comp_channel, ibv_context, ibv_cq};

use crate::completion_queue::CompletionQueue;
use crate::context::{Children, OpenDevice};
use crate::handle::{Handle, hand_out, look_at, take_back};
use crate::signal::Signal;

#[repr(C)]
pub(crate) struct Channel {
    verbs: UnsafeCell<ibv_comp_channel>,
    context: *mut ibv_context,
    pub(crate) children: Children,
    pub(crate) events: Signal<*mut ibv_cq>,
}

// SAFETY: `repr(C)`, and the structure comes first.
unsafe impl Handle for Channel {
    type Verbs = ibv_comp_channel;
}

impl Channel {
    pub(crate) const fn context(&self) -> *mut ibv_context {
        self.context
    }
}

/// Makes a channel; null, with errno, where there is no descriptor left.
///
/// # Safety
/// The context is open.
pub(crate) unsafe fn create(context: *mut ibv_context) -> *mut ibv_comp_channel {
    let Some(events) = Signal::new() else {
        return ptr::null_mut();
    };
    // SAFETY: open, as the caller vouches.
    let open = unsafe { OpenDevice::of(context) };
    open.children.add();
    hand_out(Channel {
        verbs: UnsafeCell::new(ibv_comp_channel {
            context,
            fd: events.fd(),
            refcnt: 0,
        }),
        context,
        children: Children::new(),
        events,
    })
}

/// # Errors
/// `EBUSY` while a completion queue uses it.
///
/// # Safety
/// The channel is live, and not used again after a success.
pub(crate) unsafe fn destroy(channel: *mut ibv_comp_channel) -> Result<(), c_int> {
    // SAFETY: live, as the caller vouches.
    let live: &Channel = unsafe { look_at(channel) };
    live.children.none()?;
    // SAFETY: a channel's context is open as long as the channel: it counts as its child.
    unsafe { OpenDevice::of(live.context) }.children.remove();
    // SAFETY: nobody uses it any more.
    drop(unsafe { take_back::<Channel>(channel) });
    Ok(())
}

/// Takes the next event: which queue it is about, and that queue's context pointer.
///
/// # Errors
/// An errno value.
///
/// # Safety
/// The channel is live.
pub(crate) unsafe fn take(channel: *mut ibv_comp_channel) -> Result<(*mut ibv_cq, *mut c_void), c_int> {
    // SAFETY: live, as the caller vouches.
    let channel: &Channel = unsafe { look_at(channel) };
    let cq = channel.events.take(|cq| {
        // SAFETY: a queue that ends withdraws its events first, which this closure goes before.
        unsafe { look_at::<CompletionQueue>(*cq) }.notices.taken();
    })?;
    // SAFETY: live until the event is acknowledged.
    let queue: &CompletionQueue = unsafe { look_at(cq) };
    Ok((cq, queue.user_context()))
}
