//! How many packets a message of a collective takes: its own, the transport's acknowledgement, and as little else as may be.

use core::time::Duration;

use doorbell::mesh::{Collective, MeshConfig};

use crate::collectives::Everyone;
use crate::world::{World, ms, rank};

const RANKS: usize = 3;
const ROUNDS: usize = 96;

/// Every pair on a subnet of its own, each made as `doorbell mesh` makes it.
fn triangle() -> World {
    let mut world = World::made(RANKS, &[(0, 1), (1, 2), (2, 0)], "", |at| {
        let mut config = MeshConfig::new(rank(at), RANKS as u8, 1);
        let channel = &mut config.link.channel;
        (channel.send_depth, channel.receive_depth) = (64, 64);
        config
    });
    world.joined();
    world
}

/// Packets on all links for each message, of rounds that begin so long after the one before has ended.
fn packets_of_a_message(collective: Collective, pause: Duration) -> f64 {
    let mut world = triangle();
    let round = |world: &mut World| {
        let mut all = Everyone::begin(world, collective, 3 * 16);
        all.poll(world);
        assert!(world.run(ms(100), |world| all.poll(world)));
        world.run(pause, |_| false);
    };
    // The traffic of the mesh itself is over by then.
    (0..10).for_each(|_| round(&mut world));
    let sent = |world: &World| -> u64 {
        let members = world.members.iter().flatten();
        members.map(|member| member.mesh.counts().sent).sum()
    };
    let before = sent(&world);
    world.fabric.capture(100_000);
    (0..ROUNDS).for_each(|_| round(&mut world));
    let packets = world.fabric.take_captured().len();
    packets as f64 / (sent(&world) - before) as f64
}

/// A SEND and its acknowledgement, and of each 32nd the credits.
#[test]
fn rounds_of_an_all_to_all_take_two_packets_a_message_and_little_more() {
    for pause in [ms(0), ms(1), ms(4), ms(9)] {
        let packets = packets_of_a_message(Collective::AllToAll, pause);
        println!("all-to-all, {pause:?} between rounds: {packets:.2} packets a message");
        assert!((2.0..2.2).contains(&packets), "{pause:?}: {packets}");
    }
}

/// Round a ring messages go one way alone: acknowledgements go after half a window, or some time.
#[test]
fn where_nothing_goes_back_it_is_told_of_many_messages_at_once() {
    for pause in [ms(0), ms(1), ms(4)] {
        let packets = packets_of_a_message(Collective::AllGather, pause);
        println!("all-gather, {pause:?} between rounds: {packets:.2} packets a message");
        assert!((2.0..2.6).contains(&packets), "{pause:?}: {packets}");
    }
}
