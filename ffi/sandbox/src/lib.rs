//! The system calls of the broker: a program under a seccomp filter, and what a supervisor needs to answer the calls that the filter traps.
//!
//! Nothing here decides. A supervisor takes a [`Trapped`] call from the [`Listener`], and answers it. A call that it continues is made by the kernel
//! with the rights of the program alone, so that to continue never grants.

#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
compile_error!("the numbers of system calls are those of Linux on x86-64 and aarch64");

mod capabilities;
mod confinement;
mod device;
mod filter;
mod launch;
mod listener;
mod nodes;
mod process;
mod signals;
mod tree;

pub use confinement::Confinement;
pub use device::{DescriptorKind, Doorbell, Driver, Mark, StatForm, node_facts, open_node};
pub use filter::{DOORBELL_BYTES, MaskedArgument, ProfileRule, Reserved, profile_rules};
pub use launch::{Launch, LaunchError, Launched, Network, Step};
pub use listener::{Call, Listener, Trapped};
pub use process::Process;
pub use signals::{BlockedSignals, Received};
pub use tree::{Tree, TreeEntry};
