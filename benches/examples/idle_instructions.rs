//! Polls a Worker that has many channels and uses one of them, for callgrind to count:
//! `idle_instructions WHAT CHANNELS POLLS`, with a libibverbs whose queue pairs find each other in one process.
//!
//! | WHAT | a measured call |
//! |---|---|
//! | `empty` | polls, and no completion comes |
//! | `send` | sends a message, and polls its completion |
//! | `receive` | polls a message, and posts its receive again |
//! | `shared` | does as `receive`, with receives that all channels share |
//! | `refused` | is refused a message for want of a credit, and waits until a deadline that has passed |
//!
//! Only the depths differ from the defaults, so that all channels fit into one completion queue. The functions
//! `measured_…` hold the Worker's calls and nothing else.

use core::error::Error;
use core::time::Duration;

use doorbell::worker::SharedReceivesConfig;
use doorbell::{
    ChannelConfig, ChannelId, Event, Listener, Node, Operation, SendErrorKind, Trust, Wait, Woken, Worker,
    WorkerConfig, within,
};

type Failure = Box<dyn Error>;

const MESSAGE: [u8; 64] = [1; 64];
const SOON: Duration = Duration::from_secs(300);

/// Requests in flight, and receives, of each channel.
const DEPTH: u32 = 2;

fn main() -> Result<(), Failure> {
    let mut words = std::env::args().skip(1);
    let mut word = || words.next().ok_or("WHAT CHANNELS POLLS");
    let (what, channels, polls) = (word()?, word()?.parse::<u32>()?, word()?.parse::<u32>()?);
    let node = Node::open(Trust::unauthenticated_on_purpose())?;
    let mut config = WorkerConfig::default();
    config.slots = channels.saturating_mul(DEPTH).saturating_add(64);
    config.lease_share_percent = 0;
    config.slot_bytes = 64;
    config.completion_depth = channels.saturating_mul(DEPTH.saturating_add(1));
    config.channels_max = channels;
    let mut peers = node.workers(&config)?;
    if what == "shared" {
        let mut shared = SharedReceivesConfig::default();
        shared.depth = channels.saturating_mul(DEPTH).saturating_add(32);
        config.shared_receives = Some(shared);
    }
    let mut workers = node.workers(&config)?;
    let mut pairs = Vec::new();
    for _ in 0..channels {
        pairs.push(connect(&node, &mut workers, &mut peers)?);
    }
    // One in the middle: neither the first nor the last that is looked at, were all of them.
    let (here, there) = pairs.get(pairs.len() / 2).copied().ok_or("no channel")?;
    let (worker, peer) = (first(&mut workers)?, first(&mut peers)?);
    if what == "refused" {
        // The peer takes none of them, and so announces no more receives.
        while worker.channel(here).ok_or("closed")?.credits() > 0 {
            send_through(worker, here)?;
        }
    }
    for _ in 0..polls {
        match what.as_str() {
            "empty" => measured_empty(worker)?,
            "send" => {
                while worker.channel(here).ok_or("closed")?.credits() == 0 {
                    take(peer)?;
                }
                measured_send(worker, here)?;
                take(peer)?;
            }
            "receive" | "shared" => {
                while send(peer, there).is_err() {
                    worker.poll(|_, _| {})?;
                }
                measured_receive(worker)?;
                peer.poll(|_, _| {})?;
            }
            "refused" => measured_refused(worker, here)?,
            other => return Err(format!("there is no {other}").into()),
        }
    }
    println!("{polls} times {what} with {channels} channels");
    Ok(())
}

fn first(workers: &mut [Worker]) -> Result<&mut Worker, Failure> {
    Ok(workers.first_mut().ok_or("no worker")?)
}

/// Takes what came, and gives its memory back; says how many messages it was.
#[inline(always)]
fn take(worker: &mut Worker) -> Result<u32, Failure> {
    let mut taken = 0_u32;
    worker.poll(|_, event| {
        if let Event::Received { .. } = event {
            taken = taken.wrapping_add(1);
        }
    })?;
    Ok(taken)
}

fn send(worker: &mut Worker, channel: ChannelId) -> Result<(), Failure> {
    let open = worker.channel(channel).ok_or("closed")?;
    open.post_inline(Operation::Send, &MESSAGE)
        .map_err(|kind| kind.to_string())?;
    Ok(())
}

/// Sends a message, and polls until it is known done.
#[inline(always)]
fn send_through(worker: &mut Worker, channel: ChannelId) -> Result<(), Failure> {
    send(worker, channel)?;
    let mut is_done = false;
    while !is_done {
        worker.poll(|_, event| is_done |= matches!(event, Event::Done { .. }))?;
    }
    Ok(())
}

#[inline(never)]
fn measured_empty(worker: &mut Worker) -> Result<(), Failure> {
    match worker.poll(|_, _| {})? {
        0 => Ok(()),
        _ => Err("something came".into()),
    }
}

#[inline(never)]
fn measured_send(worker: &mut Worker, channel: ChannelId) -> Result<(), Failure> {
    send_through(worker, channel)
}

#[inline(never)]
fn measured_refused(worker: &mut Worker, channel: ChannelId) -> Result<(), Failure> {
    let open = worker.channel(channel).ok_or("closed")?;
    // Room there is: all that was sent is done.
    if open.post_inline(Operation::Send, &MESSAGE) != Err(SendErrorKind::WouldBlock) {
        return Err("there were to be no credits".into());
    }
    let now = worker.within(Duration::ZERO);
    match worker.wait(Wait::Busy, now, |_, _| {})? {
        Woken::Deadline => Ok(()),
        _ => Err("something came".into()),
    }
}

#[inline(never)]
fn measured_receive(worker: &mut Worker) -> Result<(), Failure> {
    match take(worker)? {
        1 => Ok(()),
        _ => Err("one message was sent".into()),
    }
}

/// One more channel; its names on both sides.
fn connect(
    node: &Node,
    workers: &mut [Worker],
    peers: &mut [Worker],
) -> Result<(ChannelId, ChannelId), Failure> {
    let mut config = ChannelConfig::default();
    config.send_depth = DEPTH;
    config.receive_depth = DEPTH;
    // Silent peers are looked for by the clock: how often that is within the count, the machine's speed would say.
    config.probe_after = None;
    // Counted under an instrument, everything takes its time.
    config.handshake_stage = SOON;
    let mut listener = Listener::bind(node, workers, "127.0.0.1:0".parse()?, &config)?;
    let address = listener.address();
    let (accepted, connected) = std::thread::scope(|scope| {
        let accepting = scope.spawn(|| listener.accept(node, workers, within(SOON)));
        let connected = node.connect_at(peers, address, &config, within(SOON));
        (accepting.join(), connected)
    });
    let accepted = accepted.map_err(|_| "the listener gave up")??;
    Ok((accepted.channel, connected?.channel))
}
