//! A listener whose port fails: the handshakes under way go on, and the failure is reported.

use core::net::SocketAddr;
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use std::sync::Arc;

use crate::fabric::{node, port, small, workers};
use crate::failing::Failing;
use doorbell::provider::{Instant, Network as _};
use doorbell::{ChannelConfig, ConnectError, Connection, Listener, Node, Trust, Worker};
use doorbell_sim::{Fabric, Host, LinkConfig};

const STAGE: Duration = Duration::from_secs(3);
const LATENCY: Duration = Duration::from_millis(1);
const PORT: u16 = 7000;
const ENOMEM: i32 = 12;

/// A host that listens at a port that will fail, and one that may connect.
struct Two {
    fabric: Fabric,
    listening: Node<Host, Failing>,
    workers: Vec<Worker<Host>>,
    listener: Listener<Host, Failing>,
    other: Node<Host, Host>,
    failures: Arc<AtomicU32>,
}

impl Two {
    /// The port takes in one peer, and then fails so often.
    fn new(failures: u32) -> Self {
        let link = LinkConfig {
            latency_ns: LATENCY.as_nanos() as u64,
            bandwidth_mbps: None,
        };
        Self::on(Fabric::builder().link(link).driven().build(), failures)
    }

    fn on(fabric: Fabric, failures: u32) -> Self {
        let host = fabric.host("a", vec![port("simA", "10.0.0.1/24")]).unwrap();
        let failures = Arc::new(AtomicU32::new(failures));
        let network = Failing {
            host: host.clone(),
            peers: Arc::new(AtomicU32::new(1)),
            failures: failures.clone(),
            errno: ENOMEM,
        };
        let listening = Node::with(host, network, Trust::unauthenticated_on_purpose()).unwrap();
        let workers = workers(&listening);
        let listener = Listener::bind(&listening, &workers, at(), &config()).unwrap();
        let other = node(&fabric, "b", vec![port("simB", "10.0.0.2/24")]);
        Self {
            fabric,
            listening,
            workers,
            listener,
            other,
            failures,
        }
    }

    fn poll_accept(&mut self) -> Result<Option<Connection>, ConnectError> {
        self.listener.poll_accept(&self.listening, &mut self.workers)
    }

    fn accept(&mut self, within: Duration) -> Result<Connection, ConnectError> {
        let deadline = self.listening.within(within);
        self.listener.accept(&self.listening, &mut self.workers, deadline)
    }

    fn left(&self) -> u32 {
        self.failures.load(Ordering::Relaxed)
    }
}

fn at() -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], PORT))
}

fn config() -> ChannelConfig {
    let mut config = small();
    config.handshake_stage = STAGE;
    config
}

fn is_of_port(error: &ConnectError) -> bool {
    matches!(error, ConnectError::Tcp(error) if error.raw_os_error() == Some(ENOMEM))
}

#[test]
fn a_handshake_goes_on_while_its_port_fails_and_each_failure_is_told() {
    for failures in [1, 3, u32::MAX] {
        let mut two = Two::new(failures);
        let mut client_workers = workers(&two.other);
        let deadline = two.other.within(STAGE);
        let mut connecting = two
            .other
            .begin_connect_at(&client_workers, at(), &config(), deadline)
            .unwrap();
        let (mut connected, mut accepted, mut told) = (None, None, 0);
        while connected.is_none() || accepted.is_none() {
            assert!(
                two.fabric.now() < Instant::from_ns(0).after(STAGE),
                "{told} were told"
            );
            if connected.is_none() {
                connected = connecting.poll(&two.other, &mut client_workers);
            }
            match two.poll_accept() {
                Ok(outcome) => accepted = accepted.or(outcome),
                Err(error) => {
                    assert!(is_of_port(&error), "{error}");
                    told += 1;
                }
            }
            two.fabric.run_for(LATENCY / 4);
        }
        assert!(connected.unwrap().is_ok());
        // A failure that came together with the connection is reported behind it.
        if let Err(error) = two.poll_accept() {
            assert!(is_of_port(&error), "{error}");
            told += 1;
        }
        assert_eq!(told, failures - two.left());
        assert_eq!(two.listener.failed(), 0);
    }
}

#[test]
fn who_waits_for_a_peer_hears_that_the_port_failed_once_no_handshake_is_under_way() {
    // It connects, and says nothing.
    let begun = || {
        let two = Two::new(1);
        let silent = two.other.network().connect(at()).unwrap();
        two.fabric.run_for(4 * LATENCY);
        let began = two.fabric.now();
        (two, silent, began)
    };
    let (mut two, _silent, began) = begun();
    let error = two.accept(2 * STAGE).unwrap_err();
    assert!(is_of_port(&error), "{error}");
    assert_eq!((two.fabric.now(), two.listener.failed()), (began.after(STAGE), 1));
    // The wait's own deadline comes first.
    let (mut two, _silent, began) = begun();
    let error = two.accept(STAGE / 2).unwrap_err();
    assert!(is_of_port(&error), "{error}");
    assert_eq!(
        (two.fabric.now(), two.listener.failed()),
        (began.after(STAGE / 2), 0)
    );
    // The failure was reported, and the port is well again.
    let error = two.accept(STAGE).unwrap_err();
    assert!(
        matches!(
            &error,
            ConnectError::TimedOut {
                last_failure: Some(_)
            }
        ),
        "{error}"
    );
    assert_eq!(two.fabric.now(), began.after(STAGE / 2).after(STAGE));
}

#[test]
fn who_waits_for_a_peer_gets_the_one_under_way_from_a_port_that_failed() {
    // Each side in a thread of its own.
    let mut two = Two::on(Fabric::new(), u32::MAX);
    let other = &two.other;
    let mut client_workers = workers(other);
    let deadline = other.within(200 * STAGE);
    std::thread::scope(|scope| {
        let connecting = scope.spawn(move || {
            other
                .connect_at(&mut client_workers, at(), &config(), deadline)
                .unwrap();
        });
        let listening = &two.listening;
        let accepted = two
            .listener
            .accept(listening, &mut two.workers, listening.within(200 * STAGE));
        assert!(accepted.is_ok(), "{accepted:?}");
        connecting.join().unwrap();
    });
    let error = two.accept(STAGE).unwrap_err();
    assert!(is_of_port(&error), "{error}");
}
