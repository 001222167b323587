//! The path MTU.

use core::fmt;

/// The path MTU: the maximum number of payload bytes in a packet.
///
/// The numbers of the variants are those of the wire and of `enum ibv_mtu`. Source:
/// InfiniBand Architecture volume 1, section 14.2.5.6 (PortInfo:NeighborMTU).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(
    clippy::exhaustive_enums,
    reason = "the architecture defines exactly these five"
)]
pub enum Mtu {
    /// 256 bytes.
    B256 = 1,
    /// 512 bytes.
    B512 = 2,
    /// 1024 bytes.
    B1024 = 3,
    /// 2048 bytes.
    B2048 = 4,
    /// 4096 bytes.
    B4096 = 5,
}

impl Mtu {
    /// The MTU with this number on the wire and in `enum ibv_mtu`.
    #[must_use]
    pub const fn from_wire(raw: u8) -> Option<Self> {
        match raw {
            1 => Some(Self::B256),
            2 => Some(Self::B512),
            3 => Some(Self::B1024),
            4 => Some(Self::B2048),
            5 => Some(Self::B4096),
            _ => None,
        }
    }

    /// The number of the MTU on the wire and in `enum ibv_mtu`.
    #[must_use]
    pub const fn to_wire(self) -> u8 {
        self as u8
    }

    /// The MTU of exactly this many bytes.
    #[must_use]
    pub const fn from_bytes(bytes: u32) -> Option<Self> {
        match bytes {
            256 => Some(Self::B256),
            512 => Some(Self::B512),
            1024 => Some(Self::B1024),
            2048 => Some(Self::B2048),
            4096 => Some(Self::B4096),
            _ => None,
        }
    }

    /// The MTU in bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        128 << self.to_wire()
    }
}

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::Mtu;

    #[test]
    fn wire_and_bytes_agree() {
        for raw in 1..=5 {
            let mtu = Mtu::from_wire(raw).unwrap();
            assert_eq!(mtu.to_wire(), raw);
            assert_eq!(Mtu::from_bytes(mtu.bytes()), Some(mtu));
        }
        assert_eq!(Mtu::B256.bytes(), 256);
        assert_eq!(Mtu::B4096.bytes(), 4096);
        assert_eq!(Mtu::from_wire(0), None);
        assert_eq!(Mtu::from_wire(6), None);
    }
}
