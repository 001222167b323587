//! TCP addresses: resolves names on the command line by a deadline, and finds the wildcard address for
//! listening.

use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use core::time::Duration;
use std::io;
use std::net::{TcpListener, ToSocketAddrs};
use std::sync::mpsc;
use std::thread;

/// The wildcard address of this host.
pub(crate) fn anywhere(port: u16) -> SocketAddr {
    // A host without IPv6 uses the IPv4 wildcard.
    let is_ipv6_there = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).is_ok();
    if is_ipv6_there {
        (Ipv6Addr::UNSPECIFIED, port).into()
    } else {
        (Ipv4Addr::UNSPECIFIED, port).into()
    }
}

/// Resolves a name, in a separate thread, since the system's resolver has no deadline.
///
/// # Errors
/// The name has no address, or the resolver did not answer in time.
pub(crate) fn resolve<N>(name: N, timeout: Duration) -> io::Result<Vec<SocketAddr>>
where
    N: ToSocketAddrs + Send + 'static,
{
    by_deadline(move || Ok(name.to_socket_addrs()?.collect()), timeout)
}

/// The share of the time that is left for the next of several addresses. A silent address leaves the rest to the others.
pub(crate) fn share(left: Duration, untried: usize) -> Duration {
    let untried = u32::try_from(untried).unwrap_or(u32::MAX);
    left.checked_div(untried).unwrap_or_default()
}

fn by_deadline(
    look_up: impl FnOnce() -> io::Result<Vec<SocketAddr>> + Send + 'static,
    timeout: Duration,
) -> io::Result<Vec<SocketAddr>> {
    let (answer, answered) = mpsc::channel();
    let resolver = thread::Builder::new().name("doorbell-name".into());
    resolver.spawn(move || {
        // The receiver is gone if the deadline has passed.
        let _ = answer.send(look_up());
    })?;
    let found = answered.recv_timeout(timeout).map_err(|_| {
        let text = format!("looking it up took longer than {} s", timeout.as_secs_f64());
        io::Error::new(io::ErrorKind::TimedOut, text)
    })??;
    if found.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    }
    Ok(found)
}

/// A listener whose backlog is full, so that further attempts to connect get no answer while both are kept.
#[cfg(test)]
pub(crate) fn silent() -> (TcpListener, std::net::TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let first = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (listener, first)
}

#[cfg(test)]
mod tests {
    use super::{anywhere, by_deadline, resolve, share};
    use core::time::Duration;
    use std::net::TcpListener;
    use std::thread;

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn anywhere_can_be_listened_at() {
        let address = anywhere(0);
        assert!(address.ip().is_unspecified());
        assert!(TcpListener::bind(address).is_ok());
        assert_eq!(anywhere(7).port(), 7);
    }

    #[test]
    fn what_is_an_address_already_is_that_address() {
        for (name, address) in [("127.0.0.1:5", "127.0.0.1:5"), ("[fd00::1]:5", "[fd00::1]:5")] {
            assert_eq!(resolve(name, LONG).unwrap(), [address.parse().unwrap()]);
        }
        assert!(resolve("127.0.0.1:notaport", LONG).is_err());
    }

    #[test]
    fn silent_addresses_share_the_time() {
        let timeout = Duration::from_secs(10);
        let mut left = timeout;
        for untried in (1..=4).rev() {
            let taken = share(left, untried);
            assert_eq!(taken, timeout / 4);
            left -= taken;
        }
        assert_eq!(left, Duration::ZERO);
    }

    #[test]
    fn a_resolver_that_does_not_answer_is_given_up_and_no_address_is_an_error() {
        let slow = || {
            thread::sleep(LONG);
            Ok(Vec::new())
        };
        let error = by_deadline(slow, Duration::from_millis(50)).unwrap_err();
        assert_eq!(error.to_string(), "looking it up took longer than 0.05 s");
        let error = by_deadline(|| Ok(Vec::new()), LONG).unwrap_err();
        assert_eq!(error.to_string(), "the name has no address");
    }
}
