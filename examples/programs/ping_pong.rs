//! Ping-pong: a message there and back, and then the next one.

use doorbell::provider::{Network, Provider};
use doorbell::{ChannelConfig, Event, Handle, Lease, Listener, Node, Worker};

use super::{Announce, Failure, PATIENCE, sleeping, until};

pub(crate) const ROUNDS: u32 = 100;

/// Sends back each message in the memory it came in.
pub(crate) fn serve<P: Provider>(node: &Node<P, impl Network>, tell: Announce<'_>) -> Result<u32, Failure> {
    let mut workers = node.workers(&sleeping())?;
    let mut listener = Listener::bind(node, &workers, "[::]:0".parse()?, &ChannelConfig::default())?;
    tell(listener.handle());
    let peer = listener.accept(node, &mut workers, node.within(PATIENCE))?;
    let worker = workers.get_mut(peer.worker).ok_or("no such worker")?;
    for _ in 0..ROUNDS {
        let message = receive(worker)?;
        let channel = worker.channel(peer.channel).ok_or("closed")?;
        channel.send_lease(message).map_err(|error| error.kind)?;
    }
    // The last one is on its way: closing waits for it.
    worker.close(peer.channel, worker.within(PATIENCE), |_, _| {})?;
    Ok(ROUNDS)
}

/// Sends numbers, each once the one before came back; says how many came back unchanged.
pub(crate) fn call<P: Provider>(node: &Node<P, impl Network>, handle: &Handle) -> Result<u32, Failure> {
    let mut workers = node.workers(&sleeping())?;
    let config = ChannelConfig::default();
    let to = node.connect(&mut workers, handle, &config, node.within(PATIENCE))?;
    let worker = workers.get_mut(to.worker).ok_or("no such worker")?;
    let mut unchanged = 0;
    for number in 0..ROUNDS {
        worker.send(to.channel, &number.to_be_bytes())?;
        let answer = receive(worker)?;
        unchanged += u32::from(answer.payload() == number.to_be_bytes());
        worker.release(answer);
    }
    Ok(unchanged)
}

/// Waits for the next message.
fn receive<P: Provider>(worker: &mut Worker<P>) -> Result<Lease<P>, Failure> {
    until(worker, |_, event| match event {
        Event::Received { message, .. } => Some(message.keep()),
        _ => None,
    })
}
