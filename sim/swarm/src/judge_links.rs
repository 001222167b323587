//! Judges the fate of links by what hindered them.
//!
//! A run fails if an end gives up a rail that answers, or if a link ends although its ends reach each other. It also
//! fails if an end reports a wrong reason, or if a rail carries what another one should.

use doorbell::link::{FinalReason, HealthState, SessionEvent};
use doorbell::wire::RefusalReason;

use crate::bond::Bond;
use crate::failure::{Verdict, ensure};
use crate::linked::{LinkedRun, MESSAGE_BYTES_MAX};
use crate::station::of_address;

/// Short messages that each end sends while it is looked which rail they take.
const SHORT_MESSAGES: usize = 8;
const SHORT_BYTES: u16 = 64;

/// Long messages that each end sends, and the fragments of each: as many as a rail takes at once.
const LONG_MESSAGES: usize = 6;
const LONG_FRAGMENTS: u32 = 4;
/// Shorter fragments weigh no more than what is said beside them.
const LONG_FRAGMENT_BYTES_MIN: u32 = 256;

/// A rail that was up for so long has answered, and is as one that never failed.
const SETTLED_NS: u64 = 1_000_000_000;

/// A fault may outlast the loss of a rail by this time. It then spoils one attempt to connect the rail again.
const LINGERING_NS: u64 = 100_000_000;

/// The bytes that each rail of an end carried, with the rail's subnet. Only rails that are up count.
type Carried = Vec<(u8, u64)>;

impl LinkedRun<'_> {
    /// Judges what an end of a link is told of it.
    pub(crate) fn judge(&self, at: usize, end: usize, event: SessionEvent, now_ns: u64) -> Verdict {
        match event {
            SessionEvent::Final { reason } => self.judge_end(at, end, reason, now_ns),
            SessionEvent::RailDown { rail } => self.judge_rail(at, end, rail, now_ns),
            SessionEvent::RailUp { rail } => self.judge_return(at, end, rail, now_ns),
            SessionEvent::Stalled => self.judge_stall(at, end, now_ns),
            _ => Ok(()),
        }
    }

    /// A peer is stalled where its process stands still, and otherwise not.
    fn judge_stall(&self, at: usize, end: usize, now_ns: u64) -> Verdict {
        let bond = &self.bonds[at];
        let hosts = self.case.lines[bond.line].hosts;
        let within_ns = self.bounds[bond.line].rail_ns;
        let since_ns = self.reach.since(hosts, now_ns, within_ns);
        let is_excused = bond.is_ending()
            || self.reach.is_any_time
            || self.excuses.clocks
            || hosts
                .iter()
                .any(|host| self.reach.is_stopped(*host, [since_ns, now_ns]))
            || (0..2).any(|subnet| self.reach.is_struck(hosts, subnet, [since_ns, now_ns]));
        ensure(is_excused, "stalled", || {
            let number = bond.number();
            format!("end {end} of link {number} finds the other stalled, and nothing was wrong")
        })
    }

    /// A rail that was up for long, and is not hindered once it is lost, is up again after the first wait.
    fn judge_return(&self, at: usize, end: usize, rail: u8, now_ns: u64) -> Verdict {
        let bond = &self.bonds[at];
        let bounds = &self.bounds[bond.line];
        let Some([up_ns, down_ns]) = bond.end(end).lost_rails_ns[usize::from(rail)] else {
            return Ok(());
        };
        let hosts = self.case.lines[bond.line].hosts;
        let is_excused = end == 1
            || down_ns - up_ns < SETTLED_NS
            || bond.is_ending()
            || self.reach.is_any_time
            || self.excuses.clocks
            || self.excuses.ports
            || hosts
                .iter()
                .any(|host| self.reach.is_stopped(*host, [down_ns, now_ns]));
        // A fault that goes on a moment longer spoils the first attempt only.
        let free_ns = self
            .reach
            .struck_until(hosts, [down_ns, now_ns])
            .unwrap_or(down_ns);
        let is_excused = is_excused || free_ns > down_ns + LINGERING_NS;
        let took_ns = now_ns.saturating_sub(free_ns.max(down_ns));
        ensure(is_excused || took_ns <= bounds.again_ns, "slow", || {
            format!(
                "rail {rail} of link {} is up again after {took_ns} ns, and has {} ns",
                bond.number(),
                bounds.again_ns
            )
        })
    }

    /// A rail that was up for long is lost where the way it takes was struck, and not otherwise: not for a process that stands
    /// still. One that came up a moment ago may have been connected by half.
    fn judge_rail(&self, at: usize, end: usize, rail: u8, now_ns: u64) -> Verdict {
        let bond = &self.bonds[at];
        if bond.is_ending() || self.reach.is_any_time || self.excuses.clocks {
            return Ok(());
        }
        let hosts = self.case.lines[bond.line].hosts;
        let Some(subnet) = self.subnet_of(bond, end, rail) else {
            return Ok(());
        };
        let within_ns = self.bounds[bond.line].rail_ns;
        let before_ns = |at_ns: u64| [self.reach.since(hosts, at_ns, within_ns), now_ns];
        let young_ns = bond.end(end).up_ns[usize::from(rail)]
            .filter(|up_ns| now_ns.saturating_sub(*up_ns) < within_ns)
            .map(before_ns);
        let was_stopped = |span_ns: [u64; 2]| hosts.iter().any(|host| self.reach.is_stopped(*host, span_ns));
        let is_excused = self
            .reach
            .is_struck(hosts, subnet, young_ns.unwrap_or(before_ns(now_ns)))
            || young_ns.is_some_and(was_stopped);
        // A cut that ends before the retries are used up costs no rail.
        let endures_ns = self.bounds[bond.line].endures_ns;
        let cut_ns = self.reach.cut_for(hosts, subnet, before_ns(now_ns));
        let is_endured = young_ns.is_none() && cut_ns.is_some_and(|cut_ns| cut_ns < endures_ns);
        ensure(is_excused && !is_endured, "healthy", || {
            let number = bond.number();
            format!(
                "end {end} of link {number} gave up rail {rail} in subnet {subnet}, and nothing was wrong"
            )
        })
    }

    fn judge_end(&self, at: usize, end: usize, reason: FinalReason, now_ns: u64) -> Verdict {
        let bond = &self.bonds[at];
        let (this, other) = (bond.end(end), bond.end(1 - end));
        let may_be = match reason {
            FinalReason::Closed => this.is_closing,
            FinalReason::PeerClosed => other.is_closing,
            _ if bond.is_parting => false,
            FinalReason::PeerRestarted => other.is_replaced,
            FinalReason::Unreachable => {
                self.judge_unreachable(at, end, now_ns)?;
                true
            }
            FinalReason::EndedByPeer(RefusalReason::GIVEN_UP) => {
                let gave_up = matches!(other.reason, Some(FinalReason::Unreachable));
                // Its end may not even have heard whose it was.
                let recover_ns = self.bounds[bond.line].recover_ns[1 - end];
                let is_unknown = other.id.is_none() && now_ns.saturating_sub(bond.began_ns) >= recover_ns;
                gave_up || is_unknown || other.is_over && self.excuses.clocks
            }
            _ => false,
        };
        ensure(may_be, "excuse", || {
            format!("end {end} of link {} ended: {reason}", bond.number())
        })?;
        let Some(by_ns) = this.closes_by_ns else {
            return Ok(());
        };
        let bounds = &self.bounds[bond.line];
        let host = self.case.lines[bond.line].hosts[end];
        let is_late = now_ns > by_ns.saturating_add(bounds.polls_ns);
        ensure(
            !is_late || self.reach.is_stopped(host, [by_ns, now_ns]),
            "late",
            || {
                format!(
                    "end {end} of link {} was to be closed by {by_ns} ns, and ended then: {reason}",
                    bond.number()
                )
            },
        )
    }

    /// An end gives up once it was without a rail for as long as it is configured to try. The other end must have
    /// been out of reach in that time. If the other end is gone, an unhindered connector hears that reason instead.
    fn judge_unreachable(&self, at: usize, end: usize, now_ns: u64) -> Verdict {
        if self.excuses.clocks {
            return Ok(());
        }
        let bond = &self.bonds[at];
        let number = bond.number();
        let hosts = self.case.lines[bond.line].hosts;
        let bounds = &self.bounds[bond.line];
        let (this, other) = (bond.end(end), bond.end(1 - end));
        let Some(lost_ns) = this.lost_ns else {
            return ensure(false, "excuse", || {
                format!("end {end} of link {number} is unreachable, and had a rail")
            });
        };
        let took_ns = now_ns.saturating_sub(lost_ns);
        let recover_ns = bounds.recover_ns[end];
        // An end gives up at once if no port of its host reaches one of the peer.
        let may_be_early = !this.was_connected && self.excuses.ports;
        // A poll takes time, and goes by that when it began.
        let poll_ns = 10_000 * self.case.call_ns + 1_000 * self.case.handler_ns;
        ensure(took_ns + poll_ns >= recover_ns || may_be_early, "early", || {
            format!("end {end} of link {number} gave up after {took_ns} ns, and has {recover_ns} ns")
        })?;
        let may_be_late = self.reach.is_any_time
            || self
                .reach
                .is_stopped(hosts[end], [now_ns.saturating_sub(took_ns), now_ns]);
        ensure(
            took_ns <= recover_ns + bounds.polls_ns || may_be_late,
            "late",
            || format!("end {end} of link {number} gave up after {took_ns} ns, and has {recover_ns} ns"),
        )?;
        // To one that accepted nobody comes that is gone.
        if self.reach.is_any_time || end == 1 && other.has_gone() {
            return Ok(());
        }
        let from_ns = lost_ns.max(other.gone_ns.unwrap_or(0));
        let by_all = other.has_gone() || self.excuses.ports;
        let was_calm = self
            .reach
            .was_calm(hosts, [from_ns, now_ns], bounds.rail_ns, by_all);
        ensure(!was_calm, "reachable", || {
            format!(
                "end {end} of link {number} is unreachable, and nothing hindered it for {} ns",
                bounds.rail_ns
            )
        })
    }

    /// The link of a line that is about to be closed, with nothing under way and nothing going wrong.
    pub(crate) fn part(&mut self, line: usize) {
        let now_ns = self.fabric.now().to_ns();
        let is_ready = |at: &usize| {
            let bond = &self.bonds[*at];
            bond.is_whole() && bond.is_steady(now_ns, self.bounds[line].gone_ns)
        };
        if let Some(at) = self.current(line).filter(is_ready) {
            self.bonds[at].is_parting = true;
        }
    }

    fn subnet_of(&self, bond: &Bond, end: usize, rail: u8) -> Option<u8> {
        let host = self.case.lines[bond.line].hosts[end];
        let process = self.seats[host].process.as_ref()?;
        let mut rails = process.links.rails(bond.id(end)?);
        let report = rails.find(|report| report.rail == rail)?;
        Some(of_address(report.peer)?.1)
    }

    /// Looks which rails carry what is sent while all of them are up: what fits in one piece takes the fastest, and what does
    /// not is shared by speed.
    pub(crate) fn weigh(&mut self) -> Verdict {
        let Some(links) = self.case.links.filter(|links| links.is_weighed) else {
            return Ok(());
        };
        if self.excuses.ports {
            return Ok(());
        }
        let short = SHORT_BYTES.min(links.fragment_bytes as u16);
        let sent = u64::from(short) * SHORT_MESSAGES as u64;
        self.weigh_messages(SHORT_MESSAGES, short, |[_, slow], _| 2 * slow < sent)?;
        let long = LONG_FRAGMENTS * links.fragment_bytes;
        if links.fragment_bytes < LONG_FRAGMENT_BYTES_MIN || long as usize > MESSAGE_BYTES_MAX {
            return Ok(());
        }
        self.weigh_messages(LONG_MESSAGES, long as u16, |[fast, slow], times| match times {
            1 => fast.min(slow) >= fast.max(slow) / 3,
            4.. => fast >= 2 * slow,
            _ => fast >= slow,
        })
    }

    /// Sends so many messages of so many bytes from each end, one after the other. `is_fair` gets what the faster rail of an end
    /// carried of that and what the slower one, and how many times as fast it is.
    fn weigh_messages(
        &mut self,
        count: usize,
        bytes: u16,
        is_fair: impl Fn([u64; 2], u32) -> bool,
    ) -> Verdict {
        let lines = 0..self.case.lines.len();
        let ends: Vec<_> = lines.flat_map(|line| [(line, 0), (line, 1)]).collect();
        let carried = |run: &Self| -> Vec<Carried> {
            ends.iter().map(|(line, end)| run.carried(*line, *end)).collect()
        };
        let before = carried(self);
        for _ in 0..count {
            for (line, end) in &ends {
                self.send(*line, *end, bytes)?;
            }
            self.until("liveness", "what is weighed is not done", Self::is_quiet)?;
        }
        for (((line, end), before), after) in ends.iter().zip(before).zip(carried(self)) {
            let moved = |subnet: u8| {
                let of = |carried: &Carried| {
                    carried
                        .iter()
                        .find(|(of, _)| *of == subnet)
                        .map(|(_, bytes)| *bytes)
                };
                Some(of(&after)?.saturating_sub(of(&before)?))
            };
            let (Some(first), Some(second)) = (moved(0), moved(1)) else {
                continue;
            };
            let Some([a, b]) = self.speeds(*line, *end) else {
                continue;
            };
            let of_both = if a >= b { [first, second] } else { [second, first] };
            let times = a.max(b) / a.min(b).max(1);
            // A rail that has no receives left at the peer takes no more, however fast it is.
            let is_short = usize::from(bytes) <= usize::from(SHORT_BYTES);
            if !is_short && self.bounds[*line].receives_min <= 2 * LONG_FRAGMENTS {
                continue;
            }
            // If both rails are as fast, the first one takes all messages of one piece. It may be in either subnet.
            let of_both = match is_short && times == 1 {
                true => [first.max(second), first.min(second)],
                false => of_both,
            };
            ensure(is_fair(of_both, times), "weight", || {
                format!(
                    "end {end} of line {line} sent {first} bytes in subnet 0 at {a} Mb/s, and {second} in 1 at {b}: \
                     {count} messages of {bytes} bytes"
                )
            })?;
        }
        Ok(())
    }

    pub(crate) fn carried(&self, line: usize, end: usize) -> Carried {
        let Some(bond) = self.current(line).map(|at| &self.bonds[at]) else {
            return Vec::new();
        };
        let host = self.case.lines[line].hosts[end];
        let (Some(process), Some(id)) = (&self.seats[host].process, bond.id(end)) else {
            return Vec::new();
        };
        let rails = process.links.rails(id);
        rails
            .filter(|report| report.state == HealthState::Up)
            .filter_map(|report| Some((of_address(report.peer)?.1, report.counts.sent_bytes)))
            .collect()
    }

    /// How fast each rail of an end is as far as it knows: the end that connects knows both ends of each, the other its own
    /// device, and of ports of one device the faster.
    fn speeds(&self, line: usize, end: usize) -> Option<[u32; 2]> {
        let hosts = self.case.lines[line].hosts;
        let [a, b] = hosts.map(|host| self.case.hosts[host].speeds_mbps);
        let is_one_device = self.case.links.is_some_and(|links| links.is_one_device);
        match end {
            0 => Some([0, 1].map(|subnet: usize| a[subnet].min(b[subnet]))),
            _ if is_one_device => None,
            _ => Some(b),
        }
    }
}
