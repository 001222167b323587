//! Owners of channels, and the meaning of a channel's events to its owner.

use core::net::IpAddr;

use doorbell_core::network::Network;
use doorbell_core::provider::{Operation, Provider};
use doorbell_core::session::{HealthState, Role};
use doorbell_core::wire::{AttachParameters, Refusal, RefusalReason, SessionFrame};
use doorbell_core::{Deadline, Instant, WcStatus};

use super::arrivals::Who;
use super::event::{LinkEvent, LinkId};
use super::log::{log_accepted, log_failed, log_refused};
use super::moment::Moment;
use super::rail::At;
use super::state::Link;
use super::table::Core;
use crate::worker::Turn;
use crate::worker::event::Event;
use crate::worker::peer::Peer;

/// Owner of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// A rail of a link.
    Rail(LinkId, u8),
    /// A peer made it, and has not sent its first frame yet.
    Unclaimed(Deadline),
    /// It was a rail of a link that is over, and carries the reason to the peer.
    Ended,
    /// A channel that is being closed, whose last events are nobody's: the place has this until another channel takes it.
    GivenUp,
}

/// Whether what a peer says first on a connection is what it said, and perhaps proved, in the handshake.
fn is_proven(peer: &Peer, said: &AttachParameters) -> bool {
    peer.session().is_some_and(|resumption| {
        resumption.session == said.session
            && resumption.epoch == said.epoch.to_u32()
            // It may have received more meanwhile.
            && resumption.next_sequence <= said.expected.0
    })
}

/// Whether the peer's device refused a request, by what it said.
fn is_denial(status: WcStatus) -> bool {
    status == WcStatus::REM_ACCESS_ERR
        || status == WcStatus::REM_INV_REQ_ERR
        || status == WcStatus::REM_OP_ERR
}

/// Whose each channel of each Worker is.
#[derive(Debug, Default)]
pub(super) struct Routes {
    of_worker: Vec<Vec<Option<(At, Whose)>>>,
    /// How many of them nobody has claimed.
    unclaimed: usize,
}

impl Routes {
    pub(super) fn set(&mut self, at: At, whose: Whose) {
        let index = at.channel.index as usize;
        if self.of_worker.len() <= at.worker {
            self.of_worker.resize_with(at.worker.saturating_add(1), Vec::new);
        }
        let Some(of_it) = self.of_worker.get_mut(at.worker) else {
            return;
        };
        if of_it.len() <= index {
            of_it.resize(index.saturating_add(1), None);
        }
        if let Some(place) = of_it.get_mut(index) {
            let before = place.replace((at, whose)).map(|(_, whose)| whose);
            let count = |whose| usize::from(matches!(whose, Some(Whose::Unclaimed(_))));
            self.unclaimed = self
                .unclaimed
                .saturating_add(count(Some(whose)))
                .saturating_sub(count(before));
        }
    }

    pub(super) fn get(&self, at: At) -> Option<Whose> {
        let place = self.of_worker.get(at.worker)?.get(at.channel.index as usize)?;
        place.filter(|(there, _)| *there == at).map(|(_, whose)| whose)
    }

    /// Nothing of a channel counts from here on. If its place has another channel by now, that one stays.
    pub(super) fn give_up(&mut self, at: At) {
        if self.get(at).is_some() {
            self.set(at, Whose::GivenUp);
        }
    }

    /// Whether there are channels that nobody has claimed.
    #[inline]
    pub(super) const fn is_any_unclaimed(&self) -> bool {
        self.unclaimed > 0
    }

    /// The channels that nobody has claimed, and until when they may be.
    pub(super) fn unclaimed(&self) -> impl Iterator<Item = (At, Deadline)> {
        let all = self.of_worker.iter().flatten().flatten();
        let unclaimed = all.filter_map(|(at, whose)| match whose {
            Whose::Unclaimed(until) => Some((*at, *until)),
            Whose::Rail(..) | Whose::Ended | Whose::GivenUp => None,
        });
        // Most of the time there is none, and no channel is looked at.
        unclaimed.take(self.unclaimed)
    }
}

impl<P: Provider, N: Network> Core<P, N> {
    /// Takes an event of a channel; gives it back where the channel is none of ours.
    pub(super) fn dispatch<'w, 'm>(
        &mut self,
        worker: usize,
        mut turn: Turn<'w, P>,
        event: Event<'m, P>,
        now: Instant,
        each: &mut impl FnMut(LinkId, LinkEvent<'_>),
    ) -> Option<(Turn<'w, P>, Event<'m, P>)> {
        let at = At {
            worker,
            channel: turn.channel.id(),
        };
        if let Event::Failed { ticket, status } = &event {
            // Channels that were given up are included: a channel is often given up before its denial is reported.
            if is_denial(*status) {
                self.links_mut().for_each(|link| link.denied(at, *ticket));
            }
        }
        let Some(whose) = self.routes.get(at) else {
            return Some((turn, event));
        };
        match (event, whose) {
            (Event::Received { message, .. }, Whose::Rail(id, rail)) => {
                let random = self.draw();
                if let Some(link) = self.link_mut(id) {
                    link.take(rail, message.payload(), Moment { now, random }, |message| {
                        each(id, LinkEvent::Received { message });
                    });
                }
            }
            (Event::Received { message, .. }, Whose::Unclaimed(_)) => {
                let from = self.arrivals.forget(at);
                self.claim((at, from), message.payload(), &mut turn, now, each);
            }
            (Event::Done { through }, Whose::Rail(id, rail)) => {
                if let Some(link) = self.link_mut(id) {
                    link.completed(rail, through, now);
                }
            }
            (Event::Fetched { ticket, data }, whose) => {
                if let Whose::Rail(id, rail) = whose {
                    let link = self.link_mut(id);
                    let data = data.payload();
                    if let Some(request) = link.and_then(|link| link.fetched(rail, ticket, data)) {
                        each(id, LinkEvent::Fetched { request, data });
                    }
                }
                turn.release(data);
            }
            (
                Event::Failed { .. }
                | Event::ChannelFailed { .. }
                | Event::PeerClosed { .. }
                | Event::Overdrawn,
                whose @ (Whose::Rail(..) | Whose::Unclaimed(_) | Whose::Ended),
            ) => {
                self.give_up(at, Deadline::at(now));
                if let Whose::Rail(id, rail) = whose {
                    log_failed(id, rail, turn.channel.state());
                    let random = self.draw();
                    if let Some(link) = self.link_mut(id) {
                        if let Some(rail) = link.rail_mut(rail) {
                            rail.lose();
                        }
                        link.session.failed(rail, now, random);
                    }
                }
            }
            // Nothing of a session's is written with a word; what the device refuses, it is asked again. Events of a channel that was given
            // up count for nothing.
            _ => {}
        }
        None
    }

    /// Takes the first a peer says on a connection it made.
    fn claim(
        &mut self,
        (at, from): (At, Option<IpAddr>),
        bytes: &[u8],
        turn: &mut Turn<'_, P>,
        now: Instant,
        each: &mut impl FnMut(LinkId, LinkEvent<'_>),
    ) {
        let Ok(SessionFrame::Attach(said)) = SessionFrame::parse(bytes) else {
            self.give_up(at, Deadline::at(now));
            return;
        };
        let bytes_max = usize::try_from(turn.channel.peer().message_bytes_max()).unwrap_or(usize::MAX);
        let outcome = if bytes_max < self.config.frame_bytes() || !is_proven(turn.channel.peer(), &said) {
            Err(RefusalReason::CONTRADICTION)
        } else {
            let peer = *turn.channel.peer();
            let on = (turn.channel.port(), turn.channel.class());
            self.take_offer((at, on, from), &peer, &said, now, each)
        };
        if let Err(reason) = outcome {
            log_refused(reason);
            let refusal = Refusal::new(said.epoch, reason).to_bytes();
            // If the refusal cannot be posted, the peer gives the connection up by itself.
            let _ = turn.channel.post_inline(Operation::Send, &refusal);
            self.give_up(at, Deadline::after(now, self.config.session.dead_after));
        }
    }

    fn take_offer(
        &mut self,
        (at, (port, class), from): (At, (u8, u8), Option<IpAddr>),
        peer: &Peer,
        said: &AttachParameters,
        now: Instant,
        each: &mut impl FnMut(LinkId, LinkEvent<'_>),
    ) -> Result<(), RefusalReason> {
        // Another process has no part in it, whatever it knows of its name.
        let who = Who {
            session: said.session,
            peer: peer.instance(),
        };
        let known = self.links().find(|(_, link)| link.who() == Some(who));
        let known = known.map(|(id, _)| id);
        if let (None, Some(reason)) = (known, self.ended.why(who)) {
            return Err(reason);
        }
        let id = match known {
            Some(id) => id,
            None if !said.begins => return Err(RefusalReason::UNKNOWN_SESSION),
            None => {
                let link = Link::new(&self.config, Role::Responder, said.session, now);
                let mut link = link.map_err(|_| RefusalReason::NO_ROOM)?;
                link.peer = Some(peer.instance());
                link.in_class.set(class);
                self.add(link).ok_or(RefusalReason::NO_ROOM)?
            }
        };
        let other = self.link(id).and_then(|link| {
            let other = link.other_on((at.worker, port), said.rail)?;
            Some((other, link.session.rail_state(other)))
        });
        // A suspect rail may be replaced: the peer noticed sooner than this side that it does not answer.
        if other.is_some_and(|(_, state)| state != HealthState::Suspect) {
            return Err(RefusalReason::PORT_IN_USE);
        }
        let speed_mbps = self.speeds_mbps.get(at.worker).copied().unwrap_or(0);
        let link = self.link_mut(id).ok_or(RefusalReason::NO_ROOM)?;
        let offered = link.session.offered(said, speed_mbps, now);
        let offer = match offered {
            Ok(offer) => offer,
            Err(reason) => {
                if known.is_none() {
                    self.remove(id, now);
                }
                return Err(reason);
            }
        };
        if let Some((other, _)) = other {
            let through = link.session.rail_epoch(other);
            // This side connects nothing, so it needs no randomness for a retry.
            link.session.given_up(other, through, now, 0);
        }
        link.transfers.met(peer.wire_version(), now);
        let replaced = link.rail_mut(offer.rail).and_then(|rail| {
            (rail.port, rail.from) = (port, from);
            rail.attach(at, peer.address())
        });
        if let Some(old) = replaced {
            self.give_up(old, Deadline::at(now));
        }
        self.routes.set(at, Whose::Rail(id, offer.rail));
        if known.is_none() {
            log_accepted(id);
            each(id, LinkEvent::Accepted);
        }
        Ok(())
    }
}
