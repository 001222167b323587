//! Address handles in the device: each describes the route of datagrams to one destination.

use core::fmt;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use std::sync::Arc;

use doorbell_core::address_handles::Place;
use doorbell_core::provider::{AddressVector, ProviderError};
use rdma_sys::ibv_ah_attr;

use crate::domain::DomainInner;
use crate::errno;
use crate::leak::Leaked;

/// The storage for the address handles of one queue pair.
pub(crate) type Addresses = Box<[Place<Address>]>;

/// An address handle in the device.
pub(crate) struct Address {
    ah: NonNull<rdma_sys::ibv_ah>,
    domain: ManuallyDrop<Arc<DomainInner>>,
}

// SAFETY: libibverbs may be called from any thread, on any object, at any time
// (rdma-core Documentation/libibverbs.md).
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

impl Address {
    #[doc(alias = "ibv_create_ah")]
    pub(crate) fn new(domain: &Arc<DomainInner>, address: &AddressVector) -> Result<Self, ProviderError> {
        const CALL: &str = "ibv_create_ah";
        let mut wanted = attributes(address).ok_or(ProviderError {
            call: CALL,
            errno: libc::EINVAL,
        })?;
        // SAFETY: the domain is live, and every field of the structure is initialised (ibv_create_ah(3)).
        let ah = unsafe { rdma_sys::ibv_create_ah(domain.as_ptr(), &raw mut wanted) };
        Ok(Self {
            ah: errno::from_pointer(CALL, ah)?,
            domain: ManuallyDrop::new(Arc::clone(domain)),
        })
    }

    /// The handle, live as long as `self`.
    #[inline]
    pub(crate) const fn as_ptr(&self) -> *mut rdma_sys::ibv_ah {
        self.ah.as_ptr()
    }
}

impl Drop for Address {
    #[doc(alias = "ibv_destroy_ah")]
    fn drop(&mut self) {
        // SAFETY: made in `new`, and destroyed only here. No request names it any more: it is dropped once the requests
        // posted before its release are retired, or once their queue pair is destroyed (ibv_create_ah(3)).
        let status = unsafe { rdma_sys::ibv_destroy_ah(self.ah.as_ptr()) };
        if errno::from_value("ibv_destroy_ah", status).is_err() {
            // The handle still exists, so its domain has to stay as well.
            Leaked::AddressHandle.count();
            return;
        }
        // SAFETY: dropped only here, once, after the handle that was made in it.
        unsafe { ManuallyDrop::drop(&mut self.domain) };
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({})", self.domain.context().name())
    }
}

/// Returns the verbs attributes of an address; `None` if a field has more bits than the header has for it.
pub(crate) fn attributes(address: &AddressVector) -> Option<ibv_ah_attr> {
    if address.flow_label > 0x000f_ffff || address.service_level > 15 {
        return None;
    }
    Some(ibv_ah_attr {
        grh: rdma_sys::ibv_global_route {
            dgid: rdma_sys::ibv_gid {
                raw: address.destination.0,
            },
            flow_label: address.flow_label,
            sgid_index: address.source_gid_index,
            hop_limit: address.hop_limit,
            traffic_class: address.traffic_class,
        },
        dlid: 0,
        sl: address.service_level,
        src_path_bits: 0,
        static_rate: 0,
        // RoCEv2 always carries a global route.
        is_global: 1,
        port_num: address.port,
    })
}
