//! Placement of memory: the wishes, the outcome, and the reasons for unmet wishes.
//!
//! A wish is best effort or required. If a required wish cannot be met, the call fails before it registers anything. If
//! a best-effort wish cannot be met, it is dropped, and the report has the reason.

use core::fmt;

use super::{OnDemand, ProviderError, SettingError};

/// The kind of pages of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pages {
    /// The default pages of the system.
    Ordinary,
    /// Transparent huge pages: the mapping is aligned for them, and the kernel is asked for them. Memory of
    /// at least one such page is rounded up to whole pages; smaller memory only if they are required.
    TransparentHuge,
    /// Pages of 2 MiB from the administrator's pool; the memory is rounded up to whole pages. If there are none and
    /// they are not required, transparent huge pages are used.
    Huge2M,
    /// Pages of 1 GiB, under the same rules.
    Huge1G,
}

/// The NUMA node for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NumaNode {
    /// The node that the thread's policy selects.
    Any,
    /// The node of the device, if the platform reports one.
    OfDevice,
    /// The node of this number.
    Number(u16),
}

/// The requested placement of memory. All memory is written before it is registered, so that the
/// data path does not fault on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlacementConfig {
    /// The kind of pages. Default [`Pages::TransparentHuge`]: the device and the processor need fewer
    /// translations, and no page is taken from a pool that is reserved for others.
    pub pages: Pages,
    /// Whether it is an error if not all memory has such pages. Default no.
    pub pages_required: bool,
    /// Whether the memory is locked, so that the kernel neither swaps nor ages it: on some systems,
    /// pinning by a device does not keep the page tables unchanged. Default yes.
    pub lock: bool,
    /// Whether it is an error if the memory cannot be locked. Default no: the limit for ordinary users
    /// is often 64 KiB.
    pub lock_required: bool,
    /// The node. Default [`NumaNode::OfDevice`]: the device then accesses it without crossing
    /// to another socket.
    pub node: NumaNode,
    /// Whether it is an error if any byte is on another node. Default no.
    pub node_required: bool,
    /// Whether the device faults pages in when it accesses them, instead of pinning them. This is for windows and regions, not for
    /// arenas. Such memory is neither prefaulted nor locked. The kernel may move or swap it, and a request that accesses a page that is
    /// not resident waits for it. Default no. If it is set, it is required
    /// ([`DeviceLimits::on_demand`](super::DeviceLimits::on_demand) shows whether a device supports it). Source: `ibv_reg_mr(3)`.
    pub on_demand: bool,
}

impl PlacementConfig {
    /// The defaults, as a constant.
    pub const DEFAULT: Self = Self {
        pages: Pages::TransparentHuge,
        pages_required: false,
        lock: true,
        lock_required: false,
        node: NumaNode::OfDevice,
        node_required: false,
        on_demand: false,
    };
}

impl Default for PlacementConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The outcome of one wish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there is nothing else it could be")]
pub enum Step {
    /// The step was not requested.
    NotAsked,
    /// The step was done as requested.
    Done,
    /// The step was not done, or only in part.
    Short(Shortfall),
}

/// The reason why a wish was not met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Shortfall {
    /// The system refused.
    Refused(ProviderError),
    /// Not enough huge pages are reserved.
    HugePages {
        /// The size of each page.
        page_bytes: usize,
        /// The number of needed pages.
        needed: usize,
        /// The number of free and unreserved pages, if the system reports it.
        free: Option<usize>,
        /// The error number.
        errno: i32,
    },
    /// The process has reached its limit on locked memory (`RLIMIT_MEMLOCK`).
    LockLimit {
        /// The bytes to lock.
        needed_bytes: usize,
        /// The bytes that the process has already locked.
        locked_bytes: u64,
        /// The limit.
        limit_bytes: u64,
        /// The error number.
        errno: i32,
    },
    /// The memory is smaller than one such page.
    TooSmall {
        /// The size of such a page.
        page_bytes: usize,
    },
    /// The system met the wish only in part.
    Partly {
        /// The mapped bytes for which it was met.
        bytes: usize,
    },
    /// The platform does not report the node of the device.
    NodeUnknown,
    /// The system does not report whether the wish was met.
    NotShown,
    /// The device does not support it for some operations.
    Operations {
        /// The operations that lack it.
        lacks: OnDemand,
    },
    /// This platform or provider does not support it.
    NotProvided,
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Refused(error) => fmt::Display::fmt(&error, f),
            Self::HugePages {
                page_bytes,
                needed,
                free,
                errno,
            } => {
                write!(
                    f,
                    "{needed} huge pages of {} are needed",
                    Bytes(page_bytes as u64)
                )?;
                if let Some(free) = free {
                    write!(f, ", free are {free}")?;
                }
                let kib = page_bytes / 1024;
                write!(
                    f,
                    ": raise /proc/sys/vm/nr_hugepages, or \
                     /sys/kernel/mm/hugepages/hugepages-{kib}kB/nr_hugepages (errno {errno})"
                )
            }
            Self::LockLimit {
                needed_bytes,
                locked_bytes,
                limit_bytes,
                errno,
            } => write!(
                f,
                "{} more locked memory exceeds RLIMIT_MEMLOCK: {} of {} in use; raise `ulimit -l` (errno {errno})",
                Bytes(needed_bytes as u64),
                Bytes(locked_bytes),
                Bytes(limit_bytes)
            ),
            Self::TooSmall { page_bytes } => {
                write!(f, "it is smaller than one page of {}", Bytes(page_bytes as u64))
            }
            Self::Partly { bytes } => write!(f, "only {} of it", Bytes(bytes as u64)),
            Self::NodeUnknown => f.write_str("the node of the device is not known"),
            Self::NotShown => f.write_str("the system does not show whether it was done"),
            Self::Operations { lacks } => write!(f, "the device has none for {lacks}"),
            Self::NotProvided => f.write_str("there is no such thing here"),
        }
    }
}

/// A wish, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wish {
    /// [`PlacementConfig::pages`].
    Pages(Pages),
    /// [`PlacementConfig::lock`].
    Lock,
    /// [`PlacementConfig::node`], with its number if known.
    Node(Option<u16>),
    /// [`PlacementConfig::on_demand`].
    OnDemand,
}

impl fmt::Display for Wish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pages(Pages::Ordinary) => f.write_str("ordinary pages"),
            Self::Pages(Pages::TransparentHuge) => f.write_str("transparent huge pages"),
            Self::Pages(Pages::Huge2M) => f.write_str("huge pages of 2 MiB"),
            Self::Pages(Pages::Huge1G) => f.write_str("huge pages of 1 GiB"),
            Self::Lock => f.write_str("locked memory"),
            Self::Node(Some(node)) => write!(f, "memory of NUMA node {node}"),
            Self::Node(None) => f.write_str("memory of the device's NUMA node"),
            Self::OnDemand => f.write_str("on-demand paging"),
        }
    }
}

/// The reason why memory could not be provided as requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryError {
    /// A call failed, or the sizes are invalid.
    Provider(ProviderError),
    /// A required wish was not met. The call undid its earlier steps.
    Unmet(Wish, Shortfall),
    /// Caller misuse: a setting is out of its range.
    Setting(SettingError),
    /// Caller misuse; the text says how to call it.
    Misuse(&'static str),
    /// A state that doorbell's own code rules out. The text names it for a bug report.
    Unreachable(&'static str),
}

impl fmt::Display for MemoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Provider(error) => fmt::Display::fmt(error, f),
            Self::Unmet(wish, why) => write!(f, "cannot provide the required {wish}: {why}"),
            Self::Setting(error) => fmt::Display::fmt(error, f),
            Self::Misuse(text) => f.write_str(text),
            Self::Unreachable(state) => write!(f, "bug in doorbell, please report it: {state}"),
        }
    }
}

impl core::error::Error for MemoryError {}

impl From<SettingError> for MemoryError {
    fn from(error: SettingError) -> Self {
        Self::Setting(error)
    }
}

impl From<ProviderError> for MemoryError {
    fn from(error: ProviderError) -> Self {
        Self::Provider(error)
    }
}

/// The placement of memory: the request, and the outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Placement {
    /// The placement that was requested.
    pub asked: PlacementConfig,
    /// The requested node, if one was requested.
    pub node_asked: Option<u16>,
    /// The requested bytes.
    pub bytes: usize,
    /// The mapped bytes: whole pages.
    pub mapped_bytes: usize,
    /// The outcome for the pages.
    pub pages: Step,
    /// The outcome for the lock.
    pub lock: Step,
    /// The outcome for the node.
    pub node: Step,
    /// The kernel's report on the mapping after set-up. `None` if the system has no report, or only one that includes
    /// other memory.
    pub seen: Option<Seen>,
}

/// The kernel's report on a mapping.
///
/// Source: `proc_pid_smaps(5)`, `numa(7)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The page size of the mapping. Transparent huge pages show only in `huge_bytes`.
    pub page_bytes: usize,
    /// The bytes in huge pages, reserved or transparent.
    pub huge_bytes: usize,
    /// The resident bytes.
    pub resident_bytes: usize,
    /// Whether the memory is locked.
    pub locked: bool,
    /// The node of all of the memory, if it is on one node and the kernel reports it.
    pub node: Option<u16>,
}

impl Placement {
    /// The placement of memory for which nothing was requested.
    #[must_use]
    pub const fn unplaced(bytes: usize, mapped_bytes: usize) -> Self {
        let mut asked = PlacementConfig::DEFAULT;
        asked.pages = Pages::Ordinary;
        asked.lock = false;
        asked.node = NumaNode::Any;
        Self {
            asked,
            node_asked: None,
            bytes,
            mapped_bytes,
            pages: Step::NotAsked,
            lock: Step::NotAsked,
            node: Step::NotAsked,
            seen: None,
        }
    }

    /// Returns the unmet wishes, each with its reason.
    pub fn shortfalls(&self) -> impl Iterator<Item = (Wish, Shortfall)> {
        self.wishes()
            .into_iter()
            .filter_map(|(wish, step, _)| match step {
                Step::Short(why) => Some((wish, why)),
                Step::NotAsked | Step::Done => None,
            })
    }

    /// Fails if a required wish was not met.
    ///
    /// # Errors
    /// The first such wish, with the reason.
    pub fn check(&self) -> Result<(), MemoryError> {
        for (wish, step, required) in self.wishes() {
            if let (Step::Short(why), true) = (step, required) {
                return Err(MemoryError::Unmet(wish, why));
            }
        }
        Ok(())
    }

    const fn wishes(&self) -> [(Wish, Step, bool); 3] {
        let asked = &self.asked;
        [
            (Wish::Pages(asked.pages), self.pages, asked.pages_required),
            (Wish::Lock, self.lock, asked.lock_required),
            (Wish::Node(self.node_asked), self.node, asked.node_required),
        ]
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} asked, {} mapped",
            Bytes(self.bytes as u64),
            Bytes(self.mapped_bytes as u64)
        )?;
        if let Some(seen) = &self.seen {
            write!(
                f,
                ", {} in place, {} in huge pages, by pages of {}",
                Bytes(seen.resident_bytes as u64),
                Bytes(seen.huge_bytes as u64),
                Bytes(seen.page_bytes as u64)
            )?;
            f.write_str(if seen.locked { ", locked" } else { ", not locked" })?;
            if let Some(node) = seen.node {
                write!(f, ", on NUMA node {node}")?;
            }
        }
        for (wish, why) in self.shortfalls() {
            write!(f, "; not {wish}: {why}")?;
        }
        Ok(())
    }
}

/// Displays bytes in the largest unit without a remainder.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        let whole = UNITS
            .into_iter()
            .filter(|(unit, _)| self.0 != 0 && self.0.checked_rem(*unit) == Some(0))
            .find_map(|(unit, name)| Some((self.0.checked_div(unit)?, name)));
        match whole {
            Some((count, name)) => write!(f, "{count} {name}"),
            None => write!(f, "{} bytes", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Bytes, MemoryError, Pages, Placement, Seen, Shortfall, Step, Wish};
    use crate::provider::ProviderError;
    use std::string::ToString;

    #[test]
    fn what_is_required_and_not_met_is_an_error() {
        let refused = Shortfall::Refused(ProviderError {
            call: "mbind",
            errno: 22,
        });
        let mut placement = Placement::unplaced(100, 4096);
        assert_eq!(placement.check(), Ok(()));
        assert_eq!(placement.shortfalls().count(), 0);
        placement.node = Step::Short(refused);
        placement.node_asked = Some(3);
        assert_eq!(placement.check(), Ok(()));
        assert!(placement.shortfalls().eq([(Wish::Node(Some(3)), refused)]));
        placement.asked.node_required = true;
        assert_eq!(
            placement.check(),
            Err(MemoryError::Unmet(Wish::Node(Some(3)), refused))
        );
        placement.node = Step::Done;
        assert_eq!(placement.check(), Ok(()));
    }

    #[test]
    fn errors_name_what_to_change() {
        let pages = Shortfall::HugePages {
            page_bytes: 2 << 20,
            needed: 3,
            free: Some(1),
            errno: 12,
        };
        assert_eq!(
            MemoryError::Unmet(Wish::Pages(Pages::Huge2M), pages).to_string(),
            "cannot provide the required huge pages of 2 MiB: 3 huge pages of 2 MiB are needed, free are 1: \
             raise /proc/sys/vm/nr_hugepages, or /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages \
             (errno 12)"
        );
        let limit = Shortfall::LockLimit {
            needed_bytes: 4 << 20,
            locked_bytes: 0,
            limit_bytes: 64 << 10,
            errno: 12,
        };
        assert_eq!(
            MemoryError::Unmet(Wish::Lock, limit).to_string(),
            "cannot provide the required locked memory: 4 MiB more locked memory exceeds RLIMIT_MEMLOCK: 0 bytes of 64 KiB in use; \
             raise `ulimit -l` (errno 12)"
        );
    }

    #[test]
    fn a_report_says_what_is_and_what_is_not() {
        let mut placement = Placement::unplaced(3 << 20, 4 << 20);
        placement.asked.pages = Pages::TransparentHuge;
        placement.pages = Step::Short(Shortfall::Partly { bytes: 2 << 20 });
        placement.seen = Some(Seen {
            page_bytes: 4096,
            huge_bytes: 2 << 20,
            resident_bytes: 4 << 20,
            locked: true,
            node: Some(0),
        });
        assert_eq!(
            placement.to_string(),
            "3 MiB asked, 4 MiB mapped, 4 MiB in place, 2 MiB in huge pages, by pages of 4 KiB, locked, \
             on NUMA node 0; not transparent huge pages: only 2 MiB of it"
        );
        assert_eq!(Bytes(1 << 30).to_string(), "1 GiB");
        assert_eq!(Bytes(1000).to_string(), "1000 bytes");
    }
}
