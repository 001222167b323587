//! Counts of the handshakes, for monitoring.

use core::fmt;
use std::sync::{Mutex, PoisonError};

use doorbell_core::sync::{AtomicU64, Ordering};

use crate::error::ConnectError;
use crate::trust::Refusals;

/// Counters, and the reason for the last failure. Relaxed: each is a recent value, and no more than that.
#[derive(Default)]
pub(crate) struct Counts {
    begun: AtomicU64,
    connected: AtomicU64,
    failed: AtomicU64,
    refused: AtomicU64,
    port_failures: AtomicU64,
    untrusted: Mutex<Refusals>,
    last_failure: Mutex<Option<ConnectError>>,
}

/// Counts of the handshakes beside the threads that accept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HandshakeCounts {
    /// Peers whose handshakes were begun.
    pub begun: u64,
    /// Handshakes that are done: their connections are accepted, or wait for it.
    pub connected: u64,
    /// Handshakes that failed, whichever side was at fault.
    pub failed: u64,
    /// Peers that were rejected before, since there were too many.
    pub refused: u64,
    /// Failures of the port to accept anyone: no descriptors, say.
    pub port_failures: u64,
    /// Handshakes that failed because of the identity or address of the peers.
    pub untrusted: Refusals,
}

impl Counts {
    pub(crate) fn note_begun(&self) {
        self.begun.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn note_connected(&self) {
        self.connected.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn note_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_failed(&self, error: &ConnectError) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        self.untrusted
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .count(error);
    }

    pub(crate) fn count_port_failure(&self) {
        self.port_failures.fetch_add(1, Ordering::Relaxed);
    }

    /// Keeps the reason for the last failure, for later callers.
    pub(crate) fn keep(&self, error: ConnectError) {
        *self.last_failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }

    /// Returns the reason of the last failed handshake, once.
    pub(crate) fn take_failure(&self) -> Option<ConnectError> {
        self.last_failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    pub(crate) fn snapshot(&self) -> HandshakeCounts {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        HandshakeCounts {
            begun: value(&self.begun),
            connected: value(&self.connected),
            failed: value(&self.failed),
            refused: value(&self.refused),
            port_failures: value(&self.port_failures),
            untrusted: *self.untrusted.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }
}

impl fmt::Debug for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.snapshot(), f)
    }
}
