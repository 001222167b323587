//! Starting one command and streaming what it does: used by the local cluster
//! here and by the agent inside a guest.
//!
//! Every command is the leader of a process group of its own (of a session, on
//! a terminal), so that a signal reaches what it started.

use core::time::Duration;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, WaitId, WaitIdOptions};
use rustix::termios::Winsize;

use crate::cluster::{CommandSpec, Exit, Input, ProcessEvent, Signal};

/// How long output is waited for once the command itself has ended: a child it
/// left behind may hold it open for ever.
const OUTPUT_GRACE: Duration = Duration::from_millis(500);

/// How long output is waited for that is there, and that nobody has taken yet: on a busy machine, the threads that take it may be late.
const UNREAD_GRACE: Duration = Duration::from_secs(20);

/// How often it is looked whether such output was taken.
const TURN: Duration = Duration::from_millis(10);

/// Takes the events of one command, in order; called from several threads, one at a time.
pub(crate) type Sink = Box<dyn FnMut(ProcessEvent) + Send>;

/// A command that was started. Dropping it leaves the command running.
#[derive(Debug)]
pub(crate) struct Running {
    pid: Pid,
    alive: Arc<Mutex<bool>>,
    /// To the thread that writes: a command that does not read must not hold up the caller.
    input: Option<mpsc::Sender<Vec<u8>>>,
    terminal: Option<File>,
}

/// Starts `spec`, with `prefix` put before its arguments (a command that enters
/// a network namespace, say).
pub(crate) fn start(prefix: &[String], spec: &CommandSpec, sink: Sink) -> Result<Running> {
    let mut argv: Vec<&str> = prefix.iter().chain(&spec.argv).map(String::as_str).collect();
    if matches!(spec.input, Input::Terminal { .. }) {
        // Makes the terminal given as standard input the controlling one.
        argv.splice(0..0, ["setsid", "--ctty", "--wait"]);
    }
    let Some((program, arguments)) = argv.split_first() else {
        bail!("the command is empty")
    };
    let mut command = Command::new(program);
    command.args(arguments).envs(spec.env.iter().map(|(k, v)| (k, v)));
    if let Some(cwd) = &spec.cwd {
        command.current_dir(cwd);
    }
    let streams = Streams::prepare(&mut command, spec.input)?;
    let child = command.spawn().with_context(|| match &spec.cwd {
        Some(cwd) if !cwd.is_dir() => format!("no folder {} to start `{program}` in", cwd.display()),
        _ => format!("cannot start `{program}`"),
    })?;
    // The parent's copies of the child's ends must go, or output never ends.
    drop(command);
    streams.watch(child, sink)
}

impl Running {
    /// Sends a signal to the command's process group.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        // Held while signalling: the number is not reused before it is reaped.
        let alive = self.alive.lock().unwrap_or_else(PoisonError::into_inner);
        if !*alive {
            return Ok(());
        }
        let signal = match signal {
            Signal::Interrupt => rustix::process::Signal::INT,
            Signal::Terminate => rustix::process::Signal::TERM,
            Signal::Kill => rustix::process::Signal::KILL,
        };
        match rustix::process::kill_process_group(self.pid, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(errno) => Err(errno).context("cannot signal the command"),
        }
    }

    /// Feeds standard input, in the background.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let Some(input) = &self.input else {
            bail!("the command has no open input")
        };
        input
            .send(bytes.to_vec())
            .ok()
            .context("the command reads its input no longer")
    }

    /// Closes standard input; on a terminal that is its end-of-file character.
    pub(crate) fn close_input(&mut self) -> Result<()> {
        if self.terminal.is_some() {
            return self.write(&[4]);
        }
        self.input = None;
        Ok(())
    }

    /// Sets the size of the terminal, if there is one.
    pub(crate) fn resize(&self, rows: u16, columns: u16) -> Result<()> {
        self.terminal
            .as_ref()
            .map_or(Ok(()), |terminal| set_size(terminal, rows, columns))
    }
}

/// The parent's ends of a command's standard streams.
struct Streams {
    terminal: Option<File>,
}

impl Streams {
    fn prepare(command: &mut Command, input: Input) -> Result<Self> {
        match input {
            Input::Closed | Input::Pipe => {
                let stdin = if input == Input::Pipe {
                    Stdio::piped()
                } else {
                    Stdio::null()
                };
                command
                    .stdin(stdin)
                    .stdout(Stdio::piped())
                    .stderr(Stdio::piped())
                    .process_group(0);
                Ok(Self { terminal: None })
            }
            Input::Terminal { rows, columns } => {
                let (master, slave) = open_terminal().context("cannot open a terminal")?;
                set_size(&master, rows, columns)?;
                command
                    .stdin(slave.try_clone()?)
                    .stdout(slave.try_clone()?)
                    .stderr(slave);
                // It leads no group of its own. So `setsid` makes the session in place, without another process, and the
                // command has the number that signals go to.
                Ok(Self {
                    terminal: Some(master),
                })
            }
        }
    }

    fn watch(self, mut child: Child, sink: Sink) -> Result<Running> {
        let pid = Pid::from_child(&child);
        let sink = Arc::new(Mutex::new(Some(sink)));
        let (done, readers_done) = mpsc::channel();
        let mut readers = 0_usize;
        let streams = [
            child.stdout.as_ref().map(AsFd::as_fd),
            child.stderr.as_ref().map(AsFd::as_fd),
            self.terminal.as_ref().map(AsFd::as_fd),
        ];
        let streams = streams
            .into_iter()
            .flatten()
            .map(|stream| stream.try_clone_to_owned());
        let streams = streams.collect::<std::io::Result<Vec<_>>>()?;
        if let Some(master) = &self.terminal {
            readers = readers.saturating_add(1);
            pump(master.try_clone()?, ProcessEvent::Stdout, &sink, &done);
        }
        if let Some(stdout) = child.stdout.take() {
            readers = readers.saturating_add(1);
            pump(stdout, ProcessEvent::Stdout, &sink, &done);
        }
        if let Some(stderr) = child.stderr.take() {
            readers = readers.saturating_add(1);
            pump(stderr, ProcessEvent::Stderr, &sink, &done);
        }
        let input = match (&self.terminal, child.stdin.take()) {
            (Some(master), _) => Some(feed(master.try_clone()?)),
            (None, Some(stdin)) => Some(feed(File::from(OwnedFd::from(stdin)))),
            (None, None) => None,
        };
        let alive = Arc::new(Mutex::new(true));
        let reaper_alive = Arc::clone(&alive);
        thread::spawn(move || {
            let exit = reap(&mut child, &reaper_alive);
            let ended = Instant::now();
            while readers > 0 {
                match readers_done.recv_timeout(OUTPUT_GRACE.saturating_sub(ended.elapsed()).max(TURN)) {
                    Ok(()) => readers = readers.saturating_sub(1),
                    Err(RecvTimeoutError::Timeout) if ended.elapsed() < OUTPUT_GRACE => {}
                    Err(RecvTimeoutError::Timeout) if ended.elapsed() < UNREAD_GRACE => {
                        let _told = sink.lock().unwrap_or_else(PoisonError::into_inner);
                        if !streams.iter().any(is_unread) {
                            break;
                        }
                    }
                    Err(_) => break,
                }
            }
            // Taken out, so that nothing can follow the last event.
            let taken = sink.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(mut sink) = taken {
                sink(ProcessEvent::Exited(exit));
            }
        });
        Ok(Running {
            pid,
            alive,
            input,
            terminal: self.terminal,
        })
    }
}

/// Whether there are bytes in a pipe.
fn is_unread(pipe: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(pipe, PollFlags::IN)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let is_polled = poll(&mut polled, Some(&now)).is_ok();
    let [polled] = &polled;
    is_polled && polled.revents().contains(PollFlags::IN)
}

fn reap(child: &mut Child, alive: &Mutex<bool>) -> Exit {
    // Waits without reaping, so that the pid stays ours until `alive` says it is not.
    let pid = Pid::from_child(child);
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while matches!(
        rustix::process::waitid(WaitId::Pid(pid), options),
        Err(rustix::io::Errno::INTR)
    ) {}
    let mut alive = alive.lock().unwrap_or_else(PoisonError::into_inner);
    *alive = false;
    child.wait().map_or(Exit::Code(-1), exit_of)
}

/// How a process ended, from what `wait` says.
pub(crate) fn exit_of(status: ExitStatus) -> Exit {
    match (status.code(), status.signal()) {
        (Some(code), _) => Exit::Code(code),
        (None, Some(signal)) => Exit::Signal(signal),
        (None, None) => Exit::Code(-1),
    }
}

fn pump(
    mut from: impl Read + AsFd + Send + 'static,
    event: fn(Vec<u8>) -> ProcessEvent,
    sink: &Arc<Mutex<Option<Sink>>>,
    done: &mpsc::Sender<()>,
) {
    let sink = Arc::clone(sink);
    let done = done.clone();
    thread::spawn(move || {
        let mut buffer = vec![0; 32 * 1024];
        loop {
            // Waited for without the lock, and read under it: whatever was read is reported before the end.
            match poll(&mut [PollFd::new(&from, PollFlags::IN)], None) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) => break,
            }
            let mut sink = sink.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(sink) = sink.as_mut() else { break };
            // A terminal whose other side is closed reads as an error: that is its end.
            let Ok(read @ 1..) = from.read(&mut buffer) else {
                break;
            };
            sink(event(buffer.get(..read).unwrap_or_default().to_vec()));
        }
        let _ = done.send(());
    });
}

/// Writes what comes through the channel until that is closed or nobody reads.
fn feed(mut to: File) -> mpsc::Sender<Vec<u8>> {
    let (sender, received) = mpsc::channel::<Vec<u8>>();
    thread::spawn(move || {
        for bytes in received {
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
    });
    sender
}

fn open_terminal() -> Result<(File, File)> {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    let name = ptsname(&master, Vec::new())?;
    let slave = rustix::fs::open(
        name,
        rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )?;
    Ok((File::from(master), File::from(slave)))
}

fn set_size(terminal: &File, rows: u16, columns: u16) -> Result<()> {
    let size = Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    rustix::termios::tcsetwinsize(terminal, size).context("cannot set the terminal's size")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn output_that_is_taken_late_comes_before_the_end() {
        let (events, came) = mpsc::channel();
        let mut is_first = true;
        let sink = move |event| {
            // As long as a busy machine may hold up the thread that takes it.
            if core::mem::take(&mut is_first) {
                thread::sleep(OUTPUT_GRACE.saturating_mul(2));
            }
            let _ = events.send(event);
        };
        let spec = CommandSpec {
            argv: ["sh", "-c", "echo first; sleep 0.2; echo last; exit 3"]
                .map(str::to_owned)
                .to_vec(),
            input: Input::Closed,
            ..CommandSpec::default()
        };
        start(&[], &spec, Box::new(sink)).unwrap();
        let events: Vec<ProcessEvent> = came.iter().collect();
        let text: Vec<u8> = events
            .iter()
            .flat_map(|event| match event {
                ProcessEvent::Stdout(bytes) => bytes.clone(),
                _ => Vec::new(),
            })
            .collect();
        assert_eq!(text, b"first\nlast\n", "{events:?}");
        assert_eq!(events.last(), Some(&ProcessEvent::Exited(Exit::Code(3))));
    }

    #[test]
    fn a_signal_reaches_a_command_on_a_terminal() {
        let (events, came) = mpsc::channel();
        let sink = move |event| drop(events.send(event));
        let spec = CommandSpec {
            argv: ["sh", "-c", "echo $$; exec sleep 60"].map(str::to_owned).to_vec(),
            input: Input::Terminal {
                rows: 24,
                columns: 80,
            },
            ..CommandSpec::default()
        };
        let running = start(&[], &spec, Box::new(sink)).unwrap();
        let Ok(ProcessEvent::Stdout(number)) = came.recv() else {
            panic!("no number")
        };
        let proc = Path::new("/proc").join(String::from_utf8(number).unwrap().trim());
        assert!(proc.exists());
        running.signal(Signal::Kill).unwrap();
        let last = came.iter().find(|event| matches!(event, ProcessEvent::Exited(_)));
        assert!(last.is_some() && !proc.exists(), "{last:?}");
    }
}
