//! A service in tokio: one task accepts and answers, others are clients, and the end loses nothing.
//!
//! ```text
//! cargo run -p doorbell-tokio --example service
//! ```
//!
//! Both ends are simulated hosts in real time. On a machine with a device, `Node::open` makes the nodes, and the rest is the same.

use core::error::Error;
use core::time::Duration;
use std::sync::Arc;

use doorbell::{ChannelConfig, Event, Handle, Node, Trust, WorkerConfig, worker::Watched};
use doorbell_sim::Fabric;
use doorbell_tokio::{AsyncWorker, Next};
use tokio::sync::oneshot::{Receiver, Sender, channel};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const MESSAGES: u32 = 100;

const PATIENCE: Duration = Duration::from_secs(60);

/// Sends back each message, until `end` comes.
async fn serve<P: Watched>(node: Arc<Node<P>>, send: Sender<Handle>, mut end: Receiver<()>) -> Outcome<u32> {
    let (mut worker, mut echoed) = (AsyncWorker::open(&node, &WorkerConfig::default())?, 0);
    let port = worker.listen(&node, "[::]:0".parse()?, &ChannelConfig::default())?;
    let _ = send.send(*port.handle());
    loop {
        let next = tokio::select! {
            next = worker.next() => next?,
            _ = &mut end => break,
        };
        if let Next::Event(from, Event::Received { message, .. }) = next {
            let (message, to) = (message.keep(), worker.worker().channel(from));
            echoed += u32::from(to.is_some_and(|to| to.send_lease(message).is_ok()));
        }
    }
    port.stop(node.within(PATIENCE));
    let (_, _, closed) = worker.close_all(node.within(PATIENCE)).await;
    Ok(closed.map(|()| echoed)?)
}

/// Sends messages, and awaits each.
async fn call<P: Watched>(node: Node<P>, handle: Handle) -> Outcome<()> {
    let mut worker = AsyncWorker::open(&node, &WorkerConfig::default())?;
    let to = worker
        .connect(&node, &handle, &ChannelConfig::default(), node.within(PATIENCE))
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
        assert_eq!(answer.payload(), number.to_be_bytes());
    }
    Ok(worker.close(to, node.within(PATIENCE)).await?)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<()> {
    let [server, first, second] = Fabric::builder().real_time(doorbell::now).build().hosts()?;
    let node = |host| Node::with_provider(host, Trust::unauthenticated_on_purpose());
    let ((send, handle), (end, ends)) = (channel(), channel());
    let calls = async {
        let handle = handle.await?;
        tokio::try_join!(call(node(first)?, handle), call(node(second)?, handle))?;
        end.send(()).map_err(|()| "the service ended first".into())
    };
    let (echoed, ()) = tokio::try_join!(serve(Arc::new(node(server)?), send, ends), calls)?;
    println!("{echoed} messages echoed");
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_runs_over_simulated_hosts() {
        super::main().unwrap();
    }
}
