//! The neighbours of each member of a mesh, and the shortest routes that follow from them.

use crate::rank::{RANKS_MAX, Rank, Ranks};

use super::Announcement;

/// The neighbours that the members of a mesh announced.
#[derive(Clone, Debug)]
pub struct Map {
    ranks: u8,
    members: [Member; RANKS_MAX as usize],
}

#[derive(Clone, Copy, Debug, Default)]
struct Member {
    /// Start and sequence of the last announcement; `None` before the first.
    heard: Option<(u64, u32)>,
    neighbours: Ranks,
    without_rail: Ranks,
}

/// Cost, in hops, of a hop whose link has no rail for now. It exceeds the longest route through all members. A message
/// on such a hop waits, so any other route is better; without another route, the hop is still taken.
const WITHOUT_RAIL_HOPS: u16 = 2 * RANKS_MAX as u16;

/// Effect of an announcement on the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Heard {
    /// The announcement is newer than the map, and has to be forwarded. Routes may have changed.
    News,
    /// The map has this announcement already, or a later one.
    Known,
    /// The mesh has no such member.
    NotAMember,
}

impl Map {
    /// Makes the map of a mesh of `ranks` members, without any announcement. `None` for zero, and for more than
    /// [`RANKS_MAX`].
    #[must_use]
    pub const fn new(ranks: u8) -> Option<Self> {
        if ranks == 0 || ranks > RANKS_MAX {
            return None;
        }
        Some(Self {
            ranks,
            members: [Member {
                heard: None,
                neighbours: Ranks::NONE,
                without_rail: Ranks::NONE,
            }; RANKS_MAX as usize],
        })
    }

    /// The number of members.
    #[must_use]
    pub const fn ranks(&self) -> u8 {
        self.ranks
    }

    /// Applies a member's announcement. A later start replaces all announcements of an earlier start. Within one
    /// start, a later sequence replaces an earlier one.
    pub fn hear(&mut self, announcement: &Announcement) -> Heard {
        let said = (announcement.started(), announcement.sequence());
        let rank = announcement.rank();
        if rank.number() >= self.ranks {
            return Heard::NotAMember;
        }
        let Some(member) = self.members.get_mut(rank.index()) else {
            return Heard::NotAMember;
        };
        if member.heard.is_some_and(|before| before >= said) {
            return Heard::Known;
        }
        member.heard = Some(said);
        member.neighbours = announcement
            .neighbours()
            .and(Ranks::first(self.ranks))
            .without(rank);
        member.without_rail = announcement.without_rail();
        Heard::News
    }

    /// Returns the neighbours of a member: the ranks that it announced and that announced it.
    #[must_use]
    pub fn neighbours(&self, rank: Rank) -> Ranks {
        let said = self.said(rank);
        said.iter()
            .filter(|other| !self.said(*other).contains(rank))
            .fold(said, Ranks::without)
    }

    /// Returns the shortest routes from a member to all others, over as few links without a rail as possible.
    #[must_use]
    pub fn routes(&self, from: Rank) -> Routes {
        let mut routes = Routes {
            from,
            hops: [None; RANKS_MAX as usize],
            through: [Ranks::NONE; RANKS_MAX as usize],
            between: [Ranks::NONE; RANKS_MAX as usize],
            last: [Ranks::NONE; RANKS_MAX as usize],
        };
        // The distance to each member found so far, and the members whose route is final.
        let mut far = [u16::MAX; RANKS_MAX as usize];
        let mut open = Ranks::NONE.with(from);
        let mut known = Ranks::NONE;
        set(&mut far, from, 0);
        routes.note(from, 0, &Steps::default());
        while let Some(at) = open.iter().min_by_key(|rank| get(&far, *rank)) {
            (open, known) = (open.without(at), known.with(at));
            let hops = routes.hops(at).unwrap_or(0).saturating_add(1);
            for rank in self.neighbours(at).and_not(known).iter() {
                let so_far = get(&far, at).saturating_add(self.hop(at, rank));
                let mut steps = Steps {
                    through: Ranks::NONE.with(rank),
                    between: Ranks::NONE,
                    last: Ranks::NONE.with(at),
                };
                if at != from {
                    (steps.through, steps.between) = (routes.through(at), routes.between(at).with(at));
                }
                let before = get(&far, rank);
                if so_far < before {
                    routes.note(rank, hops, &steps);
                } else if so_far == before {
                    // The union of the steps of all shortest routes to `rank`.
                    steps.through = routes.through(rank).or(steps.through);
                    steps.between = routes.between(rank).or(steps.between);
                    steps.last = routes.last(rank).or(steps.last);
                    routes.note(rank, hops, &steps);
                }
                set(&mut far, rank, so_far.min(before));
                open = open.with(rank);
            }
        }
        routes
    }

    /// Returns the distance between two neighbours, in hops.
    fn hop(&self, one: Rank, other: Rank) -> u16 {
        if self.without_rail(one).contains(other) || self.without_rail(other).contains(one) {
            WITHOUT_RAIL_HOPS
        } else {
            1
        }
    }

    fn without_rail(&self, rank: Rank) -> Ranks {
        let member = self.members.get(rank.index());
        member.map_or(Ranks::NONE, |member| member.without_rail)
    }

    fn said(&self, rank: Rank) -> Ranks {
        self.members
            .get(rank.index())
            .map_or(Ranks::NONE, |member| member.neighbours)
    }
}

fn get(far: &[u16; RANKS_MAX as usize], rank: Rank) -> u16 {
    far.get(rank.index()).copied().unwrap_or(u16::MAX)
}

fn set(far: &mut [u16; RANKS_MAX as usize], rank: Rank, to: u16) {
    if let Some(place) = far.get_mut(rank.index()) {
        *place = to;
    }
}

/// The shortest routes from one member to all others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Routes {
    from: Rank,
    hops: [Option<u8>; RANKS_MAX as usize],
    /// The first hops of all shortest routes to each member.
    through: [Ranks; RANKS_MAX as usize],
    /// The members between the two ends on any of these routes.
    between: [Ranks; RANKS_MAX as usize],
    /// The last members before each on these routes; for a neighbour, `from`.
    last: [Ranks; RANKS_MAX as usize],
}

/// Members on the shortest routes to one member: the first hops, the members between, and the last before it.
#[derive(Clone, Copy, Debug, Default)]
struct Steps {
    through: Ranks,
    between: Ranks,
    last: Ranks,
}

impl Routes {
    /// Returns the member from which the routes start.
    #[must_use]
    pub const fn from(&self) -> Rank {
        self.from
    }

    /// Returns the hops to a member: 0 to itself, and 1 to a neighbour, or more if the route avoids the link. `None` if
    /// there is no route.
    #[must_use]
    pub fn hops(&self, to: Rank) -> Option<u8> {
        self.hops.get(to.index()).copied().flatten()
    }

    /// Returns the next hop of messages to a member; `None` if there is no route, and for `from` itself.
    ///
    /// If several routes are equally short, half the sum of the two ranks selects one. The opposite direction takes the
    /// next one, so that pairs spread over the routes. In a ring of four, each member relays one direction between
    /// one pair.
    #[must_use]
    pub fn next(&self, to: Rank) -> Option<Rank> {
        let through = self.through(to);
        let sum = u32::from(self.from.number()).wrapping_add(u32::from(to.number()));
        let choice = (sum >> 1).wrapping_add(u32::from(self.from > to));
        let place = choice.checked_rem(through.len())?;
        through.iter().nth(usize::try_from(place).ok()?)
    }

    /// Returns the members that can be reached, `from` included.
    #[must_use]
    pub fn reached(&self) -> Ranks {
        Ranks::first(RANKS_MAX)
            .iter()
            .filter(|rank| self.hops(*rank).is_some())
            .fold(Ranks::NONE, Ranks::with)
    }

    /// Returns the members between `from` and `to` on any of the shortest routes. Messages to `to` may be at any of them.
    #[must_use]
    pub fn between(&self, to: Rank) -> Ranks {
        self.between.get(to.index()).copied().unwrap_or_default()
    }

    /// Returns each member that lost a last link: a link that was last on some shortest route to it in `before`, and is last on none of
    /// these routes. An earlier message may be lost with this link, even if the next hop and the number of hops are unchanged.
    #[must_use]
    pub fn cut_since(&self, before: &Self) -> Ranks {
        let is_cut = |rank: &Rank| !before.last(*rank).and_not(self.last(*rank)).is_empty();
        let all = Ranks::first(RANKS_MAX);
        all.iter().filter(is_cut).fold(Ranks::NONE, Ranks::with)
    }

    fn last(&self, to: Rank) -> Ranks {
        self.last.get(to.index()).copied().unwrap_or_default()
    }

    fn through(&self, to: Rank) -> Ranks {
        self.through.get(to.index()).copied().unwrap_or_default()
    }

    fn note(&mut self, rank: Rank, hops: u8, steps: &Steps) {
        if let (Some(to_hops), Some(through), Some(between), Some(last)) = (
            self.hops.get_mut(rank.index()),
            self.through.get_mut(rank.index()),
            self.between.get_mut(rank.index()),
            self.last.get_mut(rank.index()),
        ) {
            *to_hops = Some(hops);
            (*through, *between, *last) = (steps.through, steps.between, steps.last);
        }
    }
}

#[cfg(test)]
mod tests;
