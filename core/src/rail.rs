//! Which local rail reaches which address of a peer.
//!
//! Two addresses reach each other if each lies in the other's subnet, by the prefix length of its own interface. The
//! choice is made and explained here; finding ports and announcing them to a peer is not.

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

/// One local port on one subnet, or an unusable port with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalRail {
    /// The RDMA device's name.
    pub device: Name,
    /// The port's number, from 1.
    pub port: u8,
    /// The link's speed in megabits per second; zero if unknown.
    pub speed_mbps: u32,
    /// The source address of a connection, or the reason why there is none.
    pub source: Result<RailSource, Unusable>,
}

/// The entry of a GID table that a rail's connections use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RailSource {
    /// The index in the table.
    pub gid_index: u32,
    /// The GID.
    pub gid: Gid,
    /// The kind of the entry.
    pub kind: GidKind,
    /// The address of the GID, with the prefix length of its interface.
    pub address: IpPrefix,
    /// The MTU that the port uses now.
    pub mtu: Mtu,
}

impl LocalRail {
    /// Returns the rails of a port: one for each usable GID, or one with the reason why there is none. If usable GIDs are
    /// beyond the limit, one more rail reports their number.
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
    /// No peer could use its address.
    pub fn advertised(&self) -> Option<Result<AdvertisedRail, NotAdvertisable>> {
        let source = self.source.ok()?;
        Some(AdvertisedRail::new(
            source.address,
            source.gid,
            SpeedClass::from_mbps(self.speed_mbps),
        ))
    }
}

/// A local rail and the peer's rail that it reaches.
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
    /// This rail's subnet has no address of the other side.
    NotInSubnet,
    /// One of two addresses is in the subnet of the other, but not the reverse: one of the two
    /// interfaces has the wrong prefix length.
    OneSided {
        /// The local address.
        local: IpPrefix,
        /// The peer's address.
        peer: IpPrefix,
    },
    /// The addresses are link-local, and there are several, so they do not identify a link.
    AmbiguousLinkLocal,
    /// The rail reaches the other side only by a link-local address, and the chosen one has a better address.
    LinkLocal,
    /// The rail reaches the other side in a larger subnet than the chosen one.
    ShorterPrefix {
        /// The bits that its prefix leaves for hosts.
        host_bits: u8,
        /// The bits that the prefix of the chosen one leaves for hosts.
        chosen_host_bits: u8,
    },
    /// The rail reaches the other side over a slower link than the chosen one.
    Slower {
        /// The speed of this rail.
        speed: SpeedClass,
        /// The speed of the chosen one.
        chosen: SpeedClass,
    },
    /// The rail is as good as the chosen one, which comes first.
    LaterInOrder,
    /// The same rail is earlier in the list.
    Duplicate,
    /// The rail's port is in a pair already, by a better address.
    PortInPair,
    /// Every rail that it reaches is in a better pair.
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
    /// The rail is used, with the rail of this index on the other side.
    Chosen(usize),
    /// The rail is not used.
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

/// The quality of a pair: the greater, the better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Merit {
    /// Whether the addresses are not link-local, and so identify a link.
    is_not_link_local: bool,
    /// The lane, compared with the fastest pair.
    lane: Lane,
    /// The bits that number hosts in the subnet. IPv4 and IPv6 prefixes compare by them; fewer bits mean a
    /// more specific subnet.
    host_bits: Reverse<u8>,
    /// The speed of the slower end.
    speed: SpeedClass,
}

impl Merit {
    /// The merit with its lane, given the speed of the fastest pair.
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

/// Chooses the best pair of a local rail and a peer's rail that reach each other.
///
/// The lane counts first ([`Lane`], by the slower end of the link, compared with the fastest pair that reaches). Next
/// comes the longest prefix; if the two ends differ, the shorter prefix counts. Between IPv4 and IPv6, the prefix
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
            // Strictly better, so that the first of equal pairs stays.
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
    /// The pair to use; `None` if no local rail reaches the peer.
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

    /// Returns the most specific reason among all pairs with this rail.
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
                // An unusable local rail says nothing about the peer's rail.
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

    /// The merit of a pair, or the reason why the two rails are not one.
    fn judge(&self, local: &LocalRail, peer: &AdvertisedRail) -> Result<Merit, NotChosen> {
        let ours = local.source.map_err(NotChosen::Unusable)?.address;
        let merit = reach(ours, peer.address(), |like| self.is_only_link_local(like))?;
        let speed = SpeedClass::from_mbps(local.speed_mbps).min(peer.speed());
        Ok(Merit { speed, ..merit }.beside(self.fastest))
    }

    /// Whether each side has exactly one link-local address of this family.
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

/// Whether two addresses reach each other, with the merit of the pair except its speed and lane.
///
/// `is_only` returns whether each side has exactly one link-local address of the address's family.
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
    // If the peer has our own address, it is this host, and no link is ambiguous.
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

/// The reason why a pair that reaches is not the chosen one.
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

/// How close a pair came to reaching. The reason of the closest pair is the most specific.
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
