//! Names that plans use: the hosts, devices and ports that a clause is about.

use core::fmt;

use super::{Action, Clause, End, Name};

/// A name in a plan that no host, device or port of the fabric has.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnknownName {
    /// The clause or action that uses it.
    pub clause: String,
    /// The name: of a host, of a device behind its host, or of a port behind both.
    pub name: String,
    /// The names that the fabric has instead, of the same kind.
    pub known: Vec<String>,
}

impl fmt::Display for UnknownName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { clause, name, known } = self;
        write!(f, "in \"{clause}\": the fabric has no {name}, ")?;
        match known.as_slice() {
            [] => f.write_str("and no host"),
            [one] => write!(f, "but {one}"),
            [first @ .., last] => write!(f, "but {} and {last}", first.join(", ")),
        }
    }
}

impl core::error::Error for UnknownName {}

impl From<&Name> for End {
    fn from(host: &Name) -> Self {
        Self {
            host: host.clone(),
            device: None,
            port: None,
        }
    }
}

impl Action {
    /// The ends that it is about.
    pub(crate) fn ends(&self) -> Vec<End> {
        match self {
            Self::Link(a, b, _) => vec![a.clone(), b.clone()],
            Self::Port(end, _) | Self::Gid(end, ..) => vec![end.clone()],
            Self::Kill(host)
            | Self::Restart(host)
            | Self::Pause(host, _)
            | Self::Slow(host, _)
            | Self::Overrun(host)
            | Self::Clock(host, _) => vec![host.into()],
            Self::Calm => Vec::new(),
        }
    }
}

impl Clause {
    /// The ends that it is about.
    pub(crate) fn ends(&self) -> Vec<End> {
        match self {
            Self::At(step) => step.action.ends(),
            Self::Packets(rule) => vec![rule.from.clone(), rule.to.clone()],
            Self::Calls(rule) => vec![(&rule.host).into()],
        }
    }
}
