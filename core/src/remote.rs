//! Memory of a peer: rights on it, its windows, and the addresses that requests name.
//!
//! A window is laid out as frames and messages carry it. Registration and posting are in `provider`.

use core::fmt;
use core::mem::{offset_of, size_of};

use static_assertions::const_assert_eq;
use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{Access, Rkey};

/// Access rights of a peer to a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteAccess {
    /// The peer may WRITE.
    pub write: bool,
    /// The peer may READ.
    pub read: bool,
    /// The peer may run atomics.
    pub atomic: bool,
}

impl RemoteAccess {
    /// No rights: for memory that only this host's requests use.
    pub const NONE: Self = Self {
        write: false,
        read: false,
        atomic: false,
    };
    /// READ only.
    pub const READ: Self = Self {
        write: false,
        read: true,
        atomic: false,
    };
    /// WRITE only.
    pub const WRITE: Self = Self {
        write: true,
        read: false,
        atomic: false,
    };
    /// All rights.
    pub const ALL: Self = Self {
        write: true,
        read: true,
        atomic: true,
    };

    /// The rights to register with, never with relaxed ordering.
    #[must_use]
    pub const fn to_access(self) -> Access {
        let mut access = Access::empty();
        if self.write {
            access = access.union(Access::REMOTE_WRITE).union(Access::LOCAL_WRITE);
        }
        if self.atomic {
            access = access.union(Access::REMOTE_ATOMIC).union(Access::LOCAL_WRITE);
        }
        if self.read {
            access = access.union(Access::REMOTE_READ);
        }
        access
    }
}

/// The size of a [`RemoteWindow`] on the wire, in bytes.
pub const REMOTE_WINDOW_BYTES: usize = 20;

/// A window in a peer's memory: address u64, rights u8, length 7 bytes, rkey u32, big-endian, in this order.
///
/// The rights are bits: 1 WRITE, 2 READ, 4 atomics; zero if they are not stated.
///
/// Any 20 bytes are a valid window. Its content is only as trustworthy as the peer that sent it;
/// the peer's device checks every access. A window fits in a message, or in the private data of a
/// handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RemoteWindow {
    address: U64,
    /// The rights in the highest byte.
    length_bytes: U64,
    rkey: U32,
}

const RIGHTS_SHIFT: u32 = 56;
const LENGTH_MASK: u64 = (1 << RIGHTS_SHIFT) - 1;
const WRITE: u64 = 1 << RIGHTS_SHIFT;
const READ: u64 = 2 << RIGHTS_SHIFT;
const ATOMIC: u64 = 4 << RIGHTS_SHIFT;

const_assert_eq!(size_of::<RemoteWindow>(), REMOTE_WINDOW_BYTES);

impl fmt::Display for RemoteWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {:#x}", self.length_bytes(), self.address())
    }
}

impl RemoteWindow {
    /// The offset of the byte with the rights.
    pub(crate) const ACCESS_OFFSET: usize = offset_of!(Self, length_bytes);

    /// A window of `length_bytes` from `address` on, with the key `rkey`. The length is limited to 2^56 - 1. The rights are not stated.
    #[must_use]
    pub const fn new(address: u64, length_bytes: u64, rkey: Rkey) -> Self {
        let length_bytes = if length_bytes > LENGTH_MASK {
            LENGTH_MASK
        } else {
            length_bytes
        };
        Self {
            address: U64::new(address),
            length_bytes: U64::new(length_bytes),
            rkey: U32::new(rkey.0),
        }
    }

    /// The window with the rights that its owner grants. Without any right, the rights count as not stated.
    #[must_use]
    pub const fn with_access(self, access: RemoteAccess) -> Self {
        let write = if access.write { WRITE } else { 0 };
        let read = if access.read { READ } else { 0 };
        let atomic = if access.atomic { ATOMIC } else { 0 };
        Self {
            length_bytes: U64::new(self.length_bytes() | write | read | atomic),
            ..self
        }
    }

    /// The window without rights: for frames that carry the rights in a separate field, or need none.
    #[must_use]
    pub const fn without_access(self) -> Self {
        Self {
            length_bytes: U64::new(self.length_bytes()),
            ..self
        }
    }

    /// The rights that its owner grants; `None` if they are not stated.
    #[must_use]
    pub const fn access(&self) -> Option<RemoteAccess> {
        let word = self.length_bytes.get();
        if word & (WRITE | READ | ATOMIC) == 0 {
            return None;
        }
        Some(RemoteAccess {
            write: word & WRITE != 0,
            read: word & READ != 0,
            atomic: word & ATOMIC != 0,
        })
    }

    /// The window in these bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; REMOTE_WINDOW_BYTES]) -> Self {
        zerocopy::transmute!(bytes)
    }

    /// The bytes of the window, as they are sent to a peer.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; REMOTE_WINDOW_BYTES] {
        zerocopy::transmute!(self)
    }

    /// The byte with the rights, unchecked.
    pub(crate) const fn access_bits(&self) -> u8 {
        let [bits, ..] = self.length_bytes.get().to_be_bytes();
        bits
    }

    /// The first address, in the address space of the window's owner.
    #[must_use]
    pub const fn address(&self) -> u64 {
        self.address.get()
    }

    /// The length in bytes.
    #[must_use]
    pub const fn length_bytes(&self) -> u64 {
        self.length_bytes.get() & LENGTH_MASK
    }

    /// The remote key.
    #[must_use]
    pub const fn rkey(&self) -> Rkey {
        Rkey(self.rkey.get())
    }

    /// The address at `offset`, or `None` if `length_bytes` from there are not within the window.
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

/// An address in a peer's memory with its rkey, and the number of bytes that a request may access from there on.
///
/// [`RemoteAddress::within`] makes an address within a [`RemoteWindow`]. Posting refuses a request that exceeds its range,
/// or that needs a right that the window does not grant. [`RemoteAddress::new`] makes an address of plain integers, for an
/// engine that does its own checks: then only the peer's device checks the request.
///
/// Each right has a limit, which is zero if the right is missing. So posting compares only one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteAddress {
    address: u64,
    rkey: Rkey,
    write_bytes_max: u32,
    read_bytes_max: u32,
    atomic_bytes_max: u32,
}

/// The maximum number of bytes of a request, on any device. Source: InfiniBand Architecture volume 1, section 9.7.1.
pub const REQUEST_BYTES_MAX: u32 = 1 << 31;

impl RemoteAddress {
    /// An address with its key, and nothing else known. The peer's device decides about a request when it arrives. A request
    /// that it refuses fails the queue pair.
    #[must_use]
    pub const fn new(address: u64, rkey: Rkey) -> Self {
        Self {
            address,
            rkey,
            write_bytes_max: REQUEST_BYTES_MAX,
            read_bytes_max: REQUEST_BYTES_MAX,
            atomic_bytes_max: REQUEST_BYTES_MAX,
        }
    }

    /// The `bytes` at `offset` in a peer's window, with the rights of the window, or `None` if they are not within it. If the
    /// rights are not stated, all are assumed.
    #[must_use]
    pub const fn within(window: &RemoteWindow, offset: u64, bytes: u64) -> Option<Self> {
        let Some(address) = window.address_of(offset, bytes) else {
            return None;
        };
        #[expect(clippy::cast_possible_truncation, reason = "below 2^31")]
        let limit = if bytes < REQUEST_BYTES_MAX as u64 {
            bytes as u32
        } else {
            REQUEST_BYTES_MAX
        };
        let access = match window.access() {
            Some(access) => access,
            None => RemoteAccess::ALL,
        };
        Some(Self {
            address,
            rkey: window.rkey(),
            write_bytes_max: if access.write { limit } else { 0 },
            read_bytes_max: if access.read { limit } else { 0 },
            atomic_bytes_max: if access.atomic { limit } else { 0 },
        })
    }

    /// The address, in the peer's address space.
    #[must_use]
    #[inline]
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// The remote key.
    #[must_use]
    #[inline]
    pub const fn rkey(&self) -> Rkey {
        self.rkey
    }

    /// The maximum number of bytes of a WRITE; zero if the window does not grant WRITEs.
    #[must_use]
    #[inline]
    pub const fn write_bytes_max(&self) -> u32 {
        self.write_bytes_max
    }

    /// The maximum number of bytes of a READ; zero if the window does not grant READs.
    #[must_use]
    #[inline]
    pub const fn read_bytes_max(&self) -> u32 {
        self.read_bytes_max
    }

    /// The maximum number of bytes of an atomic; zero if the window does not grant atomics.
    #[must_use]
    #[inline]
    pub const fn atomic_bytes_max(&self) -> u32 {
        self.atomic_bytes_max
    }
}

#[cfg(test)]
mod tests {
    use super::{REQUEST_BYTES_MAX, RemoteAccess, RemoteAddress, RemoteWindow};
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
    fn rights_stand_in_front_of_the_length() {
        let window = RemoteWindow::new(1000, u64::MAX, Rkey(1));
        assert_eq!((window.length_bytes(), window.access()), ((1 << 56) - 1, None));
        for bits in 1..8_u8 {
            let access = RemoteAccess {
                write: bits & 1 != 0,
                read: bits & 2 != 0,
                atomic: bits & 4 != 0,
            };
            let stated = window.with_access(access);
            assert_eq!(stated.to_bytes()[8], bits);
            assert_eq!(stated.access(), Some(access));
            assert_eq!(stated.length_bytes(), window.length_bytes());
            assert_eq!(stated.without_access(), window);
            assert_eq!(
                stated.with_access(RemoteAccess::READ).access(),
                Some(RemoteAccess::READ)
            );
        }
    }

    #[test]
    fn an_address_has_the_limits_of_its_range_and_rights() {
        let window = RemoteWindow::new(1000, 100, Rkey(1));
        let limits = |at: RemoteAddress| [at.write_bytes_max(), at.read_bytes_max(), at.atomic_bytes_max()];
        let within = |window: RemoteWindow, bytes| RemoteAddress::within(&window, 4, bytes);
        assert_eq!(within(window, 97), None);
        let at = within(window, 96).unwrap();
        assert_eq!((at.address(), at.rkey()), (1004, Rkey(1)));
        assert_eq!(
            limits(at),
            [96; 3],
            "rights that are not stated are left to the peer's device"
        );
        let read_only = window.with_access(RemoteAccess::READ);
        assert_eq!(limits(within(read_only, 8).unwrap()), [0, 8, 0]);
        let write_only = window.with_access(RemoteAccess::WRITE);
        assert_eq!(limits(within(write_only, 8).unwrap()), [8, 0, 0]);
        let large = RemoteWindow::new(0, 1 << 40, Rkey(1));
        assert_eq!(limits(within(large, 1 << 32).unwrap()), [REQUEST_BYTES_MAX; 3]);
        assert_eq!(limits(RemoteAddress::new(7, Rkey(1))), [REQUEST_BYTES_MAX; 3]);
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
