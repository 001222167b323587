//! Sends 64-byte messages through the public `Channel`, for callgrind to count:
//! `channel_instructions BATCH BATCHES`, with a libibverbs whose queue pairs find each other in one process.
//!
//! Everything is as it is by default: leases, credits, the in-flight table and statistics. Two Workers of one Node are
//! connected and polled in turns by one thread; only the side that sends is in the functions `measured_…`. For each
//! message it leases memory and sets its length, as an application does that has written it; for each batch it rings
//! once and polls until the batch is done.

use core::error::Error;
use core::time::Duration;

use doorbell::{
    Batch, ChannelConfig, ChannelId, Connection, Event, Lease, Listener, Node, Operation, PostFlags,
    SendErrorKind, Trust, Worker, WorkerConfig, within,
};

type Failure = Box<dyn Error>;

const MESSAGE_BYTES: usize = 64;
const SOON: Duration = Duration::from_secs(30);

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
    let mut number = || -> Result<u32, Failure> { Ok(words.next().ok_or("BATCH BATCHES")?.parse()?) };
    let (batch, batches) = (number()?, number()?);
    let (mut sender, mut receiver) = pair()?;
    let channel = sender.channel;
    let mut leases = Vec::with_capacity(batch as usize);
    let mut taken = 0_u64;
    for _ in 0..batches {
        // The other side announces receives when it has posted some again: what waiting for it takes is not of this side.
        while sender.worker()?.channel(channel).ok_or("closed")?.credits() < batch {
            taken = taken.wrapping_add(receive(receiver.worker()?)?);
        }
        let worker = sender.worker()?;
        if batch == 1 {
            measured_one(worker, channel)?;
        } else {
            measured_batch(worker, channel, batch, &mut leases)?;
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

/// Takes what has come; says how many messages it was.
fn receive(worker: &mut Worker) -> Result<u64, Failure> {
    let mut taken = 0_u64;
    worker.poll(|mut turn, event| {
        if let Event::Received { message, .. } = event {
            taken = taken.wrapping_add(1);
            turn.release(message);
        }
    })?;
    Ok(taken)
}

/// One message by itself.
#[inline(never)]
fn measured_one(worker: &mut Worker, channel: ChannelId) -> Result<(), Failure> {
    let mut lease = worker.lease().ok_or("no memory")?;
    lease.set_len_bytes(MESSAGE_BYTES);
    let open = worker.channel(channel).ok_or("closed")?;
    open.send(lease).map_err(|refused| refused.kind.to_string())?;
    until_done(worker)
}

/// Several with one doorbell.
#[inline(never)]
fn measured_batch(
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
fn pair() -> Result<(End, End), Failure> {
    let node = Node::open(Trust::unauthenticated_on_purpose())?;
    let mut theirs = node.workers(&WorkerConfig::default())?;
    let mut ours = node.workers(&WorkerConfig::default())?;
    let config = ChannelConfig::default();
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
