//! Any bytes as the header in front of a datagram.

use doorbell_core::Grh;
use doorbell_core::grh::GRH_BYTES;

use super::plain;

/// Panics where reading `bytes` as a route header breaks a promise. There are always as many as a header has: behind fewer
/// come zeros, and what is behind is the datagram's.
pub(crate) fn check(bytes: &[u8]) {
    let mut header = [0; GRH_BYTES];
    for (to, byte) in header.iter_mut().zip(bytes) {
        *to = *byte;
    }
    let read = Grh::parse(&header);
    let Some(route) = plain::grh::read(&header) else {
        assert_eq!(read, None, "it is no header");
        return;
    };
    let grh = read.expect("it is a header");
    assert_eq!(
        [u64::from(grh.traffic_class), u64::from(grh.hop_limit)],
        [route.traffic_class, route.hop_limit]
    );
    assert_eq!(
        [grh.source.0.to_vec(), grh.destination.0.to_vec()],
        [&route.source[..], &route.destination]
    );
    // Written again, with nothing left of what has no meaning, it reads the same.
    let mut again = written(route.is_v4, &grh);
    assert_eq!(Grh::parse(&again), Some(grh));
    if route.is_v4 {
        // Its checksum is right now, so what is before it may be anything.
        for before in [0x45, 0x60, 0xff] {
            again[..20].fill(before);
            assert_eq!(Grh::parse(&again), Some(grh), "behind {before:#x}");
        }
    }
}

/// A header that says this, and has zeros where it says nothing: of IPv4 with a right checksum.
pub(crate) fn written(is_v4: bool, grh: &Grh) -> [u8; GRH_BYTES] {
    let [class, hops] = [grh.traffic_class, grh.hop_limit];
    let mut header = [0; GRH_BYTES];
    if is_v4 {
        [header[20], header[21], header[28]] = [0x45, class, hops];
        header[32..36].copy_from_slice(&grh.source.0[12..]);
        header[36..].copy_from_slice(&grh.destination.0[12..]);
        let words = header[20..].chunks(2);
        let sum = words.fold(0_u16, |sum, word| {
            let (sum, has_carried) = sum.overflowing_add(u16::from_be_bytes([word[0], word[1]]));
            sum + u16::from(has_carried)
        });
        header[30..32].copy_from_slice(&(!sum).to_be_bytes());
    } else {
        [header[0], header[1], header[7]] = [0x60 + class / 16, class % 16 * 16, hops];
        header[8..24].copy_from_slice(&grh.source.0);
        header[24..].copy_from_slice(&grh.destination.0);
    }
    header
}
