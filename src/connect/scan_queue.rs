//! Admitted peers that wait for a scan of our ports.

use doorbell_core::Deadline;
use doorbell_core::handshake::Io;
use doorbell_core::network::Network;
use doorbell_core::provider::Provider;
use doorbell_core::wire::{FrameBuffer, Reject};

use crate::connect::node::Node;
use crate::connect::port_scan::{PendingScan, ScanError};
use crate::rails::Rails;

/// Peers that wait for a scan of our ports. One scan serves all peers that come before it is over.
pub(crate) struct ScanQueue<T> {
    waiting: Vec<T>,
    pending: Option<PendingScan>,
}

impl<T> ScanQueue<T> {
    pub(crate) const fn new() -> Self {
        Self {
            waiting: Vec::new(),
            pending: None,
        }
    }

    /// Adds a peer to the scan under way; without one, `scan` begins a scan.
    pub(crate) fn enter(&mut self, one: T, scan: impl FnOnce() -> PendingScan) {
        self.waiting.push(one);
        self.pending.get_or_insert_with(scan);
    }

    /// Returns all waiting peers in the order they came, with the rails or the error of the scan. `None` while the scan is under way.
    pub(crate) fn leave<P: Provider, N: Network>(
        &mut self,
        node: &Node<P, N>,
        devices: &[&str],
    ) -> Option<(Vec<T>, Result<Rails, ScanError>)> {
        let found = self.pending.as_ref()?.take_of(node, devices)?;
        self.pending = None;
        Some((core::mem::take(&mut self.waiting), found))
    }

    /// The waiting peers, to be rejected.
    pub(crate) const fn waiting(&mut self) -> &mut Vec<T> {
        &mut self.waiting
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether the ports are being looked at: for peers that wait, or that waited until they were rejected.
    pub(crate) const fn is_scanning(&self) -> bool {
        self.pending.is_some()
    }

    /// When they have waited for long enough.
    pub(crate) fn deadline(&self) -> Option<Deadline> {
        self.pending.as_ref().map(PendingScan::deadline)
    }
}

/// Sends a reject to a peer, as far as its stream takes it at once.
pub(crate) fn send_reject(stream: &mut impl Io, reject: &Reject) {
    let reject = FrameBuffer::reject(reject);
    // A peer that is gone needs no reject.
    let _ = stream.write(reject.as_bytes());
}
