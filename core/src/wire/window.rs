//! What lets a peer READ or WRITE a window of our memory.

use core::mem::size_of;

use static_assertions::const_assert_eq;
use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Rkey;

/// The size of a [`RemoteWindow`] on the wire, in bytes.
pub const REMOTE_WINDOW_BYTES: usize = 20;

/// A window in a peer's memory: address u64, length u64, rkey u32, big-endian, in this order.
///
/// Any 20 bytes are one: it is as true as the peer that sent it, and its device checks every
/// access. It fits the private data of a handshake, or a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RemoteWindow {
    address: U64,
    length_bytes: U64,
    rkey: U32,
}

const_assert_eq!(size_of::<RemoteWindow>(), REMOTE_WINDOW_BYTES);

impl RemoteWindow {
    /// A window of `length_bytes` from `address`, opened by `rkey`.
    #[must_use]
    pub const fn new(address: u64, length_bytes: u64, rkey: Rkey) -> Self {
        Self {
            address: U64::new(address),
            length_bytes: U64::new(length_bytes),
            rkey: U32::new(rkey.0),
        }
    }

    /// The window that these bytes name.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; REMOTE_WINDOW_BYTES]) -> Self {
        zerocopy::transmute!(bytes)
    }

    /// Its bytes, as they go to a peer.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; REMOTE_WINDOW_BYTES] {
        zerocopy::transmute!(self)
    }

    /// Its first address, in the peer's numbering.
    #[must_use]
    pub const fn address(&self) -> u64 {
        self.address.get()
    }

    /// Its length in bytes.
    #[must_use]
    pub const fn length_bytes(&self) -> u64 {
        self.length_bytes.get()
    }

    /// The key that opens it.
    #[must_use]
    pub const fn rkey(&self) -> Rkey {
        Rkey(self.rkey.get())
    }

    /// The address of `length_bytes` at `offset`, or `None` where they do not lie within the window.
    #[must_use]
    pub const fn address_of(&self, offset: u64, length_bytes: u64) -> Option<u64> {
        let Some(end) = offset.checked_add(length_bytes) else {
            return None;
        };
        if end > self.length_bytes() || self.address().checked_add(end).is_none() {
            return None;
        }
        self.address().checked_add(offset)
    }
}

#[cfg(test)]
mod tests {
    use super::RemoteWindow;
    use crate::Rkey;
    use zerocopy::{FromBytes, IntoBytes};

    #[test]
    fn golden_bytes() {
        let window = RemoteWindow::new(0x0102_0304_0506_0708, 0x1122, Rkey(0xdead_beef));
        let golden = [
            1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0x11, 0x22, 0xde, 0xad, 0xbe, 0xef,
        ];
        assert_eq!(window.as_bytes(), golden);
        assert_eq!(RemoteWindow::read_from_bytes(&golden), Ok(window));
        assert_eq!(window.to_bytes(), golden);
        assert_eq!(RemoteWindow::from_bytes(golden), window);
    }

    #[test]
    fn nothing_outside_is_reachable() {
        let window = RemoteWindow::new(1000, 100, Rkey(1));
        assert_eq!(window.address_of(0, 100), Some(1000));
        assert_eq!(window.address_of(100, 0), Some(1100));
        assert_eq!(window.address_of(1, 100), None);
        assert_eq!(window.address_of(u64::MAX, 2), None);
        // A hostile descriptor that wraps round the end of the address space.
        let wrapping = RemoteWindow::new(u64::MAX, 100, Rkey(1));
        assert_eq!(wrapping.address_of(0, 0), Some(u64::MAX));
        assert_eq!(wrapping.address_of(0, 1), None);
    }
}
