//! Predicts failures and their causes before anything hangs: findings about hosts, from collected facts
//! only.
//!
//! Nothing is queried here: the facts are [`Topology`] values, from this host or from files.

use core::fmt;

use crate::topology::{Map, Topology};

mod host;
mod host_pair;
mod shared;

#[cfg(test)]
mod tests;

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(clippy::exhaustive_enums, reason = "it works, it may not, it will not")]
pub enum Severity {
    /// Nothing is wrong: something is skipped, or could be faster.
    Note,
    /// Something may fail, or differs from the intention.
    Warning,
    /// Something will fail.
    Error,
}

/// The kind of a finding. Its name is stable over releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FindingKind {
    /// The host has no RDMA device.
    NoDevice,
    /// Something could not be surveyed.
    NotLookedAt,
    /// No rail can be used.
    NoRail,
    /// The settings exclude a port or rail.
    LeftOut,
    /// A rule of the rail filter matches nothing on this host.
    RuleIdle,
    /// The interface of a port is in another network namespace.
    Elsewhere,
    /// The port cannot be used.
    PortUnusable,
    /// The interface of a port is administratively down.
    AdminDown,
    /// The interface has no carrier: the other end of the cable is missing or down.
    NoCarrier,
    /// The interface of a port has no address.
    NoAddress,
    /// The interface has only link-local addresses.
    LinkLocalOnly,
    /// An address has no GID in the port's table.
    GidMissing,
    /// The MTU of the interface is too small for the packets that the port sends.
    MtuTooSmall,
    /// The MTU of the interface prevents a larger MTU of the port.
    MtuLow,
    /// The MTUs at the two ends of a link differ.
    MtuUnequal,
    /// The hardware address of a neighbour cannot be resolved.
    NeighbourUnresolved,
    /// Several interfaces are in one subnet, and answer ARP requests for each other.
    ArpNotHardened,
    /// Several interfaces are in one subnet, and packets from the address of one leave through another.
    SourceRoute,
    /// The port has no partition key at the index that queue pairs use.
    PkeyMissing,
    /// The partition keys at the two ends of a link do not match.
    PkeyMismatch,
    /// By the prefix length of one host two addresses are in one subnet, by that of the other they are
    /// not.
    PrefixOneSided,
    /// Two hosts have the same address.
    AddressTwice,
    /// Two hosts cannot reach each other by their rails, or a peer is in no subnet of a rail.
    NotReached,
}

impl FindingKind {
    /// The name of the kind.
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

/// A finding.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// Its severity.
    pub severity: Severity,
    /// Its kind.
    pub kind: FindingKind,
    /// The host that the finding concerns; of two hosts the first.
    pub host: String,
    /// The rail, port, interface or rule that the finding concerns.
    pub subject: String,
    /// The fact.
    pub what: String,
    /// The consequence.
    pub why: String,
    /// The remedy. Empty if nothing has to be done.
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

    /// Sets the consequence.
    fn because(mut self, why: impl Into<String>) -> Self {
        self.why = why.into();
        self
    }

    /// Sets the remedy.
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

/// Returns all findings about these hosts, each by itself and in pairs, the most severe first.
#[must_use]
pub fn preflight(hosts: &[Topology]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for topology in hosts {
        host::findings(topology, hosts, &mut findings);
    }
    host_pair::findings(&Map::new(hosts), &mut findings);
    findings.sort_by_key(|finding| core::cmp::Reverse(finding.severity));
    findings
}
