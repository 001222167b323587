//! The echo of `echo.rs`, for an engine on tokio: its tasks go on while a Worker has nothing.
//!
//! ```text
//! host a$ cargo run --example tokio
//! host b$ cargo run --example tokio -- doorbell:...
//! ```
//!
//! It needs a device: what a loop watches is the device's descriptors, and a simulated host has none. `echo.rs` runs without.

use core::error::Error;
use core::time::Duration;
use std::env;
use std::io;
use std::os::fd::OwnedFd;

use doorbell::{
    ChannelConfig, Event, Handle, Listener, Node, Notify, Trust, Turn, Worker, WorkerConfig, within,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{sleep, timeout};

const MESSAGES: u32 = 1000;

/// The longest either side takes.
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    if env::args().any(|argument| argument == "--simulated") {
        return Err(
            "a simulated host has no descriptors for tokio to watch: the example echo has --simulated".into(),
        );
    }
    // For a network on which nobody is who should not be; elsewhere, `Trust::keys`.
    let node = Node::open(Trust::unauthenticated_on_purpose())?;
    let mut config = WorkerConfig::default();
    config.notify = Notify::Every;
    let mut workers = node.workers(&config)?;
    match env::args().nth(1) {
        None => timeout(PATIENCE, serve(&node, &mut workers)).await?,
        Some(handle) => timeout(PATIENCE, call(&node, &mut workers, &handle.parse()?)).await?,
    }
}

/// A Worker's descriptors, watched by tokio.
struct Watched {
    receives: AsyncFd<OwnedFd>,
    sends: AsyncFd<OwnedFd>,
    submissions: AsyncFd<OwnedFd>,
}

impl Watched {
    fn over(worker: &Worker) -> Result<Self, Box<dyn Error>> {
        let [receives, sends, submissions] = worker.descriptors().ok_or("made without notification")?;
        // Copies, so that tokio has some of its own to let go of.
        Ok(Self {
            receives: watch(receives.try_clone_to_owned()?)?,
            sends: watch(sends.try_clone_to_owned()?)?,
            submissions: watch(submissions.try_clone_to_owned()?)?,
        })
    }

    /// Hands over what came, or waits where nothing did. Dropped half-way it loses nothing.
    async fn turn(
        &self,
        worker: &mut Worker,
        each: impl FnMut(Turn<'_>, Event),
    ) -> Result<(), Box<dyn Error>> {
        let Some(leave) = worker.ready_to_sleep(each)? else {
            return Ok(());
        };
        let span = leave.at_most().unwrap_or(PATIENCE);
        // What tokio remembers is cleared once it woke, and before the Worker is asked again.
        tokio::select! {
            ready = self.receives.readable() => ready?.clear_ready(),
            ready = self.sends.readable() => ready?.clear_ready(),
            ready = self.submissions.readable() => ready?.clear_ready(),
            () = sleep(span) => {}
        }
        Ok(())
    }
}

#[expect(
    deprecated,
    reason = "its successor is unsafe, and asks for what an OwnedFd is: open, and its owner's alone"
)]
fn watch(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(descriptor, Interest::READABLE)
}

async fn serve(node: &Node, workers: &mut [Worker]) -> Result<(), Box<dyn Error>> {
    let config = ChannelConfig::default();
    let mut listener = Listener::bind(node, workers, "[::]:0".parse()?, &config)?;
    println!("{}", listener.handle());
    // This blocks the thread; an engine that goes on meanwhile uses `Listener::poll_accept`.
    let peer = listener.accept(node, workers, within(PATIENCE))?;
    let worker = workers.get_mut(peer.worker).ok_or("no such worker")?;
    let watched = Watched::over(worker)?;
    let mut echoed = 0;
    let mut failed = None;
    while echoed < MESSAGES && failed.is_none() {
        let each = |turn: Turn<'_>, event: Event| match event {
            Event::Received { message, .. } => match turn.channel.send(message) {
                Ok(_) => echoed += 1,
                Err(error) => failed = Some(error.kind.to_string()),
            },
            Event::Failed { status, .. } | Event::ReceiveFailed { status } => {
                failed = Some(status.to_string())
            }
            _ => {}
        };
        watched.turn(worker, each).await?;
    }
    // The last echo is on its way: closing waits for it.
    worker.close(peer.channel, within(Duration::from_secs(2)), |_, _| {})?;
    println!("{echoed} messages echoed");
    failed.map_or(Ok(()), |failure| Err(failure.into()))
}

async fn call(node: &Node, workers: &mut [Worker], handle: &Handle) -> Result<(), Box<dyn Error>> {
    let config = ChannelConfig::default();
    let to = node.connect(workers, handle, &config, within(Duration::from_secs(10)))?;
    let worker = workers.get_mut(to.worker).ok_or("no such worker")?;
    let watched = Watched::over(worker)?;
    for number in 0..MESSAGES {
        let mut message = worker.lease().ok_or("no memory")?;
        message.fill(&number.to_be_bytes())?;
        let channel = worker.channel(to.channel).ok_or("closed")?;
        channel.send(message).map_err(|error| error.kind.to_string())?;
        let mut answer = None;
        while answer.is_none() {
            let each = |mut turn: Turn<'_>, event: Event| match event {
                Event::Received { message, .. } => {
                    answer = Some(Ok(message.payload() == number.to_be_bytes()));
                    turn.release(message);
                }
                Event::Failed { status, .. } | Event::ReceiveFailed { status } => {
                    answer = Some(Err(status.to_string()))
                }
                _ => {}
            };
            watched.turn(worker, each).await?;
        }
        if answer != Some(Ok(true)) {
            return Err(format!("message {number}: {answer:?}").into());
        }
    }
    println!("{MESSAGES} messages came back unchanged");
    Ok(())
}
