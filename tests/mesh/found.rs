//! Members that are found by the addresses they listen at.

use core::net::SocketAddr;
use core::time::Duration;
use std::collections::BTreeSet;

use doorbell::Handle;
use doorbell::link::{Backoff, FinalReason, LinkError};
use doorbell::mesh::NotLinked;
use doorbell::provider::{Instant, Io as _, Network as _};
use doorbell::wire::{Fit, Frame};

use crate::world::{Member, PORT, World, config, ms, rank};

/// In a line each knows the one below it by the address that one has on the cable between them.
fn found(world: &mut World) {
    for at in 1..world.hosts.len() {
        let below = SocketAddr::from(([10, 1, (at - 1) as u8, at as u8], PORT));
        let mesh = &mut world.member(at).mesh;
        mesh.connect_at(rank(at - 1), below).unwrap();
        // A member above it connects by itself.
        mesh.connect_at(rank(at), below).unwrap();
    }
}

#[test]
fn members_that_are_known_by_their_addresses_are_found_and_found_again() {
    let mut world = World::apart(3, &[(0, 1), (1, 2)], "");
    found(&mut world);
    world.joined();
    // Another process listens there, and some time later.
    world.members[0] = None;
    let is_lost = world.run(ms(3000), |world| !world.member(1).mesh.is_linked(rank(0)));
    assert!(is_lost);
    world.run(ms(1500), |_| false);
    world.begin(0, 2);
    let is_back = world.run(ms(5000), |world| {
        (0..3).all(|at| world.member(at).mesh.reached().len() == 3)
            && (1..3).all(|at| world.member(at).mesh.started(rank(0)) == Some(2))
    });
    assert!(is_back, "{:?}", world.member(1).events);
    world.member(2).outbox.push_back((rank(0), b"across".to_vec()));
    let has_come = world.run(ms(500), |world| {
        world.member(0).take();
        !world.member(0).inbox[2].is_empty()
    });
    assert!(has_come);
}

/// The second handle of the same process lists another rail, or has no room for it, so that the process is asked for it.
#[test]
fn a_member_is_reached_over_the_rails_of_its_latest_handle() {
    for has_room in [true, false] {
        let mut world = World::apart(2, &[(0, 1), (0, 1)], "");
        let whole = world.member(0).handle;
        let first = whole.rails().iter().next().unwrap();
        let part = || Handle::builder(whole.port(), whole.instance());
        let (mut one, mut full) = (part(), part());
        assert_eq!(one.push(&first), Fit::Included);
        while full.push(&first) == Fit::Included {}
        let mut rails = |handle: &Handle| {
            let Member {
                mesh, node, workers, ..
            } = world.member(1);
            mesh.connect(node, workers, rank(0), handle).unwrap();
            world.run(ms(500), |_| false);
            let links = world.member(1).mesh.links();
            let reports = links.ids().flat_map(|id| links.rails(id));
            reports.map(|rail| rail.peer.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(rails(&one.finish().unwrap()), ["10.1.0.1"]);
        let second = if has_room { whole } else { full.finish().unwrap() };
        assert_eq!(rails(&second), ["10.1.0.1", "10.1.1.1"], "{has_room}");
    }
}

#[test]
fn a_rank_that_is_none_is_refused() {
    let mut world = World::apart(2, &[(0, 1)], "");
    let at = SocketAddr::from(([10, 1, 0, 1], PORT));
    assert!(world.member(1).mesh.connect_at(rank(2), at).is_err());
}

/// For a member that does not answer, the reasons name where it was asked, the rails that were tried, and each
/// outcome.
#[test]
fn of_who_is_not_linked_the_reasons_are_told_until_it_is() {
    let mut world = World::apart(3, &[(0, 1), (1, 2)], "");
    let nobody = SocketAddr::from(([10, 1, 0, 1], PORT + 1));
    world.member(1).mesh.connect_at(rank(0), nobody).unwrap();
    let handle = world.member(0).handle;
    let across = world.member(2);
    across
        .mesh
        .connect(&across.node, &across.workers, rank(0), &handle)
        .unwrap();
    let reason = across.mesh.not_linked(rank(0)).next();
    assert!(
        matches!(reason, Some(NotLinked::NotBegun(LinkError::NoRoute(_)))),
        "{reason:?}"
    );
    // A link is begun by the handle of somebody whom a rail reaches.
    let reached = world.member(1).handle;
    let across = world.member(2);
    across
        .mesh
        .connect(&across.node, &across.workers, rank(0), &reached)
        .unwrap();
    assert!(across.mesh.not_linked(rank(0)).next().is_none());
    assert!(world.run(ms(3000), |world| {
        let mut reasons = world.member(1).mesh.not_linked(rank(0));
        reasons.any(|reason| matches!(reason, NotLinked::NotFound { address, .. } if address == nobody))
    }));
    let told = |world: &mut World| -> Vec<_> {
        let reasons = world.member(1).mesh.not_linked(rank(0));
        reasons.map(|reason| reason.to_string()).collect()
    };
    let said = told(&mut world);
    assert!(said[0].starts_with("asked at 10.1.0.1:7001: "), "{said:?}");
    // It is gone, and its rail with it: first while a link is still tried, and then of the one that was.
    world.members[0] = None;
    let member = world.member(1);
    member
        .mesh
        .connect(&member.node, &member.workers, rank(0), &handle)
        .unwrap();
    let is_tried = |reason: NotLinked<'_>| match reason {
        NotLinked::NotConnected(rail) => rail.between.as_ref().is_some_and(|between| {
            let at = (between.device.as_str(), between.port, between.peer);
            at == ("sim0", 1, "10.1.0.1".parse().unwrap())
        }),
        _ => false,
    };
    for is_over in [false, true] {
        assert!(world.run(ms(3000), |world| {
            let mesh = &world.member(1).mesh;
            let was_over = mesh
                .not_linked(rank(0))
                .any(|reason| matches!(reason, NotLinked::Over(FinalReason::Unreachable)));
            was_over == is_over && mesh.not_linked(rank(0)).any(is_tried)
        }));
    }
    // Nothing is left of it once it is linked.
    world.start(0, 2);
    assert!(world.run(ms(3000), |world| {
        world.member(1).mesh.started(rank(0)) == Some(2) && told(world).is_empty()
    }));
}

#[test]
fn a_later_address_of_a_member_replaces_the_earlier_one() {
    let mut world = World::apart(2, &[(0, 1)], "");
    let [first, second] = [1, 2].map(|beside| SocketAddr::from(([10, 1, 0, 1], PORT + beside)));
    for address in [first, second] {
        world.member(1).mesh.connect_at(rank(0), address).unwrap();
    }
    let mut tried = BTreeSet::new();
    world.run(ms(500), |world| {
        for reason in world.member(1).mesh.not_linked(rank(0)) {
            if let NotLinked::NotFound { address, .. } = reason {
                tried.insert(address);
            }
        }
        false
    });
    assert_eq!(tried, [second].into());
}

/// Members that lost another at one moment do not all ask for it at one moment.
#[test]
fn no_two_ask_at_the_same_times_for_who_is_not_there() {
    let mut world = World::of_hosts(3, &[(0, 1), (0, 2)], "");
    for (at, cable) in [(1, 0), (2, 1)] {
        world.begin(at, 1);
        let nobody = SocketAddr::from(([10, 1, cable, 1], PORT));
        world.member(at).mesh.connect_at(rank(0), nobody).unwrap();
    }
    let mut next = [const { BTreeSet::new() }; 2];
    world.run(ms(300), |world| {
        let now = world.fabric.now();
        for (next, at) in next.iter_mut().zip([1, 2]) {
            let mesh = &world.member(at).mesh;
            // Since the first time, which is that of both.
            if mesh.not_linked(rank(0)).next().is_some() {
                next.extend(mesh.wake(now).map(|wake| wake.instant().to_ns()));
            }
        }
        false
    });
    assert!(next.iter().all(|next| next.len() > 3), "{next:?}");
    assert!(next[0].is_disjoint(&next[1]), "{next:?}");
}

/// Lets time pass, and hangs up on all who say Hello at the address of rank 0. Returns the times at which somebody asked who is there: a link
/// that connects again names the listener it means.
fn asked_in_vain(world: &mut World, span: Duration) -> Vec<Instant> {
    let host = world.hosts[0].clone();
    let acceptor = host.listen(SocketAddr::from(([10, 1, 0, 1], PORT))).unwrap();
    let (mut asked, mut streams, mut read) = (Vec::new(), Vec::new(), [0; 1024]);
    world.run(span, |world| {
        while let Some(stream) = host.accept(&acceptor).unwrap() {
            streams.push(stream);
        }
        streams.retain_mut(|stream| {
            let Ok(bytes) = stream.read(&mut read) else {
                return true;
            };
            if let Ok(Frame::Hello(said)) = Frame::parse(&read[..bytes]) {
                asked.extend(said.hello.listener.is_none().then(|| world.fabric.now()));
            }
            false
        });
        false
    });
    asked
}

/// Checks that each wait between two questions is twice as long as the one before, up to the longest, and no shorter than half of that.
fn check_waits(asked: &[Instant], backoff: &Backoff) {
    let mut most = backoff.first;
    for (before, next) in asked.iter().zip(&asked[1..]) {
        let waited = Duration::from_nanos(next.to_ns() - before.to_ns());
        // The question itself takes less than a millisecond.
        assert!(
            (most / 2..=most + ms(1)).contains(&waited),
            "{waited:?} of {most:?}"
        );
        most = (most * 2).min(backoff.longest);
    }
    assert_eq!(most, backoff.longest, "{asked:?}");
}

#[test]
fn a_member_that_does_not_answer_is_asked_less_and_less_often_and_often_again_once_it_was_linked() {
    let mut world = World::of_hosts(2, &[(0, 1)], "");
    world.begin(1, 1);
    let at = SocketAddr::from(([10, 1, 0, 1], PORT));
    world.member(1).mesh.connect_at(rank(0), at).unwrap();
    let backoff = config(1, 2, 1).link.session.backoff;
    let long = backoff.longest * 8;
    check_waits(&asked_in_vain(&mut world, long), &backoff);
    world.begin(0, 1);
    let is_linked = |world: &mut World| world.member(1).mesh.is_linked(rank(0));
    assert!(world.run(long, is_linked));
    // It looks at the link once more, and forgets what failed before.
    world.run(ms(10), |_| false);
    world.members[0] = None;
    assert!(world.run(long, |world| !is_linked(world)));
    check_waits(&asked_in_vain(&mut world, long), &backoff);
}

/// Nothing becomes readable by a member's answer: a thread that sleeps until the mesh is to be polled finds it all the
/// same.
#[test]
fn who_sleeps_as_long_as_it_may_finds_members() {
    let mut world = World::apart(2, &[(0, 1)], "");
    let at = SocketAddr::from(([10, 1, 0, 1], PORT));
    world.member(1).mesh.connect_at(rank(0), at).unwrap();
    let until = world.fabric.now().after(ms(200));
    let mut next = world.fabric.now();
    while world.fabric.now() < until {
        world.member(0).poll();
        if world.fabric.now() >= next {
            world.member(1).poll();
            let now = world.fabric.now();
            next = world
                .member(1)
                .mesh
                .wake(now)
                .map_or(until, |wake| wake.instant());
        }
        world.fabric.run_for(ms(1) / 10);
    }
    assert!(world.member(1).mesh.is_linked(rank(0)));
}

#[test]
fn a_rail_that_is_down_is_no_reason_while_its_member_is_linked() {
    let mut world = World::on_subnets(2, "at 300ms link h0-h1/sim1 down", |_| vec![0, 1]);
    for at in 0..2 {
        world.start(at, 1);
    }
    assert!(world.run(ms(10_000), |world| {
        let mesh = &world.member(1).mesh;
        let link = mesh.neighbours().next().map(|(_, link)| link);
        link.is_some_and(|link| mesh.links().not_connected(link).next().is_some())
    }));
    let mesh = &world.member(1).mesh;
    assert!(mesh.is_linked(rank(0)));
    assert!(mesh.not_linked(rank(0)).next().is_none());
}
