//! The broker for sandboxes: an unmodified verbs program without access to `/dev/infiniband` can use the devices that a [`Policy`] allows.
//!
//! The program runs under a seccomp filter, which traps a few system calls. The broker answers them. [`Decider`] makes the decisions, without system
//! calls. [`run`] starts a program and supervises it until its last process has ended.

mod container_state;
mod containers;
mod decider;
mod host;
mod limits;
mod policies;
mod policy;
mod profile;
mod sandbox;
mod supervisor;
mod topology;

pub use container_state::StateError;
pub use containers::{ContainerRefusal, Event, ListenError, Listening, listen};
pub use decider::{Decider, Decision, Facts, NodeName, PATH_BYTES, Refusal};
pub use doorbell_sandbox::{LaunchError, Network, Step};
pub use limits::LimitsError;
pub use policies::PoliciesError;
pub use policy::{Policy, PolicyError};
pub use profile::{Profile, ProfileError, container_profile};
pub use sandbox::Counts;
pub use supervisor::{BrokerError, End, Program, Report, run};
pub use topology::{TopologyError, write_topology};

#[cfg(test)]
mod tests;
