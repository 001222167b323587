//! Receives: how they are posted, and how the engine takes them.

use core::ffi::c_int;
use core::sync::atomic::{Ordering, fence};

use rdma_sys::{ibv_qp, ibv_recv_wr, ibv_sge};

use crate::control::Call;
use crate::device::SEGMENTS_MAX;
use crate::handle::look_at;
use crate::queue_pair::{QueuePair, state};
use crate::{engine, faults, registry, send};

/// The elements of a request, at most.
pub(crate) type Elements = [ibv_sge; SEGMENTS_MAX as usize];

pub(crate) const NO_ELEMENTS: Elements = [ibv_sge {
    addr: 0,
    length: 0,
    lkey: 0,
}; SEGMENTS_MAX as usize];

/// A receive, as it waits for a message.
#[derive(Clone, Copy)]
pub(crate) struct Receive {
    pub(crate) wr_id: u64,
    count: usize,
    elements: Elements,
}

impl Receive {
    /// Copies one out of the caller's list.
    ///
    /// # Errors
    /// `EINVAL`: it has more elements than the queue takes.
    ///
    /// # Safety
    /// The request satisfies `ibv_post_recv(3)`.
    pub(crate) unsafe fn copied(request: &ibv_recv_wr, segments_max: u32) -> Result<Self, c_int> {
        // SAFETY: the caller's own words.
        let elements = unsafe { elements(request.sg_list, request.num_sge, segments_max) }?;
        let mut receive = Self {
            wr_id: request.wr_id,
            count: elements.len(),
            elements: NO_ELEMENTS,
        };
        for (place, element) in receive.elements.iter_mut().zip(elements) {
            *place = *element;
        }
        Ok(receive)
    }

    pub(crate) fn elements(&self) -> &[ibv_sge] {
        self.elements.get(..self.count).unwrap_or(&[])
    }
}

/// The elements of a request of the caller's.
///
/// # Errors
/// `EINVAL`: there are more than the queue takes, or less than none.
///
/// # Safety
/// `list` points to `count` elements, or `count` is zero, and they stay during `'a`.
#[inline]
pub(crate) unsafe fn elements<'a>(
    list: *const ibv_sge,
    count: c_int,
    segments_max: u32,
) -> Result<&'a [ibv_sge], c_int> {
    let count = u32::try_from(count).map_err(|_| libc::EINVAL)?;
    if count > segments_max {
        return Err(libc::EINVAL);
    }
    if count == 0 {
        return Ok(&[]);
    }
    // SAFETY: as the caller vouches; more than none, so the pointer is no null.
    Ok(unsafe { core::slice::from_raw_parts(list, count as usize) })
}

/// Something wants to hear of a receive that is posted: a peer's request waits for one, or the queue pair
/// failed and it must be flushed.
pub(crate) const WANTED: u32 = 1;
pub(crate) const FLUSHED: u32 = 2;

/// Posts receives, see `ibv_post_recv(3)`.
pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    if let Some(error) = faults::due(Call::PostRecv) {
        // SAFETY: writable, as the caller vouches (ibv_post_recv(3)).
        unsafe { bad_wr.write(wr) };
        return error;
    }
    // SAFETY: live, as the caller vouches (ibv_post_recv(3)).
    let qp: &QueuePair = unsafe { look_at(qp) };
    let mut next = wr;
    // SAFETY: the list and its elements are as the manual says.
    let outcome = unsafe { post_list(qp, &mut next) };
    // Pairs with the fences of the side that sets it: either this side sees the wish, or that side the receives.
    fence(Ordering::SeqCst);
    if qp.attention.load(Ordering::Relaxed) != 0 {
        attend(qp);
    }
    match outcome {
        Ok(()) => 0,
        Err(error) => {
            // SAFETY: writable, as the caller vouches.
            unsafe { bad_wr.write(next) };
            error
        }
    }
}

/// # Safety
/// The list satisfies `ibv_post_recv(3)`.
unsafe fn post_list(qp: &QueuePair, next: &mut *mut ibv_recv_wr) -> Result<(), c_int> {
    // A queue pair with a shared queue has none of its own; in RESET nothing is posted (S3).
    if qp.srq().is_some() || qp.state() == state::RESET {
        return Err(libc::EINVAL);
    }
    let mut position = qp.receives_posted.load(Ordering::Relaxed);
    let outcome = loop {
        // SAFETY: null, or a request of the caller's list.
        let Some(request) = (unsafe { next.as_ref() }) else {
            break Ok(());
        };
        // Acquire: what stood in the place was taken and polled.
        let polled = qp.core.receives_polled.load(Ordering::Acquire);
        if position.wrapping_sub(polled) >= u64::from(qp.caps.max_recv_wr) {
            break Err(libc::ENOMEM);
        }
        // SAFETY: a request of the caller's list.
        let receive = match unsafe { Receive::copied(request, qp.caps.max_recv_sge) } {
            Ok(receive) => receive,
            Err(error) => break Err(error),
        };
        // SAFETY: free, as just checked, and not published; one thread posts.
        unsafe { qp.receives.write(position, receive) };
        position = position.wrapping_add(1);
        *next = request.next;
    };
    // Release: pairs with the acquire in `QueuePair::take_receive`.
    qp.receives_posted.store(position, Ordering::Release);
    outcome
}

/// Notifies the sides that wait for a receive.
#[cold]
fn attend(qp: &QueuePair) {
    let wanted = qp.attention.fetch_and(!WANTED, Ordering::Relaxed);
    if wanted & FLUSHED != 0 {
        let responder = qp.core.responder.lock();
        engine::flush_receives(qp);
        drop(responder);
    }
    if wanted & WANTED != 0 {
        let peer = qp.core.responder.lock().peer_qpn;
        if let Some(peer) = registry::find(peer) {
            send::run(peer);
        }
    }
}
