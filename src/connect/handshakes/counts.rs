//! Counts of the handshakes, for monitoring.

use core::fmt;
use std::sync::{Mutex, PoisonError};

use doorbell_core::sync::{AtomicU64, Ordering};

use crate::error::ConnectError;
use crate::trust::Refusals;

/// Counters, and the reason for the last failure. Relaxed: each counter is read for itself, and orders no other data.
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

/// Counts of the handshakes of a listener, by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HandshakeCounts {
    /// Handshakes that were begun.
    pub begun: u64,
    /// Handshakes that succeeded. Their connections were accepted, or wait to be accepted.
    pub connected: u64,
    /// Handshakes that failed, whichever side was at fault. Peers that were rejected for their TCP address count, too.
    pub failed: u64,
    /// Peers that were rejected because there were too many, before they had proven themselves.
    pub refused: u64,
    /// Failures to accept a TCP stream, for example because the process has too many open files.
    pub port_failures: u64,
    /// The failed handshakes whose cause was a key or an address.
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

    /// Keeps the reason for the last failure, for [`Counts::take_failure`].
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
