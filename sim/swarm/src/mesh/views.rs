//! Members that are to be reached, by which ways and by when; and those that may be given up.

use doorbell::link::{DETECTION_MAX, FinalReason};
use doorbell::mesh::{MeshEvent, NotLinked};
use doorbell_sim::plan::{Action, Clause, End};

use super::MeshRun;
use super::case::{MeshCase, Start, rank};
use crate::case::Case;
use crate::failure::{Verdict, ensure, failure};

const MS: u64 = 1_000_000;

/// An outage that is shorter costs no rail.
const HARMLESS_NS: u64 = 60 * MS;

/// How long making a rail may take beside the back-off: a handshake that nobody answers, and the first frame.
const MADE_WITHIN_NS: u64 = 2_000 * MS;

/// Which pairs may lose their link for good, by what goes wrong with it.
#[derive(Debug)]
pub(super) struct Weakness {
    /// The time that the link of a pair may be without a rail, by members.
    without_ns: Vec<Vec<u64>>,
    /// Whether anything is wrong with it, be it for a moment.
    is_struck: Vec<Vec<bool>>,
    /// When the last of it is over.
    ends_ns: u64,
    recover_within_ns: u64,
    has_packets: bool,
    /// Ways round what is struck may be too long.
    is_far: bool,
}

impl Weakness {
    pub(super) fn of(case: &Case, mesh: &MeshCase) -> anyhow::Result<Self> {
        let ranks = mesh.ranks();
        let mut weakness = Self {
            without_ns: vec![vec![0; ranks]; ranks],
            is_struck: vec![vec![false; ranks]; ranks],
            ends_ns: 0,
            recover_within_ns: mesh
                .recover_within_ns
                .saturating_sub(mesh.backoff_ns + MADE_WITHIN_NS),
            has_packets: false,
            is_far: !case.plan.is_empty() && usize::from(mesh.hops_max) < ranks,
        };
        for clause in case.plan()?.clauses {
            let step = match clause {
                Clause::At(step) => step,
                Clause::Packets(_) => {
                    weakness.has_packets = true;
                    continue;
                }
                _ => continue,
            };
            let lasts_ns = step.lasts_ns.unwrap_or(0);
            weakness.ends_ns = weakness.ends_ns.max(step.at_ns + lasts_ns);
            let of = |end: &End| end.host.to_string();
            let (one, other) = match &step.action {
                Action::Link(one, other, _) => (of(one), of(other)),
                Action::Port(end, _) => (of(end), "any".to_owned()),
                Action::Pause(host, _) => (host.to_string(), "any".to_owned()),
                _ => continue,
            };
            let is = |name: &str, at: usize| name == "any" || *name == format!("h{at}");
            for a in 0..ranks {
                for b in 0..ranks {
                    if is(&one, a) && is(&other, b) || is(&one, b) && is(&other, a) {
                        weakness.is_struck[a][b] = true;
                        if lasts_ns >= HARMLESS_NS {
                            weakness.without_ns[a][b] += lasts_ns;
                        }
                    }
                }
            }
        }
        Ok(weakness)
    }

    /// A process stands still: a peer that has no rail to it meanwhile gets none.
    pub(super) fn stops(&mut self, at: usize, ns: u64) {
        for other in 0..self.without_ns.len() {
            for (a, b) in [(at, other), (other, at)] {
                if self.ends_ns > 0 || self.has_packets {
                    self.without_ns[a][b] += ns;
                }
            }
        }
    }

    /// Whether the link of two may be given up.
    fn may_end(&self, one: usize, other: usize) -> bool {
        let without_ns = self.without_ns[one][other];
        without_ns > 0 && without_ns >= self.recover_within_ns
    }

    /// Whether any may be, or a way be lost.
    pub(super) fn may_any_end(&self) -> bool {
        let ranks = self.without_ns.len();
        self.is_far || (0..ranks).any(|one| (0..ranks).any(|other| self.may_end(one, other)))
    }
}

impl MeshRun<'_> {
    /// The longest that anything takes until it is right again once nothing goes wrong.
    pub(super) fn settle_ns(&self) -> u64 {
        let mesh = self.mesh;
        let longest =
            |of: fn(&super::case::MemberCase) -> u64| mesh.members.iter().map(of).max().unwrap_or(0);
        let detected_ns = DETECTION_MAX.as_nanos() as u64;
        let sought_ns = 2 * MADE_WITHIN_NS;
        let held_ns = longest(|member| member.hold_down_ns);
        let again_ns = 2 * longest(|member| member.resend_after_ns);
        detected_ns
            + mesh.recover_within_ns
            + 3 * mesh.backoff_ns
            + sought_ns
            + MADE_WITHIN_NS
            + held_ns
            + again_ns
    }

    /// How long members take to be linked and known to all where nothing is in their way: handshakes of some round trips, and news
    /// of each that go as far as all of them are.
    pub(super) fn joined_ns(&self) -> u64 {
        100 * MS + 20 * self.mesh.ranks() as u64 * self.turn_ns()
    }

    /// How long a frame and its answer take between two members that poll.
    pub(super) const fn turn_ns(&self) -> u64 {
        2 * self.case.latency_ns + 2 * self.mesh.polls_every_ns + MS
    }

    /// Whether a way leads from one to another, through those that are there and as far as messages go.
    pub(super) fn is_reachable(&self, from: usize, to: usize) -> bool {
        let hops = self.mesh.hops(from, &self.is_there())[to];
        hops.is_some_and(|hops| hops > 0 && hops <= self.mesh.hops_max.saturating_add(1))
    }

    /// All are linked and know each other in time.
    pub(super) fn join(&mut self) -> Verdict {
        let bound_ns = self.joined_ns();
        self.settles(bound_ns, "joins")
    }

    /// Everybody sees the same mesh, the one there is, within so long.
    pub(super) fn settles(&mut self, within_ns: u64, oracle: &'static str) -> Verdict {
        let is_settled = self.pass_until(within_ns, |run| Ok(run.unsettled().is_none()))?;
        ensure(is_settled, oracle, || {
            let text = self.unsettled().unwrap_or_default();
            format!("{text}, after {within_ns} ns")
        })
    }

    /// The first thing that is not yet as it is to be.
    pub(super) fn unsettled(&self) -> Option<String> {
        let is_there = self.is_there();
        let ranks = self.mesh.ranks();
        let hops_most = self.mesh.hops_max.saturating_add(1);
        for at in (0..ranks).filter(|at| is_there[*at]) {
            let Some(process) = &self.seats[at].process else {
                return Some(format!("rank {at} has no process"));
            };
            let hops = self.mesh.hops(at, &is_there);
            for (other, far) in hops.iter().enumerate() {
                let near = (0..ranks)
                    .filter(|near| *near != other && is_there[*near] && self.mesh.shares(other, *near));
                let near: Vec<_> = near.map(rank).collect();
                let said: Vec<_> = process.mesh.map().neighbours(rank(other)).iter().collect();
                if far.is_some() && said != near {
                    return Some(format!(
                        "rank {at} has {said:?} as neighbours of {other}, not {near:?}"
                    ));
                }
            }
            for other in (0..ranks).filter(|other| *other != at) {
                let whom = rank(other);
                let far = hops[other];
                let is_reached = process.mesh.reached().contains(whom);
                let is_to_be = far.is_some_and(|far| far <= hops_most);
                if is_reached != is_to_be {
                    return Some(format!(
                        "rank {at} reaches {other}: {is_reached}, at {far:?} hops"
                    ));
                }
                if process.mesh.routes().hops(whom) != far {
                    let hops = process.mesh.routes().hops(whom);
                    return Some(format!("rank {at} has {other} at {hops:?} hops, not {far:?}"));
                }
                let is_near = far == Some(1);
                if process.mesh.is_linked(whom) != is_near {
                    return Some(format!("rank {at} is linked to {other}: {}", !is_near));
                }
                let started = self.seats[other].starts.last().copied();
                if far.is_some() && process.mesh.started(whom) != started {
                    let known = process.mesh.started(whom);
                    return Some(format!(
                        "rank {at} knows of {other} the start {known:?}, not {started:?}"
                    ));
                }
            }
        }
        None
    }

    /// Ways and reasons are right on each member, where all is settled.
    pub(super) fn check_views(&self) -> Verdict {
        let is_there = self.is_there();
        for (at, seat) in self.seats.iter().enumerate() {
            let Some(process) = &seat.process else { continue };
            let hops = self.mesh.hops(at, &is_there);
            for (to, by) in process.mesh.ways() {
                let far = hops[to.index()].unwrap_or(0);
                let all = core::iter::once(rank(at)).chain(by.iter().copied()).chain([to]);
                let all: Vec<_> = all.map(|rank| rank.index()).collect();
                let is_way = all.windows(2).all(|pair| self.mesh.shares(pair[0], pair[1]));
                let is_short = by.len() + 1 == usize::from(far);
                ensure(is_way && is_short, "ways", || {
                    format!("rank {at} goes to {to} by {by:?}, and it is {far} hops")
                })?;
            }
            for other in (0..self.mesh.ranks()).filter(|other| *other != at) {
                self.check_reasons(at, other)?;
            }
        }
        Ok(())
    }

    /// Why no link leads from one to another, as both say.
    fn reasons(&self, at: usize, other: usize) -> Vec<String> {
        let of = |at: usize, other: usize| {
            let process = self.seats[at].process.iter();
            process.flat_map(move |process| {
                let reasons = process.mesh.not_linked(rank(other));
                reasons.map(move |reason| format!("{at} of {other}: {reason}"))
            })
        };
        of(at, other).chain(of(other, at)).collect()
    }

    /// Why no link leads to a member is told, where this one is to link to it; and nothing where there is one.
    fn check_reasons(&self, at: usize, other: usize) -> Verdict {
        let (Some(process), true) = (&self.seats[at].process, self.is_there()[other]) else {
            return Ok(());
        };
        let reasons: Vec<String> = process
            .mesh
            .not_linked(rank(other))
            .map(|reason| reason.to_string())
            .collect();
        if self.mesh.shares(at, other) {
            return ensure(reasons.is_empty(), "reason", || {
                format!("rank {at} is linked to {other}, and says {reasons:?}")
            });
        }
        let mut told = process.mesh.not_linked(rank(other));
        let is_told =
            told.any(|reason| matches!(reason, NotLinked::NotBegun(doorbell::link::LinkError::NoRoute(_))));
        let is_asked = other < at;
        ensure(is_told || !is_asked, "reason", || {
            format!("no subnet leads from {at} to {other}, and it says {reasons:?}")
        })
    }

    /// Takes in what a member was told.
    pub(super) fn hear(&mut self, at: usize, event: MeshEvent) -> Verdict {
        self.note(at, format_args!("{event:?}"));
        let excuse =
            |holds: bool, what: &str| ensure(holds, "excuse", || format!("rank {at}: {event:?}, {what}"));
        match event {
            MeshEvent::Reachable(whom) | MeshEvent::Unreachable(whom) => {
                let is_lost = matches!(event, MeshEvent::Unreachable(_));
                let may_be = !is_lost || self.may_lose(at, whom.index());
                let Some(process) = &mut self.seats[at].process else {
                    return Ok(());
                };
                let was_told = process.told.contains(whom);
                process.told = if is_lost {
                    process.told.without(whom)
                } else {
                    process.told.with(whom)
                };
                ensure(was_told == is_lost, "told", || {
                    format!("rank {at}: {event:?} again")
                })?;
                excuse(may_be, "and a way leads there")?;
            }
            MeshEvent::Restarted(whom) => {
                let starts = &self.seats[whom.index()].starts;
                excuse(starts.len() > 1, "which was not")?;
                let process = self.seats[at].process.as_ref();
                let is_reached = process.is_some_and(|process| process.told.contains(whom));
                excuse(!is_reached, "and it is reachable")?;
            }
            MeshEvent::StartedBefore(whom) | MeshEvent::StartedAhead(whom) => {
                // A clock that is set back finds others ahead.
                let mut either = [at, whom.index()].into_iter();
                let is_wrong = either.any(|member| self.has_wrong_start(member));
                excuse(is_wrong, "which it was not")?;
            }
            MeshEvent::HeldDown(whom) => {
                let is_struck = self.weakness.is_struck[at][whom.index()] || self.weakness.has_packets;
                let is_cut = [Some((at, whom.index())), Some((whom.index(), at))].contains(&self.is_cut);
                let is_changing = self.is_changing(at) || self.is_changing(whom.index());
                excuse(is_struck || is_cut || is_changing, "and nothing flaps")?;
            }
            MeshEvent::LinkLost { rank: whom, reason } => {
                let is_weak = whom.is_none_or(|whom| self.weakness.may_end(at, whom.index()));
                // A member that says a wrong start is changing, too.
                let is_changing = match whom {
                    Some(whom) => self.is_changing(at) || self.is_changing(whom.index()),
                    None => self.is_any_changing(),
                };
                let strange = self.expected.strangers;
                let may_be = match reason {
                    FinalReason::Closed | FinalReason::PeerClosed => {
                        is_changing || strange || self.expected.parting || is_weak
                    }
                    FinalReason::Unreachable | FinalReason::PeerRestarted | FinalReason::EndedByPeer(_) => {
                        is_changing || strange || is_weak
                    }
                    FinalReason::Refused(_) => is_changing || is_weak,
                    _ => false,
                };
                excuse(may_be, "and nothing ended it")?;
            }
            MeshEvent::TurnedAway => {
                let mut members = 0..self.mesh.ranks();
                let has_wrong_start = members.any(|member| self.has_wrong_start(member));
                excuse(
                    self.expected.strangers
                        || has_wrong_start
                        || self.weakness.may_any_end()
                        || self.is_any_changing(),
                    "and nobody is strange",
                )?;
            }
            _ => {}
        }
        if let Some(process) = &mut self.seats[at].process {
            process.events.push(event);
            if let MeshEvent::StartedAhead(whom) = event {
                let told = process.events.iter().filter(|told| **told == event).count();
                let is_once = told <= self.aheads[whom.index()] || self.expected.starts.contains(&at);
                ensure(is_once, "told", || format!("rank {at}: {event:?} {told} times"))?;
            }
        }
        Ok(())
    }

    /// Whether the process of a member went, or was replaced, no longer ago than it takes to settle.
    fn is_changing(&self, member: usize) -> bool {
        let since_ns = self.now_ns().saturating_sub(self.settle_ns());
        let changed_ns = self.seats[member].changed_ns;
        changed_ns.is_some_and(|changed_ns| changed_ns >= since_ns)
    }

    fn is_any_changing(&self) -> bool {
        (0..self.mesh.ranks()).any(|member| self.is_changing(member))
    }

    /// Whether a member said a start that is not believed, no longer ago than that.
    fn has_wrong_start(&self, member: usize) -> bool {
        self.expected.starts.contains(&member) && self.is_changing(member)
    }

    /// Whether a way to a member may be lost: each may go through a link that may end, or a process that is gone.
    fn may_lose(&self, at: usize, whom: usize) -> bool {
        let ranks = self.mesh.ranks();
        // The way round a cable that is cut may be too long.
        let is_short = usize::from(self.mesh.hops_max) < ranks;
        if self.expected.parting || (self.is_cut.is_some() && is_short) {
            return true;
        }
        // A member that stood still from the beginning finds no link to a neighbour whose cable is cut as it goes on.
        let have_met = |one: usize, other: usize| {
            let is_struck = self.weakness.is_struck[one][other];
            !is_struck || self.have_met[one][other] || self.have_met[other][one]
        };
        // By those alone that nothing happened to for as long as it takes to settle.
        let is_steady = |member: usize| !self.seats[member].is_gone && !self.is_changing(member);
        let leads = |from: usize, to: usize| {
            let is_sound = !self.weakness.may_end(from, to) && have_met(from, to);
            is_steady(to) && is_sound && self.mesh.shares(from, to)
        };
        let far = self.mesh.hops_by(at, leads);
        let is_struck = self.weakness.ends_ns > 0 && self.now_ns() < self.weakness.ends_ns + self.settle_ns();
        // Ways that are longer for a while may be too long.
        let most = self.mesh.hops_max.saturating_add(1);
        far[whom].is_none_or(|hops| hops > most || (is_struck && most < ranks as u8))
            || (!is_steady(at) || self.is_any_changing() && most < ranks as u8)
    }

    /// A process is gone.
    pub(super) fn crash(&mut self, at: usize, is_awaited: bool) -> Verdict {
        if self.seats[at].process.is_none()
            || (0..self.mesh.ranks()).filter(|at| self.is_there()[*at]).count() < 3
        {
            return Ok(());
        }
        self.note(at, format_args!("is gone"));
        let was_settled = self.unsettled().is_none();
        // Others that are gone may have left no way to it.
        let is_there = self.is_there();
        let mut others = (0..self.mesh.ranks()).filter(|other| *other != at && is_there[*other]);
        let was_reached = others.any(|other| self.is_reachable(other, at));
        self.vanish(at);
        self.seats[at].is_gone = true;
        if !is_awaited || !self.is_untroubled() {
            return Ok(());
        }
        // A member that stands still is told later.
        let stops_ns = self
            .seats
            .iter()
            .map(|seat| seat.stops_until_ns)
            .max()
            .unwrap_or(0);
        let stops_ns = stops_ns.saturating_sub(self.now_ns());
        let detected_ns = DETECTION_MAX.as_nanos() as u64;
        let turns_ns = self.joined_ns();
        let within_ns = detected_ns + self.mesh.recover_within_ns + 100 * MS + turns_ns + stops_ns;
        let began_ns = self.now_ns();
        let is_known = |run: &mut Self| {
            let others = run.seats.iter().enumerate();
            let mut others = others.filter(|(other, _)| *other != at);
            others.all(|(_, seat)| {
                let process = seat.process.as_ref();
                process.is_none_or(|process| !process.mesh.reached().contains(rank(at)))
            })
        };
        let is_told = self.pass_until(within_ns, |run| Ok(is_known(run)))?;
        ensure(is_told, "late", || {
            format!("rank {at} is gone, and some reach it after {within_ns} ns")
        })?;
        // Nor is it given up before the time is over that its link has to recover.
        let took_ns = self.now_ns() - began_ns;
        // Ways round it may be too long.
        let is_far = usize::from(self.mesh.hops_max) < self.mesh.ranks();
        ensure(
            took_ns >= self.mesh.recover_within_ns || !was_settled || !was_reached || is_far,
            "early",
            || format!("rank {at} is given up after {took_ns} ns"),
        )
    }

    /// Its process is gone at once.
    pub(super) fn vanish(&mut self, at: usize) {
        self.expected.restarts = true;
        self.is_pristine = false;
        self.seats[at].changed_ns = Some(self.now_ns());
        self.seats[at].process = None;
        for other in 0..self.seats.len() {
            (self.have_met[at][other], self.have_met[other][at]) = (false, false);
        }
        self.seats.iter_mut().for_each(|seat| seat.group = None);
        self.seats[at].stops_until_ns = 0;
    }

    /// Another process takes the place of one.
    pub(super) fn restart(&mut self, at: usize, start: Start) -> Verdict {
        let has_before = !self.seats[at].starts.is_empty();
        let start = match start {
            Start::Before | Start::Ahead if !self.is_untroubled() || !has_before => Start::Now,
            start => start,
        };
        // Nobody stands still who is to tell of it.
        if start != Start::Now {
            self.seats.iter_mut().for_each(|seat| seat.stops_until_ns = 0);
            let bound_ns = self.settle_ns();
            self.settles(bound_ns, "settles")?;
        }
        self.vanish(at);
        if start != Start::Now {
            self.start_wrong(at, start)?;
            self.vanish(at);
        }
        self.start(at, Start::Now)
    }

    /// A process says a start that nobody believes, and is turned away by each neighbour; both sides can say why.
    fn start_wrong(&mut self, at: usize, start: Start) -> Verdict {
        self.expected.starts.push(at);
        self.seats[at].is_gone = true;
        self.start(at, start)?;
        self.seats[at].is_gone = false;
        let near: Vec<usize> = (0..self.mesh.ranks())
            .filter(|other| *other != at && self.is_there()[*other] && self.mesh.shares(at, *other))
            .collect();
        let event = match start {
            Start::Before => MeshEvent::StartedBefore(rank(at)),
            _ => MeshEvent::StartedAhead(rank(at)),
        };
        let marks: Vec<usize> = self
            .seats
            .iter()
            .map(|seat| seat.process.as_ref().map_or(0, |process| process.events.len()))
            .collect();
        let within_ns = self.settle_ns();
        let is_refused = self.pass_until(within_ns, |run| {
            Ok(near
                .iter()
                .all(|other| run.is_refused(*other, at, event, marks[*other])))
        })?;
        ensure(is_refused, "refused", || {
            let missing = near
                .iter()
                .filter(|other| !self.is_refused(**other, at, event, marks[**other]));
            let missing = missing.map(|other| (*other, self.reasons(*other, at)));
            format!("{event:?} is not told by {:?}", missing.collect::<Vec<_>>())
        })
    }

    /// Whether a member was told that the start of another is wrong, and says so.
    fn is_refused(&self, at: usize, of: usize, event: MeshEvent, mark: usize) -> bool {
        let Some(process) = &self.seats[at].process else {
            return false;
        };
        let is_told = process.events.get(mark..).unwrap_or_default().contains(&event);
        let mut reasons = process.mesh.not_linked(rank(of));
        let is_reason = |reason| matches!(reason, NotLinked::StartedBefore | NotLinked::StartedAhead);
        let last = self.seats[of].starts.last().copied();
        // The one of before hears why, too. By its clock, who was started long after it is ahead.
        let ahead_max_ns = self.mesh.start_ahead_max_ns;
        let is_ahead = self.seats[at].starts.last().copied() > last.map(|last| last - 1 + ahead_max_ns);
        let is_known = event != MeshEvent::StartedBefore(rank(of))
            || self.seats[of].process.as_ref().is_some_and(|wrong| {
                let mut reasons = wrong.mesh.not_linked(rank(at));
                reasons.any(|reason| match reason {
                    NotLinked::StartedLater => true,
                    NotLinked::StartedAhead => is_ahead,
                    _ => false,
                })
            });
        let is_of_before = process
            .mesh
            .started(rank(of))
            .is_none_or(|known| Some(known) == last);
        is_known && is_told && is_of_before && reasons.any(is_reason)
    }

    /// Nothing goes wrong any more, and all that was planned is over.
    pub(super) fn calm_down(&mut self) -> Verdict {
        let left_ns = self.weakness.ends_ns.saturating_sub(self.now_ns());
        self.pass(left_ns.max(self.still_ns()))?;
        let done = self.fabric.perform(&Action::Calm);
        done.map_err(|error| failure("set-up", error.to_string()))?;
        let bound_ns = self.settle_ns();
        self.settles(bound_ns, "settles")?;
        // Also once all has been heard of links that came back and are held down.
        self.pass(self.joined_ns())?;
        self.settles(bound_ns, "settles")
    }

    /// How long it takes until no process stands still, and no application.
    pub(super) fn still_ns(&self) -> u64 {
        let seats = self.seats.iter();
        let until_ns = seats
            .map(|seat| seat.stops_until_ns.max(seat.holds_until_ns))
            .max();
        until_ns.unwrap_or(0).saturating_sub(self.now_ns())
    }

    /// All messages that were sent come within so long.
    pub(super) fn delivers(&mut self) -> Verdict {
        let again = self
            .mesh
            .members
            .iter()
            .map(|member| member.resend_after_ns)
            .max();
        let bound_ns = 3 * again.unwrap_or(0) + self.joined_ns() + self.load_ns();
        let is_done = self.pass_until(bound_ns, |run| Ok(run.is_delivered()))?;
        ensure(is_done, "delivery", || {
            let text = self.undelivered().unwrap_or_default();
            format!("{text}, after {bound_ns} ns")
        })
    }

    /// How long all that applications still have to send may take: where a window is a message, each goes its way and is told of
    /// before the next.
    pub(super) fn load_ns(&self) -> u64 {
        self.load_with_ns(0)
    }

    /// How long that takes with so many messages more.
    pub(super) fn load_with_ns(&self, more: u16) -> u64 {
        let outboxes = self.seats.iter().flat_map(|seat| &seat.outboxes);
        let longest = outboxes.map(|outbox| outbox.len() as u64).max().unwrap_or(0);
        let told_ns = self
            .mesh
            .members
            .iter()
            .map(|member| member.acknowledge_after_ns)
            .max();
        let turns = 2 * self.mesh.ranks() as u64;
        let hop_ns = 2 * self.case.latency_ns + 2 * self.mesh.polls_every_ns;
        (longest + u64::from(more) + u64::from(self.mesh.window)) * (told_ns.unwrap_or(0) + turns * hop_ns)
    }
}
