//! How queue pairs are made: in one step, or on channels that were claimed earlier.

use core::{fmt, ptr};
use std::sync::Arc;

use doorbell_core::in_flight::{InFlight, Request, storage_for};
use doorbell_core::ledger::Ledger;
use doorbell_core::provider::{
    ClaimedQueuePairParts, GATHER_MAX, ProviderError, QueuePairConfig, QueuePairLimits, QueuePairParts,
    ReceivesClaim, SharedQueuePairParts,
};
use doorbell_core::work_id::CHANNELS_MAX;
use doorbell_core::{Qpn, WorkKind};
use rdma_sys::{ibv_qp_init_attr, ibv_qp_type};

use super::object::Receives;
use super::{QueuePair, Shared, Table};
use crate::completion_queue::CompletionInner;
use crate::domain::DomainInner;
use crate::shared_receive_queue::SharedReceiveInner;
use crate::{CompletionQueue, Rdma, ReceiveQueue, SendQueue, SharedReceiveQueue, errno};

const CREATE: &str = "ibv_create_qp";
const INVALID: ProviderError = ProviderError {
    call: CREATE,
    errno: libc::EINVAL,
};

/// Inline bytes to ask for if a driver refuses the wanted number. Most drivers grant less instead, but `irdma` refuses more
/// than 101, and `bnxt_re` more than 96. Announcements and the first frame of a rail fit the last number. The refusal is
/// `EINVAL`, but `bnxt_re` leaves errno unchanged.
const INLINE_BYTES_INSTEAD: [u32; 2] = [96, 64];

/// The parts of a queue pair of either type, with its own receive queue.
pub(crate) struct Made {
    pub(crate) shared: Arc<Shared>,
    pub(crate) limits: QueuePairLimits,
    pub(crate) send: SendQueue,
    pub(crate) receive: ReceiveQueue,
}

impl Made {
    /// Returns the parts of a reliable connection.
    fn connected(self) -> QueuePairParts<Rdma> {
        QueuePairParts {
            control: QueuePair::new(self.shared, self.limits),
            send: self.send,
            receive: self.receive,
        }
    }
}

/// Makes a queue pair in RESET, with its own receive queue.
pub(crate) fn create(
    domain: &Arc<DomainInner>,
    send_completions: &CompletionQueue,
    receive_completions: &CompletionQueue,
    config: &QueuePairConfig,
) -> Result<QueuePairParts<Rdma>, ProviderError> {
    let connected = ibv_qp_type::IBV_QPT_RC;
    Ok(create_own(domain, send_completions, receive_completions, config, connected)?.connected())
}

/// Makes a datagram queue pair in RESET.
pub(crate) fn create_for_datagrams(
    domain: &Arc<DomainInner>,
    send_completions: &CompletionQueue,
    receive_completions: &CompletionQueue,
    config: &QueuePairConfig,
) -> Result<Made, ProviderError> {
    let datagrams = ibv_qp_type::IBV_QPT_UD;
    create_own(domain, send_completions, receive_completions, config, datagrams)
}

fn create_own(
    domain: &Arc<DomainInner>,
    send_completions: &CompletionQueue,
    receive_completions: &CompletionQueue,
    config: &QueuePairConfig,
    qp_type: ibv_qp_type,
) -> Result<Made, ProviderError> {
    let of_this_device = |queue: &CompletionQueue| Arc::ptr_eq(queue.inner().context(), domain.context());
    if !of_this_device(send_completions) || !of_this_device(receive_completions) {
        return Err(INVALID);
    }
    check(config)?;
    let sends = Claim::new(send_completions, WorkKind::Send, config.channel)?;
    let receives = Claim::new(receive_completions, WorkKind::Receive, config.channel)?;
    create_of_own(domain, sends, receives, config, qp_type)
}

/// Makes a queue pair in RESET that takes its receives from a shared receive queue.
pub(crate) fn create_on(
    domain: &Arc<DomainInner>,
    receives: &SharedReceiveQueue,
    send_completions: &CompletionQueue,
    config: &QueuePairConfig,
) -> Result<SharedQueuePairParts<Rdma>, ProviderError> {
    if !Arc::ptr_eq(send_completions.inner().context(), domain.context()) {
        return Err(INVALID);
    }
    check(config)?;
    check_shared(domain, receives.inner(), config)?;
    let sends = Claim::new(send_completions, WorkKind::Send, config.channel)?;
    create_of_shared(domain, sends, receives.inner(), config)
}

/// Makes a queue pair in RESET, on the channels that were claimed for it.
pub(crate) fn create_of(
    domain: &Arc<DomainInner>,
    sends: Claim,
    receives: ReceivesClaim<Rdma>,
    config: &QueuePairConfig,
) -> Result<ClaimedQueuePairParts<Rdma>, ProviderError> {
    check(config)?;
    match receives {
        ReceivesClaim::Own(receives) => {
            let connected = ibv_qp_type::IBV_QPT_RC;
            let made = create_of_own(domain, sends, receives, config, connected)?;
            Ok(made.connected().into())
        }
        ReceivesClaim::Shared(SharedClaim(queue)) => {
            check_shared(domain, &queue, config)?;
            Ok(create_of_shared(domain, sends, &queue, config)?.into())
        }
    }
}

fn create_of_own(
    domain: &Arc<DomainInner>,
    sends: Claim,
    receives: Claim,
    config: &QueuePairConfig,
    qp_type: ibv_qp_type,
) -> Result<Made, ProviderError> {
    sends.check(domain, WorkKind::Send, config)?;
    receives.check(domain, WorkKind::Receive, config)?;
    let send_table = sends.table(config.send_depth)?;
    let receive_table = receives.table(config.receive_depth)?;
    let from = Receives::Own(Arc::clone(&receives.completions));
    let (shared, limits) = create_object(domain, &sends.completions, from, config, qp_type)?;
    let data_path = domain.context().data_path();
    let send = SendQueue::new(
        Arc::clone(&shared),
        data_path.post_send,
        send_table,
        sends.keep(),
        &limits,
    );
    let receive = ReceiveQueue::new(
        Arc::clone(&shared),
        data_path.post_recv,
        receive_table,
        receives.keep(),
        &limits,
    );
    Ok(Made {
        shared,
        limits,
        send,
        receive,
    })
}

fn create_of_shared(
    domain: &Arc<DomainInner>,
    sends: Claim,
    receives: &Arc<SharedReceiveInner>,
    config: &QueuePairConfig,
) -> Result<SharedQueuePairParts<Rdma>, ProviderError> {
    sends.check(domain, WorkKind::Send, config)?;
    let table = sends.table(config.send_depth)?;
    let from = Receives::Shared(Arc::clone(receives));
    let connected = ibv_qp_type::IBV_QPT_RC;
    let (shared, limits) = create_object(domain, &sends.completions, from, config, connected)?;
    let send = SendQueue::new(
        Arc::clone(&shared),
        domain.context().data_path().post_send,
        table,
        sends.keep(),
        &limits,
    );
    Ok(SharedQueuePairParts {
        control: QueuePair::new(shared, limits),
        send,
    })
}

/// Checks the parts of a config that need no claim.
fn check(config: &QueuePairConfig) -> Result<(), ProviderError> {
    let segments = usize::from(config.gather_max.max(config.scatter_max));
    if config.channel >= CHANNELS_MAX || segments > GATHER_MAX {
        return Err(INVALID);
    }
    Ok(())
}

/// Checks that a queue pair of this config can take receives of this queue.
fn check_shared(
    domain: &Arc<DomainInner>,
    receives: &SharedReceiveInner,
    config: &QueuePairConfig,
) -> Result<(), ProviderError> {
    let of_this_domain = Arc::ptr_eq(receives.domain(), domain);
    if !of_this_domain || config.receive_depth != 0 || config.scatter_max != 0 {
        return Err(INVALID);
    }
    Ok(())
}

/// Asks the device to make the queue pair.
#[doc(alias = "ibv_create_qp")]
fn create_object(
    domain: &Arc<DomainInner>,
    send_completions: &Arc<CompletionInner>,
    receives: Receives,
    config: &QueuePairConfig,
    qp_type: ibv_qp_type,
) -> Result<(Arc<Shared>, QueuePairLimits), ProviderError> {
    let (srq, max_recv_sge) = match &receives {
        Receives::Own(_) => (ptr::null_mut(), u32::from(config.scatter_max.max(1))),
        Receives::Shared(queue) => (queue.as_ptr(), 0),
    };
    let mut attributes = ibv_qp_init_attr {
        qp_context: ptr::null_mut(),
        send_cq: send_completions.as_ptr(),
        recv_cq: receives.completions().as_ptr(),
        srq,
        cap: rdma_sys::ibv_qp_cap {
            max_send_wr: config.send_depth,
            max_recv_wr: config.receive_depth,
            max_send_sge: u32::from(config.gather_max.max(1)),
            max_recv_sge,
            max_inline_data: config.inline_bytes_max,
        },
        qp_type,
        sq_sig_all: 0,
    };
    let asked = attributes.cap;
    let mut create = |inline_bytes_max| {
        attributes.cap = asked;
        attributes.cap.max_inline_data = inline_bytes_max;
        errno::clear();
        // SAFETY: the domain, both completion queues and any shared receive queue are live and of one device, and the
        // structure is writable (ibv_create_qp(3)).
        let qp = unsafe { rdma_sys::ibv_create_qp(domain.as_ptr(), &raw mut attributes) };
        errno::from_pointer(CREATE, qp)
    };
    let mut made = create(asked.max_inline_data);
    if made.is_err_and(|error| error.errno == libc::EINVAL || errno::is_unset()) {
        let instead = INLINE_BYTES_INSTEAD
            .into_iter()
            .filter(|bytes| *bytes < asked.max_inline_data);
        let smaller = instead.map(create).find(Result::is_ok);
        // If all are refused, the first refusal is reported, since it is about the wanted number.
        made = smaller.unwrap_or(made);
    }
    let qp = made?;
    // SAFETY: the queue pair is live, and its number was set before it was returned.
    let number = unsafe { (*qp.as_ptr()).qp_num };
    let limits = granted(config, &attributes.cap, srq.is_null());
    let shared = Shared::new(
        qp,
        Qpn::from_low_bits(number),
        config.channel,
        limits.gather_max,
        send_completions,
        receives,
        domain,
    );
    if shared.qpn().to_u32() != number {
        // Queue pair numbers have 24 bits, so no peer could name this one. Dropping it destroys it.
        return Err(ProviderError {
            call: CREATE,
            errno: libc::EPROTO,
        });
    }
    Ok((shared, limits))
}

/// Returns the limits of the queue pair. The depths are those of the config, for which the tables are made: a device may
/// grant deeper queues, but completion queues have no room reserved for them. All other limits are those that the device
/// granted, with at most [`GATHER_MAX`] elements.
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

/// A channel of a completion queue that is reserved for a queue pair. It is given back unless the queue pair is made.
///
/// The claim stands for the future queue. No completion that is polled before the claim can belong to that queue. Until the
/// queue is made, it has no completions either.
pub struct Claim {
    completions: Arc<CompletionInner>,
    kind: WorkKind,
    channel: u32,
    generation: u32,
    /// How many completions had been polled when the claim was made.
    polled: u64,
    /// Whether the queue was made. Then the queue gives the channel back.
    is_kept: bool,
}

impl Claim {
    pub(crate) fn new(queue: &CompletionQueue, kind: WorkKind, channel: u32) -> Result<Self, ProviderError> {
        if channel >= CHANNELS_MAX {
            return Err(INVALID);
        }
        let completions = Arc::clone(queue.inner());
        let generation = completions.channels().take(kind, channel, queue.emptied())?;
        Ok(Self {
            completions,
            kind,
            channel,
            generation,
            polled: queue.polled(),
            is_kept: false,
        })
    }

    /// Checks that the claim is for this device, kind and channel.
    fn check(
        &self,
        domain: &DomainInner,
        kind: WorkKind,
        config: &QueuePairConfig,
    ) -> Result<(), ProviderError> {
        let of_this_device = Arc::ptr_eq(self.completions.context(), domain.context());
        if !of_this_device || self.kind != kind || self.channel != config.channel {
            return Err(INVALID);
        }
        Ok(())
    }

    /// Makes the in-flight table of the queue.
    fn table<S>(&self, depth: u32) -> Result<Table<S>, ProviderError> {
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

    /// Records that the queue was made, and returns its ledger.
    fn keep(mut self) -> Ledger {
        self.is_kept = true;
        self.completions.ledger(self.polled)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if !self.is_kept {
            self.completions
                .channels()
                .give_back(self.kind, self.channel, self.generation);
        }
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Claim({:?}, {})", self.kind, self.channel)
    }
}

/// The claim of a queue pair on receives of a shared receive queue.
pub struct SharedClaim(Arc<SharedReceiveInner>);

impl SharedClaim {
    pub(crate) fn new(queue: &SharedReceiveQueue) -> Self {
        Self(Arc::clone(queue.inner()))
    }
}

impl fmt::Debug for SharedClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedClaim")
    }
}
