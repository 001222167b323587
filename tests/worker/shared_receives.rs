//! Receives that channels share, over the simulated fabric: one hub, and peers that use their shares in any order.

mod ending;
mod events;
mod panics;
mod shares;
mod sharing;

use doorbell::worker::{CloseError, SharedReceives, SharedReceivesConfig};
use doorbell::{
    ChannelConfig, ChannelId, ConnectError, Event, Lease, Listener, Node, Operation, SendErrorKind, Worker,
    WorkerConfig,
};
use doorbell_sim::{Fabric, Host};

use crate::fabric::LONG;

/// A Worker whose channels share their receives, and those at the other ends.
struct Hub {
    fabric: Fabric,
    node: Node<Host, Host>,
    workers: Vec<Worker<Host>>,
    listener: Listener<Host, Host>,
    peers: Vec<Peer>,
    /// Leases that the hub's application holds.
    held: Vec<Lease<Host>>,
    /// How many hosts there were beside it.
    made: usize,
}

struct Peer {
    /// Keeps the reaper alive.
    _node: Node<Host, Host>,
    workers: Vec<Worker<Host>>,
    /// Its end, and the hub's.
    id: ChannelId,
    at_hub: ChannelId,
    sent: u32,
    heard: u32,
}

fn shared(depth: u32, limit: u32) -> SharedReceivesConfig {
    let mut config = SharedReceivesConfig::default();
    config.depth = depth;
    config.repost_batch = 8;
    config.limit = limit;
    config
}

/// A channel with this share at the hub.
fn share(receives: u32) -> ChannelConfig {
    let mut config = crate::fabric::small();
    config.send_depth = 64;
    config.receive_depth = receives;
    config
}

impl Hub {
    fn new(depth: u32, limit: u32, slots: u32) -> Self {
        let fabric = Fabric::new();
        let node = crate::fabric::node(
            &fabric,
            "hub",
            vec![crate::fabric::port("simHub", "127.0.0.1/24")],
        );
        let mut config = WorkerConfig::default();
        config.slots = slots;
        // Receives that starve are what many of these are about.
        config.lease_share_percent = 0;
        config.slot_bytes = 256;
        config.shared_receives = Some(shared(depth, limit));
        let workers = node.workers(&config).unwrap();
        let listener = Listener::bind(&node, &workers, "127.0.0.1:0".parse().unwrap(), &share(1)).unwrap();
        Self {
            fabric,
            node,
            workers,
            listener,
            peers: Vec::new(),
            held: Vec::new(),
            made: 0,
        }
    }

    /// With peers that have these shares.
    fn with(depth: u32, slots: u32, shares: &[u32]) -> Self {
        let mut hub = Self::new(depth, 0, slots);
        for receives in shares {
            hub.add(*receives).unwrap();
        }
        hub
    }

    fn worker(&mut self) -> &mut Worker<Host> {
        &mut self.workers[0]
    }

    fn counts(&self) -> SharedReceives {
        self.workers[0].shared_receives().unwrap()
    }

    fn not_ready(&self) -> u64 {
        self.fabric.receivers_not_ready()
    }

    /// Another host; names and addresses are used once.
    fn host(&mut self) -> Node<Host, Host> {
        self.made += 1;
        let number = self.made;
        let port = crate::fabric::port(&format!("sim{number}"), &format!("127.0.0.{}/24", 1 + number));
        crate::fabric::node(&self.fabric, &format!("peer{number}"), vec![port])
    }

    /// Connects another peer, whose share is so large; gives its index.
    fn add(&mut self, receives: u32) -> Result<usize, ConnectError> {
        let number = self.peers.len();
        let node = self.host();
        let Self {
            node: hub,
            workers,
            listener,
            ..
        } = self;
        *listener = Listener::bind(hub, workers, "127.0.0.1:0".parse().unwrap(), &share(receives)).unwrap();
        let address = listener.address();
        let mut own = WorkerConfig::default();
        own.slots = 128;
        own.slot_bytes = 256;
        let mut theirs = node.workers(&own).unwrap();
        let mut connecting = node.begin_connect_at(&theirs, address, &share(8), node.within(LONG))?;
        let (mut connected, mut accepted) = (None, Ok(None));
        while connected.is_none() || matches!(accepted, Ok(None)) {
            if connected.is_none() {
                connected = connecting.poll(&node, &mut theirs);
            }
            if let Ok(None) = accepted {
                accepted = listener.poll_accept(hub, workers);
            }
            if matches!((&connected, &accepted), (Some(Err(_)), Ok(None))) {
                break;
            }
        }
        let connected = connected.unwrap();
        let at_hub = match accepted? {
            Some(connection) => connection.channel,
            None => return Err(connected.unwrap_err()),
        };
        self.peers.push(Peer {
            _node: node,
            workers: theirs,
            id: connected.unwrap().channel,
            at_hub,
            sent: 0,
            heard: 0,
        });
        Ok(number)
    }

    /// Polls the hub until nothing comes; what it received it holds.
    fn poll(&mut self) {
        let Self {
            workers, peers, held, ..
        } = self;
        let mut quiet = 0;
        while quiet < 3 {
            quiet += 1;
            workers[0]
                .poll_tending(|turn, event| match event {
                    Event::Received { message, .. } => {
                        quiet = 0;
                        let id = turn.channel.id();
                        let peer = peers.iter_mut().find(|peer| peer.at_hub == id).unwrap();
                        assert_eq!(message.payload(), peer.heard.to_be_bytes(), "in order");
                        peer.heard += 1;
                        held.push(message.keep());
                    }
                    Event::Done { .. } => quiet = 0,
                    other => panic!("{other:?}"),
                })
                .unwrap();
        }
        self.check();
    }

    fn give_back(&mut self, count: usize) {
        for message in self.held.drain(..count.min(self.held.len())) {
            self.workers[0].release(message);
        }
    }

    /// Polls, and gives all back, until nothing more happens.
    fn settle(&mut self) {
        for _ in 0..3 {
            self.poll();
            self.give_back(usize::MAX);
        }
        self.poll();
    }

    /// Returns the sum of the credits that all peers know of.
    fn credits(&mut self) -> u32 {
        self.peers.iter_mut().map(Peer::credits).sum()
    }

    fn check(&mut self) {
        let counts = self.counts();
        let credits = self.credits();
        assert!(counts.granted <= counts.posted, "{counts:?}");
        assert!(credits <= counts.granted, "{credits} {counts:?}");
        assert_eq!(self.not_ready(), 0);
    }

    /// Closes the hub's end of a connection.
    fn close(&mut self, at: usize) -> Result<(), CloseError> {
        let id = self.peers[at].at_hub;
        let long = self.worker().within(LONG);
        let closed = self.worker().close(id, long, |_, event| {
            assert!(!matches!(event, Event::Failed { .. }), "{event:?}");
        });
        self.peers.swap_remove(at);
        closed
    }
}

impl Peer {
    fn worker(&mut self) -> &mut Worker<Host> {
        &mut self.workers[0]
    }

    fn credits(&mut self) -> u32 {
        let id = self.id;
        self.worker().channel(id).unwrap().credits()
    }

    /// Sends one message; says whether it went.
    fn send(&mut self) -> bool {
        let (id, bytes) = (self.id, self.sent.to_be_bytes());
        let worker = self.worker();
        worker
            .poll_tending(|_, event| assert!(matches!(event, Event::Done { .. }), "{event:?}"))
            .unwrap();
        match worker.channel(id).unwrap().post_inline(Operation::Send, &bytes) {
            Ok(_) => self.sent += 1,
            Err(kind) => {
                assert_eq!(kind, SendErrorKind::WouldBlock);
                return false;
            }
        }
        true
    }

    /// Sends until it may not; says how many went.
    fn flood(&mut self) -> u32 {
        let mut sent = 0;
        while self.send() {
            sent += 1;
        }
        sent
    }
}

fn draws(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed;
    move |below| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    }
}
