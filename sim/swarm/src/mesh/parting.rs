//! The end of a run: everything is right again, what was sent has come, nobody has more to say; then all leave.

use doorbell::mesh::{Group, Leaving, MeshCounts, MeshError, MeshSendError};

use super::MeshRun;
use super::case::{MeshStep, rank};
use crate::failure::{Verdict, ensure, failure};
use crate::finish::audit;

const MS: u64 = 1_000_000;

/// How long it is quiet.
const QUIET_NS: u64 = 300 * MS;

/// Senders that are served alike differ by no more than this factor.
const FAIR: u64 = 4;

impl MeshRun<'_> {
    /// Everything that was begun comes to its end.
    pub(super) fn part(&mut self) -> Verdict {
        self.calm_down()?;
        self.delivers()?;
        self.check_views()?;
        self.check_counts()?;
        self.is_quiet()?;
        self.check_links()?;
        self.fill_windows()?;
        self.check_refusals()?;
        self.leave()
    }

    /// Relays carried what they had to, and nothing was sent again, where nothing was wrong.
    fn check_counts(&self) -> Verdict {
        if !self.is_pristine {
            return Ok(());
        }
        let is_there = self.is_there();
        // A link that keeps few fragments waits until it is told of them, for longer than messages may be on their way.
        let is_swift = self.mesh.members.iter().all(|member| {
            let is_patient = member.resend_after_ns >= 200 * MS;
            is_patient && member.retained >= 32 && member.ahead >= 32
        });
        for (at, seat) in self.seats.iter().enumerate() {
            let Some(process) = &seat.process else { continue };
            let (counts, joined) = (process.mesh.counts(), seat.joined);
            let again = |counts: &MeshCounts| (counts.dropped, counts.out_of_turn, counts.sent_again);
            ensure(again(&counts) == again(&joined) || !is_swift, "again", || {
                format!("rank {at}, and nothing was wrong: {counts:?}, and {joined:?} at first")
            })?;
            let said = counts.announcements == joined.announcements;
            ensure(said, "quiet", || {
                format!("rank {at} announces: {counts:?}, and {joined:?} at first")
            })?;
            let relayed = counts.relayed - joined.relayed;
            let (mut least, mut most) = (0, 0);
            for (from, of) in self.seats.iter().enumerate() {
                let Some(of) = of.process.as_ref().filter(|_| from != at && is_there[from]) else {
                    continue;
                };
                for (to, by) in of.mesh.ways() {
                    if by.contains(&rank(at)) {
                        let ends = |one: usize, other: usize| {
                            let started = |at: usize| self.seats[at].starts.last().copied().unwrap_or(0);
                            ((one, started(one)), (other, started(other)))
                        };
                        let data = self.pairs.taken(ends(from, to.index()));
                        let back = self.pairs.taken(ends(to.index(), from));
                        least += data;
                        // A message is acknowledged when it came and when it was taken.
                        most += data + 2 * back + 4;
                    }
                }
            }
            let is_right = relayed >= least && (self.has_collectives && most > 0 || relayed <= most);
            ensure(is_right, "relayed", || {
                format!("rank {at} passed on {relayed}, of {least} to {most}")
            })?;
        }
        Ok(())
    }

    /// As many links are there as members that a link leads to, and no handshake under way; those that came to nothing did for a reason.
    fn check_links(&mut self) -> Verdict {
        if self.expected.restarts || !self.is_untroubled() {
            // Links of processes that are gone are given up by then.
            self.pass(self.mesh.recover_within_ns)?;
        }
        let is_there = self.is_there();
        for (at, seat) in self.seats.iter().enumerate() {
            let Some(process) = &seat.process else { continue };
            let near =
                (0..self.mesh.ranks()).filter(|to| *to != at && is_there[*to] && self.mesh.shares(at, *to));
            let (links, near) = (process.mesh.links().ids().count(), near.count());
            ensure(links == near, "conserved", || {
                format!("rank {at} has {links} links to {near}")
            })?;
            let counts = process.mesh.links().handshakes();
            // A peer that asks for a handle ends its handshake with that.
            let is_asked = self.mesh.members.iter().any(|member| member.is_seeking);
            let is_clean =
                (counts.failed == 0 || is_asked) && counts.refused == 0 && counts.port_failures == 0;
            ensure(is_clean || !self.is_pristine, "again", || {
                format!("rank {at}, and nothing was wrong: {counts:?}")
            })?;
        }
        Ok(())
    }

    /// Nobody says anything where there is nothing to say.
    fn is_quiet(&mut self) -> Verdict {
        // Links that came back are gone round for as long.
        let held = self.mesh.members.iter().map(|member| member.hold_down_ns).max();
        let held_ns = if self.is_pristine { 0 } else { held.unwrap_or(0) };
        self.pass(QUIET_NS + held_ns)?;
        let counts = |run: &Self| -> Vec<_> {
            let processes = run.seats.iter().filter_map(|seat| seat.process.as_ref());
            processes.map(|process| process.mesh.counts()).collect()
        };
        let before = counts(self);
        self.pass(QUIET_NS)?;
        let after = counts(self);
        ensure(before == after, "quiet", || {
            format!("{after:?}, and before {before:?}")
        })
    }

    /// A window of messages is taken in once all before was taken, and no more.
    fn fill_windows(&mut self) -> Verdict {
        let window = self.mesh.window;
        // Room that was told by a way that is lost is asked for once there is none.
        let is_cut = self
            .mesh
            .steps
            .iter()
            .any(|step| matches!(step, MeshStep::Cut { .. }));
        let is_strict = self.is_untroubled() && !self.expected.restarts && !is_cut;
        let pairs = (0..self.mesh.ranks()).flat_map(|from| (0..self.mesh.ranks()).map(move |to| (from, to)));
        for (from, to) in pairs {
            if from == to || !self.is_reachable(from, to) || !self.is_there()[from] {
                continue;
            }
            let Self { seats, pairs, .. } = self;
            let Some(process) = &mut seats[from].process else {
                continue;
            };
            let started = process.mesh.started(rank(to)).unwrap_or(0);
            let ends = ((from, process.started), (to, started));
            for number in 0..window {
                let message = pairs.next(ends, 20);
                let sent = process.mesh.send(rank(to), &message, &[]);
                if number > 0 && !is_strict && sent == Err(MeshSendError::WouldBlock) {
                    break;
                }
                ensure(sent.is_ok(), "window", || {
                    format!("from {from} to {to} of {window}: {sent:?}")
                })?;
                pairs.did_send(ends, message.len(), window)?;
            }
            let sent = process.mesh.send(rank(to), &[1], &[]);
            ensure(sent == Err(MeshSendError::WouldBlock), "window", || {
                format!("one more than {window} from {from} to {to}: {sent:?}")
            })?;
        }
        self.delivers()
    }

    /// Calls that make no sense are refused, each for its reason.
    fn check_refusals(&mut self) -> Verdict {
        let ranks = self.mesh.ranks();
        let most = self.mesh.message_bytes_max as usize;
        let is_there = self.is_there();
        for at in 0..ranks {
            let reachable: Vec<bool> = (0..ranks)
                .map(|to| self.is_reachable(at, to) && is_there[to])
                .collect();
            let Some(process) = &mut self.seats[at].process else {
                continue;
            };
            for to in (0..=ranks).map(rank) {
                let is_other = to.index() < ranks && to.index() != at;
                let sent = process.mesh.send(to, &vec![1; most], &[1]);
                let expected = if is_other {
                    MeshSendError::TooLong {
                        bytes: most + 1,
                        bytes_max: most,
                    }
                } else {
                    MeshSendError::NoSuchRank(to)
                };
                ensure(sent == Err(expected), "reason", || {
                    format!("rank {at} to {to}: {sent:?}")
                })?;
                if is_other && !reachable[to.index()] {
                    let sent = process.mesh.send(to, &[1], &[1]);
                    let expected = Err(MeshSendError::Unreachable(to));
                    ensure(sent == expected, "reason", || {
                        format!("rank {at} to {to}: {sent:?}")
                    })?;
                }
            }
            let super::Process {
                mesh,
                node,
                workers,
                handle,
                ..
            } = process;
            let refused = mesh.connect(node, workers, rank(ranks), handle);
            ensure(
                matches!(refused, Err(MeshError::NoSuchRank { .. })),
                "reason",
                || format!("rank {at} links to no rank: {refused:?}"),
            )?;
        }
        Ok(())
    }

    /// All leave, each as soon as nobody needs it any more.
    fn leave(&mut self) -> Verdict {
        let ranks = self.mesh.ranks();
        let is_whole = (0..ranks).all(|at| (0..ranks).all(|to| at == to || self.is_reachable(at, to)));
        if !is_whole || self.is_there().contains(&false) {
            return self.drop_all();
        }
        self.expected.parting = true;
        let within_ns = self.joined_ns() + 10 * self.settle_ns();
        let mut leaving: Vec<Option<Leaving>> = Vec::new();
        for at in 0..ranks {
            let Some(process) = &mut self.seats[at].process else {
                return Err(failure("leaving", format!("rank {at} has no process")));
            };
            let deadline = process.deadline(within_ns);
            let group = Group::new(&mut process.mesh).map_err(|error| failure("group", error.to_string()))?;
            leaving.push(Some(group.leave(deadline)));
        }
        self.is_collecting = true;
        let again = self
            .mesh
            .members
            .iter()
            .map(|member| member.acknowledge_after_ns)
            .max();
        let bound_ns = 2 * self.joined_ns() + 4 * again.unwrap_or(0) + 200 * MS;
        let have_left = self.pass_until(bound_ns, |run| {
            for (at, place) in leaving.iter_mut().enumerate() {
                let Some(process) = &mut run.seats[at].process else {
                    continue;
                };
                let Some(going) = place else { continue };
                match going.poll(&process.node, &mut process.mesh) {
                    Ok(false) => {}
                    Ok(true) => {
                        let links = process.mesh.links().ids().count();
                        *place = None;
                        run.seats[at].process = None;
                        run.seats[at].is_gone = true;
                        ensure(links == 0, "conserved", || {
                            format!("rank {at} has left with {links} links")
                        })?;
                    }
                    Err(error) => return Err(failure("leaving", format!("rank {at}: {error}"))),
                }
            }
            Ok(leaving.iter().all(Option::is_none))
        })?;
        ensure(have_left, "leaving", || {
            format!("after {bound_ns} ns: {leaving:?}")
        })?;
        self.drop_all()
    }

    fn drop_all(&mut self) -> Verdict {
        self.strangers.clear();
        for seat in &mut self.seats {
            (seat.process, seat.group, seat.is_gone) = (None, None, true);
        }
        audit(&self.fabric)
    }

    /// All others send to one as fast as they may, for so long: of those whose ways are as long and come through the same member, none
    /// has much more of it than another.
    pub(super) fn flow(&mut self, to: usize, ns: u64) -> Verdict {
        let stops_ns = self
            .seats
            .iter()
            .map(|seat| seat.stops_until_ns.max(seat.holds_until_ns))
            .max();
        let is_still = stops_ns.unwrap_or(0) > self.now_ns();
        if !self.is_untroubled() || is_still || self.unsettled().is_some() || !self.is_there()[to] {
            return Ok(());
        }
        self.delivers()?;
        let ranks = self.mesh.ranks();
        let senders: Vec<usize> = (0..ranks)
            .filter(|from| self.is_reachable(*from, to) && self.is_there()[*from])
            .collect();
        let taken = |run: &Self, from: usize| {
            run.pairs
                .taken(((from, started_of(run, from)), (to, started_of(run, to))))
        };
        let before: Vec<u64> = senders.iter().map(|from| taken(self, *from)).collect();
        let until_ns = self.now_ns() + ns;
        self.pass_until(ns, |run| {
            for from in &senders {
                let outbox = &mut run.seats[*from].outboxes[to];
                outbox.resize(outbox.len().max(4), 100);
            }
            Ok(run.now_ns() >= until_ns)
        })?;
        let shares: Vec<u64> = senders
            .iter()
            .zip(before)
            .map(|(from, before)| taken(self, *from) - before)
            .collect();
        for (one, of_one) in senders.iter().zip(&shares) {
            for (other, of_other) in senders.iter().zip(&shares) {
                if self.are_alike(*one, *other, to) {
                    ensure(*of_one <= FAIR * (of_other + 4), "fair", || {
                        format!("to {to} came {shares:?} of {senders:?}")
                    })?;
                }
            }
        }
        self.delivers()
    }

    /// Whether the ways of two are as long, and end with the same member.
    fn are_alike(&self, one: usize, other: usize, to: usize) -> bool {
        let way = |from: usize| {
            let ways = self.seats[from].process.as_ref()?.mesh.ways();
            let by = ways.get(&rank(to))?;
            Some((by.len(), by.last().copied()))
        };
        way(one).is_some_and(|way| way.0 > 0) && way(one) == way(other)
    }
}

fn started_of(run: &MeshRun<'_>, at: usize) -> u64 {
    run.seats[at].starts.last().copied().unwrap_or(0)
}
