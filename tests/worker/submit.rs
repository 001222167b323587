//! Requests from other threads into a Worker, over the simulated fabric.

mod anything;
mod classes;
mod leaving;
mod memory;
mod own;
mod posting;
mod several;
mod unsent;
mod waiting;

use core::time::Duration;
use std::collections::VecDeque;
use std::thread;
use std::time::Instant;

use doorbell::worker::{Submitter, SubmitterConfig};
use doorbell::{ChannelConfig, ChannelId, Event, Lease, Listener, Node, RemoteAccess, Worker};
use doorbell_sim::{Fabric, Host};

use crate::fabric::{End, LONG, SOON, node, port, small, workers};

/// A Worker with several channels, each to an end of its own.
struct Hub {
    node: Node<Host, Host>,
    worker: Worker<Host>,
    ids: Vec<ChannelId>,
    ends: Vec<End>,
    listener: Listener<Host, Host>,
    config: ChannelConfig,
}

fn hub(ends: usize, config: ChannelConfig) -> Hub {
    let fabric = Fabric::new();
    let server = node(&fabric, "hub", vec![port("simH", "127.0.0.1/24")]);
    let mut server_workers = workers(&server);
    let address = "127.0.0.1:0".parse().unwrap();
    let mut hub = Hub {
        listener: Listener::bind(&server, &server_workers, address, &config).unwrap(),
        node: server,
        worker: server_workers.swap_remove(0),
        ids: Vec::new(),
        ends: Vec::new(),
        config,
    };
    (0..ends).for_each(|_| hub.connect());
    hub
}

impl Hub {
    /// Connects one more end.
    fn connect(&mut self) {
        let index = self.ends.len();
        let name = format!("end{index}");
        let at = format!("127.0.0.{}/24", index + 2);
        let client = node(self.node.provider().fabric(), &name, vec![port(&name, &at)]);
        let handle = self.listener.handle().to_string().parse().unwrap();
        let config = self.config;
        let connecting = thread::spawn(move || {
            let mut workers = workers(&client);
            let at = client
                .connect(&mut workers, &handle, &config, client.within(LONG))
                .unwrap();
            End {
                node: client,
                workers,
                at,
                events: VecDeque::new(),
            }
        });
        let workers = core::slice::from_mut(&mut self.worker);
        let long = self.node.within(LONG);
        let at = self.listener.accept(&self.node, workers, long).unwrap();
        self.ids.push(at.channel);
        self.ends.push(connecting.join().unwrap());
    }

    fn poll(&mut self) {
        self.worker
            .poll_tending(|_, event| assert!(matches!(event, Event::Done { .. }), "{event:?}"))
            .unwrap();
    }
}

const NOTHING: RemoteAccess = RemoteAccess {
    write: false,
    read: false,
    atomic: false,
};

/// Config of a channel whose own requests complete late, after many of others.
fn silent() -> ChannelConfig {
    let mut config = small();
    config.send_depth = 64;
    config.unsignaled_max = 1000;
    config
}

fn config(slots: u32, depth: u32) -> SubmitterConfig {
    let mut config = SubmitterConfig::default();
    config.slots = slots;
    config.slot_bytes = 128;
    config.depth = depth;
    config
}

fn lease(submitter: &mut Submitter<Host>, bytes: &[u8]) -> Lease<Host> {
    let mut lease = submitter.lease().expect("memory");
    lease.fill(bytes).unwrap();
    lease
}

fn submit(submitter: &mut Submitter<Host>, to: ChannelId, number: u32) {
    let lease = lease(submitter, &number.to_be_bytes());
    submitter.send(to, lease).unwrap();
}

/// The numbers that are there now.
fn numbers(end: &mut End) -> Vec<u32> {
    let mut numbers = Vec::new();
    let mut quiet = 0;
    while quiet < 4 {
        quiet += 1;
        let polled = end.worker().poll_tending(|_, event| match event {
            Event::Received { message, .. } => {
                numbers.push(u32::from_be_bytes(message.payload().try_into().unwrap()));
            }
            Event::Done { .. } => {}
            other => panic!("{other:?}"),
        });
        if polled.unwrap() > 0 {
            quiet = 0;
        }
    }
    numbers
}

/// How much memory of a submitter can be leased now.
fn home(submitter: &mut Submitter<Host>) -> u32 {
    let all: Vec<_> = core::iter::from_fn(|| submitter.lease()).collect();
    let count = u32::try_from(all.len()).unwrap();
    all.into_iter().for_each(|lease| submitter.release(lease));
    count
}

/// Asks until it is so.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < SOON, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}
