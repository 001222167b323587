//! Clients that come and go: whatever way they take, nothing of them is left over.

use core::time::Duration;

use crate::ending::{leasable, passed, small};
use crate::fabric::LONG;
use doorbell::worker::{CloseProgress, SharedReceivesConfig};
use doorbell::{ChannelConfig, ChannelId, Event, Listener, Node, Operation, PostFlags, Worker, WorkerConfig};
use doorbell_sim::{Fabric, Host};

/// How a client goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Going {
    Closed,
    /// With its Worker, which says farewell.
    Dropped,
    /// With its host, which says nothing.
    Killed,
}

/// A server of default settings that looks at no event, and the host of its clients.
struct Serving {
    fabric: Fabric,
    nodes: [Node<Host, Host>; 2],
    listener: Listener<Host, Host>,
    server: Vec<Worker<Host>>,
    /// Whether it tends its Worker. If not, its listener alone does.
    tends: bool,
    polls: u32,
    received: usize,
    /// Reported ends: by a farewell behind all messages, and by a failure.
    ended: [usize; 2],
}

impl Serving {
    fn new(own: &WorkerConfig) -> Self {
        let fabric = Fabric::new();
        let nodes = crate::fabric::nodes(&fabric);
        let server = nodes[0].workers(own).unwrap();
        let (any, config) = ("127.0.0.1:0".parse().unwrap(), ChannelConfig::default());
        Self {
            listener: Listener::bind(&nodes[0], &server, any, &config).unwrap(),
            fabric,
            nodes,
            server,
            tends: true,
            polls: 0,
            received: 0,
            ended: [0, 0],
        }
    }

    /// A Worker for clients.
    fn clients(&self) -> Vec<Worker<Host>> {
        let mut own = WorkerConfig::default();
        own.slots = 256;
        self.nodes[1].workers(&own).unwrap()
    }

    /// So many clients come; their names on both sides.
    fn come(&mut self, client: &mut [Worker<Host>], count: usize) -> [Vec<ChannelId>; 2] {
        let Self {
            fabric,
            nodes: [a, b],
            listener,
            server,
            ..
        } = self;
        let handle = *listener.handle();
        let (mut here, mut there) = (Vec::new(), Vec::new());
        while there.len() < count {
            let mut connecting = b
                .begin_connect(client, &handle, &small(), b.within(LONG))
                .unwrap();
            let (mut accepted, mut connected) = (None, None);
            while accepted.is_none() || connected.is_none() {
                connected = connected.or_else(|| connecting.poll(b, client));
                accepted = accepted.or_else(|| listener.poll_accept(a, server).unwrap());
                fabric.run_for(Duration::from_micros(10));
            }
            there.push(connected.unwrap().unwrap().channel);
            here.push(accepted.unwrap().channel);
        }
        [here, there]
    }

    fn poll(&mut self) {
        let Self {
            server,
            tends,
            polls,
            received,
            ended,
            ..
        } = self;
        server[0]
            .poll(|_, event| match event {
                Event::Received { .. } => *received += 1,
                Event::PeerClosed { all_arrived: true } => ended[0] += 1,
                Event::ChannelFailed { .. } => ended[1] += 1,
                Event::Done { .. } => {}
                other => panic!("{other:?}"),
            })
            .unwrap();
        // Not after each poll, as an engine that tends at times of its own.
        *polls += 1;
        if *tends && *polls % 3 == 0 {
            server[0].tend();
        }
    }

    /// Polls both sides, as time passes in such steps, until this is so.
    fn until(
        &mut self,
        client: &mut [Worker<Host>],
        step: Duration,
        is_so: impl Fn(&Self, &[Worker<Host>]) -> bool,
    ) {
        let began = self.fabric.now();
        while !is_so(self, client) {
            assert!(passed(&self.fabric, began) < LONG, "{:?}", self.ended);
            self.fabric.run_for(step);
            for worker in &mut *client {
                worker.poll_tending(|_, _| {}).unwrap();
            }
            self.poll();
        }
    }

    /// Has the clients go that are on these Workers, and gives others.
    fn go(&mut self, mut client: Vec<Worker<Host>>, there: &[ChannelId], going: Going) -> Vec<Worker<Host>> {
        match going {
            Going::Closed => {
                let deadline = self.nodes[1].within(LONG);
                for id in there {
                    client[0].begin_close(*id, deadline).unwrap();
                }
                client
            }
            Going::Dropped => {
                drop(client);
                self.clients()
            }
            Going::Killed => {
                // The events that it was told are on their way.
                self.fabric.run_for(Duration::from_millis(1));
                self.fabric.follow(&"at 0s kill b".parse().unwrap());
                drop(client);
                self.fabric.follow(&"at 0s restart b".parse().unwrap());
                self.clients()
            }
        }
    }
}

/// Clients that come, say something and go, so many at a time; in which way, says the number of the round. Nothing is left over.
fn come_and_go(clients: usize, at_once: usize, own: &WorkerConfig, going: impl Fn(usize) -> Going) {
    let mut serving = Serving::new(own);
    let mut client = serving.clients();
    let counts = |serving: &mut Serving, client: &mut [Worker<Host>]| {
        let (slots, pairs) = (leasable(&mut serving.server[0]), serving.fabric.queue_pairs());
        (slots, leasable(&mut client[0]), pairs)
    };
    let before = counts(&mut serving, &mut client);
    // The cells that clients have at once are registered for them, and serve all that come later.
    let mut cells = None;
    let mut expected = [0, 0];
    for (round, gone) in (0..clients).step_by(at_once).enumerate() {
        let [here, there] = serving.come(&mut client, at_once);
        for id in &there {
            let channel = client[0].channel(*id).unwrap();
            let mut batch = channel.batch();
            batch
                .push_inline(Operation::Send, b"hello", PostFlags::empty())
                .unwrap();
            batch.ring().unwrap();
        }
        let going = going(round);
        client = serving.go(client, &there, going);
        let (step, by) = match going {
            Going::Killed => (Duration::from_millis(10), 1),
            _ => (Duration::from_micros(100), 0),
        };
        expected[by] += at_once;
        let is_gone = |worker: &Worker<Host>, id: &ChannelId| {
            worker.close_progress(*id) == CloseProgress::Closed(Ok(()))
        };
        serving.until(&mut client, step, |serving, client| {
            let server = &serving.server[0];
            here.iter().all(|id| is_gone(server, id)) && client[0].channels().count() == 0
        });
        assert_eq!(serving.received, gone + at_once, "{going:?} in round {round}");
        assert_eq!(serving.ended, expected, "{going:?} in round {round}");
        let counted = serving.server[0].cells();
        let first = *cells.get_or_insert(counted);
        assert_eq!(
            (counted.blocks, counted.cells),
            (first.blocks, first.cells),
            "{going:?} in round {round}"
        );
        assert_eq!(counted.in_use, 0, "{going:?} in round {round}");
    }
    assert!(serving.nodes[1].settle(serving.nodes[1].within(LONG)));
    assert_eq!(counts(&mut serving, &mut client), before);
}

/// Ten thousand clients, eight at a time, to a server of default settings: no round leaves over what the next one would miss. One
/// round of 50 ends with all clients killed, which probes find.
#[test]
fn clients_come_and_go_for_as_long_as_they_like() {
    come_and_go(10_000, 8, &WorkerConfig::default(), |round| match round % 50 {
        49 => Going::Killed,
        number if number % 5 == 4 => Going::Dropped,
        _ => Going::Closed,
    });
}

#[test]
fn clients_of_shared_receives_come_and_go() {
    let mut own = WorkerConfig::default();
    own.shared_receives = Some(SharedReceivesConfig::default());
    come_and_go(64, 4, &own, |round| match round % 8 {
        3 => Going::Dropped,
        7 => Going::Killed,
        _ => Going::Closed,
    });
}

/// A loop that never tends accepts as many: its listener closes what is lost.
#[test]
fn clients_of_a_loop_that_only_polls_come_and_go() {
    let mut serving = Serving::new(&WorkerConfig::default());
    serving.tends = false;
    let mut client = serving.clients();
    for _ in 0..40 {
        let [here, there] = serving.come(&mut client, 1);
        client = serving.go(client, &there, Going::Dropped);
        let began = serving.fabric.now();
        while serving.server[0].close_progress(here[0]) != CloseProgress::Closed(Ok(())) {
            assert!(passed(&serving.fabric, began) < LONG, "{:?}", serving.ended);
            serving.fabric.run_for(Duration::from_micros(100));
            serving.poll();
            let accepted = serving
                .listener
                .poll_accept(&serving.nodes[0], &mut serving.server);
            assert!(accepted.unwrap().is_none());
        }
    }
    assert_eq!(serving.ended, [40, 0]);
}
