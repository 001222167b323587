//! The echo of `echo.rs`, for an engine whose loop is epoll(7): a Worker is one source among
//! others, and costs nothing while nothing comes.
//!
//! ```text
//! host a$ cargo run --example epoll
//! host b$ cargo run --example epoll -- doorbell:...
//! ```
//!
//! With `--simulated` both are in this process, each a host of a simulated fabric in real time: that needs no device.

use core::error::Error;
use core::time::Duration;
use std::env;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use doorbell::worker::{FirstCause, Watched};
use doorbell::{
    ChannelConfig, Connection, Event, Handle, Listener, Node, Notify, Trust, Turn, Worker, WorkerConfig,
};
use doorbell_sim::Fabric;
use rustix::event::{Timespec, epoll};

const MESSAGES: u32 = 1000;

/// The longest either side takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Why a program cannot go on.
type Failure = Box<dyn Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let argument = env::args().nth(1);
    if argument.as_deref() == Some("--simulated") {
        return simulated();
    }
    // For a network without strangers; elsewhere, `Trust::keys`.
    let node = Node::open(Trust::unauthenticated_on_purpose())?;
    match argument {
        None => serve(&node, |handle| {
            println!("{handle}");
            Ok(())
        }),
        Some(handle) => call(&node, &handle.parse()?),
    }
}

/// Both on one machine: simulated devices, connected over TCP.
fn simulated() -> Result<(), Failure> {
    let [server, client] = Fabric::builder().real_time(doorbell::now).build().hosts()?;
    let (handles, handle) = mpsc::channel();
    thread::scope(|scope| {
        let serving = scope.spawn(move || {
            let node = Node::with_provider(server, Trust::unauthenticated_on_purpose())?;
            serve(&node, |handle| Ok(handles.send(*handle)?))
        });
        // If no handle comes, the server says why.
        let called = handle.recv().map(|handle| {
            let node = Node::with_provider(client, Trust::unauthenticated_on_purpose())?;
            call(&node, &handle)
        });
        serving.join().map_err(|_| "the server panicked")??;
        called?
    })
}

/// The configuration of a Worker that sleeps.
fn config() -> WorkerConfig {
    let mut config = WorkerConfig::default();
    config.notify = Notify::Every;
    config
}

/// The engine's loop: a Worker's descriptors, or a listener's. Its other sources would be added beside them.
struct Loop {
    epoll: OwnedFd,
    deadline: Instant,
}

impl Loop {
    fn over<'d>(descriptors: impl IntoIterator<Item = BorrowedFd<'d>>) -> Result<Self, Failure> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for descriptor in descriptors {
            // By levels: what is not taken wakes again.
            let data = epoll::EventData::new_u64(0);
            epoll::add(&epoll, descriptor, data, epoll::EventFlags::IN)?;
        }
        Ok(Self {
            epoll,
            deadline: Instant::now() + PATIENCE,
        })
    }

    fn over_worker<P: Watched>(worker: &Worker<P>) -> Result<Self, Failure> {
        Self::over(worker.descriptors().ok_or("made without notification")?)
    }

    /// One turn: hands over what came, or sleeps where nothing did.
    fn turn<P: Watched>(
        &self,
        worker: &mut Worker<P>,
        each: impl FnMut(Turn<'_, P>, Event<'_, P>),
    ) -> Result<(), Failure> {
        match worker.ready_to_sleep(each)? {
            Some(sleep) => self.sleep(sleep.at_most()),
            None => Ok(()),
        }
    }

    /// Accepts a peer. A peer whose handshake fails is passed over.
    fn accept<P: Watched>(
        &self,
        node: &Node<P>,
        listener: &mut Listener<P>,
        workers: &mut [Worker<P>],
    ) -> Result<Connection, Failure> {
        loop {
            match listener.poll_accept(node, workers) {
                Ok(Some(peer)) => return Ok(peer),
                Ok(None) => self.sleep(listener.deadline().map(|at| at.remaining(doorbell::now())))?,
                Err(error) => eprintln!("a peer was not accepted: {error}"),
            }
        }
    }

    /// Sleeps until a descriptor is ready, or for so long.
    fn sleep(&self, at_most: Option<Duration>) -> Result<(), Failure> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err("nothing came in time".into());
        }
        let span = at_most.unwrap_or(left).min(left);
        let mut ready = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }];
        match epoll::wait(&self.epoll, &mut ready, Some(&Timespec::try_from(span)?)) {
            // The next turn polls, for any reason of the wake-up.
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn serve<P: Watched>(
    node: &Node<P>,
    announce: impl FnOnce(&Handle) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut workers = node.workers(&config())?;
    let mut listener = Listener::bind(node, &workers, "[::]:0".parse()?, &ChannelConfig::default())?;
    announce(listener.handle())?;
    let peer = Loop::over([listener.descriptor()])?.accept(node, &mut listener, &mut workers)?;
    let worker = workers.get_mut(peer.worker).ok_or("no such worker")?;
    let engine = Loop::over_worker(worker)?;
    let mut echoed = 0;
    let mut failed = None;
    while echoed < MESSAGES && failed.is_none() {
        engine.turn(worker, |turn, event| match event {
            Event::Received { message, .. } => match turn.channel.send_lease(message.keep()) {
                Ok(_) => echoed += 1,
                Err(error) => failed = Some(error.kind.to_string()),
            },
            Event::Failed { status, .. }
            | Event::ChannelFailed {
                cause: FirstCause { status, .. },
            } => failed = Some(status.to_string()),
            _ => {}
        })?;
    }
    // The last echo is on its way: closing waits for it.
    worker.close(peer.channel, worker.within(Duration::from_secs(2)), |_, _| {})?;
    println!("{echoed} messages echoed");
    failed.map_or(Ok(()), |failure| Err(failure.into()))
}

fn call<P: Watched>(node: &Node<P>, handle: &Handle) -> Result<(), Failure> {
    let mut workers = node.workers(&config())?;
    let deadline = node.within(Duration::from_secs(10));
    let to = node.connect(&mut workers, handle, &ChannelConfig::default(), deadline)?;
    let worker = workers.get_mut(to.worker).ok_or("no such worker")?;
    let engine = Loop::over_worker(worker)?;
    for number in 0..MESSAGES {
        worker.send(to.channel, &number.to_be_bytes())?;
        let mut answer = None;
        while answer.is_none() {
            engine.turn(worker, |_, event| match event {
                Event::Received { message, .. } => {
                    answer = Some(Ok(message.payload() == number.to_be_bytes()));
                }
                Event::Failed { status, .. }
                | Event::ChannelFailed {
                    cause: FirstCause { status, .. },
                } => answer = Some(Err(status.to_string())),
                _ => {}
            })?;
        }
        if answer != Some(Ok(true)) {
            return Err(format!("message {number}: {answer:?}").into());
        }
    }
    println!("{MESSAGES} messages came back unchanged");
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn all_messages_come_back_over_the_simulated_fabric() {
        super::simulated().unwrap();
    }
}
