//! Counts the memory that one hub with shared receives holds for so many peers at least depth, on the simulated
//! fabric: `memory_per_peer PEERS`. It counts our memory, the memory of messages and the simulator's memory
//! apart, and leaves the peers' own out.
//!
//! An allocation of the simulator for the hub that has the size of a slot counts as memory of messages.

use core::error::Error;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;
use std::sync::Arc;

use doorbell::connect::{Acceptances, Connecting, HandshakeLimits, Handshakes};
use doorbell::provider::IpPrefix;
use doorbell::worker::SharedReceivesConfig;
use doorbell::{ChannelConfig, Listener, Node, Trust, Worker, WorkerConfig};
use doorbell_proofs::owners::{Counting, HUB, MESSAGES, SIMULATOR, in_use, of};
use doorbell_sim::{Fabric, Host, PortConfig};

type Failure = Box<dyn Error>;

#[global_allocator]
static ALLOCATOR: Counting = Counting::new(SLOT_BYTES as usize);

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
