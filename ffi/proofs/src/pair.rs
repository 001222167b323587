//! Two Workers of one process, connected to each other as any two hosts are: one whose channels share receives, and
//! one whose channels have their own.

use core::error::Error;
use core::time::Duration;

use doorbell::provider::{ArenaConfig, Window as _};
use doorbell::worker::{
    ReceiveWorker, RingChannel, RingConfig, RingError, SendWorker, SharedReceivesConfig, Submitter,
    SubmitterConfig,
};
use doorbell::{
    Channel, ChannelConfig, ChannelId, Connection, Listener, LocalWindow, Node, Notify, RemoteAccess, Trust,
    WindowConfig, Worker, WorkerConfig, within,
};

/// How long connecting may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// Bytes of the window each side opens to the other.
const WINDOW_BYTES: usize = 4096;

/// One of the two.
#[derive(Debug)]
#[non_exhaustive]
pub struct End {
    /// Its thread's queues and memory.
    pub worker: Worker,
    /// Its end of the connection.
    pub channel: ChannelId,
    /// Memory that the other side may reach.
    pub window: LocalWindow,
    /// Submitters to the Worker: through a ring of its own, and through one that it shares.
    pub submitters: [Submitter; 2],
}

impl End {
    /// Its end of the connection.
    #[inline]
    pub fn channel(&mut self) -> Option<&mut Channel> {
        self.worker.channel(self.channel)
    }
}

/// The two.
#[derive(Debug)]
#[non_exhaustive]
pub struct Pair {
    /// The one that listened.
    pub a: End,
    /// The one that connected.
    pub b: End,
    /// The node, which has to outlive them.
    pub node: Node,
}

/// Takes a Worker apart, whose halves that send lease from so much memory; `None` where that fails.
// A function with a name of its own is never in line, as `panic_free` wants it.
// SAFETY: no other symbol has this name.
#[unsafe(export_name = "doorbell_proofs_split")]
#[must_use]
pub fn split(worker: Worker, arena: &ArenaConfig) -> Option<(SendWorker, ReceiveWorker)> {
    worker.split(arena).ok()
}

/// Drops half a Worker, with all that destruction is, which is no part of what is proven.
// SAFETY: no other symbol has this name.
#[unsafe(export_name = "doorbell_proofs_destroy")]
pub fn destroy(half: SendWorker) {
    drop(half);
}

impl Pair {
    /// Loads the fake libibverbs and connects two Workers on it.
    ///
    /// # Errors
    /// It is not built, or connecting failed.
    // SAFETY: no other symbol has this name.
    #[unsafe(export_name = "doorbell_proofs_connect")]
    pub fn connect() -> Result<Self, Box<dyn Error>> {
        // SAFETY: the fake was built from this workspace and stands for libibverbs of the machine's ABI.
        unsafe { rdma_sys::load_from(&doorbell_fake::library_path()?) }?;
        let node = Node::open(Trust::unauthenticated_on_purpose())?;
        let mut a = workers(&node, Some(shared()))?;
        let mut b = workers(&node, None)?;
        let config = config();
        let mut listener = Listener::bind(&node, &a, "127.0.0.1:0".parse()?, &config)?;
        let address = listener.address();
        let (at_a, at_b) = std::thread::scope(|scope| {
            let dialing = scope.spawn(|| node.connect_at(&mut b, address, &config, within(PATIENCE)));
            let accepted = listener.accept(&node, &mut a, within(PATIENCE));
            (accepted, dialing.join())
        });
        let at_b = at_b.map_err(|_| "the thread that connects panicked")?;
        Ok(Self {
            a: end(a, at_a?)?,
            b: end(b, at_b?)?,
            node,
        })
    }

    /// Opens one-sided rings on the connection, while nothing else is under way on it: that of a, and of b.
    ///
    /// # Errors
    /// There is no memory for them, or the connection failed.
    // SAFETY: no other symbol has this name.
    #[unsafe(export_name = "doorbell_proofs_rings")]
    pub fn rings(&mut self) -> Result<[RingChannel; 2], Box<dyn Error>> {
        let Self { a, b, .. } = self;
        let (ring_a, ring_b) = std::thread::scope(|scope| {
            let opening = scope.spawn(|| ring(b));
            (ring(a), opening.join())
        });
        let ring_b = ring_b.map_err(|_| "the thread that opens a ring panicked")?;
        Ok([ring_a?, ring_b?])
    }
}

/// Opens a ring at one end; the other does the same meanwhile. It has few cells, so that they come round
/// often.
fn ring(end: &mut End) -> Result<RingChannel, RingError> {
    let mut config = RingConfig::default();
    config.cells = 16;
    RingChannel::open(&mut end.worker, end.channel, &config, within(PATIENCE), |_, _| ())
}

/// Few more than the channel's share, so that they run out, too.
fn shared() -> SharedReceivesConfig {
    let mut shared = SharedReceivesConfig::default();
    shared.depth = 36;
    shared.repost_batch = 8;
    shared.limit = 4;
    shared
}

fn workers(node: &Node, shared: Option<SharedReceivesConfig>) -> Result<Vec<Worker>, Box<dyn Error>> {
    let mut config = WorkerConfig::default();
    config.slots = 512;
    config.shared_receives = shared;
    // They are waited for, too.
    config.notify = Notify::Every;
    Ok(node.workers(&config)?)
}

/// Small queues, so that their ends are met often, and rows of unsignaled requests.
fn config() -> ChannelConfig {
    let mut config = ChannelConfig::default();
    config.send_depth = 64;
    config.receive_depth = 32;
    config.repost_batch = 8;
    config.unsignaled_max = 8;
    config.remote = RemoteAccess {
        write: true,
        read: true,
        atomic: true,
    };
    config
}

fn end(mut workers: Vec<Worker>, at: Connection) -> Result<End, Box<dyn Error>> {
    if at.worker >= workers.len() {
        return Err("the channel is on no Worker".into());
    }
    let mut worker = workers.swap_remove(at.worker);
    let window = worker.window(&WindowConfig::new(WINDOW_BYTES, config().remote))?;
    if window.bytes() != WINDOW_BYTES {
        return Err("the window is of another size".into());
    }
    let mut config = SubmitterConfig::default();
    config.slots = 16;
    config.slot_bytes = 64;
    config.depth = 8;
    let own = worker.submitter(&config)?;
    let sharing = worker
        .submitters(1, &config)?
        .pop()
        .ok_or("no submitter was made")?;
    Ok(End {
        submitters: [own, sharing],
        worker,
        channel: at.channel,
        window,
    })
}
