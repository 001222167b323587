//! Arrivals: handshakes and new connections that have a place on a Worker, and whose peer has not sent its first frame.
//!
//! An arrival counts against [`LinkConfig::links_max`](super::LinkConfig::links_max). So once its handshake is accepted, a peer
//! is not refused because the limit on links is reached.

use core::net::IpAddr;
use std::sync::{Arc, Weak};

use doorbell_core::network::Network;
use doorbell_core::provider::Provider;
use doorbell_core::wire::{InstanceId, SessionId};

use super::rail::At;
use super::table::Core;
use crate::connect::answer::PeerRequest;
use crate::connect::attempt::Reserved;
use crate::error::ConnectError;
use crate::worker::{Reservation, Worker};

/// Owner of a link: the session, and the process that began it. Another process that uses the same session id is another owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LinkOwner {
    pub(super) session: SessionId,
    pub(super) peer: InstanceId,
}

/// A handshake, or a connection whose peer has not sent its first frame.
#[derive(Debug)]
struct Arrival {
    at: At,
    who: LinkOwner,
    /// Source address of the handshake's stream. The addresses of rails that the peer claims are not used: a peer could claim those of
    /// another host.
    from: IpAddr,
    /// Cannot be upgraded once the connection is gone, or the handshake has failed.
    place: Weak<Reservation>,
}

/// All arrivals of these links.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    list: Vec<Arrival>,
}

impl Arrivals {
    /// Notes that a peer was granted a place on a Worker.
    fn note(&mut self, at: At, (who, from): (LinkOwner, IpAddr), place: &Arc<Reservation>) {
        self.list.retain(|one| one.place.strong_count() > 0);
        let place = Arc::downgrade(place);
        self.list.push(Arrival { at, who, from, place });
    }

    /// Removes an arrival, whose connection has become a rail or is given up. Returns its source address.
    pub(super) fn forget(&mut self, at: At) -> Option<IpAddr> {
        let place = self.list.iter().position(|one| one.at == at)?;
        Some(self.list.remove(place).from)
    }

    /// The owners of all arrivals, or of those from one address. An owner that connects several rails is returned once.
    fn each(&self, from: Option<IpAddr>) -> impl Iterator<Item = LinkOwner> {
        let is_there =
            move |one: &&Arrival| one.place.strong_count() > 0 && from.is_none_or(|from| one.from == from);
        (1..).zip(&self.list).filter_map(move |(through, one)| {
            let mut before = self.list.iter().take(through).filter(is_there);
            let first = before.find(|other| other.who == one.who)?;
            (first.at == one.at).then_some(one.who)
        })
    }
}

impl<P: Provider, N: Network> Core<P, N> {
    /// Grants a place on a Worker to a peer if the limits on links permit its link. So a peer beyond a limit is rejected before a queue pair
    /// is made.
    pub(super) fn grant(
        &mut self,
        (index, worker): (usize, &mut Worker<P>),
        request: &PeerRequest,
    ) -> Result<Reserved<P>, ConnectError> {
        let resumption = request.peer.session.zip(request.peer_instance);
        // A connection without a session cannot become a rail: its first frame is refused.
        let who = resumption.map(|(resumption, peer)| LinkOwner {
            session: resumption.session,
            peer,
        });
        let from = request.from;
        if let Some(who) = who.filter(|who| !self.is_known(*who)) {
            if !self.has_room_for(Some(who)) {
                return Err(ConnectError::TooManyLinks {
                    links_max: self.config.links_max,
                });
            }
            if !self.has_room_from(from, who) {
                return Err(ConnectError::TooManyLinksFrom {
                    address: from,
                    links_per_address: self.config.links_per_address,
                });
            }
        }
        let reserved = request.reserve(worker)?;
        if let Some(who) = who {
            let reservation = reserved.reservation();
            let at = At {
                worker: index,
                channel: reservation.id,
            };
            self.arrivals.note(at, (who, from), reservation);
        }
        Ok(reserved)
    }

    /// Whether this owner's link exists or has ended. In both cases it needs no further place for a link.
    fn is_known(&self, who: LinkOwner) -> bool {
        self.links().any(|(_, link)| link.who() == Some(who)) || self.ended.why(who).is_some()
    }

    /// Whether there is room for the link of this owner, in addition to the links that other arrivals may begin.
    pub(super) fn has_room_for(&self, who: Option<LinkOwner>) -> bool {
        let most = usize::try_from(self.config.links_max).unwrap_or(usize::MAX);
        let links = self.links().count();
        // This sum may count an owner several times, and owners of existing links, but it is never too small. The exact count
        // follows only if the sum reaches the limit.
        if links.saturating_add(self.arrivals.list.len()) < most {
            return true;
        }
        let others = self.arrivals.each(None);
        let others = others.filter(|other| Some(*other) != who && !self.is_known(*other));
        links.saturating_add(others.count()) < most
    }

    /// Whether the limit of this source address permits another link. Other rails of the same owner from this address do not count. If a
    /// peer's second rail comes from another address of its host that is at its limit, the rail is rejected until the link exists.
    fn has_room_from(&self, from: IpAddr, who: LinkOwner) -> bool {
        let most = usize::try_from(self.config.links_per_address).unwrap_or(usize::MAX);
        let begun = self.links().filter(|(_, link)| {
            let mut came_from = link.rails.iter().filter_map(|rail| rail.from);
            came_from.any(|other| other == from)
        });
        let others = self.arrivals.each(Some(from));
        let others = others.filter(|other| *other != who && !self.is_known(*other));
        begun.count().saturating_add(others.count()) < most
    }
}
