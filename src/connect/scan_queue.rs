//! Arrived peers that wait for a scan of the local ports.

use doorbell_core::Deadline;
use doorbell_core::handshake::Io;
use doorbell_core::network::Network;
use doorbell_core::provider::Provider;
use doorbell_core::wire::{FrameBuffer, Reject};

use crate::connect::node::Node;
use crate::connect::port_scan::{PendingScan, ScanError};
use crate::rails::Rails;

/// Peers that wait for a scan of the local ports. One scan serves all peers that arrive before it ends.
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

    /// Adds a peer to the scan in progress. If there is none, `scan` begins one.
    pub(crate) fn enter(&mut self, one: T, scan: impl FnOnce() -> PendingScan) {
        self.waiting.push(one);
        self.pending.get_or_insert_with(scan);
    }

    /// Returns all waiting peers in the order of arrival, with the rails or the error of the scan. `None` while the scan is in progress.
    pub(crate) fn leave<P: Provider, N: Network>(
        &mut self,
        node: &Node<P, N>,
        devices: &[&str],
    ) -> Option<(Vec<T>, Result<Rails, ScanError>)> {
        let found = self.pending.as_ref()?.take_of(node, devices)?;
        self.pending = None;
        Some((core::mem::take(&mut self.waiting), found))
    }

    /// Returns the waiting peers, so that the caller can reject some.
    pub(crate) const fn waiting(&mut self) -> &mut Vec<T> {
        &mut self.waiting
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether a scan is in progress. All its peers may have been rejected meanwhile.
    pub(crate) const fn is_scanning(&self) -> bool {
        self.pending.is_some()
    }

    /// Returns when the scan times out.
    pub(crate) fn deadline(&self) -> Option<Deadline> {
        self.pending.as_ref().map(PendingScan::deadline)
    }
}

/// Sends a Reject to a peer, as far as its stream accepts bytes without blocking.
pub(crate) fn send_reject(stream: &mut impl Io, reject: &Reject) {
    let reject = FrameBuffer::reject(reject);
    // An error means that the peer is gone, and needs no Reject.
    let _ = stream.write(reject.as_bytes());
}
