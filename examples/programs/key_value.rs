//! A key-value store whose server does nothing: clients READ and WRITE its window, and lock an entry by compare-and-swap.

use doorbell::provider::{Network, Provider, Window as _};
use doorbell::{
    ChannelConfig, ChannelId, Event, Handle, Listener, Node, Operation, PostFlags, RemoteAccess,
    RemoteAddress, WindowConfig, Worker,
};

use super::{Announce, Failure, PATIENCE, sleeping, until, window};

/// An entry: a word that is 1 while a client has it locked, and a value.
const ENTRY_BYTES: u64 = 64;

pub(crate) fn serve<P: Provider>(node: &Node<P, impl Network>, tell: Announce<'_>) -> Result<u64, Failure> {
    let mut workers = node.workers(&sleeping())?;
    let mut config = ChannelConfig::default();
    config.remote = RemoteAccess::ALL;
    let mut listener = Listener::bind(node, &workers, "[::]:0".parse()?, &config)?;
    tell(listener.handle());
    let client = listener.accept(node, &mut workers, node.within(PATIENCE))?;
    let worker = workers.get_mut(client.worker).ok_or("no such worker")?;
    let entries = worker.window(&WindowConfig::new(1024 * ENTRY_BYTES as usize, RemoteAccess::ALL))?;
    worker.send(client.channel, &entries.remote().to_bytes())?;
    until(worker, |_, event| {
        matches!(event, Event::PeerClosed { .. }).then_some(())
    })?;
    Ok(entries.load_u64(7 * ENTRY_BYTES as usize + 8)?)
}

/// Counts entry 7 up to ten, each time under its lock.
pub(crate) fn use_it<P: Provider>(node: &Node<P, impl Network>, handle: &Handle) -> Result<u64, Failure> {
    let mut workers = node.workers(&sleeping())?;
    let config = ChannelConfig::default();
    let to = node.connect(&mut workers, handle, &config, node.within(PATIENCE))?;
    let worker = workers.get_mut(to.worker).ok_or("no such worker")?;
    let window = window(worker)?;
    let place = |offset| RemoteAddress::within(&window, 7 * ENTRY_BYTES + offset, 8).ok_or("no such entry");
    let (lock, value) = (place(0)?, place(8)?);
    let take = Operation::CompareAndSwap {
        remote: lock,
        compare: 0,
        swap: 1,
    };
    let mut count = 0;
    while count < 10 {
        let locked = fetch(worker, to.channel, take)?;
        assert_eq!(locked, 0, "another client has it: try again");
        count = fetch(worker, to.channel, Operation::Read(value))? + 1;
        let channel = worker.channel(to.channel).ok_or("closed")?;
        channel.post_inline(Operation::Write(value), &count.to_ne_bytes())?;
        // In order behind the value.
        channel.post_inline(Operation::Write(lock), &0_u64.to_ne_bytes())?;
    }
    worker.close(to.channel, worker.within(PATIENCE), |_, _| {})?;
    Ok(count)
}

/// Fetches a word: what it was before an atomic, or what was read.
fn fetch<P: Provider>(worker: &mut Worker<P>, from: ChannelId, operation: Operation) -> Result<u64, Failure> {
    let lease = worker.lease().ok_or("no memory")?;
    let channel = worker.channel(from).ok_or("closed")?;
    channel
        .post(operation, lease, PostFlags::empty())
        .map_err(|error| error.kind)?;
    until(worker, |_, event| match event {
        Event::Fetched { data, .. } => data.payload().try_into().ok().map(u64::from_ne_bytes),
        _ => None,
    })
}
