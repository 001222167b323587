//! Failures to come and their causes, before anything hangs: findings about hosts, from facts alone.
//!
//! Nothing is surveyed here: the facts are [`Topology`] values, of this host or of files.

use core::fmt;

use crate::topology::{Map, Topology};

mod between;
mod host;
mod shared;

#[cfg(test)]
mod tests;

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(clippy::exhaustive_enums, reason = "it works, it may not, it will not")]
pub enum Severity {
    /// Nothing is wrong: something is passed over, or could be faster.
    Note,
    /// Something may fail, or is not as it was meant.
    Warning,
    /// Something will fail.
    Error,
}

/// The kind of a finding. Its name stays the same over releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FindingKind {
    /// There is no RDMA device.
    NoDevice,
    /// Something could not be surveyed.
    NotLookedAt,
    /// No rail is left to use.
    NoRail,
    /// The settings leave a port or rail out.
    LeftOut,
    /// A rule of the rail filter names nothing that is there.
    RuleIdle,
    /// The interface of a port is in another network namespace.
    Elsewhere,
    /// The port is not one that can be used.
    PortUnusable,
    /// The interface of a port is set down.
    AdminDown,
    /// The interface has no carrier: the other end of the cable is missing or down.
    NoCarrier,
    /// The interface of a port has no address.
    NoAddress,
    /// The interface has only link-local addresses.
    LinkLocalOnly,
    /// An address has no GID in the port's table.
    GidMissing,
    /// The MTU of the interface is smaller than what the port sends.
    MtuTooSmall,
    /// The MTU of the interface keeps the port from what it could send.
    MtuLow,
    /// The MTU at both ends of a link differs.
    MtuUnequal,
    /// A neighbour's hardware address cannot be found out.
    NeighbourUnresolved,
    /// Several interfaces are in one subnet, and answer for each other.
    ArpNotHardened,
    /// Several interfaces are in one subnet, and packets from the address of one leave by another.
    SourceRoute,
    /// The port has no partition key where a queue pair looks for it.
    PkeyMissing,
    /// The partition keys of two ends do not go together.
    PkeyMismatch,
    /// Two addresses do not agree on being in one subnet.
    PrefixOneSided,
    /// Two hosts have one address.
    AddressTwice,
    /// Two hosts do not reach each other by rails of theirs, or a peer is in no subnet of a rail.
    NotReached,
}

impl FindingKind {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoDevice => "no-device",
            Self::NotLookedAt => "not-looked-at",
            Self::NoRail => "no-rail",
            Self::LeftOut => "left-out",
            Self::RuleIdle => "rule-idle",
            Self::Elsewhere => "elsewhere",
            Self::PortUnusable => "port-unusable",
            Self::AdminDown => "admin-down",
            Self::NoCarrier => "no-carrier",
            Self::NoAddress => "no-address",
            Self::LinkLocalOnly => "link-local-only",
            Self::GidMissing => "gid-missing",
            Self::MtuTooSmall => "mtu-too-small",
            Self::MtuLow => "mtu-low",
            Self::MtuUnequal => "mtu-unequal",
            Self::NeighbourUnresolved => "neighbour-unresolved",
            Self::ArpNotHardened => "arp-not-hardened",
            Self::SourceRoute => "source-route",
            Self::PkeyMissing => "pkey-missing",
            Self::PkeyMismatch => "pkey-mismatch",
            Self::PrefixOneSided => "prefix-one-sided",
            Self::AddressTwice => "address-twice",
            Self::NotReached => "not-reached",
        }
    }
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// Its severity.
    pub severity: Severity,
    /// Its kind.
    pub kind: FindingKind,
    /// The host it is about; of two hosts the first.
    pub host: String,
    /// The rail, port, interface or rule it is about.
    pub subject: String,
    /// The fact.
    pub what: String,
    /// Its consequence.
    pub why: String,
    /// The remedy; empty if nothing has to be done.
    pub remedy: String,
}

impl Finding {
    fn new((severity, kind): (Severity, FindingKind), host: &str, subject: &str, what: &str) -> Self {
        Self {
            severity,
            kind,
            host: host.to_owned(),
            subject: subject.to_owned(),
            what: what.to_owned(),
            why: String::new(),
            remedy: String::new(),
        }
    }

    /// Its consequence.
    fn because(mut self, why: impl Into<String>) -> Self {
        self.why = why.into();
        self
    }

    /// The remedy.
    fn so(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = remedy.into();
        self
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            severity,
            host,
            subject,
            what,
            ..
        } = self;
        write!(f, "{severity}[{}] {host}: {subject}: {what}", self.kind.name())?;
        if !self.why.is_empty() {
            write!(f, "\n  why: {}", self.why)?;
        }
        if !self.remedy.is_empty() {
            write!(f, "\n  do:  {}", self.remedy)?;
        }
        Ok(())
    }
}

/// Everything there is to find about these hosts, each by itself and every two of them; the worst first.
#[must_use]
pub fn preflight(hosts: &[Topology]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for topology in hosts {
        host::findings(topology, hosts, &mut findings);
    }
    between::findings(&Map::new(hosts), &mut findings);
    findings.sort_by_key(|finding| core::cmp::Reverse(finding.severity));
    findings
}
