//! Two processes: one listens and prints its handle, the other is given the handle and sends
//! messages that come back.
//!
//! ```text
//! host a$ cargo run --example echo
//! host b$ cargo run --example echo -- doorbell:...
//! ```
//!
//! With `--simulated` both are in this process, each a host of a simulated fabric: that needs no device.

#[path = "around/simulated.rs"]
mod simulated;

use core::error::Error;
use core::time::Duration;
use std::env;

use doorbell::provider::{Network, Provider};
use doorbell::worker::FirstCause;
use doorbell::{ChannelConfig, Event, Handle, Listener, Node, Trust, Wait, Woken, WorkerConfig};
use doorbell_sim::Fabric;

/// Why a program cannot go on.
type Failure = Box<dyn Error + Send + Sync>;

const MESSAGES: u32 = 1000;

/// The two threads of a simulated fabric take turns at it, and so fewer.
const MESSAGES_SIMULATED: u32 = 100;

/// The longest either side takes.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> Result<(), Failure> {
    let argument = env::args().nth(1);
    if argument.as_deref() == Some("--simulated") {
        return on_a_simulated_fabric();
    }
    // For a network without strangers; elsewhere, `Trust::keys`.
    let node = Node::open(Trust::unauthenticated_on_purpose())?;
    match argument {
        None => serve(&node, MESSAGES, &|handle| {
            println!("{handle}");
            Ok(())
        }),
        Some(handle) => call(&node, MESSAGES, &handle.parse()?),
    }
}

/// Both, each a host and a thread.
fn on_a_simulated_fabric() -> Result<(), Failure> {
    simulated::together(
        &Fabric::new(),
        1,
        |node, announce| serve(node, MESSAGES_SIMULATED, announce),
        |_, node, handle| call(node, MESSAGES_SIMULATED, handle),
    )
    .map(drop)
}

fn serve<P: Provider, N: Network>(
    node: &Node<P, N>,
    messages: u32,
    announce: &dyn Fn(&Handle) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut workers = node.workers(&WorkerConfig::default())?;
    let config = ChannelConfig::default();
    let mut listener = Listener::bind(node, &workers, "[::]:0".parse()?, &config)?;
    announce(listener.handle())?;
    let peer = listener.accept(node, &mut workers, node.within(PATIENCE))?;
    let worker = workers.get_mut(peer.worker).ok_or("no such worker")?;
    let deadline = worker.within(PATIENCE);
    let mut echoed = 0;
    let mut failed = None;
    while echoed < messages && failed.is_none() {
        let woken = worker.wait(Wait::Busy, deadline, |turn, event| match event {
            Event::Received { message, .. } => match turn.channel.send_lease(message.keep()) {
                Ok(_) => echoed += 1,
                Err(error) => failed = Some(error.kind.to_string()),
            },
            Event::Failed { status, .. }
            | Event::ChannelFailed {
                cause: FirstCause { status, .. },
            } => failed = Some(status.to_string()),
            _ => {}
        })?;
        if woken == Woken::Deadline {
            return Err("nothing came in time".into());
        }
    }
    // The last echo is on its way: closing waits for it.
    let deadline = worker.within(Duration::from_secs(2));
    worker.close(peer.channel, deadline, |_, _| {})?;
    println!("{echoed} messages echoed");
    failed.map_or(Ok(()), |failure| Err(failure.into()))
}

fn call<P: Provider, N: Network>(node: &Node<P, N>, messages: u32, handle: &Handle) -> Result<(), Failure> {
    let mut workers = node.workers(&WorkerConfig::default())?;
    let deadline = node.within(Duration::from_secs(10));
    let to = node.connect(&mut workers, handle, &ChannelConfig::default(), deadline)?;
    let worker = workers.get_mut(to.worker).ok_or("no such worker")?;
    let deadline = worker.within(PATIENCE);
    for number in 0..messages {
        worker.send(to.channel, &number.to_be_bytes())?;
        let mut answer = None;
        let mut failed = None;
        while answer.is_none() && failed.is_none() {
            let woken = worker.wait(Wait::Busy, deadline, |_, event| match event {
                Event::Received { message, .. } => {
                    answer = Some(message.payload() == number.to_be_bytes());
                }
                Event::Failed { status, .. }
                | Event::ChannelFailed {
                    cause: FirstCause { status, .. },
                } => failed = Some(status.to_string()),
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
    println!("{messages} messages came back unchanged");
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn all_messages_come_back_over_the_simulated_fabric() {
        super::on_a_simulated_fabric().unwrap();
    }
}
