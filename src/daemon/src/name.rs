//! Numbers of nodes and jobs, and addresses of endpoints.

use core::fmt;
use core::hint::black_box;
use core::num::NonZeroU32;

/// Number of a node, configured for its daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeNumber(pub u32);

/// Number of a job. Only processes of one job exchange messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobNumber(pub u64);

/// Secret of a job. A file has it ([`JobKeys`](crate::JobKeys)), or the first process of the job on a node sets it. Later processes have to
/// present it.
#[derive(Clone, Copy, Eq)]
pub struct JobKey(pub [u8; 16]);

impl PartialEq for JobKey {
    /// Compares in a time that does not depend on the keys.
    fn eq(&self, other: &Self) -> bool {
        let different = u128::from_ne_bytes(self.0) ^ u128::from_ne_bytes(other.0);
        // `black_box` makes the compiler compute all bits, instead of comparing a part first.
        black_box(different) == 0
    }
}

impl fmt::Debug for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JobKey(..)")
    }
}

/// Address of an endpoint within its job: its node, and its number there, for example the rank of a
/// process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointAddress {
    /// The node.
    pub node: NodeNumber,
    /// The number of the endpoint on the node.
    pub endpoint: u32,
}

impl fmt::Display for EndpointAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "endpoint {} of node {}", self.endpoint, self.node.0)
    }
}

/// Credentials of the process behind a socket, as the kernel reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The user ID.
    pub uid: u32,
    /// The group ID.
    pub gid: u32,
    /// The process ID. `None` if the process is in a PID namespace that the daemon cannot see.
    pub pid: Option<NonZeroU32>,
}
