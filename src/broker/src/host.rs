//! Device nodes of this host, and the contexts that were opened on them.

use core::cell::Cell;
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Instant;

use doorbell_sandbox::{Mark, open_node};
use rustix::fs::{Mode, OFlags, major, minor};
use rustix::io::Errno;

use crate::decider::{Facts, NodeName};
use crate::policy::Policy;

/// A context that was given to the program. The broker keeps no descriptor of it, so that only the program keeps it open.
#[derive(Debug)]
pub(crate) struct Context {
    /// `None` if no lock could be set on the node. Then the context counts until the sandbox ends, unless the kernel enforces the limit.
    mark: Option<Mark>,
    path: PathBuf,
}

/// An open device that is going to be given to the program.
pub(crate) struct Opened {
    pub(crate) descriptor: OwnedFd,
    pub(crate) device: u64,
    pub(crate) context: Context,
}

/// Access to the nodes of this host.
#[derive(Debug)]
pub(crate) struct Host {
    stand_ins: BTreeMap<String, PathBuf>,
    /// Whether the kernel also enforces the limit of contexts.
    is_held: bool,
    pace: Pace,
}

/// Limits searches of locks to a tenth of a sandbox's time. During a search the kernel reads all locks of a node, of all processes, and blocks other
/// lock operations. So the sandbox whose program causes the searches waits instead.
#[derive(Debug, Default)]
struct Pace {
    /// End and duration of the last search.
    last: Cell<Option<(Instant, Duration)>>,
}

/// Time without searches, as a multiple of the time of a search.
const REST: u32 = 9;

impl Pace {
    /// Time until the next search may start.
    fn wait(&self, now: Instant) -> Duration {
        self.last.get().map_or(Duration::ZERO, |(ended, took)| {
            let rested = now.saturating_duration_since(ended);
            took.saturating_mul(REST).saturating_sub(rested)
        })
    }

    fn searched(&self, begun: Instant, ended: Instant) {
        self.last
            .set(Some((ended, ended.saturating_duration_since(begun))));
    }
}

/// Number of contexts that this process opened for all sandboxes. Each mark has a unique number.
static OPENED: AtomicU32 = AtomicU32::new(0);

/// Opens a plain file for reading. The kind of the opened file is checked, and opening waits for no writer of a pipe.
pub(crate) fn open_plain_file(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::other("it is not a plain file"))
    }
}

impl Host {
    pub(crate) fn new(policy: &Policy) -> Self {
        Self {
            stand_ins: policy.stand_ins.clone(),
            is_held: policy.objects.is_some(),
            pace: Pace::default(),
        }
    }

    /// The path of a node in this process.
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

    /// Opens a node, and checks that it is the device that was looked up.
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

impl Host {
    /// Whether a context of the node behind `probe` may be open. A node may have no mark, since another sandbox can lock the node.
    fn may_be_open(&self, context: &Context, probe: BorrowedFd<'_>) -> bool {
        context.mark.map_or(!self.is_held, |mark| mark.is_open(probe))
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
        std::thread::sleep(self.pace.wait(Instant::now()));
        let begun = Instant::now();
        // One probe at a time: a device with an open file cannot be removed.
        let paths: BTreeSet<_> = contexts.iter().map(|context| context.path.clone()).collect();
        for path in paths {
            let Ok(probe) = rustix::fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else {
                // If the node does not exist any more, no file is open: the driver waits for the last close.
                contexts.retain(|context| context.path != path || path.exists());
                continue;
            };
            contexts.retain(|context| context.path != path || self.may_be_open(context, probe.as_fd()));
        }
        self.pace.searched(begun, Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;
    use std::path::PathBuf;
    use std::time::Instant;

    use super::{Context, Facts as _, Host, Pace};
    use crate::policy::Policy;

    #[test]
    fn a_context_without_a_mark_counts_if_the_kernel_does_not_hold_the_limit() {
        for (objects, left) in [("", 1), ("\nobjects = 100", 0)] {
            let text = format!("devices = ['null']\nstand_ins = {{ uverbs0 = '/dev/null' }}{objects}");
            let host = Host::new(&Policy::parse(&text).unwrap());
            let path = PathBuf::from("/dev/null");
            let mut contexts = vec![Context { mark: None, path }];
            host.retain_open(&mut contexts);
            assert_eq!(contexts.len(), left, "{objects}");
        }
    }

    #[test]
    fn a_search_takes_a_tenth_of_the_time() {
        let (pace, begun) = (Pace::default(), Instant::now());
        let after = |time| begun + Duration::from_micros(time);
        assert_eq!(pace.wait(begun), Duration::ZERO, "the first one");
        pace.searched(begun, after(100));
        for (now, left) in [(100, 900), (600, 400), (1000, 0), (5000, 0)] {
            assert_eq!(pace.wait(after(now)), Duration::from_micros(left));
        }
        // A short search is followed by the next one soon.
        pace.searched(after(5000), after(5002));
        assert_eq!(pace.wait(after(5002)), Duration::from_micros(18));
    }
}
