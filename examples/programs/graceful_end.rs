//! A graceful end: the client sends all it has, says by an empty message that this was all, and closes. Nothing is lost.

use doorbell::vocabulary::provider::Provider;
use doorbell::{ChannelConfig, Event, Handle, Listener, Network, Node};

use super::{Announce, Failure, PATIENCE, sleeping, until};

pub(crate) const MESSAGES: u32 = 1000;

/// Counts messages until the empty one.
pub(crate) fn serve<P: Provider>(node: &Node<P, impl Network>, tell: Announce<'_>) -> Result<u32, Failure> {
    let mut workers = node.workers(&sleeping())?;
    let mut listener = Listener::bind(node, &workers, "[::]:0".parse()?, &ChannelConfig::default())?;
    tell(listener.handle());
    let peer = listener.accept(node, &mut workers, node.within(PATIENCE))?;
    let worker = workers.get_mut(peer.worker).ok_or("no such worker")?;
    let mut came = 0;
    until(worker, |mut turn, event| match event {
        Event::Received { message, .. } if message.payload().is_empty() => Some(()),
        Event::Received { message, .. } => {
            came += 1;
            turn.release(message);
            None
        }
        _ => None,
    })?;
    worker.close(peer.channel, worker.within(PATIENCE), |_, _| {})?;
    Ok(came)
}

/// Sends as fast as the server takes messages, and closes: which waits for what is under way.
pub(crate) fn call<P: Provider>(node: &Node<P, impl Network>, handle: &Handle) -> Result<u32, Failure> {
    let mut workers = node.workers(&sleeping())?;
    let config = ChannelConfig::default();
    let to = node.connect(&mut workers, handle, &config, node.within(PATIENCE))?;
    let worker = workers.get_mut(to.worker).ok_or("no such worker")?;
    let mut sent = 0_u32;
    while sent <= MESSAGES {
        let number = sent.to_be_bytes();
        // The last one is empty.
        let message = if sent < MESSAGES { &number[..] } else { &[] };
        match worker.send(to.channel, message) {
            Ok(_) => sent += 1,
            // The server has no receive left, or no lease is free: both come back by polling.
            Err(kind) if kind.is_temporary() => drop(worker.poll(|_, _| {})?),
            Err(kind) => return Err(kind.into()),
        }
    }
    worker.close(to.channel, worker.within(PATIENCE), |_, _| {})?;
    Ok(MESSAGES)
}
