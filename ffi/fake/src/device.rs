//! The devices there are: their list, names and limits.

use core::cell::UnsafeCell;
use core::ffi::{c_char, c_int};
use core::ptr;
use std::sync::OnceLock;

use rdma_sys::{
    ibv_atomic_cap, ibv_context, ibv_device, ibv_device_attr, ibv_device_attr_ex, ibv_node_type,
    ibv_odp_general_caps, ibv_query_device_ex_input, ibv_transport_type,
};

use crate::context::OpenDevice;
use crate::control::{Call, Value};
use crate::faults;
use crate::settings::settings;

/// How many elements a request has at most.
pub(crate) const SEGMENTS_MAX: u32 = 8;
/// How many bytes a request carries inline at most.
pub(crate) const INLINE_BYTES_MAX: u32 = 256;
/// How many requests a queue holds at most.
pub(crate) const QUEUE_DEPTH_MAX: u32 = 1 << 14;
/// How many completions a completion queue holds at most.
pub(crate) const COMPLETIONS_MAX: u32 = 1 << 18;
/// How many READs and atomics a queue pair has under way at most.
pub(crate) const RD_ATOMIC_MAX: u8 = 16;
/// The largest message, in bytes.
pub(crate) const MESSAGE_BYTES_MAX: u64 = 1 << 31;

/// A device: what `ibv_get_device_list` lists.
#[repr(C)]
pub(crate) struct Device {
    verbs: UnsafeCell<ibv_device>,
    number: u32,
}

// SAFETY: written before it is shared; a caller only reads it (ibv_get_device_list(3)).
unsafe impl Sync for Device {}
// SAFETY: plain data and function pointers of which none is set.
unsafe impl Send for Device {}

impl Device {
    fn new(number: u32) -> Self {
        // SAFETY: integers, integer newtypes and optional function pointers, for which zero bytes are a value.
        let mut verbs: ibv_device = unsafe { core::mem::zeroed() };
        verbs.node_type = ibv_node_type::IBV_NODE_CA;
        verbs.transport_type = ibv_transport_type::IBV_TRANSPORT_IB;
        write_text(&mut verbs.name, &format!("fake{number}"));
        write_text(&mut verbs.dev_name, &format!("uverbs_fake{number}"));
        Self {
            verbs: UnsafeCell::new(verbs),
            number,
        }
    }

    /// The device behind a pointer of the list.
    ///
    /// # Safety
    /// [`list`] gave the pointer.
    pub(crate) unsafe fn of(device: *mut ibv_device) -> &'static Self {
        // SAFETY: devices live as long as the process, and the structure is their first field.
        unsafe { &*device.cast::<Self>() }
    }

    pub(crate) const fn as_ptr(&self) -> *mut ibv_device {
        self.verbs.get()
    }

    pub(crate) fn name(&self) -> *const c_char {
        // SAFETY: a field of a structure that is written no more; no reference is formed.
        unsafe { (&raw const (*self.as_ptr()).name).cast() }
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Whether its port is down.
    pub(crate) fn is_down(&self) -> bool {
        let up = settings().devices.saturating_sub(settings().down);
        self.number as usize >= up
    }

    /// A GUID that is administered locally, in network byte order.
    pub(crate) fn guid(&self) -> u64 {
        (0x0200_00ff_fe00_0000 | u64::from(self.number)).to_be()
    }

    /// Its attributes, as `ibv_query_device(3)` returns them.
    pub(crate) fn attributes(&self) -> ibv_device_attr {
        // SAFETY: integers and integer newtypes only, for which zero bytes are a value.
        let mut attributes: ibv_device_attr = unsafe { core::mem::zeroed() };
        let count = |value: u32| c_int::try_from(value).unwrap_or(c_int::MAX);
        write_text(&mut attributes.fw_ver, "fake");
        attributes.node_guid = self.guid();
        attributes.sys_image_guid = self.guid();
        attributes.max_mr_size = u64::MAX;
        attributes.page_size_cap = 0xffff_f000;
        attributes.max_qp = count(crate::registry::CORES_MAX);
        attributes.max_qp_wr = count(QUEUE_DEPTH_MAX);
        attributes.max_sge = count(SEGMENTS_MAX);
        attributes.max_sge_rd = count(SEGMENTS_MAX);
        attributes.max_cq = count(u32::from(u16::MAX));
        attributes.max_cqe = count(COMPLETIONS_MAX);
        attributes.max_mr = count(crate::memory::REGIONS_MAX);
        attributes.max_pd = count(u32::from(u16::MAX));
        attributes.max_qp_rd_atom = c_int::from(RD_ATOMIC_MAX);
        attributes.max_qp_init_rd_atom = c_int::from(RD_ATOMIC_MAX);
        attributes.max_res_rd_atom = count(crate::registry::CORES_MAX);
        attributes.atomic_cap = ibv_atomic_cap::IBV_ATOMIC_GLOB;
        attributes.max_srq = count(u32::from(u16::MAX));
        attributes.max_srq_wr = count(QUEUE_DEPTH_MAX);
        attributes.max_srq_sge = count(SEGMENTS_MAX);
        attributes.max_pkeys = 1;
        attributes.phys_port_cnt = u8::try_from(faults::value(Value::PhysPortCnt, 1)).unwrap_or(0);
        attributes
    }
}

/// Puts a text into an array of C characters, cut so that a NUL follows it.
fn write_text(place: &mut [c_char], text: &str) {
    let room = place.len().saturating_sub(1);
    for (place, byte) in place.iter_mut().take(room).zip(text.bytes()) {
        *place = c_char::from_ne_bytes([byte]);
    }
}

/// Operations of connections whose memory is paged on demand: SEND, receive, WRITE, READ, atomics.
const ON_DEMAND: u32 = 0x1f;

/// The operation behind `ibv_query_device_ex`, in the extended context.
pub(crate) unsafe extern "C" fn query_extended(
    context: *mut ibv_context,
    _input: *const ibv_query_device_ex_input,
    place: *mut ibv_device_attr_ex,
    bytes: usize,
) -> c_int {
    if let Some(error) = faults::due(Call::QueryDevice) {
        return error;
    }
    // SAFETY: integers and integer newtypes only, for which zero bytes are a value.
    let mut attributes: ibv_device_attr_ex = unsafe { core::mem::zeroed() };
    // SAFETY: an open device's, as callers of verbs vouch (ibv_query_device_ex(3)).
    let open = unsafe { OpenDevice::of(context) };
    attributes.orig_attr = open.device().attributes();
    if open.pages_on_demand {
        attributes.odp_caps.general_caps = u64::from(ibv_odp_general_caps::IBV_ODP_SUPPORT.0);
        attributes.odp_caps.per_transport_caps.rc_odp_caps = faults::value(Value::RcOdpCaps, ON_DEMAND);
    }
    let bytes = bytes.min(size_of::<ibv_device_attr_ex>());
    // SAFETY: the caller has room for the bytes it says (verbs_context.query_device_ex).
    unsafe { core::ptr::copy_nonoverlapping((&raw const attributes).cast::<u8>(), place.cast(), bytes) };
    0
}

fn all() -> &'static [Device] {
    static DEVICES: OnceLock<Vec<Device>> = OnceLock::new();
    DEVICES.get_or_init(|| {
        let count = u32::try_from(settings().devices).unwrap_or(0);
        (0..count).map(Device::new).collect()
    })
}

/// An array of pointers to all devices, ended by null, and how many there are.
pub(crate) fn list() -> (*mut *mut ibv_device, usize) {
    let mut pointers: Vec<_> = all().iter().map(Device::as_ptr).collect();
    let count = pointers.len();
    pointers.push(ptr::null_mut());
    (Box::into_raw(pointers.into_boxed_slice()).cast(), count)
}

/// Frees such an array.
///
/// # Safety
/// [`list`] gave it, and it is freed once.
pub(crate) unsafe fn free_list(list: *mut *mut ibv_device) {
    if list.is_null() {
        return;
    }
    // The devices never change, so neither does the length.
    let length = all().len().wrapping_add(1);
    let slice = ptr::slice_from_raw_parts_mut(list, length);
    // SAFETY: made from a box of a slice of this length.
    drop(unsafe { Box::from_raw(slice) });
}
