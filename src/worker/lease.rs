//! Leases: slots of registered memory that the application holds.

use core::fmt;

use doorbell_core::provider::{Provider, Slot};
use doorbell_ffi::Rdma;

/// A slot of registered memory that the application owns until it sends or drops it.
///
/// The length of the lease is the length of the message that will be sent or that was received. Dropping a lease, on any thread,
/// returns the slot to its arena. On the Worker's thread [`crate::Worker::release`] is cheaper.
pub struct Lease<P: Provider = Rdma> {
    pub(crate) slot: P::Slot,
}

/// Error: the bytes do not fit into the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong {
    /// The number of bytes to copy.
    pub bytes: usize,
    /// The capacity of the lease in bytes.
    pub capacity_bytes: usize,
}

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} bytes, where a lease holds {}: fill in less, or raise slot_bytes",
            self.bytes, self.capacity_bytes
        )
    }
}

impl core::error::Error for TooLong {}

impl<P: Provider> Lease<P> {
    /// Returns the index of the slot in its arena, from 0, in the order of addresses.
    #[must_use]
    #[inline]
    pub fn index(&self) -> u32 {
        self.slot.index()
    }

    /// Returns the capacity in bytes.
    #[must_use]
    #[inline]
    pub fn capacity_bytes(&self) -> usize {
        self.slot.capacity_bytes()
    }

    /// Returns the length of the message in the slot.
    #[must_use]
    #[inline]
    pub fn len_bytes(&self) -> usize {
        self.slot.len_bytes()
    }

    /// Sets the length of the message. A length above the capacity is cut to the capacity.
    #[inline]
    pub fn set_len_bytes(&mut self, bytes: usize) {
        self.slot.set_len_bytes(bytes);
    }

    /// Returns the bytes of the message.
    #[must_use]
    #[inline]
    pub fn payload(&self) -> &[u8] {
        self.slot.payload()
    }

    /// Returns all bytes of the slot, whatever the length of the message.
    #[inline]
    pub fn buffer_mut(&mut self) -> &mut [u8] {
        self.slot.buffer_mut()
    }

    /// Copies `bytes` into the slot, and sets the length to their number.
    ///
    /// # Errors
    /// The bytes exceed the capacity; the lease is unchanged.
    #[inline]
    pub fn fill(&mut self, bytes: &[u8]) -> Result<(), TooLong> {
        let capacity_bytes = self.slot.capacity_bytes();
        let Some(target) = self.slot.buffer_mut().get_mut(..bytes.len()) else {
            return Err(TooLong {
                bytes: bytes.len(),
                capacity_bytes,
            });
        };
        target.copy_from_slice(bytes);
        self.slot.set_len_bytes(bytes.len());
        Ok(())
    }
}

impl<P: Provider> fmt::Debug for Lease<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("len_bytes", &self.len_bytes())
            .field("capacity_bytes", &self.capacity_bytes())
            .finish_non_exhaustive()
    }
}
