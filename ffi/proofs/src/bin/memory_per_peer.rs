//! Counts the memory that one hub with shared receives holds for so many peers at least depth, on the simulated
//! fabric: `memory_per_peer PEERS`. It counts our memory, the memory of messages and the simulator's memory
//! apart, and leaves the peers' own out.
//!
//! Every allocation is noted with its owner: the hub, the peers, or the simulator. The thread says on whose
//! behalf it runs. A freed allocation is taken from the count of its owner. An allocation of the simulator for
//! the hub that has the size of a slot counts as memory of messages.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::Cell;
use core::error::Error;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::sync::atomic::{AtomicI64, Ordering};
use core::time::Duration;
use std::alloc::System;
use std::sync::Arc;

use doorbell::connect::{Acceptances, Connecting, HandshakeLimits, Handshakes};
use doorbell::provider::IpPrefix;
use doorbell::worker::SharedReceivesConfig;
use doorbell::{ChannelConfig, Listener, Node, Trust, Worker, WorkerConfig};
use doorbell_sim::{Fabric, Host, PortConfig, is_inside};

type Failure = Box<dyn Error>;

/// The system's allocator, with a count of the bytes that each has.
struct Counting;

/// Whose an allocation is.
const HUB: u8 = 0;
const PEERS: u8 = 1;
const SIMULATOR: u8 = 2;
const MESSAGES: u8 = 3;

/// Bytes in use, of each. Relaxed: one thread counts, and another's are none of these.
static IN_USE: [AtomicI64; 4] = [const { AtomicI64::new(0) }; 4];

thread_local! {
    /// Without a destructor or anything to make first: it may be used in the allocator itself.
    static WHOSE: Cell<u8> = const { Cell::new(PEERS) };
}

fn whose(layout: Layout) -> u8 {
    let is_slot = (layout.size(), layout.align()) == (SLOT_BYTES as usize, 1);
    match (is_inside(), WHOSE.get()) {
        (true, HUB) if is_slot => MESSAGES,
        (true, _) => SIMULATOR,
        (false, whose) => whose,
    }
}

fn note(whose: u8, bytes: i64) {
    if let Some(count) = IN_USE.get(usize::from(whose)) {
        count.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Bytes in front of each allocation: one alignment's worth, the last of which names the owner.
fn front_of(layout: Layout) -> usize {
    layout.align().max(16)
}

/// The layout with what stands in front; `None` where there is none so large.
fn with_front(layout: Layout) -> Option<Layout> {
    let bytes = layout.size().checked_add(front_of(layout))?;
    Layout::from_size_align(bytes, front_of(layout)).ok()
}

fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

// SAFETY: Each allocation is one of the system's allocator, larger by a front that is a multiple of the alignment
// asked for. The rest of it is given out: aligned, and as long as asked. Memory is freed as it was allocated,
// with the same layout. `realloc` and `alloc_zeroed` are the trait's own, which go by these two.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(whole) = with_front(layout) else {
            return core::ptr::null_mut();
        };
        let front = front_of(layout);
        // SAFETY: the layout is not of no bytes, since the front is not.
        let place = unsafe { System.alloc(whole) };
        if place.is_null() {
            return place;
        }
        // SAFETY: within the allocation, which begins with the front.
        let given = unsafe { place.add(front) };
        // SAFETY: the byte before is the last of the front.
        let mark = unsafe { given.sub(1) };
        let whose = whose(layout);
        // SAFETY: it is within the allocation, and nobody else's yet.
        unsafe { mark.write(whose) };
        note(whose, signed(layout.size()));
        given
    }

    unsafe fn dealloc(&self, given: *mut u8, layout: Layout) {
        let Some(whole) = with_front(layout) else {
            return;
        };
        // SAFETY: what was given out stands behind a front, whose last byte this is.
        let mark = unsafe { given.sub(1) };
        // SAFETY: it was written when this was allocated, and nobody has it since.
        let whose = unsafe { mark.read() };
        note(whose, signed(layout.size()).wrapping_neg());
        // SAFETY: the front begins the allocation.
        let place = unsafe { given.sub(front_of(layout)) };
        // SAFETY: allocated by the system's allocator with this layout.
        unsafe { System.dealloc(place, whole) };
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs `what`, whose allocations belong to `whose`.
fn of<R>(whose: u8, what: impl FnOnce() -> R) -> R {
    let before = WHOSE.replace(whose);
    let outcome = what();
    WHOSE.set(before);
    outcome
}

fn in_use(whose: u8) -> i64 {
    IN_USE
        .get(usize::from(whose))
        .map_or(0, |count| count.load(Ordering::Relaxed))
}

/// Requests in flight, and receives of its share, of each channel: the least there is.
const DEPTH: u32 = 1;

/// Bytes of a receive: a slot is so many bytes by themselves, and nothing else in the simulator is.
const SLOT_BYTES: u32 = 67;

/// Peers that connect at a time.
const AT_A_TIME: u32 = 32;

/// Peers of one Worker on their side.
const OF_A_WORKER: u32 = 1024;

const PORT: u16 = 7000;
const SOON: Duration = Duration::from_secs(3600);

fn port(last: u8) -> Result<PortConfig, Failure> {
    let address = IpAddr::V4(Ipv4Addr::new(10, 0, 0, last));
    let address = IpPrefix::new(address, 16)?;
    Ok(PortConfig::new("sim0", &[address]))
}

fn channel() -> ChannelConfig {
    let mut config = ChannelConfig::default();
    config.send_depth = DEPTH;
    config.receive_depth = DEPTH;
    config.gather_max = 1;
    config.handshake_stage = SOON;
    // Cells are memory to send, as slots are.
    config.cell_bytes = 0;
    config
}

fn worker(channels: u32) -> WorkerConfig {
    let mut config = WorkerConfig::default();
    config.slots = channels.saturating_mul(DEPTH).saturating_add(64);
    config.lease_share_percent = 0;
    config.slot_bytes = SLOT_BYTES;
    config.completion_depth = channels.saturating_mul(2 * DEPTH + 2);
    config.channels_max = channels;
    config
}

/// The side that is counted.
struct Hub {
    node: Arc<Node<Host, Host>>,
    workers: Vec<Worker<Host>>,
    handshakes: Handshakes<Host, Host>,
    acceptances: Vec<Acceptances<Host>>,
    connected: u32,
}

impl Hub {
    fn new(fabric: &Fabric, peers: u32) -> Result<Self, Failure> {
        let host = fabric.host("hub", vec![port(1)?])?;
        let node = Arc::new(Node::with(
            host.clone(),
            host,
            Trust::unauthenticated_on_purpose(),
        )?);
        let mut config = worker(peers);
        let mut shared = SharedReceivesConfig::default();
        shared.depth = peers.saturating_mul(DEPTH).saturating_add(32);
        config.shared_receives = Some(shared);
        let workers = node.workers(&config)?;
        let at = SocketAddr::from(([0, 0, 0, 0], PORT));
        let listener = Listener::bind(&node, &workers, at, &channel())?;
        let (handshakes, acceptances) = listener.aside(&node, &workers, &HandshakeLimits::default());
        Ok(Self {
            node,
            workers,
            handshakes,
            acceptances,
            connected: 0,
        })
    }

    fn poll(&mut self) -> Result<(), Failure> {
        self.handshakes.poll();
        for (acceptances, worker) in self.acceptances.iter_mut().zip(&mut self.workers) {
            for _ in 0..AT_A_TIME {
                if acceptances.poll_accept(worker)?.is_some() {
                    self.connected = self.connected.saturating_add(1);
                }
            }
            worker.poll_tending(|_, _| {})?;
        }
        Ok(())
    }
}

fn connect(fabric: &Fabric, hub: &mut Hub, peers: u32) -> Result<(), Failure> {
    let handle = *hub.handshakes.handle();
    let host = fabric.host("peers", vec![port(2)?])?;
    let node = Node::with(host.clone(), host, Trust::unauthenticated_on_purpose())?;
    let mut made = 0_u32;
    while made < peers {
        let here = (peers.saturating_sub(made)).min(OF_A_WORKER);
        let mut workers = node.workers(&worker(here))?;
        let mut under_way: Vec<Connecting<Host, Host>> = Vec::new();
        let (mut begun, mut done) = (0_u32, 0_u32);
        while done < here {
            while begun < here && begun.saturating_sub(done) < AT_A_TIME {
                under_way.push(node.begin_connect(&workers, &handle, &channel(), node.within(SOON))?);
                begun = begun.saturating_add(1);
            }
            let mut failure = None;
            under_way.retain_mut(|connecting| match connecting.poll(&node, &mut workers) {
                None => true,
                Some(Ok(_)) => {
                    done = done.saturating_add(1);
                    false
                }
                Some(Err(error)) => {
                    failure = Some(error);
                    false
                }
            });
            if let Some(error) = failure {
                return Err(error.into());
            }
            of(HUB, || hub.poll())?;
            fabric.run_for(Duration::from_micros(10));
        }
        made = made.saturating_add(here);
        // They stay as long as the program does.
        core::mem::forget(workers);
    }
    while hub.connected < peers {
        of(HUB, || hub.poll())?;
        fabric.run_for(Duration::from_micros(10));
    }
    core::mem::forget(node);
    Ok(())
}

fn main() -> Result<(), Failure> {
    let peers: u32 = std::env::args().nth(1).ok_or("PEERS")?.parse()?;
    let fabric = Fabric::builder().driven().build();
    let mut hub = of(HUB, || Hub::new(&fabric, peers))?;
    // The hub itself is in the quotient: its tables are sized for all peers, so they belong to the cost of each.
    connect(&fabric, &mut hub, peers)?;
    let each = |bytes: i64| bytes.checked_div(i64::from(peers)).unwrap_or(0);
    println!(
        "{peers} peers; bytes for each: ours {}, messages {}, simulator {} (of both sides, with the peers' messages)",
        each(in_use(HUB)),
        each(in_use(MESSAGES)),
        each(in_use(SIMULATOR)),
    );
    drop(hub.node);
    Ok(())
}
