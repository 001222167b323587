//! Receiving by hand on the raw bindings. Requests and elements stand in arrays that are linked once. Each is written anew as it is
//! posted, a chunk of them at a time. A word of each message is read.

use core::hint::black_box;
use core::ptr;

use rdma_sys::{
    ibv_cq, ibv_qp, ibv_recv_wr, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wc, ibv_wc_opcode, ibv_wc_status,
    ibv_wr_opcode,
};

use crate::by_hand::{POLL_MAX, array, connect, make, open};
use crate::{DEPTH, Failure, MESSAGE_BYTES};

/// How many receives are posted with one call: as many as channels do by default.
const CHUNK: u32 = 16;

/// The end that receives.
struct End {
    qp: *mut ibv_qp,
    cq: *mut ibv_cq,
    requests: *mut ibv_recv_wr,
    elements: *mut ibv_sge,
    completions: *mut ibv_wc,
    buffers: *mut u8,
    lkey: u32,
    /// How many receives were written, and posted.
    written: u64,
    posted: u64,
}

/// Receives so many batches; says how many messages came.
pub(crate) fn run(batch: u32, batches: u32) -> Result<u64, Failure> {
    // The process ends after this: what is made here is left to it.
    let context = open()?;
    let (sender, sent, mr) = make(context)?;
    let (qp, cq, our_mr) = make(context)?;
    // SAFETY: a live queue pair, whose number is set.
    connect(sender, unsafe { (*qp).qp_num })?;
    // SAFETY: as above.
    connect(qp, unsafe { (*sender).qp_num })?;
    // SAFETY: registered just before, with its keys set.
    let mr = unsafe { &*mr };
    // SAFETY: as above.
    let our_mr = unsafe { &*our_mr };
    let mut end = End {
        qp,
        cq,
        requests: array(CHUNK),
        elements: array(CHUNK),
        completions: array(DEPTH),
        buffers: our_mr.addr.cast(),
        lkey: our_mr.lkey,
        written: 0,
        posted: 0,
    };
    link(&end);
    for _ in 0..DEPTH {
        post_next(&mut end)?;
    }
    let mut from = ibv_sge {
        addr: mr.addr.expose_provenance() as u64,
        length: MESSAGE_BYTES,
        lkey: mr.lkey,
    };
    let mut taken = 0;
    for _ in 0..batches {
        for _ in 0..batch {
            send(sender, sent, &mut from)?;
        }
        taken += measured_by_hand_receiving(&mut end, batch)?;
    }
    Ok(taken)
}

/// Writes the fields that are equal in every chunk.
fn link(end: &End) {
    for index in 0..CHUNK as usize {
        let request = end.requests.wrapping_add(index);
        let last = index.wrapping_add(1) == CHUNK as usize;
        let next = if last {
            ptr::null_mut()
        } else {
            request.wrapping_add(1)
        };
        // SAFETY: a place of the array.
        unsafe { (*request).next = next };
        // SAFETY: as above.
        unsafe { (*request).sg_list = end.elements.wrapping_add(index) };
        // SAFETY: as above.
        unsafe { (*request).num_sge = 1 };
    }
}

/// Writes the next receive, and posts the chunk that it is the last of.
#[inline(always)]
fn post_next(end: &mut End) -> Result<(), Failure> {
    let index = (end.written & u64::from(CHUNK.wrapping_sub(1))) as usize;
    let place = end.written & u64::from(DEPTH.wrapping_sub(1));
    let filled = ibv_sge {
        addr: (end.buffers.expose_provenance() as u64)
            .wrapping_add(place.wrapping_mul(u64::from(MESSAGE_BYTES))),
        length: MESSAGE_BYTES,
        lkey: end.lkey,
    };
    // SAFETY: a place of the array.
    unsafe { end.elements.wrapping_add(index).write(filled) };
    // SAFETY: as above.
    unsafe { (*end.requests.wrapping_add(index)).wr_id = end.written };
    end.written = end.written.wrapping_add(1);
    if end.written.wrapping_sub(end.posted) < u64::from(CHUNK) {
        return Ok(());
    }
    let mut refused = ptr::null_mut();
    // SAFETY: a live queue pair, and a list that ends; its memory is registered (ibv_post_recv(3)).
    if unsafe { rdma_sys::ibv_post_recv(end.qp, end.requests, &raw mut refused) } != 0 {
        return Err(Failure::new("a receive was refused"));
    }
    end.posted = end.written;
    Ok(())
}

/// The loop whose instructions are counted.
#[inline(never)]
fn measured_by_hand_receiving(end: &mut End, batch: u32) -> Result<u64, Failure> {
    let (mut taken, mut sum) = (0_u64, 0_u64);
    while taken < u64::from(batch) {
        // SAFETY: a live completion queue, and room for as many (ibv_poll_cq(3)).
        let count = unsafe { rdma_sys::ibv_poll_cq(end.cq, POLL_MAX, end.completions) };
        if count < 0 {
            return Err(Failure::new("the queue cannot be polled"));
        }
        let mut completion = end.completions;
        for _ in 0..count {
            // SAFETY: written by the call above.
            let came = unsafe { &*completion };
            if came.status != ibv_wc_status::IBV_WC_SUCCESS || came.opcode != ibv_wc_opcode::IBV_WC_RECV {
                return Err(Failure::new("a receive failed"));
            }
            let place = (came.wr_id & u64::from(DEPTH.wrapping_sub(1))) as usize;
            let message = end
                .buffers
                .wrapping_add(place.wrapping_mul(MESSAGE_BYTES as usize));
            if came.byte_len >= 8 {
                // SAFETY: memory of a receive that has ended, with that many bytes.
                sum = sum.wrapping_add(unsafe { message.cast::<u64>().read() });
            }
            taken = taken.wrapping_add(1);
            post_next(end)?;
            completion = completion.wrapping_add(1);
        }
    }
    black_box(sum);
    Ok(taken)
}

/// Sends one message, and waits until that is known done.
fn send(qp: *mut ibv_qp, cq: *mut ibv_cq, from: &mut ibv_sge) -> Result<(), Failure> {
    // SAFETY: integers, integer newtypes and raw pointers only, for which zero bytes are a value.
    let mut request: ibv_send_wr = unsafe { core::mem::zeroed() };
    request.sg_list = from;
    request.num_sge = 1;
    request.opcode = ibv_wr_opcode::IBV_WR_SEND;
    request.send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
    let mut refused = ptr::null_mut();
    // SAFETY: a live queue pair, and a list of one; its memory is registered (ibv_post_send(3)).
    if unsafe { rdma_sys::ibv_post_send(qp, &raw mut request, &raw mut refused) } != 0 {
        return Err(Failure::new("a message was refused"));
    }
    // SAFETY: integers only, for which zero bytes are a value.
    let mut done: ibv_wc = unsafe { core::mem::zeroed() };
    loop {
        // SAFETY: a live completion queue, and room for one (ibv_poll_cq(3)).
        match unsafe { rdma_sys::ibv_poll_cq(cq, 1, &raw mut done) } {
            0 => {}
            1 if done.status == ibv_wc_status::IBV_WC_SUCCESS => return Ok(()),
            _ => return Err(Failure::new("a message failed")),
        }
    }
}
