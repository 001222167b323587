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
    /// The link to this member flaps: it came back soon after an earlier loss. If there is another route, messages use that route
    /// until the link has been up for [`MeshConfig::hold_down`](super::MeshConfig::hold_down).
    HeldDown(Rank),
    /// This member was restarted. Messages that were in flight between it and this member are lost. The member is unreachable at this
    /// moment: [`MeshEvent::Unreachable`] was reported before if it was reachable, and [`MeshEvent::Reachable`] follows when there is a
    /// route to the new start.
    Restarted(Rank),
    /// A process that claims to be this member has an earlier start than the known one, and is rejected. The clock of its host
    /// was set back. A process with a later start is accepted.
    StartedBefore(Rank),
    /// The start of this member is further ahead than [`MeshConfig::start_ahead_max`](super::MeshConfig::start_ahead_max). The member
    /// announced it itself, and is rejected; or another member announced it, and the announcement is ignored. The event is reported once,
    /// until a later start of the member is believed.
    StartedAhead(Rank),
    /// A link has ended.
    LinkLost {
        /// The member at the other end, if known.
        rank: Option<Rank>,
        /// The reason.
        reason: FinalReason,
    },
    /// A peer that is not a member was rejected. Its mesh or its number of ranks differs, its rank is invalid or taken, or its frames
    /// have another version. Or its link was up for
    /// [`recover_within`](doorbell_core::session::SessionConfig::recover_within) without a Join.
    TurnedAway,
}

/// Counts of this member of a mesh.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MeshCounts {
    /// Messages that were accepted for sending.
    pub sent: u64,
    /// Messages that the application received, or that were dropped since their group was given up.
    pub received: u64,
    /// Messages that were retransmitted.
    pub sent_again: u64,
    /// Messages that arrived twice, or ahead of a lost message. They are dropped, and the sender retransmits what is missing.
    pub out_of_turn: u64,
    /// Frames that were relayed for others.
    pub relayed: u64,
    /// Announcements of neighbours that were sent: those of this member, and those of others that it passed on.
    pub announcements: u64,
    /// Frames that were dropped. They came from peers that are no members, were invalid, had no hops left or no route, or acknowledged a
    /// message that was not sent.
    pub dropped: u64,
}
