//! GIDs: the 128-bit addresses of ports.

use core::fmt;
use core::net::{IpAddr, Ipv6Addr};

/// A global identifier: on RoCEv2 an IPv6 address, or an IPv4 address mapped into one.
///
/// Source: InfiniBand Architecture volume 1, section 4.1; annex A17 for RoCEv2.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The GID of an IP address under RoCEv2 (`::ffff:a.b.c.d` for IPv4).
    #[must_use]
    pub const fn from_ip(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => Self(v4.to_ipv6_mapped().octets()),
            IpAddr::V6(v6) => Self(v6.octets()),
        }
    }

    /// The IP address of the GID; an IPv4-mapped address is returned as IPv4.
    #[must_use]
    pub const fn to_ip(self) -> IpAddr {
        let v6 = Ipv6Addr::from_bits(u128::from_be_bytes(self.0));
        match v6.to_ipv4_mapped() {
            Some(v4) => IpAddr::V4(v4),
            None => IpAddr::V6(v6),
        }
    }

    /// Whether every bit is zero: an empty entry of a GID table.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        u128::from_be_bytes(self.0) == 0
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Ipv6Addr::from(self.0), f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::Gid;
    use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    #[test]
    fn ip_round_trip() {
        for ip in [
            IpAddr::V4(Ipv4Addr::new(10, 1, 2, 3)),
            IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 1, 2, 3, 4)),
        ] {
            assert_eq!(Gid::from_ip(ip).to_ip(), ip);
        }
        assert!(Gid([0; 16]).is_zero());
    }
}
