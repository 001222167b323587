//! Identities that are unique in the process, so that what is of one fabric is never taken
//! for what is of another.

use core::sync::atomic::{AtomicU64, Ordering};

use doorbell_core::SharedReceiveId;
use doorbell_core::ledger::QueueId;

/// Names a protection domain, or a queue, of any fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Id(u64);

impl Id {
    pub(crate) fn fresh() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // Relaxed: only the number matters. It does not come round.
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Its number, as address handles of a queue pair of this name carry it.
    pub(crate) const fn to_u64(self) -> u64 {
        self.0
    }

    /// Its number, as events about a shared receive queue of this name carry it.
    pub(crate) const fn to_shared_receive(self) -> SharedReceiveId {
        SharedReceiveId(self.0)
    }

    /// Its number, as completions of a queue of this name carry it.
    pub(crate) const fn to_queue(self) -> QueueId {
        QueueId(self.0)
    }
}
