//! The seam between scenarios and the machines they run on: a set of named
//! hosts, and commands running on them.
//!
//! Nothing here knows of QEMU or of scenarios. In tests, `LocalCluster` (in
//! `local`) runs commands on this machine, so that code built on the seam is tested without a guest.

use core::fmt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Result;

mod host;
#[cfg(test)]
mod local;

pub(crate) use host::{Host, Port};
#[cfg(test)]
pub(crate) use local::LocalCluster;

/// A set of hosts on which commands run.
///
/// Dropping a cluster ends every process on it, and its machines.
pub(crate) trait Cluster: Send + Sync {
    /// Returns the facts of each host, in the topology's order.
    fn hosts(&self) -> &[Host];

    /// The kernel the hosts run, as `uname -r` gives it.
    fn kernel_release(&self) -> &str;

    /// How the hosts are made.
    fn shape(&self) -> Shape;

    /// A folder that exists under this same path here and on every host, and
    /// may be written on all of them: what a step leaves there is here at
    /// once. The rest of a host's file system is a private copy of this machine's.
    fn shared_dir(&self) -> &Path;

    /// Starts a command on `host`.
    ///
    /// # Errors
    ///
    /// The host is unknown, its machine is gone, or the program cannot be
    /// started there.
    fn spawn(&self, host: &str, spec: &CommandSpec) -> Result<Box<dyn Process>>;
}

/// How the hosts of a cluster are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Plain processes of this machine: no RDMA, no separation.
    #[cfg_attr(not(test), expect(dead_code, reason = "only tests run without guests"))]
    Local,
    /// Network namespaces in one virtual machine (Linux 7.1 and newer).
    Namespaces,
    /// A virtual machine for every host.
    Machines,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Local => "local processes",
            Self::Namespaces => "namespaces in one machine",
            Self::Machines => "a machine for every host",
        })
    }
}

/// A command to run on a host.
#[derive(Clone, Debug, Default)]
pub(crate) struct CommandSpec {
    /// Program and arguments; the program is looked up in `PATH`.
    pub(crate) argv: Vec<String>,
    /// Variables added to the environment of the host.
    pub(crate) env: Vec<(String, String)>,
    /// Working folder; the shared folder if not given.
    pub(crate) cwd: Option<PathBuf>,
    /// Its standard input.
    pub(crate) input: Input,
}

/// Standard input of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Input {
    /// At its end from the start.
    #[default]
    Closed,
    /// A pipe fed by [`Process::write`].
    Pipe,
    /// A terminal of this size, for a shell; output is then all [`ProcessEvent::Stdout`].
    Terminal {
        /// Height.
        rows: u16,
        /// Width.
        columns: u16,
    },
}

/// A command that was started. Dropping it kills what still runs.
pub(crate) trait Process: Send {
    /// Waits until `deadline` for what happens next; `None` means that nothing did.
    ///
    /// The last event is [`ProcessEvent::Exited`], once, after all output. A
    /// program that leaves a child behind holding its output is not waited for
    /// longer than a grace of half a second after its own end.
    ///
    /// # Errors
    ///
    /// The machine it ran on is gone; the error carries the last lines of its console.
    fn next_event(&mut self, deadline: Instant) -> Result<Option<ProcessEvent>>;

    /// Feeds its standard input, if that is a pipe or a terminal.
    ///
    /// # Errors
    ///
    /// It has no open input, or its machine is gone.
    fn write(&mut self, bytes: &[u8]) -> Result<()>;

    /// Closes its standard input.
    ///
    /// # Errors
    ///
    /// Its machine is gone.
    fn close_input(&mut self) -> Result<()>;

    /// Tells its terminal a new size; nothing happens without one.
    ///
    /// # Errors
    ///
    /// Its machine is gone.
    fn resize(&mut self, rows: u16, columns: u16) -> Result<()>;

    /// Sends a signal to it and to its process group. One that has already
    /// ended is left alone.
    ///
    /// # Errors
    ///
    /// Its machine is gone.
    fn signal(&mut self, signal: Signal) -> Result<()>;
}

/// The signals a step may need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Signal {
    /// As Ctrl-C does.
    Interrupt,
    /// Asks it to end.
    Terminate,
    /// Ends it.
    Kill,
}

/// Event of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProcessEvent {
    /// Bytes on its standard output.
    Stdout(Vec<u8>),
    /// Bytes on its standard error.
    Stderr(Vec<u8>),
    /// Its end; no event follows.
    Exited(Exit),
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Exit {
    /// By itself, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

impl Exit {
    /// Whether this is exit code 0.
    pub(crate) fn success(self) -> bool {
        self == Self::Code(0)
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}
