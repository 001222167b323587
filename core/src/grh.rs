//! The global route header, which precedes a received datagram and names its sender.

use crate::Gid;

/// The bytes of the header at the beginning of each receive of a datagram queue pair (S31).
///
/// Source: `ibv_post_recv(3)`; InfiniBand Architecture volume 1, section 8.3.
pub const GRH_BYTES: usize = 40;

/// Offset of the IPv4 header in these bytes; the bytes before it have no meaning.
///
/// Source: InfiniBand Architecture annex A17.4.5.2.
const IPV4_AT: usize = 20;
/// The first byte of an IPv4 header without options: its version, and its length in words.
const IPV4_PLAIN: u8 = 0x45;

/// Fields of the network header of a datagram. A peer wrote the header, so it proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grh {
    /// The sender.
    pub source: Gid,
    /// The receiver.
    pub destination: Gid,
    /// The IP traffic class: DSCP in the upper six bits.
    pub traffic_class: u8,
    /// The remaining IP time to live.
    pub hop_limit: u8,
}

impl Grh {
    /// Parses an IPv6 header, or an IPv4 header after 20 arbitrary bytes. `None` if the bytes are
    /// neither.
    #[must_use]
    pub fn parse(bytes: &[u8; GRH_BYTES]) -> Option<Self> {
        let (_, v4) = bytes.split_last_chunk::<IPV4_AT>()?;
        let (version, v4_version) = (bytes.first()? >> 4, v4.first()? >> 4);
        // The 20 arbitrary bytes may look like an IPv6 header, so a correct IPv4 checksum decides.
        let is_v4 = v4_version == 4 && (version != 6 || is_whole(v4));
        match (is_v4, version) {
            (true, _) => Self::of_v4(v4),
            (false, 6) => Self::of_v6(bytes),
            _ => None,
        }
    }

    fn of_v4(header: &[u8; IPV4_AT]) -> Option<Self> {
        let [
            _,
            traffic_class,
            _,
            _,
            _,
            _,
            _,
            _,
            hop_limit,
            _,
            _,
            _,
            addresses @ ..,
        ] = header;
        let mapped = |octets: &[u8; 4]| Gid::from_ip(core::net::Ipv4Addr::from(*octets).into());
        Some(Self {
            source: mapped(addresses.first_chunk()?),
            destination: mapped(addresses.last_chunk()?),
            traffic_class: *traffic_class,
            hop_limit: *hop_limit,
        })
    }

    fn of_v6(header: &[u8; GRH_BYTES]) -> Option<Self> {
        let [first, second, _, _, _, _, _, hop_limit, addresses @ ..] = header;
        Some(Self {
            source: Gid(*addresses.first_chunk()?),
            destination: Gid(*addresses.last_chunk()?),
            traffic_class: (first << 4) | (second >> 4),
            hop_limit: *hop_limit,
        })
    }
}

/// Whether these bytes are an IPv4 header without options and with a correct checksum. Source: RFC 1071.
fn is_whole(header: &[u8; IPV4_AT]) -> bool {
    let sum = header.chunks_exact(2).fold(0_u32, |sum, pair| match pair {
        [high, low] => sum.wrapping_add(u32::from(u16::from_be_bytes([*high, *low]))),
        _ => sum,
    });
    let folded = (sum & 0xffff).wrapping_add(sum >> 16);
    header.first() == Some(&IPV4_PLAIN) && folded == 0xffff
}

#[cfg(test)]
mod tests {
    use super::{GRH_BYTES, Grh, IPV4_AT};
    use crate::Gid;

    /// 10.0.0.1 to 10.0.0.2 with a right checksum, behind these bytes.
    fn v4(before: u8) -> [u8; GRH_BYTES] {
        let mut bytes = [before; GRH_BYTES];
        bytes[IPV4_AT..].copy_from_slice(&[
            0x45, 0x28, 0, 0x48, 0, 0, 0x40, 0, 17, 17, 0x55, 0x7b, 10, 0, 0, 1, 10, 0, 0, 2,
        ]);
        bytes
    }

    fn gid(text: &str) -> Gid {
        Gid::from_ip(text.parse().unwrap())
    }

    #[test]
    fn an_ipv4_header_stands_behind_anything() {
        let expected = Grh {
            source: gid("10.0.0.1"),
            destination: gid("10.0.0.2"),
            traffic_class: 0x28,
            hop_limit: 17,
        };
        for before in [0, 0x45, 0x60, 0x6f, 0xff] {
            assert_eq!(Grh::parse(&v4(before)), Some(expected), "{before:#x}");
        }
        // Without a checksum, as where a device sends to itself, what is before it must not look like IPv6.
        let mut bytes = v4(0);
        bytes[IPV4_AT + 10..IPV4_AT + 12].fill(0);
        assert_eq!(Grh::parse(&bytes), Some(expected));
    }

    #[test]
    fn an_ipv6_header_is_all_of_it() {
        let mut bytes = [0; GRH_BYTES];
        bytes[..8].copy_from_slice(&[0x62, 0x8f, 0xff, 0xff, 0, 0x48, 17, 64]);
        bytes[8..24].copy_from_slice(&gid("fd00::1").0);
        // An address may look like the beginning of an IPv4 header.
        bytes[24..].copy_from_slice(&gid("fd00::4500:2").0);
        bytes[IPV4_AT] = 0x45;
        let read = Grh::parse(&bytes).unwrap();
        assert_eq!((read.traffic_class, read.hop_limit), (0x28, 64));
        assert_eq!(read.destination, gid("fd00::4500:2"));
    }

    #[test]
    fn what_is_no_header_is_none() {
        assert_eq!(Grh::parse(&[0; GRH_BYTES]), None);
        assert_eq!(Grh::parse(&[0xff; GRH_BYTES]), None);
    }
}
