//! Names: of nodes, jobs and endpoints.

use core::fmt;
use core::num::NonZeroU32;

/// Number of a node, given to its daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeNumber(pub u32);

/// Number of a job: processes that may exchange messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobNumber(pub u64);

/// Secret of a job. The first process of a job on a node sets it, and the others have to have it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct JobKey(pub [u8; 16]);

impl fmt::Debug for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JobKey(..)")
    }
}

/// Address of an endpoint within its job: its node, and its number there, as the rank of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointAddress {
    /// The node.
    pub node: NodeNumber,
    /// The number on the node.
    pub endpoint: u32,
}

impl fmt::Display for EndpointAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "endpoint {} of node {}", self.endpoint, self.node.0)
    }
}

/// The process behind a socket, as the kernel knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its number. `None` if it is in a namespace that the daemon does not see into.
    pub pid: Option<NonZeroU32>,
}
