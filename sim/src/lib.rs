//! A simulated RDMA fabric: the provider traits of `doorbell-core`, without a device.
//!
//! A [`Fabric`] holds hosts, and each [`Host`] is a provider with devices and ports of its
//! own. What is above the traits runs on it unchanged, on any machine, the same each time.
//!
//! # What it is
//! The fabric is lossless and has no clock and no threads. **A ring of the doorbell carries
//! out all it can before it returns**: messages are delivered, completions lie in their
//! queues. What then remains waits for a receive of the peer (`rnr_retry` of 7), and is
//! carried out when the peer posts one. Calls from several threads are taken one at a time,
//! so each behaves as if it were alone.
//!
//! # What it is not
//! Nothing is lost, delayed, reordered or repeated, and no timer runs: a peer that does not
//! answer ends a request with `RETRY_EXC_ERR` at once, and a receiver that is not ready with
//! `RNR_RETRY_EXC_ERR`, unless it may be retried without end. There are no descriptors:
//! completion queues can be armed and slept at, which alone takes real time, but not put into
//! an event loop. Vendors' error words are zero.

mod completion;
mod errno;
mod fabric;
mod host;
mod memory;
mod port;
mod queue_pair;
mod receive;
mod requester;
mod responder;
mod send;
mod shared_receive;
mod transport;

pub use completion::{Completion, CompletionQueue};
pub use fabric::Fabric;
pub use host::{Context, Host, ProtectionDomain};
pub use memory::{Arena, Attacher, Slot, Window};
pub use port::{ConfigError, Link, PortConfig};
pub use queue_pair::QueuePair;
pub use receive::{ReceiveBatch, ReceiveQueue};
pub use send::{SendBatch, SendQueue};
pub use shared_receive::{SharedReceiveBatch, SharedReceiveQueue};
