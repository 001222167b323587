//! Properties of a session without faults.

use core::time::Duration;

use doorbell_core::session::{FinalReason, HealthState, SessionConfig, SessionEvent};
use doorbell_core::{Deadline, Instant};

use crate::side::FRAGMENT_BYTES;
use crate::world::{Fault, World};

pub(crate) fn config() -> SessionConfig {
    let mut config = SessionConfig::default();
    config.fragment_bytes = FRAGMENT_BYTES;
    config.acknowledge_fragments = 3;
    config
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn everything_arrives_and_is_done_over_any_number_of_rails() {
    for rails in [&[1000][..], &[1000, 1000], &[1000, 400, 100]] {
        let mut world = World::new(rails, 5, config());
        world.wanted = [300, 200];
        let all = world.run(SECOND, |world| {
            world.sides[0].done == 300 && world.sides[1].done == 200
        });
        assert!(all, "{rails:?}");
        assert_eq!((world.sides[1].delivered, world.sides[0].delivered), (300, 200));
        for side in &world.sides {
            let counts = side.session.counts();
            assert_eq!(
                (counts.duplicates, counts.sent_again, counts.rails_dead),
                (0, 0, 0),
                "{counts:?}"
            );
            let up = |rail| side.events.contains(&SessionEvent::RailUp { rail });
            assert!((0..rails.len() as u8).all(up));
            assert_eq!(counts.early > 0, rails.len() > 1, "{counts:?}");
        }
    }
}

#[test]
fn an_idle_session_asks_for_signs_of_life_and_sends_nothing_else() {
    let mut world = World::new(&[1000, 1000], 7, config());
    world.wanted = [1, 0];
    world.run(Duration::from_millis(100), |_| false);
    let before = world.sides[0].session.counts();
    world.run(Duration::from_millis(100) + SECOND, |_| false);
    let after = world.sides[0].session.counts();
    // One probe for each rail each 50 ms, and a little for the latency.
    let probes = after.probes - before.probes;
    assert!((36..=42).contains(&probes), "{probes}");
    assert_eq!(
        (after.sent, after.acknowledgements),
        (before.sent, before.acknowledgements)
    );
    assert_eq!(world.sides[0].session.rail_state(0), HealthState::Up);
}

#[test]
fn a_session_that_is_busy_asks_for_nothing() {
    let mut world = World::new(&[1000], 7, config());
    world.wanted = [1_000_000, 1_000_000];
    let began = world.sides[0].session.counts().probes;
    assert!(!world.run(Duration::from_millis(500), |_| false));
    assert!(world.sides[0].delivered > 1000, "{}", world.sides[0].delivered);
    assert_eq!(world.sides[0].session.counts().probes, began);
}

#[test]
fn a_peer_that_is_stopped_is_stalled_and_never_connected_again() {
    let mut world = World::new(&[1000, 1000], 9, config());
    world.wanted = [2000, 0];
    world.run(Duration::from_millis(2), |_| false);
    let ms = Duration::from_millis;
    world.fault_at(ms(3), Fault::Pause(1));
    world.fault_at(ms(3003), Fault::Resume(1));
    world.run(ms(3000), |_| false);
    assert!(world.sides[0].session.is_stalled());
    let connects = world.sides[0].session.rail_epoch(1);
    assert!(world.run(ms(5000), |world| world.sides[0].done == 2000));
    let reported: Vec<_> = world.sides[0]
        .events
        .iter()
        .filter(|event| {
            matches!(
                event,
                SessionEvent::Stalled | SessionEvent::Resumed | SessionEvent::RailDown { .. }
            )
        })
        .collect();
    assert_eq!(reported, [&SessionEvent::Stalled, &SessionEvent::Resumed]);
    assert_eq!(world.sides[0].session.rail_epoch(1), connects);
    assert_eq!(world.sides[1].delivered, 2000);
}

#[test]
fn closing_waits_for_what_is_under_way_and_notifies_the_peer() {
    let mut world = World::new(&[1000, 1000], 11, config());
    world.wanted = [10, 10];
    world.run(Duration::from_millis(100), |world| world.sides[0].sent == 10);
    world.sides[0]
        .session
        .close(Deadline::after(Instant::from_ns(world.now_ns), SECOND));
    assert!(world.run(SECOND, |world| {
        world.sides.iter().all(|side| side.is_over.is_some())
    }));
    let [a, b] = &world.sides;
    assert_eq!(
        (a.is_over, b.is_over),
        (Some(FinalReason::Closed), Some(FinalReason::PeerClosed))
    );
    assert_eq!((a.done, a.unknown, b.delivered), (10, 0, 10));
    assert!(world.now_ns < 10_000_000, "{}", world.now_ns);
}

#[test]
fn closing_waits_for_what_is_awaited_beside_messages() {
    let mut world = World::new(&[1000], 11, config());
    world.wanted = [10, 10];
    let ms = Duration::from_millis;
    world.run(ms(100), |world| world.sides[0].done == 10);
    let began_ns = world.now_ns;
    let now = || Instant::from_ns(began_ns);
    let session = &mut world.sides[0].session;
    session.await_beside(true);
    session.close(Deadline::after(now(), SECOND));
    let until = Duration::from_nanos(began_ns) + ms(30);
    assert!(!world.run(until, |world| world.sides[0].is_over.is_some()));
    let session = &mut world.sides[0].session;
    let is_late = |deadline: Deadline| deadline.instant() > Instant::from_ns(world.now_ns).after(ms(1));
    assert!(session.wake(Instant::from_ns(world.now_ns)).is_some_and(is_late));
    session.await_beside(false);
    assert!(!session.wake(Instant::from_ns(world.now_ns)).is_some_and(is_late));
    assert!(world.run(until + ms(3), |world| world.sides[0].is_over.is_some()));
    assert_eq!(world.sides[0].is_over, Some(FinalReason::Closed));
    // The deadline holds, whatever is awaited.
    let mut world = World::new(&[1000], 11, config());
    world.wanted = [10, 10];
    world.run(ms(100), |world| world.sides[0].done == 10);
    let until = Deadline::after(Instant::from_ns(world.now_ns), ms(70));
    world.sides[0].session.await_beside(true);
    world.sides[0].session.close(until);
    assert!(world.run(SECOND, |world| world.sides[0].is_over.is_some()));
    assert_eq!(world.now_ns, until.instant().to_ns());
}

#[test]
fn a_close_that_cannot_end_ends_at_its_deadline() {
    let mut world = World::new(&[1000], 11, config());
    world.wanted = [10, 0];
    world.run(Duration::from_millis(1), |world| world.sides[0].sent > 0);
    world.fault_at(Duration::from_millis(1), Fault::Pause(1));
    world.run(Duration::from_millis(2), |_| false);
    let after = |ms| Deadline::after(Instant::from_ns(world.now_ns), Duration::from_millis(ms));
    // The earliest of several counts.
    let until = after(70);
    for deadline in [after(500), until, after(200)] {
        world.sides[0].session.close(deadline);
    }
    assert!(world.run(SECOND, |world| world.sides[0].is_over.is_some()));
    assert_eq!(world.now_ns, until.instant().to_ns());
    let a = &world.sides[0];
    assert_eq!(a.done + a.unknown, a.sent);
    assert_eq!(a.is_over, Some(FinalReason::Closed));
}
