//! An object of 64 MiB: the server shows it in a window, and the client fetches it by READs, several in flight.

use std::io::Write as _;

use doorbell::provider::{Network, Provider, Window as _};
use doorbell::{
    ChannelConfig, Event, Handle, Listener, Node, Operation, PostFlags, RemoteAccess, RemoteAddress,
    WindowConfig,
};

use super::{Announce, Failure, PATIENCE, sleeping, until, window};

pub(crate) const OBJECT_BYTES: usize = 64 << 20;

/// A READ fetches so many bytes.
const PIECE_BYTES: u32 = 1 << 20;

pub(crate) fn serve<P: Provider>(node: &Node<P, impl Network>, tell: Announce<'_>) -> Result<usize, Failure> {
    let mut workers = node.workers(&sleeping())?;
    let mut config = ChannelConfig::default();
    config.remote = RemoteAccess::READ;
    let mut listener = Listener::bind(node, &workers, "[::]:0".parse()?, &config)?;
    tell(listener.handle());
    let client = listener.accept(node, &mut workers, node.within(PATIENCE))?;
    let worker = workers.get_mut(client.worker).ok_or("no such worker")?;
    let window = worker.window(&WindowConfig::new(OBJECT_BYTES, RemoteAccess::READ))?;
    window.copy_in(0, &object())?;
    worker.send(client.channel, &window.remote().to_bytes())?;
    until(worker, |_, event| {
        matches!(event, Event::PeerClosed { .. }).then_some(())
    })?;
    Ok(OBJECT_BYTES)
}

/// Says whether the object came as it is.
pub(crate) fn fetch<P: Provider>(node: &Node<P, impl Network>, handle: &Handle) -> Result<bool, Failure> {
    let mut config = sleeping();
    // The channel's receives are of the same memory.
    (config.slot_bytes, config.slots) = (PIECE_BYTES, 32);
    let mut workers = node.workers(&config)?;
    let mut config = ChannelConfig::default();
    (config.receive_depth, config.repost_batch) = (4, 1);
    let to = node.connect(&mut workers, handle, &config, node.within(PATIENCE))?;
    let worker = workers.get_mut(to.worker).ok_or("no such worker")?;
    let window = window(worker)?;
    let (mut fetched, mut asked) = (Vec::with_capacity(OBJECT_BYTES), 0);
    while fetched.len() < OBJECT_BYTES {
        while asked < OBJECT_BYTES && asked - fetched.len() < 8 * PIECE_BYTES as usize {
            let piece =
                RemoteAddress::within(&window, asked as u64, PIECE_BYTES.into()).ok_or("a shorter object")?;
            let lease = worker.lease().ok_or("no memory")?;
            let channel = worker.channel(to.channel).ok_or("closed")?;
            channel
                .post(Operation::Read(piece), lease, PostFlags::empty())
                .map_err(|error| error.kind)?;
            asked += PIECE_BYTES as usize;
        }
        // READs of one channel end in order.
        until(worker, |_, event| match event {
            Event::Fetched { data, .. } => fetched.write_all(data.payload()).ok(),
            _ => None,
        })?;
    }
    worker.close(to.channel, worker.within(PATIENCE), |_, _| {})?;
    Ok(fetched == object())
}

/// The object of this program: each of its pages is filled with its number.
fn object() -> Vec<u8> {
    let page = |number: u32| number.to_le_bytes().repeat(1024);
    let pages: Vec<_> = (0..OBJECT_BYTES as u32 / 4096).map(page).collect();
    pages.concat()
}
