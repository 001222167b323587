//! Benchmark of a handle: checking it in place, and reading its rails.

use core::hint::black_box;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::num::NonZeroU16;

use criterion::{Criterion, Throughput};
use doorbell_core::wire::{AdvertisedRail, Fit, Handle, InstanceId, SpeedClass};
use doorbell_core::{Gid, IpPrefix};

fn ipv4(host: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, host, 1))
}

fn ipv6(host: u8) -> IpAddr {
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, u16::from(host), 0, 0, 0, 1))
}

/// A handle with as many rails as `addresses`, all of which have to fit.
fn handle(addresses: impl Iterator<Item = IpAddr>) -> Option<Handle> {
    let mut builder = Handle::builder(NonZeroU16::new(18_515)?, InstanceId::new(0x0102_0304_0506_0708)?);
    for address in addresses {
        let prefix = IpPrefix::new(address, if address.is_ipv4() { 24 } else { 64 }).ok()?;
        let rail = AdvertisedRail::new(prefix, Gid::from_ip(address), SpeedClass::from_mbps(100_000)).ok()?;
        if builder.push(&rail) == Fit::LeftOut {
            return None;
        }
    }
    builder.finish().ok()
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let samples = [
        ("one IPv4 rail", handle([ipv4(1)].into_iter())),
        ("fifteen IPv4 rails", handle((1..=15).map(ipv4))),
        ("five IPv6 rails", handle((1..=5).map(ipv6))),
    ];
    let mut group = criterion.benchmark_group("handle");
    for (name, handle) in samples {
        #[expect(
            clippy::expect_used,
            reason = "a benchmark without its input has nothing to measure"
        )]
        let handle = handle.expect("the sample fits");
        let bytes = *handle.as_padded_bytes();
        group.throughput(Throughput::Elements(1));
        group.bench_function(format!("parse and check, {name}"), |bencher| {
            bencher.iter(|| Handle::parse(black_box(&bytes)).is_ok());
        });
        group.bench_function(format!("parse and read, {name}"), |bencher| {
            bencher.iter(|| Handle::parse(black_box(&bytes)).map(|handle| handle.rails().iter().count()));
        });
    }
    group.finish();
    criterion.final_summary();
}
