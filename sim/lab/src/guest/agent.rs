//! The agent: runs commands inside a machine as the lab asks, over a stream.
//!
//! It decides nothing; when the lab is gone, so is it, and process 1 then ends
//! the machine.

use core::time::Duration;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};

use super::network;
use super::wire::{Reply, Request, Start, receive, send};
use crate::cluster::{CommandSpec, ProcessEvent, Signal};
use crate::process::{self, Running};

/// Name of the port the agent talks over, as QEMU knows it.
pub(crate) const PORT_NAME: &str = "doorbell.lab";

/// How long the port may take to appear.
const PORT_PATIENCE: Duration = Duration::from_secs(20);

type Commands = Arc<Mutex<BTreeMap<u64, Running>>>;

/// Runs inside a machine, as a child of process 1, until the lab is gone.
pub(crate) fn run() -> Result<()> {
    let port = open_port()?;
    let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
    serve(port.try_clone()?, port, &kernel, &ip_netns_exec)
}

/// How a command is put on a host that is a network namespace.
pub(crate) fn ip_netns_exec(host: &str) -> Vec<String> {
    ["ip", "netns", "exec", host].map(str::to_owned).to_vec()
}

/// Serves one lab over a stream, until the stream ends. `enter` gives what
/// puts a command on a host.
pub(crate) fn serve<W: Write + Send + 'static>(
    from: impl Read,
    to: W,
    kernel: &str,
    enter: &dyn Fn(&str) -> Vec<String>,
) -> Result<()> {
    let to = Arc::new(Mutex::new(to));
    let commands = Commands::default();
    let mut from = BufReader::with_capacity(64 * 1024, from);
    send(&mut *lock(&to), &Reply::Hello(kernel.to_owned()), &[])?;
    while let Some((request, payload)) = receive::<Request>(&mut from)? {
        match request {
            Request::Configure(plan) => {
                let reply = match network::realise(&plan) {
                    Ok(realised) => Reply::Configured(realised),
                    Err(e) => Reply::Failed(format!("{e:#}")),
                };
                send(&mut *lock(&to), &reply, &[])?;
            }
            Request::Pulse => send(&mut *lock(&to), &Reply::Alive, &[])?,
            Request::Clock => send(&mut *lock(&to), &Reply::Clock(clock_ns()), &[])?,
            Request::Start(start) => begin(start, &to, &commands, enter)?,
            Request::Input(id) => with(&commands, id, |running| running.write(&payload)),
            Request::CloseInput(id) => with(&commands, id, Running::close_input),
            Request::Resize { id, rows, columns } => {
                with(&commands, id, |running| running.resize(rows, columns));
            }
            Request::Signal { id, signal } => with(&commands, id, |running| running.signal(signal)),
        }
    }
    for running in lock(&commands).values() {
        // One that has ended meanwhile is what is wanted.
        let _ = running.signal(Signal::Kill);
    }
    Ok(())
}

fn clock_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let (seconds, nanos) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec));
    seconds
        .unwrap_or(0)
        .saturating_mul(1_000_000_000)
        .saturating_add(nanos.unwrap_or(0))
}

fn begin<W: Write + Send + 'static>(
    start: Start,
    to: &Arc<Mutex<W>>,
    commands: &Commands,
    enter: &dyn Fn(&str) -> Vec<String>,
) -> Result<()> {
    let id = start.id;
    let prefix = start.host.as_deref().map(enter).unwrap_or_default();
    let spec = CommandSpec {
        argv: start.argv,
        env: start.env,
        cwd: start.cwd,
        input: start.input.into(),
    };
    let sink = {
        let to = Arc::clone(to);
        let commands = Arc::clone(commands);
        move |event| {
            let (reply, bytes) = match event {
                ProcessEvent::Stdout(bytes) => (Reply::Stdout(id), bytes),
                ProcessEvent::Stderr(bytes) => (Reply::Stderr(id), bytes),
                ProcessEvent::Exited(exit) => {
                    lock(&commands).remove(&id);
                    (Reply::Exited { id, exit }, Vec::new())
                }
            };
            // The reader notices a lab that is gone.
            let _ = send(&mut *lock(&to), &reply, &bytes);
        }
    };
    // Held over both, so that `Started` comes before any output, and the
    // command is known before its end is.
    let mut known = lock(commands);
    let mut to = lock(to);
    match process::start(&prefix, &spec, Box::new(sink)) {
        Ok(running) => {
            known.insert(id, running);
            send(&mut *to, &Reply::Started(id), &[])
        }
        Err(e) => send(
            &mut *to,
            &Reply::Refused {
                id,
                why: format!("{e:#}"),
            },
            &[],
        ),
    }
}

/// A command that has just ended is no error: the lab has yet to hear of it.
fn with(commands: &Commands, id: u64, act: impl FnOnce(&mut Running) -> Result<()>) {
    if let Some(running) = lock(commands).get_mut(&id) {
        if let Err(e) = act(running) {
            eprintln!("agent: command {id}: {e:#}");
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn open_port() -> Result<File> {
    let deadline = Instant::now().checked_add(PORT_PATIENCE).context("no deadline")?;
    loop {
        if let Some(device) = find_port() {
            match File::options().read(true).write(true).open(&device) {
                Ok(file) => return Ok(file),
                Err(e) if Instant::now() >= deadline => {
                    return Err(e).with_context(|| format!("cannot open {}", device.display()));
                }
                Err(_) => {}
            }
        } else if Instant::now() >= deadline {
            bail!("no virtio port named {PORT_NAME} has appeared");
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn find_port() -> Option<PathBuf> {
    let ports = std::fs::read_dir("/sys/class/virtio-ports").ok()?;
    ports.flatten().find_map(|port| {
        let name = std::fs::read_to_string(port.path().join("name")).ok()?;
        (name.trim() == PORT_NAME).then(|| PathBuf::from("/dev").join(port.file_name()))
    })
}

#[cfg(test)]
mod tests;
