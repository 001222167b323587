//! The operations of a run of limits, each with its expected outcome.

use doorbell::connect::Cause;
use doorbell::wire::RejectReason;
use doorbell::worker::{SubmitErrorKind, Submitter};
use doorbell::{ConnectError, SendErrorKind};

use super::{CrowdRun, IN_LINE_NS, SETTLED_NS, SUBMITTERS, TCP_PORT, Visitor, host_at};
use crate::crowd::case::{CrowdAct, Says};
use crate::crowd::door::{Fate, Guest, Standing};
use crate::crowd::room::{Held, Refusal};
use crate::failure::{Verdict, ensure, failure};
use crate::finish::free_slots;
use crate::pattern::Label;
use crate::station::address;
use crate::stranger::{Stranger, at};

/// Bytes of each message.
const MESSAGE_BYTES: usize = 40;

/// Streams that say no more than they are to, at a time.
const VISITORS_MAX: usize = 8;

/// The outcome that an attempt to connect must have.
#[derive(Debug)]
enum Expected {
    Connected,
    /// Turned away at the door.
    TurnedAway,
    /// Its own Worker has no room, for each of these reasons.
    RefusedHere(Vec<Refusal>),
    /// The acceptor's Worker has no room, for each of these reasons.
    RefusedThere(Vec<Refusal>),
}

impl CrowdRun<'_> {
    pub(super) fn act(&mut self, line: usize, end: usize, act: CrowdAct) -> Verdict {
        self.settle()?;
        // A stranger whose time has just ended keeps its place until the listener looks. One that stays is found late by
        // `poll_visitors`, which ends the loop.
        let is_leaving = |visitor: &Visitor| visitor.fate.is_some() && !visitor.is_done;
        while !self.is_vague && self.visitors.iter().any(is_leaving) {
            self.pass(SETTLED_NS)?;
        }
        // Any change may give a place to a guest that waits in line. The guests are cleared out, so that the model is
        // exact.
        let waits = |guest: &Guest| matches!(guest.standing, Standing::InLine { .. });
        if self.is_vague || self.door.guests.iter().any(waits) {
            self.clear_out()?;
        }
        let host = self.host_of(line, end);
        self.note(host, format_args!("line {line}: {act:?}"));
        match act {
            CrowdAct::Connect => self.connect(line),
            CrowdAct::Burst { lines } => self.burst(lines),
            CrowdAct::Close { nth } => self.close(line, end, nth),
            CrowdAct::Knock { says } => self.knock(self.host_of(line, 0), says),
            CrowdAct::HangUp => self.hang_up(self.host_of(line, 0)),
            CrowdAct::Lease { count } => self.lease(host, count),
            CrowdAct::Release => {
                self.release(host);
                Ok(())
            }
            CrowdAct::Flood { nth } => self.flood(line, end, nth),
            CrowdAct::SubmitFlood { nth } => self.submit_flood(line, end, nth),
            CrowdAct::Contend { nth } => self.contend(line, end, nth),
        }
    }

    /// The channel of a line that is meant, both ends of which are there.
    fn channel(&self, line: usize, nth: u8) -> Option<usize> {
        let of_line = (0..self.made.len()).filter(|at| self.made[*at].line == line);
        let whole: Vec<usize> = of_line.filter(|at| !self.made[*at].is_ending()).collect();
        whole.get(usize::from(nth).checked_rem(whole.len())?).copied()
    }

    /// Returns the outcome that an attempt of this line must have now.
    fn expected(&self, line: usize) -> Expected {
        let host = self.host_of(line, 0);
        if self.door.enter(host).is_err() {
            return Expected::TurnedAway;
        }
        let here = Held::of(self.line(line), 0, 0, None);
        let here = self.rooms[host].refusals(here);
        // Its memory is taken behind the peer's yes.
        if here.iter().any(|refusal| *refusal != Refusal::Memory) {
            return Expected::RefusedHere(here);
        }
        let there = Held::of(self.line(line), 1, 0, Some(host));
        match self.ask(host, there) {
            refusals if !refusals.is_empty() => Expected::RefusedThere(refusals),
            _ if here.is_empty() => Expected::Connected,
            _ => Expected::RefusedHere(here),
        }
    }

    /// Returns whether the door admits one more of this host. If no place is free, another guest is sent away for it.
    fn let_in(&mut self, host: usize) -> Verdict<bool> {
        match self.door.enter(host) {
            Ok(None) => Ok(true),
            Ok(Some(number)) => {
                // Several hosts may have equally many guests. It is open which of them makes room.
                self.is_vague |= self.door.is_tied();
                let guest = self.door.guests.iter().find(|guest| guest.number == number);
                let is_in_line = guest.is_some_and(|guest| guest.standing != Standing::Unproven);
                self.is_vague |= is_in_line;
                let now_ns = self.now_ns();
                self.send_away(number, now_ns, Fate::Busy);
                Ok(true)
            }
            Err(()) => Ok(false),
        }
    }

    fn connect(&mut self, line: usize) -> Verdict {
        let host = self.host_of(line, 0);
        let expected = self.expected(line);
        let is_due = match &expected {
            Expected::Connected => true,
            Expected::RefusedHere(refusals) => refusals[..] == [Refusal::Memory],
            _ => false,
        };
        let is_refused = self.connect_once(line, host, &expected, is_due)?;
        // A share that was given up is free again once one asked for it and the queue was seen empty.
        if is_refused && is_due {
            let expected = self.expected(line);
            self.connect_once(line, host, &expected, false)?;
        }
        Ok(())
    }

    /// Says whether it was refused for want of a share that was given up, where that may be.
    fn connect_once(
        &mut self,
        line: usize,
        host: usize,
        expected: &Expected,
        may_lack: bool,
    ) -> Verdict<bool> {
        // A place that a stranger gives up soon may become free during the attempt.
        let is_near = self.door.next_ns() < self.now_ns() + 2 * IN_LINE_NS;
        let is_exact = !self.is_vague && !is_near;
        self.told.clear();
        let is_in = self.let_in(host)?;
        let number = self.begin(line)?;
        if is_in {
            // It is at the door itself for a while, and may have others go earlier.
            let began_ns = self.now_ns();
            self.door.guests.push(Guest {
                number,
                host,
                began_ns,
                // Its Connect comes soon.
                standing: Standing::Holding,
                stage_ends_ns: u64::MAX,
            });
            let next_ns = self.door.next_ns();
            self.is_vague |= (began_ns..began_ns + 2 * SETTLED_NS).contains(&next_ns);
        }
        self.settle()?;
        let outcome = self.take_outcome(number)?;
        if !is_exact {
            return self.plausible(&outcome).map(|()| false);
        }
        let lacks_share = |told: &ConnectError| matches!(told, ConnectError::NoShare { .. });
        let lacks = self.told.iter().chain(outcome.as_ref().err()).any(lacks_share);
        if lacks && may_lack {
            return Ok(true);
        }
        let is_right = match (&outcome, expected) {
            (Ok(()), Expected::Connected) => true,
            (Err(error), Expected::TurnedAway) => is_busy(error) && self.told.is_empty(),
            (Err(error), Expected::RefusedHere(refusals)) => {
                let told = self.told.iter().any(is_busy);
                told && refusals.iter().any(|refusal| refusal.is(error, host_at))
            }
            (Err(error), Expected::RefusedThere(refusals)) => {
                let is_it = |told: &ConnectError| refusals.iter().any(|refusal| refusal.is(told, host_at));
                is_busy(error) && self.told.iter().any(is_it)
            }
            _ => false,
        };
        ensure(is_right, "limit", || {
            let told: Vec<String> = self.told.iter().map(ToString::to_string).collect();
            format!("line {line}: {outcome:?} where {expected:?} was due; who accepts says {told:?}")
        })
        .map(|()| false)
    }

    fn take_outcome(&mut self, number: u32) -> Verdict<Result<(), ConnectError>> {
        let at = self.outcomes.iter().position(|(of, _)| *of == number);
        let at = at.ok_or_else(|| failure("liveness", "an attempt came to nothing"))?;
        Ok(self.outcomes.remove(at).1)
    }

    /// Whether a refusal is of some limit.
    fn plausible(&self, outcome: &Result<(), ConnectError>) -> Verdict {
        let is_limit = |error: &ConnectError| {
            is_busy(error)
                || matches!(
                    error,
                    ConnectError::NoRoom { .. }
                        | ConnectError::NoShare { .. }
                        | ConnectError::NoSlots { .. }
                        | ConnectError::NoMemory
                        | ConnectError::TooManyChannels { .. }
                )
        };
        let may_be = outcome.as_ref().err().is_none_or(is_limit);
        ensure(may_be, "limit", || format!("{outcome:?}"))
    }

    /// Several at once: all are connected where there is room for all, and each that is refused hears that there is none.
    fn burst(&mut self, lines: u8) -> Verdict {
        let lines: Vec<usize> = (0..self.case.lines.len().min(8))
            .filter(|line| lines >> line & 1 == 1)
            .collect();
        let count = |host: usize| {
            lines
                .iter()
                .filter(|line| self.host_of(**line, 0) == host)
                .count()
        };
        let mut server = self.rooms[0].clone();
        let mut rooms = self.rooms.clone();
        let mut is_room = self.door.guests.is_empty()
            && !server.is_shared()
            && self.crowd.unaccepted as usize > lines.len();
        for line in &lines {
            let host = self.host_of(*line, 0);
            is_room &= self.door.has_place(host, count(host), lines.len());
            let here = Held::of(self.line(*line), 0, 0, None);
            let there = Held::of(self.line(*line), 1, 0, Some(host));
            is_room &= !rooms[host].is_shared() && rooms[host].refusals(here).is_empty();
            is_room &= server.refusals(there).is_empty();
            rooms[host].held.push(here);
            server.held.push(there);
        }
        let is_quiet = self.door.guests.is_empty();
        let numbers: Vec<u32> = lines
            .iter()
            .map(|line| self.begin(*line))
            .collect::<Verdict<_>>()?;
        // The model does not follow which guest displaces which.
        self.is_vague |= !is_quiet;
        self.settle()?;
        let mut connected = 0;
        for number in &numbers {
            let outcome = self.take_outcome(*number)?;
            connected += usize::from(outcome.is_ok());
            ensure(outcome.is_ok() || !is_room, "limit", || {
                format!(
                    "attempt {number} of {}: {outcome:?}, and there is room for all",
                    numbers.len()
                )
            })?;
            self.plausible(&outcome)?;
        }
        self.note(0, format_args!("{connected} of {} connected", numbers.len()));
        Ok(())
    }

    fn close(&mut self, line: usize, end: usize, nth: u8) -> Verdict {
        let Some(at) = self.channel(line, nth) else {
            return Ok(());
        };
        let host = self.host_of(line, end);
        let made = &mut self.made[at];
        made.is_closing[end] = true;
        let Some(id) = made.ends[end] else {
            return Ok(());
        };
        let worker = &mut self.parties[host].workers[0];
        let deadline = worker.within(crate::bounds::CLOSE_WITHIN);
        worker
            .begin_close(id, deadline)
            .map_err(|error| failure("close", error.to_string()))?;
        self.settle()
    }

    fn knock(&mut self, host: usize, says: Says) -> Verdict {
        if self.visitors.len() >= VISITORS_MAX {
            return Ok(());
        }
        // A guest that has to go while a stranger is on its way goes before, so that it is known whether there is a place.
        if self.door.next_ns() <= self.now_ns() + SETTLED_NS {
            self.pass(2 * SETTLED_NS)?;
        }
        self.numbers += 1;
        let number = self.numbers;
        let began_ns = self.now_ns();
        let stage_ns = self.crowd.stage_ns;
        let is_in = self.let_in(host)?;
        let stranger = Stranger::new(
            &self.parties[host].host,
            address(host, 0),
            at(address(0, 0), TCP_PORT),
            number,
        );
        let fate = if is_in { None } else { Some((began_ns, Fate::Busy)) };
        self.visitors.push(Visitor {
            number,
            host,
            stranger: stranger.map_err(|detail| failure("set-up", detail))?,
            fate,
            is_done: false,
        });
        if is_in {
            self.door.guests.push(Guest {
                number,
                host,
                began_ns,
                standing: Standing::Unproven,
                stage_ends_ns: began_ns + stage_ns,
            });
        }
        // It arrives before it says anything.
        self.pass(SETTLED_NS)?;
        if says == Says::Nothing || !self.is_guest(number) {
            return Ok(());
        }
        self.visitor(number).stranger.say_hello();
        self.extend_stage(number);
        self.pass(SETTLED_NS)?;
        if says == Says::Hello || !self.is_guest(number) {
            return Ok(());
        }
        self.visitor(number).stranger.say_connect();
        self.extend_stage(number);
        let mut held = Held::of(&self.case.lines[0], 1, number, Some(host));
        held.is_unfinished = true;
        let refusals = self.ask(host, held);
        let now_ns = self.now_ns();
        // A share that was given up may be lacking once.
        self.is_vague |= self.rooms[0].is_shared();
        if refusals.is_empty() {
            self.stand(number, Standing::Holding);
            self.rooms[0].held.push(held);
        } else if matches!(refusals[..], [Refusal::Unfinished(_)]) {
            let until_ns = now_ns + IN_LINE_NS.min(stage_ns / 2);
            self.stand(number, Standing::InLine { until_ns });
        } else {
            // With several limits reached, the stranger may be rejected for any of them, at once or after a wait in
            // line.
            self.is_vague |= refusals
                .iter()
                .any(|refusal| matches!(refusal, Refusal::Unfinished(_)));
            self.stand(number, Standing::Holding);
            self.send_away(number, now_ns, Fate::Busy);
        }
        self.pass(SETTLED_NS)?;
        let is_vague = self.is_vague;
        let visitor = self.visitor(number);
        let was_accepted = visitor.stranger.was_accepted();
        ensure(was_accepted == refusals.is_empty() || is_vague, "limit", || {
            format!("stranger {number} of h{host} was accepted {was_accepted}, where {refusals:?} was due")
        })
    }

    fn is_guest(&self, number: u32) -> bool {
        self.door.guests.iter().any(|guest| guest.number == number)
    }

    fn visitor(&mut self, number: u32) -> &mut Visitor {
        let at = self.visitors.iter().position(|visitor| visitor.number == number);
        &mut self.visitors[at.unwrap_or(0)]
    }

    fn stand(&mut self, number: u32, standing: Standing) {
        for guest in self.door.guests.iter_mut().filter(|guest| guest.number == number) {
            guest.standing = standing;
        }
    }

    /// Its next stage begins.
    fn extend_stage(&mut self, number: u32) {
        let ends_ns = self.now_ns() + self.crowd.stage_ns;
        for guest in self.door.guests.iter_mut().filter(|guest| guest.number == number) {
            guest.stage_ends_ns = ends_ns;
        }
    }

    /// The oldest stranger of a host ends its stream.
    fn hang_up(&mut self, host: usize) -> Verdict {
        let Some(at) = self.visitors.iter().position(|visitor| visitor.host == host) else {
            return Ok(());
        };
        let visitor = self.visitors.remove(at);
        self.is_vague |= self
            .door
            .guests
            .iter()
            .any(|guest| matches!(guest.standing, Standing::InLine { .. }));
        self.door.leave(visitor.number);
        self.rooms[0].held.retain(|held| held.number != visitor.number);
        drop(visitor);
        self.pass(SETTLED_NS)
    }

    /// The application leases; it gets what is free, and no more.
    fn lease(&mut self, host: usize, count: u8) -> Verdict {
        // Shared receives that wait to be posted need theirs.
        if self.rooms[host].is_shared() {
            return Ok(());
        }
        let free = self.rooms[host].free();
        let due = (*free.start()).min(count.into())..=(*free.end()).min(count.into());
        let party = &mut self.parties[host];
        let leases: Vec<_> = core::iter::from_fn(|| party.workers[0].lease())
            .take(count.into())
            .collect();
        let found = leases.len() as u32;
        party.leases.extend(leases);
        self.rooms[host].leased += found;
        ensure(due.contains(&found), "limit", || {
            format!("h{host} leases {found} of {count} slots, where {free:?} are free")
        })
    }

    pub(super) fn release(&mut self, host: usize) {
        let party = &mut self.parties[host];
        party
            .leases
            .drain(..)
            .for_each(|lease| party.workers[0].release(lease));
        self.rooms[host].leased = 0;
    }

    /// Returns the fewest and the most messages that a channel takes of an end at once. Its credits are the receives
    /// that the peer has posted. Fewer than half of them may still be unannounced. Announcements whose completions
    /// are not reported may take up to half of the send queue (`ChannelConfig`).
    fn takes(&self, line: usize, end: usize) -> [u32; 2] {
        let line = self.line(line);
        let depth = line.receive_depths[1 - end];
        let least = depth - (depth.div_ceil(2) - 1);
        let room = (line.send_depth.div_ceil(2) - 1).max(1);
        [least.min(room), depth.min(line.send_depth)]
    }

    fn flood(&mut self, line: usize, end: usize, nth: u8) -> Verdict {
        let Some(at) = self.channel(line, nth) else {
            return Ok(());
        };
        let host = self.host_of(line, end);
        let Some(id) = self.made[at].ends[end] else {
            return Ok(());
        };
        let takes = self.takes(line, end);
        let free = self.rooms[host].free();
        let least = takes[0].min(*free.start());
        let most = takes[1].min(*free.end());
        let made = &mut self.made[at];
        let worker = &mut self.parties[host].workers[0];
        let mut taken = 0;
        while let Some(mut lease) = worker.lease() {
            let label = made.next(end, 0);
            let filled = lease.fill(&label.bytes(MESSAGE_BYTES));
            filled.map_err(|error| failure("lease", error.to_string()))?;
            let channel = worker.channel(id);
            let channel = channel.ok_or_else(|| failure("owner", "a channel is gone"))?;
            match channel.send_lease(lease) {
                Ok(_) => {
                    made.sent[end][0] += 1;
                    taken += 1;
                }
                Err(error) => {
                    ensure(error.kind == SendErrorKind::WouldBlock, "reason", || {
                        error.kind.to_string()
                    })?;
                    error.item.into_iter().for_each(|lease| worker.release(lease));
                    break;
                }
            }
        }
        ensure((least..=most).contains(&taken), "limit", || {
            format!("line {line} end {end} takes {taken} messages at once, where {least} to {most} are due")
        })?;
        self.settle()
    }

    fn submit_flood(&mut self, line: usize, end: usize, nth: u8) -> Verdict {
        let Some(at) = self.channel(line, nth) else {
            return Ok(());
        };
        let host = self.host_of(line, end);
        let Some(id) = self.made[at].ends[end] else {
            return Ok(());
        };
        let [slots, depth] = self.crowd.submitters;
        let depth = depth.next_power_of_two();
        let taken = self.submit(host, id, at, end, 0)?;
        let due = slots.min(depth);
        ensure(taken == due, "limit", || {
            format!(
                "a submitter of {slots} slots and a ring of {depth} takes {taken} requests, where {due} are due"
            )
        })?;
        // One poll takes so many out of the ring, and makes room for as many.
        let polled = self.crowd.submissions_per_poll.max(1).min(taken);
        self.poll_worker(host)?;
        let again = self.submit(host, id, at, end, 0)?;
        let left = slots - taken;
        // Requests that were done at once may have returned their slots by now.
        ensure(again <= polled && again >= polled.min(left), "limit", || {
            format!("behind a poll that takes {polled}, {again} more are taken with {left} slots left")
        })?;
        self.settle()?;
        self.submitters_have_their_slots(host)
    }

    /// All submitters of a host are loaded alike. In as many polls as there are of them each is the first once, and so has as much
    /// taken as a poll takes.
    fn contend(&mut self, line: usize, end: usize, nth: u8) -> Verdict {
        let Some(at) = self.channel(line, nth) else {
            return Ok(());
        };
        let host = self.host_of(line, end);
        let Some(id) = self.made[at].ends[end] else {
            return Ok(());
        };
        let [slots, depth] = self.crowd.submitters;
        let loaded = slots.min(depth.next_power_of_two());
        for who in 0..SUBMITTERS {
            let taken = self.submit(host, id, at, end, who)?;
            ensure(taken == loaded, "limit", || {
                format!("submitter {who} of h{host} takes {taken} requests, where {loaded} are due")
            })?;
        }
        for _ in 0..SUBMITTERS {
            self.poll_worker(host)?;
        }
        let per_poll = self.crowd.submissions_per_poll.max(1);
        // A slot may be home by now, where its request was done at once.
        let share = per_poll.min(loaded).min(slots - loaded);
        let mut all = 0;
        for who in 0..SUBMITTERS {
            let again = self.submit(host, id, at, end, who)?;
            all += again;
            ensure(again >= share, "share", || {
                format!(
                    "behind {SUBMITTERS} polls that take {per_poll} each, submitter {who} of h{host} has room for {again} \
                     requests, and its share is {share}"
                )
            })?;
        }
        let most = per_poll.saturating_mul(SUBMITTERS as u32);
        ensure(all <= most, "limit", || {
            format!("{SUBMITTERS} polls of h{host} that take {per_poll} each made room for {all} requests")
        })?;
        self.settle()?;
        self.submitters_have_their_slots(host)
    }

    /// Each submitter of a host lends all that it has, where nothing is under way.
    pub(super) fn submitters_have_their_slots(&mut self, host: usize) -> Verdict {
        let [slots, _] = self.crowd.submitters;
        for (who, submitter) in self.parties[host].submitters.iter_mut().enumerate() {
            let found = free_slots(submitter, Submitter::lease, Submitter::release) as u32;
            ensure(found == slots, "conserved", || {
                format!("submitter {who} of h{host} lends {found} of {slots} slots")
            })?;
        }
        Ok(())
    }

    /// Submits until it is refused; how many were taken.
    fn submit(
        &mut self,
        host: usize,
        id: doorbell::ChannelId,
        at: usize,
        end: usize,
        who: usize,
    ) -> Verdict<u32> {
        let made = &mut self.made[at];
        let submitter = &mut self.parties[host].submitters[who];
        let mut taken = 0;
        while let Some(mut lease) = submitter.lease() {
            let label = made.next(end, who);
            let filled = lease.fill(&label.bytes(MESSAGE_BYTES));
            filled.map_err(|error| failure("lease", error.to_string()))?;
            match submitter.send(id, lease) {
                Ok(()) => {
                    made.sent[end][who] += 1;
                    taken += 1;
                }
                Err(error) => {
                    ensure(error.kind == SubmitErrorKind::WouldBlock, "reason", || {
                        error.kind.to_string()
                    })?;
                    error.lease.into_iter().for_each(|lease| submitter.release(lease));
                    break;
                }
            }
        }
        Ok(taken)
    }
}

impl super::Made {
    /// The next message of an end in a stream.
    const fn next(&self, end: usize, stream: usize) -> Label {
        Label {
            connection: self.number,
            end: end as u8,
            stream: stream as u8,
            number: self.sent[end][stream],
        }
    }
}

/// Whether a peer was told that there is no room, and when to come again, or told us.
fn is_busy(error: &ConnectError) -> bool {
    let ConnectError::Handshake(error) = error else {
        return false;
    };
    match error.cause {
        Cause::RejectedByPeer(reject) | Cause::RejectedHere(reject) => reject.reason == RejectReason::BUSY,
        _ => false,
    }
}
