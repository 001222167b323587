//! The header in front of a datagram, by the tables of RFC 791 and RFC 8200, and InfiniBand Architecture annex A17.4.5.2 for which of
//! them it is. No format of ours: `docs/wire-format.md` has nothing of it.

use super::{Cursor, only_if};

/// The fields of the header, and which of the two headers it is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Route {
    /// Whether it is an IPv4 header behind 20 meaningless bytes, and not an IPv6 header of 40.
    pub(crate) is_v4: bool,
    pub(crate) traffic_class: u64,
    pub(crate) hop_limit: u64,
    /// As of IPv6, highest byte first.
    pub(crate) source: Vec<u8>,
    pub(crate) destination: Vec<u8>,
}

/// A header: IPv6, unless what stands behind 20 bytes is IPv4 beyond doubt.
pub(crate) fn read(bytes: &[u8]) -> Option<Route> {
    only_if(bytes.len() == 40)?;
    let (front, behind) = bytes.split_at(20);
    let may_be_v6 = version(front)? == 6;
    let may_be_v4 = version(behind)? == 4;
    if may_be_v4 && (!may_be_v6 || is_whole(behind)) {
        v4(behind)
    } else if may_be_v6 {
        v6(bytes)
    } else {
        None
    }
}

/// The upper half of the first byte, of either.
fn version(header: &[u8]) -> Option<u64> {
    Some(Cursor::new(header).number(1)? / 16)
}

/// Five words long, and its checksum right: ones' complement numbers of 16 bits that come to a zero.
fn is_whole(header: &[u8]) -> bool {
    let mut cursor = Cursor::new(header);
    let mut sum = 0;
    while let Some(number) = cursor.number(2) {
        sum += number;
    }
    header[0] == 0x45 && sum % 0xffff == 0
}

fn v4(header: &[u8]) -> Option<Route> {
    let mut cursor = Cursor::new(header);
    let _version_and_length = cursor.number(1)?;
    let traffic_class = cursor.number(1)?;
    let _length_identification_and_fragment = cursor.number(6)?;
    let hop_limit = cursor.number(1)?;
    let _protocol_and_checksum = cursor.number(3)?;
    let mut address = || Some([&[0; 10][..], &[0xff; 2], cursor.take(4)?].concat());
    Some(Route {
        is_v4: true,
        traffic_class,
        hop_limit,
        source: address()?,
        destination: address()?,
    })
}

fn v6(header: &[u8]) -> Option<Route> {
    let mut cursor = Cursor::new(header);
    // Four bits of version, eight of the class, twenty of the flow.
    let traffic_class = cursor.number(4)? / (1 << 20) % 256;
    let _length_and_next_header = cursor.number(3)?;
    let hop_limit = cursor.number(1)?;
    Some(Route {
        is_v4: false,
        traffic_class,
        hop_limit,
        source: cursor.take(16)?.to_vec(),
        destination: cursor.take(16)?.to_vec(),
    })
}
