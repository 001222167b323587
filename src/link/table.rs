//! The table of links: lookup, the advance of each link in a poll, and removal.

use std::sync::Arc;

use doorbell_core::network::Network;
use doorbell_core::provider::{DomainId, Provider};
use doorbell_core::session::{Action, FinalReason, PushRefusal, Sequence, SessionEvent, Violation};
use doorbell_core::wire::Handle;
use doorbell_core::{Deadline, Instant};

use super::arrivals::Arrivals;
use super::classes::Order;
use super::config::LinkConfig;
use super::dispatch::{ChannelOwner, Routes};
use super::ended::Ended;
use super::event::{LinkEvent, LinkId};
use super::log::log_session;
use super::moment::Moment;
use super::placing::{Lent, PlacedBudget};
use super::rail::{At, LinkRailCounts, NotConnected, RailPath};
use super::report::FormerCounts;
use super::resting::{NEVER, Resting};
use super::sleeping::Taken;
use super::state::{Link, Posted, frame_bytes};
use crate::connect::node::Node;
use crate::machine::reaper::Reaped;
use crate::worker::Worker;

/// All links, and the state that polling the Workers needs.
pub(super) struct Core<P: Provider, N: Network> {
    pub(super) config: LinkConfig,
    /// The order of links, if the Workers have classes.
    pub(super) order: Option<Box<Order>>,
    pub(super) routes: Routes,
    /// The device of each Worker.
    pub(super) devices: Vec<String>,
    /// The protection domain of each Worker.
    pub(super) domains: Vec<DomainId>,
    /// The speed of each Worker's fastest rail.
    pub(super) speeds_mbps: Vec<u32>,
    pub(super) entries: Vec<LinkEntry<P, N>>,
    /// When each link is to be advanced.
    pub(super) resting: Resting,
    /// Counts of links that are over.
    pub(super) gone: FormerCounts,
    pub(super) closing: Vec<Ending>,
    pub(super) arrivals: Arrivals,
    /// Links that peers had begun, for peers that reconnect to them.
    pub(super) ended: Ended,
    pub(super) chance: u64,
    /// The present handle of this process, if it has changed, and the number of changes.
    pub(super) moved: Option<(Handle, Sequence)>,
    /// Memory lent to the peers of links that are over, and until when it is kept for their last WRITEs. This memory counts towards the limit
    /// of all links.
    pub(super) parting: Vec<(Deadline, Reaped<Lent<P>>)>,
    /// The limit on the memory for long messages of all links.
    pub(super) budget: Arc<PlacedBudget>,
    /// Completions that the present poll took, or the last one.
    pub(super) taken: Taken,
}

/// A channel to be closed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ending {
    at: At,
    by: Deadline,
    /// The rail that it was.
    of: Option<(LinkId, u8)>,
}

pub(super) struct LinkEntry<P: Provider, N: Network> {
    generation: u32,
    link: Option<Link<P, N>>,
    /// Why rails of the previous link were not connected.
    before: Vec<NotConnected>,
    /// Why the previous link is over.
    over: Option<FinalReason>,
}

impl<P: Provider, N: Network> LinkEntry<P, N> {
    /// Returns why its link of this generation is over, if no later one has ended.
    fn over(&self, generation: u32) -> Option<FinalReason> {
        self.over
            .filter(|_| self.generation == generation.wrapping_add(1))
    }

    /// Returns why nothing can be sent over its link of this generation.
    #[cold]
    fn refusal(&self, generation: u32) -> PushRefusal {
        self.over(generation)
            .map_or(PushRefusal::Closing, PushRefusal::Over)
    }

    /// Returns the link with its id; the entry is at this index.
    pub(super) fn named(&mut self, index: usize) -> Option<(LinkId, &mut Link<P, N>)> {
        let (index, generation) = (u32::try_from(index).ok()?, self.generation);
        Some((LinkId { index, generation }, self.link.as_mut()?))
    }
}

impl<P: Provider, N: Network> Core<P, N> {
    #[inline]
    pub(super) fn link_mut(&mut self, id: LinkId) -> Option<&mut Link<P, N>> {
        let entry = self.entries.get_mut(id.index as usize)?;
        if entry.generation != id.generation {
            return None;
        }
        self.resting.stir(id.index as usize);
        entry.link.as_mut()
    }

    pub(super) fn link(&self, id: LinkId) -> Option<&Link<P, N>> {
        let entry = self.entries.get(id.index as usize)?;
        entry.link.as_ref().filter(|_| entry.generation == id.generation)
    }

    pub(super) fn links(&self) -> impl Iterator<Item = (LinkId, &Link<P, N>)> {
        (0_u32..).zip(&self.entries).filter_map(|(index, entry)| {
            let generation = entry.generation;
            Some((LinkId { index, generation }, entry.link.as_ref()?))
        })
    }

    pub(super) fn links_mut(&mut self) -> impl Iterator<Item = &mut Link<P, N>> {
        self.resting.stir_all();
        self.entries.iter_mut().filter_map(|entry| entry.link.as_mut())
    }

    /// Returns why a link is over, if no other link has ended at its index since.
    pub(super) fn over(&self, id: LinkId) -> Option<FinalReason> {
        self.entries.get(id.index as usize)?.over(id.generation)
    }

    /// Returns the link to send a message over, or why it cannot be sent.
    #[inline(always)]
    pub(super) fn link_to_send(&mut self, id: LinkId) -> Result<&mut Link<P, N>, PushRefusal> {
        let index = id.index as usize;
        let entry = self.entries.get_mut(index).ok_or(PushRefusal::Closing)?;
        if entry.generation != id.generation {
            return Err(entry.refusal(id.generation));
        }
        self.resting.stir(index);
        entry.link.as_mut().ok_or(PushRefusal::Closing)
    }

    /// Returns why rails of a link that is over were not connected, if no other link has ended at its index since.
    pub(super) fn before(&self, id: LinkId) -> Option<&[NotConnected]> {
        let entry = self.entries.get(id.index as usize)?;
        (entry.generation == id.generation.wrapping_add(1)).then_some(&entry.before)
    }

    /// Takes those reasons. A second call returns none.
    pub(super) fn take_before(&mut self, id: LinkId) -> Vec<NotConnected> {
        let entry = self.entries.get_mut(id.index as usize);
        let entry = entry.filter(|entry| entry.generation == id.generation.wrapping_add(1));
        entry.map_or_else(Vec::new, |entry| core::mem::take(&mut entry.before))
    }

    /// Adds a link. Returns `None` if the limit is reached, counting the links that arrivals may begin.
    pub(super) fn add(&mut self, link: Link<P, N>) -> Option<LinkId> {
        if !self.has_room_for(link.who()) {
            return None;
        }
        let free = self.entries.iter().position(|entry| entry.link.is_none());
        let at = free.unwrap_or(self.entries.len());
        let index = u32::try_from(at).ok()?;
        if free.is_none() {
            self.entries.push(LinkEntry {
                generation: 0,
                link: None,
                before: Vec::new(),
                over: None,
            });
        }
        let entry = self.entries.get_mut(at)?;
        let link = entry.link.insert(link);
        link.placing.share(&self.budget);
        self.resting.stir(at);
        if self.order.is_some() {
            link.begin_order();
        }
        let generation = entry.generation;
        Some(LinkId { index, generation })
    }

    /// Removes a link, and closes its channels.
    pub(super) fn remove(&mut self, id: LinkId, now: Instant) {
        let Some(mut link) = self.entries.get_mut(id.index as usize).and_then(|entry| {
            entry.generation = entry.generation.wrapping_add(1);
            let mut link = entry.link.take()?;
            let rails = link.rails.iter_mut();
            let rails = rails.filter_map(|rail| rail.not_connected.take());
            entry.over = link.session.over();
            entry.before = link.unreached.take().into_iter().chain(rails).collect();
            Some(link)
        }) else {
            return;
        };
        for rail in &mut link.rails {
            if let Some(at) = rail.detach() {
                self.give_up(at, Deadline::at(now));
            }
        }
        if let (Some(who), Some(reason)) = (link.who(), link.session.over()) {
            self.ended.note(who, reason.to_refusal());
        }
        if let Some(lent) = link.placing.take_lent() {
            // A WRITE to deregistered memory would fail the connection before the peer gets the reason of the end.
            let until = Deadline::after(now, self.config.session.dead_after);
            self.parting.push((until, lent));
        }
        self.gone.add(&link);
        self.count_vacated(&mut link.vacated);
    }

    /// Adds the counts of rails whose places other ports have to those of ended links, and drops counts that are not reported.
    #[cold]
    fn count_vacated(&mut self, vacated: &mut Vec<(RailPath, LinkRailCounts)>) {
        let Self { gone, entries, .. } = self;
        gone.add_rails(vacated.drain(..));
        gone.keep(|leads| {
            let links = entries.iter().filter_map(|entry| entry.link.as_ref());
            let mut rails = links.flat_map(|link| &link.rails);
            rails.any(|rail| rail.leads.as_ref() == Some(leads))
        });
    }

    /// Schedules a channel to be closed at the end of the poll.
    pub(super) fn give_up(&mut self, at: At, by: Deadline) {
        let of = match self.routes.get(at) {
            Some(ChannelOwner::Rail(id, rail)) => Some((id, rail)),
            _ => None,
        };
        self.routes.give_up(at);
        self.arrivals.forget(at);
        self.closing.push(Ending { at, by, of });
    }

    /// Draws a random number that need not be secret.
    pub(super) fn draw(&mut self) -> u64 {
        self.chance ^= self.chance << 13;
        self.chance ^= self.chance >> 7;
        self.chance ^= self.chance << 17;
        self.chance
    }

    /// Advances every link that does not rest, and reports its events. Returns whether there was one.
    #[inline]
    pub(super) fn advance(
        &mut self,
        node: &Node<P, N>,
        workers: &mut [Worker<P>],
        now: Instant,
        each: &mut impl FnMut(LinkId, LinkEvent<'_>),
    ) -> bool {
        self.check_rests(now);
        let is_any_due = self.resting.is_any_due(now);
        if is_any_due {
            self.advance_due(node, workers, now, each);
        }
        is_any_due
    }

    fn advance_due(
        &mut self,
        node: &Node<P, N>,
        workers: &mut [Worker<P>],
        now: Instant,
        each: &mut impl FnMut(LinkId, LinkEvent<'_>),
    ) {
        let is_ordered = self.order.is_some();
        for index in 0..self.entries.len() {
            if self.resting.begin(index, now) {
                self.move_on(index, node, workers, now, each);
                if !is_ordered {
                    self.end_round(index, now, each);
                }
            }
        }
        if is_ordered {
            self.post_in_order(node, workers, now);
            for index in 0..self.entries.len() {
                if self.resting.is_due(index, now) {
                    self.end_round(index, now, each);
                }
            }
        }
        self.resting.end_all();
    }

    /// Reports the events of a link, and lets the link rest if it has nothing to do.
    fn end_round(&mut self, index: usize, now: Instant, each: &mut impl FnMut(LinkId, LinkEvent<'_>)) {
        self.report(index, now, each);
        let Self { entries, resting, .. } = self;
        let link = entries.get_mut(index).and_then(|entry| entry.link.as_mut());
        resting.end(index, || link.map_or(Some(NEVER), |link| link.rests_until(now)));
    }

    /// Asserts in builds with debug assertions that no resting link has changed. A changed one would be advanced too late.
    fn check_rests(&mut self, now: Instant) {
        if !cfg!(debug_assertions) {
            return;
        }
        for (index, entry) in self.entries.iter_mut().enumerate() {
            let (until, link) = (self.resting.until(index), entry.link.as_mut());
            if let (Some(until), Some(link)) = (until.filter(|until| !until.has_passed(now)), link) {
                let found = link.rests_until(now);
                debug_assert_eq!(found, Some(until), "link {index} rests, and was changed");
            }
        }
    }

    /// Advances a link as far as possible.
    fn move_on(
        &mut self,
        index: usize,
        node: &Node<P, N>,
        workers: &mut [Worker<P>],
        now: Instant,
        each: &mut impl FnMut(LinkId, LinkEvent<'_>),
    ) {
        let random = self.draw();
        let Self {
            entries,
            routes,
            closing,
            config,
            moved,
            ..
        } = self;
        let Some((id, link)) = entries.get_mut(index).and_then(|entry| entry.named(index)) else {
            return;
        };
        link.deliver_left(|message| each(id, LinkEvent::Received { message }));
        link.hear_answer(node, workers, Moment { now, random }, config);
        let terms = (config.frame_bytes(), config.session.attach_within);
        link.poll_connecting(node, workers, Moment { now, random }, terms, |rail, at| {
            routes.set(at, ChannelOwner::Rail(id, rail));
        });
        link.session.begin_turn();
        link.session.await_beside(link.awaits_beside());
        let around = &mut LinkContext {
            node,
            workers,
            config,
            routes,
            closing,
        };
        loop {
            while let Some(action) = link.session.poll_action(now, random) {
                act((id, link), &action, around, Moment { now, random });
            }
            if let Some(handle) = link.one_sided.moved.take() {
                link.reroute(node, around.workers, &handle, now);
            }
            link.put_question(node, Moment { now, random }, around.config);
            let beside = (moved.as_ref(), node.makers());
            link.go_on_beside(around.workers, beside, Moment { now, random });
            // All ends of transfers that the rails accept are posted by now.
            if !link.transfers.owes_too_many() || link.session.over().is_some() {
                return;
            }
            // The next round shuts its rails, before its requests and transfers end.
            link.session.fail(FinalReason::Violation(Violation::OutOfPlace));
        }
    }

    /// Reports the events of a link.
    fn report(&mut self, index: usize, now: Instant, each: &mut impl FnMut(LinkId, LinkEvent<'_>)) {
        let link = self.entries.get_mut(index).and_then(|entry| entry.link.as_mut());
        if let Some(link) = link.filter(|link| !link.vacated.is_empty()) {
            let mut vacated = core::mem::take(&mut link.vacated);
            self.count_vacated(&mut vacated);
        }
        let entry = self.entries.get_mut(index);
        let Some((id, link)) = entry.and_then(|entry| entry.named(index)) else {
            return;
        };
        while let Some(event) = link.session.poll_event() {
            if let SessionEvent::Final { .. } = event {
                link.last_event = Some(event);
                continue;
            }
            log_session(id, &event);
            each(id, LinkEvent::Session(event));
        }
        link.report_beside(now, |event| each(id, event));
        // The peer may still be able to access the memory of transfers or loans, so the end is not reported yet.
        if link.transfers.is_any_open() {
            return;
        }
        if let Some(event) = link.last_event.take() {
            log_session(id, &event);
            each(id, LinkEvent::Session(event));
        }
        // The end was reported now, or by an earlier poll whose callback panicked.
        if link.session.over().is_some() {
            self.remove(id, now);
        }
    }

    /// Closes the scheduled channels, and those whose peer did not send its first frame in time.
    #[inline]
    pub(super) fn close_channels(&mut self, workers: &mut [Worker<P>], now: Instant) {
        if self.routes.is_any_unclaimed() || !self.closing.is_empty() || !self.parting.is_empty() {
            self.close_late_and_ended(workers, now);
        }
    }

    // A separate function: most polls close nothing, and then only the check above runs.
    #[cfg_attr(not(doorbell_in_line), inline(never))]
    fn close_late_and_ended(&mut self, workers: &mut [Worker<P>], now: Instant) {
        self.parting.retain(|(until, _)| !until.has_passed(now));
        loop {
            let late = self.routes.unclaimed().find(|(_, until)| until.has_passed(now));
            let Some((at, _)) = late else {
                break;
            };
            self.give_up(at, Deadline::at(now));
        }
        let mut endings = core::mem::take(&mut self.closing);
        for Ending { at, by, of } in endings.drain(..) {
            let Some(worker) = workers.get_mut(at.worker) else {
                continue;
            };
            if by.has_passed(now) {
                // The queue pair fails at once, so that nothing more is accepted from it.
                let shut = worker
                    .channel(at.channel)
                    .map(crate::worker::channel::Channel::shut);
                let link = of.and_then(|(id, rail)| Some((self.link_mut(id)?, rail)));
                if let (Some(Err(_)), Some((link, rail))) = (shut, link) {
                    link.one_sided.fences.not_shut(rail, at);
                }
            }
            // An error means that the channel is gone or is being closed.
            let _ = worker.begin_close(at.channel, by);
        }
        // The vector keeps its capacity.
        self.closing = endings;
    }
}

/// References that a link needs while a poll advances it.
pub(super) struct LinkContext<'a, P: Provider, N: Network> {
    pub(super) node: &'a Node<P, N>,
    pub(super) workers: &'a mut [Worker<P>],
    pub(super) config: &'a LinkConfig,
    pub(super) routes: &'a mut Routes,
    pub(super) closing: &'a mut Vec<Ending>,
}

impl<P: Provider, N: Network> LinkContext<'_, P, N> {
    /// Schedules the closing of a channel that a rail of a link had.
    fn close(&mut self, of: (LinkId, u8), at: At, by: Deadline, now: Instant) {
        if by.has_passed(now) {
            self.routes.give_up(at);
        } else {
            self.routes.set(at, ChannelOwner::Ended);
        }
        let of = Some(of);
        self.closing.push(Ending { at, by, of });
    }
}

/// Executes an action of a session. Returns whether a request was posted.
pub(super) fn act<P: Provider, N: Network>(
    (id, link): (LinkId, &mut Link<P, N>),
    action: &Action,
    around: &mut LinkContext<'_, P, N>,
    Moment { now, random }: Moment,
) -> bool {
    let rail = match *action {
        Action::Connect { rail, epoch } => {
            match link.dial(rail, epoch, around.node, around.workers, around.config) {
                Ok(connecting) => {
                    if let Some(rail) = link.rail_mut(rail) {
                        rail.connecting = Some(connecting);
                    }
                }
                Err(error) => {
                    link.session.connect_failed(rail, false, now, random);
                    if let Some(rail) = link.rail_mut(rail) {
                        rail.note_failure(error);
                    }
                }
            }
            return false;
        }
        Action::Shut { rail } => {
            let is_over = link.session.over().is_some();
            let had = link.rail_mut(rail).and_then(|rail| match is_over {
                true => rail.detach(),
                false => rail.lose(),
            });
            if let Some(at) = had {
                let is_said = link.say_last(rail, at, around.workers);
                let by = match is_said {
                    true => Deadline::after(now, around.config.session.dead_after),
                    false => Deadline::at(now),
                };
                around.close((id, rail), at, by, now);
            }
            return false;
        }
        Action::Attach { rail, .. }
        | Action::Transmit { rail, .. }
        | Action::Acknowledge { rail, .. }
        | Action::Probe { rail }
        | Action::Farewell { rail, .. } => rail,
        _ => return false,
    };
    if matches!(action, Action::Attach { .. }) && link.one_sided.fences.is_open(rail) {
        // The peer takes the first frame of the rail's next connection as the answer that nothing more is accepted from earlier ones. So the
        // frame waits until they are closed.
        link.session.blocked(rail);
        return false;
    }
    match link.post(action, around.workers, now) {
        Posted::Done(ticket) => {
            if let Some(rail) = link.rail_mut(rail) {
                rail.posted(ticket, action.backlog_bytes(), None);
                rail.did_send(frame_bytes(action));
            }
            link.session.did(action, now);
            return true;
        }
        Posted::Blocked => link.session.blocked(rail),
        outcome @ (Posted::Failed | Posted::InDoubt) => {
            if matches!(outcome, Posted::InDoubt) {
                link.session.in_doubt(action, now);
            }
            if let Some(at) = link.rail_mut(rail).and_then(super::rail::LinkRail::lose) {
                around.close((id, rail), at, Deadline::at(now), now);
            }
            link.session.failed(rail, now, random);
        }
    }
    false
}
