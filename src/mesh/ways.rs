//! Routes to the other members.

use std::collections::BTreeMap;

use doorbell_core::network::Network;
use doorbell_core::provider::Provider;
use doorbell_core::rank::Rank;
use doorbell_core::route::{Map, Routes};

use super::membership::Mesh;

impl<P: Provider, N: Network> Mesh<P, N> {
    /// Returns the relays on the route to each reachable member, in order. The list is empty for a member that is reached directly. Each
    /// relay routes by its own map, so the real route may differ until all maps agree.
    #[must_use]
    pub fn ways(&self) -> BTreeMap<Rank, Vec<Rank>> {
        ways(&self.state.map, &self.state.routes)
    }
}

fn ways(map: &Map, routes: &Routes) -> BTreeMap<Rank, Vec<Rank>> {
    // The routes of each relay are computed once, since many routes use it.
    let mut of_others: BTreeMap<Rank, Routes> = BTreeMap::new();
    let all = routes.reached().without(routes.from());
    let ways = all.iter().map(|to| {
        let mut by = Vec::new();
        let mut next = routes.next(to);
        while let Some(at) = next.filter(|at| *at != to) {
            by.push(at);
            next = of_others.entry(at).or_insert_with(|| map.routes(at)).next(to);
        }
        (to, by)
    });
    ways.collect()
}

#[cfg(test)]
mod tests {
    use super::ways;
    use doorbell_core::rank::{Rank, Ranks};
    use doorbell_core::route::{Announcement, Map};

    fn rank(number: u8) -> Rank {
        Rank::new(number).unwrap()
    }

    /// Returns the relays from a member of a mesh with these links to each other member.
    fn named(members: u8, links: &[(u8, u8)], from: u8) -> Vec<(u8, Vec<u8>)> {
        let mut map = Map::new(members).unwrap();
        for at in 0..members {
            let beside = links.iter().filter_map(|(one, other)| match at {
                at if at == *one => Some(*other),
                at if at == *other => Some(*one),
                _ => None,
            });
            let beside = beside.map(rank).fold(Ranks::NONE, Ranks::with);
            map.hear(&Announcement::new(rank(at), 1, 1, beside, Ranks::NONE));
        }
        let ways = ways(&map, &map.routes(rank(from)));
        let numbers = |by: Vec<Rank>| by.into_iter().map(Rank::number).collect();
        ways.into_iter()
            .map(|(to, by)| (to.number(), numbers(by)))
            .collect()
    }

    #[test]
    fn all_that_pass_on_are_named_in_their_order() {
        let line = [(0, 3), (3, 2), (2, 1)];
        assert_eq!(named(5, &line, 0), [(1, vec![3, 2]), (2, vec![3]), (3, vec![])]);
        assert_eq!(named(5, &line, 1), [(0, vec![2, 3]), (2, vec![]), (3, vec![2])]);
        assert_eq!(named(5, &line, 4), []);
    }

    /// Each relay chooses by its own rank.
    #[test]
    fn of_ways_that_are_equally_short_each_who_passes_on_chooses_the_rest() {
        let ladder = [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (3, 5), (4, 6), (5, 6)];
        let of = |from, to| {
            let ways = named(7, &ladder, from);
            ways.into_iter().find(|(at, _)| *at == to).unwrap().1
        };
        assert_eq!(of(0, 6), [2, 3, 4]);
        assert_eq!(of(3, 6), [4]);
        assert_eq!(of(2, 6), [3, 4]);
        assert_eq!(of(1, 6), [3, 4]);
    }
}
