//! Meshes of as many members as there may be.

use core::time::Duration;

use doorbell::mesh::Collective;

use crate::collectives::Everyone;
use crate::world::{World, ms};

const RANKS: usize = 64;

/// Time between polls of members that are too many to be polled at every event of one.
const STEP: Duration = Duration::from_micros(500);

/// All of them on these subnets, once they have done these.
fn together(subnets: impl Fn(usize) -> Vec<usize>, collectives: &[Collective]) -> World {
    let mut world = World::on_subnets(RANKS, "", subnets);
    for at in 0..RANKS {
        world.start(at, 1);
    }
    let all = RANKS as u32;
    let is_joined = world.run_in_steps(ms(100), STEP, |world| {
        let mut members = world.members.iter().flatten();
        members.all(|member| member.mesh.reached().len() == all)
    });
    let reached = world
        .members
        .iter()
        .flatten()
        .map(|member| member.mesh.reached().len());
    assert!(is_joined, "{:?}", reached.collect::<Vec<_>>());
    for collective in collectives {
        let mut all = Everyone::begin(&mut world, *collective, 4 * RANKS);
        let is_done = world.run_in_steps(ms(500), STEP, |world| all.poll(world));
        assert!(is_done, "{collective:?}: {:?}", all.failed);
        all.checked("of all there may be");
    }
    world.fabric.audit().unwrap();
    world
}

#[test]
fn sixty_four_on_one_subnet_have_a_link_each_and_do_a_collective() {
    let mut world = together(|_| vec![0], &[Collective::AllToAll]);
    for at in 0..RANKS {
        assert_eq!(world.member(at).mesh.neighbours().count(), RANKS - 1);
    }
}

/// In rows of eight, and columns: members that share neither talk through one that shares both.
#[test]
fn sixty_four_in_a_grid_do_collectives() {
    let mut world = together(
        |at| vec![at / 8, 8 + at % 8],
        &[Collective::AllToAll, Collective::AllReduce],
    );
    for at in 0..RANKS {
        let counts = world.member(at).mesh.counts();
        assert!(counts.relayed > 0 && counts.dropped == 0, "{at}: {counts:?}");
    }
}
