//! Meshes: members by rank, each with links to those it shares a subnet with, and messages in order to all of them.
//!
//! A member that shares no subnet with another reaches it through others (`doorbell_core::route`). A message is kept until the
//! member it is for has it, and is retransmitted if a member between is lost. [`Group`] does collectives over the mesh.
//!
//! The mesh is polled, and has no socket, thread or clock of its own. It copies the messages that it carries: engines that
//! cannot afford that use the channels beneath.
//!
//! # Routes
//! Two members are neighbours if both announce it. A member names to its neighbours the links that have no rail for now, and
//! messages go round such a link if there is another route. At each hop the rest of the route is one hop shorter, as long as the
//! maps of the members agree; while they do not, a limit of hops drops the message. A link that flaps counts as without a rail
//! for a while ([`MeshConfig::hold_down`]).
//!
//! # Messages
//! The sender stores a message once, and its links share it: each fragment is copied when it is sent. A link copies a frame of up to 64 bytes,
//! and one of more than [`LinkConfig::place_messages_over`](crate::link::LinkConfig::place_messages_over) bytes, which is written into the
//! peer's memory.
//!
//! A message is retransmitted if its route changes, if the route to a member on it changes, or if nothing is heard for
//! [`MeshConfig::resend_after`]. The receiver drops duplicates. Each message that goes back carries an acknowledgement, so an
//! answered message costs two packets: its SEND and the transport's acknowledgement. The window of each pair of members bounds
//! the frames that a relay may have to hold. So a relay always takes a frame in, and rings of members cannot lock up.
//!
//! # Starts
//! A member that was started again announces a later start. Messages that were under way with it are lost, and reported. A member
//! with an earlier start than is known is turned away, since the clock of its host was set back. A start too far ahead is not
//! believed ([`MeshConfig::start_ahead_max`]), so a false one bars nobody for longer. [`Mesh::not_linked`] returns the reasons.

mod config;
mod discovery;
mod event;
mod frame;
mod group;
mod hear;
mod hold_down;
#[cfg(any(test, fuzzing))]
pub mod hostile;
mod leaving;
mod member;
mod membership;
mod neighbour;
mod pool;
mod relay;
mod say;
mod sleeping;
mod state;
mod unlinked;
mod ways;

pub use config::{MeshConfig, MeshError, MeshSendError};
pub use doorbell_core::collective::{Collective, CollectiveError, CollectiveHeader, Data, block_bytes};
pub use doorbell_core::rank::{RANKS_MAX, Rank, Ranks};
pub use doorbell_core::route::{Map, Routes};
pub use event::{MeshCounts, MeshEvent};
pub use group::{Group, GroupError, Running};
pub use leaving::Leaving;
pub use member::MeshMemberCounts;
pub use membership::Mesh;
pub use unlinked::NotLinked;
