//! Device nodes of this host, and the contexts that were opened of them.

use core::sync::atomic::{AtomicU32, Ordering};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;

use doorbell_sandbox::{Mark, open_node};
use rustix::fs::{Mode, OFlags, major, minor};
use rustix::io::Errno;

use crate::decider::{Facts, NodeName};
use crate::policy::Policy;

/// A context that was given. The broker keeps no descriptor of it, so that its end is the program's alone.
#[derive(Debug)]
pub(crate) struct Context {
    /// `None` if the node could not be locked: it counts until the sandbox ends.
    mark: Option<Mark>,
    path: PathBuf,
}

/// An open device on its way to the program.
pub(crate) struct Opened {
    pub(crate) descriptor: OwnedFd,
    pub(crate) device: u64,
    pub(crate) context: Context,
}

/// The nodes of this host.
#[derive(Debug)]
pub(crate) struct Host {
    stand_ins: BTreeMap<String, PathBuf>,
}

/// Contexts that this process opened, for all sandboxes: a mark has their number, and no two have the same.
static OPENED: AtomicU32 = AtomicU32::new(0);

impl Host {
    pub(crate) fn new(policy: &Policy) -> Self {
        Self {
            stand_ins: policy.stand_ins.clone(),
        }
    }

    /// The path of a node, as this process sees it.
    pub(crate) fn path(&self, node: NodeName) -> PathBuf {
        let name = node.to_string();
        match self.stand_ins.get(&name) {
            Some(path) => path.clone(),
            None => PathBuf::from("/dev/infiniband").join(name),
        }
    }

    fn fact(node: NodeName, file: &str) -> Option<String> {
        let text = fs::read_to_string(format!("/sys/class/infiniband_verbs/{node}/{file}")).ok()?;
        Some(text.trim_end().to_owned())
    }

    /// Opens a node, which has to be the device that it was looked up as.
    pub(crate) fn open(&self, node: NodeName) -> Result<Opened, Errno> {
        let path = self.path(node);
        let (descriptor, device) = open_node(&path)?;
        if self.stand_ins.is_empty() {
            let expected = Self::fact(node, "dev");
            if expected != Some(format!("{}:{}", major(device), minor(device))) {
                return Err(Errno::NODEV);
            }
        }
        let number = OPENED.fetch_add(1, Ordering::Relaxed);
        let mark = Mark::set(descriptor.as_fd(), number);
        Ok(Opened {
            descriptor,
            device,
            context: Context { mark, path },
        })
    }
}

impl Facts for Host {
    type Context = Context;

    fn device(&self, node: NodeName) -> Option<String> {
        if self.stand_ins.is_empty() {
            return Self::fact(node, "ibdev");
        }
        let name = node.to_string();
        self.stand_ins.contains_key(&name).then_some(name)
    }

    fn retain_open(&self, contexts: &mut Vec<Context>) {
        // One probe a node, closed before the next: a device with an open file cannot be removed.
        let paths: BTreeSet<_> = contexts.iter().map(|context| context.path.clone()).collect();
        for path in paths {
            let Ok(probe) = rustix::fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else {
                // A node that is gone has no open file: its driver waits for the last one.
                contexts.retain(|context| context.path != path || path.exists());
                continue;
            };
            contexts.retain(|context| {
                context.path != path || context.mark.is_none_or(|mark| mark.is_open(probe.as_fd()))
            });
        }
    }
}
