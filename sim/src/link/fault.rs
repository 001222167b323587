//! Faults round links: they decide the fate of each packet that a link carries.

use crate::Random;
use crate::packet::PacketKind;
use crate::plan::{Effect, End, PacketRule};

/// A rule of a plan at work.
pub(crate) struct Fault {
    rule: PacketRule,
    /// How many packets it has seen that it means.
    seen: u64,
}

/// Fate of a packet on a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) is_lost: bool,
    pub(crate) is_corrupt: bool,
    pub(crate) is_doubled: bool,
    pub(crate) is_overtaken: bool,
    pub(crate) delay_ns: u64,
}

/// The names of a port.
#[derive(Clone, Copy)]
pub(crate) struct PortName<'n> {
    pub(crate) host: &'n str,
    pub(crate) device: &'n str,
    pub(crate) port: u8,
}

impl PortName<'_> {
    pub(crate) fn is(&self, end: &End) -> bool {
        end.means(self.host, self.device, self.port)
    }
}

impl Fault {
    pub(crate) const fn new(rule: PacketRule) -> Self {
        Self { rule, seen: 0 }
    }

    pub(crate) const fn rule(&self) -> &PacketRule {
        &self.rule
    }

    /// Whether it means packets of this link.
    pub(crate) fn is_round(&self, from: PortName<'_>, to: PortName<'_>) -> bool {
        from.is(&self.rule.from) && to.is(&self.rule.to)
    }

    /// Passes a packet, and notes its fate.
    pub(crate) fn pass(&mut self, kind: PacketKind, random: &mut Random, verdict: &mut Verdict) {
        let is_meant = match self.rule.kind {
            Some(meant) => meant == kind,
            None => kind != PacketKind::Stream,
        };
        if !is_meant {
            return;
        }
        self.seen = self.seen.saturating_add(1);
        if !self.rule.which.strikes(self.seen, random) {
            return;
        }
        match self.rule.effect {
            Effect::Drop => verdict.is_lost = true,
            Effect::Duplicate => verdict.is_doubled = true,
            Effect::Reorder => verdict.is_overtaken = true,
            Effect::Corrupt => verdict.is_corrupt = true,
            Effect::Delay(span_ns) => verdict.delay_ns = verdict.delay_ns.saturating_add(span_ns),
        }
    }
}
