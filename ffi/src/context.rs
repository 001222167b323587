//! An open device, from which everything else is made.

use core::fmt;
use core::mem::MaybeUninit;
use core::ptr::{self, NonNull};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::sync::Arc;

use doorbell_core::PortReport;
use doorbell_core::port::Name;
use doorbell_core::provider::{AsyncEvent, CompletionQueueConfig, DeviceLimits, OnDemand, ProviderError};

use crate::domain::DomainInner;
use crate::interface::Interface;
use crate::leak::Leaked;
use crate::quirk::Quirks;
use crate::{CompletionQueue, Descriptor, ProtectionDomain, Rdma, clock, dmabuf, errno, events, port};

/// Provider function that posts to a shared receive queue.
pub(crate) type PostShared = unsafe extern "C" fn(
    *mut rdma_sys::ibv_srq,
    *mut rdma_sys::ibv_recv_wr,
    *mut *mut rdma_sys::ibv_recv_wr,
) -> i32;

/// The data-path functions that a device's provider put into its context, looked up once.
#[derive(Clone, Copy)]
pub(crate) struct DataPath {
    pub(crate) post_send: unsafe extern "C" fn(
        *mut rdma_sys::ibv_qp,
        *mut rdma_sys::ibv_send_wr,
        *mut *mut rdma_sys::ibv_send_wr,
    ) -> i32,
    pub(crate) post_recv: unsafe extern "C" fn(
        *mut rdma_sys::ibv_qp,
        *mut rdma_sys::ibv_recv_wr,
        *mut *mut rdma_sys::ibv_recv_wr,
    ) -> i32,
    /// `None` if the device has no shared receive queues.
    pub(crate) post_srq_recv: Option<PostShared>,
    pub(crate) poll_cq: unsafe extern "C" fn(*mut rdma_sys::ibv_cq, i32, *mut rdma_sys::ibv_wc) -> i32,
    pub(crate) req_notify_cq: unsafe extern "C" fn(*mut rdma_sys::ibv_cq, i32) -> i32,
}

/// The device, open as long as anything made from it lives.
pub(crate) struct ContextInner {
    context: NonNull<rdma_sys::ibv_context>,
    name: Name,
    quirks: Quirks,
    limits: DeviceLimits,
    ports: u8,
    /// The NUMA node of the device, if the platform names one.
    numa_node: Option<u16>,
    data_path: DataPath,
    /// Descriptor that is lent to event loops.
    events: Descriptor,
}

// SAFETY: libibverbs may be called from any thread, on any object, at any time
// (rdma-core Documentation/libibverbs.md).
unsafe impl Send for ContextInner {}
// SAFETY: as above.
unsafe impl Sync for ContextInner {}

/// A context that is closed on drop, unless it is forgotten.
struct Opened(NonNull<rdma_sys::ibv_context>);

impl Drop for Opened {
    fn drop(&mut self) {
        close(self.0);
    }
}

#[doc(alias = "ibv_close_device")]
fn close(context: NonNull<rdma_sys::ibv_context>) {
    // SAFETY: opened by `ContextInner::open`, and closed by its one owner. Every object made from it holds an `Arc` of
    // that owner, so no such object is left (ibv_open_device(3)).
    let status = unsafe { rdma_sys::ibv_close_device(context.as_ptr()) };
    if errno::from_value("ibv_close_device", status).is_err() {
        Leaked::Context.count();
    }
}

impl ContextInner {
    /// Opens a device of the list.
    ///
    /// # Safety
    /// `device` is an entry of a device list that has not been freed.
    #[doc(alias = "ibv_open_device")]
    pub(crate) unsafe fn open(
        device: NonNull<rdma_sys::ibv_device>,
        name: Name,
        quirks: Quirks,
        numa_node: Option<u16>,
    ) -> Result<Self, ProviderError> {
        // SAFETY: an entry of a live list, as the caller vouches (ibv_open_device(3)).
        let context = unsafe { rdma_sys::ibv_open_device(device.as_ptr()) };
        let opened = Opened(errno::from_pointer("ibv_open_device", context)?);
        // SAFETY: a field of a live context, written before it was returned.
        let async_fd = unsafe { (*context).async_fd };
        events::set_nonblocking(async_fd)?;
        // SAFETY: open as long as the context, and not used after this function returns.
        let events = Descriptor::new(unsafe { BorrowedFd::borrow_raw(async_fd) })?;
        // SAFETY: as above.
        let data_path = data_path(&unsafe { (*context).ops })?;
        let (mut limits, ports) = query(opened.0)?;
        if !quirks.on_demand {
            limits.on_demand = OnDemand::empty();
        }
        let context = opened.0;
        core::mem::forget(opened);
        Ok(Self {
            context,
            name,
            quirks,
            limits,
            ports,
            numa_node,
            data_path,
            events,
        })
    }

    /// The handle, live as long as `self`.
    pub(crate) const fn as_ptr(&self) -> *mut rdma_sys::ibv_context {
        self.context.as_ptr()
    }

    pub(crate) const fn name(&self) -> &Name {
        &self.name
    }

    pub(crate) const fn quirks(&self) -> &Quirks {
        &self.quirks
    }

    pub(crate) const fn limits(&self) -> &DeviceLimits {
        &self.limits
    }

    pub(crate) const fn data_path(&self) -> &DataPath {
        &self.data_path
    }

    /// The NUMA node of the device, if the platform names one.
    pub(crate) const fn numa_node(&self) -> Option<u16> {
        self.numa_node
    }

    /// How many ports the device has, numbered from 1.
    pub(crate) const fn ports(&self) -> u8 {
        self.ports
    }

    pub(crate) const fn events(&self) -> &Descriptor {
        &self.events
    }
}

fn data_path(ops: &rdma_sys::ibv_context_ops) -> Result<DataPath, ProviderError> {
    let missing = |call| ProviderError {
        call,
        errno: libc::EOPNOTSUPP,
    };
    Ok(DataPath {
        post_send: ops.post_send.ok_or(missing("ibv_post_send"))?,
        post_recv: ops.post_recv.ok_or(missing("ibv_post_recv"))?,
        post_srq_recv: ops.post_srq_recv,
        poll_cq: ops.poll_cq.ok_or(missing("ibv_poll_cq"))?,
        req_notify_cq: ops.req_notify_cq.ok_or(missing("ibv_req_notify_cq"))?,
    })
}

/// Operations whose memory a device can page on demand. The per-operation bits count only if the device has on-demand
/// paging at all.
fn on_demand(capabilities: &rdma_sys::ibv_odp_caps) -> OnDemand {
    let general = rdma_sys::ibv_odp_general_caps::IBV_ODP_SUPPORT.0;
    if capabilities.general_caps & u64::from(general) == 0 {
        return OnDemand::empty();
    }
    OnDemand::from_bits_truncate(capabilities.per_transport_caps.rc_odp_caps)
}

#[doc(alias = "ibv_query_device_ex")]
fn query(context: NonNull<rdma_sys::ibv_context>) -> Result<(DeviceLimits, u8), ProviderError> {
    let mut attributes = MaybeUninit::<rdma_sys::ibv_device_attr_ex>::zeroed();
    // SAFETY: a live context, no input, and a writable structure (ibv_query_device_ex(3)).
    let status =
        unsafe { rdma_sys::ibv_query_device_ex(context.as_ptr(), ptr::null(), attributes.as_mut_ptr()) };
    errno::from_value("ibv_query_device_ex", status)?;
    // SAFETY: integers only, zeroed before the call filled them in.
    let extended = unsafe { attributes.assume_init() };
    let attributes = &extended.orig_attr;
    let count = |value: i32| u32::try_from(value).unwrap_or(0);
    let depth = |value: i32| u8::try_from(value.clamp(0, 255)).unwrap_or(u8::MAX);
    let limits = DeviceLimits {
        queue_depth_max: count(attributes.max_qp_wr),
        shared_receive_depth_max: count(attributes.max_srq_wr),
        shared_segments_max: count(attributes.max_srq_sge),
        completion_depth_max: count(attributes.max_cqe),
        segments_max: count(attributes.max_sge),
        max_rd_atomic: depth(attributes.max_qp_init_rd_atom),
        max_dest_rd_atomic: depth(attributes.max_qp_rd_atom),
        atomics: attributes.atomic_cap != rdma_sys::ibv_atomic_cap::IBV_ATOMIC_NONE,
        on_demand: on_demand(&extended.odp_caps),
    };
    Ok((limits, attributes.phys_port_cnt))
}

/// Whether a device registers dma-bufs.
pub(crate) fn imports_dmabuf(context: &Arc<ContextInner>) -> Result<bool, ProviderError> {
    let lack = dmabuf::lack(&DomainInner::new(context)?)?;
    Ok(lack.is_none())
}

impl Drop for ContextInner {
    fn drop(&mut self) {
        close(self.context);
    }
}

/// An open device.
pub struct Context {
    inner: Arc<ContextInner>,
}

impl Context {
    pub(crate) fn new(inner: ContextInner) -> Self {
        Self {
            inner: Arc::new(inner),
        }
    }

    /// The device's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.inner.name().as_str()
    }

    /// Quirks of this device and release of rdma-core.
    #[must_use]
    pub fn quirks(&self) -> &Quirks {
        self.inner.quirks()
    }

    /// How many ports the device has, numbered from 1.
    #[must_use]
    pub fn ports(&self) -> u8 {
        self.inner.ports()
    }

    /// Whether the device registers dma-bufs ([`ProtectionDomain::register_dmabuf`]). Asks the device, in a temporary
    /// protection domain.
    ///
    /// # Errors
    /// A call failed, so the answer is unknown.
    #[doc(alias = "ibv_reg_dmabuf_mr")]
    pub fn imports_dmabuf(&self) -> Result<bool, ProviderError> {
        imports_dmabuf(&self.inner)
    }
}

impl doorbell_core::Clock for Context {
    #[inline]
    fn now(&self) -> doorbell_core::Instant {
        clock::now()
    }
}

impl doorbell_core::provider::Context<Rdma> for Context {
    fn limits(&self) -> DeviceLimits {
        *self.inner.limits()
    }

    fn protection_domain(&self) -> Result<ProtectionDomain, ProviderError> {
        Ok(ProtectionDomain::new(DomainInner::new(&self.inner)?))
    }

    fn completion_queue(&self, config: &CompletionQueueConfig) -> Result<CompletionQueue, ProviderError> {
        CompletionQueue::new(&self.inner, config)
    }

    fn port(&self, port: u8) -> Result<PortReport, ProviderError> {
        port::report(&self.inner, port, &Interface::all()?)
    }

    fn request_bytes_max(&self, port: u8) -> Result<u32, ProviderError> {
        port::request_bytes_max(&self.inner, port)
    }

    fn event_fd(&self) -> Option<i32> {
        Some(self.inner.events().as_fd().as_raw_fd())
    }

    fn next_event(&self) -> Result<Option<AsyncEvent>, ProviderError> {
        events::next_async(&self.inner)
    }
}

impl AsFd for Context {
    /// The descriptor is readable while an asynchronous event waits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.events().as_fd()
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context({})", self.inner.name())
    }
}
