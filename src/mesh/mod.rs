//! Meshes: members by rank, each with links to those it shares a subnet with, and messages in order to all of them.
//!
//! Who shares no subnet with another reaches it through others (`doorbell_core::route`). What is sent is kept until the
//! member it is for has it, and goes again where somebody between is lost. [`Group`] does collectives over it.
//!
//! It is polled, and has no socket, thread or clock of its own. It copies what it carries: engines that cannot afford that use the
//! channels beneath.

mod config;
mod frame;
mod group;
mod hear;
mod hold_down;
#[cfg(test)]
mod hostile;
mod leaving;
mod member;
mod membership;
mod neighbour;
mod pool;
mod relay;
mod say;
mod seek;
mod state;
mod unlinked;
mod ways;

pub use config::{MeshConfig, MeshError, MeshSendError};
pub use group::{Group, GroupError, Running};
pub use leaving::Leaving;
pub use member::MeshMemberCounts;
pub use membership::{Mesh, MeshCounts, MeshEvent};
pub use unlinked::NotLinked;
