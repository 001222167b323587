//! Wake-up of a sleeping Worker by the threads that submit to it.

use core::fmt;

use doorbell_core::provider::{CompletionQueue, Provider, Waker};
use doorbell_hotpath::SleepFlag;

/// Wakes a Worker that announced a sleep.
pub(crate) struct Bell<P: Provider> {
    flag: SleepFlag,
    waker: <P::CompletionQueue as CompletionQueue>::Waker,
}

impl<P: Provider> Bell<P> {
    /// Makes a bell for the thread that sleeps at this queue. `None` if the queue was made without notification, so no thread can
    /// sleep.
    pub(crate) fn new(queue: &P::CompletionQueue) -> Option<Self> {
        Some(Self {
            flag: SleepFlag::new(),
            waker: queue.waker()?,
        })
    }

    /// Returns the flag that the sleeping thread sets.
    pub(crate) const fn flag(&self) -> &SleepFlag {
        &self.flag
    }

    /// Wakes the Worker if it announced a sleep. Called after a request was pushed into a ring.
    #[inline]
    pub(super) fn ring(&self) {
        if self.flag.must_wake() {
            self.waker.wake();
        }
    }
}

impl<P: Provider> fmt::Debug for Bell<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Bell").field(&self.flag).finish()
    }
}
