//! Relays: hosts that forward messages between hosts without a common subnet.
//!
//! A circuit is a link to a relay that continues to another process. The relay has a second link to that process, and forwards messages
//! between the two links in order. Each circuit has its own links, so a slow receiver delays only its own circuit. A route has at most two
//! relays. The first message on a link to a relay names the destination ([`frame`]). The following messages are those of the two ends.
//!
//! | module | subject |
//! |---|---|
//! | [`frame`] | the messages by which links become circuits |
//! | [`credit`] | backpressure of one link |
//! | [`search`] | a link that leads to a process, directly or by relays |
//! | [`circuits`] | the circuits of a relay: all that it decides |
//! | [`service`] | the thread of a host that is a relay |

pub(crate) mod circuits;
pub(crate) mod credit;
pub(crate) mod frame;
#[cfg(any(test, fuzzing))]
pub(crate) mod hostile;
pub(crate) mod search;
pub(crate) mod service;

use core::net::{IpAddr, SocketAddr};
use std::net::{ToSocketAddrs as _, UdpSocket};

use doorbell::provider::Interface;

/// Default TCP port of a relay.
pub(crate) const PORT: u16 = 18703;

/// The configured relays. The setting is the same on all hosts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Relays {
    /// Addresses of the relays. This host comes last, since a relay here reaches only the peers that this process reaches itself.
    pub(crate) list: Vec<SocketAddr>,
    /// The port on which this host listens, if it is one of the relays.
    pub(crate) port_here: Option<u16>,
    /// Whether relays connect even direct neighbours.
    pub(crate) is_always: bool,
}

impl Relays {
    pub(crate) fn is_on(&self) -> bool {
        !self.list.is_empty()
    }

    /// Parses a list of `HOST[:PORT]`.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let (mut others, mut own) = (Vec::new(), Vec::new());
        for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            let addresses = addresses_of(word)?;
            let is_own = addresses.iter().any(|address| is_here(address.ip()));
            let list = if is_own { &mut own } else { &mut others };
            for address in addresses {
                if address.port() == 0 {
                    return Err(format!("{word}: port 0 leads nowhere"));
                }
                if !list.contains(&address) {
                    list.push(address);
                }
            }
        }
        let port_here = own.first().map(SocketAddr::port);
        if let Some(other) = own.iter().find(|address| Some(address.port()) != port_here) {
            return Err(format!(
                "{other}: this host has another port in the list already: a relay has one"
            ));
        }
        others.append(&mut own);
        Ok(Self {
            list: others,
            port_here,
            is_always: false,
        })
    }
}

fn addresses_of(word: &str) -> Result<Vec<SocketAddr>, String> {
    if let Ok(address) = word.parse::<SocketAddr>() {
        return Ok(vec![address]);
    }
    if let Ok(address) = word.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, PORT)]);
    }
    let (host, port) = match word.rsplit_once(':') {
        Some((host, port)) => {
            let port = port.parse().map_err(|_| format!("{word}: {port} is no port"))?;
            (host, port)
        }
        None => (word, PORT),
    };
    let found = (host, port).to_socket_addrs();
    let found: Vec<_> = found.map_err(|error| format!("{word}: {error}"))?.collect();
    match found.is_empty() {
        true => Err(format!("{word}: the name has no address")),
        false => Ok(found),
    }
}

/// Whether an address belongs to this host: a socket can be bound to it, and an interface has it. The first alone proves nothing, since
/// `net.ipv4.ip_nonlocal_bind` lets sockets be bound to any address.
fn is_here(address: IpAddr) -> bool {
    let address = address.to_canonical();
    let needs_no_interface = address.is_loopback() || address.is_unspecified();
    UdpSocket::bind((address, 0)).is_ok() && (needs_no_interface || has_interface(address))
}

/// Whether a network interface has this address.
fn has_interface(address: IpAddr) -> bool {
    let interfaces = Interface::all().unwrap_or_default();
    let mut addresses = interfaces.iter().flat_map(|interface| &interface.addresses);
    addresses.any(|of| of.address() == address)
}

#[cfg(test)]
mod tests {
    use core::net::IpAddr;
    use std::net::UdpSocket;
    use std::process::Command;

    use super::{PORT, Relays, is_here};

    /// The address of the child's interface, in the child of the test below.
    const OWN: &str = "DOORBELL_TEST_OWN_ADDRESS";

    #[test]
    fn an_address_that_a_socket_can_be_bound_to_need_not_be_here() {
        const ADDRESSES: [&str; 2] = ["198.51.100.7", "198.51.100.8"];
        let [own, other] = ADDRESSES.map(|address| address.parse::<IpAddr>().unwrap());
        if std::env::var_os(OWN).is_some() {
            assert!(UdpSocket::bind((other, 0)).is_ok());
            assert!(is_here(own) && !is_here(other));
            return;
        }
        let script = format!(
            "ip address add {own}/24 dev lo && ip link set lo up && echo 1 > /proc/sys/net/ipv4/ip_nonlocal_bind && exec \"$@\""
        );
        let in_namespace = || {
            let mut command = Command::new("unshare");
            command.args(["--user", "--map-root-user", "--net", "sh", "-c", &script, "sh"]);
            command
        };
        match in_namespace().arg("true").status() {
            Ok(status) if status.success() => {}
            why => {
                println!("SKIPPED: addresses that are not here: no network namespace can be made: {why:?}");
                return;
            }
        }
        let mut test = in_namespace();
        test.arg(std::env::current_exe().unwrap())
            .args([
                "an_address_that_a_socket_can_be_bound_to_need_not_be_here",
                "--nocapture",
            ])
            .env(OWN, "");
        assert!(test.status().unwrap().success());
    }

    #[test]
    fn a_list_names_hosts_and_this_one_is_last() {
        let relays = Relays::read("127.0.0.1, 192.0.2.250:77,[2001:db8::9]:78,192.0.2.251").unwrap();
        let list: Vec<String> = relays.list.iter().map(ToString::to_string).collect();
        let last = format!("127.0.0.1:{PORT}");
        let other = format!("192.0.2.251:{PORT}");
        assert_eq!(list, ["192.0.2.250:77", "[2001:db8::9]:78", &other, &last]);
        assert_eq!(relays.port_here, Some(PORT));
        assert!(relays.is_on());
    }

    #[test]
    fn nothing_is_off_and_nonsense_is_refused() {
        let none = Relays::read(" , ").unwrap();
        assert!(!none.is_on() && none.port_here.is_none());
        assert_eq!(Relays::read("192.0.2.250").unwrap().port_here, None);
        for (wrong, why) in [
            ("192.0.2.250:x", "no port"),
            ("127.0.0.1:0", "port 0"),
            ("127.0.0.1,127.0.0.1:7", "another port"),
            ("no such host.invalid", "no such host"),
        ] {
            let error = Relays::read(wrong).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
