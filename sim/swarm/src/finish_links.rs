//! The end of a run of links: faults stop, and then all that was sent is done and has come, every rail is up again, and
//! closing leaves nothing.

use core::time::Duration;

use doorbell::link::HealthState;
use doorbell::{Deadline, Worker};
use doorbell_sim::plan::{Action, End, Name};

use crate::bond::Bond;
use crate::bounds::{CLOSE_LINK_WITHIN, LinkBounds};
use crate::failure::{Verdict, ensure, failure};
use crate::finish::{free_slots, whole_again};
use crate::linked::LinkedRun;

/// Messages each end sends once faults have stopped.
const LAST_MESSAGES: usize = 12;

impl LinkedRun<'_> {
    /// Faults stop: all is delivered and done, who is open has all its rails again and can talk, and closing leaves nothing.
    pub(crate) fn finish(&mut self) -> Verdict {
        self.stop_faults()?;
        self.end_offers()?;
        self.until("liveness", "what was sent is not done", Self::is_quiet)?;
        self.check_agreement()?;
        let is_forgotten = |run: &mut Self| run.kept_transfers().is_none();
        let forgotten = self.until("conserved", "a transfer is not forgotten", is_forgotten);
        forgotten.map_err(|failure| match self.kept_transfers() {
            Some(kept) => crate::failure::failure("conserved", format!("kept: {kept}")),
            None => failure,
        })?;
        self.settle_windows();
        for line in 0..self.case.lines.len() {
            self.connect(line)?;
        }
        self.until("liveness", "what is to be linked is not", |run| {
            (0..run.case.lines.len()).all(|line| {
                let bond = run.current(line).map(|at| &run.bonds[at]);
                bond.is_some_and(Bond::is_whole)
            })
        })?;
        for number in 0..LAST_MESSAGES {
            for line in 0..self.case.lines.len() {
                for end in 0..2 {
                    self.send(line, end, 100 * (number as u16 + 1))?;
                }
            }
            self.pass(500_000)?;
        }
        self.until("liveness", "what was sent last is not done", Self::is_quiet)?;
        self.until("rails", "a rail is not up again", Self::are_rails_up)?;
        self.weigh()?;
        self.check_counts()?;
        self.audit()?;
        let cables = self.cables_to_cut();
        for line in 0..self.case.lines.len() {
            self.part(line);
            self.close(line, line % 2, CLOSE_LINK_WITHIN);
        }
        self.cut(&cables)?;
        self.until("liveness", "a link is not over", |run| {
            run.strangers.is_empty() && run.bonds.iter().all(Bond::is_over)
        })?;
        // A handshake that its peer gave up ends by its deadline, and has memory until then.
        self.until_within(
            self.bounds.iter().map(|bounds| bounds.home_ns).fold(0, u64::max),
            "conserved",
            "a channel is not closed, or a slot not home",
            Self::is_all_home,
        )?;
        self.check_memory_of_transfers()?;
        self.check_registrations()?;
        self.check_rejected()
    }

    /// No memory is left. Memory that a link lent outlasts the link for a while: the peer that writes there is to hear of the end.
    fn check_registrations(&mut self) -> Verdict {
        let are_gone = |[registered, began, windows]: [usize; 3]| registered == began + windows;
        let within_ns = self.bounds.iter().map(|bounds| bounds.gone_ns).fold(0, u64::max);
        let gone = self.until_within(within_ns, "conserved", "memory is left", |run| {
            are_gone(run.registrations())
        });
        gone.map_err(|failed| match self.registrations() {
            counts if are_gone(counts) => failed,
            [registered, began, windows] => failure(
                "conserved",
                format!("{registered} registrations are left, where {began} began, with {windows} windows"),
            ),
        })
    }

    /// The links that have a rail in each of two subnets, and are to lose one cable as they are closed: one bit of the seed says
    /// that of each line. They are marked, and those that share the cable with them.
    fn cables_to_cut(&mut self) -> Vec<[usize; 2]> {
        let lines = 0..self.case.lines.len();
        let is_chosen = |line: &usize| self.case.seed >> (3 + line % 8) & 1 == 1;
        let chosen: Vec<_> = lines
            .clone()
            .filter(is_chosen)
            .map(|line| self.pair(line))
            .collect();
        let is_double = |line: usize| {
            (0..2).all(|end| {
                let carried = self.carried(line, end);
                (0..2).all(|subnet| carried.iter().any(|(of, _)| *of == subnet))
            })
        };
        let is_single = |line: usize, pair: [usize; 2]| self.pair(line) == pair && !is_double(line);
        let has_single = |pair: &[usize; 2]| lines.clone().any(|line| is_single(line, *pair));
        let cut: Vec<_> = chosen.into_iter().filter(|pair| !has_single(pair)).collect();
        let struck: Vec<_> = lines.filter(|line| cut.contains(&self.pair(*line))).collect();
        for line in struck {
            if let Some(at) = self.current(line) {
                self.bonds[at].is_struck = true;
            }
        }
        cut
    }

    /// The hosts of a line, in one order for both directions.
    fn pair(&self, line: usize) -> [usize; 2] {
        let [from, to] = self.case.lines[line].hosts;
        [from.min(to), from.max(to)]
    }

    /// Cuts these in one subnet, in front of a farewell, under it or behind it.
    fn cut(&mut self, cables: &[[usize; 2]]) -> Verdict {
        self.pass(self.case.seed % 4 * self.case.latency_ns / 2)?;
        let subnet = (self.case.seed >> 2) as usize & 1;
        let is_one_device = self.case.links.is_some_and(|links| links.is_one_device);
        for [from, to] in cables {
            let end = |host: usize| port(host, subnet, is_one_device);
            let (from, to) = (end(*from)?, end(*to)?);
            // A host with a port in one subnet only has no such cable.
            let _ = self.fabric.perform(&Action::Link(from, to, false));
        }
        Ok(())
    }

    fn is_all_home(&mut self) -> bool {
        let hosts = &self.case.hosts;
        self.seats.iter_mut().zip(hosts).all(|(seat, case)| {
            let workers = seat.process.iter_mut().flat_map(|process| &mut process.workers);
            workers.into_iter().all(|worker| {
                let found = free_slots(worker, Worker::lease, Worker::release);
                found == case.slots as usize && worker.channels().count() == 0
            })
        })
    }

    fn stop_faults(&mut self) -> Verdict {
        let ends = self.case.fault_ends_ns();
        for ends_ns in ends.map_err(|error| failure("set-up", error.to_string()))? {
            let left_ns = ends_ns.saturating_sub(self.fabric.now().to_ns());
            self.pass(left_ns.saturating_add(1))?;
        }
        whole_again(&self.fabric)?;
        self.loads.clear();
        self.reach.heal(self.fabric.now().to_ns());
        for seat in &mut self.seats {
            (seat.stops_until_ns, seat.stops_once_heard_ns) = (0, None);
        }
        self.ask_no_more();
        // Late packets arrive now, and belong to nothing any more.
        self.pass(
            self.case
                .latest_ns()
                .map_err(|error| failure("set-up", error.to_string()))?,
        )?;
        // An application does this when its device notifies it of a change.
        (0..self.seats.len()).try_for_each(|host| self.refresh(host))?;
        (0..self.case.lines.len()).try_for_each(|line| self.reroute(line))
    }

    /// Goes on until `holds` is true, and fails as soon as anything awaited takes longer than its bound. If nothing
    /// awaited is late, it fails after the sum of all bounds of the slowest line.
    pub(crate) fn until(
        &mut self,
        oracle: &'static str,
        what: &str,
        holds: impl FnMut(&mut Self) -> bool,
    ) -> Verdict {
        let within_ns = self.bounds.iter().map(LinkBounds::whole_ns).fold(0, u64::max);
        self.until_within(within_ns, oracle, what, holds)
    }

    /// Does as [`Self::until`] does, with a bound of its own.
    fn until_within(
        &mut self,
        within_ns: u64,
        oracle: &'static str,
        what: &str,
        mut holds: impl FnMut(&mut Self) -> bool,
    ) -> Verdict {
        let deadline = Deadline::after(self.fabric.now(), Duration::from_nanos(within_ns));
        while !holds(self) {
            self.check_late()?;
            let now = self.fabric.now();
            if deadline.has_passed(now) {
                let bonds: Vec<_> = self.bonds.iter().filter(|bond| !bond.is_over()).collect();
                let within_ms = within_ns as f64 / 1e6;
                return Err(failure(
                    oracle,
                    format!("{what} after {within_ms:.3} ms: {bonds:?}"),
                ));
            }
            self.step(now.to_ns().saturating_add(10_000_000))?;
        }
        Ok(())
    }

    /// Returns whether every message is done and has come, and every request of a window has ended. A link that ended
    /// at one end only has to end at the other.
    pub(crate) fn is_quiet(&mut self) -> bool {
        self.seats.iter().all(|seat| seat.process.is_some())
            && self.bonds.iter().all(Bond::is_quiet)
            && self.are_windows_quiet()
            && self.are_transfers_quiet()
    }

    /// A rail that was up once is so again at both ends; where nothing hindered that, there is one for each subnet that
    /// both hosts are in.
    fn are_rails_up(&mut self) -> bool {
        self.bonds.iter().filter(|bond| !bond.is_over()).all(|bond| {
            let hosts = self.case.lines[bond.line].hosts;
            let [a, b] = hosts.map(|host| self.case.hosts[host].subnets);
            let due = if self.excuses.ports {
                0
            } else {
                (a & b).count_ones()
            };
            bond.rails.len() >= due as usize
                && (0..2).all(|end| self.is_there(bond, end))
                && self.rails_down(bond).next().is_none()
        })
    }

    fn is_there(&self, bond: &Bond, end: usize) -> bool {
        let host = self.case.lines[bond.line].hosts[end];
        self.seats[host].process.is_some() && bond.id(end).is_some()
    }

    /// The rails that were up once and are not, by the ends that say so.
    pub(crate) fn rails_down(&self, bond: &Bond) -> impl Iterator<Item = (usize, u8)> {
        (0..2).flat_map(move |end| {
            let host = self.case.lines[bond.line].hosts[end];
            let link = self.seats[host].process.as_ref().zip(bond.id(end));
            let is_down = move |rail: &u8| {
                link.is_some_and(|(process, id)| process.links.rail_state(id, *rail) != HealthState::Up)
            };
            let rails = bond.rails.iter().copied();
            rails.filter(is_down).map(move |rail| (end, rail))
        })
    }

    /// No frame came over a connection that is not of its epoch: each is of one, and in order.
    fn check_counts(&self) -> Verdict {
        for bond in self.bonds.iter().filter(|bond| !bond.is_over()) {
            for end in 0..2 {
                let host = self.case.lines[bond.line].hosts[end];
                let process = self.seats[host].process.as_ref();
                let counts = process
                    .zip(bond.id(end))
                    .map(|(process, id)| process.links.counts(id));
                let old = counts.map_or(0, |counts| counts.old_epoch);
                ensure(old == 0, "epoch", || {
                    format!("{old} frames of another epoch came to h{host}")
                })?;
            }
        }
        Ok(())
    }

    /// No completion was of nobody.
    fn check_rejected(&self) -> Verdict {
        for (number, seat) in self.seats.iter().enumerate() {
            for worker in seat.process.iter().flat_map(|process| &process.workers) {
                let rejected = worker.statistics().snapshot().rejected;
                ensure(rejected == 0, "rejected", || {
                    format!("a Worker of h{number} rejected {rejected} completions")
                })?;
            }
        }
        Ok(())
    }
}

/// The port of a host in a subnet.
fn port(host: usize, subnet: usize, is_one_device: bool) -> Verdict<End> {
    let name = |text: String| Name::new(&text).ok_or_else(|| failure("set-up", "a name"));
    let (device, number) = match is_one_device {
        true => ("sim0".to_owned(), subnet as u8 + 1),
        false => (format!("sim{subnet}"), 1),
    };
    Ok(End {
        host: name(format!("h{host}"))?,
        device: Some(name(device)?),
        port: Some(number),
    })
}
