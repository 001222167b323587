//! A piece of registered memory, lent to the application.

use core::fmt;

use doorbell_core::provider::{Provider, Slot};
use doorbell_ffi::Rdma;

/// A slot of registered memory that the application owns until it sends or drops it.
///
/// Its length is what is meant of it: what will be sent, or what arrived. Dropping it sends
/// it home to its Worker from any thread; [`crate::Worker::release`] is the cheaper way on
/// the Worker's own.
pub struct Lease<P: Provider = Rdma> {
    pub(crate) slot: P::Slot,
}

/// Error: more bytes than a lease holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong {
    /// The bytes there were.
    pub bytes: usize,
    /// The bytes a lease holds.
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
    /// Which slot it is of the memory it is from, from 0, in the order they lie in.
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

    /// Sets the length of the message, at most the capacity.
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

    /// Copies `bytes` in, and sets the length to theirs.
    ///
    /// # Errors
    /// They do not fit; the lease is as it was.
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
