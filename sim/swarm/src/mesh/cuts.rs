//! A cable that is cut for a moment, where nothing else is wrong: what is sent goes round it, and comes back once it is steady.

use doorbell::link::DETECTION_MAX;
use doorbell::mesh::MeshEvent;
use doorbell_sim::Plan;

use super::MeshRun;
use super::case::rank;
use crate::failure::{Verdict, ensure, failure};

const MS: u64 = 1_000_000;

/// Messages each way while the cable is cut.
const SAID: u16 = 5;

/// A link that is held down for less may be steady again before its next loss is found.
const NOTICED_NS: u64 = 500 * MS;

impl MeshRun<'_> {
    /// All that is between two is cut for so long, and whole again; twice in short where it flaps.
    pub(super) fn cut(&mut self, one: usize, other: usize, ns: u64, is_again: bool) -> Verdict {
        let ranks = self.mesh.ranks();
        let detected_ns = DETECTION_MAX.as_nanos() as u64;
        let is_pair = one != other && one < ranks && other < ranks && self.mesh.shares(one, other);
        let can_be = is_pair && self.is_untroubled() && ns > detected_ns;
        let is_there = self.is_there();
        if !can_be || !is_there[one] || !is_there[other] {
            return Ok(());
        }
        self.pass(self.still_ns())?;
        if self.unsettled().is_some() {
            return Ok(());
        }
        self.delivers()?;
        // Nobody holds a link down on account of what was before.
        self.pass(self.held_ns())?;
        let hops = self
            .mesh
            .hops_without([one, other], [one, other], &self.is_there());
        let is_beside = hops.is_some_and(|hops| hops <= self.mesh.hops_max.saturating_add(1));
        let again_ns = [one, other]
            .map(|at| self.mesh.members[at].resend_after_ns)
            .into_iter()
            .max()
            .unwrap_or(0);
        let round_ns = detected_ns + self.joined_ns() + self.load_with_ns(SAID) + again_ns;
        // Messages that go round have all their time, and the link recovers nevertheless.
        let cut_ns = if is_beside { ns.max(round_ns) } else { ns };
        if self.mesh.recover_within_ns < cut_ns + 2 * self.mesh.backoff_ns + NOTICED_NS {
            return Ok(());
        }
        self.is_pristine = false;
        self.is_cut = Some((one, other));
        for time in 0..=u32::from(is_again) {
            let marks = [one, other].map(|at| {
                self.seats[at]
                    .process
                    .as_ref()
                    .map_or(0, |process| process.events.len())
            });
            self.note(one, format_args!("is cut from {other}"));
            self.connects(one, other, false)?;
            let began_ns = self.now_ns();
            if self.is_there()[one] && self.is_there()[other] {
                self.put_out(one, other, SAID, 30);
                self.put_out(other, one, SAID, 30);
            }
            self.goes_round([one, other])?;
            if is_beside {
                let left_ns = (began_ns + round_ns).saturating_sub(self.now_ns());
                let is_done = self.pass_until(left_ns, |run| Ok(run.is_delivered()))?;
                ensure(is_done, "round", || {
                    format!(
                        "{}, after {round_ns} ns without the cable",
                        self.undelivered().unwrap_or_default()
                    )
                })?;
            }
            self.pass((began_ns + ns).saturating_sub(self.now_ns()))?;
            self.connects(one, other, true)?;
            let healed_ns = self.now_ns();
            let held_ns = [one, other]
                .map(|at| self.mesh.members[at].hold_down_ns)
                .into_iter()
                .max()
                .unwrap_or(0);
            let is_flap = time > 0 && held_ns >= 2 * NOTICED_NS;
            if is_flap && is_beside {
                // It is not the way again before it was there for as long.
                self.pass_until(held_ns * 9 / 10, |run| {
                    let hops = run.seats[one]
                        .process
                        .as_ref()
                        .and_then(|process| process.mesh.routes().hops(rank(other)));
                    ensure(hops != Some(1), "held", || {
                        format!(
                            "{one} goes to {other} at once, {} ns behind a flap",
                            run.now_ns() - healed_ns
                        )
                    })?;
                    Ok(false)
                })?;
            }
            let bound_ns =
                2 * self.mesh.backoff_ns + NOTICED_NS + self.joined_ns() + if time > 0 { held_ns } else { 0 };
            self.settles(bound_ns, "rejoins")?;
            self.delivers()?;
            let is_told = |at: usize, of: usize, mark: usize| {
                let process = self.seats[at].process.as_ref();
                let events = process
                    .and_then(|process| process.events.get(mark..))
                    .unwrap_or_default();
                events.contains(&MeshEvent::HeldDown(rank(of)))
            };
            let told = [is_told(one, other, marks[0]), is_told(other, one, marks[1])];
            ensure(
                told.contains(&true) == is_flap || (time > 0 && !is_flap),
                "held",
                || format!("{one} and {other} are told of a flap: {told:?}, at the cut number {time}"),
            )?;
        }
        self.pass(self.held_ns())?;
        self.is_cut = None;
        Ok(())
    }

    /// Sends messages between members whose route led over the cable that was just cut, if another route is left.
    /// They have to arrive as soon as the senders hear of the cut. None waits for the retransmission of a late
    /// message.
    fn goes_round(&mut self, cable: [usize; 2]) -> Verdict {
        let is_there = self.is_there();
        let hops_most = self.mesh.hops_max.saturating_add(1);
        let mut round = Vec::new();
        for (from, seat) in self.seats.iter().enumerate() {
            for (to, by) in seat.process.iter().flat_map(|process| process.mesh.ways()) {
                let all = core::iter::once(rank(from)).chain(by.iter().copied()).chain([to]);
                let all: Vec<_> = all.map(|rank| rank.index()).collect();
                let ends = [from, to.index()];
                let is_of_it = |pair: &[usize]| pair.contains(&cable[0]) && pair.contains(&cable[1]);
                let hops = self.mesh.hops_without(cable, ends, &is_there);
                let is_round = hops.is_some_and(|hops| hops <= hops_most);
                if all.windows(2).any(is_of_it) && all.len() > 2 && is_round {
                    round.push(ends);
                }
            }
        }
        for [from, to] in &round {
            self.put_out(*from, *to, 1, 30);
        }
        // The news, and then the message, by a hop each.
        let within_ns = DETECTION_MAX.as_nanos() as u64 + 2 * self.mesh.ranks() as u64 * self.turn_ns();
        let left = |run: &Self| run.undelivered_of(|from, to| round.contains(&[from, to]));
        let is_done = self.pass_until(within_ns, |run| Ok(left(run).is_none()))?;
        ensure(is_done, "round", || {
            let left = left(self).unwrap_or_default();
            format!("{left}, {within_ns} ns after the cable between {cable:?} was cut")
        })
    }

    /// The longest that a link is held down.
    fn held_ns(&self) -> u64 {
        let held = self.mesh.members.iter().map(|member| member.hold_down_ns).max();
        held.unwrap_or(0) + 10 * MS
    }

    /// All cables between two carry something, or nothing.
    fn connects(&self, one: usize, other: usize, is_up: bool) -> Verdict {
        let both = 1 << one | 1 << other;
        let subnets = self.mesh.subnets.iter().enumerate();
        for (subnet, _) in subnets.filter(|(_, members)| **members & both == both) {
            let word = if is_up { "up" } else { "down" };
            let text = format!("at 0ns link h{one}/sim{subnet}-h{other}/sim{subnet} {word}");
            let plan: Plan = text
                .parse()
                .map_err(|error| failure("set-up", format!("{error}")))?;
            for clause in plan.clauses {
                if let doorbell_sim::plan::Clause::At(step) = clause {
                    let done = self.fabric.perform(&step.action);
                    done.map_err(|error| failure("set-up", error.to_string()))?;
                }
            }
        }
        Ok(())
    }
}
