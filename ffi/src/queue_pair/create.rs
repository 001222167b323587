//! How a queue pair is made.

use core::ptr;
use std::sync::Arc;

use doorbell_core::in_flight::{InFlight, Request, storage_for};
use doorbell_core::provider::{
    GATHER_MAX, ProviderError, QueuePairConfig, QueuePairLimits, QueuePairParts, SharedQueuePairParts,
};
use doorbell_core::work_id::CHANNELS_MAX;
use doorbell_core::{Qpn, WorkKind};
use rdma_sys::{ibv_qp_init_attr, ibv_qp_type};

use super::object::Receives;
use super::{QueuePair, Shared, Table};
use crate::completion_queue::CompletionInner;
use crate::domain::DomainInner;
use crate::{CompletionQueue, Rdma, ReceiveQueue, SendQueue, SharedReceiveQueue, errno};

const CREATE: &str = "ibv_create_qp";
const INVALID: ProviderError = ProviderError {
    call: CREATE,
    errno: libc::EINVAL,
};

/// Makes a queue pair in RESET, with receives of its own.
pub(crate) fn create(
    domain: &Arc<DomainInner>,
    send_completions: &CompletionQueue,
    receive_completions: &CompletionQueue,
    config: &QueuePairConfig,
) -> Result<QueuePairParts<Rdma>, ProviderError> {
    check(domain, &[send_completions, receive_completions], config)?;
    let send_taken = Taken::new(send_completions, WorkKind::Send, config.channel)?;
    let receive_taken = Taken::new(receive_completions, WorkKind::Receive, config.channel)?;
    let send_table = send_taken.table(config.send_depth)?;
    let receive_table = receive_taken.table(config.receive_depth)?;
    let receives = Receives::Own(Arc::clone(receive_completions.inner()));
    let (shared, limits) = create_object(domain, send_completions, receives, config)?;
    send_taken.keep();
    receive_taken.keep();
    let data_path = domain.context().data_path();
    let send = SendQueue::new(
        Arc::clone(&shared),
        data_path.post_send,
        send_table,
        send_completions.ledger(),
        &limits,
    );
    let receive = ReceiveQueue::new(
        Arc::clone(&shared),
        data_path.post_recv,
        receive_table,
        receive_completions.ledger(),
        &limits,
    );
    Ok(QueuePairParts {
        control: QueuePair::new(shared, limits),
        send,
        receive,
    })
}

/// Makes a queue pair in RESET that takes its receives from a shared receive queue.
pub(crate) fn create_on(
    domain: &Arc<DomainInner>,
    receives: &SharedReceiveQueue,
    send_completions: &CompletionQueue,
    config: &QueuePairConfig,
) -> Result<SharedQueuePairParts<Rdma>, ProviderError> {
    check(domain, &[send_completions], config)?;
    let of_this_domain = Arc::ptr_eq(receives.inner().domain(), domain);
    if !of_this_domain || config.receive_depth != 0 || config.scatter_max != 0 {
        return Err(INVALID);
    }
    let taken = Taken::new(send_completions, WorkKind::Send, config.channel)?;
    let table = taken.table(config.send_depth)?;
    let receives = Receives::Shared(Arc::clone(receives.inner()));
    let (shared, limits) = create_object(domain, send_completions, receives, config)?;
    taken.keep();
    let send = SendQueue::new(
        Arc::clone(&shared),
        domain.context().data_path().post_send,
        table,
        send_completions.ledger(),
        &limits,
    );
    Ok(SharedQueuePairParts {
        control: QueuePair::new(shared, limits),
        send,
    })
}

/// What can be told of a config before anything is taken.
fn check(
    domain: &DomainInner,
    completions: &[&CompletionQueue],
    config: &QueuePairConfig,
) -> Result<(), ProviderError> {
    let same_device = |queue: &&CompletionQueue| Arc::ptr_eq(queue.inner().context(), domain.context());
    let segments = usize::from(config.gather_max.max(config.scatter_max));
    if !completions.iter().all(same_device) || config.channel >= CHANNELS_MAX || segments > GATHER_MAX {
        return Err(INVALID);
    }
    Ok(())
}

/// Has the device make it.
#[doc(alias = "ibv_create_qp")]
fn create_object(
    domain: &Arc<DomainInner>,
    send_completions: &CompletionQueue,
    receives: Receives,
    config: &QueuePairConfig,
) -> Result<(Arc<Shared>, QueuePairLimits), ProviderError> {
    let (srq, max_recv_sge) = match &receives {
        Receives::Own(_) => (ptr::null_mut(), u32::from(config.scatter_max.max(1))),
        Receives::Shared(queue) => (queue.as_ptr(), 0),
    };
    let mut attributes = ibv_qp_init_attr {
        qp_context: ptr::null_mut(),
        send_cq: send_completions.inner().as_ptr(),
        recv_cq: receives.completions().as_ptr(),
        srq,
        cap: rdma_sys::ibv_qp_cap {
            max_send_wr: config.send_depth,
            max_recv_wr: config.receive_depth,
            max_send_sge: u32::from(config.gather_max.max(1)),
            max_recv_sge,
            max_inline_data: config.inline_bytes_max,
        },
        qp_type: ibv_qp_type::IBV_QPT_RC,
        sq_sig_all: 0,
    };
    // SAFETY: the domain, both completion queues and the shared receive queue, if any, are live
    // and of one device, and the structure is writable (ibv_create_qp(3)).
    let qp = unsafe { rdma_sys::ibv_create_qp(domain.as_ptr(), &raw mut attributes) };
    let qp = errno::from_pointer(CREATE, qp)?;
    // SAFETY: a live queue pair, whose number is set before it is returned.
    let number = unsafe { (*qp.as_ptr()).qp_num };
    let limits = granted(config, &attributes.cap, srq.is_null());
    let shared = Shared::new(
        qp,
        Qpn::from_low_bits(number),
        config.channel,
        limits.gather_max,
        send_completions.inner(),
        receives,
        domain,
    );
    if shared.qpn().to_u32() != number {
        // A number is 24 bits: no peer could name this one. Dropped, it is destroyed.
        return Err(ProviderError {
            call: CREATE,
            errno: libc::EPROTO,
        });
    }
    Ok((shared, limits))
}

/// What the queue pair gives its user: the depths asked for, which the tables are made for (a
/// device may grant more, which completion queues were not reckoned for), and what the device
/// granted of the rest.
fn granted(config: &QueuePairConfig, cap: &rdma_sys::ibv_qp_cap, receives: bool) -> QueuePairLimits {
    let segments = |granted: u32| {
        let most = granted.min(u32::try_from(GATHER_MAX).unwrap_or(u32::MAX));
        u8::try_from(most).unwrap_or(u8::MAX)
    };
    QueuePairLimits {
        send_depth: config.send_depth,
        receive_depth: config.receive_depth,
        gather_max: segments(cap.max_send_sge),
        scatter_max: if receives { segments(cap.max_recv_sge) } else { 0 },
        inline_bytes_max: cap.max_inline_data,
    }
}

/// A channel that is given back unless the queue pair comes to be.
struct Taken<'a> {
    completions: &'a CompletionInner,
    kind: WorkKind,
    channel: u32,
    generation: u32,
}

impl<'a> Taken<'a> {
    fn new(queue: &'a CompletionQueue, kind: WorkKind, channel: u32) -> Result<Self, ProviderError> {
        let completions = queue.inner();
        let generation = completions.channels().take(kind, channel, queue.emptied())?;
        Ok(Self {
            completions,
            kind,
            channel,
            generation,
        })
    }

    /// The in-flight table of its queue.
    fn table(&self, depth: u32) -> Result<Table, ProviderError> {
        let requests = core::iter::repeat_with(Request::default).take(storage_for(depth).ok_or(INVALID)?);
        InFlight::new(
            requests.collect(),
            self.kind,
            self.channel,
            depth,
            self.generation,
        )
        .map_err(|_| INVALID)
    }

    fn keep(self) {
        core::mem::forget(self);
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.completions
            .channels()
            .give_back(self.kind, self.channel, self.generation);
    }
}
