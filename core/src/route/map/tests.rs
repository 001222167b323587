use std::vec::Vec;

use proptest::prelude::*;

use super::{Heard, Map};
use crate::rank::{Rank, Ranks};
use crate::route::Announcement;

fn rank(number: u8) -> Rank {
    Rank::new(number).unwrap()
}

fn map(ranks: u8, edges: &[(u8, u8)]) -> Map {
    let mut map = Map::new(ranks).unwrap();
    for number in 0..ranks {
        let neighbours = edges
            .iter()
            .filter_map(|(a, b)| match number {
                n if n == *a => Some(*b),
                n if n == *b => Some(*a),
                _ => None,
            })
            .map(rank)
            .fold(Ranks::NONE, Ranks::with);
        let heard = map.hear(&Announcement::new(rank(number), 1, 0, neighbours, Ranks::NONE));
        assert_eq!(heard, Heard::News);
    }
    map
}

/// The ranks that something passes on its way, the last included.
fn way(map: &Map, from: u8, to: u8) -> Option<Vec<u8>> {
    let mut at = rank(from);
    let mut passed = Vec::new();
    while at != rank(to) {
        at = map.routes(at).next(rank(to))?;
        passed.push(at.number());
        assert!(passed.len() <= 64, "round in circles");
    }
    Some(passed)
}

#[test]
fn in_a_line_all_goes_through_the_middle() {
    let map = map(4, &[(0, 1), (1, 2), (2, 3)]);
    assert_eq!(way(&map, 0, 3), Some([1, 2, 3].to_vec()));
    assert_eq!(map.routes(rank(0)).hops(rank(3)), Some(3));
    assert_eq!(map.routes(rank(0)).hops(rank(0)), Some(0));
    assert_eq!(map.routes(rank(0)).next(rank(0)), None);
}

#[test]
fn in_a_ring_of_four_each_carries_for_one() {
    let map = map(4, &[(0, 1), (1, 2), (2, 3), (3, 0)]);
    let mut across = [(0, 2), (2, 0), (1, 3), (3, 1)].map(|(from, to)| way(&map, from, to).unwrap()[0]);
    across.sort_unstable();
    assert_eq!(across, [0, 1, 2, 3]);
}

#[test]
fn a_neighbour_is_one_that_says_so_too() {
    let mut map = map(3, &[(0, 1), (1, 2)]);
    // Rank 2 has lost rank 1, and says so; rank 1 does not know yet.
    map.hear(&Announcement::new(rank(2), 1, 1, Ranks::NONE, Ranks::NONE));
    assert_eq!(way(&map, 0, 2), None);
    assert_eq!(map.routes(rank(0)).reached(), Ranks::first(2));
}

#[test]
fn what_is_older_changes_nothing() {
    let mut map = map(2, &[(0, 1)]);
    let mut heard = |started, sequence| {
        map.hear(&Announcement::new(
            rank(0),
            started,
            sequence,
            Ranks::NONE,
            Ranks::NONE,
        ))
    };
    assert_eq!(heard(1, 0), Heard::Known);
    assert_eq!(heard(0, 9), Heard::Known);
    assert_eq!(heard(2, 0), Heard::News);
    assert_eq!(map.neighbours(rank(0)).len(), 0);
}

#[test]
fn whoever_is_no_member_is_not_heard() {
    let mut map = map(2, &[(0, 1)]);
    assert_eq!(
        map.hear(&Announcement::new(rank(2), 9, 9, Ranks::first(64), Ranks::NONE)),
        Heard::NotAMember
    );
    // Nor are those a member counts among its neighbours, nor is it one itself.
    map.hear(&Announcement::new(
        rank(0),
        9,
        9,
        Ranks::first(64),
        Ranks::first(64),
    ));
    assert_eq!(map.neighbours(rank(0)), Ranks::NONE.with(rank(1)));
}

#[test]
fn who_is_between_is_so_on_any_of_the_shortest_ways() {
    let map = map(6, &[(0, 1), (1, 2), (1, 3), (2, 4), (3, 4), (4, 5)]);
    let routes = map.routes(rank(0));
    let between = |to| {
        routes
            .between(rank(to))
            .iter()
            .map(Rank::number)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        [between(0), between(1), between(3)],
        [[].to_vec(), [].to_vec(), [1].to_vec()]
    );
    assert_eq!(between(4), [1, 2, 3]);
    assert_eq!(between(5), [1, 2, 3, 4]);
}

#[test]
fn a_link_that_is_lost_between_is_found_where_hops_and_next_steps_stay() {
    let edges = [(0, 1), (1, 2), (1, 3), (2, 4), (3, 4), (4, 5)];
    let before = map(6, &edges).routes(rank(0));
    let cut_since = |left: &[(u8, u8)]| {
        let routes = map(6, left).routes(rank(0));
        let cut = routes.cut_since(&before);
        (
            routes.next(rank(5)),
            cut.iter().map(Rank::number).collect::<Vec<_>>(),
        )
    };
    assert_eq!(cut_since(&edges), (Some(rank(1)), [].to_vec()));
    // Either way behind the stem leads to 5, and the message may have been on the other.
    for lost in [3, 4] {
        let mut left = edges.to_vec();
        left.remove(lost);
        assert_eq!(cut_since(&left), (Some(rank(1)), [4].to_vec()));
    }
    assert_eq!(cut_since(&edges[..5]), (None, [5].to_vec()));
    // A link that is new takes nothing away, nor does one that comes back.
    let mut more = edges.to_vec();
    more.push((2, 3));
    assert_eq!(cut_since(&more), (Some(rank(1)), [].to_vec()));
    let part = map(6, &[edges[0], edges[1], edges[3]]).routes(rank(0));
    assert_eq!(map(6, &edges).routes(rank(0)).cut_since(&part), Ranks::NONE);
}

/// Says that of two neighbours the one has no rail to the other for now; the other has not noticed.
fn cut(map: &mut Map, one: u8, other: u8, sequence: u32) {
    let (neighbours, other) = (map.neighbours(rank(one)), Ranks::NONE.with(rank(other)));
    let without_rail = map.without_rail(rank(one)).or(other);
    let heard = map.hear(&Announcement::new(
        rank(one),
        1,
        sequence,
        neighbours,
        without_rail,
    ));
    assert_eq!(heard, Heard::News);
}

#[test]
fn a_link_without_a_rail_is_gone_round_and_is_still_a_way_where_there_is_no_other() {
    let mut map = map(4, &[(0, 1), (1, 2), (2, 3), (3, 0)]);
    cut(&mut map, 1, 2, 1);
    assert_eq!(way(&map, 1, 2), Some([0, 3, 2].to_vec()));
    assert_eq!(way(&map, 2, 1), Some([3, 0, 1].to_vec()));
    assert_eq!(map.routes(rank(1)).hops(rank(2)), Some(3));
    // If both links were cut, each would be on the detour of the other.
    cut(&mut map, 3, 0, 1);
    assert_eq!(way(&map, 1, 2), Some([2].to_vec()));
    assert_eq!(way(&map, 0, 3), Some([3].to_vec()));
    assert_eq!(map.routes(rank(0)).reached().len(), 4);
}

proptest! {
    /// Each hop leads nearer, by the map of every member on the route. No route has fewer links without a rail, and
    /// none with as many is shorter.
    #[test]
    fn ways_are_the_shortest(
        ranks in 2_u8..20,
        pairs in proptest::collection::vec((0_u8..20, 0_u8..20), 0..60),
        is_cut in proptest::collection::vec(proptest::bool::weighted(0.2), 60),
    ) {
        let edges: Vec<_> = pairs.into_iter().filter(|(a, b)| a != b && *a < ranks && *b < ranks).collect();
        let mut map = map(ranks, &edges);
        for ((one, other), sequence) in edges.iter().zip(&is_cut).filter(|(_, is_cut)| **is_cut).map(|(edge, _)| edge).zip(1..) {
            cut(&mut map, *one, *other, sequence);
        }
        let is_cut = |one: u8, other: u8| {
            map.without_rail(rank(one)).contains(rank(other)) || map.without_rail(rank(other)).contains(rank(one))
        };
        for from in 0..ranks {
            let routes = map.routes(rank(from));
            // Links without a rail, and hops.
            let mut distance = [(u8::MAX, u8::MAX); 20];
            distance[usize::from(from)] = (0, 0);
            for _ in 0..ranks {
                for (a, b) in edges.iter().flat_map(|(a, b)| [(*a, *b), (*b, *a)]) {
                    let (without, hops) = distance[usize::from(a)];
                    let through = (without.saturating_add(u8::from(is_cut(a, b))), hops.saturating_add(1));
                    distance[usize::from(b)] = distance[usize::from(b)].min(through);
                }
            }
            for to in 0..ranks {
                let (_, hops) = distance[usize::from(to)];
                let expected = (hops != u8::MAX).then_some(hops);
                prop_assert_eq!(routes.hops(rank(to)), expected);
                let passed = way(&map, from, to).map(|passed| passed.len());
                prop_assert_eq!(passed, expected.map(usize::from));
            }
        }
    }
}
