//! Whether devices have let go of memory.

use core::fmt;
use core::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Weak};

use crate::Window;
use crate::mapping::Region;

/// Says whether devices have let go of the memory of a window, which it does not keep. Clones watch the same memory.
#[derive(Clone)]
pub struct ReleaseWatch {
    memory: Weak<Region>,
}

impl ReleaseWatch {
    /// Whether no window of the memory is left, nor of a part of it: no device reaches it, and no peer. Memory that was adopted is
    /// dropped now, or was. One that a device did not let go of is never released.
    ///
    /// # Ordering
    /// The last device let go before this answers `true`.
    #[must_use]
    pub fn is_released(&self) -> bool {
        let is_released = self.memory.strong_count() == 0;
        if is_released {
            // Pairs with the release by which the last owner gave its count up, after the memory was deregistered.
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
    /// A watch for the time when devices have let go of this window's memory.
    #[must_use]
    pub fn release_watch(&self) -> ReleaseWatch {
        ReleaseWatch {
            memory: Arc::downgrade(self.region()),
        }
    }
}
