//! Events and counts of a member.

use doorbell_core::rank::Rank;
use doorbell_core::session::FinalReason;

/// An event of a mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MeshEvent {
    /// There is a route to this member now.
    Reachable(Rank),
    /// There is no route to this member any more.
    Unreachable(Rank),
    /// The link to this member came back, and not for the first time in short. While there is another way, messages go that way
    /// until the link has been up for [`MeshConfig::hold_down`](super::MeshConfig::hold_down).
    HeldDown(Rank),
    /// This member was started again: messages that were under way between it and this one are lost.
    Restarted(Rank),
    /// A process that claims to be this member, with a start before the last one known, is turned away: the clock of its host
    /// was set back. A process with a later start is let in.
    StartedBefore(Rank),
    /// The start of this member is further ahead than [`MeshConfig::start_ahead_max`](super::MeshConfig::start_ahead_max). It said so
    /// itself, and is turned away; or another member said so, and is not believed. Reported once, until a later start of it is believed.
    StartedAhead(Rank),
    /// A link is over.
    LinkLost {
        /// The member at the other end, if known.
        rank: Option<Rank>,
        /// Why.
        reason: FinalReason,
    },
    /// A peer that is no member was turned away: another mesh, another count of ranks, a rank that is invalid or taken, or
    /// frames of another version. Or its link was up for
    /// [`recover_within`](doorbell_core::session::SessionConfig::recover_within), and it had not said who it is.
    TurnedAway,
}

/// Counts of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MeshCounts {
    /// Messages taken in to be sent.
    pub sent: u64,
    /// Messages that were given to the application, or passed over since their group was given up.
    pub received: u64,
    /// Messages that were retransmitted.
    pub sent_again: u64,
    /// Messages that came twice, or ahead of a lost one: the sender retransmits.
    pub out_of_turn: u64,
    /// Frames passed on for others.
    pub relayed: u64,
    /// Announcements of neighbours that were sent: its own, and those of others that it passed on.
    pub announcements: u64,
    /// Frames dropped: from peers that are no members, with too many hops, without a way, or that acknowledge a message which
    /// was not sent.
    pub dropped: u64,
}
