//! Parses and checks one handle many times, for callgrind to count:
//! `handle_instructions ipv4|ipv6 RAILS exact|padded TIMES`.

use core::hint::black_box;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::num::NonZeroU16;
use std::process::ExitCode;

use doorbell_core::wire::{AdvertisedRail, Fit, Handle, InstanceId, SpeedClass};
use doorbell_core::{Gid, IpPrefix};

/// The measured function: callgrind counts its instructions by its name.
#[inline(never)]
fn parse_and_check(bytes: &[u8]) -> bool {
    Handle::parse(bytes).is_ok()
}

fn handle(is_ipv4: bool, rails: u8) -> Option<Handle> {
    let mut builder = Handle::builder(NonZeroU16::new(18_515)?, InstanceId::new(0x0102_0304_0506_0708)?);
    for host in 1..=rails {
        let (address, bits) = if is_ipv4 {
            (IpAddr::V4(Ipv4Addr::new(10, 0, host, 1)), 24)
        } else {
            let address = Ipv6Addr::new(0xfd00, 0, 0, u16::from(host), 0, 0, 0, 1);
            (IpAddr::V6(address), 64)
        };
        let prefix = IpPrefix::new(address, bits).ok()?;
        let rail = AdvertisedRail::new(prefix, Gid::from_ip(address), SpeedClass::from_mbps(100_000)).ok()?;
        if builder.push(&rail) == Fit::LeftOut {
            return None;
        }
    }
    builder.finish().ok()
}

/// The bytes of the handle, and how often to parse them.
fn asked() -> Option<(Vec<u8>, u32)> {
    let mut words = std::env::args().skip(1);
    let is_ipv4 = match words.next()?.as_str() {
        "ipv4" => true,
        "ipv6" => false,
        _ => return None,
    };
    let rails = words.next()?.parse().ok()?;
    let handle = handle(is_ipv4, rails)?;
    let bytes = match words.next()?.as_str() {
        "exact" => handle.as_bytes().to_vec(),
        "padded" => handle.as_padded_bytes().to_vec(),
        _ => return None,
    };
    Some((bytes, words.next()?.parse().ok()?))
}

fn main() -> ExitCode {
    let Some((bytes, times)) = asked() else {
        eprintln!("handle_instructions ipv4|ipv6 RAILS exact|padded TIMES, with rails that fit");
        return ExitCode::from(2);
    };
    let good = (0..times).all(|_| parse_and_check(black_box(&bytes)));
    if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
