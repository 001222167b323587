//! Sends 64-byte messages through the public `Channel`, and receives them, for callgrind to count:
//! `channel_instructions cells|seldom|leases|receiving BATCH BATCHES`, with a libibverbs whose queue pairs find each other in one process.
//!
//! Everything is as it is by default: credits, the in-flight table and statistics. But no message goes inline, since by hand
//! none does. By `seldom` one message of 64 is signaled, and polled for. Two Workers of one Node are connected and polled in turns by one thread; only one side is in the functions
//! `measured_…`. The sending side claims a cell for each message, or leases memory and sets its length, as an application does
//! that has written it. For each batch it rings once and polls until the batch is done. The receiving side polls until it has
//! a batch, and reads a word of each message.

use core::error::Error;
use core::time::Duration;

use doorbell::{
    Batch, ChannelConfig, ChannelId, Connection, Event, Lease, Listener, Node, Operation, PostFlags,
    SendErrorKind, Trust, Worker, WorkerConfig, within,
};

type Failure = Box<dyn Error>;

const MESSAGE_BYTES: usize = 64;
/// One message of so many is signaled where it seldom is.
const SELDOM: u32 = 64;
/// Long, since callgrind makes a handshake some fifty times slower, and other work may be beside.
const SOON: Duration = Duration::from_secs(300);

/// One side of the connection.
struct End {
    workers: Vec<Worker>,
    worker: usize,
    channel: ChannelId,
}

impl End {
    fn worker(&mut self) -> Result<&mut Worker, Failure> {
        Ok(self.workers.get_mut(self.worker).ok_or("no worker")?)
    }
}

fn main() -> Result<(), Failure> {
    let mut words = std::env::args().skip(1);
    let who = match words.next().as_deref() {
        Some("cells") => Who::Cells,
        Some("seldom") => Who::Seldom,
        Some("leases") => Who::Leases,
        Some("receiving") => Who::Receiving,
        _ => return Err("cells|seldom|leases|receiving BATCH BATCHES".into()),
    };
    let mut number = || -> Result<u32, Failure> { Ok(words.next().ok_or("BATCH BATCHES")?.parse()?) };
    let (batch, batches) = (number()?, number()?);
    let (mut sender, mut receiver) = pair(who)?;
    let channel = sender.channel;
    let mut leases = Vec::with_capacity(batch as usize);
    let mut taken = 0_u64;
    for number in 1..=batches {
        // The other side announces receives when it has posted some again: what waiting for it takes is not of this side.
        while sender.worker()?.channel(channel).ok_or("closed")?.credits() < batch {
            taken = taken.wrapping_add(receive(receiver.worker()?)?);
        }
        let worker = sender.worker()?;
        match (who, batch) {
            (Who::Seldom, _) => measured_seldom(worker, channel, number)?,
            (Who::Cells, 1) => measured_cell(worker, channel)?,
            (Who::Cells, _) => measured_cells(worker, channel, batch)?,
            (Who::Leases, 1) => measured_lease(worker, channel)?,
            (Who::Leases, _) => measured_leases(worker, channel, batch, &mut leases)?,
            (Who::Receiving, _) => {
                send(worker, channel, batch)?;
                taken = taken.wrapping_add(measured_receiving(receiver.worker()?, batch)?);
            }
        }
        taken = taken.wrapping_add(receive(receiver.worker()?)?);
    }
    loop {
        match receive(receiver.worker()?)? {
            0 => break,
            more => taken = taken.wrapping_add(more),
        }
    }
    let sent = u64::from(batch).wrapping_mul(u64::from(batches));
    if taken != sent {
        return Err(format!("{taken} of {sent} messages arrived").into());
    }
    println!("{sent} messages");
    Ok(())
}

/// The side that is counted, and how it sends.
#[derive(Clone, Copy)]
enum Who {
    Cells,
    Seldom,
    Leases,
    Receiving,
}

/// Sends a batch from cells.
fn send(worker: &mut Worker, channel: ChannelId, batch: u32) -> Result<(), Failure> {
    let mut staged = worker.channel(channel).ok_or("closed")?.batch();
    for number in 0..batch {
        let mut claim = staged.claim(MESSAGE_BYTES)?;
        claim.bytes().fill(number as u8);
        claim.send()?;
    }
    staged.ring().map_err(SendErrorKind::Post)?;
    until_done(worker)
}

/// Takes a batch that has come, and reads a word of each message; says how many messages it was.
#[inline(never)]
fn measured_receiving(worker: &mut Worker, batch: u32) -> Result<u64, Failure> {
    let (mut taken, mut sum) = (0_u64, 0_u64);
    while taken < u64::from(batch) {
        worker.poll(|_, event| {
            if let Event::Received { message, .. } = event {
                if let Some(word) = message.payload().first_chunk() {
                    sum = sum.wrapping_add(u64::from_ne_bytes(*word));
                }
                taken = taken.wrapping_add(1);
            }
        })?;
    }
    core::hint::black_box(sum);
    Ok(taken)
}

/// Takes what has come; says how many messages it was.
fn receive(worker: &mut Worker) -> Result<u64, Failure> {
    let mut taken = 0_u64;
    worker.poll(|_, event| {
        taken = taken.wrapping_add(u64::from(matches!(event, Event::Received { .. })));
    })?;
    Ok(taken)
}

/// One message by itself, from a cell.
#[inline(never)]
fn measured_cell(worker: &mut Worker, channel: ChannelId) -> Result<(), Failure> {
    let open = worker.channel(channel).ok_or("closed")?;
    open.claim(MESSAGE_BYTES)?.send()?;
    until_done(worker)
}

/// One message by itself, from a cell, and what is known done, once that is signaled.
#[inline(never)]
fn measured_seldom(worker: &mut Worker, channel: ChannelId, number: u32) -> Result<(), Failure> {
    let open = worker.channel(channel).ok_or("closed")?;
    open.claim(MESSAGE_BYTES)?.send()?;
    if number % SELDOM == 0 {
        until_done(worker)?;
    }
    Ok(())
}

/// Several with one doorbell, from cells.
#[inline(never)]
fn measured_cells(worker: &mut Worker, channel: ChannelId, batch: u32) -> Result<(), Failure> {
    let mut staged = worker.channel(channel).ok_or("closed")?.batch();
    for _ in 0..batch {
        staged.claim(MESSAGE_BYTES)?.send()?;
    }
    staged.ring().map_err(SendErrorKind::Post)?;
    until_done(worker)
}

/// One message by itself, from a lease.
#[inline(never)]
fn measured_lease(worker: &mut Worker, channel: ChannelId) -> Result<(), Failure> {
    let mut lease = worker.lease().ok_or("no memory")?;
    lease.set_len_bytes(MESSAGE_BYTES);
    let open = worker.channel(channel).ok_or("closed")?;
    open.send_lease(lease)
        .map_err(|refused| refused.kind.to_string())?;
    until_done(worker)
}

/// Several with one doorbell, from leases.
#[inline(never)]
fn measured_leases(
    worker: &mut Worker,
    channel: ChannelId,
    batch: u32,
    leases: &mut Vec<Lease>,
) -> Result<(), Failure> {
    for _ in 0..batch {
        let mut lease = worker.lease().ok_or("no memory")?;
        lease.set_len_bytes(MESSAGE_BYTES);
        leases.push(lease);
    }
    let mut staged: Batch<'_> = worker.channel(channel).ok_or("closed")?.batch();
    for lease in leases.drain(..) {
        staged
            .push(Operation::Send, [lease], PostFlags::empty())
            .map_err(|refused| refused.kind.to_string())?;
    }
    staged
        .ring()
        .map_err(|error| SendErrorKind::Post(error).to_string())?;
    until_done(worker)
}

/// Polls until the doorbell is known done.
#[inline(always)]
fn until_done(worker: &mut Worker) -> Result<(), Failure> {
    let (mut is_done, mut failed) = (false, None);
    while !is_done {
        worker.poll(|_, event| match event {
            Event::Done { .. } => is_done = true,
            Event::Failed { status, .. } => failed = Some(status),
            _ => {}
        })?;
        if let Some(status) = failed {
            return Err(format!("a message failed: {status}").into());
        }
    }
    Ok(())
}

/// Two connected Workers on the first device.
fn pair(who: Who) -> Result<(End, End), Failure> {
    let node = Node::open(Trust::unauthenticated_on_purpose())?;
    let mut theirs = node.workers(&WorkerConfig::default())?;
    let mut ours = node.workers(&WorkerConfig::default())?;
    let mut config = ChannelConfig::default();
    config.inline_alone_bytes_max = 0;
    if matches!(who, Who::Seldom) {
        config.unsignaled_max = SELDOM;
    }
    config.handshake_stage = SOON;
    let mut listener = Listener::bind(&node, &theirs, "127.0.0.1:0".parse()?, &config)?;
    let address = listener.address();
    let (accepted, connected) = std::thread::scope(|scope| {
        let accepting = scope.spawn(|| listener.accept(&node, &mut theirs, within(SOON)));
        let connected = node.connect_at(&mut ours, address, &config, within(SOON));
        (accepting.join(), connected)
    });
    let end = |workers, at: Connection| End {
        workers,
        worker: at.worker,
        channel: at.channel,
    };
    let accepted = accepted.map_err(|_| "the listener gave up")??;
    Ok((end(ours, connected?), end(theirs, accepted)))
}
