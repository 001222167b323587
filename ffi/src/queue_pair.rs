//! Queue pairs: their control side, and in submodules how they are made and destroyed.
//!
//! The parts jointly own the queue pair. A half that is dropped first leaves its in-flight table with the queue pair. When
//! the last part is dropped, the queue pair is destroyed. Only a successful destroy proves that the device is done with
//! the slots in the tables, which then return to their arenas.

use core::fmt;
use std::sync::Arc;

use doorbell_core::provider::{
    DataInOrder, ProviderError, QueuePairLimits, ReadyToReceive, ReadyToSend, RemoteAccess,
};
use doorbell_core::qp_state::QpAttributes;
use doorbell_core::{Access, QpState, Qpn};
use rdma_sys::{ibv_mtu, ibv_qp_attr, ibv_qp_state};

use crate::{ReceiveQueue, SendQueue, address};

mod create;
mod modify;
mod object;

pub use create::{Claim, SharedClaim};
pub(crate) use create::{create, create_for_datagrams, create_of, create_on};
pub(crate) use modify::no_attributes;
pub(crate) use object::{Shared, Table, Vacancy};

/// The control side of a queue pair.
pub struct QueuePair {
    shared: Arc<Shared>,
    limits: QueuePairLimits,
}

impl QueuePair {
    const fn new(shared: Arc<Shared>, limits: QueuePairLimits) -> Self {
        Self { shared, limits }
    }

    /// Brings the queue pair from state `from` into `next`, with these attributes.
    fn modify(
        &mut self,
        call: &'static str,
        from: QpState,
        next: QpState,
        attributes: &mut ibv_qp_attr,
    ) -> Result<(), ProviderError> {
        let mask = from.required_attributes(next);
        self.shared.modify(call, (from, next), mask, attributes)
    }
}

impl doorbell_core::provider::QueuePair for QueuePair {
    type SendQueue = SendQueue;
    type ReceiveQueue = ReceiveQueue;

    fn qpn(&self) -> Qpn {
        self.shared.qpn()
    }

    fn limits(&self) -> QueuePairLimits {
        self.limits
    }

    fn initialize(&mut self, port: u8, remote: RemoteAccess) -> Result<(), ProviderError> {
        let mut attributes = no_attributes();
        attributes.pkey_index = 0;
        attributes.port_num = port;
        // Only rights of the peer: LOCAL_WRITE is a right of registrations.
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
        let invalid = ProviderError {
            call: CALL,
            errno: libc::EINVAL,
        };
        let ah_attr = address::attributes(&wanted.address).filter(|_| wanted.min_rnr_timer <= 31);
        let ah_attr = ah_attr.ok_or(invalid)?;
        let mut attributes = no_attributes();
        attributes.path_mtu = ibv_mtu(u32::from(wanted.path_mtu.to_wire()));
        attributes.dest_qp_num = wanted.destination_qpn.to_u32();
        attributes.rq_psn = wanted.receive_psn.to_u32();
        attributes.max_dest_rd_atomic = wanted.max_dest_rd_atomic;
        attributes.min_rnr_timer = wanted.min_rnr_timer;
        attributes.ah_attr = ah_attr;
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
        if wanted.retry_count > self.shared.domain().context().quirks().retry_count_max {
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

    fn drain(&mut self) -> Result<(), ProviderError> {
        let mut attributes = no_attributes();
        attributes.en_sqd_async_notify = 1;
        let change = (QpState::ReadyToSend, QpState::SendQueueDrain);
        let mask = Some(QpAttributes::DRAINED_NOTIFY);
        self.shared
            .modify("ibv_modify_qp to SQD", change, mask, &mut attributes)
    }

    fn resume(&mut self) -> Result<(), ProviderError> {
        self.modify(
            "ibv_modify_qp to RTS",
            QpState::SendQueueDrain,
            QpState::ReadyToSend,
            &mut no_attributes(),
        )
    }

    fn reset(&mut self, send: &mut SendQueue, receive: &mut ReceiveQueue) -> Result<(), ProviderError> {
        const CALL: &str = "ibv_modify_qp to RESET";
        if !send.is_of(&self.shared) || !receive.is_of(&self.shared) {
            return Err(ProviderError {
                call: CALL,
                errno: libc::EINVAL,
            });
        }
        self.shared.live_on()?;
        let from = self.shared.state();
        self.modify(CALL, from, QpState::Reset, &mut no_attributes())?;
        // Soft-RoCE of Linux 6.10 to 7.2 records the end of its send queue before it empties the queue. So after the reset
        // it would first send the emptied slots, as zero-length WRITEs whose PSNs the first request then shares. In
        // RESET nothing is left to empty, so a second reset records the right place.
        self.modify(CALL, QpState::Reset, QpState::Reset, &mut no_attributes())?;
        // A queue pair in RESET has no requests (InfiniBand Architecture volume 1, section 10.3.1.1): the device is
        // done with all of them, and the slots may be used again.
        send.forget();
        receive.forget();
        Ok(())
    }

    fn fail(&mut self) -> Result<(), ProviderError> {
        let from = self.shared.state();
        self.modify("ibv_modify_qp to ERR", from, QpState::Error, &mut no_attributes())
    }

    #[doc(alias = "ibv_query_qp_data_in_order")]
    fn data_in_order(&self) -> DataInOrder {
        let ask = |flags| {
            let write = rdma_sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE;
            // SAFETY: the queue pair is live (ibv_query_qp_data_in_order(3)). If the library has no such call, the bindings
            // answer 0.
            unsafe { rdma_sys::ibv_query_qp_data_in_order(self.shared.as_ptr(), write, flags) }
        };
        let capabilities = ask(rdma_sys::IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS);
        if capabilities > 0 {
            return in_order(capabilities);
        }
        // Before rdma-core 48 there are no flags, and the answer is about whole messages.
        in_order(ask(0))
    }

    fn state(&self) -> Result<QpState, ProviderError> {
        self.shared.query_state()
    }
}

/// Returns the guarantee in an answer of the library. A negative answer is a failure.
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
            .field("qpn", &self.shared.qpn())
            .field("channel", &self.shared.channel())
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
    assert!(QpAttributes::QKEY.bits() == mask::IBV_QP_QKEY.0);
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
