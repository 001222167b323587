//! The invariant checksum of a `RoCEv2` packet: over all that no router changes.
//!
//! Source: InfiniBand Architecture volume 1, section 7.8.1; annex A17.3.3.

/// The reflected polynomial of Ethernet's checksum.
const POLYNOMIAL: u32 = 0xedb8_8320;

const TABLE: [u32; 256] = table();

#[expect(
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "evaluated by the compiler alone, below 256"
)]
const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut word = byte as u32;
        let mut bit = 0_u32;
        while bit < 8 {
            word = if word & 1 == 1 {
                (word >> 1) ^ POLYNOMIAL
            } else {
                word >> 1
            };
            bit = bit.wrapping_add(1);
        }
        table[byte] = word;
        byte = byte.wrapping_add(1);
    }
    table
}

fn update(checksum: u32, bytes: impl IntoIterator<Item = u8>) -> u32 {
    bytes.into_iter().fold(checksum, |checksum, byte| {
        let [low, ..] = checksum.to_le_bytes();
        let entry = TABLE.get(usize::from(low ^ byte)).copied().unwrap_or_default();
        (checksum >> 8) ^ entry
    })
}

/// Bytes of the UDP header, and where in it its checksum lies.
const UDP_BYTES: usize = 8;
/// Offset in the base transport header of the byte that routers may change.
const BTH_RESERVED: usize = 4;

/// The checksum of a packet from its IP header on, without the checksum itself; in the order
/// the wire has it.
pub(crate) fn icrc(packet: &[u8], ip_bytes: usize) -> [u8; 4] {
    let is_v4 = packet.first().is_some_and(|first| first >> 4 == 4);
    let bth = ip_bytes.saturating_add(UDP_BYTES);
    let is_variant = |at: usize| {
        let in_ip = if is_v4 {
            // Type of service, time to live, checksum.
            matches!(at, 1 | 8 | 10 | 11)
        } else {
            // Traffic class, flow label, hop limit.
            matches!(at, 1..=3 | 7)
        };
        let in_udp = at == bth.wrapping_sub(2) || at == bth.wrapping_sub(1);
        in_ip || in_udp || at == bth.wrapping_add(BTH_RESERVED)
    };
    // Eight bytes of ones stand for the header that InfiniBand has in front.
    let checksum = update(u32::MAX, [0xff; 8]);
    let masked = packet.iter().enumerate().map(|(at, byte)| {
        let first_of_v6 = at == 0 && !is_v4;
        match (first_of_v6, is_variant(at)) {
            // The upper half of the traffic class shares its byte with the version.
            (true, _) => byte | 0x0f,
            (_, true) => 0xff,
            _ => *byte,
        }
    });
    (!update(checksum, masked)).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::update;

    #[test]
    fn the_checksum_is_that_of_ethernet() {
        assert_eq!(!update(u32::MAX, *b"123456789"), 0xcbf4_3926);
    }
}
