//! Plans as text.

use core::fmt::{self, Display, Formatter};

use super::{Action, Call, CallRule, Clause, Effect, End, PacketRule, Plan, Step, Which};
use crate::packet::PacketKind;

/// A span in nanoseconds, in the largest unit that leaves no rest.
pub(super) struct Span(pub(super) u64);

/// The units of spans, largest first.
pub(super) const UNITS: [(&str, u64); 4] =
    [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("ns", 1)];

impl Display for Span {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let whole = UNITS
            .iter()
            .filter_map(|(name, ns)| Some((name, self.0.checked_div(*ns)?, ns)))
            .find(|(_, count, ns)| count.checked_mul(**ns) == Some(self.0) && (*count > 0 || **ns == 1));
        match whole {
            Some((name, count, _)) => write!(f, "{count}{name}"),
            None => write!(f, "{}ns", self.0),
        }
    }
}

impl Display for Plan {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut between = "";
        if let Some(seed) = self.seed {
            write!(f, "seed {seed}")?;
            between = "; ";
        }
        for clause in &self.clauses {
            write!(f, "{between}{clause}")?;
            between = "; ";
        }
        Ok(())
    }
}

impl Display for Clause {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(step) => step.fmt(f),
            Self::Packets(rule) => rule.fmt(f),
            Self::Calls(rule) => rule.fmt(f),
        }
    }
}

impl Display for Step {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "at {} {}", Span(self.at_ns), self.action)?;
        match self.lasts_ns {
            Some(span_ns) => write!(f, " for {}", Span(span_ns)),
            None => Ok(()),
        }
    }
}

impl Display for Action {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let way = |up: &bool| if *up { "up" } else { "down" };
        match self {
            Self::Link(a, b, up) => write!(f, "link {a}-{b} {}", way(up)),
            Self::Port(end, up) => write!(f, "port {end} {}", way(up)),
            Self::Gid(end, old, new) => write!(f, "gid {end} {old} becomes {new}"),
            Self::Kill(host) => write!(f, "kill {host}"),
            Self::Restart(host) => write!(f, "restart {host}"),
            Self::Pause(host, true) => write!(f, "pause {host}"),
            Self::Pause(host, false) => write!(f, "resume {host}"),
            Self::Slow(host, each_ns) => write!(f, "slow {host} by {}", Span(*each_ns)),
            Self::Overrun(host) => write!(f, "overrun {host}"),
            Self::Clock(host, span_ns) => write!(f, "clock {host} ahead {}", Span(*span_ns)),
            Self::Calm => f.write_str("calm"),
        }
    }
}

impl Display for PacketRule {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let effect = match self.effect {
            Effect::Drop => "drop",
            Effect::Duplicate => "duplicate",
            Effect::Reorder => "reorder",
            Effect::Corrupt => "corrupt",
            Effect::Delay(_) => "delay",
        };
        let kind = kind_name(self.kind);
        write!(f, "{effect} {} {kind} of {}->{}", self.which, self.from, self.to)?;
        match self.effect {
            Effect::Delay(span_ns) => write!(f, " by {}", Span(span_ns)),
            _ => Ok(()),
        }
    }
}

/// The name of any kind.
pub(super) const ANY_KIND: &str = "packet";

fn kind_name(kind: Option<PacketKind>) -> &'static str {
    kind.map_or(ANY_KIND, PacketKind::name)
}

impl Display for CallRule {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "fail {} ", self.which)?;
        match self.call {
            Call::Post(None) => f.write_str("post")?,
            Call::Post(Some(kind)) => write!(f, "{} post", kind.name())?,
            Call::UnclearPost => f.write_str("unclear-post")?,
            Call::ReceivePost => f.write_str("receive-post")?,
            Call::Shut => f.write_str("shut")?,
            Call::Registration => f.write_str("registration")?,
            Call::Deregistration => f.write_str("deregistration")?,
        }
        write!(f, " of {} with {}", self.host, self.errno)
    }
}

impl Display for Which {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nth(nth) => ordinal(f, *nth),
            Self::Every(nth) => {
                f.write_str("every ")?;
                ordinal(f, *nth)
            }
            Self::Chance(per_million) => {
                let whole = per_million / 10_000;
                let rest = format!("{:04}", per_million % 10_000);
                match rest.trim_end_matches('0') {
                    "" => write!(f, "{whole}%"),
                    rest => write!(f, "{whole}.{rest}%"),
                }
            }
        }
    }
}

fn ordinal(f: &mut Formatter<'_>, number: u64) -> fmt::Result {
    let ending = match (number % 10, number % 100) {
        (1, tens) if tens != 11 => "st",
        (2, tens) if tens != 12 => "nd",
        (3, tens) if tens != 13 => "rd",
        _ => "th",
    };
    write!(f, "{number}{ending}")
}

impl Display for End {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.host.fmt(f)?;
        if let Some(device) = &self.device {
            write!(f, "/{device}")?;
        }
        match self.port {
            Some(port) => write!(f, ":{port}"),
            None => Ok(()),
        }
    }
}
