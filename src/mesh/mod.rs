//! Meshes: members by rank, each with links to those it shares a subnet with, and messages in order to all of them.
//!
//! A member that shares no subnet with another reaches it through others (`doorbell_core::route`). A message is kept until the
//! member it is for has it, and is retransmitted if a member between is lost. [`Group`] does collectives over the mesh.
//!
//! The mesh is polled, and has no socket, thread or clock of its own. It copies the messages that it carries: engines that
//! cannot afford that use the channels beneath.

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
pub use doorbell_core::collective::{Collective, CollectiveError, CollectiveHeader, Data, block_bytes};
pub use doorbell_core::rank::{RANKS_MAX, Rank, Ranks};
pub use group::{Group, GroupError, Running};
pub use leaving::Leaving;
pub use member::MeshMemberCounts;
pub use membership::{Mesh, MeshCounts, MeshEvent};
pub use unlinked::NotLinked;
