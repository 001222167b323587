//! Queue pairs: how one is made, its control side, and how its parts end.
//!
//! The parts hold the queue pair together. A half that is dropped first leaves its in-flight
//! table here; when the last part goes the queue pair is destroyed, and only once that
//! succeeded, the device being done with them, do the slots in the tables go home.

use core::fmt;
use core::mem::{ManuallyDrop, MaybeUninit};
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use doorbell_core::in_flight::{InFlight, storage_for};
use doorbell_core::provider::{
    DataInOrder, GATHER_MAX, ProviderError, QueuePairConfig, QueuePairLimits, QueuePairParts, ReadyToReceive,
    ReadyToSend, RemoteAccess,
};
use doorbell_core::qp_state::QpAttributes;
use doorbell_core::work_id::CHANNELS_MAX;
use doorbell_core::{Access, QpState, Qpn, WorkKind};
use rdma_sys::{ibv_mtu, ibv_qp_attr, ibv_qp_init_attr, ibv_qp_state, ibv_qp_type};

use crate::completion_queue::CompletionInner;
use crate::domain::DomainInner;
use crate::leak::Leaked;
use crate::{CompletionQueue, Rdma, ReceiveQueue, SendQueue, Slot, errno, orphan};

/// An in-flight table as a half embeds it.
pub(crate) type Table = InFlight<Slot, Box<[u32]>, Box<[Option<Slot>]>>;

/// The queue pair in the device, with all that must outlive it.
pub(crate) struct Shared {
    qp: NonNull<rdma_sys::ibv_qp>,
    qpn: Qpn,
    channel: u32,
    /// The state it was last brought to; the device may have failed it since.
    state: AtomicU8,
    /// The tables of halves that are gone.
    parked: Mutex<Parked>,
    send_completions: ManuallyDrop<Arc<CompletionInner>>,
    receive_completions: ManuallyDrop<Arc<CompletionInner>>,
    domain: ManuallyDrop<Arc<DomainInner>>,
}

#[derive(Default)]
struct Parked {
    send: Option<Table>,
    receive: Option<Table>,
}

// SAFETY: libibverbs may be called from any thread, on any object, at any time
// (rdma-core Documentation/libibverbs.md); the rest is plain data and a mutex.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// The handle, live as long as `self`.
    #[inline]
    pub(crate) const fn as_ptr(&self) -> *mut rdma_sys::ibv_qp {
        self.qp.as_ptr()
    }

    /// The state it was last brought to.
    #[inline]
    pub(crate) fn state(&self) -> QpState {
        // Relaxed: it only spares the device a refusal it would give itself.
        QpState::from_raw(u32::from(self.state.load(Ordering::Relaxed))).unwrap_or(QpState::Error)
    }

    fn set_state(&self, state: QpState) {
        self.state.store(state as u8, Ordering::Relaxed);
    }

    /// Keeps the table of a half that goes before the queue pair does.
    pub(crate) fn park(&self, kind: WorkKind, table: Table) {
        let mut parked = self.parked.lock().unwrap_or_else(PoisonError::into_inner);
        match kind {
            WorkKind::Send => parked.send = Some(table),
            // There are two halves, and so two kinds that come here.
            _ => parked.receive = Some(table),
        }
    }
}

impl Drop for Shared {
    #[doc(alias = "ibv_destroy_qp")]
    fn drop(&mut self) {
        // SAFETY: made in `create` and destroyed here alone, when the last part is gone; its
        // asynchronous events are acknowledged as they are taken, so the call does not wait for
        // ever (ibv_create_qp(3), ibv_get_async_event(3)).
        let status = unsafe { rdma_sys::ibv_destroy_qp(self.qp.as_ptr()) };
        let parked = self.parked.get_mut().unwrap_or_else(PoisonError::into_inner);
        let (send, receive) = (parked.send.take(), parked.receive.take());
        if errno::from_value("ibv_destroy_qp", status).is_err() {
            // The device may still use the slots, and the queue pair all it was made from.
            Leaked::QueuePair.count();
            core::mem::forget((send, receive));
            return;
        }
        // The device is done with every request: the slots go home, and the channel is free.
        let ends = [
            (WorkKind::Send, send, &mut self.send_completions),
            (WorkKind::Receive, receive, &mut self.receive_completions),
        ];
        for (kind, table, completions) in ends {
            if let Some(mut table) = table {
                let next_generation = table.next_generation();
                table.drain(drop);
                completions
                    .channels()
                    .give_back(kind, self.channel, next_generation);
            }
            // SAFETY: dropped here once, the queue pair that completed into it being gone.
            unsafe { ManuallyDrop::drop(completions) };
        }
        // Some may have been what an arena waited for, whose memory goes before its domain.
        orphan::reclaim();
        // SAFETY: dropped here once, last.
        unsafe { ManuallyDrop::drop(&mut self.domain) };
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

const CREATE: &str = "ibv_create_qp";

/// Makes a queue pair in RESET.
#[doc(alias = "ibv_create_qp")]
pub(crate) fn create(
    domain: &Arc<DomainInner>,
    send_completions: &CompletionQueue,
    receive_completions: &CompletionQueue,
    config: &QueuePairConfig,
) -> Result<QueuePairParts<Rdma>, ProviderError> {
    let invalid = ProviderError {
        call: CREATE,
        errno: libc::EINVAL,
    };
    let same_device = |queue: &CompletionQueue| Arc::ptr_eq(queue.inner().context(), domain.context());
    if !same_device(send_completions) || !same_device(receive_completions) {
        return Err(invalid);
    }
    let segments = usize::from(config.gather_max.max(config.scatter_max));
    if config.channel >= CHANNELS_MAX || segments > GATHER_MAX {
        return Err(invalid);
    }
    let send_taken = Taken::new(send_completions, WorkKind::Send, config.channel)?;
    let receive_taken = Taken::new(receive_completions, WorkKind::Receive, config.channel)?;
    let send_table = table(
        WorkKind::Send,
        config.channel,
        config.send_depth,
        send_taken.generation,
    )?;
    let receive_table = table(
        WorkKind::Receive,
        config.channel,
        config.receive_depth,
        receive_taken.generation,
    )?;

    let mut attributes = ibv_qp_init_attr {
        qp_context: ptr::null_mut(),
        send_cq: send_completions.inner().as_ptr(),
        recv_cq: receive_completions.inner().as_ptr(),
        srq: ptr::null_mut(),
        cap: rdma_sys::ibv_qp_cap {
            max_send_wr: config.send_depth,
            max_recv_wr: config.receive_depth,
            max_send_sge: u32::from(config.gather_max.max(1)),
            max_recv_sge: u32::from(config.scatter_max.max(1)),
            max_inline_data: config.inline_bytes_max,
        },
        qp_type: ibv_qp_type::IBV_QPT_RC,
        sq_sig_all: 0,
    };
    // SAFETY: the domain and both completion queues are live and of one device, and the
    // structure is writable (ibv_create_qp(3)).
    let qp = unsafe { rdma_sys::ibv_create_qp(domain.as_ptr(), &raw mut attributes) };
    let qp = errno::from_pointer(CREATE, qp)?;
    // SAFETY: a live queue pair, whose number is set before it is returned.
    let number = unsafe { (*qp.as_ptr()).qp_num };
    let shared = Arc::new(Shared {
        qp,
        // A number is 24 bits; of another no peer could make use, and bring-up refuses zero's peer.
        qpn: Qpn::new(number & 0x00ff_ffff).ok_or(invalid)?,
        channel: config.channel,
        state: AtomicU8::new(QpState::Reset as u8),
        parked: Mutex::default(),
        send_completions: ManuallyDrop::new(Arc::clone(send_completions.inner())),
        receive_completions: ManuallyDrop::new(Arc::clone(receive_completions.inner())),
        domain: ManuallyDrop::new(Arc::clone(domain)),
    });
    send_taken.keep();
    receive_taken.keep();

    let limits = granted(config, &attributes.cap);
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
        control: QueuePair { shared, limits },
        send,
        receive,
    })
}

/// What the queue pair gives its user: the depths asked for, which the tables are made for (a
/// device may grant more, which completion queues were not reckoned for), and what the device
/// granted of the rest.
fn granted(config: &QueuePairConfig, cap: &rdma_sys::ibv_qp_cap) -> QueuePairLimits {
    let segments = |granted: u32| {
        let most = granted.min(u32::try_from(GATHER_MAX).unwrap_or(u32::MAX));
        u8::try_from(most).unwrap_or(u8::MAX)
    };
    QueuePairLimits {
        send_depth: config.send_depth,
        receive_depth: config.receive_depth,
        gather_max: segments(cap.max_send_sge),
        scatter_max: segments(cap.max_recv_sge),
        inline_bytes_max: cap.max_inline_data,
    }
}

fn table(kind: WorkKind, channel: u32, depth: u32, generation: u32) -> Result<Table, ProviderError> {
    let invalid = ProviderError {
        call: CREATE,
        errno: libc::EINVAL,
    };
    let (requests, places) = storage_for(depth).ok_or(invalid)?;
    let slots = core::iter::repeat_with(|| None).take(places).collect();
    InFlight::new(vec![0; requests].into(), slots, kind, channel, depth, generation).map_err(|_| invalid)
}

/// The control side of a queue pair.
pub struct QueuePair {
    shared: Arc<Shared>,
    limits: QueuePairLimits,
}

impl QueuePair {
    /// Brings it from the state it was brought to before into `next`, with these attributes.
    #[doc(alias = "ibv_modify_qp")]
    fn modify(
        &mut self,
        call: &'static str,
        from: QpState,
        next: QpState,
        attributes: &mut ibv_qp_attr,
    ) -> Result<(), ProviderError> {
        let invalid = ProviderError {
            call,
            errno: libc::EINVAL,
        };
        if self.shared.state() != from {
            return Err(invalid);
        }
        let mask = from.required_attributes(next).ok_or(invalid)?;
        attributes.qp_state = ibv_qp_state(next as u32);
        let mask = mask.bits() | rdma_sys::ibv_qp_attr_mask::IBV_QP_STATE.0;
        let mask = i32::try_from(mask).map_err(|_| invalid)?;
        // SAFETY: a live queue pair, and a structure in which every attribute of the mask is set
        // (ibv_modify_qp(3)).
        let status = unsafe { rdma_sys::ibv_modify_qp(self.shared.as_ptr(), attributes, mask) };
        errno::from_value(call, status)?;
        self.shared.set_state(next);
        Ok(())
    }
}

/// Attributes of which none is set.
fn no_attributes() -> ibv_qp_attr {
    // SAFETY: integers and integer newtypes only, for which zero bytes are a value.
    unsafe { core::mem::zeroed() }
}

impl doorbell_core::provider::QueuePair for QueuePair {
    fn qpn(&self) -> Qpn {
        self.shared.qpn
    }

    fn limits(&self) -> QueuePairLimits {
        self.limits
    }

    fn initialize(&mut self, port: u8, remote: RemoteAccess) -> Result<(), ProviderError> {
        let mut attributes = no_attributes();
        attributes.pkey_index = 0;
        attributes.port_num = port;
        // What the peer may do; LOCAL_WRITE is a right of registrations.
        attributes.qp_access_flags = remote.to_access().difference(Access::LOCAL_WRITE).bits();
        self.modify(
            "ibv_modify_qp to INIT",
            QpState::Reset,
            QpState::Init,
            &mut attributes,
        )
    }

    fn ready_to_receive(&mut self, wanted: &ReadyToReceive) -> Result<(), ProviderError> {
        const CALL: &str = "ibv_modify_qp to RTR";
        let address = &wanted.address;
        if wanted.min_rnr_timer > 31 || address.flow_label > 0x000f_ffff || address.service_level > 15 {
            return Err(ProviderError {
                call: CALL,
                errno: libc::EINVAL,
            });
        }
        let mut attributes = no_attributes();
        attributes.path_mtu = ibv_mtu(u32::from(wanted.path_mtu.to_wire()));
        attributes.dest_qp_num = wanted.destination_qpn.to_u32();
        attributes.rq_psn = wanted.receive_psn.to_u32();
        attributes.max_dest_rd_atomic = wanted.max_dest_rd_atomic;
        attributes.min_rnr_timer = wanted.min_rnr_timer;
        // RoCEv2 always carries a global route.
        attributes.ah_attr.is_global = 1;
        attributes.ah_attr.port_num = address.port;
        attributes.ah_attr.sl = address.service_level;
        attributes.ah_attr.grh = rdma_sys::ibv_global_route {
            dgid: rdma_sys::ibv_gid {
                raw: address.destination.0,
            },
            flow_label: address.flow_label,
            sgid_index: address.source_gid_index,
            hop_limit: address.hop_limit,
            traffic_class: address.traffic_class,
        };
        self.modify(CALL, QpState::Init, QpState::ReadyToReceive, &mut attributes)
    }

    fn ready_to_send(&mut self, wanted: &ReadyToSend) -> Result<(), ProviderError> {
        const CALL: &str = "ibv_modify_qp to RTS";
        let valid = (1..=31).contains(&wanted.timeout) && wanted.retry_count <= 7 && wanted.rnr_retry <= 7;
        if !valid {
            return Err(ProviderError {
                call: CALL,
                errno: libc::EINVAL,
            });
        }
        if wanted.retry_count > self.shared.domain.context().quirks().retry_count_max {
            let call = "ibv_modify_qp to RTS (on rxe a retry count of 7 never gives up: use 6 or less)";
            return Err(ProviderError {
                call,
                errno: libc::EINVAL,
            });
        }
        let mut attributes = no_attributes();
        attributes.sq_psn = wanted.send_psn.to_u32();
        attributes.max_rd_atomic = wanted.max_rd_atomic;
        attributes.timeout = wanted.timeout;
        attributes.retry_cnt = wanted.retry_count;
        attributes.rnr_retry = wanted.rnr_retry;
        self.modify(
            CALL,
            QpState::ReadyToReceive,
            QpState::ReadyToSend,
            &mut attributes,
        )
    }

    fn fail(&mut self) -> Result<(), ProviderError> {
        let from = self.shared.state();
        self.modify("ibv_modify_qp to ERR", from, QpState::Error, &mut no_attributes())
    }

    #[doc(alias = "ibv_query_qp_data_in_order")]
    fn data_in_order(&self) -> DataInOrder {
        let ask = |flags| {
            let write = rdma_sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE;
            // SAFETY: a live queue pair (ibv_query_qp_data_in_order(3)); where the library has no
            // such call the bindings answer 0.
            unsafe { rdma_sys::ibv_query_qp_data_in_order(self.shared.as_ptr(), write, flags) }
        };
        let capabilities = ask(rdma_sys::IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS);
        if capabilities > 0 {
            return in_order(capabilities);
        }
        // Before rdma-core 48 there are no flags, and the answer is of whole messages.
        in_order(ask(0))
    }

    #[doc(alias = "ibv_query_qp")]
    fn state(&self) -> Result<QpState, ProviderError> {
        const CALL: &str = "ibv_query_qp";
        let mut attributes = no_attributes();
        let mut made_with = MaybeUninit::<ibv_qp_init_attr>::zeroed();
        /// `IBV_QP_STATE`.
        const STATE: i32 = 1;
        const { assert!(rdma_sys::ibv_qp_attr_mask::IBV_QP_STATE.0 == STATE as u32) };
        // SAFETY: a live queue pair and two writable structures (ibv_query_qp(3)).
        let status = unsafe {
            rdma_sys::ibv_query_qp(
                self.shared.as_ptr(),
                &raw mut attributes,
                STATE,
                made_with.as_mut_ptr(),
            )
        };
        errno::from_value(CALL, status)?;
        QpState::from_raw(attributes.qp_state.0).ok_or(ProviderError {
            call: CALL,
            errno: libc::EPROTO,
        })
    }
}

/// What an answer of the library promises; a negative one is a failure.
fn in_order(answer: i32) -> DataInOrder {
    let capabilities = u32::try_from(answer).unwrap_or(0);
    if capabilities & rdma_sys::IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG != 0 {
        DataInOrder::WholeMessage
    } else if capabilities & rdma_sys::IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES != 0 {
        DataInOrder::Aligned128
    } else {
        DataInOrder::No
    }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair")
            .field("qpn", &self.shared.qpn)
            .field("channel", &self.shared.channel)
            .field("brought_to", &self.shared.state())
            .field("limits", &self.limits)
            .finish()
    }
}

/// The bits of [`QpAttributes`] are those of `enum ibv_qp_attr_mask`.
const _: () = {
    use rdma_sys::ibv_qp_attr_mask as mask;
    assert!(QpAttributes::ACCESS_FLAGS.bits() == mask::IBV_QP_ACCESS_FLAGS.0);
    assert!(QpAttributes::PKEY_INDEX.bits() == mask::IBV_QP_PKEY_INDEX.0);
    assert!(QpAttributes::PORT.bits() == mask::IBV_QP_PORT.0);
    assert!(QpAttributes::ADDRESS_VECTOR.bits() == mask::IBV_QP_AV.0);
    assert!(QpAttributes::PATH_MTU.bits() == mask::IBV_QP_PATH_MTU.0);
    assert!(QpAttributes::TIMEOUT.bits() == mask::IBV_QP_TIMEOUT.0);
    assert!(QpAttributes::RETRY_COUNT.bits() == mask::IBV_QP_RETRY_CNT.0);
    assert!(QpAttributes::RNR_RETRY.bits() == mask::IBV_QP_RNR_RETRY.0);
    assert!(QpAttributes::RQ_PSN.bits() == mask::IBV_QP_RQ_PSN.0);
    assert!(QpAttributes::MAX_QP_RD_ATOMIC.bits() == mask::IBV_QP_MAX_QP_RD_ATOMIC.0);
    assert!(QpAttributes::MIN_RNR_TIMER.bits() == mask::IBV_QP_MIN_RNR_TIMER.0);
    assert!(QpAttributes::SQ_PSN.bits() == mask::IBV_QP_SQ_PSN.0);
    assert!(QpAttributes::MAX_DEST_RD_ATOMIC.bits() == mask::IBV_QP_MAX_DEST_RD_ATOMIC.0);
    assert!(QpAttributes::DESTINATION_QPN.bits() == mask::IBV_QP_DEST_QPN.0);
    assert!(QpState::Error as u32 == ibv_qp_state::IBV_QPS_ERR.0);
    assert!(QpState::ReadyToSend as u32 == ibv_qp_state::IBV_QPS_RTS.0);
};

#[cfg(test)]
mod tests {
    use super::in_order;
    use doorbell_core::provider::DataInOrder;

    #[test]
    fn an_answer_promises_what_its_bits_say() {
        let expected = [
            (0, DataInOrder::No),
            (1, DataInOrder::WholeMessage),
            (2, DataInOrder::Aligned128),
            (3, DataInOrder::WholeMessage),
            (4, DataInOrder::No),
            (-1, DataInOrder::No),
            (i32::MIN, DataInOrder::No),
        ];
        for (answer, promised) in expected {
            assert_eq!(in_order(answer), promised, "{answer}");
        }
    }
}
