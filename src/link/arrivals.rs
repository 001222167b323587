//! Arrivals: peers whose handshake was granted a place, and whose connection has not said yet what it is for.
//!
//! An arrival counts against [`LinkConfig::links_max`](super::LinkConfig::links_max), so no peer whose handshake was accepted
//! is refused for want of a link's place.

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

/// Owner of a link: the session and the process that began it. Another process that knows the session's name is another owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Who {
    pub(super) session: SessionId,
    pub(super) peer: InstanceId,
}

/// A connection that is not there yet, or of which its peer has not said what it is for.
#[derive(Debug)]
struct Arrival {
    at: At,
    who: Who,
    /// Source address of the handshake's stream. The peer's own claim about its rails does not count: it could name another
    /// host's address.
    from: IpAddr,
    /// Gone with the connection, or with the handshake that comes to nothing.
    place: Weak<Reservation>,
}

/// All arrivals of these links.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    list: Vec<Arrival>,
}

impl Arrivals {
    /// A peer got a place on a Worker.
    fn note(&mut self, at: At, (who, from): (Who, IpAddr), place: &Arc<Reservation>) {
        self.list.retain(|one| one.place.strong_count() > 0);
        let place = Arc::downgrade(place);
        self.list.push(Arrival { at, who, from, place });
    }

    /// Its connection is a link's by now, or given up. Says where it came from.
    pub(super) fn forget(&mut self, at: At) -> Option<IpAddr> {
        let place = self.list.iter().position(|one| one.at == at)?;
        Some(self.list.remove(place).from)
    }

    /// Owners of the arrivals, or of the arrivals from one address: each owner once, however many rails it connects.
    fn each(&self, from: Option<IpAddr>) -> impl Iterator<Item = Who> {
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
    /// Gives a peer its place on a Worker, where there is one for its link, too: so it is rejected before a queue pair is made.
    pub(super) fn grant(
        &mut self,
        (index, worker): (usize, &mut Worker<P>),
        request: &PeerRequest,
    ) -> Result<Reserved<P>, ConnectError> {
        let resumption = request.peer.session.zip(request.peer_instance);
        // One that names no session is none of a link, and refused by what it says.
        let who = resumption.map(|(resumption, peer)| Who {
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

    /// Whether this owner's link exists or has ended: then it takes no further place.
    fn is_known(&self, who: Who) -> bool {
        self.links().any(|(_, link)| link.who() == Some(who)) || self.ended.why(who).is_some()
    }

    /// Whether there is a place for a link, beside those that others are on their way to.
    pub(super) fn has_room_for(&self, who: Option<Who>) -> bool {
        let most = usize::try_from(self.config.links_max).unwrap_or(usize::MAX);
        let links = self.links().count();
        // Known owners, and owners that connect several rails, are counted apart only if places are few: this sum is never too
        // small.
        if links.saturating_add(self.arrivals.list.len()) < most {
            return true;
        }
        let others = self.arrivals.each(None);
        let others = others.filter(|other| Some(*other) != who && !self.is_known(*other));
        links.saturating_add(others.count()) < most
    }

    /// Whether there is a place for one more that is begun from there. An owner that already has an arrival from this address
    /// has its place. A rail of its own from another address of its host is rejected if that address is full, and admitted once
    /// the link is known.
    fn has_room_from(&self, from: IpAddr, who: Who) -> bool {
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
