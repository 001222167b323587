//! `cargo lab shell`: a shell, or one command, on a host of a running lab.

use std::io::{BufReader, IsTerminal, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use signal_hook::consts::signal::SIGWINCH;

use crate::closed_pipe;
use crate::cluster::Exit;
use crate::control::{self, Greeting};
use crate::guest::wire::{InputKind, Reply, Request, Start, receive, send};
use crate::output::is_unread;
use crate::steps::say;

/// The one command of a connection.
const ID: u64 = 1;

/// Arguments of `cargo lab shell`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ShellArgs {
    /// Host to enter; the first one if not given
    host: Option<String>,
    /// Number of the lab's process, where several are running
    #[arg(long, value_name = "PID")]
    lab: Option<u32>,
    /// Command to run instead of a shell
    #[arg(last = true)]
    command: Vec<String>,
}

/// Enters a host; the exit code is the command's.
///
/// # Errors
///
/// No lab is running, or the host is not one of its.
pub(crate) fn run(args: &ShellArgs) -> Result<ExitCode> {
    let stream = connect(args.lab)?;
    let mut from = BufReader::new(stream.try_clone()?);
    let (greeting, _) = receive::<Greeting>(&mut from)?.context("the lab has just ended")?;
    let host = match &args.host {
        Some(host) => host.clone(),
        None => greeting.hosts.first().context("the lab has no hosts")?.clone(),
    };
    ensure!(
        greeting.hosts.contains(&host),
        "there is no host `{host}` in the running lab; it has {}",
        greeting.hosts.join(", ")
    );
    let (stdin, stdout) = (std::io::stdin(), std::io::stdout());
    let terminal = stdin.is_terminal() && stdout.is_terminal();
    let input = if terminal {
        let size = tcgetwinsize(&stdout)?;
        InputKind::Terminal {
            rows: size.ws_row,
            columns: size.ws_col,
        }
    } else {
        InputKind::Pipe
    };
    let argv = if args.command.is_empty() {
        ["bash", "--norc", "-i"].map(str::to_owned).to_vec()
    } else {
        args.command.clone()
    };
    if terminal && args.command.is_empty() {
        say(format_args!("{host} ({}); `exit` leaves it", greeting.kernel));
    }
    let env = vec![
        (
            "TERM".to_owned(),
            std::env::var("TERM").unwrap_or_else(|_| "linux".to_owned()),
        ),
        ("PS1".to_owned(), format!("{host}:\\w\\$ ")),
    ];
    let mut to = stream;
    send(
        &mut to,
        &Request::Start(Start {
            id: ID,
            host: Some(host),
            argv,
            env,
            cwd: None,
            input,
        }),
        &[],
    )?;
    match receive::<Reply>(&mut from)?.context("the lab has ended")?.0 {
        Reply::Started(_) => {}
        Reply::Refused { why, .. } => bail!("{why}"),
        other => bail!("the lab said {other:?}"),
    }
    let _raw = if terminal { Some(Raw::enter()?) } else { None };
    talk(to, from, terminal)
}

fn connect(lab: Option<u32>) -> Result<UnixStream> {
    let labs = control::running()?;
    let found = match (lab, labs.as_slice()) {
        (None, []) => bail!("no lab is running; `cargo lab up` starts one"),
        (None, [one]) => Some(one),
        (None, several) => {
            let pids = several
                .iter()
                .map(|(pid, _)| pid.to_string())
                .collect::<Vec<_>>()
                .join(", ");
            bail!("several labs are running: name one with --lab ({pids})");
        }
        (Some(wanted), labs) => labs.iter().find(|(pid, _)| *pid == wanted),
    };
    let (_, socket) = found.context("no such lab is running")?;
    UnixStream::connect(socket).with_context(|| format!("cannot reach the lab at {}", socket.display()))
}

/// Passes bytes both ways until the command ends.
fn talk(to: UnixStream, mut from: BufReader<UnixStream>, terminal: bool) -> Result<ExitCode> {
    let to = Arc::new(Mutex::new(to));
    let tell = {
        let to = Arc::clone(&to);
        move |request: &Request, payload: &[u8]| {
            let mut to = to.lock().unwrap_or_else(PoisonError::into_inner);
            send(&mut *to, request, payload).is_ok()
        }
    };
    if terminal {
        let tell = tell.clone();
        let mut signals = signal_hook::iterator::Signals::new([SIGWINCH])?;
        thread::spawn(move || {
            for _ in signals.forever() {
                if let Ok(size) = tcgetwinsize(std::io::stdout()) {
                    tell(
                        &Request::Resize {
                            id: ID,
                            rows: size.ws_row,
                            columns: size.ws_col,
                        },
                        &[],
                    );
                }
            }
        });
    }
    thread::spawn(move || {
        let mut buffer = vec![0; 4096];
        while let Ok(read @ 1..) = std::io::stdin().read(&mut buffer) {
            if !tell(&Request::Input(ID), buffer.get(..read).unwrap_or_default()) {
                return;
            }
        }
        tell(&Request::CloseInput(ID), &[]);
    });
    loop {
        let (reply, bytes) = receive::<Reply>(&mut from)?.context("the lab has ended")?;
        match reply {
            Reply::Stdout(_) => {
                let written = write(&mut std::io::stdout(), &bytes);
                if is_unread(&written) {
                    return Ok(ExitCode::from(closed_pipe::ENDED));
                }
                written?;
            }
            Reply::Stderr(_) => write(&mut std::io::stderr(), &bytes)?,
            Reply::Exited {
                exit: Exit::Code(code),
                ..
            } => {
                return Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)));
            }
            Reply::Exited {
                exit: Exit::Signal(signal),
                ..
            } => {
                return Ok(ExitCode::from(
                    u8::try_from(signal.saturating_add(128)).unwrap_or(1),
                ));
            }
            Reply::Refused { why, .. } => bail!("{why}"),
            other => bail!("the lab said {other:?}"),
        }
    }
}

fn write(to: &mut impl Write, bytes: &[u8]) -> std::io::Result<()> {
    to.write_all(bytes)?;
    to.flush()
}

/// The terminal in raw mode; as it was when dropped.
struct Raw(Termios);

impl Raw {
    fn enter() -> Result<Self> {
        let before = tcgetattr(std::io::stdin()).context("cannot read the terminal's mode")?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(std::io::stdin(), OptionalActions::Now, &raw).context("cannot set the terminal's mode")?;
        Ok(Self(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.0);
    }
}
