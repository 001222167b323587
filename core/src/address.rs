//! An IP address with the prefix length that its interface has.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

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
    /// The longest prefix that the address family allows, in bits.
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

    /// The subnet of the address: the address with every bit after the prefix cleared.
    #[must_use]
    pub fn subnet(self) -> Self {
        let host_bits = |width: u32| width.saturating_sub(u32::from(self.prefix_bits));
        let address = match self.address {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(host_bits(32)).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from_bits(address.to_bits() & mask))
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(host_bits(128)).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & mask))
            }
        };
        Self { address, ..self }
    }

    /// Whether `other` lies in the same subnet as this address.
    #[must_use]
    pub fn contains(self, other: IpAddr) -> bool {
        match (self.address, other) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => {
                let differing = ours.to_bits() ^ theirs.to_bits();
                // With a prefix of 0 bits, the shift by the full width yields `None`: every address matches.
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

/// Why a text is not an address with a prefix length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParsePrefixError {
    /// The text has no `/`.
    NoLength,
    /// The part before the `/` is not an IP address.
    Address,
    /// The part after the `/` is not a number from 0 to 255.
    Length,
    /// The number exceeds the number of bits of the address.
    TooLong(PrefixError),
}

impl fmt::Display for ParsePrefixError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLength => f.write_str("there is no prefix length: write it as 10.1.2.0/24"),
            Self::Address => f.write_str("the text before the `/` is no IP address: write it as 10.1.2.0/24"),
            Self::Length => {
                f.write_str("the text after the `/` is no number of bits: write it as 10.1.2.0/24")
            }
            Self::TooLong(error) => fmt::Display::fmt(error, f),
        }
    }
}

impl core::error::Error for ParsePrefixError {}

impl core::str::FromStr for IpPrefix {
    type Err = ParsePrefixError;

    /// Parses the format of `Display`: `10.0.0.1/24`, `fd00::1/64`.
    fn from_str(text: &str) -> Result<Self, ParsePrefixError> {
        let (address, bits) = text.split_once('/').ok_or(ParsePrefixError::NoLength)?;
        let address: IpAddr = address.parse().map_err(|_| ParsePrefixError::Address)?;
        let is_plain = !bits.is_empty() && bits.bytes().all(|byte| byte.is_ascii_digit());
        let bits = bits.parse().ok().filter(|_| is_plain);
        Self::new(address, bits.ok_or(ParsePrefixError::Length)?).map_err(ParsePrefixError::TooLong)
    }
}

impl fmt::Display for IpPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_bits)
    }
}

#[cfg(test)]
mod tests {
    use super::{IpPrefix, ParsePrefixError};
    use core::net::IpAddr;
    use std::string::ToString as _;

    fn prefix(text: &str, bits: u8) -> IpPrefix {
        IpPrefix::new(text.parse().unwrap(), bits).unwrap()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_subnet_has_no_host() {
        for (text, subnet) in [
            ("10.1.2.3/24", "10.1.2.0/24"),
            ("10.1.2.3/0", "0.0.0.0/0"),
            ("10.1.2.3/32", "10.1.2.3/32"),
            ("fd00::1:2/64", "fd00::/64"),
            ("fd00::1/0", "::/0"),
        ] {
            assert_eq!(text.parse::<IpPrefix>().unwrap().subnet().to_string(), subnet);
        }
    }

    #[test]
    fn text_is_read_as_it_is_written() {
        for text in ["10.0.0.1/24", "fd00::1/64", "0.0.0.0/0", "::/128"] {
            assert_eq!(text.parse::<IpPrefix>().unwrap().to_string(), text);
        }
        let error = |text: &str| text.parse::<IpPrefix>().unwrap_err();
        assert_eq!(error("10.0.0.1"), ParsePrefixError::NoLength);
        assert_eq!(error("10.0.0/24"), ParsePrefixError::Address);
        for text in ["10.0.0.1/", "10.0.0.1/+4", "10.0.0.1/256", "10.0.0.1/8/8"] {
            assert_eq!(error(text), ParsePrefixError::Length, "{text}");
        }
        assert!(matches!(error("10.0.0.1/33"), ParsePrefixError::TooLong(_)));
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
