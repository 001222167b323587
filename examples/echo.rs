//! Two processes: one listens and prints its handle, the other is given the handle and sends
//! messages that come back.
//!
//! ```text
//! host a$ cargo run --example echo
//! host b$ cargo run --example echo -- doorbell:...
//! ```

use core::error::Error;
use core::time::Duration;
use std::env;

use doorbell::{ChannelConfig, Event, Handle, Listener, Node, Trust, Wait, Woken, WorkerConfig, within};

const MESSAGES: u32 = 1000;

/// The longest either side takes.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> Result<(), Box<dyn Error>> {
    // For a network on which nobody is who should not be; elsewhere, `Trust::keys`.
    let node = Node::open(Trust::unauthenticated_on_purpose())?;
    let mut workers = node.workers(&WorkerConfig::default())?;
    let config = ChannelConfig::default();
    match env::args().nth(1) {
        None => serve(&node, &mut workers, &config),
        Some(handle) => call(&node, &mut workers, &config, &handle.parse()?),
    }
}

fn serve(
    node: &Node,
    workers: &mut [doorbell::Worker],
    config: &ChannelConfig,
) -> Result<(), Box<dyn Error>> {
    let mut listener = Listener::bind(node, workers, "[::]:0".parse()?, config)?;
    println!("{}", listener.handle());
    let peer = listener.accept(node, workers, within(PATIENCE))?;
    let worker = workers.get_mut(peer.worker).ok_or("no such worker")?;
    let deadline = within(PATIENCE);
    let mut echoed = 0;
    let mut failed = None;
    while echoed < MESSAGES && failed.is_none() {
        let woken = worker.wait(Wait::Busy, deadline, |turn, event| match event {
            Event::Received { message, .. } => match turn.channel.send(message) {
                Ok(_) => echoed += 1,
                Err(error) => failed = Some(error.kind.to_string()),
            },
            Event::Failed { status, .. } | Event::ReceiveFailed { status } => {
                failed = Some(status.to_string())
            }
            _ => {}
        })?;
        if woken == Woken::Deadline {
            return Err("nothing came in time".into());
        }
    }
    // The last echo is on its way: closing waits for it.
    worker.close(peer.channel, within(Duration::from_secs(2)), |_, _| {})?;
    println!("{echoed} messages echoed");
    failed.map_or(Ok(()), |failure| Err(failure.into()))
}

fn call(
    node: &Node,
    workers: &mut [doorbell::Worker],
    config: &ChannelConfig,
    handle: &Handle,
) -> Result<(), Box<dyn Error>> {
    let to = node.connect(workers, handle, config, within(Duration::from_secs(10)))?;
    let worker = workers.get_mut(to.worker).ok_or("no such worker")?;
    let deadline = within(PATIENCE);
    for number in 0..MESSAGES {
        let mut message = worker.lease().ok_or("no memory")?;
        message.fill(&number.to_be_bytes())?;
        worker
            .channel(to.channel)
            .ok_or("closed")?
            .send(message)
            .map_err(|error| error.kind.to_string())?;
        let mut answer = None;
        let mut failed = None;
        while answer.is_none() && failed.is_none() {
            let woken = worker.wait(Wait::Busy, deadline, |mut turn, event| match event {
                Event::Received { message, .. } => {
                    answer = Some(message.payload() == number.to_be_bytes());
                    turn.release(message);
                }
                Event::Failed { status, .. } | Event::ReceiveFailed { status } => {
                    failed = Some(status.to_string())
                }
                _ => {}
            })?;
            if woken == Woken::Deadline {
                return Err(format!("message {number} did not come back in time").into());
            }
        }
        if answer != Some(true) {
            return Err(failed
                .unwrap_or_else(|| format!("message {number} came back changed"))
                .into());
        }
    }
    println!("{MESSAGES} messages came back unchanged");
    Ok(())
}
