//! A hundred channels on one Worker: sized by one call, and distinguished by a number of the application's
//! own.

use doorbell::provider::{Network, Provider};
use doorbell::{ChannelConfig, Event, Handle, Listener, Node, Notify, WorkerConfig};

use super::{Announce, Failure, PATIENCE, until};

pub(crate) const CHANNELS: u32 = 100;

fn config() -> WorkerConfig {
    let mut config = WorkerConfig::for_channels(CHANNELS, 256);
    config.notify = Notify::Every;
    config
}

/// Accepts all, and answers each message on its channel, until the last one is closed.
pub(crate) fn serve<P: Provider>(node: &Node<P, impl Network>, tell: Announce<'_>) -> Result<u32, Failure> {
    let mut workers = node.workers(&config())?;
    let channel = ChannelConfig::for_channels(CHANNELS);
    let mut listener = Listener::bind(node, &workers, "[::]:0".parse()?, &channel)?;
    tell(listener.handle());
    let mut used = 0;
    for _ in 0..CHANNELS {
        // A Worker for each device, and all channels come over the same one.
        used = listener.accept(node, &mut workers, node.within(PATIENCE))?.worker;
    }
    let worker = workers.get_mut(used).ok_or("no worker")?;
    let (mut answered, mut closed) = (0, 0);
    until(worker, |turn, event| {
        match event {
            Event::PeerClosed { .. } => closed += 1,
            Event::Received { message, .. } => {
                answered += u32::from(turn.channel.send_lease(message.keep()).is_ok())
            }
            _ => {}
        }
        (closed == CHANNELS).then_some(())
    })?;
    Ok(answered)
}

/// Connects all, sends its number on each, and counts the answers that came to where they belong.
pub(crate) fn call<P: Provider>(node: &Node<P, impl Network>, handle: &Handle) -> Result<u32, Failure> {
    let mut workers = node.workers(&config())?;
    let (channel, mut used) = (ChannelConfig::for_channels(CHANNELS), 0);
    for number in 0..u64::from(CHANNELS) {
        let to = node.connect(&mut workers, handle, &channel, node.within(PATIENCE))?;
        let worker = workers.get_mut(to.worker).ok_or("no worker")?;
        worker.channel(to.channel).ok_or("closed")?.set_user(number);
        worker.send(to.channel, &number.to_be_bytes())?;
        used = to.worker;
    }
    let worker = workers.get_mut(used).ok_or("no worker")?;
    let (mut came, mut right) = (0, 0);
    until(worker, |turn, event| {
        if let Event::Received { message, .. } = event {
            came += 1;
            right += u32::from(message.payload() == turn.channel.user().to_be_bytes());
        }
        (came == CHANNELS).then_some(())
    })?;
    let all: Vec<_> = worker.channels().collect();
    for channel in all {
        worker.close(channel, worker.within(PATIENCE), |_, _| {})?;
    }
    Ok(right)
}
