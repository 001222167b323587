//! Which local rail reaches which address of a peer.
//!
//! Two addresses reach each other if each lies in the other's subnet, by the prefix length of its own interface. The
//! choice is made and explained here; ports are found and announced to a peer elsewhere.

use core::cmp::Reverse;
use core::fmt;
use core::net::IpAddr;

use crate::advertised_rail::{AdvertisedRail, NotAdvertisable, SpeedClass};
use crate::port::{Name, Unusable};
use crate::{Gid, GidEntry, GidKind, IpPrefix, Mtu, PortReport};

mod lane;
mod pairs;

pub use lane::{LANE_FACTOR, Lane};
pub use pairs::{Candidate, PairedRails, Pairing, pairs};

/// One local port on one subnet, or a port that has none and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalRail {
    /// The RDMA device's name.
    pub device: Name,
    /// The port's number, from 1.
    pub port: u8,
    /// The link's speed in megabits per second; zero where not known.
    pub speed_mbps: u32,
    /// The source address of a connection, or the reason why there is none.
    pub source: Result<RailSource, Unusable>,
}

/// The entry of a GID table that a rail's connections are made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RailSource {
    /// Its index in the table.
    pub gid_index: u32,
    /// The GID.
    pub gid: Gid,
    /// Its kind.
    pub kind: GidKind,
    /// The address it stands for, with the prefix length of its interface.
    pub address: IpPrefix,
    /// The MTU the port works with now.
    pub mtu: Mtu,
}

impl LocalRail {
    /// Returns the rails of a port: one for each usable GID, or one that says why there is none. One more stands for
    /// usable GIDs beyond the limit.
    pub fn of_port(report: &PortReport) -> impl Iterator<Item = Self> {
        let unusable = match (report.usability(), report.active_mtu) {
            (Err(reason), _) => Some(reason),
            (Ok(()), None) => Some(Unusable::UnknownMtu),
            (Ok(()), Some(_)) => None,
        };
        let source = |entry: &GidEntry| {
            let (address, mtu) = (entry.address?, report.active_mtu?);
            Some(RailSource {
                gid_index: entry.index,
                gid: entry.gid,
                kind: entry.kind,
                address,
                mtu,
            })
        };
        let usable = report
            .usable_gids()
            .filter_map(source)
            .filter(move |_| unusable.is_none())
            .map(Ok);
        let left_out = Some(report.gids_left_out)
            .filter(|count| *count > 0 && unusable.is_none())
            .map(|count| Err(Unusable::BeyondGidsMax(count)));
        let sources = unusable.map(Err).into_iter().chain(usable).chain(left_out);
        sources.map(|source| Self {
            device: report.device.clone(),
            port: report.port,
            speed_mbps: report.speed_mbps,
            source,
        })
    }

    /// Returns the rail as it is advertised to a peer; `None` if it cannot be used.
    ///
    /// # Errors
    /// It has an address that no peer could use.
    pub fn advertised(&self) -> Option<Result<AdvertisedRail, NotAdvertisable>> {
        let source = self.source.ok()?;
        Some(AdvertisedRail::new(
            source.address,
            source.gid,
            SpeedClass::from_mbps(self.speed_mbps),
        ))
    }
}

/// A local rail and the peer's rail it reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RailPair {
    /// The index of the local rail.
    pub local: usize,
    /// The index of the peer's rail.
    pub peer: usize,
}

/// Why a rail is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotChosen {
    /// The port cannot carry a connection.
    Unusable(Unusable),
    /// The other side has no rail at all.
    NothingToReach,
    /// The other side has no address of this family.
    OtherFamily,
    /// No address of the other side is in this rail's subnet.
    NotInSubnet,
    /// An address of the other side is in this rail's subnet, but by its own prefix length that address
    /// does not reach back: one of the two interfaces has the wrong prefix length.
    OneSided {
        /// The local address.
        local: IpPrefix,
        /// The peer's.
        peer: IpPrefix,
    },
    /// The addresses are link-local and there are several, so they do not say which link they are on.
    AmbiguousLinkLocal,
    /// It reaches the other side by a link-local address, and the one chosen has a better one.
    LinkLocal,
    /// It reaches the other side in a larger subnet than the one chosen.
    ShorterPrefix {
        /// The bits its prefix leaves for hosts.
        host_bits: u8,
        /// The bits that the prefix of the chosen one leaves for hosts.
        chosen_host_bits: u8,
    },
    /// It reaches the other side over a slower link than the one chosen.
    Slower {
        /// Its speed.
        speed: SpeedClass,
        /// The speed of the chosen one.
        chosen: SpeedClass,
    },
    /// It is as good as the one chosen, which comes first.
    LaterInOrder,
    /// The list has the same rail earlier.
    Duplicate,
    /// Its port is in a pair already, by a better address.
    PortInPair,
    /// Every rail it reaches is in a better pair.
    OthersInPair,
}

impl fmt::Display for NotChosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unusable(reason) => fmt::Display::fmt(reason, f),
            Self::NothingToReach => f.write_str("the other side has no rail"),
            Self::OtherFamily => f.write_str("the other side has no address of this family"),
            Self::NotInSubnet => f.write_str("no address of the other side is in its subnet"),
            Self::OneSided { local, peer } => write!(
                f,
                "local {local} and the peer's {peer} do not agree on being in one subnet: \
                 one of the two prefix lengths is wrong"
            ),
            Self::AmbiguousLinkLocal => {
                f.write_str("several link-local addresses: they do not say which link they are on")
            }
            Self::LinkLocal => f.write_str("only by a link-local address, and there is a better one"),
            Self::ShorterPrefix {
                host_bits,
                chosen_host_bits,
            } => write!(
                f,
                "shorter prefix: it leaves {host_bits} bits for hosts, the chosen rail's {chosen_host_bits}"
            ),
            Self::Slower { speed, chosen } => write!(f, "slower: {speed}, the chosen rail {chosen}"),
            Self::LaterInOrder => f.write_str("as good as the chosen rail, which comes first"),
            Self::Duplicate => f.write_str("the same rail is listed before"),
            Self::PortInPair => f.write_str("its port is in a pair by a better address"),
            Self::OthersInPair => f.write_str("every rail it reaches is in a better pair"),
        }
    }
}

/// Result of the choice for one rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "it is chosen or it is not")]
pub enum Verdict {
    /// It is used, with the rail of this index on the other side.
    Chosen(usize),
    /// It is not used.
    NotChosen(NotChosen),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Chosen(other) => write!(f, "chosen, with rail {other} of the other side"),
            Self::NotChosen(reason) => fmt::Display::fmt(reason, f),
        }
    }
}

/// How good a pair is: the greater, the better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Merit {
    /// An address that stands for one link only.
    is_not_link_local: bool,
    /// Beside the fastest pair.
    lane: Lane,
    /// The bits that number hosts in the subnet: IPv4 and IPv6 prefixes compare by them, and fewer mean a
    /// more particular subnet.
    host_bits: Reverse<u8>,
    /// The slower of the two ends.
    speed: SpeedClass,
}

impl Merit {
    /// With its lane, where this is the speed of the fastest pair.
    fn beside(self, fastest: SpeedClass) -> Self {
        Self {
            lane: Lane::of(self.speed, fastest),
            ..self
        }
    }
}

/// A choice among rails, and the reasons for it.
#[derive(Clone, Copy, Debug)]
pub struct Choice<'a> {
    local: &'a [LocalRail],
    peer: &'a [AdvertisedRail],
    /// The speed of the fastest pair that reaches.
    fastest: SpeedClass,
    chosen: Option<(RailPair, Merit)>,
}

/// Chooses the local rail and the peer's rail that reach each other best.
///
/// The lane counts first ([`Lane`], by the slower end of the link, compared with the fastest pair that reaches). Next
/// comes the longest prefix: if the two ends differ, the shorter of the two counts. Between IPv4 and IPv6, the prefix
/// that leaves fewer bits for hosts is the longer. Next come the speed of the slower end, the order of the local rails,
/// and the order of the peer's rails.
///
/// Link-local addresses come after all others, and only if each side has exactly one of the family.
#[must_use]
pub fn choose<'a>(local: &'a [LocalRail], peer: &'a [AdvertisedRail]) -> Choice<'a> {
    let mut choice = Choice {
        local,
        peer,
        fastest: SpeedClass::default(),
        chosen: None,
    };
    let reaching = local
        .iter()
        .flat_map(|ours| peer.iter().map(move |theirs| (ours, theirs)));
    let speeds = reaching.filter_map(|(ours, theirs)| Some(choice.judge(ours, theirs).ok()?.speed));
    choice.fastest = speeds.max().unwrap_or_default();
    for (local_index, local_rail) in local.iter().enumerate() {
        for (peer_index, peer_rail) in peer.iter().enumerate() {
            let Ok(merit) = choice.judge(local_rail, peer_rail) else {
                continue;
            };
            // Strictly better, so that of equals the first stays.
            if choice.chosen.is_none_or(|(_, best)| merit > best) {
                choice.chosen = Some((
                    RailPair {
                        local: local_index,
                        peer: peer_index,
                    },
                    merit,
                ));
            }
        }
    }
    choice
}

impl<'a> Choice<'a> {
    /// The pair to use; `None` where no local rail reaches the peer.
    #[must_use]
    pub fn pair(&self) -> Option<RailPair> {
        self.chosen.map(|(pair, _)| pair)
    }

    /// Returns the verdict on every local rail, in order.
    pub fn local_verdicts(&self) -> impl Iterator<Item = (&'a LocalRail, Verdict)> + use<'a> {
        let choice = *self;
        choice.local.iter().enumerate().map(move |(index, rail)| {
            let verdict = match choice.chosen {
                Some((pair, _)) if pair.local == index => Verdict::Chosen(pair.peer),
                _ => Verdict::NotChosen(
                    choice.why_not(choice.peer.iter().map(|peer| (rail, peer)), rail.source.err()),
                ),
            };
            (rail, verdict)
        })
    }

    /// Returns the verdict on every rail of the peer, in order.
    pub fn peer_verdicts(&self) -> impl Iterator<Item = (&'a AdvertisedRail, Verdict)> + use<'a> {
        let choice = *self;
        choice.peer.iter().enumerate().map(move |(index, rail)| {
            let verdict = match choice.chosen {
                Some((pair, _)) if pair.peer == index => Verdict::Chosen(pair.local),
                _ => Verdict::NotChosen(choice.why_not(choice.local.iter().map(|local| (local, rail)), None)),
            };
            (rail, verdict)
        })
    }

    /// Returns the most specific reason, of all pairs that a rail is part of.
    fn why_not<'r>(
        &self,
        pairs: impl Iterator<Item = (&'r LocalRail, &'r AdvertisedRail)>,
        unusable: Option<Unusable>,
    ) -> NotChosen {
        if let Some(reason) = unusable {
            return NotChosen::Unusable(reason);
        }
        let mut best: Option<Merit> = None;
        let mut nearest = NotChosen::NothingToReach;
        for (local, peer) in pairs {
            match self.judge(local, peer) {
                Ok(merit) => best = best.max(Some(merit)),
                // A local rail that is out of order says nothing about the peer's rail.
                Err(NotChosen::Unusable(_)) => {}
                Err(reason) if nearness(&reason) > nearness(&nearest) => nearest = reason,
                Err(_) => {}
            }
        }
        match (best, self.chosen) {
            (Some(merit), Some((_, chosen))) => why_worse(merit, chosen),
            _ => nearest,
        }
    }

    /// How good a pair is, or why it is none.
    fn judge(&self, local: &LocalRail, peer: &AdvertisedRail) -> Result<Merit, NotChosen> {
        let ours = local.source.map_err(NotChosen::Unusable)?.address;
        let merit = reach(ours, peer.address(), |like| self.is_only_link_local(like))?;
        let speed = SpeedClass::from_mbps(local.speed_mbps).min(peer.speed());
        Ok(Merit { speed, ..merit }.beside(self.fastest))
    }

    /// Whether either side has just one link-local address of this one's family.
    fn is_only_link_local(&self, like: IpAddr) -> bool {
        let alike = |address: IpAddr| is_link_local(address) && address.is_ipv4() == like.is_ipv4();
        let ours = self.local.iter().filter_map(|rail| rail.source.ok());
        ours.filter(|source| alike(source.address.address())).count() == 1
            && self
                .peer
                .iter()
                .filter(|rail| alike(rail.address().address()))
                .count()
                == 1
    }
}

/// Whether two addresses reach each other, and how good that is; of speeds it knows nothing.
///
/// `is_only` says whether each side has just one link-local address of this one's family.
fn reach(ours: IpPrefix, theirs: IpPrefix, is_only: impl FnOnce(IpAddr) -> bool) -> Result<Merit, NotChosen> {
    if ours.address().is_ipv4() != theirs.address().is_ipv4() {
        return Err(NotChosen::OtherFamily);
    }
    match (ours.contains(theirs.address()), theirs.contains(ours.address())) {
        (true, true) => {}
        (false, false) => return Err(NotChosen::NotInSubnet),
        _ => {
            return Err(NotChosen::OneSided {
                local: ours,
                peer: theirs,
            });
        }
    }
    let is_link_local = is_link_local(ours.address());
    // Our own address, met again as the peer's, is this host: there is no link to be wrong about.
    if is_link_local && ours.address() != theirs.address() && !is_only(ours.address()) {
        return Err(NotChosen::AmbiguousLinkLocal);
    }
    let prefix_bits = ours.prefix_bits().min(theirs.prefix_bits());
    Ok(Merit {
        is_not_link_local: !is_link_local,
        lane: Lane::Fast,
        host_bits: Reverse(width_bits(ours.address()).saturating_sub(prefix_bits)),
        speed: SpeedClass::default(),
    })
}

/// Why a pair that reaches is not the one chosen.
fn why_worse(merit: Merit, chosen: Merit) -> NotChosen {
    if merit.is_not_link_local != chosen.is_not_link_local {
        NotChosen::LinkLocal
    } else if merit.lane != chosen.lane {
        NotChosen::Slower {
            speed: merit.speed,
            chosen: chosen.speed,
        }
    } else if merit.host_bits != chosen.host_bits {
        NotChosen::ShorterPrefix {
            host_bits: merit.host_bits.0,
            chosen_host_bits: chosen.host_bits.0,
        }
    } else if merit.speed != chosen.speed {
        NotChosen::Slower {
            speed: merit.speed,
            chosen: chosen.speed,
        }
    } else {
        NotChosen::LaterInOrder
    }
}

/// How close a pair came to reaching: of several reasons, the closest is the most specific.
const fn nearness(reason: &NotChosen) -> u8 {
    match reason {
        NotChosen::OneSided { .. } => 4,
        NotChosen::AmbiguousLinkLocal => 3,
        NotChosen::NotInSubnet => 2,
        NotChosen::OtherFamily => 1,
        _ => 0,
    }
}

const fn width_bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

const fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}
