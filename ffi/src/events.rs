//! Asynchronous events of a device, and descriptors that never block.

use core::mem::MaybeUninit;

use doorbell_core::provider::{AsyncEvent, ProviderError};
use doorbell_core::{Qpn, SharedReceiveId};
use rdma_sys::{ibv_async_event, ibv_event_type};

use crate::context::ContextInner;
use crate::errno;

/// Makes reads of a descriptor return at once.
pub(crate) fn set_nonblocking(fd: i32) -> Result<(), ProviderError> {
    // SAFETY: reads the flags of a descriptor (fcntl(2)).
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    let flags = errno::from_minus_one("fcntl(F_GETFL)", flags)?;
    // SAFETY: sets the flags of a descriptor (fcntl(2)).
    let status = unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) };
    errno::from_minus_one("fcntl(F_SETFL)", status).map(|_| ())
}

/// Whether a nonblocking read failed only because nothing waits.
pub(crate) const fn is_empty(error: ProviderError) -> bool {
    // On Linux EWOULDBLOCK is the same number.
    error.errno == libc::EAGAIN
}

/// Takes and acknowledges the next asynchronous event. Returns `None` if none waits.
///
/// The event is acknowledged before this returns, so the destruction of its object never waits for longer than this takes
/// (S24).
#[doc(alias = "ibv_get_async_event")]
#[doc(alias = "ibv_ack_async_event")]
pub(crate) fn next_async(context: &ContextInner) -> Result<Option<AsyncEvent>, ProviderError> {
    let mut event = MaybeUninit::<ibv_async_event>::zeroed();
    loop {
        // SAFETY: a live context and a writable structure (ibv_get_async_event(3)).
        let status = unsafe { rdma_sys::ibv_get_async_event(context.as_ptr(), event.as_mut_ptr()) };
        match errno::from_minus_one("ibv_get_async_event", status) {
            Ok(_) => break,
            Err(error) if is_empty(error) => return Ok(None),
            Err(error) if error.errno == libc::EINTR => {}
            Err(error) => return Err(error),
        }
    }
    // SAFETY: an integer and a union of words, zeroed, and filled in by the call.
    let mut event = unsafe { event.assume_init() };
    let translated = translate(&event);
    // SAFETY: the event of the successful call above, acknowledged once (ibv_get_async_event(3)).
    unsafe { rdma_sys::ibv_ack_async_event(&raw mut event) };
    Ok(Some(translated))
}

/// Translates an event, which must not be acknowledged yet.
fn translate(event: &ibv_async_event) -> AsyncEvent {
    let other = || AsyncEvent::Other(event.event_type.0);
    let about_queue_pair = |make: fn(Qpn) -> AsyncEvent| {
        // SAFETY: for these kinds the member `qp` is the live one (ibv_get_async_event(3)).
        let qp = unsafe { event.element.qp };
        if qp.is_null() {
            return other();
        }
        // SAFETY: a queue pair is not destroyed while an event about it is unacknowledged.
        let number = unsafe { (*qp).qp_num };
        Qpn::new(number).map_or_else(other, make)
    };
    let about_shared = |make: fn(SharedReceiveId) -> AsyncEvent| {
        // SAFETY: for these kinds the member `srq` is the live one (ibv_get_async_event(3)).
        let srq = unsafe { event.element.srq };
        if srq.is_null() {
            return other();
        }
        // SAFETY: a shared receive queue is not destroyed while an event about it is unacknowledged. All shared receive
        // queues of this context were made by this crate, which puts their name into this field.
        let name = unsafe { (*srq).srq_context };
        make(SharedReceiveId(name.addr() as u64))
    };
    let about_port = |make: fn(u8) -> AsyncEvent| {
        // SAFETY: for these kinds the member `port_num` is the live one (ibv_get_async_event(3)).
        let port = unsafe { event.element.port_num };
        u8::try_from(port).map_or_else(|_| other(), make)
    };
    match event.event_type {
        ibv_event_type::IBV_EVENT_QP_FATAL => about_queue_pair(AsyncEvent::QueuePairFatal),
        ibv_event_type::IBV_EVENT_QP_ACCESS_ERR => about_queue_pair(AsyncEvent::QueuePairAccess),
        ibv_event_type::IBV_EVENT_QP_REQ_ERR => about_queue_pair(AsyncEvent::QueuePairRequest),
        ibv_event_type::IBV_EVENT_COMM_EST => about_queue_pair(AsyncEvent::CommunicationEstablished),
        ibv_event_type::IBV_EVENT_SQ_DRAINED => about_queue_pair(AsyncEvent::SendQueueDrained),
        ibv_event_type::IBV_EVENT_QP_LAST_WQE_REACHED => about_queue_pair(AsyncEvent::LastReceiveReached),
        ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED => about_shared(AsyncEvent::SharedReceiveLimit),
        ibv_event_type::IBV_EVENT_SRQ_ERR => about_shared(AsyncEvent::SharedReceiveFatal),
        ibv_event_type::IBV_EVENT_CQ_ERR => AsyncEvent::CompletionQueueError,
        ibv_event_type::IBV_EVENT_PORT_ACTIVE => about_port(AsyncEvent::PortActive),
        ibv_event_type::IBV_EVENT_PORT_ERR => about_port(AsyncEvent::PortError),
        ibv_event_type::IBV_EVENT_GID_CHANGE => about_port(AsyncEvent::GidChange),
        ibv_event_type::IBV_EVENT_DEVICE_FATAL => AsyncEvent::DeviceFatal,
        _ => other(),
    }
}

#[cfg(test)]
mod tests {
    use super::translate;
    use doorbell_core::provider::AsyncEvent;
    use rdma_sys::{ibv_async_event, ibv_async_event_element_t, ibv_event_type};

    fn port_event(event_type: ibv_event_type, port_num: i32) -> ibv_async_event {
        ibv_async_event {
            element: ibv_async_event_element_t { port_num },
            event_type,
        }
    }

    #[test]
    fn ports_and_unknown_kinds() {
        let active = port_event(ibv_event_type::IBV_EVENT_PORT_ACTIVE, 2);
        assert_eq!(translate(&active), AsyncEvent::PortActive(2));
        let odd = port_event(ibv_event_type::IBV_EVENT_PORT_ERR, 300);
        assert_eq!(
            translate(&odd),
            AsyncEvent::Other(ibv_event_type::IBV_EVENT_PORT_ERR.0)
        );
        assert_eq!(
            translate(&port_event(ibv_event_type(4711), 1)),
            AsyncEvent::Other(4711)
        );
    }

    #[test]
    fn an_event_about_nothing_is_not_followed() {
        for event_type in [
            ibv_event_type::IBV_EVENT_QP_FATAL,
            ibv_event_type::IBV_EVENT_SRQ_ERR,
            ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED,
        ] {
            // All members of the union are pointers but one, and that is shorter.
            let qp = core::ptr::null_mut();
            let element = ibv_async_event_element_t { qp };
            let event = ibv_async_event { element, event_type };
            assert_eq!(translate(&event), AsyncEvent::Other(event_type.0));
        }
    }
}
