//! An open device, in the shape that libibverbs gives it: the plain context at the end of the
//! extended one.

use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::mem::offset_of;
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering};

use rdma_sys::{ibv_async_event, ibv_context, verbs_context};

use crate::control::Without;
use crate::device::{self, Device};
use crate::signal::Signal;
use crate::{completion_queue, errno, faults, port, receive, send, shared_receive};

/// Value of `abi_compat` in a context that has the extended part (`__VERBS_ABI_IS_EXTENDED` in C).
const EXTENDED: usize = usize::MAX;

/// From the start of the whole to the context that the caller knows.
const OFFSET: usize = offset_of!(OpenDevice, verbs).wrapping_add(offset_of!(verbs_context, context));

#[repr(C)]
pub(crate) struct OpenDevice {
    verbs: UnsafeCell<verbs_context>,
    device: &'static Device,
    pub(crate) events: Signal<ibv_async_event>,
    pub(crate) children: Children,
    /// Whether it registers dma-bufs.
    pub(crate) imports_dmabufs: bool,
    /// Whether it pages memory on demand.
    pub(crate) pages_on_demand: bool,
}

impl OpenDevice {
    /// Opens a device; null, with errno, where there is no descriptor left for its events.
    pub(crate) fn open(device: &'static Device) -> *mut ibv_context {
        let Some(events) = Signal::new() else {
            return ptr::null_mut();
        };
        // SAFETY: integers, pointers, optional function pointers and a lock of which zero bytes are the
        // initial value (PTHREAD_MUTEX_INITIALIZER).
        let mut verbs: verbs_context = unsafe { core::mem::zeroed() };
        verbs.sz = size_of::<verbs_context>();
        verbs.query_port = Some(port::query_extended);
        verbs.query_device_ex = Some(device::query_extended);
        let context = &mut verbs.context;
        context.device = device.as_ptr();
        context.cmd_fd = -1;
        context.async_fd = events.fd();
        context.num_comp_vectors = 1;
        context.abi_compat = ptr::without_provenance_mut(EXTENDED);
        context.ops.post_send = Some(send::post_send);
        context.ops.post_recv = Some(receive::post_recv);
        context.ops.post_srq_recv = Some(shared_receive::post_srq_recv);
        context.ops.poll_cq = Some(completion_queue::poll_cq);
        context.ops.req_notify_cq = Some(completion_queue::req_notify_cq);
        leave_out(&mut verbs);
        let whole = Box::into_raw(Box::new(Self {
            verbs: UnsafeCell::new(verbs),
            device,
            events,
            children: Children::new(),
            imports_dmabufs: !faults::is_lacking(Without::Dmabuf),
            pages_on_demand: !faults::is_lacking(Without::OnDemand),
        }));
        whole.wrapping_byte_add(OFFSET).cast()
    }

    /// The open device behind a context.
    ///
    /// # Safety
    /// [`Self::open`] gave the pointer, and [`Self::close`] does not get it during `'a`.
    pub(crate) unsafe fn of<'a>(context: *mut ibv_context) -> &'a Self {
        // SAFETY: a live box, of which the context is a part at this offset.
        unsafe { &*context.wrapping_byte_sub(OFFSET).cast::<Self>() }
    }

    /// Closes it; an errno value.
    ///
    /// # Safety
    /// [`Self::open`] gave the pointer, and it is not used again after a success.
    pub(crate) unsafe fn close(context: *mut ibv_context) -> c_int {
        // SAFETY: live, as the caller vouches.
        let open = unsafe { Self::of(context) };
        if let Err(busy) = open.children.none() {
            return errno::minus_one(busy);
        }
        let whole = context.wrapping_byte_sub(OFFSET).cast::<Self>();
        // SAFETY: made from a box in `open`, and closed once, as the caller vouches.
        drop(unsafe { Box::from_raw(whole) });
        0
    }

    pub(crate) const fn device(&self) -> &'static Device {
        self.device
    }
}

/// Leaves out what a test wants to be missing.
fn leave_out(verbs: &mut verbs_context) {
    let without = |what| faults::is_lacking(what);
    if without(Without::QueryPort) {
        // The fields lie in the order in which they came, the oldest last: this one is not yet there.
        verbs.sz = size_of::<verbs_context>()
            .wrapping_sub(offset_of!(verbs_context, query_port))
            .wrapping_sub(size_of_val(&verbs.query_port));
    }
    let context = &mut verbs.context;
    if without(Without::Extension) {
        context.abi_compat = ptr::null_mut();
    }
    let ops = &mut context.ops;
    if without(Without::PostSend) {
        ops.post_send = None;
    }
    if without(Without::PostRecv) {
        ops.post_recv = None;
    }
    if without(Without::PostSrqRecv) {
        ops.post_srq_recv = None;
    }
    if without(Without::PollCq) {
        ops.poll_cq = None;
    }
    if without(Without::ReqNotifyCq) {
        ops.req_notify_cq = None;
    }
}

/// How many objects were made from one, which therefore must stay.
pub(crate) struct Children(AtomicUsize);

impl Children {
    pub(crate) const fn new() -> Self {
        Self(AtomicUsize::new(0))
    }

    pub(crate) fn add(&self) {
        // Relaxed here and below: a program that destroys an object knows by other means that nobody uses it.
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn remove(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// # Errors
    /// `EBUSY` while there are some.
    pub(crate) fn none(&self) -> Result<(), c_int> {
        if self.0.load(Ordering::Relaxed) == 0 {
            Ok(())
        } else {
            Err(libc::EBUSY)
        }
    }
}
