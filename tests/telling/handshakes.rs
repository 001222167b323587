//! Events about handshakes, and about the port they begin at.

use core::net::SocketAddr;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use doorbell::connect::{Acceptances, HandshakeLimits, Handshakes};
use doorbell::provider::Network as _;
use doorbell::worker::SharedReceivesConfig;
use doorbell::{Listener, Node, Trust, Worker, WorkerConfig};
use doorbell_sim::{Fabric, Host};
use tracing_subscriber::filter::LevelFilter;

use crate::fabric::{node, port, small, workers};
use crate::failing::Failing;
use crate::world::ms;
use crate::{Log, assert_told, count_told};

const EMFILE: i32 = 24;

fn at() -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], 7000))
}

/// A host that does handshakes beside its Worker, and one whose peers it may have.
struct Hub {
    fabric: Fabric,
    handshakes: Handshakes<Host, Failing>,
    acceptances: Acceptances<Host>,
    worker: Worker<Host>,
    failures: Arc<AtomicU32>,
    guest: Node<Host, Host>,
}

impl Hub {
    fn new(limits: &HandshakeLimits, own: &WorkerConfig) -> Self {
        let fabric = Fabric::builder().driven().build();
        let host = fabric.host("hub", vec![port("hub", "10.0.0.1/24")]).unwrap();
        let failures = Arc::new(AtomicU32::new(0));
        let network = Failing {
            host: host.clone(),
            peers: Arc::default(),
            failures: Arc::clone(&failures),
            errno: EMFILE,
        };
        let hub = Arc::new(Node::with(host, network, Trust::unauthenticated_on_purpose()).unwrap());
        let mut workers = hub.workers(own).unwrap();
        let mut config = small();
        config.handshake_stage = ms(300);
        let listener = Listener::bind(&hub, &workers, at(), &config).unwrap();
        let (handshakes, mut acceptances) = listener.aside(&hub, &workers, limits);
        let guest = node(&fabric, "guest", vec![port("guest", "10.0.0.2/24")]);
        Self {
            fabric,
            handshakes,
            acceptances: acceptances.remove(0),
            worker: workers.remove(0),
            failures,
            guest,
        }
    }

    fn run(&mut self, for_ms: u64) {
        for _ in 0..for_ms {
            self.handshakes.poll();
            while let Ok(Some(_)) = self.acceptances.poll_accept(&mut self.worker) {}
            self.worker.poll_tending(|_, event| drop(event)).unwrap();
            self.fabric.run_for(ms(1));
        }
    }
}

#[test]
fn who_is_too_many_or_silent_is_told_with_its_address_and_those_behind_it_as_a_count() {
    let log = Log::of(LevelFilter::WARN, || {
        let mut limits = HandshakeLimits::default();
        limits.per_address = 1;
        let mut hub = Hub::new(&limits, &WorkerConfig::default());
        let silent = [at(); 4].map(|at| hub.guest.network().connect(at).unwrap());
        hub.run(1500);
        drop(silent);
    });
    let too_many = "WARN doorbell: handshake refused: too many .. from=10.0.0.2";
    assert_eq!(count_told(&log, too_many), 1, "{log}");
    assert_told(
        &log,
        &[
            "WARN doorbell: more handshakes refused .. count=2",
            "WARN doorbell: handshake refused .. from=10.0.0.2 .. at=10.0.0.1:7000 .. reason=",
        ],
    );
}

#[test]
fn a_port_that_takes_nobody_in_is_told_each_time_it_is_tried() {
    let log = Log::of(LevelFilter::INFO, || {
        let mut hub = Hub::new(&HandshakeLimits::default(), &WorkerConfig::default());
        hub.failures.store(3, Ordering::Relaxed);
        let stream = hub.guest.network().connect(at()).unwrap();
        hub.run(200);
        drop(stream);
    });
    let words = "ERROR doorbell: the port takes nobody in .. reason=";
    assert_eq!(count_told(&log, words), 3, "{log}");
}

/// Each end says with which of its Workers.
#[test]
fn a_connection_is_told_at_both_ends() {
    let log = Log::of(LevelFilter::DEBUG, || {
        let fabric = Fabric::builder().driven().build();
        let a = node(&fabric, "a", vec![port("simA", "10.0.0.1/24")]);
        let b = node(&fabric, "b", vec![port("simB", "10.0.0.2/24")]);
        let (mut at_a, mut at_b) = (workers(&a), workers(&b));
        let mut listener = Listener::bind(&a, &at_a, at(), &small()).unwrap();
        let mut connecting = b
            .begin_connect(&at_b, listener.handle(), &small(), b.within(ms(5000)))
            .unwrap();
        let (mut accepted, mut connected) = (None, None);
        while accepted.is_none() || connected.is_none() {
            connected = connected.or_else(|| connecting.poll(&b, &mut at_b));
            accepted = accepted.or_else(|| listener.poll_accept(&a, &mut at_a).unwrap());
            fabric.run_for(ms(1));
        }
        connected.unwrap().unwrap();
    });
    assert_told(
        &log,
        &[
            "DEBUG doorbell: rail chosen .. ours=10.0.0.2/24 .. peers=10.0.0.1/24",
            "INFO doorbell: connected .. to=10.0.0.1:7000 .. worker=0",
            "INFO doorbell: accepted .. worker=0",
        ],
    );
}

/// The device reports that a channel with shared receives takes no more. The event is only for users who ask
/// for more detail.
#[test]
fn what_matters_to_nobody_else_is_told_in_a_whisper() {
    let log = Log::of(LevelFilter::DEBUG, || {
        let mut own = WorkerConfig::default();
        own.shared_receives = Some(SharedReceivesConfig::default());
        let mut hub = Hub::new(&HandshakeLimits::default(), &own);
        let mut guest = workers(&hub.guest);
        let (handle, within) = (*hub.handshakes.handle(), hub.guest.within(ms(1000)));
        let mut connecting = hub
            .guest
            .begin_connect(&guest, &handle, &small(), within)
            .unwrap();
        let mut connected = None;
        while connected.is_none() {
            connected = connecting.poll(&hub.guest, &mut guest);
            hub.run(1);
        }
        connected.unwrap().unwrap();
        hub.run(10);
        let channel = hub.worker.channels().next().unwrap();
        hub.worker.begin_close(channel, hub.guest.within(ms(10))).unwrap();
        hub.run(200);
    });
    assert_told(
        &log,
        &["DEBUG doorbell: device event .. event=LastReceiveReached"],
    );
}
