//! Errors of memory registration.

use core::fmt;

use doorbell_core::provider::{MemoryError, ProviderError};

/// A caller asked for a window or a region without a byte.
pub(crate) const NO_BYTES: MemoryError =
    MemoryError::Misuse("cannot register 0 bytes of memory: ask for 1 byte or more");

/// Reason why memory was not registered. The cache may have evicted unused registrations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RegistrationError {
    /// Caller misuse: the region is empty, it ends after the last address, or `LentMemory::region` does not always return the
    /// same region.
    Region {
        /// The size of the region in bytes.
        bytes: usize,
    },
    /// Caller misuse: a remote access right was requested. A cached key would stay valid for the peer after the memory was
    /// returned. For access by peers use a window ([`Worker::adopt_window`](crate::worker::Worker::adopt_window)) or a transfer.
    RemoteAccess,
    /// The limit on locked memory is reached, and the cache has no unused registrations left to evict.
    LockedMemory {
        /// Bytes that were to be registered.
        needed_bytes: u64,
        /// Bytes that the process has pinned already, if the system reports it.
        pinned_bytes: Option<u64>,
        /// The soft limit, `RLIMIT_MEMLOCK`.
        limit_bytes: u64,
    },
    /// The device refused. `EFAULT` means that not all of the region is mapped with the requested rights.
    Device(ProviderError),
}

impl fmt::Display for RegistrationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Region { bytes } => write!(
                f,
                "cannot register a region of {bytes} bytes that is empty, passes the last address, or changes: lend 1 byte or more \
                 that stay where they are"
            ),
            Self::RemoteAccess => f.write_str(
                "a cached registration cannot grant access to a peer; make a window of the memory instead",
            ),
            Self::LockedMemory {
                needed_bytes,
                pinned_bytes,
                limit_bytes,
            } => {
                write!(
                    f,
                    "registering {needed_bytes} bytes exceeds RLIMIT_MEMLOCK of {limit_bytes} bytes"
                )?;
                if let Some(pinned) = pinned_bytes {
                    write!(f, ", of which {pinned} are pinned")?;
                }
                f.write_str(
                    "; raise it with `ulimit -l unlimited`, or `LimitMEMLOCK=infinity` in a unit of systemd",
                )
            }
            Self::Device(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for RegistrationError {}

/// Reason why a cache does not watch changes of mappings. Such a cache keeps only registrations of memory that is promised to
/// stay mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnwatchedError {
    /// A call failed when the cache was made, or up to a second before. A cache that is made later tries again.
    Provider(ProviderError),
    /// When the cache was made, the process already had the maximum number of watching caches.
    TooManyCaches {
        /// The limit.
        caches_max: usize,
    },
}

impl fmt::Display for UnwatchedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Provider(error) => error.fmt(f),
            Self::TooManyCaches { caches_max } => write!(
                f,
                "the process has {caches_max} of {caches_max} registration caches that are watched: drop some, and make this one anew"
            ),
        }
    }
}

impl core::error::Error for UnwatchedError {}

/// Memory that was not registered, returned with the reason.
pub struct RegistrationRefused<M> {
    /// The memory.
    pub memory: M,
    /// The reason.
    pub error: RegistrationError,
}

impl<M> fmt::Debug for RegistrationRefused<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RegistrationRefused").field(&self.error).finish()
    }
}

impl<M> fmt::Display for RegistrationRefused<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<M> core::error::Error for RegistrationRefused<M> {}
