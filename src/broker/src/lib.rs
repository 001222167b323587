//! The broker for sandboxes: an unmodified verbs program without `/dev/infiniband` reaches the devices that a [`Policy`] allows.
//!
//! The program runs under a seccomp filter. The broker answers the few calls that the filter traps. [`Decider`] decides, without a system call of its own.
//! [`run`] starts a program and supervises it until the last of its processes ended.

mod decider;
mod host;
mod policy;
mod supervisor;

pub use decider::{Decider, Decision, Facts, NodeName, PATH_BYTES, Refusal};
pub use doorbell_sandbox::{LaunchError, Network, Step};
pub use policy::{Policy, PolicyError};
pub use supervisor::{BrokerError, Counts, End, Program, Report, run};
