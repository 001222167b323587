//! The calls that a cache makes: a device's registration, and the watch on mappings. Tests stand in for both.

use doorbell_core::provider::ProviderError;
use doorbell_core::registrations::AddressRange;
use doorbell_core::{Access, Lkey};
use doorbell_ffi::{PinnedMemory, ProtectionDomain, RangeRegistration};
use std::sync::Arc;

use crate::memory::statistics::Uncached;

/// Registers ranges in one protection domain.
pub(super) trait Registrar: Clone + Send + Sync + 'static {
    /// A registration, which its drop ends.
    type Registered: Send + Sync + 'static;

    /// Pins the pages of a range.
    fn register(&self, range: AddressRange, access: Access) -> Result<Self::Registered, ProviderError>;

    /// The key by which work requests name it.
    fn lkey(registered: &Self::Registered) -> Lkey;

    /// Looks at the limit on pinned memory.
    fn pinned(&self) -> PinnedMemory;
}

impl Registrar for Arc<ProtectionDomain> {
    type Registered = RangeRegistration;

    fn register(&self, range: AddressRange, access: Access) -> Result<RangeRegistration, ProviderError> {
        self.register_range(range, access)
    }

    fn lkey(registered: &RangeRegistration) -> Lkey {
        registered.lkey()
    }

    fn pinned(&self) -> PinnedMemory {
        doorbell_ffi::pinned_memory()
    }
}

/// Watches mappings, and has retired registrations deregistered.
pub(super) trait Watch: Send + Sync + 'static {
    /// Reports changes of these mappings from now on.
    fn arm(&self, range: AddressRange) -> Result<(), Uncached>;

    /// Whether all changes that happened before this call are handled.
    fn is_settled(&self) -> bool;

    /// Has retired registrations deregistered on another thread. `false` if there is none.
    fn deregister_elsewhere(&self) -> bool;
}

/// Receiver of the reports of a watch.
pub(super) trait Subscriber: Send + Sync {
    /// Takes registrations of a range out of reach. Returns whether some have to be deregistered. It allocates nothing,
    /// frees nothing and calls no device.
    fn invalidate(&self, range: AddressRange) -> bool;

    /// Deregisters what is retired.
    fn deregister(&self);
}
