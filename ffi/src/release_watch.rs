//! Tells whether devices have released memory.

use core::fmt;
use core::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Weak};

use crate::Window;
use crate::mapping::Region;

/// Tells whether devices have released the memory of a window. The watch does not keep the memory. Clones watch the same
/// memory.
#[derive(Clone)]
pub struct ReleaseWatch {
    /// Never upgraded, since `MemoryRegion::take_lent` relies on that.
    memory: Weak<Region>,
}

impl ReleaseWatch {
    /// Whether no window of the memory or of a part of it is left, so that no device and no peer reaches it. Adopted memory
    /// then has been dropped, or is just being dropped. Memory that a device refused to deregister is never released.
    ///
    /// The watch of a window that `window_of` made covers only that one registration: other windows may still reach the
    /// same bytes.
    ///
    /// # Ordering
    /// The last device has deregistered the memory before this returns `true`.
    #[must_use]
    pub fn is_released(&self) -> bool {
        let is_released = self.memory.strong_count() == 0;
        if is_released {
            // Pairs with the release with which the last owner gave up its count, after the memory was deregistered.
            fence(Ordering::Acquire);
        }
        is_released
    }
}

impl fmt::Debug for ReleaseWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReleaseWatch(is released: {})", self.is_released())
    }
}

impl Window {
    /// Returns a watch that tells when devices have released this window's memory.
    #[must_use]
    pub fn release_watch(&self) -> ReleaseWatch {
        ReleaseWatch {
            memory: Arc::downgrade(self.region()),
        }
    }
}
