//! Asynchronous events, and the counts that make an object's end wait for their acknowledgement (S24).

use core::ffi::c_int;
use std::sync::{Condvar, Mutex, PoisonError};

use rdma_sys::{
    ibv_async_event, ibv_async_event_element_t, ibv_context, ibv_cq, ibv_event_type, ibv_qp, ibv_srq,
};

use crate::completion_queue::CompletionQueue;
use crate::context::OpenDevice;
use crate::handle::look_at;
use crate::queue_pair::QueuePair;
use crate::shared_receive::SharedReceiveQueue;

/// How many events about an object were taken and not acknowledged.
#[derive(Default)]
pub(crate) struct Unacknowledged {
    count: Mutex<u32>,
    changed: Condvar,
}

impl Unacknowledged {
    pub(crate) fn taken(&self) {
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        *count = count.saturating_add(1);
    }

    pub(crate) fn acknowledged(&self, events: u32) {
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        *count = count.saturating_sub(events);
        self.changed.notify_all();
    }

    /// Waits until all are acknowledged.
    pub(crate) fn wait(&self) {
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        while *count != 0 {
            count = self.changed.wait(count).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Subject of an event.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum About {
    QueuePair(*mut ibv_qp),
    CompletionQueue(*mut ibv_cq),
    SharedReceiveQueue(*mut ibv_srq),
    /// A port, or the device.
    Nothing,
}

impl About {
    /// By the kind of the event.
    fn of(event: &ibv_async_event) -> Self {
        match event.event_type {
            ibv_event_type::IBV_EVENT_CQ_ERR => {
                // SAFETY: for this kind the member `cq` was written (`emit`).
                Self::CompletionQueue(unsafe { event.element.cq })
            }
            ibv_event_type::IBV_EVENT_SRQ_ERR | ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED => {
                // SAFETY: for these kinds the member `srq` was written.
                Self::SharedReceiveQueue(unsafe { event.element.srq })
            }
            ibv_event_type::IBV_EVENT_QP_FATAL
            | ibv_event_type::IBV_EVENT_QP_REQ_ERR
            | ibv_event_type::IBV_EVENT_QP_ACCESS_ERR
            | ibv_event_type::IBV_EVENT_COMM_EST
            | ibv_event_type::IBV_EVENT_SQ_DRAINED
            | ibv_event_type::IBV_EVENT_QP_LAST_WQE_REACHED => {
                // SAFETY: for these kinds the member `qp` was written.
                Self::QueuePair(unsafe { event.element.qp })
            }
            _ => Self::Nothing,
        }
    }

    const fn element(self) -> ibv_async_event_element_t {
        match self {
            Self::QueuePair(qp) => ibv_async_event_element_t { qp },
            Self::CompletionQueue(cq) => ibv_async_event_element_t { cq },
            Self::SharedReceiveQueue(srq) => ibv_async_event_element_t { srq },
            Self::Nothing => ibv_async_event_element_t { port_num: 1 },
        }
    }

    /// # Safety
    /// The object is live.
    unsafe fn unacknowledged<'a>(self) -> Option<&'a Unacknowledged> {
        match self {
            // An event that a test made up names no object.
            Self::QueuePair(qp) if qp.is_null() => None,
            Self::CompletionQueue(cq) if cq.is_null() => None,
            Self::SharedReceiveQueue(srq) if srq.is_null() => None,
            // SAFETY: live, as the caller vouches.
            Self::QueuePair(qp) => Some(&unsafe { look_at::<QueuePair>(qp) }.events),
            // SAFETY: as above.
            Self::CompletionQueue(cq) => Some(&unsafe { look_at::<CompletionQueue>(cq) }.events),
            // SAFETY: as above.
            Self::SharedReceiveQueue(srq) => Some(&unsafe { look_at::<SharedReceiveQueue>(srq) }.events),
            Self::Nothing => None,
        }
    }
}

/// Sends an event; the object must be live, and withdraw what is left when it ends.
///
/// # Safety
/// The context is open.
#[cold]
pub(crate) unsafe fn emit(context: *mut ibv_context, event_type: ibv_event_type, about: About) {
    // SAFETY: open, as the caller vouches.
    let open = unsafe { OpenDevice::of(context) };
    open.events.push(ibv_async_event {
        element: about.element(),
        event_type,
    });
}

/// Takes the next event, see `ibv_get_async_event(3)`.
///
/// # Errors
/// An errno value.
///
/// # Safety
/// The context is open.
pub(crate) unsafe fn take(context: *mut ibv_context) -> Result<ibv_async_event, c_int> {
    // SAFETY: open, as the caller vouches.
    let open = unsafe { OpenDevice::of(context) };
    open.events.take(|event| {
        // SAFETY: an object that ends withdraws its events first, which this closure goes before.
        if let Some(unacknowledged) = unsafe { About::of(event).unacknowledged() } {
            unacknowledged.taken();
        }
    })
}

/// Acknowledges an event, see `ibv_ack_async_event(3)`.
///
/// # Safety
/// [`take`] gave the event, and it is acknowledged once.
pub(crate) unsafe fn acknowledge(event: &ibv_async_event) {
    // SAFETY: the object's end waits for this.
    if let Some(unacknowledged) = unsafe { About::of(event).unacknowledged() } {
        unacknowledged.acknowledged(1);
    }
}

/// Withdraws the events about an object that ends, and waits for those that were taken.
///
/// # Safety
/// The context is open, and the object live.
pub(crate) unsafe fn settle(context: *mut ibv_context, about: About) {
    // SAFETY: open, as the caller vouches.
    let open = unsafe { OpenDevice::of(context) };
    open.events.retain(|event| About::of(event) != about);
    // SAFETY: live, as the caller vouches.
    if let Some(unacknowledged) = unsafe { about.unacknowledged() } {
        unacknowledged.wait();
    }
}
