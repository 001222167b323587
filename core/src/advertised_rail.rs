//! Advertised rails: the addresses at which a peer reaches a side, with the speeds of their links.
//!
//! Their encoding in frames and handles is in `wire`.

use core::fmt;
use core::net::IpAddr;

use crate::{Gid, IpPrefix};

/// The maximum number of rails that one side advertises.
pub const RAILS_MAX: usize = 64;

/// A link's speed in one byte: precise enough to compare two links, and no more.
///
/// The value is `(8 + m) << e` megabits per second, with `e` in the upper five bits and `m` in the
/// lower three. It is rounded down by less than an eighth. Zero means that the speed is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpeedClass(pub u8);

impl SpeedClass {
    /// The class of a link of this many megabits per second; a speed below 9 counts as unknown.
    #[must_use]
    pub const fn from_mbps(speed_mbps: u32) -> Self {
        if speed_mbps < 9 {
            return Self(0);
        }
        // The top four bits are the leading one and the mantissa.
        let exponent = 28_u32.saturating_sub(speed_mbps.leading_zeros());
        let [.., mantissa] = (speed_mbps >> exponent & 0x7).to_be_bytes();
        let [.., exponent] = exponent.to_be_bytes();
        Self(exponent << 3 | mantissa)
    }

    /// Megabits per second, rounded down; zero if unknown.
    #[must_use]
    pub const fn to_mbps(self) -> u64 {
        if self.0 == 0 {
            return 0;
        }
        (0x8 | self.0 as u64 & 0x7) << (self.0 >> 3)
    }
}

impl fmt::Display for SpeedClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            f.write_str("unknown speed")
        } else {
            write!(f, "about {} Mb/s", self.to_mbps())
        }
    }
}

/// Why an address cannot be advertised to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NotAdvertisable {
    /// The address is unspecified, multicast or broadcast: no single host has it.
    NotUnicast,
    /// An IPv4-mapped IPv6 address: write it as IPv4.
    MappedIpv4,
    /// The GID is all zero.
    ZeroGid,
}

impl fmt::Display for NotAdvertisable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotUnicast => "not a unicast address",
            Self::MappedIpv4 => "an IPv4 address written as IPv6",
            Self::ZeroGid => "the GID is all zero",
        })
    }
}

impl core::error::Error for NotAdvertisable {}

/// One address at which a side can be reached, as it is advertised to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AdvertisedRail {
    address: IpPrefix,
    gid: Gid,
    speed: SpeedClass,
}

impl AdvertisedRail {
    /// The rail of this address, GID and speed.
    ///
    /// # Errors
    /// No peer could use the address, or the GID is zero.
    pub const fn new(address: IpPrefix, gid: Gid, speed: SpeedClass) -> Result<Self, NotAdvertisable> {
        match address.address() {
            IpAddr::V4(v4) if v4.is_unspecified() || v4.is_multicast() || v4.is_broadcast() => {
                return Err(NotAdvertisable::NotUnicast);
            }
            IpAddr::V6(v6) if v6.is_unspecified() || v6.is_multicast() => {
                return Err(NotAdvertisable::NotUnicast);
            }
            IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => return Err(NotAdvertisable::MappedIpv4),
            _ => {}
        }
        if gid.is_zero() {
            return Err(NotAdvertisable::ZeroGid);
        }
        Ok(Self { address, gid, speed })
    }

    /// The address, with the prefix length of its interface.
    #[must_use]
    pub const fn address(&self) -> IpPrefix {
        self.address
    }

    /// The GID.
    #[must_use]
    pub const fn gid(&self) -> Gid {
        self.gid
    }

    /// The speed of its link.
    #[must_use]
    pub const fn speed(&self) -> SpeedClass {
        self.speed
    }
}

impl fmt::Display for AdvertisedRail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.address, self.speed)?;
        if self.gid != Gid::from_ip(self.address.address()) {
            write!(f, ", GID {}", self.gid)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::SpeedClass;

    #[test]
    fn speed_classes_keep_the_order_of_links() {
        let speeds = [
            0, 9, 10, 100, 1_000, 2_500, 5_000, 10_000, 25_000, 40_000, 50_000, 56_000, 100_000,
        ];
        let faster = [200_000, 400_000, 800_000, 1_600_000, 3_200_000, u32::MAX];
        let mut last = None;
        for speed in speeds.into_iter().chain(faster) {
            let class = SpeedClass::from_mbps(speed);
            assert!(last < Some(class), "{speed}");
            assert!(class.to_mbps() <= u64::from(speed));
            assert!(
                speed == 0 || class.to_mbps() * 8 > u64::from(speed) * 7,
                "{speed} {class}"
            );
            last = Some(class);
        }
        assert_eq!(SpeedClass::from_mbps(8), SpeedClass(0));
        assert_eq!(SpeedClass(0).to_mbps(), 0);
        assert_eq!(SpeedClass(u8::MAX).to_mbps(), 15 << 31);
    }
}
