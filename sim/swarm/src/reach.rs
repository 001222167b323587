//! When something keeps two hosts from reaching each other: what the plan says of cables, ports, addresses and hosts, and
//! what their processes do by standing still or being replaced. Computed from the case, and not asked of what is judged.

use doorbell_sim::Plan;
use doorbell_sim::plan::{Action, Clause, Effect, End, Name, PacketRule, Which};

use crate::case::Case;

/// All that hinders anybody.
#[derive(Debug)]
pub(crate) struct Reach {
    is_one_device: bool,
    /// The subnets of each host, as bits.
    subnets: Vec<u8>,
    troubles: Vec<Trouble>,
    /// Packets or calls are struck at any time.
    pub(crate) is_any_time: bool,
    /// Nothing lasts longer.
    healed_ns: u64,
}

#[derive(Debug)]
struct Trouble {
    whose: Whose,
    from_ns: u64,
    to_ns: u64,
}

#[derive(Debug)]
enum Whose {
    Cable(End, End),
    Port(End),
    Host(Name),
    Process(usize),
}

impl Reach {
    pub(crate) fn of(case: &Case, plan: &Plan) -> Self {
        let mut reach = Self {
            is_one_device: case.links.is_some_and(|links| links.is_one_device),
            subnets: case.hosts.iter().map(|host| host.subnets).collect(),
            troubles: Vec::new(),
            is_any_time: false,
            healed_ns: u64::MAX,
        };
        let mut lost = 0;
        for clause in &plan.clauses {
            match clause {
                Clause::At(step) => {
                    let lasts_ns = step.lasts_ns.unwrap_or(u64::MAX);
                    // An address that changed is known to those alone that were told, and queue pairs that a killed host had
                    // are gone: nobody promises when that is mended while faults last.
                    let (whose, lasts_ns) = match &step.action {
                        Action::Link(a, b, false) => (Whose::Cable(a.clone(), b.clone()), lasts_ns),
                        Action::Port(end, false) => (Whose::Port(end.clone()), lasts_ns),
                        Action::Pause(host, true) => (Whose::Host(host.clone()), lasts_ns),
                        Action::Slow(host, _) => (Whose::Host(host.clone()), lasts_ns),
                        Action::Gid(end, ..) => (Whose::Port(end.clone()), u64::MAX),
                        Action::Kill(host) => (Whose::Host(host.clone()), u64::MAX),
                        Action::Overrun(host) => (Whose::Host(host.clone()), u64::MAX),
                        _ => continue,
                    };
                    let (from_ns, to_ns) = (step.at_ns, step.at_ns.saturating_add(lasts_ns));
                    reach.troubles.push(Trouble {
                        whose,
                        from_ns,
                        to_ns,
                    });
                }
                Clause::Packets(rule) => match (rule.effect, rule.which) {
                    (Effect::Duplicate | Effect::Reorder, _) => {}
                    (Effect::Delay(late_ns), _) if late_ns < 1_000_000 => {}
                    (_, Which::Nth(_)) if !is_late(rule) => lost += 1,
                    _ => reach.is_any_time = true,
                },
                Clause::Calls(_) => reach.is_any_time = true,
                _ => {}
            }
        }
        // One that is lost goes again, and spoils an attempt to connect at most.
        reach.is_any_time |= lost > 1;
        reach
    }

    /// A host's process stands still.
    pub(crate) fn stop(&mut self, host: usize, from_ns: u64, to_ns: u64) {
        let whose = Whose::Process(host);
        self.troubles.push(Trouble {
            whose,
            from_ns,
            to_ns,
        });
    }

    /// A host has no process from now on.
    pub(crate) fn lacks_process(&mut self, host: usize, now_ns: u64) {
        self.stop(host, now_ns, u64::MAX);
    }

    /// It has one again.
    pub(crate) fn has_process(&mut self, host: usize, now_ns: u64) {
        let is_its = |trouble: &&mut Trouble| {
            trouble.to_ns == u64::MAX && matches!(trouble.whose, Whose::Process(of) if of == host)
        };
        for trouble in self.troubles.iter_mut().filter(is_its) {
            trouble.to_ns = now_ns;
        }
    }

    /// Everything is whole again.
    pub(crate) fn heal(&mut self, now_ns: u64) {
        self.healed_ns = now_ns;
    }

    /// Whether a process stood still, or was not there, at some time between these.
    pub(crate) fn is_stopped(&self, host: usize, [from_ns, to_ns]: [u64; 2]) -> bool {
        let mut stops = self
            .troubles
            .iter()
            .filter(|trouble| matches!(trouble.whose, Whose::Process(of) if of == host));
        stops.any(|trouble| self.is_within(trouble, [from_ns, to_ns]))
    }

    /// From when on something may have struck that these hosts notice only at this time, where they notice it within so long
    /// once their processes go on.
    pub(crate) fn since(&self, hosts: [usize; 2], at_ns: u64, within_ns: u64) -> u64 {
        let mut since_ns = at_ns.saturating_sub(within_ns);
        loop {
            let stops = self.troubles.iter().filter(|trouble| {
                matches!(trouble.whose, Whose::Process(of) if hosts.contains(&of))
                    && self.is_within(trouble, [since_ns, at_ns])
            });
            let first_ns = stops.map(|trouble| trouble.from_ns).min();
            match first_ns.filter(|first_ns| *first_ns < since_ns) {
                Some(first_ns) => since_ns = first_ns.saturating_sub(within_ns),
                None => return since_ns,
            }
        }
    }

    /// Whether something struck the way between two hosts in a subnet, at some time between these.
    pub(crate) fn is_struck(&self, hosts: [usize; 2], subnet: u8, span_ns: [u64; 2]) -> bool {
        self.troubles.iter().any(|trouble| {
            !matches!(trouble.whose, Whose::Process(_))
                && self.hinders(&trouble.whose, hosts, subnet)
                && self.is_within(trouble, span_ns)
        })
    }

    /// For how long cables between two hosts were cut in a subnet, of what strikes the way at some time between these; `None` where
    /// anything else does.
    pub(crate) fn cut_for(&self, hosts: [usize; 2], subnet: u8, span_ns: [u64; 2]) -> Option<u64> {
        let struck = self.troubles.iter().filter(|trouble| {
            !matches!(trouble.whose, Whose::Process(_))
                && self.hinders(&trouble.whose, hosts, subnet)
                && self.is_within(trouble, span_ns)
        });
        struck
            .map(|trouble| {
                let lasts_ns = trouble.to_ns.min(self.healed_ns).saturating_sub(trouble.from_ns);
                matches!(trouble.whose, Whose::Cable(..)).then_some(lasts_ns)
            })
            .try_fold(0, |all_ns: u64, lasts_ns| Some(all_ns.saturating_add(lasts_ns?)))
    }

    /// When the last that struck the way between two hosts, by any subnet, was over, of what did at some time between these.
    pub(crate) fn struck_until(&self, hosts: [usize; 2], span_ns: [u64; 2]) -> Option<u64> {
        let struck = self.troubles.iter().filter(|trouble| {
            !matches!(trouble.whose, Whose::Process(_))
                && (0..2).any(|subnet| self.hinders(&trouble.whose, hosts, subnet))
                && self.is_within(trouble, span_ns)
        });
        struck.map(|trouble| trouble.to_ns.min(self.healed_ns)).max()
    }

    /// Whether two hosts could reach each other for so long without a break between these times: by some subnet that both
    /// are in, or by all of them.
    pub(crate) fn was_calm(&self, hosts: [usize; 2], span_ns: [u64; 2], least_ns: u64, by_all: bool) -> bool {
        let both = self.subnets[hosts[0]] & self.subnets[hosts[1]];
        let subnets: Vec<u8> = (0..2).filter(|subnet| both >> subnet & 1 == 1).collect();
        let is_calm = |subnets: &[u8]| self.calm_ns(hosts, span_ns, subnets) >= least_ns;
        match by_all {
            true => is_calm(&subnets),
            false => subnets.iter().any(|subnet| is_calm(&[*subnet])),
        }
    }

    /// The longest time between these that nothing hinders two hosts in these subnets.
    fn calm_ns(&self, hosts: [usize; 2], [from_ns, to_ns]: [u64; 2], subnets: &[u8]) -> u64 {
        let mut struck: Vec<[u64; 2]> = self
            .troubles
            .iter()
            .filter(|trouble| self.is_within(trouble, [from_ns, to_ns]))
            .filter(|trouble| {
                let mut subnets = subnets.iter();
                subnets.any(|subnet| self.hinders(&trouble.whose, hosts, *subnet))
            })
            .map(|trouble| [trouble.from_ns, trouble.to_ns.min(self.healed_ns)])
            .collect();
        struck.sort_unstable();
        struck.push([to_ns, to_ns]);
        let (mut at_ns, mut calm_ns) = (from_ns, 0);
        for [from_ns, to_ns] in struck {
            calm_ns = calm_ns.max(from_ns.saturating_sub(at_ns));
            at_ns = at_ns.max(to_ns);
        }
        calm_ns
    }

    fn is_within(&self, trouble: &Trouble, [from_ns, to_ns]: [u64; 2]) -> bool {
        trouble.from_ns <= to_ns && trouble.to_ns.min(self.healed_ns) >= from_ns
    }

    fn hinders(&self, whose: &Whose, hosts: [usize; 2], subnet: u8) -> bool {
        let [a, b] = hosts;
        let means = |end: &End, host: usize| self.means(end, host, subnet);
        match whose {
            Whose::Cable(from, to) => means(from, a) && means(to, b) || means(from, b) && means(to, a),
            Whose::Port(end) => means(end, a) || means(end, b),
            Whose::Host(name) => is_named(name, &host_name(a)) || is_named(name, &host_name(b)),
            Whose::Process(of) => hosts.contains(of),
        }
    }

    /// Whether an end of a plan is the port of a host in a subnet.
    fn means(&self, end: &End, host: usize, subnet: u8) -> bool {
        let (device, port) = match self.is_one_device {
            true => ("sim0".to_owned(), subnet + 1),
            false => (format!("sim{subnet}"), 1),
        };
        is_named(&end.host, &host_name(host))
            && end.device.as_ref().is_none_or(|name| is_named(name, &device))
            && end.port.is_none_or(|number| number == port)
    }
}

fn host_name(host: usize) -> String {
    format!("h{host}")
}

fn is_named(name: &Name, is: &str) -> bool {
    let name = name.to_string();
    name == "any" || name == is
}

const fn is_late(rule: &PacketRule) -> bool {
    matches!(rule.effect, Effect::Delay(_))
}

#[cfg(test)]
mod tests {
    use super::Reach;
    use crate::generate::generate;
    use crate::seed::Seed;

    const MS: u64 = 1_000_000;

    /// Three hosts with two devices each.
    fn reach(plan: &str) -> Reach {
        let mut case = generate(Seed::quick(3));
        let host = case.hosts[0].clone();
        case.hosts = vec![host; 3];
        case.hosts.iter_mut().for_each(|host| host.subnets = 3);
        case.links = None;
        Reach::of(&case, &plan.parse().unwrap())
    }

    #[test]
    fn a_cable_hinders_those_at_its_ends_in_its_subnet_and_as_long_as_it_is_cut() {
        let reach = reach("at 10ms link h0/sim1-h1/sim1 down for 5ms");
        let whole = [0, 100 * MS];
        assert!(reach.is_struck([0, 1], 1, whole) && reach.is_struck([1, 0], 1, whole));
        assert!(!reach.is_struck([0, 1], 0, whole) && !reach.is_struck([0, 2], 1, whole));
        assert!(!reach.is_struck([0, 1], 1, [0, 9 * MS]) && !reach.is_struck([0, 1], 1, [16 * MS, 20 * MS]));
        // By the other subnet they reach each other all the while.
        assert!(reach.was_calm([0, 1], whole, 100 * MS, false));
        assert!(
            reach.was_calm([0, 1], whole, 85 * MS, true) && !reach.was_calm([0, 1], whole, 86 * MS, true)
        );
    }

    #[test]
    fn what_lasts_ends_as_all_is_whole_again_and_processes_hinder_too() {
        let plan = "at 10ms gid h0/sim0 10.0.0.1 becomes 10.0.0.9; at 20ms pause any for 10ms";
        let mut healed = reach(plan);
        assert!(!healed.was_calm([0, 2], [30 * MS, 90 * MS], 50 * MS, true));
        assert!(healed.was_calm([1, 2], [30 * MS, 90 * MS], 60 * MS, true));
        healed.heal(40 * MS);
        assert!(healed.was_calm([0, 2], [30 * MS, 90 * MS], 50 * MS, true));
        let mut stopped = reach(plan);
        stopped.stop(2, 50 * MS, 60 * MS);
        assert!(stopped.was_calm([1, 2], [30 * MS, 90 * MS], 30 * MS, true));
        assert!(!stopped.was_calm([1, 2], [30 * MS, 90 * MS], 31 * MS, true));
        assert!(stopped.is_stopped(2, [0, 55 * MS]) && !stopped.is_stopped(2, [61 * MS, 99 * MS]));
        assert!(!stopped.is_struck([1, 2], 0, [45 * MS, 90 * MS]));
    }

    #[test]
    fn one_packet_lost_is_no_excuse_and_many_are() {
        assert!(!reach("drop 3rd packet of any->any; duplicate 9% packet of any->any").is_any_time);
        assert!(reach("drop 3rd packet of any->any; drop 4th ack of any->any").is_any_time);
        assert!(reach("drop 1% packet of any->any").is_any_time);
        assert!(reach("fail 3rd post of h0 with 12").is_any_time);
    }
}
