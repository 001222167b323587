//! The loop that answers the trapped calls of one sandbox, in one thread, until its last process ended.

use core::fmt;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd as _;

use doorbell_sandbox::{
    BlockedSignals, Call, DOORBELL_BYTES, DescriptorKind, Doorbell, Driver, Launch, LaunchError, Launched,
    Listener, Network, Process, Reserved, StatForm, Trapped, node_facts,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Resource, Signal, WaitOptions, getrlimit, pidfd_open, pidfd_send_signal,
    set_child_subreaper, wait,
};

use crate::decider::{Decider, Decision, PATH_BYTES, Refusal};
use crate::host::Host;
use crate::policy::{Policy, PolicyError};

/// How often orphans are looked for once the program ended.
const REAP_EVERY: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};

/// A program to run.
#[derive(Clone, Debug)]
pub struct Program {
    /// The program, looked up in `PATH` if it has no slash.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Namespaces of its own, in which it has no privileges and no `/dev/infiniband`. `None` leaves namespaces to the program.
    pub namespaces: Option<Network>,
}

/// How the program ended.
#[expect(clippy::exhaustive_enums, reason = "a process ends by itself or by a signal")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// With this code.
    Exited(i32),
    /// By this signal.
    Killed(i32),
}

/// Counts of a sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Contexts that were given.
    pub opened: u64,
    /// Opens that were refused: by the policy, or since the open failed.
    pub refused: u64,
    /// Device nodes that were looked at and are there for the program.
    pub found: u64,
    /// Doorbells that were rung.
    pub doorbells: u64,
    /// Trapped calls that were the kernel's.
    pub native: u64,
}

/// The end of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// How the program ended.
    pub end: End,
    /// Counts of all its processes.
    pub counts: Counts,
}

/// A sandbox did not come to its end.
#[derive(Debug)]
#[non_exhaustive]
pub enum BrokerError {
    /// The policy is invalid.
    Policy(PolicyError),
    /// The program did not start.
    Launch(LaunchError),
    /// The limit of open files leaves no numbers for devices.
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

/// Runs a program under a policy, and answers it until the last of its processes ended. The program is killed if this thread dies.
///
/// The calling process has no other thread and no other child: it becomes the parent of orphans of the program, and waits for all children. All signals are
/// blocked meanwhile; those that another process sends go to the program.
///
/// # Errors
/// The policy is invalid, the program does not start, or this process lacks a resource.
pub fn run(policy: &Policy, program: &Program) -> Result<Report, BrokerError> {
    policy.check().map_err(BrokerError::Policy)?;
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let contexts = policy.contexts;
    let reserved = Reserved::below(limit, contexts).ok_or(BrokerError::OpenFiles { limit, contexts })?;
    let signals = BlockedSignals::new()?;
    // A process that outlives its parent is this one's: its memory may be looked at, and its end ends the filter.
    set_child_subreaper(Some(rustix::process::getpid()))?;
    let launch = Launch {
        program: program.program.clone(),
        arguments: program.arguments.clone(),
        namespaces: program.namespaces,
        reserved: reserved.clone(),
    };
    let Launched { pid, listener } = launch.start(&signals).map_err(BrokerError::Launch)?;
    let mut sandbox = Sandbox {
        listener,
        reserved,
        decider: Decider::new(policy.clone(), Host::new(policy)),
        drivers: BTreeMap::new(),
        counts: Counts::default(),
    };
    let end = sandbox.serve(pid, &signals)?;
    Ok(Report {
        end,
        counts: sandbox.counts,
    })
}

struct Sandbox {
    listener: Listener,
    reserved: Reserved,
    decider: Decider<Host>,
    /// The driver of each device that was rung.
    drivers: BTreeMap<u64, Driver>,
    counts: Counts,
}

impl Sandbox {
    fn serve(&mut self, program: Pid, signals: &BlockedSignals) -> Result<End, BrokerError> {
        let process = pidfd_open(program, PidfdFlags::empty())?;
        let mut end = None;
        loop {
            let (woken, trapped) = {
                let mut watched = [
                    PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN),
                    PollFd::from_borrowed_fd(self.listener.as_fd(), PollFlags::IN),
                    PollFd::from_borrowed_fd(process.as_fd(), PollFlags::IN),
                ];
                // The process is always ready once it ended. Its orphans are waited for: a filter has users until then.
                let (count, timeout) = if end.is_some() {
                    (2, Some(&REAP_EVERY))
                } else {
                    (3, None)
                };
                poll(watched.get_mut(..count).unwrap_or_default(), timeout)?;
                let [of_signals, of_listener, of_process] = &watched;
                let is_idle = of_listener.revents().is_empty();
                let woken = is_idle || !(of_signals.revents() | of_process.revents()).is_empty();
                (woken, of_listener.revents())
            };
            if woken {
                while let Some(received) = signals.next() {
                    if received.is_sent && received.signal != Signal::CHILD.as_raw() {
                        if let Some(signal) = Signal::from_named_raw(received.signal) {
                            // By its descriptor: its number may be another process's by now.
                            let _ = pidfd_send_signal(&process, signal);
                        }
                    }
                }
                end = end.or(reaped(program));
            }
            if trapped.contains(PollFlags::IN) {
                if let Some(trapped) = self.listener.next()? {
                    // A thread that is gone needs no answer.
                    let _ = self.answer(&trapped);
                }
            } else if trapped.contains(PollFlags::HUP) {
                // No process has the filter any more, the program neither.
                let mut ended = [PollFd::from_borrowed_fd(process.as_fd(), PollFlags::IN)];
                poll(&mut ended, None)?;
                return end.or_else(|| reaped(program)).ok_or(Errno::CHILD.into());
            }
        }
    }

    /// Copies bytes of the program once. `None` if the call is gone, so that the bytes may be another's.
    fn copied<const BYTES: usize>(&self, trapped: &Trapped, address: u64) -> Option<[u8; BYTES]> {
        let mut bytes = [0; BYTES];
        let count = Process::read(trapped.thread, address, &mut bytes);
        // Bytes that were not read are not looked at: a path without its end is none.
        bytes.get_mut(count..)?.fill(u8::MAX);
        self.listener.is_waiting(trapped).then_some(bytes)
    }

    fn answer(&mut self, trapped: &Trapped) -> Result<(), Errno> {
        match trapped.call {
            Call::Open { path } => {
                let Some(path) = self.copied::<PATH_BYTES>(trapped, path) else {
                    return Ok(());
                };
                match self.decider.open(&path) {
                    Decision::Allow(node) => {
                        let given = self.give(trapped, node);
                        if let Err(error) = given {
                            self.counts.refused = self.counts.refused.saturating_add(1);
                            return self.listener.refuse(trapped, error);
                        }
                        Ok(())
                    }
                    Decision::Refuse(refusal) => {
                        self.counts.refused = self.counts.refused.saturating_add(1);
                        self.listener.refuse(trapped, errno(refusal))
                    }
                    Decision::Native => self.native(trapped),
                }
            }
            Call::Stat { path, into, form } => {
                let Some(path) = self.copied::<PATH_BYTES>(trapped, path) else {
                    return Ok(());
                };
                match self.decider.look(&path) {
                    Decision::Allow(node) => match self.facts(trapped, node, into, form) {
                        Ok(()) => {
                            self.counts.found = self.counts.found.saturating_add(1);
                            self.listener.answer(trapped, 0)
                        }
                        Err(error) => self.listener.refuse(trapped, error),
                    },
                    Decision::Refuse(refusal) => self.listener.refuse(trapped, errno(refusal)),
                    Decision::Native => self.native(trapped),
                }
            }
            Call::Watch { path } => {
                let Some(path) = self.copied::<PATH_BYTES>(trapped, path) else {
                    return Ok(());
                };
                match self.decider.watch(&path) {
                    Decision::Refuse(refusal) => self.listener.refuse(trapped, errno(refusal)),
                    _ => self.native(trapped),
                }
            }
            Call::Write { descriptor, bytes } => {
                let Some(bytes) = self.copied::<DOORBELL_BYTES>(trapped, bytes) else {
                    return Ok(());
                };
                match self.ring(trapped, descriptor, &bytes) {
                    Some(Ok(())) => {
                        self.counts.doorbells = self.counts.doorbells.saturating_add(1);
                        self.listener.answer(trapped, DOORBELL_BYTES)
                    }
                    Some(Err(error)) => self.listener.refuse(trapped, error),
                    None => self.native(trapped),
                }
            }
            _ => self.native(trapped),
        }
    }

    fn native(&mut self, trapped: &Trapped) -> Result<(), Errno> {
        self.counts.native = self.counts.native.saturating_add(1);
        self.listener.resume(trapped)
    }

    /// Opens a node and gives the descriptor to the program. An error is the program's.
    fn give(&mut self, trapped: &Trapped, node: crate::decider::NodeName) -> Result<(), Errno> {
        let process = self.process(trapped)?;
        // The first free number. Another thread of the program that takes it meanwhile loses it, and harms nobody else.
        let is_free = |number: &u32| process.descriptor(*number).err() == Some(Errno::BADF);
        let number = self
            .reserved
            .numbers()
            .clone()
            .find(is_free)
            .ok_or(Errno::MFILE)?;
        let opened = self.decider.facts().open(node)?;
        self.listener.give(trapped, opened.descriptor.as_fd(), number)?;
        self.decider.given(opened.context, opened.device);
        self.counts.opened = self.counts.opened.saturating_add(1);
        Ok(())
    }

    /// The process of a trapped call.
    fn process(&self, trapped: &Trapped) -> Result<Process, Errno> {
        let process = Process::of(trapped.thread).map_err(|_| Errno::PERM)?;
        // The number was this thread's when its process was opened.
        self.listener
            .is_waiting(trapped)
            .then_some(process)
            .ok_or(Errno::SRCH)
    }

    /// Writes the facts of a node into the program.
    fn facts(
        &self,
        trapped: &Trapped,
        node: crate::decider::NodeName,
        into: u64,
        form: StatForm,
    ) -> Result<(), Errno> {
        let facts = node_facts(&self.decider.facts().path(node), form)?;
        let memory = Process::memory(trapped.thread).map_err(|_| Errno::PERM)?;
        if !self.listener.is_waiting(trapped) {
            return Err(Errno::SRCH);
        }
        Process::write(&memory, into, &facts)
    }

    /// Rings a doorbell of the program on a duplicate of its descriptor. `None` if the write is none.
    fn ring(
        &mut self,
        trapped: &Trapped,
        number: u32,
        bytes: &[u8; DOORBELL_BYTES],
    ) -> Option<Result<(), Errno>> {
        let doorbell = Doorbell::parse(bytes)?;
        let descriptor = match self.process(trapped) {
            Ok(process) => process.descriptor(number).ok()?,
            Err(error) => return Some(Err(error)),
        };
        let DescriptorKind::Device(device) = DescriptorKind::of(descriptor.as_fd()) else {
            return None;
        };
        if !self.decider.has_given(device) {
            return None;
        }
        let known = self.drivers.get(&device).copied();
        let mut rung = doorbell.ring(descriptor.as_fd(), known.unwrap_or(Driver::Rxe));
        let mut driver = Driver::Rxe;
        if known.is_none() && rung == Err(Errno::INVAL) {
            driver = Driver::Siw;
            rung = doorbell.ring(descriptor.as_fd(), driver);
        }
        if known.is_none() && rung.is_ok() {
            self.drivers.insert(device, driver);
        }
        Some(rung)
    }
}

const fn errno(refusal: Refusal) -> Errno {
    match refusal {
        Refusal::NoSuchDevice => Errno::NOENT,
        Refusal::TooManyContexts => Errno::MFILE,
    }
}

/// Takes all children that ended, and returns the end of the program if it is one of them.
fn reaped(program: Pid) -> Option<End> {
    let mut end = None;
    while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
        if pid == program {
            let code = status.exit_status().map(End::Exited);
            end = code.or_else(|| status.terminating_signal().map(End::Killed));
        }
    }
    end
}
