//! A graceful end: the client sends all it has and closes. The server learns that, and that nothing was lost.

use doorbell::provider::{Network, Provider};
use doorbell::{ChannelConfig, Event, Handle, Listener, Node};

use super::{Announce, Failure, PATIENCE, sleeping, until};

pub(crate) const MESSAGES: u32 = 1000;

/// Counts messages until the client has closed; says whether all that it had sent arrived.
pub(crate) fn serve<P: Provider>(
    node: &Node<P, impl Network>,
    tell: Announce<'_>,
) -> Result<(u32, bool), Failure> {
    let mut workers = node.workers(&sleeping())?;
    let mut listener = Listener::bind(node, &workers, "[::]:0".parse()?, &ChannelConfig::default())?;
    tell(listener.handle());
    let peer = listener.accept(node, &mut workers, node.within(PATIENCE))?;
    let worker = workers.get_mut(peer.worker).ok_or("no such worker")?;
    let mut came = 0;
    let all_arrived = until(worker, |_, event| match event {
        Event::Received { .. } => {
            came += 1;
            None
        }
        Event::PeerClosed { all_arrived } => Some(all_arrived),
        _ => None,
    })?;
    // The Worker closes this side by itself, and takes its memory back.
    Ok((came, all_arrived))
}

/// Sends as fast as the server takes messages, and closes: which waits for what is under way.
pub(crate) fn call<P: Provider>(node: &Node<P, impl Network>, handle: &Handle) -> Result<u32, Failure> {
    let mut workers = node.workers(&sleeping())?;
    let config = ChannelConfig::default();
    let to = node.connect(&mut workers, handle, &config, node.within(PATIENCE))?;
    let worker = workers.get_mut(to.worker).ok_or("no such worker")?;
    let mut sent = 0_u32;
    while sent < MESSAGES {
        match worker.send(to.channel, &sent.to_be_bytes()) {
            Ok(_) => sent += 1,
            // The server has no receive left, or no lease is free: both come back by polling.
            Err(kind) if kind.is_temporary() => drop(worker.poll(|_, _| {})?),
            Err(kind) => return Err(kind.into()),
        }
    }
    worker.close(to.channel, worker.within(PATIENCE), |_, _| {})?;
    Ok(sent)
}
