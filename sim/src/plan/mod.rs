//! Plans: what goes wrong, and when, as a value with a text.
//!
//! A plan is clauses, each on a line of its own or behind a semicolon; what follows a `#` is a
//! remark:
//! ```text
//! seed 42
//! at 3ms link a-b down for 1s
//! at 5ms port b/sim0:1 down
//! at 6ms gid b/sim0:1 10.0.0.2 becomes 10.0.0.9
//! at 7ms pause a for 20us
//! at 8ms kill b
//! at 9ms restart b
//! at 1us slow b by 5us for 1ms
//! at 2us overrun a
//! at 4ms clock a ahead 3s
//! at 30ms calm
//! drop 2nd ack of a->b
//! corrupt every 10th packet of any->b
//! duplicate 0.5% send of a->b
//! reorder 3rd write of a->b
//! delay 1st read of a->b by 10us
//! drop every 3rd stream of any->any
//! fail 3rd post of a with 12
//! fail every 1st read post of a with 22
//! fail every 2nd unclear-post of a with 5
//! fail 2nd receive-post of a with 12
//! fail 1st shut of a with 5
//! fail every 1st registration of a with 12
//! fail 1st deregistration of a with 16
//! ```
//! Times are counted from when the fabric was made. An end is a host, a device of it (`a/sim0`),
//! a port of that (`a/sim0:1`), or `any`. A `packet` is any that a queue pair sends. A `stream` is a segment of a
//! stream, by which connections are made, and never a `packet`. An `unclear-post` takes all staged requests and reports a refusal. A `receive-post` posts receives, to
//! a queue pair or to a shared receive queue, and the device takes part of them, in order; a `post` is never one. `shut` is the call that fails a
//! queue pair. A `registration` is one of a window's memory with a device, and a `deregistration` ends one. A plan may name hosts that are added later.
//!
//! # Names that nothing has
//! A fault at a host, device or port that the fabric does not have is reported, not ignored: [`UnknownName`] has the name and the names that there are.
//! The report comes as soon as the name is known to be wrong.
//!
//! - [`Fabric::perform`](crate::Fabric::perform) returns it, and nothing happens.
//! - [`Fabric::check_plan`](crate::Fabric::check_plan) returns it for all clauses. Call it once all hosts are added.
//! - An `at` clause that is due prints it to standard error. `link ... down` is an exception, since it strikes hosts that are added later.
//! - `calm` prints it for the rules that it ends. Dropping the fabric prints it for all other clauses.
//!   [`FabricBuilder::allow_unknown_names`](crate::FabricBuilder::allow_unknown_names) prints nothing, for plans that are drawn at random.

mod names;
mod parse;
#[cfg(test)]
mod tests;
mod text;

use core::fmt;
use core::net::IpAddr;

use crate::packet::PacketKind;

pub use names::UnknownName;
pub use parse::PlanError;

/// Plan of faults, with their times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Seed of all randomness, if the plan names one.
    pub seed: Option<u64>,
    /// Faults, in the order in which they are looked at.
    pub clauses: Vec<Clause>,
}

/// One thing that goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Clause {
    /// Something happens at a time.
    At(Step),
    /// Something happens to packets.
    Packets(PacketRule),
    /// Calls of the device fail.
    Calls(CallRule),
}

/// Something that happens at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// When, in nanoseconds since the fabric was made.
    pub at_ns: u64,
    /// What.
    pub action: Action,
    /// For how long; without end where it is `None`, or where the action has no other side.
    pub lasts_ns: Option<u64>,
}

/// Action that a plan performs at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// Links between two ends carry nothing in either direction (`false`), or do again.
    Link(End, End, bool),
    /// Ports go down (`false`) or come up, and their devices report it.
    Port(End, bool),
    /// Ports lose an address and get another in its place, and their devices report it.
    Gid(End, IpAddr, IpAddr),
    /// Hosts vanish: their queue pairs fail, and nobody hears of them any more.
    Kill(Name),
    /// Hosts that vanished take part again. Their failed queue pairs stay failed.
    Restart(Name),
    /// Hosts stand still (`true`), or go on with what came in meanwhile.
    Pause(Name, bool),
    /// Hosts take so long for each packet that comes in, in nanoseconds.
    Slow(Name, u64),
    /// The next completion in each completion queue of these hosts finds no room.
    Overrun(Name),
    /// The clocks of hosts jump ahead by so much, in nanoseconds. None ever goes back.
    Clock(Name, u64),
    /// Nothing happens to packets and posts any more: the clauses about them that were followed until
    /// now are over.
    Calm,
}

impl Action {
    /// Returns the action that ends this one, if there is one.
    #[must_use]
    pub fn opposite(&self) -> Option<Self> {
        match self {
            Self::Link(a, b, up) => Some(Self::Link(a.clone(), b.clone(), !up)),
            Self::Port(end, up) => Some(Self::Port(end.clone(), !up)),
            Self::Gid(end, old, new) => Some(Self::Gid(end.clone(), *new, *old)),
            Self::Kill(host) => Some(Self::Restart(host.clone())),
            Self::Pause(host, still) => Some(Self::Pause(host.clone(), !still)),
            Self::Slow(host, _) => Some(Self::Slow(host.clone(), 0)),
            Self::Restart(_) | Self::Overrun(_) | Self::Clock(..) | Self::Calm => None,
        }
    }
}

/// Something that happens to some of the packets from one end to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketRule {
    /// What happens.
    pub effect: Effect,
    /// To which of those meant.
    pub which: Which,
    /// Kind of the packets; `None` is any that a queue pair sends.
    pub kind: Option<PacketKind>,
    /// Source of the packets.
    pub from: End,
    /// Destination of the packets.
    pub to: End,
}

/// Effect on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Effect {
    /// It is lost.
    Drop,
    /// It comes twice.
    Duplicate,
    /// The next on its link comes before it.
    Reorder,
    /// A bit of it changes, and its checksum shows it: the receiver drops it.
    Corrupt,
    /// It comes so much later, in nanoseconds.
    Delay(u64),
}

/// Some of the calls of a host fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallRule {
    /// Which of them.
    pub which: Which,
    /// Kind of the call.
    pub call: Call,
    /// Host of the calls.
    pub host: Name,
    /// With which error number.
    pub errno: i32,
}

/// Calls that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Call {
    /// Posting requests, with one of this kind; `None` is any. The device takes part of what was staged.
    Post(Option<PacketKind>),
    /// Posting requests, and the device does not say which of them it refused: it may have all.
    UnclearPost,
    /// Posting receives, to a queue pair or to a shared receive queue. The device takes part of what was staged.
    ReceivePost,
    /// Failing a queue pair.
    Shut,
    /// Registering the memory of a window.
    Registration,
    /// Deregistering the memory of a window, also as the window is dropped. Then peers keep their access.
    Deregistration,
}

/// Which of those that are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Which {
    /// The n-th, from 1.
    Nth(u64),
    /// Every n-th.
    Every(u64),
    /// Each with a chance of so many in a million.
    Chance(u32),
}

impl Which {
    /// Whether the packet or call of this number is struck.
    pub(crate) fn strikes(self, number: u64, random: &mut crate::Random) -> bool {
        match self {
            Self::Nth(nth) => number == nth,
            Self::Every(nth) => number.checked_rem(nth) == Some(0),
            Self::Chance(per_million) => random.happens(per_million),
        }
    }
}

/// The name of a host or device in a plan: letters, digits, `_` and `.`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name(String);

impl Name {
    /// The name, or `None` where a plan cannot say it.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let may_be = |letter: char| letter.is_alphanumeric() || matches!(letter, '_' | '.');
        (!text.is_empty() && text.chars().all(may_be)).then(|| Self(text.to_owned()))
    }

    /// Whether it means every host or device.
    pub(crate) fn is_any(&self) -> bool {
        self.0 == ANY
    }

    /// Whether it means this host or device.
    pub(crate) fn means(&self, name: &str) -> bool {
        self.is_any() || self.0 == name
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Stands for every host.
const ANY: &str = "any";

/// One or more ports: those of a host, of a device, or one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// Host of the ports.
    pub host: Name,
    /// Device of the ports, if only one is meant.
    pub device: Option<Name>,
    /// Number of the port, if only one is meant.
    pub port: Option<u8>,
}

impl End {
    /// Whether it means this port.
    pub(crate) fn means(&self, host: &str, device: &str, port: u8) -> bool {
        self.host.means(host)
            && self.device.as_ref().is_none_or(|name| name.means(device))
            && self.port.is_none_or(|number| number == port)
    }
}
