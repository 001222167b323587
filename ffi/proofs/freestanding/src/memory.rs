//! Memory: slots that are values, and the one word in which receives are announced.

use doorbell_core::Rkey;
use doorbell_core::provider::{
    Arena, Attacher, DetachedSlot, DomainId, OutOfWindow, Placement, RevokeError, Slot, Window,
};
use doorbell_core::wire::RemoteWindow;

use crate::device::DEVICE;

const SLOT_BYTES: u32 = 64;
const SLOTS: u32 = 64;

/// A slot: the bytes themselves.
#[derive(Debug)]
pub(crate) struct Bytes {
    bytes: [u8; SLOT_BYTES as usize],
    length: usize,
}

impl Bytes {
    /// The same slot, holding these bytes as far as they fit.
    pub(crate) fn holding(mut self, bytes: &[u8]) -> Self {
        for (place, byte) in self.bytes.iter_mut().zip(bytes) {
            *place = *byte;
        }
        self.set_len_bytes(bytes.len());
        self
    }
}

impl Slot for Bytes {
    fn domain(&self) -> DomainId {
        DomainId(0)
    }

    fn index(&self) -> u32 {
        0
    }

    fn capacity_bytes(&self) -> usize {
        self.bytes.len()
    }
    fn len_bytes(&self) -> usize {
        self.length
    }
    fn set_len_bytes(&mut self, bytes: usize) {
        self.length = bytes.min(self.bytes.len());
    }
    fn payload(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
    fn buffer_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
    fn detach(self) -> DetachedSlot {
        // Nothing here goes to another thread: a leak, as lost words are.
        DetachedSlot {
            index: 0,
            len_bytes: 0,
            tag: 0,
        }
    }
}

/// An arena: how many of its slots are out.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    out: u32,
}

/// Attacher that attaches nothing: no slot is detached here.
#[derive(Clone, Debug)]
pub(crate) struct NoWords;

impl Attacher for NoWords {
    type Slot = Bytes;

    fn attach(&self, _: DetachedSlot) -> Option<Bytes> {
        None
    }
    fn owns(&self, _: &Bytes) -> bool {
        false
    }
}

impl Arena for Memory {
    type Slot = Bytes;
    type Attacher = NoWords;

    fn lease(&mut self) -> Option<Bytes> {
        if self.out == SLOTS {
            return None;
        }
        self.out = self.out.saturating_add(1);
        Some(Bytes {
            bytes: [0; SLOT_BYTES as usize],
            length: 0,
        })
    }
    fn release(&mut self, _: Bytes) {
        self.out = self.out.saturating_sub(1);
    }
    fn attach(&mut self, _: DetachedSlot) -> Option<Bytes> {
        None
    }
    fn attacher(&self) -> NoWords {
        NoWords
    }
    fn slots(&self) -> u32 {
        SLOTS
    }
    fn free_slots(&mut self) -> u32 {
        SLOTS.saturating_sub(self.out)
    }
    fn slot_bytes(&self) -> u32 {
        SLOT_BYTES
    }
    fn placement(&self) -> Placement {
        Placement::unplaced(0, 0)
    }
}

/// A window of the device's one word.
#[derive(Debug)]
pub(crate) struct Word;

impl Word {
    const fn outside(offset: usize, bytes: usize) -> OutOfWindow {
        OutOfWindow {
            offset,
            bytes,
            window_bytes: 8,
        }
    }
}

impl Window for Word {
    fn domain(&self) -> DomainId {
        DomainId(0)
    }
    fn is_in_flight(&self) -> bool {
        false
    }
    fn deregister(&mut self) -> Result<(), RevokeError> {
        Err(RevokeError::InFlight)
    }
    fn bytes(&self) -> usize {
        8
    }
    fn placement(&self) -> Placement {
        Placement::unplaced(8, 8)
    }
    fn remote(&self) -> RemoteWindow {
        RemoteWindow::new(0, 8, Rkey(0))
    }
    fn copy_out(&self, offset: usize, to: &mut [u8]) -> Result<(), OutOfWindow> {
        Err(Self::outside(offset, to.len()))
    }
    fn copy_in(&self, offset: usize, from: &[u8]) -> Result<(), OutOfWindow> {
        Err(Self::outside(offset, from.len()))
    }
    fn load_u8(&self, offset: usize) -> Result<u8, OutOfWindow> {
        Err(Self::outside(offset, 1))
    }
    fn store_u64(&self, offset: usize, _: u64) -> Result<(), OutOfWindow> {
        Err(Self::outside(offset, 8))
    }
    fn compare_exchange_u64(&self, offset: usize, _: u64, _: u64) -> Result<u64, OutOfWindow> {
        Err(Self::outside(offset, 8))
    }
    fn load_u64(&self, offset: usize) -> Result<u64, OutOfWindow> {
        if offset != 0 {
            return Err(Self::outside(offset, 8));
        }
        Ok(DEVICE.announced())
    }
}
