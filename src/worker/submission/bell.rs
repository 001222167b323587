//! Waking a Worker that sleeps, by those who submit to it.

use core::fmt;

use doorbell_core::provider::{CompletionQueue, Provider, Waker};
use doorbell_hotpath::SleepFlag;

/// Wakes a Worker, where it announced that it sleeps.
pub(crate) struct Bell<P: Provider> {
    flag: SleepFlag,
    waker: <P::CompletionQueue as CompletionQueue>::Waker,
}

impl<P: Provider> Bell<P> {
    /// For who sleeps at a queue; `None` where it was made without notification, so that nobody does.
    pub(crate) fn new(queue: &P::CompletionQueue) -> Option<Self> {
        Some(Self {
            flag: SleepFlag::new(),
            waker: queue.waker()?,
        })
    }

    /// The flag, for who sleeps.
    pub(crate) const fn flag(&self) -> &SleepFlag {
        &self.flag
    }

    /// Wakes who announced a sleep. Called once something is in a ring.
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
