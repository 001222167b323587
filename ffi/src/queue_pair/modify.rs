//! Bringing a queue pair from state to state, and asking which it is in.

use core::mem::MaybeUninit;

use doorbell_core::QpState;
use doorbell_core::provider::ProviderError;
use doorbell_core::qp_state::QpAttributes;
use rdma_sys::{ibv_qp_attr, ibv_qp_init_attr, ibv_qp_state};

use super::Shared;
use crate::errno;

/// Attributes of which none is set.
pub(crate) fn no_attributes() -> ibv_qp_attr {
    // SAFETY: integers and integer newtypes only, for which zero bytes are a value.
    unsafe { core::mem::zeroed() }
}

impl Shared {
    /// Brings it from `from`, the state it was brought to before, into `next`, with the attributes that this
    /// needs: `None` if there is no such transition. The caller has the control side, so there is one caller at a
    /// time.
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
        // SAFETY: a live queue pair, and a structure in which every attribute of the mask is set
        // (ibv_modify_qp(3)).
        let status = unsafe { rdma_sys::ibv_modify_qp(self.as_ptr(), attributes, mask) };
        errno::from_value(call, status)?;
        self.set_state(next);
        Ok(())
    }

    /// The state the device says it is in.
    #[doc(alias = "ibv_query_qp")]
    pub(crate) fn query_state(&self) -> Result<QpState, ProviderError> {
        const CALL: &str = "ibv_query_qp";
        let mut attributes = no_attributes();
        let mut made_with = MaybeUninit::<ibv_qp_init_attr>::zeroed();
        /// `IBV_QP_STATE`.
        const STATE: i32 = 1;
        const { assert!(rdma_sys::ibv_qp_attr_mask::IBV_QP_STATE.0 == STATE as u32) };
        // SAFETY: a live queue pair and two writable structures (ibv_query_qp(3)).
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
