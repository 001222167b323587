//! Meshes: members identified by rank, and ordered messages from each member to all others.
//!
//! Each member has a link to every member that it shares a subnet with. Messages to other members are relayed
//! (`doorbell_core::route`). The sender keeps a message until the receiver acknowledges it, and retransmits it if a relay is lost.
//! [`Group`] runs collectives over the mesh.
//!
//! The mesh is polled, and has no socket, thread or clock of its own. It copies the messages that it carries. Engines that
//! cannot afford the copy use channels directly.
//!
//! # Routes
//! Two members are neighbours if both announce it. A member also announces which of its links have no rail now. Messages avoid
//! such a link if there is another route. While the maps of all members agree, each hop brings a message nearer to its destination.
//! While they differ, a message may loop; the limit of hops drops it. A flapping link is announced as a link without a rail for
//! some time ([`MeshConfig::hold_down`]).
//!
//! # Messages
//! The sender stores a message once and shares it with its links, which copy each fragment when they send it. Two kinds of frames are
//! copied whole instead: frames of up to 64 bytes, and frames of more than
//! [`LinkConfig::place_messages_over`](crate::link::LinkConfig::place_messages_over) bytes, which are written into the peer's memory.
//!
//! A message is retransmitted if its route changes, if the route to a relay on it changes, or if no acknowledgement arrives for
//! [`MeshConfig::resend_after`]. The receiver drops duplicates. Each message in the other direction carries an acknowledgement. So a
//! message that is answered costs only two packets: its SEND, and the transport's acknowledgement. The window of each pair of members
//! limits the frames that a relay may have to hold. So a relay always accepts frames, and rings of members cannot deadlock.
//!
//! # Starts
//! A member that was restarted announces a later start. Messages that were in flight between it and this member are lost, and an event
//! reports it. A member with an earlier start than the known one is rejected, since the clock of its host was set back. A start too
//! far ahead is not believed ([`MeshConfig::start_ahead_max`]), so that a wrong start cannot lock out the member for long.
//! [`Mesh::not_linked`] returns the reasons.

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
pub use doorbell_core::collective::{
    Collective, CollectiveError, CollectiveHeader, CollectiveMisuse, Data, block_bytes,
};
pub use doorbell_core::rank::{RANKS_MAX, Rank, Ranks};
pub use doorbell_core::route::{Map, Routes};
pub use event::{MeshCounts, MeshEvent};
pub use group::{Group, GroupError, Running};
pub use leaving::Leaving;
pub use member::MeshMemberCounts;
pub use membership::Mesh;
pub use unlinked::NotLinked;
