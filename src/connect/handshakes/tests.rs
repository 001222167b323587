//! Handshakes whose objects a thread destroys, and handshakes whose Worker accepts no more.

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::sync::{Arc, mpsc};
use std::task::Wake;

use doorbell_core::IpPrefix;
use doorbell_sim::{Fabric, Host, LinkConfig, PortConfig};

use super::HandshakeLimits;
use super::admission::{Admission, Signals};
use crate::connect::listener::Listener;
use crate::connect::node::Node;
use crate::machine::reaper::Reaper;
use crate::trust::Trust;
use crate::worker::config::{ChannelConfig, WorkerConfig};

const LATENCY: Duration = Duration::from_millis(1);

/// Longer than anything here takes.
const SOON: Duration = Duration::from_secs(20);

fn node(fabric: &Fabric, name: &str, address: &str) -> Node<Host, Host> {
    let prefix = IpPrefix::new(address.parse().unwrap(), 24).unwrap();
    let host = fabric.host(name, vec![PortConfig::new(name, &[prefix])]).unwrap();
    Node::simulated(host, Trust::unauthenticated_on_purpose()).unwrap()
}

#[test]
fn a_connection_that_nobody_accepts_any_more_is_destroyed_by_the_reaper() {
    let link = LinkConfig {
        latency_ns: 1_000_000,
        bandwidth_mbps: None,
    };
    let fabric = Fabric::builder().link(link).driven().build();
    let reaper = Reaper::background().unwrap();
    let server = Arc::new(node(&fabric, "server", "10.0.0.1").reaped_by(reaper.clone()));
    let client = node(&fabric, "client", "10.0.0.2");
    let mut ours = server.workers(&WorkerConfig::default()).unwrap();
    let mut theirs = client.workers(&WorkerConfig::default()).unwrap();
    let (any, config) = ("10.0.0.1:7000".parse().unwrap(), ChannelConfig::default());
    let listener = Listener::bind(&server, &ours, any, &config).unwrap();
    let (mut handshakes, mut acceptances) = listener.aside(&server, &ours, &HandshakeLimits::default());
    let mut connecting = client
        .begin_connect(&theirs, handshakes.handle(), &config, client.within(SOON))
        .unwrap();
    let mut acceptances = acceptances.pop();
    // The reaper has something to do until then.
    let (busy, until) = mpsc::channel::<()>();
    let mut until = Some(until);
    let mut outcome = None;
    for _ in 0..64 {
        outcome = outcome.or_else(|| connecting.poll(&client, &mut theirs));
        handshakes.poll();
        if let Some(acceptances) = &mut acceptances {
            let accepted = acceptances.poll_accept(&mut ours[0]).unwrap();
            assert_eq!(accepted, None);
        }
        // Both sides have a queue pair, and the peer was not ready yet.
        if fabric.queue_pairs() == 2 && handshakes.counts().connected == 0 {
            if let Some(until) = until.take() {
                reaper.take(scopeguard::guard(until, |until| assert!(until.recv().is_err())));
                drop(acceptances.take());
            }
        }
        fabric.run_for(LATENCY / 2);
    }
    assert!(matches!(outcome, Some(Ok(_))), "{outcome:?}");
    assert_eq!((handshakes.counts().connected, fabric.queue_pairs()), (1, 2));
    drop(busy);
    assert!(reaper.settle(SOON));
    assert_eq!(fabric.queue_pairs(), 1);
}

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn handshakes_are_woken_when_their_worker_accepts_no_more() {
    let node = node(&Fabric::new(), "server", "10.0.0.1");
    let workers = node.workers(&WorkerConfig::default()).unwrap();
    let woken = Arc::new(Flag::default());
    let signals = Signals {
        handshakes: Arc::clone(&woken).into(),
        accepting: None,
    };
    let admission = Admission::new(&workers[0], &HandshakeLimits::default(), Some(signals));
    assert!(admission.abandon().is_empty());
    assert!(woken.0.load(Ordering::Relaxed));
}
