//! Collectives of all members, beside a plain computation of the same.

use core::ops::Range;

use doorbell::mesh::{CollectiveError, Data, Group, GroupError, MeshSendError, Running};

use super::MeshRun;
use super::case::{CollectiveCase, CollectiveKind, CollectiveTrouble, Start, rank};
use crate::failure::{Verdict, ensure, failure};

/// A collective under way on all members.
struct Round {
    what: CollectiveKind,
    element_bytes: usize,
    inputs: Vec<Vec<u8>>,
    outputs: Vec<Vec<u8>>,
    /// When each begins; never where it does not take part.
    begins_ns: Vec<u64>,
    has_begun: Vec<bool>,
    running: Vec<Option<Running>>,
    ended: Vec<Option<Result<(), GroupError>>>,
}

impl Round {
    fn new(what: CollectiveKind, inputs: Vec<Vec<u8>>, element_bytes: usize, now_ns: u64) -> Self {
        let ranks = inputs.len();
        Self {
            what,
            element_bytes,
            outputs: inputs.clone(),
            inputs,
            begins_ns: vec![now_ns; ranks],
            has_begun: vec![false; ranks],
            running: (0..ranks).map(|_| None).collect(),
            ended: (0..ranks).map(|_| None).collect(),
        }
    }

    fn barrier(ranks: usize) -> Self {
        Self::new(CollectiveKind::Barrier, vec![Vec::new(); ranks], 1, 0)
    }

    /// Has all go on; says whether all have ended.
    fn poll(&mut self, run: &mut MeshRun<'_>) -> Verdict<bool> {
        for at in 0..self.inputs.len() {
            self.poll_at(run, at)?;
        }
        Ok(self.ended.iter().all(Option::is_some))
    }

    fn poll_at(&mut self, run: &mut MeshRun<'_>, at: usize) -> Verdict {
        let now_ns = run.now_ns();
        let stops = run.seats[at].stops_until_ns > now_ns;
        if stops || self.ended[at].is_some() || now_ns < self.begins_ns[at] {
            return Ok(());
        }
        let seat = &mut run.seats[at];
        let (Some(process), Some(group)) = (&mut seat.process, &mut seat.group) else {
            // It is of no group any more.
            self.ended[at] = Some(Err(GroupError::TimedOut));
            return Ok(());
        };
        let needs_input = self.what == CollectiveKind::AllToAll;
        let mut data = Data {
            input: needs_input.then_some(self.inputs[at].as_slice()),
            output: &mut self.outputs[at],
            element_bytes: self.element_bytes,
        };
        if !self.has_begun[at] {
            self.has_begun[at] = true;
            let begun = group.begin(&process.mesh, self.what.collective(), &mut data);
            let begun = begun.map_err(|error| failure("collective", format!("rank {at}: {error}")))?;
            self.running[at] = Some(begun);
        }
        let Some(running) = &mut self.running[at] else {
            return Ok(());
        };
        let mut is_cut = false;
        let polled = running.poll(group, &mut process.mesh, &mut data, |to, from| {
            is_cut |= from.len() % self.element_bytes != 0 || to.len() != from.len();
            to.iter_mut()
                .zip(from)
                .for_each(|(to, from)| *to = to.wrapping_add(*from));
        });
        ensure(!is_cut, "collective", || {
            format!("rank {at} combines a part of an element")
        })?;
        let outcome = match polled {
            Ok(false) => return Ok(()),
            Ok(true) => Ok(()),
            Err(error) => Err(error),
        };
        let text = format!("{outcome:?}");
        if outcome.is_ok() && self.what == CollectiveKind::Barrier {
            ensure(
                self.has_begun.iter().all(|has_begun| *has_begun),
                "barrier",
                || format!("rank {at} is out, and not all are in: {:?}", self.has_begun),
            )?;
        }
        self.ended[at] = Some(outcome);
        run.note(at, format_args!("{:?}: {text}", self.what));
        Ok(())
    }

    /// The outcome of each member; none of a member that waits.
    fn state(&self) -> String {
        format!(
            "{:?} of {} bytes: {:?}",
            self.what,
            self.inputs[0].len(),
            self.ended
        )
    }

    /// All ended well, and have what they are to have.
    fn check(&self) -> Verdict {
        for (at, ended) in self.ended.iter().enumerate() {
            ensure(matches!(ended, Some(Ok(()))), "collective", || {
                format!("rank {at}: {}", self.state())
            })?;
            for (place, bytes) in self.expected(at) {
                ensure(
                    self.outputs[at].get(place.clone()) == Some(&bytes),
                    "collective",
                    || format!("{:?}: rank {at} has something else at {place:?}", self.what),
                )?;
            }
        }
        Ok(())
    }

    /// The place of a rank's block: the first ones are an element longer where it does not come out even.
    fn block(&self, of: usize) -> Range<usize> {
        let ranks = self.inputs.len();
        let elements = self.inputs[0].len() / self.element_bytes;
        let count = |of: usize| elements / ranks + usize::from(of < elements % ranks);
        let begin: usize = (0..of).map(count).sum();
        begin * self.element_bytes..(begin + count(of)) * self.element_bytes
    }

    /// The bytes that a member is to have, each with its place.
    fn expected(&self, at: usize) -> Vec<(Range<usize>, Vec<u8>)> {
        let bytes = self.inputs[0].len();
        let ranks = self.inputs.len();
        let sum = |place: Range<usize>| {
            place
                .map(|byte| {
                    self.inputs
                        .iter()
                        .fold(0_u8, |sum, input| sum.wrapping_add(input[byte]))
                })
                .collect::<Vec<u8>>()
        };
        match self.what {
            CollectiveKind::Barrier => Vec::new(),
            CollectiveKind::Broadcast { root } => vec![(0..bytes, self.inputs[usize::from(root)].clone())],
            CollectiveKind::AllGather => (0..ranks)
                .map(|of| (self.block(of), self.inputs[of][self.block(of)].to_vec()))
                .collect(),
            CollectiveKind::ReduceScatter => vec![(self.block(at), sum(self.block(at)))],
            CollectiveKind::AllReduce => vec![(0..bytes, sum(0..bytes))],
            CollectiveKind::AllToAll => (0..ranks)
                .map(|of| (self.block(of), self.inputs[of][self.block(at)].to_vec()))
                .collect(),
        }
    }
}

impl MeshRun<'_> {
    /// All members do a collective.
    pub(super) fn collective(&mut self, mut case: CollectiveCase) -> Verdict {
        let ranks = self.mesh.ranks();
        if case.what == CollectiveKind::AllToAll {
            // Blocks of one length.
            case.elements -= case.elements % ranks as u32;
        }
        if self.weakness.may_any_end() {
            case.trouble = CollectiveTrouble::None;
        }
        let names = |member: u8| usize::from(member) < ranks;
        let is_right = match (case.what, case.trouble) {
            (CollectiveKind::Broadcast { root }, _) if !names(root) => false,
            (_, CollectiveTrouble::Restart { member, .. } | CollectiveTrouble::Alone { member, .. }) => {
                names(member)
            }
            (_, CollectiveTrouble::Longer { member }) => {
                names(member) && case.what != CollectiveKind::Barrier
            }
            _ => true,
        };
        if !is_right || case.element_bytes == 0 || !self.is_ready()? {
            return Ok(());
        }
        self.has_collectives = true;
        self.is_collecting = true;
        let done = self.collect(case);
        self.is_collecting = false;
        done
    }

    /// Whether all know all, and have what was sent: waits for that as long as it may take.
    fn is_ready(&mut self) -> Verdict<bool> {
        let ranks = self.mesh.ranks();
        let can_be = (0..ranks).all(|at| (0..ranks).all(|to| to == at || self.is_reachable(at, to)));
        if !can_be {
            return Ok(false);
        }
        let seats = self
            .seats
            .iter()
            .map(|seat| seat.stops_until_ns.max(seat.holds_until_ns));
        let stops_ns = seats.max().unwrap_or(0).saturating_sub(self.now_ns());
        self.pass(stops_ns)?;
        if self.is_untroubled() {
            let bound_ns = self.settle_ns();
            self.settles(bound_ns, "settles")?;
            self.delivers()?;
            return Ok(true);
        }
        let bound_ns = self.settle_ns();
        self.pass_until(bound_ns, |run| Ok(run.is_whole() && run.is_delivered()))
    }

    /// Whether everybody reaches everybody, as they are.
    fn is_whole(&self) -> bool {
        self.seats.iter().all(|seat| {
            let Some(process) = &seat.process else {
                return false;
            };
            let mut others = self.seats.iter().enumerate();
            others.all(|(other, of)| process.mesh.started(rank(other)) == of.starts.last().copied())
                && process.mesh.reached().len() as usize == self.seats.len()
        })
    }

    /// All make another group; where that is at one moment, as many have been made of each.
    fn group(&mut self, at: usize) -> Verdict {
        let seat = &mut self.seats[at];
        let Some(process) = &mut seat.process else {
            return Ok(());
        };
        let made = Group::new(&mut process.mesh);
        seat.group = Some(made.map_err(|error| failure("group", format!("rank {at}: {error}")))?);
        Ok(())
    }

    fn groups(&mut self) -> Verdict {
        (0..self.mesh.ranks()).try_for_each(|at| self.group(at))
    }

    /// How long a collective may take.
    fn round_ns(&self, case: &CollectiveCase) -> u64 {
        let mesh = self.mesh;
        let bytes = u64::from(case.elements + 1) * u64::from(case.element_bytes);
        let payload = u64::from(mesh.message_bytes_max).saturating_sub(40 + u64::from(case.element_bytes));
        let messages = 2 * mesh.ranks() as u64 * (bytes / payload.max(1) + 2);
        let told_ns = mesh
            .members
            .iter()
            .map(|member| member.acknowledge_after_ns)
            .max();
        let hop_ns = 2 * self.case.latency_ns + 2 * mesh.polls_every_ns;
        let each_ns = told_ns.unwrap_or(0) + 2 * mesh.ranks() as u64 * hop_ns;
        let quiet_ns = if self.is_untroubled() {
            0
        } else {
            2 * self.settle_ns()
        };
        let stops_ns = self
            .seats
            .iter()
            .map(|seat| seat.stops_until_ns)
            .max()
            .unwrap_or(0);
        case.lag_ns
            + self.joined_ns()
            + messages * each_ns
            + quiet_ns
            + stops_ns.saturating_sub(self.now_ns())
    }

    fn collect(&mut self, case: CollectiveCase) -> Verdict {
        let ranks = self.mesh.ranks();
        if self.seats.iter().any(|seat| seat.group.is_none()) {
            self.groups()?;
        }
        let now_ns = self.now_ns();
        let element_bytes = usize::from(case.element_bytes);
        let bytes = |of: usize| {
            let longer = case.trouble == CollectiveTrouble::Longer { member: of as u8 };
            let more = if case.what == CollectiveKind::AllToAll {
                ranks
            } else {
                1
            };
            element_bytes * (case.elements as usize + if longer { more } else { 0 })
        };
        let input = |of: usize| {
            (0..bytes(of))
                .map(|at| (at * 7 + of * 31 + at / 251) as u8)
                .collect()
        };
        let mut round = Round::new(case.what, (0..ranks).map(input).collect(), element_bytes, now_ns);
        if let Some(begins_ns) = round.begins_ns.get_mut(usize::from(case.late)) {
            *begins_ns += case.lag_ns;
        }
        let bound_ns = self.round_ns(&case);
        match case.trouble {
            CollectiveTrouble::None => {
                let has_ended = self.pass_until(bound_ns, |run| round.poll(run))?;
                let has_failed = round.ended.iter().any(|ended| matches!(ended, Some(Err(_))));
                if self.weakness.may_any_end() && has_failed {
                    // A way may be lost and found again before all hear of it.
                    self.calm_down()?;
                    // Announcements of members from before they were cut off count until they say more.
                    self.pass(self.joined_ns())?;
                    let bound_ns = self.settle_ns() + bound_ns;
                    self.settles(bound_ns, "settles")?;
                    return self.meet(&mut round, bound_ns);
                }
                ensure(has_ended, "collective", || {
                    format!("some wait after {bound_ns} ns: {}", round.state())
                })?;
                round.check()
            }
            CollectiveTrouble::Restart { member, after_ns } => {
                let member = usize::from(member);
                self.pass_until(after_ns, |run| round.poll(run).map(|_| false))?;
                let groups: Vec<_> = self.seats.iter_mut().map(|seat| seat.group.take()).collect();
                self.vanish(member);
                self.start(member, Start::Now)?;
                for (at, group) in groups.into_iter().enumerate().filter(|(at, _)| *at != member) {
                    self.seats[at].group = group;
                }
                let settle_ns = self.settle_ns();
                // Members that are in it still have their groups.
                let has_ended = self.pass_until(bound_ns + settle_ns, |run| round.poll(run))?;
                ensure(has_ended, "collective", || {
                    format!(
                        "rank {member} is gone, and some wait after {bound_ns} ns: {}",
                        round.state()
                    )
                })?;
                for (at, ended) in round.ended.iter().enumerate().filter(|(at, _)| *at != member) {
                    let Some(Err(error)) = ended else { continue };
                    let is_reason = match error {
                        GroupError::Collective(CollectiveError::Exchange(
                            MeshSendError::Restarted(whom) | MeshSendError::Unreachable(whom),
                        )) => *whom == rank(member) || !self.is_beside(at, whom.index(), member),
                        _ => false,
                    };
                    ensure(is_reason, "reason", || {
                        format!("rank {at}, where {member} is gone: {error:?}")
                    })?;
                }
                self.settles(settle_ns, "settles")?;
                let again = CollectiveCase {
                    trouble: CollectiveTrouble::None,
                    ..case
                };
                self.begin_anew()?;
                self.collect(again)
            }
            CollectiveTrouble::Alone { member, after_ns } => {
                let member = usize::from(member);
                round.begins_ns[member] = u64::MAX;
                self.pass_until(after_ns, |run| round.poll(run).map(|_| false))?;
                round.ended[member] = Some(Err(GroupError::TimedOut));
                self.meet(&mut round, bound_ns + self.settle_ns())?;
                for (at, ended) in round.ended.iter().enumerate().filter(|(at, _)| *at != member) {
                    let is_reason = match ended {
                        Some(Err(GroupError::Collective(CollectiveError::Exchange(
                            MeshSendError::Regrouped(_),
                        )))) => true,
                        Some(Err(_)) => false,
                        _ => true,
                    };
                    ensure(is_reason, "reason", || {
                        format!("rank {at}, where {member} regrouped: {ended:?}")
                    })?;
                }
                Ok(())
            }
            CollectiveTrouble::Longer { member } => {
                let is_found = |round: &Round| {
                    let mut ended = round.ended.iter();
                    ended.any(|ended| {
                        matches!(
                            ended,
                            Some(Err(GroupError::Collective(CollectiveError::Mismatch { .. })))
                        )
                    })
                };
                let has_found = self.pass_until(bound_ns, |run| {
                    round.poll(run)?;
                    Ok(is_found(&round))
                })?;
                ensure(has_found, "collective", || {
                    format!(
                        "rank {member} brings more, and nobody finds out: {}",
                        round.state()
                    )
                })?;
                self.begin_anew()
            }
        }
    }

    /// Members of which a collective came to nothing make other groups, until all meet in one. They begin with a collective in which what
    /// goes does not wait for what comes.
    fn meet(&mut self, before: &mut Round, bound_ns: u64) -> Verdict {
        let ranks = self.mesh.ranks();
        let mut next = Round::new(CollectiveKind::AllToAll, vec![Vec::new(); ranks], 1, 0);
        let mut is_in_next = vec![false; ranks];
        let has_ended = self.pass_until(bound_ns, |run| {
            for (at, is_in_next) in is_in_next.iter_mut().enumerate() {
                before.poll_at(run, at)?;
                let is_to_be = matches!(next.ended[at], Some(Err(_))) || !*is_in_next;
                if before.ended[at].is_some() && is_to_be {
                    // Ways may be too long for a moment.
                    if run.weakness.may_any_end() && !run.is_whole() {
                        continue;
                    }
                    *is_in_next = true;
                    run.group(at)?;
                    (next.ended[at], next.running[at], next.has_begun[at]) = (None, None, false);
                }
                if *is_in_next {
                    next.poll_at(run, at)?;
                }
            }
            Ok(next.ended.iter().all(|ended| matches!(ended, Some(Ok(())))))
        })?;
        ensure(has_ended, "collective", || {
            format!("not all meet: {}, {}", before.state(), next.state())
        })
    }

    /// All make another group, and meet in it.
    fn begin_anew(&mut self) -> Verdict {
        self.groups()?;
        let mut next = Round::barrier(self.mesh.ranks());
        let bound_ns = self.joined_ns() + self.settle_ns();
        let has_ended = self.pass_until(bound_ns, |run| next.poll(run))?;
        ensure(has_ended, "collective", || {
            format!("a new group: {}", next.state())
        })?;
        next.check()
    }

    /// Whether a way leads from one to another without this one.
    fn is_beside(&self, from: usize, to: usize, without: usize) -> bool {
        let mut is_there = self.is_there();
        is_there[without] = false;
        let hops = self.mesh.hops(from, &is_there)[to];
        hops.is_some_and(|hops| hops <= self.mesh.hops_max.saturating_add(1))
    }
}
