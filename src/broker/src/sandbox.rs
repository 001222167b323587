//! Answers the trapped calls of one sandbox.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};

use doorbell_sandbox::{
    Call, DOORBELL_BYTES, DescriptorKind, Doorbell, Driver, Listener, Process, Reserved, StatForm, Trapped,
    node_facts,
};
use rustix::io::Errno;

use crate::decider::{Decider, Decision, NodeName, PATH_BYTES, Refusal};
use crate::host::Host;
use crate::policy::Policy;

/// Counts of a sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Contexts that were given to the program.
    pub opened: u64,
    /// Opens that were refused by the policy, and opens that failed.
    pub refused: u64,
    /// Calls of `stat` for device nodes that the program may use.
    pub found: u64,
    /// Doorbells that the broker rang.
    pub doorbells: u64,
    /// Trapped calls that the kernel executed.
    pub native: u64,
}

pub(crate) struct Sandbox {
    listener: Listener,
    reserved: Reserved,
    decider: Decider<Host>,
    /// The driver of each device whose doorbell was rung.
    drivers: BTreeMap<u64, Driver>,
    pub(crate) counts: Counts,
}

impl AsFd for Sandbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Sandbox {
    pub(crate) fn new(listener: Listener, reserved: Reserved, policy: Policy) -> Self {
        let host = Host::new(&policy);
        Self {
            listener,
            reserved,
            decider: Decider::new(policy, host),
            drivers: BTreeMap::new(),
            counts: Counts::default(),
        }
    }

    /// Answers the next trapped call.
    pub(crate) fn answer_next(&mut self) -> Result<(), Errno> {
        if let Some(trapped) = self.listener.next()? {
            // An error is ignored: if the thread has ended, it needs no answer.
            let _ = self.answer(&trapped);
        }
        Ok(())
    }

    /// Copies bytes of the program once. Returns `None` if the call has ended, since the bytes may belong to another
    /// thread then.
    fn copied<const BYTES: usize>(&self, trapped: &Trapped, address: u64) -> Option<[u8; BYTES]> {
        let mut bytes = [0; BYTES];
        let count = Process::read(trapped.thread, address, &mut bytes);
        // Overwrites bytes that were not read: a path without a zero byte is not parsed.
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

    /// Opens a node, and gives the descriptor to the program. An error becomes the result of the call.
    fn give(&mut self, trapped: &Trapped, node: NodeName) -> Result<(), Errno> {
        let process = self.process(trapped)?;
        // The first free number. If another thread of the program takes it meanwhile, that descriptor is replaced,
        // which harms only the program itself.
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
        // The call still waits, so the thread ID belonged to this thread when its process was opened.
        self.listener
            .is_waiting(trapped)
            .then_some(process)
            .ok_or(Errno::SRCH)
    }

    /// Writes the attributes of a node into the program's memory.
    fn facts(&self, trapped: &Trapped, node: NodeName, into: u64, form: StatForm) -> Result<(), Errno> {
        let facts = node_facts(&self.decider.facts().path(node), form)?;
        let memory = Process::memory(trapped.thread).map_err(|_| Errno::PERM)?;
        if !self.listener.is_waiting(trapped) {
            return Err(Errno::SRCH);
        }
        Process::write(&memory, into, &facts)
    }

    /// Rings a doorbell of the program, on a duplicate of its descriptor. Returns `None` if the write is not a
    /// doorbell.
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
