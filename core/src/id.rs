//! Numbers that identify objects on the wire and in the device: queue pairs, packets, keys.

use core::fmt;

/// The largest value a 24-bit wire field holds.
const MAX_24: u32 = 0x00ff_ffff;

/// A queue pair number: 24 bits, assigned by the device.
///
/// Source: InfiniBand Architecture volume 1, section 9.2 (BTH, destination QP).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Qpn(u32);

impl Qpn {
    /// The number, or `None` where it needs more than 24 bits.
    #[must_use]
    pub const fn new(raw: u32) -> Option<Self> {
        if raw <= MAX_24 { Some(Self(raw)) } else { None }
    }

    /// The low 24 bits of `raw`, for a number that a device reports: it never has more bits.
    #[must_use]
    #[inline]
    pub const fn from_low_bits(raw: u32) -> Self {
        Self(raw & MAX_24)
    }

    /// The number in the low 24 bits.
    #[must_use]
    pub const fn to_u32(self) -> u32 {
        self.0
    }
}

/// A packet sequence number: 24 bits, compared serially, so it has no total order.
///
/// Source: InfiniBand Architecture volume 1, section 9.2 (BTH, PSN) and 9.7.1.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Psn(u32);

impl Psn {
    /// The number, or `None` where it needs more than 24 bits.
    #[must_use]
    pub const fn new(raw: u32) -> Option<Self> {
        if raw <= MAX_24 { Some(Self(raw)) } else { None }
    }

    /// The low 24 bits of `raw`, for a random number.
    #[must_use]
    pub const fn from_low_bits(raw: u32) -> Self {
        Self(raw & MAX_24)
    }

    /// The number in the low 24 bits.
    #[must_use]
    pub const fn to_u32(self) -> u32 {
        self.0
    }

    /// The number of the packet `packets` later, modulo 2^24.
    #[must_use]
    pub const fn advance(self, packets: u32) -> Self {
        Self(self.0.wrapping_add(packets) & MAX_24)
    }

    /// The signed distance from `earlier` to `self`, in -2^23 .. 2^23.
    #[must_use]
    pub const fn distance_from(self, earlier: Self) -> i32 {
        // In the upper bits of the word, the machine's arithmetic wraps at 24 bits.
        let shifted = self.0.wrapping_sub(earlier.0) << 8;
        i32::from_ne_bytes(shifted.to_ne_bytes()) >> 8
    }
}

/// The local key of registered memory, which local gather and scatter elements carry.
///
/// Source: InfiniBand Architecture volume 1, section 10.6.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lkey(pub u32);

/// The remote key of registered memory, which a peer needs for one-sided requests.
///
/// A key is not a secret: devices assign keys predictably. Source: InfiniBand Architecture
/// volume 1, section 10.6.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rkey(pub u32);

/// The key of a datagram queue pair: a datagram without it is dropped (S31). Like all keys it is not a secret.
///
/// Source: InfiniBand Architecture volume 1, section 10.2.5.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Qkey(u32);

impl Qkey {
    /// The key, or `None` if its highest bit is set: a device would replace such a key by the queue pair's own.
    #[must_use]
    pub const fn new(raw: u32) -> Option<Self> {
        if raw >> 31 == 0 { Some(Self(raw)) } else { None }
    }

    /// The low 31 bits of `raw`, for a random number.
    #[must_use]
    pub const fn from_low_bits(raw: u32) -> Self {
        Self(raw & (u32::MAX >> 1))
    }

    /// The number of the key.
    #[must_use]
    pub const fn to_u32(self) -> u32 {
        self.0
    }
}

/// Identifies a shared receive queue: unique in the process, and never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SharedReceiveId(pub u64);

macro_rules! hexadecimal {
    ($($name:ident: $width:literal),+) => {$(
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#0", $width, "x})"), self.0)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!("{:#0", $width, "x}"), self.0)
            }
        }
    )+};
}

hexadecimal!(Qpn: "8", Psn: "8", Lkey: "10", Rkey: "10", Qkey: "10");

#[cfg(test)]
mod tests {
    use super::{Psn, Qkey, Qpn};

    #[test]
    fn numbers_are_24_bits() {
        assert!(Qpn::new(0x00ff_ffff).is_some());
        assert!(Qpn::new(0x0100_0000).is_none());
        assert!(Psn::new(0x0100_0000).is_none());
        assert!(Qkey::new(0x7fff_ffff).is_some());
        assert!(Qkey::new(0x8000_0000).is_none());
        assert_eq!(Qkey::from_low_bits(u32::MAX).to_u32(), 0x7fff_ffff);
        assert_eq!(Psn::from_low_bits(0xffff_ffff).to_u32(), 0x00ff_ffff);
    }

    #[test]
    fn psn_wraps_and_compares_serially() {
        let last = Psn::from_low_bits(0x00ff_fffe);
        let wrapped = last.advance(5);
        assert_eq!(wrapped.to_u32(), 3);
        assert_eq!(wrapped.distance_from(last), 5);
        assert_eq!(last.distance_from(wrapped), -5);
        assert_eq!(
            Psn::from_low_bits(0x80_0000).distance_from(Psn::from_low_bits(0)),
            -0x80_0000
        );
        assert_eq!(
            Psn::from_low_bits(0x7f_ffff).distance_from(Psn::from_low_bits(0)),
            0x7f_ffff
        );
    }
}
