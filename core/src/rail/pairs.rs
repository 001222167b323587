//! All pairs of rails by which two hosts reach each other: the rails that messages are striped over.
//!
//! The connecting side computes the pairs. The result does not depend on which side is local, so two lists with the
//! ports of both hosts give the same pairs on either side. Ports are not announced over the wire. So the connecting side
//! assumes that each rail of the peer is on a separate port, and may pair two rails that share a port. The peer knows its
//! ports, and refuses the second.

use core::cmp::Ordering;
use core::net::IpAddr;

use heapless::Vec;

use super::{Lane, Merit, NotChosen, RailPair, Verdict, is_link_local, nearness, reach};
use crate::advertised_rail::{AdvertisedRail, RAILS_MAX, SpeedClass};

/// A rail that may be paired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The rail, as it is advertised.
    pub rail: AdvertisedRail,
    /// The number of its port, which only distinguishes ports. Several addresses of one port are one link, and only the
    /// best of them is used. If the ports of a side are unknown, each rail has a different number
    /// ([`Candidate::each`]).
    pub port: u8,
}

impl Candidate {
    /// Makes candidates of rails whose ports are unknown: each counts as on a separate port.
    pub fn each(rails: &[AdvertisedRail]) -> impl Iterator<Item = Self> {
        // A list has at most `RAILS_MAX` rails, so each has a different number.
        (0..=u8::MAX)
            .zip(rails)
            .map(|(port, rail)| Self { rail: *rail, port })
    }
}

/// Two rails that reach each other and carry part of the hosts' messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PairedRails {
    /// The two rails, by index.
    pub pair: RailPair,
    /// The speed of the slower end.
    pub speed: SpeedClass,
    /// The use of the pair, by its speed compared with the fastest pair.
    pub lane: Lane,
}

/// The pairs, and the verdicts on the other rails.
#[derive(Clone, Debug)]
pub struct Pairing<'a> {
    ours: &'a [Candidate],
    peers: &'a [Candidate],
    /// For each list, the places whose rail is already at an earlier place.
    repeated: [Places; 2],
    pairs: Vec<PairedRails, RAILS_MAX>,
}

/// The sides, as indices of [`Pairing::repeated`].
const LOCAL: usize = 0;
const PEER: usize = 1;

/// A set of places in a list of rails.
#[derive(Clone, Copy, Debug)]
struct Places([bool; RAILS_MAX]);

impl Places {
    /// Returns the places whose rail is already at an earlier place.
    fn repeated(candidates: &[Candidate]) -> Self {
        let mut places = Self([false; RAILS_MAX]);
        for (index, (place, this)) in places.0.iter_mut().zip(candidates).enumerate() {
            let mut before = candidates.iter().take(index);
            *place = before.any(|that| that.rail == this.rail);
        }
        places
    }

    fn has(&self, index: usize) -> bool {
        self.0.get(index).copied().unwrap_or(true)
    }
}

/// Pairs the rails of two hosts, each port in at most one pair, the best pair first.
///
/// Pairs are ranked as in [`choose`](super::choose): by the lane, then the prefix, then the speed of the slower end.
/// Equal pairs are ranked by their addresses. Management lanes are paired, too, and come last, so that they are used if all other
/// pairs fail. Link-local addresses pair only if no other addresses do. Duplicates within a list are ignored, and so are
/// all rails after the first [`RAILS_MAX`].
///
/// No further pair can be added to the result. If all hosts of a subnet have the same prefix length, no other set has more
/// pairs either.
///
/// The other side, which exchanges the two lists, gets the same pairs with the sides exchanged.
#[must_use]
pub fn pairs<'a>(ours: &'a [Candidate], peers: &'a [Candidate]) -> Pairing<'a> {
    let mut pairing = Pairing {
        ours,
        peers,
        repeated: [Places::repeated(ours), Places::repeated(peers)],
        pairs: Vec::new(),
    };
    let fastest = pairing.fastest();
    while let Some(next) = pairing.best_left(fastest) {
        if pairing.pairs.push(next).is_err() {
            break;
        }
    }
    pairing
}

impl<'a> Pairing<'a> {
    /// The pairs, the best first.
    #[must_use]
    pub fn pairs(&self) -> &[PairedRails] {
        &self.pairs
    }

    /// Returns the verdict on each of our rails, in order.
    pub fn local_verdicts(&self) -> impl Iterator<Item = (&'a AdvertisedRail, Verdict)> {
        self.ours.iter().enumerate().map(|(index, candidate)| {
            let chosen = self.pairs.iter().find(|paired| paired.pair.local == index);
            let verdict = match chosen {
                Some(paired) => Verdict::Chosen(paired.pair.peer),
                None if self.is_repeated(LOCAL, index) => Verdict::NotChosen(NotChosen::Duplicate),
                None => Verdict::NotChosen(self.why_not(
                    self.peers.iter().map(|peer| (candidate, peer)),
                    candidate,
                    |pair| self.ours.get(pair.local),
                )),
            };
            (&candidate.rail, verdict)
        })
    }

    /// Returns the verdict on each of the peer's rails, in order.
    pub fn peer_verdicts(&self) -> impl Iterator<Item = (&'a AdvertisedRail, Verdict)> {
        self.peers.iter().enumerate().map(|(index, candidate)| {
            let chosen = self.pairs.iter().find(|paired| paired.pair.peer == index);
            let verdict = match chosen {
                Some(paired) => Verdict::Chosen(paired.pair.local),
                None if self.is_repeated(PEER, index) => Verdict::NotChosen(NotChosen::Duplicate),
                None => Verdict::NotChosen(self.why_not(
                    self.ours.iter().map(|local| (local, candidate)),
                    candidate,
                    |pair| self.peers.get(pair.peer),
                )),
            };
            (&candidate.rail, verdict)
        })
    }

    /// Returns the most specific reason among all possible pairs with this rail.
    fn why_not<'r>(
        &self,
        pairs: impl Iterator<Item = (&'r Candidate, &'r Candidate)>,
        rail: &Candidate,
        side: impl Fn(RailPair) -> Option<&'a Candidate>,
    ) -> NotChosen {
        let mut nearest = NotChosen::NothingToReach;
        for (local, peer) in pairs {
            match self.judge(local, peer) {
                Ok(_) => {
                    let same_port =
                        |paired: &PairedRails| side(paired.pair).map(|it| it.port) == Some(rail.port);
                    return if self.pairs.iter().any(same_port) {
                        NotChosen::PortInPair
                    } else if is_link_local(rail.rail.address().address()) && !self.pairs.is_empty() {
                        NotChosen::LinkLocal
                    } else {
                        NotChosen::OthersInPair
                    };
                }
                Err(reason) if nearness(&reason) > nearness(&nearest) => nearest = reason,
                Err(_) => {}
            }
        }
        nearest
    }

    /// The merit of a pair without its lane, or the reason why the two rails are not one.
    fn judge(&self, local: &Candidate, peer: &Candidate) -> Result<Merit, NotChosen> {
        let link_local = |candidates: &[Candidate], side, like: IpAddr| {
            candidates
                .iter()
                .enumerate()
                .filter(|(index, _)| !self.is_repeated(side, *index))
                .map(|(_, candidate)| candidate.rail.address().address())
                .filter(|address| is_link_local(*address) && address.is_ipv4() == like.is_ipv4())
                .count()
        };
        reach(local.rail.address(), peer.rail.address(), |like| {
            link_local(self.ours, LOCAL, like) == 1 && link_local(self.peers, PEER, like) == 1
        })
        .map(|merit| Merit {
            speed: local.rail.speed().min(peer.rail.speed()),
            ..merit
        })
    }

    /// Every pair that reaches, by index, with its merit.
    fn reaching(&self) -> impl Iterator<Item = (RailPair, Merit)> {
        self.ours.iter().enumerate().flat_map(move |(local, ours)| {
            self.peers.iter().enumerate().filter_map(move |(peer, theirs)| {
                if self.is_repeated(LOCAL, local) || self.is_repeated(PEER, peer) {
                    return None;
                }
                let merit = self.judge(ours, theirs).ok()?;
                Some((RailPair { local, peer }, merit))
            })
        })
    }

    /// Whether a place of a list is skipped: a duplicate, or beyond [`RAILS_MAX`].
    fn is_repeated(&self, side: usize, index: usize) -> bool {
        self.repeated.get(side).is_none_or(|places| places.has(index))
    }

    /// The speed of the fastest pair.
    fn fastest(&self) -> SpeedClass {
        let speeds = self.reaching().map(|(_, merit)| merit.speed);
        speeds.max().unwrap_or_default()
    }

    /// The best pair of two ports that are not yet in a pair.
    fn best_left(&self, fastest: SpeedClass) -> Option<PairedRails> {
        let is_free = |pair: RailPair| {
            let (local, peer) = (self.ours.get(pair.local), self.peers.get(pair.peer));
            self.pairs.iter().all(|taken| {
                let (ours, theirs) = (self.ours.get(taken.pair.local), self.peers.get(taken.pair.peer));
                ours.map(|it| it.port) != local.map(|it| it.port)
                    && theirs.map(|it| it.port) != peer.map(|it| it.port)
            })
        };
        self.reaching()
            .filter(|(pair, _)| is_free(*pair))
            // A link-local pair is added only as the first one.
            .filter(|(_, merit)| merit.is_not_link_local || self.pairs.is_empty())
            .map(|(pair, merit)| (pair, merit.beside(fastest)))
            .min_by(|a, b| self.order(a, b))
            .map(|(pair, merit)| PairedRails {
                pair,
                speed: merit.speed,
                lane: merit.lane,
            })
    }

    /// Orders the better pair first. Both sides get the same order: the ends of a pair are compared as a set.
    fn order(
        &self,
        (one, one_merit): &(RailPair, Merit),
        (other, other_merit): &(RailPair, Merit),
    ) -> Ordering {
        let ends = |pair: &RailPair| {
            let local = self.ours.get(pair.local).map(|it| key(&it.rail));
            let peer = self.peers.get(pair.peer).map(|it| key(&it.rail));
            if local <= peer {
                (local, peer)
            } else {
                (peer, local)
            }
        };
        other_merit
            .cmp(one_merit)
            .then_with(|| ends(one).cmp(&ends(other)))
    }
}

/// All fields that distinguish rails, in an order that both sides share.
fn key(rail: &AdvertisedRail) -> (crate::Gid, u8, crate::Gid, SpeedClass) {
    let address = rail.address();
    (
        crate::Gid::from_ip(address.address()),
        address.prefix_bits(),
        rail.gid(),
        rail.speed(),
    )
}

#[cfg(test)]
mod tests;
