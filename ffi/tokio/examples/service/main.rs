//! A service in tokio and its clients, in [`service`]. This file runs them.
//!
//! ```text
//! cargo run -p doorbell-tokio --example service
//! ```
//!
//! Without a word, the service and two clients are simulated hosts in real time. On hosts with a device, `serve` runs the service,
//! which prints its handle and ends by Ctrl-C. The handle as the word runs a client.

use core::error::Error;
use core::time::Duration;
use std::env;
use std::sync::Arc;

use doorbell::{Node, Trust};
use doorbell_sim::Fabric;
use tokio::signal::ctrl_c;
use tokio::sync::oneshot::channel;
use tokio::time::timeout;

mod service;

use service::{call, serve};

pub(crate) type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// The longest that anything takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<()> {
    let node = || Node::open(Trust::unauthenticated_on_purpose());
    let report = match env::args().nth(1).as_deref() {
        None => format!("server and clients: {:?}", simulated().await?),
        Some("serve") => {
            // A signal that cannot be awaited ends it, too.
            let end = async { drop(ctrl_c().await) };
            let echoed = serve(&Arc::new(node()?), |handle| println!("{handle}"), end).await?;
            format!("server: {echoed}")
        }
        Some(handle) => {
            let answered = timeout(PATIENCE, call(&node()?, &handle.parse()?)).await??;
            format!("client: {answered}")
        }
    };
    println!("{report}");
    Ok(())
}

/// Runs the service and two clients on simulated hosts, and ends the service after them.
async fn simulated() -> Outcome<(u32, u32, u32)> {
    let [server, first, second] = Fabric::builder().real_time(doorbell::now).build().hosts()?;
    let node = |host| Node::with_provider(host, Trust::unauthenticated_on_purpose());
    let (server, first, second) = (Arc::new(node(server)?), node(first)?, node(second)?);
    let ((send, handle), (end, ended)) = (channel(), channel());
    let publish = |handle: &_| send.send(*handle).unwrap_or_default();
    let serving = serve(&server, publish, async { drop(ended.await) });
    let calls = async {
        let handle = handle.await?;
        let answered = tokio::try_join!(call(&first, &handle), call(&second, &handle))?;
        end.send(()).map_err(|()| "the service ended first")?;
        Ok(answered)
    };
    let (echoed, (first, second)) = tokio::try_join!(serving, calls)?;
    Ok((echoed, first, second))
}

#[cfg(test)]
mod tests {
    use super::service::MESSAGES;

    #[tokio::test]
    async fn each_message_comes_back() {
        let answered = super::simulated().await.unwrap();
        assert_eq!(answered, (2 * MESSAGES, MESSAGES, MESSAGES));
    }
}
