//! The functions that a libibverbs exports, under their C names.
//!
//! Each function translates its arguments and its way to fail (an errno value, null, or minus one). The work is
//! done in the module it calls. Functions that this fake has no use for are in `unsupported`.

use core::ffi::{c_char, c_int, c_uint, c_void};
use core::ptr;

use libc::ssize_t;
use rdma_sys::{
    __be16, __be64, _compat_ibv_port_attr, ibv_ah, ibv_ah_attr, ibv_async_event, ibv_async_event_element_t,
    ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_device_attr, ibv_event_type, ibv_fork_status,
    ibv_gid, ibv_gid_entry, ibv_mr, ibv_node_type, ibv_pd, ibv_port_attr, ibv_port_state, ibv_qp,
    ibv_qp_attr, ibv_qp_ex, ibv_qp_init_attr, ibv_srq, ibv_srq_attr, ibv_srq_init_attr, ibv_wc_status,
    ibv_wr_opcode,
};

use crate::context::OpenDevice;
use crate::control::{Call, Value};
use crate::copy::Order;
use crate::device::{self, Device};
use crate::dmabuf::Part;
use crate::handle::look_at;
use crate::queue_pair::{self, QueuePair};
use crate::settings::settings;
use crate::{
    address, channel, completion_queue, domain, errno, events, faults, memory, modify, port, shared_receive,
    words,
};

mod unsupported;

/// The bits of a mask that C passes as an int.
const fn bits(mask: c_int) -> u32 {
    u32::from_ne_bytes(mask.to_ne_bytes())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    if let Some(error) = faults::due(Call::GetDeviceList) {
        return errno::null(error);
    }
    let (list, length) = device::list();
    if !count.is_null() {
        // SAFETY: writable where it is not null (ibv_get_device_list(3)).
        unsafe { count.write(c_int::try_from(length).unwrap_or(0)) };
    }
    list
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: a list of ours, freed once (ibv_free_device_list(3)).
    unsafe { device::free_list(list) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    if let Some(error) = faults::due(Call::GetDeviceName) {
        return errno::null(error);
    }
    // SAFETY: a device of the list (ibv_get_device_name(3)).
    unsafe { Device::of(device) }.name()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    // SAFETY: a device of the list (ibv_get_device_index(3)).
    let device = unsafe { Device::of(device) };
    c_int::try_from(device.number()).unwrap_or(-1)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> __be64 {
    // SAFETY: a device of the list (ibv_get_device_guid(3)).
    unsafe { Device::of(device) }.guid()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    if let Some(error) = faults::due(Call::OpenDevice) {
        return errno::null(error);
    }
    // SAFETY: a device of the list (ibv_open_device(3)).
    OpenDevice::open(unsafe { Device::of(device) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    if let Some(error) = faults::due(Call::CloseDevice) {
        return errno::minus_one(error);
    }
    // SAFETY: an open device (ibv_open_device(3)).
    unsafe { OpenDevice::close(context) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int {
    if let Some(error) = faults::due(Call::GetAsyncEvent) {
        return errno::minus_one(error);
    }
    if let Some(number) = faults::take_value(Value::EventType) {
        let odd = ibv_async_event {
            // About nothing, whatever the kind.
            element: ibv_async_event_element_t { qp: ptr::null_mut() },
            event_type: ibv_event_type(number),
        };
        // SAFETY: writable, as the caller vouches (ibv_get_async_event(3)).
        unsafe { event.write(odd) };
        return 0;
    }
    // SAFETY: an open device (ibv_get_async_event(3)).
    match unsafe { events::take(context) } {
        Ok(taken) => {
            // SAFETY: writable, as the caller vouches.
            unsafe { event.write(taken) };
            0
        }
        Err(error) => errno::minus_one(error),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: readable (ibv_get_async_event(3)).
    let event = unsafe { &*event };
    // SAFETY: an event that was taken, acknowledged once, as the caller vouches.
    unsafe { events::acknowledge(event) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_device(context: *mut ibv_context, place: *mut ibv_device_attr) -> c_int {
    if let Some(error) = faults::due(Call::QueryDevice) {
        return error;
    }
    // SAFETY: an open device (ibv_query_device(3)).
    let attributes = unsafe { OpenDevice::of(context) }.device().attributes();
    // SAFETY: writable, as the caller vouches.
    unsafe { place.write(attributes) };
    0
}

/// The older query, which fills in all but what came after it.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port: u8,
    place: *mut _compat_ibv_port_attr,
) -> c_int {
    let bytes = core::mem::offset_of!(ibv_port_attr, port_cap_flags2);
    // SAFETY: the older structure is this much of the newer one.
    unsafe { port::query_extended(context, port, place.cast(), bytes) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid(
    _context: *mut ibv_context,
    port: u8,
    index: c_int,
    place: *mut ibv_gid,
) -> c_int {
    let found = u32::try_from(index).map_err(|_| libc::EINVAL);
    match found.and_then(|index| port::gid(u32::from(port), index)) {
        Ok(entry) => {
            let gid = entry.map_or(ibv_gid { raw: [0; 16] }, |entry| entry.gid);
            // SAFETY: writable (ibv_query_gid(3)).
            unsafe { place.write(gid) };
            0
        }
        Err(error) => errno::minus_one(error),
    }
}

/// Writes an entry as far as the caller knows it.
///
/// # Safety
/// `place` is writable for `bytes`.
unsafe fn write_entry(entry: &ibv_gid_entry, place: *mut u8, bytes: usize) {
    let bytes = bytes.min(size_of::<ibv_gid_entry>());
    // SAFETY: no more than the entry has and the caller has room for.
    unsafe { ptr::copy_nonoverlapping(ptr::from_ref(entry).cast(), place, bytes) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_ex(
    _context: *mut ibv_context,
    port: u32,
    index: u32,
    place: *mut ibv_gid_entry,
    flags: u32,
    entry_bytes: usize,
) -> c_int {
    if flags != 0 {
        return libc::EOPNOTSUPP;
    }
    match port::gid(port, index) {
        Ok(Some(entry)) => {
            // SAFETY: writable for as much as the caller says (ibv_query_gid_ex(3)).
            unsafe { write_entry(&entry, place.cast(), entry_bytes) };
            0
        }
        Ok(None) => libc::ENODATA,
        Err(error) => error,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_table(
    _context: *mut ibv_context,
    places: *mut ibv_gid_entry,
    places_max: usize,
    flags: u32,
    entry_bytes: usize,
) -> ssize_t {
    let fails = |error: c_int| ssize_t::try_from(error.wrapping_neg()).unwrap_or(-1);
    if let Some(error) = faults::due(Call::QueryGidTable) {
        return fails(error);
    }
    if flags != 0 {
        return fails(libc::EOPNOTSUPP);
    }
    let entries = port::gids();
    if entries.len() > places_max {
        return fails(libc::EINVAL);
    }
    let mut place = places.cast::<u8>();
    for entry in &entries {
        // SAFETY: room for as many entries as the caller says, of this size (ibv_query_gid_table(3)).
        unsafe { write_entry(entry, place, entry_bytes) };
        place = place.wrapping_add(entry_bytes);
    }
    ssize_t::try_from(entries.len()).unwrap_or(0)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_pkey(
    _context: *mut ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut __be16,
) -> c_int {
    if (port, index) != (1, 0) {
        return errno::minus_one(libc::EINVAL);
    }
    // SAFETY: writable (ibv_query_pkey(3)).
    unsafe { pkey.write(port::PKEY.to_be()) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_pkey_index(_context: *mut ibv_context, port: u8, pkey: __be16) -> c_int {
    if port == 1 && pkey == port::PKEY.to_be() {
        0
    } else {
        errno::minus_one(libc::EINVAL)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    if let Some(error) = faults::due(Call::AllocPd) {
        return errno::null(error);
    }
    // SAFETY: an open device (ibv_alloc_pd(3)).
    unsafe { domain::alloc(context) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    if let Some(error) = faults::due(Call::DeallocPd) {
        return error;
    }
    // SAFETY: a live domain (ibv_alloc_pd(3)).
    errno::value(unsafe { domain::dealloc(pd) })
}

/// The common part of the three registrations.
///
/// # Safety
/// The domain is live, and the memory stays until it is deregistered (`ibv_reg_mr(3)`).
unsafe fn register(pd: *mut ibv_pd, start: *mut c_void, bytes: usize, iova: u64, access: u32) -> *mut ibv_mr {
    if let Some(error) = faults::due(Call::RegMr) {
        return errno::null(error);
    }
    // SAFETY: the caller's own words.
    match unsafe { memory::register(pd, start, bytes, iova, access) } {
        Ok(mr) => mr,
        Err(error) => errno::null(error),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    start: *mut c_void,
    bytes: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: as `ibv_reg_mr(3)` asks.
    unsafe { register(pd, start, bytes, start.expose_provenance() as u64, bits(access)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    start: *mut c_void,
    bytes: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: as `ibv_reg_mr(3)` asks.
    unsafe { register(pd, start, bytes, iova, bits(access)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    start: *mut c_void,
    bytes: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: as `ibv_reg_mr(3)` asks.
    unsafe { register(pd, start, bytes, iova, access) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    bytes: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    if let Some(error) = faults::due(Call::RegDmabufMr) {
        return errno::null(error);
    }
    let part = Part {
        fd,
        offset,
        bytes,
        iova,
    };
    // SAFETY: a live domain (ibv_reg_mr(3)).
    match unsafe { memory::register_dmabuf(pd, part, bits(access)) } {
        Ok(mr) => mr,
        Err(error) => errno::null(error),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    if let Some(error) = faults::due(Call::DeregMr) {
        return error;
    }
    // SAFETY: live, and not used again (ibv_reg_mr(3)).
    unsafe { memory::deregister(mr) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    if let Some(error) = faults::due(Call::CreateCompChannel) {
        return errno::null(error);
    }
    // SAFETY: an open device (ibv_create_comp_channel(3)).
    unsafe { channel::create(context) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    if let Some(error) = faults::due(Call::DestroyCompChannel) {
        return error;
    }
    // SAFETY: a live channel (ibv_create_comp_channel(3)).
    errno::value(unsafe { channel::destroy(channel) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    depth: c_int,
    user_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    if let Some(error) = faults::due(Call::CreateCq) {
        return errno::null(error);
    }
    // SAFETY: an open device, and a live channel or none (ibv_create_cq(3)).
    match unsafe { completion_queue::create(context, depth, user_context, channel, vector) } {
        Ok(cq) => cq,
        Err(error) => errno::null(error),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    if let Some(error) = faults::due(Call::DestroyCq) {
        return error;
    }
    // SAFETY: a live queue (ibv_create_cq(3)).
    errno::value(unsafe { completion_queue::destroy(cq) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    user_context: *mut *mut c_void,
) -> c_int {
    if let Some(error) = faults::due(Call::GetCqEvent) {
        return errno::minus_one(error);
    }
    // SAFETY: a live channel (ibv_get_cq_event(3)).
    match unsafe { channel::take(channel) } {
        Ok((about, its_context)) => {
            // SAFETY: writable, as the caller vouches.
            unsafe { cq.write(about) };
            // SAFETY: writable, as the caller vouches.
            unsafe { user_context.write(its_context) };
            0
        }
        Err(error) => errno::minus_one(error),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, events: c_uint) {
    // SAFETY: a queue about which events were taken, so a live one (ibv_get_cq_event(3)).
    let queue: &completion_queue::CompletionQueue = unsafe { look_at(cq) };
    queue.notices.acknowledged(events);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_srq(pd: *mut ibv_pd, wanted: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    if let Some(error) = faults::due(Call::CreateSrq) {
        return errno::null(error);
    }
    // SAFETY: readable and writable (ibv_create_srq(3)).
    let wanted = unsafe { &*wanted };
    // SAFETY: a live domain (ibv_create_srq(3)).
    match unsafe { shared_receive::create(pd, wanted) } {
        Ok(srq) => srq,
        Err(error) => errno::null(error),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_srq(srq: *mut ibv_srq, wanted: *mut ibv_srq_attr, mask: c_int) -> c_int {
    if let Some(error) = faults::due(Call::ModifySrq) {
        return error;
    }
    // SAFETY: readable (ibv_modify_srq(3)).
    let wanted = unsafe { &*wanted };
    // SAFETY: a live queue (ibv_modify_srq(3)).
    errno::value(unsafe { shared_receive::modify(srq, wanted, bits(mask)) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, place: *mut ibv_srq_attr) -> c_int {
    // SAFETY: a live queue (ibv_query_srq(3)).
    let attributes = unsafe { shared_receive::query(srq) };
    // SAFETY: writable, as the caller vouches.
    unsafe { place.write(attributes) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    if let Some(error) = faults::due(Call::DestroySrq) {
        return error;
    }
    // SAFETY: a live queue (ibv_create_srq(3)).
    errno::value(unsafe { shared_receive::destroy(srq) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, wanted: *mut ibv_ah_attr) -> *mut ibv_ah {
    if let Some(error) = faults::due(Call::CreateAh) {
        return errno::null(error);
    }
    // SAFETY: readable (ibv_create_ah(3)).
    let wanted = unsafe { &*wanted };
    // SAFETY: a live domain (ibv_create_ah(3)).
    match unsafe { address::create(pd, wanted) } {
        Ok(ah) => ah,
        Err(error) => errno::null(error),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    if let Some(error) = faults::due(Call::DestroyAh) {
        return error;
    }
    // SAFETY: live, and not used again (ibv_create_ah(3)).
    unsafe { address::destroy(ah) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, wanted: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    if let Some(error) = faults::due(Call::CreateQp) {
        return errno::null(error);
    }
    // SAFETY: readable and writable (ibv_create_qp(3)).
    let wanted = unsafe { &mut *wanted };
    // SAFETY: a live domain, and live queues (ibv_create_qp(3)).
    match unsafe { queue_pair::create(pd, wanted) } {
        Ok(qp) => qp,
        Err(error) => errno::null(error),
    }
}

/// No queue pair here is an extended one.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_qp_to_qp_ex(_qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    ptr::null_mut()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, wanted: *mut ibv_qp_attr, mask: c_int) -> c_int {
    if let Some(error) = faults::due(Call::ModifyQp) {
        return error;
    }
    // SAFETY: a live queue pair (ibv_modify_qp(3)).
    let qp: &QueuePair = unsafe { look_at(qp) };
    // SAFETY: readable (ibv_modify_qp(3)).
    let wanted = unsafe { &*wanted };
    errno::value(modify::modify(qp, wanted, bits(mask)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attributes: *mut ibv_qp_attr,
    _mask: c_int,
    made_with: *mut ibv_qp_init_attr,
) -> c_int {
    if let Some(error) = faults::due(Call::QueryQp) {
        return error;
    }
    // SAFETY: a live queue pair and two writable structures (ibv_query_qp(3)).
    unsafe { queue_pair::query(qp, attributes, made_with) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp_data_in_order(
    _qp: *mut ibv_qp,
    operation: ibv_wr_opcode,
    _flags: u32,
) -> c_int {
    if let Some(error) = faults::due(Call::QueryQpDataInOrder) {
        // It promises nothing then, and has no other way to say so.
        errno::set(error);
        return 0;
    }
    let writes = matches!(
        operation,
        ibv_wr_opcode::IBV_WR_RDMA_WRITE | ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM
    );
    // One says yes, and it is the bit for whole messages where capabilities are asked for.
    c_int::from(writes && settings().order == Order::Ascending)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    if let Some(error) = faults::due(Call::DestroyQp) {
        return error;
    }
    // SAFETY: live, and not used again (ibv_create_qp(3)).
    unsafe { queue_pair::destroy(qp) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_fork_init() -> c_int {
    if let Some(error) = faults::due(Call::ForkInit) {
        return error;
    }
    memory::ask_for_children()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_is_fork_initialized() -> ibv_fork_status {
    memory::children()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_wc_status_str(status: ibv_wc_status) -> *const c_char {
    words::status(status.0)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_node_type_str(node_type: ibv_node_type) -> *const c_char {
    words::node_type(u32::try_from(node_type.0).unwrap_or(u32::MAX))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_port_state_str(port_state: ibv_port_state) -> *const c_char {
    words::port_state(port_state.0)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_event_type_str(event: ibv_event_type) -> *const c_char {
    words::event(event.0)
}

#[cfg(test)]
mod tests;
