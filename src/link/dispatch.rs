//! The owner of each channel, and the handling of a channel's events for its owner.

use core::net::IpAddr;

use doorbell_core::network::Network;
use doorbell_core::provider::{Operation, Provider};
use doorbell_core::session::{HealthState, Role};
use doorbell_core::wire::{AttachParameters, Refusal, RefusalReason, SessionFrame};
use doorbell_core::{Deadline, Instant, WcStatus};

use super::arrivals::LinkOwner;
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
pub(super) enum ChannelOwner {
    /// A rail of a link.
    Rail(LinkId, u8),
    /// A peer connected it, and has to send its first frame by this deadline.
    Unclaimed(Deadline),
    /// A rail of a link that is over. The reason was sent on it, and it is being closed.
    Ended,
    /// A channel that is being closed, and whose events are dropped. The entry stays until another channel has the same index.
    GivenUp,
}

/// Whether the first frame on a connection matches the session that the peer named in the handshake.
fn is_proven(peer: &Peer, said: &AttachParameters) -> bool {
    peer.session().is_some_and(|resumption| {
        resumption.session == said.session
            && resumption.epoch == said.epoch.to_u32()
            // The peer may have received more fragments since the handshake.
            && resumption.next_sequence <= said.expected.0
    })
}

/// Whether the status of a failed request means that the peer's device refused it.
fn is_denial(status: WcStatus) -> bool {
    status == WcStatus::REM_ACCESS_ERR
        || status == WcStatus::REM_INV_REQ_ERR
        || status == WcStatus::REM_OP_ERR
}

/// The owner of each channel of each Worker.
#[derive(Debug, Default)]
pub(super) struct Routes {
    of_worker: Vec<Vec<Option<(At, ChannelOwner)>>>,
    /// Number of channels that are [`ChannelOwner::Unclaimed`].
    unclaimed: usize,
}

impl Routes {
    pub(super) fn set(&mut self, at: At, whose: ChannelOwner) {
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
            let count = |whose| usize::from(matches!(whose, Some(ChannelOwner::Unclaimed(_))));
            self.unclaimed = self
                .unclaimed
                .saturating_add(count(Some(whose)))
                .saturating_sub(count(before));
        }
    }

    pub(super) fn get(&self, at: At) -> Option<ChannelOwner> {
        let place = self.of_worker.get(at.worker)?.get(at.channel.index as usize)?;
        place.filter(|(there, _)| *there == at).map(|(_, whose)| whose)
    }

    /// Makes further events of a channel be dropped. If another channel has the same index by now, nothing changes.
    pub(super) fn give_up(&mut self, at: At) {
        if self.get(at).is_some() {
            self.set(at, ChannelOwner::GivenUp);
        }
    }

    /// Whether there are channels whose peer has not sent its first frame.
    #[inline]
    pub(super) const fn is_any_unclaimed(&self) -> bool {
        self.unclaimed > 0
    }

    /// The channels whose peer has not sent its first frame, with the deadline of each.
    pub(super) fn unclaimed(&self) -> impl Iterator<Item = (At, Deadline)> {
        let all = self.of_worker.iter().flatten().flatten();
        let unclaimed = all.filter_map(|(at, whose)| match whose {
            ChannelOwner::Unclaimed(until) => Some((*at, *until)),
            ChannelOwner::Rail(..) | ChannelOwner::Ended | ChannelOwner::GivenUp => None,
        });
        // Usually there is none, and then the iteration looks at no channel.
        unclaimed.take(self.unclaimed)
    }
}

impl<P: Provider, N: Network> Core<P, N> {
    /// Handles an event of a channel. Returns the event if the channel belongs to no link.
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
            // Channels that are given up are included: the completion with the refusal is often reported after that.
            if is_denial(*status) {
                self.links_mut()
                    .for_each(|link| link.denied(at, *ticket, *status));
            }
        }
        let Some(whose) = self.routes.get(at) else {
            return Some((turn, event));
        };
        match (event, whose) {
            (Event::Received { message, .. }, ChannelOwner::Rail(id, rail)) => {
                let random = self.draw();
                if let Some(link) = self.link_mut(id) {
                    link.take(rail, message.payload(), Moment { now, random }, |message| {
                        each(id, LinkEvent::Received { message });
                    });
                }
            }
            (Event::Received { message, .. }, ChannelOwner::Unclaimed(_)) => {
                let from = self.arrivals.forget(at);
                self.claim((at, from), message.payload(), &mut turn, now, each);
            }
            (Event::Done { through }, ChannelOwner::Rail(id, rail)) => {
                if let Some(link) = self.link_mut(id) {
                    link.completed(rail, through, now);
                }
            }
            (Event::Fetched { ticket, data }, whose) => {
                if let ChannelOwner::Rail(id, rail) = whose {
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
                whose @ (ChannelOwner::Rail(..) | ChannelOwner::Unclaimed(_) | ChannelOwner::Ended),
            ) => {
                self.give_up(at, Deadline::at(now));
                if let ChannelOwner::Rail(id, rail) = whose {
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
            // Sessions use no WRITE with immediate. The Worker retries receives and announcements that its device refused. Events of a
            // channel that is given up are dropped.
            _ => {}
        }
        None
    }

    /// Handles the first frame of a peer on a connection that it made.
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
            // If the refusal cannot be posted, the peer gives the connection up after `attach_within`.
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
        // Another process cannot attach to the link, even if it knows the session id.
        let who = LinkOwner {
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
        // A suspect rail may be replaced: the peer may have detected its failure earlier than this side.
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
        self.routes.set(at, ChannelOwner::Rail(id, offer.rail));
        if known.is_none() {
            log_accepted(id);
            each(id, LinkEvent::Accepted);
        }
        Ok(())
    }
}
