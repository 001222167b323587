//! Clients that come and go, eight at a time, to a server of default settings, over `ffi` on the fake libibverbs: some close, some are
//! dropped with their Worker, some go without a word. The server's heap, slots, cells and objects of the device are in the end what they
//! were.
//!
//! One test, since the heap and the calls are counted for the whole process.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

use core::alloc::{GlobalAlloc, Layout};
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use std::alloc::System;
use std::sync::Arc;
use std::time::Instant;

use doorbell::connect::Connecting;
use doorbell::worker::{CellCounts, CloseProgress};
use doorbell::{
    ChannelConfig, ChannelId, Event, Listener, Node, Operation, Trust, Worker, WorkerConfig, within,
};
use doorbell_fake::{Call, Control};
use doorbell_ffi::{Leaks, leaks};

const SOON: Duration = Duration::from_secs(60);
const AT_ONCE: usize = 8;

/// Handshakes under way at a time. One address may hold six of the 14 places with unfinished handshakes. A
/// further one waits a quarter of a second for its turn, and a machine that stands still may take that long.
const DIALS_MAX: usize = 4;

/// Rounds that fill what grows with use, such as lists, before anything is counted.
const FIRST: usize = 12;

/// Rounds that are counted: 800 clients, which take some seconds.
const ROUNDS: usize = 100;

/// So often the clients come and go, at most, until a pass leaves the heap as it was.
const PASSES: usize = 4;

/// The system's allocator, with a count of the bytes that are there.
struct Counting;

static LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every method does what the system's allocator does, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE_BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's obligation, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How a round of clients goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Going {
    Closed,
    /// With their Worker, which says farewell.
    Dropped,
    /// As of a process that is killed: with their queue pairs, and without a word.
    Silent,
}

impl Going {
    const fn of(round: usize) -> Self {
        match round % 10 {
            4 => Self::Dropped,
            9 => Self::Silent,
            _ => Self::Closed,
        }
    }
}

/// The counts that are to be the same before and after.
#[derive(Debug, PartialEq, Eq)]
struct There {
    slots: usize,
    /// The server's registered memory of cells, which serves client after client.
    cells: CellCounts,
    /// The count of each kind of object that a device makes.
    objects: [u32; Call::LIVES.len()],
    leaked: Leaks,
}

struct Serving {
    control: Control,
    node: Arc<Node>,
    listener: Listener,
    server: Vec<Worker>,
    own: Vec<Worker>,
    /// Messages, farewells and failures that were reported to the server.
    events: [usize; 3],
}

/// A Worker for clients.
fn clients(node: &Node) -> Vec<Worker> {
    let mut config = WorkerConfig::default();
    (config.slots, config.slot_bytes) = (256, 64);
    node.workers(&config).unwrap()
}

impl Serving {
    fn new(control: Control) -> Self {
        let node = Arc::new(Node::open(Trust::unauthenticated_on_purpose()).unwrap());
        let server = node.workers(&WorkerConfig::default()).unwrap();
        let mut config = ChannelConfig::default();
        // A probe takes its time here: that of the machine.
        config.probe_after = Some(Duration::from_millis(50));
        (config.timeout, config.retry_count) = (8, 1);
        let any = "127.0.0.1:0".parse().unwrap();
        Self {
            control,
            listener: Listener::bind(&node, &server, any, &config).unwrap(),
            own: clients(&node),
            server,
            node,
            events: [0; 3],
        }
    }

    /// One round of clients: all come, say something and go; the server's Worker has closed all of them behind it.
    fn round(&mut self, going: Going) {
        let mut config = ChannelConfig::default();
        (config.send_depth, config.receive_depth, config.probe_after) = (8, 8, None);
        let to = self.listener.address();
        let (mut dials, mut begun) = (Vec::<Connecting>::new(), 0);
        let (mut here, mut there) = (Vec::<ChannelId>::new(), Vec::<ChannelId>::new());
        let began = Instant::now();
        while here.len() < AT_ONCE || there.len() < AT_ONCE {
            assert!(began.elapsed() < SOON, "{here:?} {there:?}");
            while dials.len() < DIALS_MAX && begun < AT_ONCE {
                let dial = self.node.begin_connect_at(&self.own, to, &config, within(SOON));
                dials.push(dial.unwrap());
                begun += 1;
            }
            let (node, own) = (&self.node, &mut self.own);
            dials.retain_mut(|dial| match dial.poll(node, own) {
                Some(made) => {
                    there.push(made.unwrap().channel);
                    false
                }
                None => true,
            });
            let accepted = self.listener.poll_accept(&self.node, &mut self.server);
            here.extend(accepted.unwrap().map(|made| made.channel));
            self.poll();
        }
        for id in &there {
            let channel = self.own[0].channel(*id).unwrap();
            channel.post_inline(Operation::Send, b"hello").unwrap();
        }
        match going {
            Going::Closed => {
                for id in &there {
                    self.own[0].begin_close(*id, within(SOON)).unwrap();
                }
            }
            Going::Dropped => self.own = clients(&self.node),
            Going::Silent => {
                for id in &there {
                    self.own[0].channel(*id).unwrap().shut().unwrap();
                }
                self.own = clients(&self.node);
            }
        }
        let is_gone =
            |worker: &Worker, id: &ChannelId| worker.close_progress(*id) == CloseProgress::Closed(Ok(()));
        while !here.iter().all(|id| is_gone(&self.server[0], id)) || self.own[0].channels().count() > 0 {
            assert!(began.elapsed() < SOON, "{going:?}: {:?}", self.events);
            self.poll();
        }
    }

    fn poll(&mut self) {
        let [messages, farewells, failures] = &mut self.events;
        self.server[0]
            .poll_tending(|_, event| match event {
                Event::Received { .. } => *messages += 1,
                Event::PeerClosed { all_arrived: true } => *farewells += 1,
                Event::ChannelFailed { .. } => *failures += 1,
                Event::Done { .. } => {}
                other => panic!("{other:?}"),
            })
            .unwrap();
        self.own[0].poll_tending(|_, event| drop(event)).unwrap();
    }

    fn there(&mut self) -> There {
        // One that had a round of clients may be gone by now with its cells.
        self.own = clients(&self.node);
        assert!(self.node.settle(within(SOON)));
        let leases: Vec<_> = core::iter::from_fn(|| self.server[0].lease()).collect();
        There {
            slots: leases.len(),
            cells: self.server[0].cells(),
            objects: Call::LIVES.map(|(made, gone)| self.control.calls(made) - self.control.calls(gone)),
            leaked: leaks(),
        }
    }
}

#[test]
fn a_server_is_behind_its_clients_what_it_was_before() {
    let path = doorbell_fake::library_path().unwrap();
    // SAFETY: the fake was built from this workspace and stands for libibverbs of the machine's ABI.
    unsafe { rdma_sys::load_from(&path) }.unwrap();
    drop(Node::open(Trust::unauthenticated_on_purpose()).unwrap());
    let control = Control::of(&path).unwrap();
    control.heal();
    let mut serving = Serving::new(control);
    (0..FIRST).for_each(|round| serving.round(Going::of(round)));
    let before = serving.there();
    let clients = ROUNDS * AT_ONCE;
    // A buffer may grow once, as more clients come at the same time than before. A client that leaves something does so in each pass.
    let is_kept = (0..PASSES).any(|_| {
        let heap = LIVE_BYTES.load(Ordering::Relaxed);
        serving.events = [0; 3];
        let began = Instant::now();
        (0..ROUNDS).for_each(|round| serving.round(Going::of(round)));
        let after = serving.there();
        let grown = LIVE_BYTES.load(Ordering::Relaxed).saturating_sub(heap);
        println!(
            "{clients} clients in {:?}; the heap grew by {grown} bytes",
            began.elapsed()
        );
        assert_eq!(after, before);
        // As much as eight clients have at once, and no client has any of it now.
        let cells = &after.cells;
        assert_eq!((cells.blocks as usize, cells.in_use), (AT_ONCE, 0), "{cells:?}");
        assert_eq!(serving.events, [clients, clients * 9 / 10, clients / 10]);
        // Less than any allocation for each of them.
        grown < clients
    });
    assert!(is_kept, "the heap grew with {clients} clients in each pass");
}
