//! The quick look at a handle beside the look at each field: what the one takes, the other takes alike.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::num::NonZeroU16;
use std::vec::Vec;

use proptest::collection::vec;
use proptest::prelude::{Strategy, any, prop_assert_eq, proptest};
use proptest::sample::{Index, select};

use super::Handle;
use crate::wire::{AdvertisedRail, HANDLE_BYTES_MAX, InstanceId, SpeedClass};
use crate::{Gid, IpPrefix};

fn handle(addresses: impl IntoIterator<Item = (IpAddr, u8)>) -> Handle {
    let instance = InstanceId::new(0x0102_0304_0506_0708).unwrap();
    let mut builder = Handle::builder(NonZeroU16::new(18_515).unwrap(), instance);
    for (ip, bits) in addresses {
        let address = IpPrefix::new(ip, bits).unwrap();
        if let Ok(rail) = AdvertisedRail::new(address, Gid::from_ip(ip), SpeedClass(77)) {
            let _ = builder.push(&rail);
        }
    }
    builder.finish().unwrap()
}

fn ipv4(last: u8) -> (IpAddr, u8) {
    (IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)), 24)
}

fn ipv6(last: u16) -> (IpAddr, u8) {
    (IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last)), 64)
}

/// Both ways, which must agree.
fn agree(bytes: &[u8]) {
    let by_field = Handle::parse_by_field(bytes);
    assert_eq!(Handle::parse(bytes), by_field, "{bytes:02x?}");
    if let Some(plain) = Handle::parse_plain(bytes) {
        assert_eq!(Ok(plain), by_field, "{bytes:02x?}");
    }
}

#[test]
fn common_handles_are_plain() {
    for handle in [
        handle((1..=15).map(ipv4)),
        handle((1..=5).map(ipv6)),
        handle([ipv4(1)]),
    ] {
        for bytes in [handle.as_bytes(), handle.as_padded_bytes()] {
            assert_eq!(Handle::parse_plain(bytes).unwrap().to_handle(), handle);
            agree(bytes);
        }
    }
    let mixed = handle([ipv4(1), ipv6(1)]);
    assert_eq!(
        Handle::parse_plain(mixed.as_bytes()),
        None,
        "that is left to the other way"
    );
    agree(mixed.as_bytes());
}

#[test]
fn each_byte_with_each_value_is_judged_alike() {
    for handle in [handle((1..=3).map(ipv4)), handle((1..=2).map(ipv6))] {
        for good in [handle.as_bytes(), handle.as_padded_bytes()] {
            for at in 0..good.len() {
                let mut bytes = good.to_vec();
                for value in 0..=u8::MAX {
                    bytes[at] = value;
                    agree(&bytes);
                }
            }
            for length in 0..good.len() {
                agree(&good[..length]);
            }
        }
    }
}

#[test]
fn beyond_the_longest_nothing_is_plain() {
    let good = handle((1..=15).map(ipv4));
    for length in [HANDLE_BYTES_MAX, HANDLE_BYTES_MAX + 1, 256] {
        let mut bytes = good.as_bytes().to_vec();
        bytes.resize(length, 0);
        agree(&bytes);
        bytes[5] = u8::try_from(length).unwrap_or(u8::MAX);
        agree(&bytes);
    }
}

/// Values at the edges of what fields may hold.
fn value() -> impl Strategy<Value = u8> {
    let edges = select(
        [
            0, 1, 2, 7, 19, 20, 32, 33, 0x22, 0x41, 0x62, 128, 129, 223, 224, 239, 240, 254, 255,
        ]
        .as_slice(),
    );
    proptest::prop_oneof![edges, any::<u8>()]
}

fn address() -> impl Strategy<Value = (IpAddr, u8)> {
    let v4 = (any::<[u8; 4]>(), 0..=32_u8).prop_map(|(ip, bits)| (IpAddr::V4(Ipv4Addr::from(ip)), bits));
    let v6 = (any::<[u8; 16]>(), 0..=128_u8).prop_map(|(ip, bits)| (IpAddr::V6(Ipv6Addr::from(ip)), bits));
    proptest::prop_oneof![v4, v6]
}

proptest! {
    #[test]
    fn changed_handles_are_judged_alike(
        addresses in vec(address(), 0..8),
        changes in vec((any::<Index>(), value()), 0..6),
        padding in 0..120_usize,
        cut in 0..4_usize,
    ) {
        let good = handle(core::iter::once(ipv4(1)).chain(addresses));
        let mut bytes = good.as_bytes().to_vec();
        bytes.resize(bytes.len() + padding, 0);
        bytes.truncate(bytes.len() - cut);
        for (index, value) in changes {
            let at = index.index(bytes.len());
            bytes[at] = value;
        }
        prop_assert_eq!(Handle::parse(&bytes), Handle::parse_by_field(&bytes));
    }

    #[test]
    fn any_rails_of_one_family_are_judged_alike(
        is_ipv4 in any::<bool>(),
        rails in vec((value(), any::<u8>(), vec(value(), 16)), 1..5),
    ) {
        let good = if is_ipv4 { handle([ipv4(1)]) } else { handle([ipv6(1)]) };
        let mut bytes: Vec<u8> = good.as_bytes()[..20].to_vec();
        let mut count = 0;
        for (prefix, speed, address) in rails {
            let length = if is_ipv4 { 4 } else { 16 };
            bytes.extend([if is_ipv4 { 1 } else { 0x22 }, prefix, speed]);
            bytes.extend(&address[..length]);
            count += 1;
        }
        bytes[5] = u8::try_from(bytes.len()).unwrap();
        bytes[7] = count;
        prop_assert_eq!(Handle::parse(&bytes), Handle::parse_by_field(&bytes));
    }

    #[test]
    fn any_bytes_are_judged_alike(bytes in vec(any::<u8>(), 0..300)) {
        prop_assert_eq!(Handle::parse(&bytes), Handle::parse_by_field(&bytes));
    }
}

#[test]
fn a_shortened_handle_says_that_there_are_more_rails() {
    let whole = handle((1..=10).map(ipv4));
    let bytes = whole.as_bytes().len();
    assert_eq!(whole.shortened(bytes), Ok(whole));
    for bytes_max in 0..bytes {
        let Ok(short) = whole.shortened(bytes_max) else {
            assert!(bytes_max < handle([ipv4(1)]).as_bytes().len());
            continue;
        };
        assert!(short.has_more() && short.as_bytes().len() <= bytes_max);
        assert_eq!((short.port(), short.instance()), (whole.port(), whole.instance()));
        // As many of the first ones as there is room for.
        let count = short.rails().iter().count();
        assert!(short.rails().iter().eq(whole.rails().iter().take(count)));
        assert!(handle((1..=10).map(ipv4).take(count + 1)).as_bytes().len() > bytes_max);
        agree(short.as_bytes());
        assert_eq!(Handle::from_bytes(short.as_bytes()), Ok(short));
    }
    assert!(whole.shortened(0).is_err());
}
