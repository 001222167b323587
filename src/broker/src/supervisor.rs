//! The loop that answers the trapped calls of one sandbox, in one thread, until its last process has ended.

use core::fmt;
use core::time::Duration;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use doorbell_sandbox::{BlockedSignals, Launch, LaunchError, Launched, Network, Reserved, Tree};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Resource, Signal, WaitOptions, getpgid, getpgrp, getpid, getrlimit, kill_process,
    pidfd_open, pidfd_send_signal, set_child_subreaper, wait, waitpid,
};

use crate::limits::{Limits, LimitsError};
use crate::policy::{Policy, PolicyError};
use crate::sandbox::{Counts, Sandbox};
use crate::topology::{self, TopologyError};

/// Interval of the search for orphans after the end of the program.
const REAP_EVERY: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};

/// Interval and maximum number of checks whether a killed process has ended, or the cgroup is free: one second in total.
const LOOK_EVERY: Duration = Duration::from_millis(5);
const LOOKS_MAX: u32 = 200;

/// A program to run.
#[derive(Clone, Debug)]
pub struct Program {
    /// The program. It is looked up in `PATH` if it contains no slash.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Runs the program in new namespaces, without privileges and with an empty `/dev/infiniband`. `None` creates no namespaces.
    pub namespaces: Option<Network>,
    /// Contents of `topology.json` in the policy's topology. If empty, there is no such file.
    pub snapshot: Vec<u8>,
}

/// How the program ended.
#[expect(clippy::exhaustive_enums, reason = "a process ends by itself or by a signal")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It exited with this code.
    Exited(i32),
    /// This signal killed it.
    Killed(i32),
}

/// Result of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// How the program ended.
    pub end: End,
    /// Counts of all its processes.
    pub counts: Counts,
}

/// Reason why a sandbox could not run to its end.
#[derive(Debug)]
#[non_exhaustive]
pub enum BrokerError {
    /// The policy is invalid.
    Policy(PolicyError),
    /// The program did not start.
    Launch(LaunchError),
    /// The topology of the policy cannot be created.
    Topology(TopologyError),
    /// A limit of the policy cannot be enforced.
    Limits(LimitsError),
    /// The limit of open files leaves no descriptor numbers for devices.
    OpenFiles {
        /// The limit.
        limit: u64,
        /// Contexts of the policy.
        contexts: u32,
    },
    /// This process lacks a resource.
    Host(io::Error),
}

impl fmt::Display for BrokerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Policy(error) => error.fmt(f),
            Self::Launch(error) => error.fmt(f),
            Self::Topology(error) => error.fmt(f),
            Self::Limits(error) => error.fmt(f),
            Self::OpenFiles { limit, contexts } => write!(
                f,
                "the limit of open files is {limit}: {contexts} contexts leave fewer than 64 to the program; raise it (ulimit -n)"
            ),
            Self::Host(error) => write!(f, "cannot supervise: {error}"),
        }
    }
}

impl core::error::Error for BrokerError {}

impl From<io::Error> for BrokerError {
    fn from(error: io::Error) -> Self {
        Self::Host(error)
    }
}

impl From<Errno> for BrokerError {
    fn from(error: Errno) -> Self {
        Self::Host(error.into())
    }
}

/// Runs a program under a policy, and answers its trapped calls until its last process has ended. The program is killed if this thread dies.
///
/// The calling process must have no other thread and no other child: it becomes the parent of orphans of the program, and waits for all children. All
/// signals are blocked meanwhile. Signals that another process sends are forwarded to the program.
///
/// # Errors
/// The policy is invalid, the program does not start, or this process lacks a resource.
pub fn run(policy: &Policy, program: &Program) -> Result<Report, BrokerError> {
    policy.check().map_err(BrokerError::Policy)?;
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let contexts = policy.contexts;
    let reserved = Reserved::below(limit, contexts).ok_or(BrokerError::OpenFiles { limit, contexts })?;
    let signals = BlockedSignals::new()?;
    // Orphans become children of this process: it can then access their memory, and reap them, without which the filter stays in use.
    set_child_subreaper(Some(getpid()))?;
    let is_limited = policy.pinned_bytes.is_some() || policy.objects.is_some();
    if is_limited && program.namespaces.is_none() {
        return Err(BrokerError::Limits(LimitsError::Privileges));
    }
    let limits = Limits::of(policy).map_err(BrokerError::Limits)?;
    let cgroup = limits.cgroup().map_err(BrokerError::Limits)?;
    let mut policy = policy.clone();
    limits.narrow(&mut policy);
    let trees = trees(&policy, program).map_err(BrokerError::Topology)?;
    let launch = Launch {
        trees,
        program: program.program.clone(),
        arguments: program.arguments.clone(),
        namespaces: program.namespaces,
        reserved: reserved.clone(),
        cgroup: cgroup.as_ref().map(|cgroup| cgroup.folder().to_owned()),
        pinned_bytes: policy.pinned_bytes,
    };
    let Launched { pid, listener } = launch.start(&signals).map_err(BrokerError::Launch)?;
    let mut sandbox = Sandbox::new(listener, reserved, policy);
    let end = pidfd_open(pid, PidfdFlags::empty())
        .map_err(BrokerError::from)
        .and_then(|process| serve(&mut sandbox, pid, &process, &signals));
    if end.is_err() {
        // The program was not reaped yet, so its process ID cannot have been reused.
        let _ = kill_process(pid, Signal::KILL);
        await_end(|| !matches!(waitpid(Some(pid), WaitOptions::NOHANG), Ok(None)));
    }
    let counts = sandbox.counts;
    drop(sandbox);
    if let Some(cgroup) = &cgroup {
        // If the supervision failed, a remaining process may keep the cgroup in use.
        await_end(|| cgroup.is_removed());
    }
    Ok(Report { end: end?, counts })
}

/// Waits until `has_ended` returns true, for one second at most.
fn await_end(mut has_ended: impl FnMut() -> bool) {
    for _ in 0..LOOKS_MAX {
        if has_ended() {
            return;
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// The sysfs classes restricted to the policy's devices, and the topology if the policy has one. Creates the topology's folder if the user has the
/// permission.
fn trees(policy: &Policy, program: &Program) -> Result<Vec<Tree>, TopologyError> {
    let mut trees = Vec::new();
    if program.namespaces.is_some() {
        trees = topology::classes(policy);
    }
    let Some(at) = &policy.topology else {
        return Ok(trees);
    };
    if program.namespaces.is_none() {
        return Err(TopologyError::Namespaces);
    }
    std::fs::create_dir_all(at).map_err(|error| TopologyError::File {
        path: at.clone(),
        error,
    })?;
    trees.push(topology::tree(policy, at, &program.snapshot)?);
    Ok(trees)
}

/// Answers the sandbox until the filter is unused and the end of the program is known. Some kernels release the filter before the last process has
/// closed its descriptors.
fn serve(
    sandbox: &mut Sandbox,
    program: Pid,
    process: &OwnedFd,
    signals: &BlockedSignals,
) -> Result<End, BrokerError> {
    let (mut end, mut has_exited, mut is_unused) = (None, false, false);
    loop {
        // A descriptor stays ready after its event, so it is not polled again. If a tracer holds the program, its exit is seen before its status is
        // known.
        let of = |is_over: bool, other| if is_over { signals.as_fd() } else { other };
        let mut watched = [
            signals.as_fd(),
            of(is_unused, sandbox.as_fd()),
            of(has_exited, process.as_fd()),
        ]
        .map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN));
        // Orphans have to be reaped: until then the filter is in use.
        let timeout = (has_exited || is_unused).then_some(&REAP_EVERY);
        poll(&mut watched, timeout)?;
        let [of_signals, of_listener, of_process] = watched.each_ref().map(PollFd::revents);
        let trapped = if is_unused {
            PollFlags::empty()
        } else {
            of_listener
        };
        if trapped.is_empty() || !(of_signals | of_process).is_empty() {
            forward(signals, process);
            has_exited |= !has_exited && !of_process.is_empty();
            match reaped(program) {
                Ok(found) => end = end.or(found),
                Err(error) if end.is_none() => return Err(error.into()),
                Err(_) => {}
            }
        }
        if trapped.contains(PollFlags::IN) {
            sandbox.answer_next()?;
        } else if trapped.contains(PollFlags::HUP) {
            is_unused = true;
        }
        if let Some(end) = end.filter(|_| is_unused) {
            return Ok(end);
        }
    }
}

/// Forwards signals that other processes sent to this process to the program.
fn forward(signals: &BlockedSignals, process: &OwnedFd) {
    while let Some(received) = signals.next() {
        if received.is_sent && received.signal != Signal::CHILD.as_raw() {
            if let Some(signal) = Signal::from_named_raw(received.signal) {
                // Sent by the pidfd, since the process ID may have been reused.
                let _ = pidfd_send_signal(process, signal);
            }
        }
    }
}

/// Reaps all children that have ended, and returns the end of the program if it is one of them. If a terminal stopped the program, this process stops
/// too, since the shell that continues the job waits for this process.
fn reaped(program: Pid) -> Result<Option<End>, Errno> {
    let mut end = None;
    loop {
        let (pid, status) = match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
            Ok(Some(child)) => child,
            Err(Errno::CHILD) if end.is_some() => return Ok(end),
            other => return other.map(|_| end),
        };
        if pid != program {
            continue;
        }
        if let Some(signal) = status.stopping_signal() {
            let of_jobs = [Signal::TSTP, Signal::TTIN, Signal::TTOU].map(Signal::as_raw);
            // A program with its own process group is a separate job.
            if of_jobs.contains(&signal) && getpgid(Some(program)) == Ok(getpgrp()) {
                kill_process(getpid(), Signal::STOP)?;
            }
            continue;
        }
        let code = status.exit_status().map(End::Exited);
        end = code.or_else(|| status.terminating_signal().map(End::Killed));
    }
}
