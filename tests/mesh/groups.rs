//! Groups that fail, and the groups after them: each waiting member is notified, and no message of one is taken in
//! another.

use doorbell::Deadline;
use doorbell::mesh::{Collective, CollectiveError, Group, GroupError, MeshSendError};

use crate::collectives::{COLLECTIVES, Everyone, lost_of};
use crate::world::{World, ms, rank};

const RING: &[(usize, usize)] = &[(0, 1), (1, 2), (2, 3), (3, 0)];
const LONG_RING: &[(usize, usize)] = &[(0, 1), (1, 2), (2, 3), (3, 4), (4, 0)];

/// Other data each time.
fn brought(ranks: usize, seed: u8, bytes: usize) -> Vec<Vec<u8>> {
    let bytes = |of| (0..bytes).map(move |at| seed.wrapping_add((of * 31 + at * 7) as u8) & 0x1f);
    (0..ranks).map(|of| bytes(of).collect()).collect()
}

/// Starts a member again, and waits until all know of that, and reach all.
fn restart(world: &mut World, at: usize, started: u64) {
    world.members[at] = None;
    world.start(at, started);
    let ranks = world.hosts.len() as u32;
    let is_back = world.run(ms(5000), |world| {
        world.members.iter().flatten().all(|member| {
            let mesh = &member.mesh;
            let knows = mesh.rank() == rank(at) || mesh.started(rank(at)) == Some(started);
            knows && mesh.reached().len() == ranks
        })
    });
    assert!(is_back);
}

#[test]
fn a_member_that_is_lost_ends_the_collective_of_those_who_wait_for_others_that_gave_up() {
    for (cables, ranks) in [(RING, 4), (LONG_RING, 5)] {
        for collective in COLLECTIVES {
            // From the others it never hears; of a broadcast that one has all of it.
            let lost = if matches!(collective, Collective::Broadcast(_)) {
                2
            } else {
                3
            };
            let mut world = World::new(ranks, cables, "");
            world.joined();
            let mut all = Everyone::bringing(&mut world, collective, brought(ranks, 1, 20 * ranks));
            world.members[lost] = None;
            let ended = world.run(ms(2000), |world| all.poll(world));
            assert!(ended, "{collective:?} of {ranks}: somebody waits for ever");
            for at in (0..ranks).filter(|at| *at != lost) {
                let error = all.failed[at].as_ref().unwrap();
                assert_eq!(
                    lost_of(error),
                    Some(rank(lost)),
                    "{collective:?} of {ranks}, rank {at}: {error}"
                );
            }
        }
    }
}

#[test]
fn members_whose_data_differs_in_length_get_an_error_at_each_poll() {
    let mut world = World::new(4, RING, "");
    world.joined();
    let mut inputs = brought(4, 1, 80);
    inputs[1].extend([0; 80]);
    let mut all = Everyone::bringing(&mut world, Collective::AllReduce, inputs);
    let is_noticed = world.run(ms(500), |world| {
        all.poll(world);
        all.failed.iter().any(Option::is_some)
    });
    assert!(is_noticed);
    let error = all.failed.iter().flatten().next().unwrap();
    assert!(
        matches!(error, GroupError::Collective(CollectiveError::Mismatch { .. })),
        "{error}"
    );
}

/// Rank 2 cannot send to the one that is lost, and so does not look at what the one before it sent: exactly that is sent
/// in the first collective of the next group, too.
#[test]
fn what_nobody_took_in_a_group_that_failed_is_not_taken_in_the_next() {
    let mut world = World::new(4, RING, "");
    world.joined();
    let mut all = Everyone::bringing(&mut world, Collective::AllGather, brought(4, 1, 64));
    world.members[3] = None;
    let is_lost = world.run(ms(2000), |world| {
        for at in 0..2 {
            all.poll_at(world, at);
        }
        (0..3).all(|at| !world.member(at).mesh.reached().contains(rank(3)))
    });
    assert!(is_lost);
    assert!(all.poll_at(&mut world, 2) && all.failed[2].is_some());
    restart(&mut world, 3, 2);
    let mut next = Everyone::bringing(&mut world, Collective::AllGather, brought(4, 9, 64));
    assert!(world.run(ms(2000), |world| next.poll(world)));
    next.checked("of the next group");
}

/// More than windows hold is under way, wherever each of them is.
#[test]
fn a_member_that_is_started_again_amid_a_collective_is_in_the_next_group_with_all_others() {
    for collective in COLLECTIVES {
        let mut world = World::new(4, RING, "");
        world.joined();
        for lost in 0..4 {
            let mut all = Everyone::bringing(&mut world, collective, brought(4, lost as u8, 40_000));
            // One of them has not begun.
            world.run(ms(1), |world| {
                for at in (0..4).filter(|at| *at != lost % 3) {
                    all.poll_at(world, at);
                }
                false
            });
            world.members[lost] = None;
            if lost % 2 == 0 {
                // Some give up, another one never looks again.
                world.run(ms(700), |world| {
                    all.poll_at(world, (lost + 1) % 4) && all.poll_at(world, (lost + 2) % 4)
                });
            }
            restart(&mut world, lost, 2);
            let mut next = Everyone::bringing(&mut world, collective, brought(4, 100 + lost as u8, 40_000));
            assert!(world.run(ms(5000), |world| next.poll(world)), "{collective:?}");
            next.checked(&format!("after rank {lost} was lost"));
        }
    }
}

/// Nobody is lost, but for one of them it took too long.
#[test]
fn who_makes_another_group_ends_the_one_before_for_those_who_wait_for_it() {
    let mut world = World::new(4, RING, "");
    world.joined();
    let mut all = Everyone::bringing(&mut world, Collective::AllReduce, brought(4, 3, 40_000));
    // Rank 2 does not take part: nobody gets through.
    let is_stuck = !world.run(ms(100), |world| {
        [0, 1, 3].map(|at| all.poll_at(world, at)).contains(&true)
    });
    assert!(is_stuck);
    all.again(&mut world, 0);
    for at in [1, 2, 3] {
        let ended = world.run(ms(1000), |world| {
            let has_ended = all.poll_at(world, at);
            all.poll(world);
            has_ended
        });
        let error = all.failed[at].take();
        let is_told = matches!(
            error,
            Some(GroupError::Collective(CollectiveError::Exchange(
                MeshSendError::Regrouped(_)
            )))
        );
        assert!(ended && is_told, "rank {at}: {error:?}");
        all.again(&mut world, at);
    }
    assert!(world.run(ms(5000), |world| all.poll(world)));
    all.checked("after another group");
}

/// Leftover messages fill the windows, and are for nobody: the farewells of the leaving members are behind them.
#[test]
fn what_is_left_over_of_a_group_holds_up_nobody_who_leaves_with_the_next() {
    let mut world = World::new(4, RING, "");
    world.joined();
    let mut all = Everyone::bringing(&mut world, Collective::AllToAll, brought(4, 3, 40_000));
    world.run(ms(100), |world| {
        [0, 1, 3].map(|at| all.poll_at(world, at)).contains(&true)
    });
    let deadline = Deadline::after(world.fabric.now(), ms(5000));
    let next = (0..4).map(|at| Group::new(&mut world.member(at).mesh).unwrap().leave(deadline));
    let mut leaving: Vec<_> = next.map(Some).collect();
    let has_left = world.run(ms(5000), |world| {
        for (member, leaving) in world.members.iter_mut().flatten().zip(&mut leaving) {
            if leaving
                .as_mut()
                .is_some_and(|leaving| leaving.poll(&member.node, &mut member.mesh).unwrap())
            {
                *leaving = None;
            }
        }
        leaving.iter().all(Option::is_none)
    });
    assert!(has_left);
}
