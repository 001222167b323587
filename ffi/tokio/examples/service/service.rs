//! A service in tokio and its client: the service answers until it is to end, and the end loses nothing.

use std::sync::Arc;

use doorbell::{ChannelConfig, Event, Handle, Node, WorkerConfig, worker::Watched};
use doorbell_tokio::{AsyncWorker, Next};

use super::{Outcome, PATIENCE};

pub(crate) const MESSAGES: u32 = 100;

/// Gives its handle to `publish`, and sends back each message until `end` comes. Returns how many were sent back.
pub(crate) async fn serve<P: Watched>(
    node: &Arc<Node<P>>,
    publish: impl FnOnce(&Handle),
    end: impl Future<Output = ()>,
) -> Outcome<u32> {
    let (mut worker, mut echoed) = (AsyncWorker::open(node, &WorkerConfig::default())?, 0);
    let port = worker.listen(node, "[::]:0".parse()?, &ChannelConfig::default())?;
    publish(port.handle());
    tokio::pin!(end);
    loop {
        let next = tokio::select! {
            next = worker.next() => next?,
            () = &mut end => break,
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

/// Sends messages, and awaits each. Returns how many came back.
pub(crate) async fn call<P: Watched>(node: &Node<P>, handle: &Handle) -> Outcome<u32> {
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
    Ok(MESSAGES)
}
