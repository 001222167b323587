//! A host that listens, others that connect to it as they should, and some that do not.

use core::net::SocketAddr;
use core::sync::atomic::AtomicU32;
use core::time::Duration;
use std::sync::Arc;

use doorbell::connect::{Acceptances, Cause, Connecting, HandshakeLimits, Handshakes};
use doorbell::provider::{Instant, Io as _, Network as _};
use doorbell::wire::RejectReason;
use doorbell::worker::SharedReceivesConfig;
use doorbell::{
    ChannelConfig, ChannelId, ConnectError, Connection, Deadline, Listener, Node, Trust, Worker, WorkerConfig,
};
use doorbell_sim::{Fabric, Host, LinkConfig, Stream};

use crate::fabric::{node_that, port, small};
use crate::failing::Failing;
use crate::stranger::Stranger;

pub(crate) const LATENCY: Duration = Duration::from_millis(1);
pub(crate) const STAGE: Duration = Duration::from_secs(3);
pub(crate) const WHOLE: Duration = Duration::from_secs(10);
pub(crate) const PORT: u16 = 7000;
pub(crate) const EMFILE: i32 = 24;
pub(crate) const SLOTS: u32 = 256;

pub(crate) fn config() -> ChannelConfig {
    let mut config = small();
    config.handshake_stage = STAGE;
    config
}

pub(crate) fn at() -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], PORT))
}

/// A host that listens, its Worker, and what was accepted.
pub(crate) struct Hub {
    pub(crate) fabric: Fabric,
    pub(crate) node: Arc<Node<Host, Failing>>,
    pub(crate) worker: Worker<Host>,
    pub(crate) handshakes: Option<Handshakes<Host, Failing>>,
    pub(crate) acceptances: Option<Acceptances<Host>>,
    pub(crate) accepted: Vec<ChannelId>,
    pub(crate) failures: Arc<AtomicU32>,
    /// Whether its Worker's thread has time.
    pub(crate) accepts: bool,
    slots: u32,
}

impl Hub {
    pub(crate) fn new(limits: &HandshakeLimits) -> Self {
        Self::with(limits, None)
    }

    pub(crate) fn with(limits: &HandshakeLimits, shared: Option<SharedReceivesConfig>) -> Self {
        let mut own = WorkerConfig::default();
        own.slots = SLOTS;
        own.shared_receives = shared;
        Self::on(limits, &own)
    }

    pub(crate) fn on(limits: &HandshakeLimits, own: &WorkerConfig) -> Self {
        Self::trusting(limits, own, Trust::unauthenticated_on_purpose())
    }

    /// One whose peers, and itself, have these keys.
    pub(crate) fn trusting(limits: &HandshakeLimits, own: &WorkerConfig, trust: Trust) -> Self {
        let link = LinkConfig {
            latency_ns: LATENCY.as_nanos() as u64,
            bandwidth_mbps: None,
        };
        let fabric = Fabric::builder().link(link).driven().build();
        let host = fabric.host("hub", vec![port("hub", "10.0.0.1/8")]).unwrap();
        let failures = Arc::new(AtomicU32::new(0));
        let network = Failing {
            host: host.clone(),
            peers: Arc::default(),
            failures: Arc::clone(&failures),
            errno: EMFILE,
        };
        let node = Arc::new(Node::with(host, network, trust).unwrap());
        let mut workers = node.workers(own).unwrap();
        let listener = Listener::bind(&node, &workers, at(), &config()).unwrap();
        let (handshakes, mut acceptances) = listener.aside(&node, &workers, limits);
        Self {
            fabric,
            node,
            worker: workers.remove(0),
            handshakes: Some(handshakes),
            acceptances: acceptances.pop(),
            accepted: Vec::new(),
            failures,
            accepts: true,
            slots: own.slots,
        }
    }

    pub(crate) fn poll(&mut self) {
        if let Some(handshakes) = &mut self.handshakes {
            handshakes.poll();
        }
        if !self.accepts {
            return;
        }
        if let Some(acceptances) = &mut self.acceptances {
            while let Ok(Some(channel)) = acceptances.poll_accept(&mut self.worker) {
                self.accepted.push(channel);
            }
        }
        // Granted handshakes proceed at once, as on threads that wake each other.
        if let Some(handshakes) = &mut self.handshakes {
            handshakes.poll();
        }
        if let Some(acceptances) = &mut self.acceptances {
            while let Ok(Some(channel)) = acceptances.poll_accept(&mut self.worker) {
                self.accepted.push(channel);
            }
        }
        self.worker.poll_tending(|_, event| drop(event)).unwrap();
    }

    /// Lets time pass up to the next thing that happens, or the next deadline.
    pub(crate) fn step(&self, until: Instant) {
        let next = [
            self.handshakes
                .as_ref()
                .and_then(Handshakes::deadline)
                .map(Deadline::instant),
            self.fabric.next_at(),
        ];
        let next = next.into_iter().flatten().fold(until, Instant::min);
        let next = next.max(self.fabric.now().after(Duration::from_nanos(1)));
        self.fabric.run_until(next.min(until));
    }

    /// A hub that accepts nobody, and a guest that waits for its place.
    pub(crate) fn with_guest_that_waits() -> (Self, Guest, Connecting<Host, Host>) {
        let mut hub = Self::new(&HandshakeLimits::default());
        hub.accepts = false;
        let mut guest = Guest::new(&hub, 1);
        let mut connecting = guest.begin(&hub);
        for _ in 0..8 {
            hub.run(LATENCY);
            assert!(guest.poll(&mut connecting).is_none());
        }
        (hub, guest, connecting)
    }

    pub(crate) fn run(&mut self, span: Duration) {
        let until = self.fabric.now().after(span);
        while self.fabric.now() < until {
            self.poll();
            self.step(until);
        }
        self.poll();
    }

    /// A host whose peers come from this address.
    pub(crate) fn guest(&self, number: u8) -> Node<Host, Host> {
        let (name, address) = (format!("c{number}"), format!("10.1.0.{number}/8"));
        node_that(
            &self.fabric,
            &name,
            vec![port(&name, &address)],
            self.node.trust(),
        )
    }

    /// Connects, and says how long that took.
    pub(crate) fn connect(&mut self, guest: &mut Guest) -> (Result<Connection, ConnectError>, Duration) {
        let began = self.fabric.now();
        let mut connecting = guest.begin(self);
        let until = began.after(2 * WHOLE);
        loop {
            self.poll();
            if let Some(outcome) = guest.poll(&mut connecting) {
                let took = Duration::from_nanos(self.fabric.now().to_ns() - began.to_ns());
                return (outcome, took);
            }
            assert!(self.fabric.now() < until);
            self.step(until.min(connecting.deadline().instant()));
        }
    }

    pub(crate) fn counts(&self) -> doorbell::connect::HandshakeCounts {
        self.handshakes.as_ref().unwrap().counts()
    }

    /// Ends all there is, and finds nothing left of it.
    pub(crate) fn end(mut self, guests: Vec<Guest>) {
        drop(guests);
        drop(self.handshakes.take());
        drop(self.acceptances.take());
        self.run(Duration::from_millis(100));
        for channel in core::mem::take(&mut self.accepted) {
            let deadline = self.node.within(Duration::from_millis(10));
            self.worker.begin_close(channel, deadline).unwrap();
        }
        for _ in 0..200 {
            self.worker.poll_tending(|_, event| drop(event)).unwrap();
            self.fabric.run_for(Duration::from_millis(10));
        }
        self.is_clean();
        self.fabric.audit().unwrap();
    }

    /// No channel, no queue pair, and all memory home but that of shared receives.
    pub(crate) fn is_clean(&mut self) {
        assert_eq!(self.worker.channels().count(), 0);
        assert_eq!(self.fabric.queue_pairs(), 0);
        let held = self.worker.shared_receives().map_or(0, |shared| shared.posted);
        let leases: Vec<_> = core::iter::from_fn(|| self.worker.lease()).collect();
        assert_eq!(leases.len(), (self.slots - held) as usize);
    }
}

/// A host that connects as it should.
pub(crate) struct Guest {
    pub(crate) node: Node<Host, Host>,
    pub(crate) workers: Vec<Worker<Host>>,
}

impl Guest {
    pub(crate) fn poll(
        &mut self,
        connecting: &mut Connecting<Host, Host>,
    ) -> Option<Result<Connection, ConnectError>> {
        connecting.poll(&self.node, &mut self.workers)
    }

    pub(crate) fn new(hub: &Hub, number: u8) -> Self {
        let node = hub.guest(number);
        let mut config = WorkerConfig::default();
        config.slots = 64;
        let workers = node.workers(&config).unwrap();
        Self { node, workers }
    }

    pub(crate) fn begin(&self, hub: &Hub) -> Connecting<Host, Host> {
        let deadline = self.node.within(WHOLE);
        let handle = hub.handshakes.as_ref().unwrap().handle();
        self.node
            .begin_connect(&self.workers, handle, &config(), deadline)
            .unwrap()
    }
}

/// Returns the reason and the detail of a peer's rejection.
pub(crate) fn rejection(outcome: Result<Connection, ConnectError>) -> (RejectReason, u32) {
    match outcome {
        Err(ConnectError::Handshake(error)) => match error.cause {
            Cause::RejectedByPeer(reject) => (reject.reason, reject.detail),
            cause => panic!("{cause}"),
        },
        other => panic!("{other:?}"),
    }
}

/// Four round trips, and what sending takes.
pub(crate) fn is_undisturbed(took: Duration) -> bool {
    took >= 8 * LATENCY && took < 8 * LATENCY + LATENCY / 2
}

/// Peers that never will be ones: silent, with half a word, half a Hello, a whole one and nothing behind it, with nonsense, and gone
/// at once.
pub(crate) fn rabble(hub: &mut Hub, hosts: u8, each: usize) -> Vec<Stream> {
    let mut streams = Vec::new();
    for number in 0..hosts {
        let host = hub.guest(100 + number);
        let connected: Vec<_> = (0..each).map(|_| host.network().connect(at()).unwrap()).collect();
        hub.run(4 * LATENCY);
        let hello = Stranger::new([10, 1, 0, 100 + number].into(), 0).hello();
        let (half, _) = hello.split_at(hello.len() / 2);
        for (turn, mut stream) in connected.into_iter().enumerate() {
            let said: &[u8] = match turn % 6 {
                0 => &[],
                // The magic number, and no more.
                1 => b"DBLF",
                2 => half,
                3 => &hello,
                4 => &[0xff; 600],
                _ => continue,
            };
            assert_eq!(stream.write(said), Ok(said.len()));
            streams.push(stream);
        }
    }
    streams
}
