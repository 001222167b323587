//! The interfaces that a cache calls: registration by a device, and the watch on mappings. Tests replace both.

use doorbell_core::provider::ProviderError;
use doorbell_core::registrations::AddressRange;
use doorbell_core::{Access, Lkey};
use doorbell_ffi::{PinnedMemory, ProtectionDomain, RangeRegistration};
use std::sync::Arc;

use crate::memory::statistics::Uncached;

/// Registers ranges in one protection domain.
pub(super) trait Registrar: Clone + Send + Sync + 'static {
    /// A registration. Dropping it deregisters the memory.
    type Registered: Send + Sync + 'static;

    /// Registers a range, which pins its pages.
    fn register(&self, range: AddressRange, access: Access) -> Result<Self::Registered, ProviderError>;

    /// Returns the key for work requests.
    fn lkey(registered: &Self::Registered) -> Lkey;

    /// Returns the process's pinned bytes and their limit.
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

/// Watches mappings, and has a thread that deregisters retired registrations.
pub(super) trait Watch: Send + Sync + 'static {
    /// Begins to report changes of the mappings in this range.
    fn arm(&self, range: AddressRange) -> Result<(), Uncached>;

    /// Whether all changes from before this call are handled.
    fn is_settled(&self) -> bool;

    /// Wakes the thread that deregisters retired registrations. Returns `false` if there is no such thread.
    fn deregister_elsewhere(&self) -> bool;
}

/// Receiver of the reports of a watch.
pub(super) trait Subscriber: Send + Sync {
    /// Removes the registrations of a range from look-ups. Returns whether some have to be deregistered. The call does not
    /// allocate or free, and makes no call of a device.
    fn invalidate(&self, range: AddressRange) -> bool;

    /// Deregisters all retired registrations.
    fn deregister(&self);
}
