//! Memory that a peer writes.

use std::sync::{Arc, Mutex};

use doorbell_core::Rkey;
use doorbell_core::provider::{DomainId, OutOfWindow, Placement, RevokeError, Window};
use doorbell_core::wire::RemoteWindow;

/// A window at address zero.
pub(crate) struct Memory(Mutex<Vec<u8>>);

impl Memory {
    pub(crate) fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(vec![0; bytes])))
    }

    /// Writes as a peer's WRITE does.
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        self.0.lock().unwrap()[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub(crate) fn look(&self, at: usize, bytes: usize) -> Vec<u8> {
        self.0.lock().unwrap()[at..at + bytes].to_vec()
    }

    pub(crate) fn word(&self, at: usize) -> [u8; 8] {
        self.look(at, 8).try_into().unwrap()
    }
}

impl Window for Memory {
    fn domain(&self) -> DomainId {
        DomainId(0)
    }
    fn is_in_flight(&self) -> bool {
        false
    }
    fn deregister(&mut self) -> Result<(), RevokeError> {
        unreachable!()
    }
    fn bytes(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    fn placement(&self) -> Placement {
        Placement::unplaced(8, 8)
    }

    fn remote(&self) -> RemoteWindow {
        RemoteWindow::new(0, self.bytes() as u64, Rkey(1))
    }

    fn copy_out(&self, offset: usize, destination: &mut [u8]) -> Result<(), OutOfWindow> {
        destination.copy_from_slice(&self.look(offset, destination.len()));
        Ok(())
    }

    fn copy_in(&self, _: usize, _: &[u8]) -> Result<(), OutOfWindow> {
        unreachable!("it is written by the peer")
    }

    fn load_u8(&self, offset: usize) -> Result<u8, OutOfWindow> {
        Ok(self.look(offset, 1)[0])
    }

    fn store_u64(&self, _: usize, _: u64) -> Result<(), OutOfWindow> {
        unreachable!()
    }
    fn compare_exchange_u64(&self, _: usize, _: u64, _: u64) -> Result<u64, OutOfWindow> {
        unreachable!()
    }
    fn load_u64(&self, offset: usize) -> Result<u64, OutOfWindow> {
        assert_eq!(offset % 8, 0);
        Ok(u64::from_ne_bytes(self.word(offset)))
    }
}
