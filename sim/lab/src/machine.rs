//! One virtual machine: QEMU, its console, and the talk with its agent.
//!
//! A machine that ends or no longer answers is dead for good: it is killed,
//! and every error about it carries the last lines of its console.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::collections::BTreeMap;
use std::fs;
use std::io::BufReader;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};

use crate::cluster::{CommandSpec, Process, ProcessEvent, Signal};
use crate::guest::network::{Plan, Realised};
use crate::guest::wire::{Reply, Request, Start, receive, send};
use crate::leash::Leashed;

pub(crate) mod clock;
pub(crate) mod qemu;

/// How long a machine may take until its agent speaks.
pub(crate) const BOOT_PATIENCE: Duration = Duration::from_secs(120);

/// How long making the network may take.
const CONFIGURE_PATIENCE: Duration = Duration::from_secs(60);

/// How long the agent may take to start a command.
const START_PATIENCE: Duration = Duration::from_secs(60);

/// How often a machine is asked whether it lives, and how long it may be silent.
const PULSE: Pulse = Pulse {
    every: Duration::from_secs(5),
    patience: Duration::from_secs(90),
};

/// Lines of the console shown when a machine is lost.
const CONSOLE_LINES: usize = 40;

#[derive(Clone, Copy, Debug)]
struct Pulse {
    every: Duration,
    patience: Duration,
}

/// A running machine. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Machine {
    link: Arc<Link>,
    /// Replies about the machine itself, not about a command.
    replies: Mutex<Receiver<Reply>>,
    kernel: String,
    /// Its clock when it had just come up.
    clock: Option<clock::Reading>,
}

/// State that processes on the machine share with it.
#[derive(Debug)]
struct Link {
    name: String,
    console: PathBuf,
    qemu: Mutex<Leashed>,
    to: Mutex<Option<UnixStream>>,
    state: Mutex<State>,
    next_id: AtomicU64,
}

#[derive(Debug)]
struct State {
    commands: BTreeMap<u64, Sender<(Reply, Vec<u8>)>>,
    replies: Option<Sender<Reply>>,
    death: Option<String>,
    last_heard: Instant,
}

impl Machine {
    /// Waits for the agent of a machine that was just started to connect to
    /// `listener` and to speak; the machine is killed at the deadline.
    ///
    /// # Errors
    ///
    /// It did not come up; the error carries the console's last lines.
    pub(crate) fn adopt(
        name: &str,
        qemu: Leashed,
        listener: &UnixListener,
        console: &Path,
        patience: Duration,
    ) -> Result<Self> {
        Self::adopt_with(name, qemu, listener, console, patience, PULSE)
    }

    fn adopt_with(
        name: &str,
        qemu: Leashed,
        listener: &UnixListener,
        console: &Path,
        patience: Duration,
        pulse: Pulse,
    ) -> Result<Self> {
        let deadline = Instant::now().checked_add(patience).context("no deadline")?;
        let (replies_to, replies) = mpsc::channel();
        let link = Arc::new(Link {
            name: name.to_owned(),
            console: console.to_owned(),
            qemu: Mutex::new(qemu),
            to: Mutex::new(None),
            state: Mutex::new(State {
                commands: BTreeMap::new(),
                replies: Some(replies_to),
                death: None,
                last_heard: Instant::now(),
            }),
            next_id: AtomicU64::new(1),
        });
        let mut machine = Self {
            link,
            replies: Mutex::new(replies),
            kernel: String::new(),
            clock: None,
        };
        let stream = machine.link.accept(listener, deadline)?;
        // A guest that hangs stops reading at some time.
        stream.set_write_timeout(Some(Duration::from_secs(30)))?;
        *lock(&machine.link.to) = Some(stream.try_clone()?);
        let reader = Arc::downgrade(&machine.link);
        thread::spawn(move || read(&reader, stream));
        match machine.reply(deadline.saturating_duration_since(Instant::now()), "boot")? {
            Reply::Hello(kernel) => machine.kernel = kernel,
            other => bail!("machine {name} began with {other:?}"),
        }
        let watched = Arc::downgrade(&machine.link);
        thread::spawn(move || watch(&watched, pulse));
        Ok(machine)
    }

    /// The kernel's release.
    pub(crate) fn kernel(&self) -> &str {
        &self.kernel
    }

    /// Takes the first reading of the machine's clock.
    ///
    /// # Errors
    ///
    /// It is gone.
    pub(crate) fn start_clock(&mut self) -> Result<()> {
        self.clock = Some(self.read_clock()?);
        Ok(())
    }

    /// How fast the machine's clock has run since the first reading; see [`clock::is_true`].
    ///
    /// # Errors
    ///
    /// It is gone, or there was no first reading.
    pub(crate) fn clock_rate(&self) -> Result<f64> {
        let first = self.first_reading()?;
        clock::rate_since(first, |span| self.read_clock_after(first, span))
    }

    /// Returns that rate, measured for long enough to correct another clock by it.
    ///
    /// # Errors
    ///
    /// It is gone, or there was no first reading.
    pub(crate) fn exact_clock_rate(&self) -> Result<f64> {
        let first = self.first_reading()?;
        Ok(clock::rate(first, self.read_clock_after(first, clock::EXACT)?))
    }

    fn first_reading(&self) -> Result<clock::Reading> {
        self.clock.context("the machine's clock was never read")
    }

    fn read_clock_after(&self, first: clock::Reading, span: Duration) -> Result<clock::Reading> {
        clock::wait_since(first, span);
        self.read_clock()
    }

    fn read_clock(&self) -> Result<clock::Reading> {
        clock::read(|| {
            self.link.send(&Request::Clock, &[])?;
            match self.reply(START_PATIENCE, "tell its time")? {
                Reply::Clock(ns) => Ok(ns),
                other => bail!("machine {} said {other:?}", self.link.name),
            }
        })
    }

    /// Tells the machine what network to make, without waiting for it.
    ///
    /// # Errors
    ///
    /// It is gone.
    pub(crate) fn ask_to_configure(&self, plan: Plan) -> Result<()> {
        self.link.send(&Request::Configure(Box::new(plan)), &[])
    }

    /// Waits until the network stands.
    ///
    /// # Errors
    ///
    /// It could not be made, with the reason; or the machine is gone.
    pub(crate) fn configured(&self) -> Result<Realised> {
        match self.reply(CONFIGURE_PATIENCE, "make its network")? {
            Reply::Configured(realised) => Ok(realised),
            Reply::Failed(why) => bail!("machine {}: {why}", self.link.name),
            other => bail!("machine {} said {other:?}", self.link.name),
        }
    }

    /// Starts a command, in a namespace of the machine if one is given.
    ///
    /// # Errors
    ///
    /// It cannot be started, or the machine is gone.
    pub(crate) fn spawn(&self, namespace: Option<&str>, spec: &CommandSpec) -> Result<Box<dyn Process>> {
        let id = self.link.next_id.fetch_add(1, Ordering::Relaxed);
        let (sender, events) = mpsc::channel();
        lock(&self.link.state).commands.insert(id, sender);
        let mut process = Remote {
            id,
            link: Arc::clone(&self.link),
            events,
            ended: false,
        };
        self.link.send(
            &Request::Start(Start {
                id,
                host: namespace.map(str::to_owned),
                argv: spec.argv.clone(),
                env: spec.env.clone(),
                cwd: spec.cwd.clone(),
                input: spec.input.into(),
            }),
            &[],
        )?;
        let deadline = Instant::now()
            .checked_add(START_PATIENCE)
            .context("no deadline")?;
        match process.next_reply(deadline)? {
            Some((Reply::Started(_), _)) => Ok(Box::new(process)),
            Some((Reply::Refused { why, .. }, _)) => {
                process.ended = true;
                bail!("{why}")
            }
            Some((other, _)) => bail!("machine {} said {other:?}", self.link.name),
            None => bail!(
                "machine {} has not started the command in {START_PATIENCE:?}",
                self.link.name
            ),
        }
    }

    fn reply(&self, patience: Duration, what: &str) -> Result<Reply> {
        match lock(&self.replies).recv_timeout(patience) {
            Ok(reply) => Ok(reply),
            Err(RecvTimeoutError::Timeout) => {
                self.link
                    .die(&format!("did not {what} within {:.0} s", patience.as_secs_f64()));
                Err(self.link.death())
            }
            Err(RecvTimeoutError::Disconnected) => Err(self.link.death()),
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.link.die("was shut down");
    }
}

impl Link {
    fn accept(&self, listener: &UnixListener, deadline: Instant) -> Result<UnixStream> {
        listener.set_nonblocking(true)?;
        loop {
            match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false)?;
                    return Ok(stream);
                }
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(e).context("cannot accept a machine's agent"),
            }
            if lock(&self.qemu).has_ended() {
                self.die("ended before it had begun");
                return Err(self.death());
            }
            if Instant::now() >= deadline {
                self.die("did not start within its deadline");
                return Err(self.death());
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn send(&self, request: &Request, payload: &[u8]) -> Result<()> {
        let mut to = lock(&self.to);
        let Some(stream) = to.as_mut() else {
            return Err(self.death());
        };
        if let Err(e) = send(stream, request, payload) {
            drop(to);
            self.die(&format!("takes no more requests ({e:#})"));
            return Err(self.death());
        }
        Ok(())
    }

    /// Kills the machine; the first reason given is the one kept.
    fn die(&self, why: &str) {
        let mut state = lock(&self.state);
        if state.death.is_none() {
            state.death = Some(why.to_owned());
        }
        // Threads that wait for one of these wake up.
        state.commands.clear();
        state.replies = None;
        drop(state);
        if let Some(stream) = lock(&self.to).take() {
            // Ends the reader too.
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        lock(&self.qemu).end();
    }

    fn death(&self) -> anyhow::Error {
        let why = lock(&self.state)
            .death
            .clone()
            .unwrap_or_else(|| "is gone".to_owned());
        anyhow::anyhow!("machine {} {why}; {}", self.name, console_tail(&self.console))
    }
}

/// Delivers what the agent says, until it says no more.
fn read(link: &Weak<Link>, stream: UnixStream) {
    let mut from = BufReader::with_capacity(64 * 1024, stream);
    let why = loop {
        let frame = receive::<Reply>(&mut from);
        let Some(link) = link.upgrade() else { return };
        let (reply, payload) = match frame {
            Ok(Some(frame)) => frame,
            Ok(None) => break "ended".to_owned(),
            // A stream that breaks is QEMU ending; one that holds something else is not.
            Err(e) if e.is::<std::io::Error>() => break "ended".to_owned(),
            Err(e) => break format!("no longer speaks sense ({e:#})"),
        };
        let mut state = lock(&link.state);
        state.last_heard = Instant::now();
        let id = match &reply {
            Reply::Alive => continue,
            Reply::Hello(_) | Reply::Clock(_) | Reply::Configured(_) | Reply::Failed(_) => {
                if let Some(replies) = &state.replies {
                    let _ = replies.send(reply);
                }
                continue;
            }
            Reply::Started(id) | Reply::Stdout(id) | Reply::Stderr(id) => *id,
            Reply::Refused { id, .. } | Reply::Exited { id, .. } => *id,
        };
        let last = matches!(reply, Reply::Refused { .. } | Reply::Exited { .. });
        if let Some(command) = state.commands.get(&id) {
            // A receiver that is gone no longer cares.
            let _ = command.send((reply, payload));
        }
        if last {
            state.commands.remove(&id);
        }
    };
    if let Some(link) = link.upgrade() {
        link.die(&why);
    }
}

/// Asks the machine now and then whether it lives, and kills it when it is silent for too long.
fn watch(link: &Weak<Link>, pulse: Pulse) {
    loop {
        thread::sleep(pulse.every);
        let Some(link) = link.upgrade() else { return };
        let (dead, silent) = {
            let state = lock(&link.state);
            (state.death.is_some(), state.last_heard.elapsed())
        };
        if dead {
            return;
        }
        if silent > pulse.patience {
            return link.die(&format!("has not answered for {:.0} s", silent.as_secs_f64()));
        }
        // One that is gone is noticed above, or by the reader.
        let _ = link.send(&Request::Pulse, &[]);
    }
}

/// The last lines of a console, for an error.
pub(crate) fn console_tail(console: &Path) -> String {
    let bytes = fs::read(console).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim_end)
        .filter(|line| !line.is_empty())
        .collect();
    if lines.is_empty() {
        return "its console is empty".to_owned();
    }
    let shown = lines
        .get(lines.len().saturating_sub(CONSOLE_LINES)..)
        .unwrap_or_default();
    format!(
        "the last lines of its console ({}):\n  | {}",
        console.display(),
        shown.join("\n  | ")
    )
}

/// A command on a machine.
struct Remote {
    id: u64,
    link: Arc<Link>,
    events: Receiver<(Reply, Vec<u8>)>,
    ended: bool,
}

impl Remote {
    fn next_reply(&mut self, deadline: Instant) -> Result<Option<(Reply, Vec<u8>)>> {
        ensure!(!self.ended, "the command has already ended");
        match self
            .events
            .recv_timeout(deadline.saturating_duration_since(Instant::now()))
        {
            Ok(reply) => Ok(Some(reply)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(self.link.death()),
        }
    }
}

impl Process for Remote {
    fn next_event(&mut self, deadline: Instant) -> Result<Option<ProcessEvent>> {
        Ok(match self.next_reply(deadline)? {
            None => None,
            Some((Reply::Stdout(_), bytes)) => Some(ProcessEvent::Stdout(bytes)),
            Some((Reply::Stderr(_), bytes)) => Some(ProcessEvent::Stderr(bytes)),
            Some((Reply::Exited { exit, .. }, _)) => {
                self.ended = true;
                Some(ProcessEvent::Exited(exit))
            }
            Some((other, _)) => bail!("machine {} said {other:?} of a command", self.link.name),
        })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        bytes
            .chunks(64 * 1024)
            .try_for_each(|some| self.link.send(&Request::Input(self.id), some))
    }

    fn close_input(&mut self) -> Result<()> {
        self.link.send(&Request::CloseInput(self.id), &[])
    }

    fn resize(&mut self, rows: u16, columns: u16) -> Result<()> {
        self.link.send(
            &Request::Resize {
                id: self.id,
                rows,
                columns,
            },
            &[],
        )
    }

    fn signal(&mut self, signal: Signal) -> Result<()> {
        self.link.send(&Request::Signal { id: self.id, signal }, &[])
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        if !self.ended {
            // A machine that is gone has taken the command with it.
            let _ = self.signal(Signal::Kill);
        }
        lock(&self.link.state).commands.remove(&self.id);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
