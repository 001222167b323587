//! Hosts on a simulated fabric, all in this process, for an example that is tried without a device.

use core::net::IpAddr;

use doorbell::vocabulary::IpPrefix;
use doorbell::{Node, Trust};
use doorbell_sim::{Fabric, Host, PortConfig};

use super::Failure;

/// So many hosts in one subnet. Its addresses are of this machine's loopback: the handshake's TCP is real.
///
/// # Errors
/// The system gave no random bytes.
pub(crate) fn hosts(count: u8) -> Result<Vec<Node<Host>>, Failure> {
    eprintln!("on a simulated fabric: no device, no network, and times that mean nothing");
    let fabric = Fabric::new();
    (1..=count)
        .map(|number| {
            let address = IpAddr::from([127, 0, 0, number]);
            let prefix = IpPrefix::new(address, 24).map_err(|_| "no such subnet")?;
            let port = PortConfig::new(&format!("sim{number}"), &[prefix]);
            let host = fabric.host(&format!("host{number}"), vec![port])?;
            Ok(Node::with_provider(host, Trust::unauthenticated_on_purpose())?)
        })
        .collect()
}
