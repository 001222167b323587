//! A case of a mesh: members, the subnets they share, how each is made, and what they do.

use core::time::Duration;

use doorbell::mesh::{Collective, MeshConfig, Rank};
use serde::{Deserialize, Serialize};

/// Members of a mesh, on a host each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MeshCase {
    /// The members in each subnet, a bit each. Device `simK` of a member is in the K-th.
    pub(crate) subnets: Vec<u8>,
    pub(crate) members: Vec<MemberCase>,
    pub(crate) window: u32,
    pub(crate) message_bytes_max: u32,
    pub(crate) fragment_bytes: u32,
    pub(crate) hops_max: u8,
    pub(crate) recover_within_ns: u64,
    pub(crate) start_ahead_max_ns: u64,
    /// The longest back-off of links and of members that are sought.
    pub(crate) backoff_ns: u64,
    /// Handshakes from one address at most.
    pub(crate) per_address: u32,
    pub(crate) has_keys: bool,
    /// The time between two polls of the members, where something happens meanwhile.
    pub(crate) polls_every_ns: u64,
    /// In the order in which they are tried. A step that cannot be done then is passed over.
    pub(crate) steps: Vec<MeshStep>,
}

/// One member: in each of these it may differ from the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemberCase {
    pub(crate) depth: u32,
    pub(crate) retained: u32,
    pub(crate) ahead: u32,
    pub(crate) resend_after_ns: u64,
    pub(crate) acknowledge_after_ns: u64,
    pub(crate) hold_down_ns: u64,
    /// How far its clock is ahead of the one that is furthest behind.
    pub(crate) clock_ahead_ns: u64,
    /// It finds others by their addresses, and not by handles.
    pub(crate) is_seeking: bool,
    /// Messages of each other member that it takes in one poll at most.
    pub(crate) takes: u32,
}

/// Something that members do, or that is done to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum MeshStep {
    /// Time passes.
    Pass { ns: u64 },
    /// So many messages from one to another.
    Send {
        from: u8,
        to: u8,
        count: u16,
        bytes: u16,
    },
    /// So many messages from each to each.
    Everyone { count: u16, bytes: u16 },
    /// The process stands still for so long, and its device does not.
    Stop { member: u8, ns: u64 },
    /// The application takes no messages for so long.
    Hold { member: u8, ns: u64 },
    /// The process is gone.
    Crash { member: u8, is_awaited: bool },
    /// Another process takes its place, which started then.
    Restart { member: u8, start: Start },
    /// All members do a collective.
    Collective(CollectiveCase),
    /// Somebody who is no member links to this one.
    Stranger { target: u8, what: Strange },
    /// So many streams from one address that say nothing.
    Flood { target: u8, streams: u8 },
    /// All cables between two are cut for so long; twice in short where it flaps.
    Cut {
        one: u8,
        other: u8,
        ns: u64,
        is_again: bool,
    },
    /// All others send to one member as fast as they may, for so long.
    Flow { to: u8, ns: u64 },
}

/// When a process says that it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Start {
    /// By its clock.
    Now,
    /// Before the process that was there, since its clock was set back; then by its clock.
    Before,
    /// Too far ahead; then by its clock.
    Ahead,
}

/// A collective, and what disturbs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CollectiveCase {
    pub(crate) what: CollectiveKind,
    pub(crate) elements: u32,
    pub(crate) element_bytes: u8,
    /// This member begins so much later.
    pub(crate) late: u8,
    pub(crate) lag_ns: u64,
    #[serde(default)]
    pub(crate) trouble: CollectiveTrouble,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum CollectiveKind {
    Barrier,
    Broadcast { root: u8 },
    AllGather,
    ReduceScatter,
    AllReduce,
    AllToAll,
}

/// Trouble in a collective.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum CollectiveTrouble {
    #[default]
    None,
    /// A member is started again, so much later.
    Restart { member: u8, after_ns: u64 },
    /// A member gives up alone, and makes the next group.
    Alone { member: u8, after_ns: u64 },
    /// A member brings an element more.
    Longer { member: u8 },
}

/// Somebody who is no member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Strange {
    OtherMesh,
    OtherCount,
    /// It says that it is a member that is linked.
    Taken {
        rank: u8,
    },
    WrongKey,
    UnknownKey,
    NoKey,
}

impl CollectiveKind {
    pub(crate) fn collective(self) -> Collective {
        match self {
            Self::Barrier => Collective::Barrier,
            Self::Broadcast { root } => Collective::Broadcast(rank(root.into())),
            Self::AllGather => Collective::AllGather,
            Self::ReduceScatter => Collective::ReduceScatter,
            Self::AllReduce => Collective::AllReduce,
            Self::AllToAll => Collective::AllToAll,
        }
    }
}

/// The rank with this number, of a member of a case.
pub(crate) fn rank(number: usize) -> Rank {
    Rank::new(number as u8).unwrap_or(Rank::FIRST)
}

impl MeshCase {
    pub(crate) fn ranks(&self) -> usize {
        self.members.len()
    }

    /// Whether a subnet has both.
    pub(crate) fn shares(&self, one: usize, other: usize) -> bool {
        let both = 1 << one | 1 << other;
        self.subnets.iter().any(|members| members & both == both)
    }

    /// The subnets of a member.
    pub(crate) fn subnets_of(&self, member: usize) -> impl Iterator<Item = usize> {
        let subnets = self.subnets.iter().enumerate();
        subnets.filter_map(move |(subnet, members)| (members >> member & 1 == 1).then_some(subnet))
    }

    /// How far it is from one to all others, through those that are there.
    pub(crate) fn hops(&self, from: usize, is_there: &[bool]) -> Vec<Option<u8>> {
        self.hops_by(from, |at, to| is_there[to] && self.shares(at, to))
    }

    /// How far it is from one to another without what is between two others.
    pub(crate) fn hops_without(
        &self,
        [one, other]: [usize; 2],
        [from, to]: [usize; 2],
        is_there: &[bool],
    ) -> Option<u8> {
        let leads = |at: usize, to: usize| {
            let is_it = (at, to) == (one, other) || (at, to) == (other, one);
            !is_it && is_there[to] && self.shares(at, to)
        };
        self.hops_by(from, leads)[to]
    }

    /// How far it is from one to all others, by the steps that lead from a member to the next.
    pub(crate) fn hops_by(&self, from: usize, leads: impl Fn(usize, usize) -> bool) -> Vec<Option<u8>> {
        let mut hops = vec![None; self.ranks()];
        let mut edge = vec![from];
        let mut far = 0;
        while !edge.is_empty() {
            edge.iter().for_each(|at| hops[*at] = Some(far));
            far += 1;
            let is_next = |to: &usize| hops[*to].is_none() && edge.iter().any(|at| leads(*at, *to));
            edge = (0..self.ranks()).filter(is_next).collect();
        }
        hops
    }

    /// The configuration of a member.
    pub(crate) fn config(&self, member: usize, started: u64) -> MeshConfig {
        let own = self.members[member];
        let ns = Duration::from_nanos;
        let mut config = MeshConfig::new(rank(member), self.ranks() as u8, started);
        config.mesh = 7;
        config.window = self.window;
        config.message_bytes_max = self.message_bytes_max as usize;
        config.hops_max = self.hops_max;
        config.start_ahead_max = ns(self.start_ahead_max_ns);
        config.resend_after = ns(own.resend_after_ns);
        config.acknowledge_after = ns(own.acknowledge_after_ns);
        config.hold_down = ns(own.hold_down_ns);
        config.link.session.recover_within = ns(self.recover_within_ns);
        config.link.session.fragment_bytes = self.fragment_bytes;
        config.link.session.backoff.longest = ns(self.backoff_ns);
        config.link.retained = own.retained;
        config.link.ahead = own.ahead;
        config.link.message_bytes_max = self.message_bytes_max as usize + 64;
        config.link.channel.send_depth = own.depth;
        config.link.channel.receive_depth = own.depth;
        config.link.channel.repost_batch = (own.depth / 4).max(1);
        config.link.handshakes.per_address = self.per_address as usize;
        config.link.handshakes.crowded_stage = config.link.channel.handshake_stage / 2;
        config
    }
}
