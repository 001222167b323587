//! Tasks that send, connect and close beside what else their Workers do, and lose nothing.

use core::error::Error;
use core::time::Duration;
use std::sync::Arc;

use doorbell::worker::Watched;
use doorbell::{ChannelConfig, Event, Handle, Node, Trust, WorkerConfig};
use doorbell_sim::Fabric;
use doorbell_tokio::{AsyncWorker, Next};
use tokio::sync::oneshot;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Code that is generic over devices prints what came.
fn shown<P: Watched>(next: &Next<P>) -> &dyn core::fmt::Debug {
    next
}

/// Many times what is in flight at most.
const MESSAGES: u32 = 1000;

const PATIENCE: Duration = Duration::from_secs(60);

/// Counts messages until the peer closes.
async fn count<P: Watched>(node: Arc<Node<P>>, publish: oneshot::Sender<Handle>) -> Outcome<u32> {
    let mut worker = AsyncWorker::open(&node, &WorkerConfig::default())?;
    let port = worker.listen(&node, "[::]:0".parse()?, &ChannelConfig::default())?;
    let _ = publish.send(*port.handle());
    let mut came = 0;
    loop {
        match worker.next().await? {
            Next::Event(_, Event::Received { message, .. }) => {
                worker.worker().release(message.keep());
                came += 1;
            }
            Next::Event(_, Event::PeerClosed { all_arrived }) => {
                port.stop(node.within(PATIENCE));
                return if all_arrived {
                    Ok(came)
                } else {
                    Err("messages were lost".into())
                };
            }
            Next::Event(_, Event::ChannelFailed { cause }) => return Err(cause.to_string().into()),
            accepted => assert!(
                format!("{:?}", shown(&accepted)).starts_with("Accepted(ChannelId"),
                "{accepted:?}"
            ),
        }
    }
}

async fn send<P: Watched>(node: Node<P>, handle: Handle) -> Outcome<()> {
    let mut worker = AsyncWorker::open(&node, &WorkerConfig::default())?;
    // A probe would wake the task now and then.
    let mut config = ChannelConfig::default();
    config.probe_after = None;
    let to = worker
        .connect(&node, &handle, &config, node.within(PATIENCE))
        .await?;
    for number in 0..MESSAGES {
        // Nothing else wakes the task, so that a wait without a look lasts until its deadline.
        let deadline = node.within(PATIENCE);
        if !worker.room(to, deadline).await? || deadline.remaining(doorbell::now()).is_zero() {
            return Err(format!("no room for message {number}").into());
        }
        worker.worker().send(to, &number.to_be_bytes())?;
    }
    worker.close(to, node.within(PATIENCE)).await?;
    // A channel that is gone never has room.
    if worker.room(to, node.within(PATIENCE)).await? {
        return Err("a closed channel has room".into());
    }
    Ok(())
}

#[tokio::test]
async fn a_task_that_only_sends_awaits_credits() -> Outcome<()> {
    let [server, client] = Fabric::builder().real_time(doorbell::now).build().hosts()?;
    let node = |host| Node::with_provider(host, Trust::unauthenticated_on_purpose());
    let (publish, handle) = oneshot::channel();
    let client = async { send(node(client)?, handle.await?).await };
    let (came, ()) = tokio::try_join!(count(Arc::new(node(server)?), publish), client)?;
    assert_eq!(came, MESSAGES);
    Ok(())
}

/// Listens, connects to the other, and closes what it connected, after a first wait for it was given up.
async fn both_ways(
    node: Arc<Node<doorbell_sim::Host>>,
    publish: oneshot::Sender<Handle>,
    other: oneshot::Receiver<Handle>,
) -> Outcome<()> {
    let mut worker = AsyncWorker::open(&node, &WorkerConfig::default())?;
    let port = worker.listen(&node, "[::]:0".parse()?, &ChannelConfig::default())?;
    let _ = publish.send(*port.handle());
    let deadline = node.within(PATIENCE);
    let config = ChannelConfig::default();
    let to = worker.connect(&node, &other.await?, &config, deadline).await?;
    let Next::Accepted(from) = worker.next().await? else {
        return Err("nobody was accepted".into());
    };
    assert_ne!(from, to);
    worker.worker().send(to, b"done")?;
    let is_message = |next: &Next<_>| matches!(next, Next::Event(of, Event::Received { .. }) if *of == from);
    while !is_message(&worker.next().await?) {}
    // The first poll of a closing never ends it.
    tokio::select! {
        biased;
        _ = worker.close(to, deadline) => return Err("a closing took no time".into()),
        () = core::future::ready(()) => {}
    }
    worker.close(to, deadline).await?;
    let (_, _, closed) = worker.close_all(deadline).await;
    port.stop(deadline);
    // The peer may have closed its end first.
    Ok(closed?)
}

#[tokio::test]
async fn two_that_connect_to_each_other_both_do_and_a_closing_is_awaited_again() -> Outcome<()> {
    let [one, two] = Fabric::builder().real_time(doorbell::now).build().hosts()?;
    let node = |host| Node::with_provider(host, Trust::unauthenticated_on_purpose()).map(Arc::new);
    let ((first, of_first), (second, of_second)) = (oneshot::channel(), oneshot::channel());
    tokio::try_join!(
        both_ways(node(one)?, first, of_second),
        both_ways(node(two)?, second, of_first)
    )?;
    Ok(())
}
