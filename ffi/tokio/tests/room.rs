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

fn node(host: doorbell_sim::Host) -> Outcome<Arc<Node<doorbell_sim::Host>>> {
    Ok(Arc::new(Node::with_provider(
        host,
        Trust::unauthenticated_on_purpose(),
    )?))
}

/// A task sends while nothing arrives, and awaits room or the end of its closing. The peer ends the outage after it has connected, for
/// which the task has to grant it a place.
async fn during_an_outage(awaits_room: bool) -> Outcome<()> {
    let fabric = Fabric::builder().real_time(doorbell::now).build();
    let [one, two] = fabric.hosts()?;
    let (one, two) = (node(one)?, node(two)?);
    let ((first, of_first), (second, of_second)) = (oneshot::channel(), oneshot::channel());
    let (waits, waiting) = oneshot::channel();
    // The first retransmission comes after two seconds, and the channel fails after seven times as long.
    let mut config = ChannelConfig::default();
    (config.timeout, config.probe_after) = (19, None);
    let task = async {
        let mut worker = AsyncWorker::open(&one, &WorkerConfig::default())?;
        let port = worker.listen(&one, "[::]:0".parse()?, &config)?;
        let _ = first.send(*port.handle());
        let deadline = one.within(PATIENCE);
        let to = worker.connect(&one, &of_second.await?, &config, deadline).await?;
        fabric.perform(&"link host1-host2 down".parse()?)?;
        worker.worker().send(to, b"late")?;
        if awaits_room {
            while worker.worker().send(to, b"later").is_ok() {}
        }
        let _ = waits.send(());
        if awaits_room && !worker.room(to, deadline).await? {
            return Err("the channel has no room".into());
        }
        worker.close(to, deadline).await?;
        let accepted = worker.next().await?;
        assert!(matches!(accepted, Next::Accepted(_)), "{accepted:?}");
        port.stop(deadline);
        Outcome::Ok(())
    };
    let peer = async {
        let mut worker = AsyncWorker::open(&two, &WorkerConfig::default())?;
        let port = worker.listen(&two, "[::]:0".parse()?, &config)?;
        let _ = second.send(*port.handle());
        let accepted = worker.next().await?;
        assert!(matches!(accepted, Next::Accepted(_)), "{accepted:?}");
        waiting.await?;
        let deadline = two.within(PATIENCE);
        worker.connect(&two, &of_first.await?, &config, deadline).await?;
        fabric.perform(&"link host1-host2 up".parse()?)?;
        let is_end = |next: &Next<_>| matches!(next, Next::Event(_, Event::PeerClosed { all_arrived: true }));
        while !is_end(&worker.next().await?) {}
        port.stop(deadline);
        Outcome::Ok(())
    };
    tokio::try_join!(task, peer)?;
    Ok(())
}

#[tokio::test]
async fn a_task_that_awaits_room_accepts_the_peer_that_delays_it() -> Outcome<()> {
    during_an_outage(true).await
}

#[tokio::test]
async fn a_task_that_awaits_the_end_of_a_closing_accepts_the_peer_that_delays_it() -> Outcome<()> {
    during_an_outage(false).await
}
