//! The echo of `examples/echo.rs`, as tasks of tokio: both sides sleep until a message wakes them.
//!
//! ```text
//! host a$ cargo run -p doorbell-tokio --example echo-tasks
//! host b$ cargo run -p doorbell-tokio --example echo-tasks -- doorbell:...
//! ```

use core::error::Error;
use core::time::Duration;
use std::env;
use std::sync::Arc;

use doorbell::{ChannelConfig, Event, Handle, Node, Trust, WorkerConfig};
use doorbell_tokio::{AsyncWorker, Next};
use tokio::time::timeout;

type Outcome<T> = Result<T, Box<dyn Error>>;

const MESSAGES: u32 = 1000;

/// The longest either side takes.
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<()> {
    // For a network without strangers; elsewhere, `Trust::keys`.
    let node = Node::open(Trust::unauthenticated_on_purpose())?;
    match env::args().nth(1) {
        None => timeout(PATIENCE, serve(Arc::new(node), |handle| println!("{handle}"))).await?,
        Some(handle) => timeout(PATIENCE, call(&node, &handle.parse()?)).await?,
    }
}

/// Gives its handle to `tell`, and sends back what comes until the one client closes.
async fn serve(node: Arc<Node>, tell: impl FnOnce(&Handle)) -> Outcome<()> {
    let mut worker = AsyncWorker::open(&node, &WorkerConfig::default())?;
    let port = worker.listen(&node, "[::]:0".parse()?, &ChannelConfig::default())?;
    tell(port.handle());
    loop {
        match worker.next().await? {
            Next::Event(from, Event::Received { message, .. }) => {
                let channel = worker.worker().channel(from).ok_or("the channel is closed")?;
                channel.send_lease(message.keep())?;
            }
            Next::Event(_, Event::PeerClosed { all_arrived: true }) => break,
            Next::Event(_, Event::PeerClosed { .. } | Event::ChannelFailed { .. }) => {
                return Err("the connection failed".into());
            }
            _ => {}
        }
    }
    port.stop(node.within(PATIENCE));
    let (_, _, closed) = worker.close_all(node.within(PATIENCE)).await;
    Ok(closed?)
}

/// Sends messages, and awaits each.
async fn call(node: &Node, handle: &Handle) -> Outcome<()> {
    let mut worker = AsyncWorker::open(node, &WorkerConfig::default())?;
    let to = worker
        .connect(node, handle, &ChannelConfig::default(), node.within(PATIENCE))
        .await?;
    for number in 0..MESSAGES {
        worker.worker().send(to, &number.to_be_bytes())?;
        let answer = loop {
            match worker.next().await? {
                Next::Event(_, Event::Received { message, .. }) => break message,
                Next::Event(_, Event::Done { .. }) => {}
                _ => return Err("the connection failed".into()),
            }
        };
        if answer.payload() != number.to_be_bytes() {
            return Err(format!("message {number} came back as another").into());
        }
    }
    worker.close(to, node.within(PATIENCE)).await?;
    println!("{MESSAGES} messages came back unchanged");
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use doorbell::{Node, Trust};
    use tokio::sync::oneshot::channel;
    use tokio::time::timeout;

    use super::{PATIENCE, call, serve};

    /// Both sides are in one process, as the fake libibverbs wants it.
    #[tokio::test]
    async fn it_runs_on_the_fake() {
        let path = doorbell_fake::library_path().unwrap();
        // SAFETY: the fake was built from this workspace and stands for libibverbs of the machine's ABI.
        unsafe { rdma_sys::load_from(&path) }.unwrap();
        let node = || Node::open(Trust::unauthenticated_on_purpose()).unwrap();
        let (publish, handle) = channel();
        let server = serve(Arc::new(node()), |handle| {
            let _ = publish.send(*handle);
        });
        let client = async { call(&node(), &handle.await?).await };
        let both = async { tokio::try_join!(server, client) };
        timeout(PATIENCE, both).await.unwrap().unwrap();
    }
}
