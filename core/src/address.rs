//! An IP address with the prefix length its interface really has.

use core::fmt;
use core::net::IpAddr;

/// An address of a port with the length of its subnet's prefix, in bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IpPrefix {
    address: IpAddr,
    prefix_bits: u8,
}

/// Why an address and a prefix length do not go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixError {
    /// The length asked for, in bits.
    pub prefix_bits: u8,
    /// The longest the address family allows, in bits.
    pub prefix_bits_max: u8,
}

impl fmt::Display for PrefixError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a prefix of {} bits, where the address has {}",
            self.prefix_bits, self.prefix_bits_max
        )
    }
}

impl core::error::Error for PrefixError {}

impl IpPrefix {
    /// An address on a subnet of `prefix_bits` bits.
    ///
    /// # Errors
    /// The prefix is longer than the address: 32 bits for IPv4, 128 for IPv6.
    pub const fn new(address: IpAddr, prefix_bits: u8) -> Result<Self, PrefixError> {
        let prefix_bits_max = if address.is_ipv4() { 32 } else { 128 };
        if prefix_bits > prefix_bits_max {
            return Err(PrefixError {
                prefix_bits,
                prefix_bits_max,
            });
        }
        Ok(Self { address, prefix_bits })
    }

    /// The address.
    #[must_use]
    pub const fn address(self) -> IpAddr {
        self.address
    }

    /// The length of the prefix, in bits.
    #[must_use]
    pub const fn prefix_bits(self) -> u8 {
        self.prefix_bits
    }

    /// Whether `other` lies in the same subnet as this address.
    #[must_use]
    pub fn contains(self, other: IpAddr) -> bool {
        match (self.address, other) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => {
                let differing = ours.to_bits() ^ theirs.to_bits();
                // A shift by the full width is a prefix of nothing: every address matches.
                differing
                    .checked_shr(32_u32.saturating_sub(u32::from(self.prefix_bits)))
                    .unwrap_or(0)
                    == 0
            }
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => {
                let differing = ours.to_bits() ^ theirs.to_bits();
                differing
                    .checked_shr(128_u32.saturating_sub(u32::from(self.prefix_bits)))
                    .unwrap_or(0)
                    == 0
            }
            _ => false,
        }
    }
}

impl fmt::Display for IpPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_bits)
    }
}

#[cfg(test)]
mod tests {
    use super::IpPrefix;
    use core::net::IpAddr;

    fn prefix(text: &str, bits: u8) -> IpPrefix {
        IpPrefix::new(text.parse().unwrap(), bits).unwrap()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn the_real_prefix_decides() {
        assert!(prefix("10.0.0.1", 24).contains(ip("10.0.0.200")));
        assert!(!prefix("10.0.0.1", 25).contains(ip("10.0.0.200")));
        assert!(prefix("10.0.0.1", 0).contains(ip("192.0.2.1")));
        assert!(prefix("10.0.0.1", 32).contains(ip("10.0.0.1")));
        assert!(!prefix("10.0.0.1", 32).contains(ip("10.0.0.2")));
        assert!(prefix("fd00::1", 64).contains(ip("fd00::ffff")));
        assert!(prefix("fd00::1", 0).contains(ip("2001:db8::1")));
        assert!(!prefix("fd00::1", 64).contains(ip("10.0.0.1")));
        assert!(IpPrefix::new(ip("10.0.0.1"), 33).is_err());
        assert!(IpPrefix::new(ip("fd00::1"), 129).is_err());
    }
}
