//! The loop by hand on the raw bindings, as a careful C program has it: requests and elements in arrays
//! that are linked once, buffers in a ring, nothing checked twice.

use core::mem::MaybeUninit;
use core::ptr::{self, NonNull};

use rdma_sys::{
    ibv_access_flags, ibv_context, ibv_cq, ibv_mr, ibv_mtu, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask as mask,
    ibv_qp_cap, ibv_qp_init_attr, ibv_qp_state, ibv_qp_type, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wc,
    ibv_wc_status, ibv_wr_opcode,
};

use crate::{DEPTH, Failure, MESSAGE_BYTES, SELDOM};

/// How many completions one call takes at most, as in `ffi`.
pub(crate) const POLL_MAX: i32 = 16;

/// A queue pair with its completion queue, and the arrays that a program posts from.
struct End {
    qp: *mut ibv_qp,
    cq: *mut ibv_cq,
    requests: *mut ibv_send_wr,
    elements: *mut ibv_sge,
    completions: *mut ibv_wc,
    buffers: u64,
    lkey: u32,
}

/// Posts so many batches; says how many messages were taken back.
pub(crate) fn run(batch: u32, batches: u32) -> Result<u64, Failure> {
    let mut end = end()?;
    link(&end, batch);
    Ok(measured_by_hand(&mut end, batch, batches))
}

/// A queue pair that delivers nothing, with what is posted from.
fn end() -> Result<End, Failure> {
    // The process ends after this: what is made here is left to it.
    let context = open()?;
    let (qp, cq, mr) = make(context)?;
    connect(qp, doorbell_fake::NULL_QPN)?;
    // SAFETY: registered just before, with its keys set.
    let mr = unsafe { &*mr };
    Ok(End {
        qp,
        cq,
        requests: array(DEPTH),
        elements: array(DEPTH),
        completions: array(DEPTH),
        buffers: mr.addr.expose_provenance() as u64,
        lkey: mr.lkey,
    })
}

/// Posts so many messages, each by itself, of which one in [`SELDOM`] is signaled; says how many were taken back.
pub(crate) fn run_seldom(messages: u32) -> Result<u64, Failure> {
    let mut end = end()?;
    link(&end, 1);
    Ok(measured_by_hand_seldom(&mut end, messages))
}

/// An array of zeroed structures, there until the process ends.
pub(crate) fn array<T>(length: u32) -> *mut T {
    let places = (0..length).map(|_| MaybeUninit::<T>::zeroed());
    Box::leak(places.collect::<Vec<_>>().into_boxed_slice())
        .as_mut_ptr()
        .cast()
}

fn found<T>(call: &str, pointer: *mut T) -> Result<*mut T, Failure> {
    NonNull::new(pointer)
        .map(NonNull::as_ptr)
        .ok_or_else(|| Failure(format!("{call}: {}", std::io::Error::last_os_error())))
}

pub(crate) fn open() -> Result<*mut ibv_context, Failure> {
    // SAFETY: null is allowed for the count (ibv_get_device_list(3)).
    let list = found("ibv_get_device_list", unsafe {
        rdma_sys::ibv_get_device_list(ptr::null_mut())
    })?;
    // SAFETY: the list has one entry at least, the one that ends it.
    let device = found("the first device", unsafe { list.read() })?;
    // SAFETY: a device of the list, which is not freed.
    found("ibv_open_device", unsafe { rdma_sys::ibv_open_device(device) })
}

pub(crate) fn make(context: *mut ibv_context) -> Result<(*mut ibv_qp, *mut ibv_cq, *mut ibv_mr), Failure> {
    let depth = i32::try_from(DEPTH).map_err(Failure::new)?;
    // SAFETY: an open device.
    let pd = found("ibv_alloc_pd", unsafe { rdma_sys::ibv_alloc_pd(context) })?;
    // SAFETY: an open device, no channel.
    let cq = found("ibv_create_cq", unsafe {
        rdma_sys::ibv_create_cq(context, depth, ptr::null_mut(), ptr::null_mut(), 0)
    })?;
    let mut wanted = ibv_qp_init_attr {
        qp_context: ptr::null_mut(),
        send_cq: cq,
        recv_cq: cq,
        srq: ptr::null_mut(),
        cap: ibv_qp_cap {
            max_send_wr: DEPTH,
            max_recv_wr: DEPTH,
            max_send_sge: 4,
            max_recv_sge: 1,
            max_inline_data: 0,
        },
        qp_type: ibv_qp_type::IBV_QPT_RC,
        sq_sig_all: 0,
    };
    // SAFETY: a live domain, a live completion queue, a writable structure.
    let qp = found("ibv_create_qp", unsafe {
        rdma_sys::ibv_create_qp(pd, &raw mut wanted)
    })?;
    let bytes = (DEPTH as usize).saturating_mul(MESSAGE_BYTES as usize);
    let memory = Box::leak(vec![0_u8; bytes].into_boxed_slice()).as_mut_ptr();
    let access = i32::try_from(ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0).map_err(Failure::new)?;
    // SAFETY: a live domain, and memory that stays until the process ends.
    let mr = found("ibv_reg_mr", unsafe {
        rdma_sys::ibv_reg_mr(pd, memory.cast(), bytes, access)
    })?;
    Ok((qp, cq, mr))
}

/// Brings the queue pair to RTS, with this one at the other end.
pub(crate) fn connect(qp: *mut ibv_qp, peer: u32) -> Result<(), Failure> {
    // SAFETY: integers and integer newtypes only, for which zero bytes are a value.
    let mut attributes: ibv_qp_attr = unsafe { core::mem::zeroed() };
    attributes.port_num = 1;
    attributes.path_mtu = ibv_mtu::IBV_MTU_1024;
    attributes.dest_qp_num = peer;
    attributes.max_dest_rd_atomic = 1;
    attributes.max_rd_atomic = 1;
    attributes.min_rnr_timer = 12;
    attributes.timeout = 14;
    attributes.retry_cnt = 6;
    attributes.rnr_retry = 7;
    attributes.ah_attr.is_global = 1;
    attributes.ah_attr.port_num = 1;
    let to_init = mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT | mask::IBV_QP_ACCESS_FLAGS;
    let to_receive = mask::IBV_QP_AV
        | mask::IBV_QP_PATH_MTU
        | mask::IBV_QP_DEST_QPN
        | mask::IBV_QP_RQ_PSN
        | mask::IBV_QP_MAX_DEST_RD_ATOMIC
        | mask::IBV_QP_MIN_RNR_TIMER;
    let to_send = mask::IBV_QP_SQ_PSN
        | mask::IBV_QP_MAX_QP_RD_ATOMIC
        | mask::IBV_QP_RETRY_CNT
        | mask::IBV_QP_RNR_RETRY
        | mask::IBV_QP_TIMEOUT;
    for (state, given) in [
        (ibv_qp_state::IBV_QPS_INIT, to_init),
        (ibv_qp_state::IBV_QPS_RTR, to_receive),
        (ibv_qp_state::IBV_QPS_RTS, to_send),
    ] {
        attributes.qp_state = state;
        let given = i32::try_from((given | mask::IBV_QP_STATE).0).map_err(Failure::new)?;
        // SAFETY: a live queue pair, and every attribute of the mask is set.
        let status = unsafe { rdma_sys::ibv_modify_qp(qp, &raw mut attributes, given) };
        if status != 0 {
            return Err(Failure(format!("ibv_modify_qp to {state:?}: {status}")));
        }
    }
    Ok(())
}

/// Writes the fields that are equal in every batch: the links, the places of the elements, and how many a request
/// has.
fn link(end: &End, batch: u32) {
    for index in 0..batch as usize {
        let request = end.requests.wrapping_add(index);
        let last = index.wrapping_add(1) == batch as usize;
        let next = if last {
            ptr::null_mut()
        } else {
            request.wrapping_add(1)
        };
        // SAFETY: a place of the array, whose depth no batch exceeds.
        unsafe { (*request).next = next };
        // SAFETY: as above.
        unsafe { (*request).sg_list = end.elements.wrapping_add(index) };
        // SAFETY: as above.
        unsafe { (*request).num_sge = 1 };
    }
}

/// Writes a request of the next buffer, and its element.
///
/// # Safety
/// Both are places of the arrays of `end`.
#[inline(always)]
unsafe fn write(
    end: &End,
    (request, element): (*mut ibv_send_wr, *mut ibv_sge),
    posted: u64,
    is_signaled: bool,
) {
    let place = posted & u64::from(DEPTH).wrapping_sub(1);
    let filled = ibv_sge {
        addr: end
            .buffers
            .wrapping_add(place.wrapping_mul(u64::from(MESSAGE_BYTES))),
        length: MESSAGE_BYTES,
        lkey: end.lkey,
    };
    let flags = if is_signaled {
        ibv_send_flags::IBV_SEND_SIGNALED.0
    } else {
        0
    };
    // SAFETY: a place of the array, which the caller vouches for.
    unsafe { element.write(filled) };
    // SAFETY: as above.
    unsafe { (*request).wr_id = posted };
    // SAFETY: as above.
    unsafe { (*request).opcode = ibv_wr_opcode::IBV_WR_SEND };
    // SAFETY: as above.
    unsafe { (*request).send_flags = flags };
}

/// Polls once, and notes what is done. Returns `false` if the queue or a request failed.
#[inline(always)]
fn take(end: &End, done: &mut u64) -> bool {
    // SAFETY: a live completion queue, and room for as many (ibv_poll_cq(3)).
    let count = unsafe { rdma_sys::ibv_poll_cq(end.cq, POLL_MAX, end.completions) };
    if count < 0 {
        return false;
    }
    let mut completion = end.completions;
    for _ in 0..count {
        // SAFETY: written by the call above.
        if unsafe { (*completion).status } != ibv_wc_status::IBV_WC_SUCCESS {
            return false;
        }
        // SAFETY: as above. All up to it are done.
        *done = unsafe { (*completion).wr_id }.wrapping_add(1);
        completion = completion.wrapping_add(1);
    }
    true
}

/// The loop whose instructions are counted.
#[inline(never)]
fn measured_by_hand(end: &mut End, batch: u32, batches: u32) -> u64 {
    let (mut posted, mut done) = (0_u64, 0_u64);
    for _ in 0..batches {
        let (mut request, mut element) = (end.requests, end.elements);
        for left in (0..batch).rev() {
            // SAFETY: places of the arrays, whose depth no batch exceeds.
            unsafe { write(end, (request, element), posted, left == 0) };
            (request, element) = (request.wrapping_add(1), element.wrapping_add(1));
            posted = posted.wrapping_add(1);
        }
        let mut refused = ptr::null_mut();
        // SAFETY: a live queue pair, and a list that ends; its memory is registered (ibv_post_send(3)).
        if unsafe { rdma_sys::ibv_post_send(end.qp, end.requests, &raw mut refused) } != 0 {
            return done;
        }
        while done != posted {
            if !take(end, &mut done) {
                return done;
            }
        }
    }
    done
}

/// The loop by single messages whose instructions are counted.
#[inline(never)]
fn measured_by_hand_seldom(end: &mut End, messages: u32) -> u64 {
    let (request, element) = (end.requests, end.elements);
    let (mut posted, mut done) = (0_u64, 0_u64);
    for _ in 0..messages {
        let is_signaled = posted % u64::from(SELDOM) == u64::from(SELDOM - 1);
        // SAFETY: places of the arrays.
        unsafe { write(end, (request, element), posted, is_signaled) };
        let mut refused = ptr::null_mut();
        // SAFETY: a live queue pair, and a request by itself; its memory is registered (ibv_post_send(3)).
        if unsafe { rdma_sys::ibv_post_send(end.qp, request, &raw mut refused) } != 0 {
            return done;
        }
        posted = posted.wrapping_add(1);
        while is_signaled && done != posted {
            if !take(end, &mut done) {
                return done;
            }
        }
    }
    done
}
