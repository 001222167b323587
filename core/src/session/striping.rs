//! The choice of the rail for a fragment.

use super::HealthState;
use super::rail::Rail;

/// The kinds of fragments, which differ in the choice of their rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// The fragment is a complete message.
    Whole,
    /// The fragment is a part of a longer message.
    Part,
    /// The fragment is written into memory that the peer lent over the rail's connection.
    Placed,
}

/// The rail for a fragment of `bytes` bytes, among the usable rails; `None` if the fragment has to wait.
///
/// A message in one fragment uses the fastest rail, and waits for it. Messages on one rail keep their order, so the
/// receiver needs no reordering. A fragment of a longer message uses the rail that will be done with it first, by the
/// rail's backlog and speed. A written fragment waits until the peer has lent memory over some rail.
pub(super) fn choose(rails: &[Rail], bytes: u32, way: Way) -> Option<u8> {
    let may_take = |rail: &Rail| rail.is_usable() && (way != Way::Placed || rail.takes_placed);
    let tier = best_tier(rails, may_take)?;
    let candidates = || {
        (0_u8..)
            .zip(rails)
            .filter(move |(_, rail)| may_take(rail) && tier_of(rail) == tier)
    };
    if way == Way::Whole {
        let fastest = candidates().min_by_key(|(index, rail)| (core::cmp::Reverse(rail.speed_mbps), *index));
        let (index, rail) = fastest?;
        return rail.takes_messages().then_some(index);
    }
    candidates()
        .filter(|(_, rail)| rail.takes_messages())
        .min_by_key(|(index, rail)| (done_after(rail, bytes), *index))
        .map(|(index, _)| index)
}

/// The time after which a rail is done with its backlog and `bytes` more, in units of 2^-29 microseconds.
pub(super) fn done_after(rail: &Rail, bytes: u32) -> u128 {
    let bytes = u128::from(rail.backlog_bytes).saturating_add(u128::from(bytes));
    // Rails of unknown speed count as equally fast.
    let speed = u128::from(rail.speed_mbps.max(1));
    (bytes << 32).checked_div(speed).unwrap_or(u128::MAX)
}

/// The best tier among the rails that may take the fragment; a lower tier is better.
fn best_tier(rails: &[Rail], may_take: impl Fn(&Rail) -> bool) -> Option<u8> {
    rails.iter().filter(|rail| may_take(rail)).map(tier_of).min()
}

fn tier_of(rail: &Rail) -> u8 {
    match rail.health.state() {
        HealthState::Up => 0,
        HealthState::FailingBack => 1,
        HealthState::Suspect => 2,
        HealthState::Down => 3,
    }
}

/// Returns the best rail for a control frame of the session.
pub(super) fn choose_any(rails: &[Rail]) -> Option<u8> {
    (0_u8..)
        .zip(rails)
        .filter(|(_, rail)| rail.is_usable() && !rail.is_blocked)
        .min_by_key(|(index, rail)| (tier_of(rail), core::cmp::Reverse(rail.speed_mbps), *index))
        .map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::{Way, choose, choose_any};
    use crate::Instant;
    use crate::session::rail::{Rail, RailPhase};

    fn up(speed_mbps: u32) -> Rail {
        let mut rail = Rail::unused();
        rail.speed_mbps = speed_mbps;
        rail.attach(RailPhase::Attached { has_said: true }, 0, Instant::from_ns(0));
        rail
    }

    /// How many of so many fragments each rail gets that completes nothing.
    fn shares(rails: &mut [Rail], fragments: u32) -> std::vec::Vec<u64> {
        for _ in 0..fragments {
            let chosen = choose(rails, 1000, Way::Part).unwrap();
            rails[usize::from(chosen)].backlog_bytes += 1000;
        }
        rails.iter().map(|rail| rail.backlog_bytes / 1000).collect()
    }

    #[test]
    fn fragments_are_shared_by_speed_and_what_is_under_way() {
        assert_eq!(shares(&mut [up(10_000), up(10_000)], 10), [5, 5]);
        assert_eq!(shares(&mut [up(100_000), up(25_000)], 100), [80, 20]);
        assert_eq!(shares(&mut [up(0), up(0), up(0)], 9), [3, 3, 3]);
        let mut rails = [up(10_000), up(10_000)];
        rails[0].backlog_bytes = 4000;
        assert_eq!(shares(&mut rails, 6), [5, 5]);
    }

    #[test]
    fn a_message_in_one_piece_stays_on_the_fastest() {
        let mut rails = [up(10_000), up(40_000), up(40_000)];
        rails[1].backlog_bytes = u64::MAX;
        assert_eq!(choose(&rails, 1, Way::Whole), Some(1));
        rails[1].is_blocked = true;
        assert_eq!(choose(&rails, 1, Way::Whole), None);
        assert_eq!(choose(&rails, 1, Way::Part), Some(2));
        assert_eq!(choose_any(&rails), Some(2));
    }

    #[test]
    fn a_rail_with_trouble_is_used_where_there_is_no_other() {
        let mut rails = [up(10_000), up(10_000)];
        rails[0].attach(RailPhase::Attached { has_said: true }, 3, Instant::from_ns(0));
        assert_eq!(
            (choose(&rails, 1, Way::Whole), choose(&rails, 1, Way::Part)),
            (Some(1), Some(1))
        );
        rails[1].detach(None);
        assert_eq!(
            (choose(&rails, 1, Way::Whole), choose(&rails, 1, Way::Part)),
            (Some(0), Some(0))
        );
        rails[0].phase = RailPhase::Attached { has_said: false };
        assert_eq!((choose(&rails, 1, Way::Whole), choose_any(&rails)), (None, None));
    }
}
