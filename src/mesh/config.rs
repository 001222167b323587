//! Configuration of a mesh, and its errors.

use core::fmt;
use core::time::Duration;

use doorbell_core::collective::COLLECTIVE_HEADER_BYTES;
use doorbell_core::rank::{RANKS_MAX, Rank};
use doorbell_core::route::RELAY_HEADER_BYTES;

use super::frame::{PAIR_HEADER_BYTES, SHORT_BYTES_MAX};
use crate::link::{LinkConfig, LinkError, SESSION_WINDOW_MAX};

/// Configuration of a mesh. All members have the same `mesh`, `ranks`, `window`, `message_bytes_max` and
/// [`SessionConfig::fragment_bytes`](crate::link::SessionConfig::fragment_bytes).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct MeshConfig {
    /// Rank of this member.
    pub rank: Rank,
    /// Number of members, at most [`RANKS_MAX`].
    pub ranks: u8,
    /// Identifies the mesh. A member of another mesh is rejected.
    pub mesh: u64,
    /// Start of this member, in nanoseconds since 1970. Each start of the member must have a later value, so that the others notice
    /// a restart. A member with an earlier start than the known one is rejected
    /// ([`NotLinked::StartedBefore`](crate::mesh::NotLinked::StartedBefore)).
    pub started: u64,
    /// Limit on how far the start of another member may be ahead of the time here. The time here is `started` plus the time since
    /// [`Mesh::new`](crate::mesh::Mesh::new). Default 5 min, the recommended clock skew of Kerberos (RFC 4120, section 8.2). A later
    /// start is not believed, whichever member reports it ([`NotLinked::StartedAhead`](crate::mesh::NotLinked::StartedAhead)).
    /// Otherwise one announcement of a very late start would lock out that member until all others are restarted. The clocks of members
    /// may not differ by more. If `started` counts in another unit than nanoseconds, the limit has no effect.
    pub start_ahead_max: Duration,
    /// Maximum number of messages in flight to one member: messages that it has not received yet. Default 16. For each pair of members,
    /// the sender and the receiver each keep up to this number of messages. A relay keeps up to four times as many frames, since
    /// some may be retransmitted before the first was passed on.
    pub window: u32,
    /// The longest message, of at least 40 bytes: the header of a collective. Default 16 KiB. With its headers, such a message is
    /// written into memory that the peer lends, or is sent in five fragments. A link has to keep all fragments of a message
    /// ([`LinkConfig::retained`]).
    pub message_bytes_max: usize,
    /// Maximum number of relays on the route of a message. Default 62, the most that the largest mesh can need. Members further away are
    /// unreachable. A line of all members needs `ranks` - 2. With a lower value a broken cable may make members unreachable;
    /// [`Mesh::new`](crate::mesh::Mesh::new) logs a warning.
    pub hops_max: u8,
    /// Time until an unacknowledged message is retransmitted. Default 500 ms. A link loses nothing while it exists. So this time matters
    /// only for messages that were at a lost relay, or were queued on a lost link.
    pub resend_after: Duration,
    /// Longest delay of an acknowledgement to a member, and to the peer of a link, if no message carries it earlier. Default 10 ms, which
    /// is longer than a round of a collective. After half a window of messages an acknowledgement is sent at once. The value must be less
    /// than `resend_after`, and less than a link's [`dead_after`](doorbell_core::session::SessionConfig::dead_after). Otherwise
    /// messages would be retransmitted, and rails given up, without need.
    pub acknowledge_after: Duration,
    /// Time that a flapping link must be up before routes use it again in preference to others. A link flaps if it is lost within this
    /// time after it came back. Default 5 s, RIP's longest wait between triggered updates (RFC 2453, section 3.10.1). With it, a cable
    /// that flaps makes all members recompute their routes twice, and then not again until it is steady. If there is no other route,
    /// the link is used at once.
    pub hold_down: Duration,
    /// Configuration of the links. `acknowledge_after` of the mesh replaces that of their sessions, and `links_per_address` is
    /// at least the number of members. The mesh shares its messages with its links, so each of
    /// [`LinkConfig::retained`](crate::link::LinkConfig::retained) takes 64 bytes.
    pub link: LinkConfig,
}

impl MeshConfig {
    /// Returns the default configuration for the member `rank` of `ranks` members.
    #[must_use]
    pub fn new(rank: Rank, ranks: u8, started: u64) -> Self {
        Self {
            rank,
            ranks,
            mesh: 0,
            started,
            start_ahead_max: Duration::from_secs(300),
            window: 16,
            message_bytes_max: 16 << 10,
            hops_max: RANKS_MAX - 2,
            resend_after: Duration::from_millis(500),
            acknowledge_after: Duration::from_millis(10),
            hold_down: Duration::from_secs(5),
            link: LinkConfig::default(),
        }
    }

    /// Returns the configuration of the links, with the changes that the mesh needs.
    pub(super) fn links(&self) -> LinkConfig {
        let mut link = self.link;
        link.session.acknowledge_after = self.acknowledge_after;
        // All members may be processes of one host.
        link.links_per_address = link.links_per_address.max(self.ranks.into());
        link.stored_bytes_max = SHORT_BYTES_MAX;
        // A mesh joins no transfers.
        link.transfers.transfers_max = 0;
        link
    }

    /// Returns the number of relays between the ends of a line of all members.
    #[must_use]
    pub const fn hops_needed(&self) -> u8 {
        self.ranks.saturating_sub(2)
    }

    /// Returns the length of the longest frame: a message and its headers.
    pub(super) const fn frame_bytes_max(&self) -> usize {
        self.message_bytes_max
            .saturating_add(RELAY_HEADER_BYTES)
            .saturating_add(PAIR_HEADER_BYTES)
    }

    pub(super) fn check(&self) -> Result<(), MeshError> {
        let is_rank = self.ranks <= RANKS_MAX && self.rank.number() < self.ranks;
        if !is_rank {
            return Err(MeshError::NoSuchRank {
                rank: self.rank,
                ranks: self.ranks,
            });
        }
        let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        let rules = [
            ("window", self.window.into(), 1),
            ("hops_max", self.hops_max.into(), 1),
            (
                "message_bytes_max",
                count(self.message_bytes_max),
                count(COLLECTIVE_HEADER_BYTES),
            ),
            (
                "link.message_bytes_max",
                count(self.link.message_bytes_max),
                count(self.frame_bytes_max()),
            ),
            (
                "link.retained",
                self.link.retained.min(SESSION_WINDOW_MAX).into(),
                count(self.frame_bytes_max().div_ceil(self.link.fragment_bytes())),
            ),
            ("link.links_max", self.link.links_max.into(), self.ranks.into()),
        ];
        let broken = rules.into_iter().find(|(_, value, value_min)| value < value_min);
        if let Some((setting, value, value_min)) = broken {
            return Err(MeshError::Configuration {
                setting,
                value,
                value_min,
            });
        }
        let acknowledge_after = self.acknowledge_after;
        let later = [
            ("resend_after", self.resend_after),
            ("link.session.dead_after", self.link.session.dead_after),
        ];
        match later.into_iter().find(|(_, time)| *time <= acknowledge_after) {
            Some((setting, time)) => Err(MeshError::LateAcknowledgements {
                acknowledge_after,
                setting,
                time,
            }),
            None => Ok(()),
        }
    }
}

/// Reason why a mesh cannot be made, or a member cannot be linked.
#[derive(Debug)]
#[non_exhaustive]
pub enum MeshError {
    /// Caller misuse: the mesh has no member of this rank, or it has too many members.
    NoSuchRank {
        /// The rank.
        rank: Rank,
        /// The number of members.
        ranks: u8,
    },
    /// Caller misuse: a setting of [`MeshConfig`] is too low for the mesh.
    Configuration {
        /// The field, with its path from [`MeshConfig`].
        setting: &'static str,
        /// The value of the field.
        value: u64,
        /// The minimum for this mesh.
        value_min: u64,
    },
    /// Caller misuse: acknowledgements would be sent later than messages are retransmitted, or than rails are given up.
    LateAcknowledgements {
        /// [`MeshConfig::acknowledge_after`].
        acknowledge_after: Duration,
        /// The field that has to be longer, with its path from [`MeshConfig`].
        setting: &'static str,
        /// The value of that field.
        time: Duration,
    },
    /// The link could not be begun.
    Link(LinkError),
    /// Caller misuse: the links are being closed, since this member leaves ([`Mesh::is_closing`](crate::mesh::Mesh::is_closing)).
    Closing,
}

impl fmt::Display for MeshError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchRank { rank, ranks } if (1..=RANKS_MAX).contains(ranks) => write!(
                f,
                "rank {rank} is out of range: {ranks} members have ranks 0 to {}",
                ranks.saturating_sub(1)
            ),
            Self::NoSuchRank { ranks, .. } => write!(
                f,
                "a mesh of {ranks} members is not possible: set ranks from 1 to {RANKS_MAX}"
            ),
            Self::Configuration {
                setting,
                value,
                value_min,
            } => write!(
                f,
                "{setting} is {value}, and the mesh needs {value_min} or more: raise {setting}"
            ),
            Self::LateAcknowledgements {
                acknowledge_after,
                setting,
                time,
            } => write!(
                f,
                "acknowledge_after is {acknowledge_after:?}, and {setting} is {time:?}: set acknowledge_after below {setting}"
            ),
            Self::Link(error) => fmt::Display::fmt(error, f),
            Self::Closing => f.write_str("this member is leaving: no new links"),
        }
    }
}

impl core::error::Error for MeshError {}

impl From<LinkError> for MeshError {
    fn from(error: LinkError) -> Self {
        Self::Link(error)
    }
}

/// Reason why a message to a member was not accepted, or none can be received from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MeshSendError {
    /// Back-pressure: the member has not received enough of the earlier messages. Poll, and try again.
    WouldBlock,
    /// There is no route to the member now.
    Unreachable(Rank),
    /// The member was restarted since the group was made.
    Restarted(Rank),
    /// The member gave up the group, and uses a later one.
    Regrouped(Rank),
    /// Caller misuse: there is no such rank, or it is the rank of this member.
    NoSuchRank(Rank),
    /// Caller misuse: more bytes than [`MeshConfig::message_bytes_max`].
    TooLong {
        /// The length of the message.
        bytes: usize,
        /// [`MeshConfig::message_bytes_max`].
        bytes_max: usize,
    },
}

impl fmt::Display for MeshSendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WouldBlock => {
                f.write_str("the member has not taken what was sent before: poll, and try again")
            }
            Self::Unreachable(rank) => write!(f, "no way leads to rank {rank}: see Mesh::not_linked"),
            Self::Restarted(rank) => write!(f, "rank {rank} was started again: make the next group with it"),
            Self::Regrouped(rank) => write!(
                f,
                "rank {rank} gave up the group, and is in a later one: make the next group, too"
            ),
            Self::NoSuchRank(rank) => write!(
                f,
                "rank {rank} is this member, or out of range: name another member"
            ),
            Self::TooLong { bytes, bytes_max } => write!(
                f,
                "the message has {bytes} bytes, and message_bytes_max is {bytes_max}: send less, or raise message_bytes_max"
            ),
        }
    }
}

impl core::error::Error for MeshSendError {}

#[cfg(test)]
mod tests {
    use super::{Duration, MeshConfig, MeshError, PAIR_HEADER_BYTES, RELAY_HEADER_BYTES, Rank};

    #[test]
    fn what_came_is_reported_before_it_goes_again_and_before_rails_are_given_up() {
        let (at, past) = (Duration::from_millis(10), Duration::from_millis(11));
        let is_right = |resend_after, dead_after| {
            let mut config = MeshConfig::new(Rank::FIRST, 2, 0);
            config.acknowledge_after = at;
            config.resend_after = resend_after;
            config.link.session.dead_after = dead_after;
            config.check().is_ok()
        };
        assert!(is_right(past, past));
        assert!(!is_right(at, past));
        assert!(!is_right(past, at));
    }

    #[test]
    fn a_limit_below_what_the_mesh_needs_is_named() {
        let refusal = |change: fn(&mut MeshConfig)| {
            let mut config = MeshConfig::new(Rank::FIRST, 2, 1);
            change(&mut config);
            config.check().err().map(|error| error.to_string())
        };
        assert_eq!(refusal(|_| ()), None);
        let short = refusal(|config| config.message_bytes_max = 39);
        assert_eq!(
            short.as_deref(),
            Some("message_bytes_max is 39, and the mesh needs 40 or more: raise message_bytes_max")
        );
        let two = 2 * 4072 - RELAY_HEADER_BYTES - PAIR_HEADER_BYTES;
        for (bytes, fragments) in [(two, 2), (two + 1, 3)] {
            let mut config = MeshConfig::new(Rank::FIRST, 2, 1);
            config.message_bytes_max = bytes;
            config.link.session.fragment_bytes = 4072;
            config.link.retained = fragments;
            assert!(config.check().is_ok(), "{bytes}");
            config.link.retained = fragments - 1;
            let refused = config.check();
            let Err(MeshError::Configuration {
                setting, value_min, ..
            }) = refused
            else {
                panic!("{refused:?}")
            };
            assert_eq!((setting, value_min), ("link.retained", fragments.into()));
        }
    }

    #[test]
    fn a_mesh_of_too_few_or_too_many_members_is_refused_by_their_number() {
        for ranks in [0, 65, 255] {
            let refused = MeshConfig::new(Rank::FIRST, ranks, 0).check().unwrap_err();
            let expected = format!("a mesh of {ranks} members is not possible: set ranks from 1 to 64");
            assert_eq!(refused.to_string(), expected);
        }
        assert!(MeshConfig::new(Rank::FIRST, 64, 0).check().is_ok());
    }
}
