//! Relays: hosts that pass messages on between hosts that share no subnet.
//!
//! A circuit is a link to a relay that leads on to another process: the relay has a second link there, and passes messages on between the
//! two, in order. Each circuit has links of its own, so a slow receiver holds up its own circuit alone. A route has two relays at most. The
//! first message on a link to a relay names the destination ([`frame`]), and the others are those of the two ends.
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

/// The TCP port of a relay, unless another is set.
pub(crate) const PORT: u16 = 18703;

/// The relays that are set: the same on all hosts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Relays {
    /// Their addresses, those of this host last: a relay here reaches no more than this process does.
    pub(crate) list: Vec<SocketAddr>,
    /// The port that this host listens at, if it is one of them.
    pub(crate) port_here: Option<u16>,
    /// Whether even neighbours are connected by relays.
    pub(crate) is_always: bool,
}

impl Relays {
    pub(crate) fn is_on(&self) -> bool {
        !self.list.is_empty()
    }

    /// Reads a list of `HOST[:PORT]`.
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

/// Whether an address is one of this host's: a socket can have it.
fn is_here(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::{PORT, Relays};

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
