//! Seven first programs, each in the shape that a user writes it: at most 60 lines of code beside the comments.
//!
//! ```text
//! cargo run --example programs -- ping-pong
//! ```
//!
//! | program | what it shows |
//! |---|---|
//! | `ping-pong` ([`ping_pong`]) | connect, send, receive |
//! | `gateway` ([`gateway`]) | requests with a deadline each, many in flight |
//! | `key-value` ([`key_value`]) | READ, WRITE and compare-and-swap on a window |
//! | `large-object` ([`large_object`]) | 64 MiB by READs, several in flight |
//! | `hundred-channels` ([`hundred_channels`]) | one Worker with 100 channels |
//! | `graceful-end` ([`graceful_end`]) | an end that loses nothing |
//! | `service`, of `ffi/tokio` | connect, accept and answer in tokio |
//!
//! Here is how they are run: on simulated hosts, a thread each, in real time. On hosts with a device, `serve` behind the name runs the
//! server, which prints its handle, and the handle behind the name runs the client; the programs are the same.

mod gateway;
mod graceful_end;
mod hundred_channels;
mod key_value;
mod large_object;
mod ping_pong;
#[cfg(test)]
mod tests;

use core::error::Error;
use core::time::Duration;
use std::env;
use std::sync::mpsc;
use std::thread;

use doorbell::provider::Provider;
use doorbell::{Event, Handle, Node, Notify, RemoteWindow, Trust, Turn, Wait, Worker, WorkerConfig};
use doorbell_sim::{Fabric, Host};

/// Why a program cannot go on.
pub(crate) type Failure = Box<dyn Error + Send + Sync>;

/// The longest that anything takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Hands a handle to the other side.
type Announce<'a> = &'a dyn Fn(&Handle);

type Simulated = Node<Host, Host>;

/// Runs a server and a client.
fn both<S: Send, C>(
    serve: impl FnOnce(&Simulated, Announce<'_>) -> Result<S, Failure> + Send,
    call: impl FnOnce(&Simulated, &Handle) -> Result<C, Failure>,
) -> Result<(S, C), Failure> {
    let [server, client] = Fabric::builder().real_time(doorbell::now).build().hosts()?;
    let node = |host| Node::simulated(host, Trust::unauthenticated_on_purpose());
    let (server, client) = (node(server)?, node(client)?);
    let (handles, handle) = mpsc::channel();
    thread::scope(|scope| {
        let serving =
            scope.spawn(move || serve(&server, &|handle| handles.send(*handle).unwrap_or_default()));
        // If no handle comes, the server says why.
        let called = handle.recv().map(|handle| call(&client, &handle));
        let served = serving.join().map_err(|_| "the server panicked")??;
        Ok((served, called??))
    })
}

/// The configuration of a Worker that sleeps while nothing comes.
pub(crate) fn sleeping() -> WorkerConfig {
    let mut config = WorkerConfig::default();
    config.notify = Notify::Every;
    config
}

/// Waits until an event is what is wanted. A failure ends the wait.
pub(crate) fn until<P: Provider, T>(
    worker: &mut Worker<P>,
    mut wanted: impl FnMut(Turn<'_, P>, Event<'_, P>) -> Option<T>,
) -> Result<T, Failure> {
    let deadline = worker.within(PATIENCE);
    let found = worker.wait_for(Wait::SPIN_THEN_SLEEP, deadline, |turn, event| match event {
        Event::Failed { status, .. } => Some(Err(status.to_string())),
        Event::ChannelFailed { cause } => Some(Err(cause.to_string())),
        event => wanted(turn, event).map(Ok),
    })?;
    Ok(found.ok_or("nothing came in time")??)
}

/// Waits for the message by which the peer shows a window.
pub(crate) fn window<P: Provider>(worker: &mut Worker<P>) -> Result<RemoteWindow, Failure> {
    until(worker, |_, event| match event {
        Event::Received { message, .. } => message.payload().try_into().ok().map(RemoteWindow::from_bytes),
        _ => None,
    })
}

/// Which sides run here.
enum Sides {
    Both,
    Server,
    Client(Handle),
}

impl Sides {
    fn of(word: Option<&str>) -> Result<Self, Failure> {
        match word {
            None => Ok(Self::Both),
            Some("serve") => Ok(Self::Server),
            Some(handle) => Ok(Self::Client(handle.parse()?)),
        }
    }
}

/// Runs sides of a program, and says what each returned.
macro_rules! run {
    ($sides:expr, $serve:path, $call:path) => {
        match $sides {
            Sides::Both => format!("server and client: {:?}", both($serve, $call)?),
            Sides::Server => {
                let node = Node::open(Trust::unauthenticated_on_purpose())?;
                format!("server: {:?}", $serve(&node, &|handle| println!("{handle}"))?)
            }
            Sides::Client(handle) => {
                let node = Node::open(Trust::unauthenticated_on_purpose())?;
                format!("client: {:?}", $call(&node, &handle)?)
            }
        }
    };
}

fn main() -> Result<(), Failure> {
    let words: Vec<_> = env::args().skip(1).collect();
    let sides = Sides::of(words.get(1).map(String::as_str))?;
    let told = match words.first().map(String::as_str) {
        Some("ping-pong") => run!(sides, ping_pong::serve, ping_pong::call),
        Some("gateway") => run!(sides, gateway::serve, gateway::trade),
        Some("key-value") => run!(sides, key_value::serve, key_value::use_it),
        Some("large-object") => run!(sides, large_object::serve, large_object::fetch),
        Some("hundred-channels") => run!(sides, hundred_channels::serve, hundred_channels::call),
        Some("graceful-end") => run!(sides, graceful_end::serve, graceful_end::call),
        _ => return Err(
            "which program? ping-pong, gateway, key-value, large-object, hundred-channels or graceful-end"
                .into(),
        ),
    };
    println!("{told}");
    Ok(())
}
