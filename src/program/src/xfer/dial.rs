//! The handle of the listening side: given directly, read from a file, or requested at an address.

use core::net::SocketAddr;
use core::time::Duration;
use std::thread;

use doorbell::connect::ConnectError;
use doorbell::provider::{Network, Provider};
use doorbell::{Handle, Node};

use super::interrupt::Interrupt;
use super::{PORT, interrupt};
use crate::address::{resolve, share};
use crate::handle_file;
use crate::perf::dial::{ECONNREFUSED, may_be_elsewhere, tcp_errno};
use crate::report::Failure;
use crate::value::PeerPlace;

/// Interval at which a missing file or listener is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The listening side, as the user named it.
#[derive(Clone, Debug)]
pub(super) enum Peer {
    Handle(Handle),
    File(String),
    Addresses {
        name: String,
        addresses: Vec<SocketAddr>,
    },
}

impl Peer {
    /// Parses the text, and resolves a name.
    ///
    /// # Errors
    /// The text is invalid, or the name has no address.
    pub(super) fn parse(text: &str, timeout: Duration) -> Result<Self, Failure> {
        if let Some(path) = text.strip_prefix('@') {
            return Ok(Self::File(path.to_owned()));
        }
        let named = |error: &dyn core::fmt::Display| format!("{text}: {error}");
        let addresses = match PeerPlace::parse(text, PORT).map_err(|error| named(&error))? {
            PeerPlace::Handle(handle) => return Ok(Self::Handle(handle)),
            PeerPlace::Address(address) => vec![address],
            PeerPlace::Host { name, port } => {
                resolve((name, port), timeout).map_err(|error| named(&error))?
            }
        };
        Ok(Self::Addresses {
            name: text.to_owned(),
            addresses,
        })
    }

    /// Returns the peer's handle. Waits for the file or the listener.
    ///
    /// # Errors
    /// There is no handle in time, or the listener does not trust this side.
    pub(super) fn handle<P: Provider, N: Network>(
        &self,
        node: &Node<P, N>,
        timeout: Duration,
        interrupt: &Interrupt,
    ) -> Result<Handle, Failure> {
        let until = node.within(timeout);
        let left = || until.remaining(node.within(Duration::ZERO).instant());
        loop {
            interrupt.check()?;
            let is_late = left().is_zero();
            let seconds = timeout.as_secs_f64();
            match self {
                Self::Handle(handle) => return Ok(*handle),
                Self::File(path) => match handle_file::find(path.as_ref()) {
                    Ok(Some(handle)) => return Ok(handle),
                    Ok(None) if is_late => {
                        return Err(format!(
                            "{path}: no such file after {seconds} s: start the receiver with --handle-file"
                        )
                        .into());
                    }
                    Err(why) if is_late => return Err(why.into()),
                    _ => {}
                },
                Self::Addresses { name, addresses } => {
                    let (mut may_start, mut failed) = (false, None);
                    for (address, untried) in addresses.iter().zip((1..=addresses.len()).rev()) {
                        match ask(node, *address, share(left(), untried), interrupt) {
                            Ok(handle) => return Ok(handle),
                            Err(AskError::Interrupted) => return interrupt::ended(),
                            Err(AskError::Failed(error)) if is_nobody_there(&error) => may_start = true,
                            Err(AskError::Failed(error)) => {
                                let text = format!("{address}: {error}");
                                if !may_be_elsewhere(&error) {
                                    return Err(text.into());
                                }
                                failed = Some(text);
                            }
                        }
                    }
                    if let Some(error) = failed.filter(|_| !may_start) {
                        return Err(error.into());
                    }
                    if is_late {
                        return Err(format!(
                            "{name}: nobody listens there after {seconds} s: start `doorbell xfer --listen` on that host"
                        )
                        .into());
                    }
                }
            }
            thread::sleep(LOOK_EVERY);
        }
    }
}

/// Whether a listener may still start.
fn is_nobody_there(error: &ConnectError) -> bool {
    matches!(error, ConnectError::Unanswered(_)) || tcp_errno(error) == Some(ECONNREFUSED)
}

enum AskError {
    Interrupted,
    Failed(ConnectError),
}

/// Requests the handle of the listener at an address.
fn ask<P: Provider, N: Network>(
    node: &Node<P, N>,
    address: SocketAddr,
    within: Duration,
    interrupt: &Interrupt,
) -> Result<Handle, AskError> {
    let deadline = node.within(within.max(LOOK_EVERY));
    let mut asking = node.begin_ask(address, deadline).map_err(AskError::Failed)?;
    loop {
        if let Some(answer) = asking.poll(node) {
            return answer.map_err(AskError::Failed);
        }
        if interrupt.is_raised() {
            return Err(AskError::Interrupted);
        }
        thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests {
    use core::net::SocketAddr;
    use core::time::Duration;
    use std::sync::Mutex;

    use doorbell::provider::{Clock, Instant, Network, NetworkError, Waited};
    use doorbell::{Deadline, Node, Trust};
    use doorbell_sim::{Acceptor, Fabric, Host, Stream};

    use super::{Interrupt, Peer};
    use crate::simulated::host;

    /// A network in which nobody answers. Each look at its clock takes 5 ms.
    struct Silent {
        host: Host,
        now_ns: Mutex<u64>,
        /// The addresses that were dialed, with the time of each.
        dialed: Mutex<Vec<(SocketAddr, Duration)>>,
    }

    impl Clock for Silent {
        fn now(&self) -> Instant {
            let mut now_ns = self.now_ns.lock().unwrap();
            *now_ns += 5_000_000;
            Instant::from_ns(*now_ns)
        }
    }

    impl Network for Silent {
        type Stream = Stream;
        type Acceptor = Acceptor;

        fn connect(&self, to: SocketAddr) -> Result<Stream, NetworkError> {
            let at = Duration::from_nanos(self.now().to_ns());
            self.dialed.lock().unwrap().push((to, at));
            self.host.connect(to)
        }

        fn listen(&self, at: SocketAddr) -> Result<Acceptor, NetworkError> {
            self.host.listen(at)
        }

        fn accept(&self, at: &Acceptor) -> Result<Option<Stream>, NetworkError> {
            self.host.accept(at)
        }

        fn wait<'s>(
            &self,
            acceptor: Option<&'s Acceptor>,
            streams: impl Iterator<Item = Waited<'s, Stream>>,
            deadline: Deadline,
        ) -> Result<(), NetworkError> {
            self.host.wait(acceptor, streams, deadline)
        }

        fn random(&self, into: &mut [u8]) -> Result<(), NetworkError> {
            self.host.random(into)
        }
    }

    #[test]
    fn silent_addresses_share_the_time_of_the_dial() {
        let trust = Trust::unauthenticated_on_purpose();
        // The packets of a driven fabric arrive only when it is driven.
        let fabric = Fabric::builder().driven().build();
        let host = host(&fabric, 1, 1, &trust).unwrap().provider().clone();
        let network = Silent {
            host: host.clone(),
            now_ns: Mutex::new(0),
            dialed: Mutex::default(),
        };
        let node = Node::with(host, network, trust).unwrap();
        let addresses: [SocketAddr; 2] = ["10.0.0.8:7", "10.0.0.9:7"].map(|address| address.parse().unwrap());
        let peer = Peer::Addresses {
            name: "the name".into(),
            addresses: addresses.to_vec(),
        };
        let timeout = Duration::from_secs(1);
        peer.handle(&node, timeout, &Interrupt::default()).unwrap_err();
        let dialed = node.network().dialed.lock().unwrap();
        let [(first, began), (second, at)] = [dialed[0], dialed[1]];
        assert_eq!([first, second], addresses);
        assert!(
            (timeout / 3..timeout * 2 / 3).contains(&(at - began)),
            "{dialed:?}"
        );
    }

    /// Returns the error of a host whose only subnet is 10.0.0.0/24.
    fn dialed(addresses: &[&str]) -> String {
        let trust = Trust::unauthenticated_on_purpose();
        let fabric = Fabric::builder().real_time(doorbell::now).build();
        let node = host(&fabric, 1, 1, &trust).unwrap();
        let peer = Peer::Addresses {
            name: "the name".into(),
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
        };
        let handle = peer.handle(&node, Duration::from_millis(100), &Interrupt::default());
        handle.unwrap_err().to_string()
    }

    #[test]
    fn an_address_that_is_unreachable_does_not_end_the_dial() {
        let error = dialed(&["10.9.0.1:7", "10.0.0.9:7"]);
        assert!(
            error.starts_with("the name: nobody listens there after 0.1 s"),
            "{error}"
        );
        let error = dialed(&["10.9.0.1:7", "10.9.0.2:7"]);
        assert!(error.starts_with("10.9.0.2:7: TCP: "), "{error}");
    }
}
