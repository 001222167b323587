//! State changes of a queue pair, and the query for its state.

use core::mem::MaybeUninit;

use doorbell_core::QpState;
use doorbell_core::provider::ProviderError;
use doorbell_core::qp_state::QpAttributes;
use rdma_sys::{ibv_qp_attr, ibv_qp_init_attr, ibv_qp_state};

use super::Shared;
use crate::errno;

/// Returns attributes none of which is set.
pub(crate) fn no_attributes() -> ibv_qp_attr {
    // SAFETY: integers and integer newtypes only, for which zero bytes are a value.
    unsafe { core::mem::zeroed() }
}

impl Shared {
    /// Brings the queue pair from `from`, the state it was last brought to, into `next`. `required` are the attributes that
    /// this transition needs, or `None` if there is no such transition. The caller has the control side, so there is one
    /// caller at a time.
    #[doc(alias = "ibv_modify_qp")]
    pub(crate) fn modify(
        &self,
        call: &'static str,
        (from, next): (QpState, QpState),
        required: Option<QpAttributes>,
        attributes: &mut ibv_qp_attr,
    ) -> Result<(), ProviderError> {
        let invalid = ProviderError {
            call,
            errno: libc::EINVAL,
        };
        if self.state() != from {
            return Err(invalid);
        }
        let mask = required.ok_or(invalid)?;
        attributes.qp_state = ibv_qp_state(next as u32);
        let mask = mask.bits() | rdma_sys::ibv_qp_attr_mask::IBV_QP_STATE.0;
        let mask = i32::try_from(mask).map_err(|_| invalid)?;
        // SAFETY: the queue pair is live, and every attribute of the mask is set in the structure (ibv_modify_qp(3)).
        let status = unsafe { rdma_sys::ibv_modify_qp(self.as_ptr(), attributes, mask) };
        errno::from_value(call, status)?;
        self.set_state(next);
        Ok(())
    }

    /// Returns the state that the device reports.
    #[doc(alias = "ibv_query_qp")]
    pub(crate) fn query_state(&self) -> Result<QpState, ProviderError> {
        const CALL: &str = "ibv_query_qp";
        let mut attributes = no_attributes();
        let mut made_with = MaybeUninit::<ibv_qp_init_attr>::zeroed();
        /// `IBV_QP_STATE`.
        const STATE: i32 = 1;
        const { assert!(rdma_sys::ibv_qp_attr_mask::IBV_QP_STATE.0 == STATE as u32) };
        // SAFETY: the queue pair is live, and both structures are writable (ibv_query_qp(3)).
        let status = unsafe {
            rdma_sys::ibv_query_qp(self.as_ptr(), &raw mut attributes, STATE, made_with.as_mut_ptr())
        };
        errno::from_value(CALL, status)?;
        QpState::from_raw(attributes.qp_state.0).ok_or(ProviderError {
            call: CALL,
            errno: libc::EPROTO,
        })
    }
}
