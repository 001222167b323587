//! Hosts of a simulated fabric as ends of a rig.
#![expect(clippy::unwrap_used, reason = "tests")]

use core::net::IpAddr;

use doorbell_conformance::End;
use doorbell_core::{Gid, IpPrefix, Mtu};
use doorbell_sim::{Fabric, Host, PortConfig};

/// A host of this name, on the subnet of its address.
pub(crate) fn end(fabric: &Fabric, name: &str, address: &str, mtu: Mtu) -> End<Host> {
    let address: IpAddr = address.parse().unwrap();
    let bits = if address.is_ipv4() { 24 } else { 64 };
    let prefix = IpPrefix::new(address, bits).unwrap();
    let port = PortConfig {
        active_mtu: Some(mtu),
        ..PortConfig::new("sim0", &[prefix])
    };
    End {
        provider: fabric.host(name, vec![port]).unwrap(),
        device: "sim0".into(),
        port: 1,
        gid_index: 0,
        gid: Gid::from_ip(address),
    }
}

/// Hosts `a` and `b`, with an MTU like a software device's.
pub(crate) fn pair(fabric: &Fabric) -> [End<Host>; 2] {
    [("a", "10.0.0.1"), ("b", "10.0.0.2")].map(|(name, address)| end(fabric, name, address, Mtu::B1024))
}
