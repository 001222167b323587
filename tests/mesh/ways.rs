//! Messages between members that do not share a subnet.

use core::time::Duration;

use doorbell::link::{DETECTION_MAX, FinalReason, LinkConfig, Links};
use doorbell::mesh::{MeshConfig, MeshEvent};
use doorbell::{Node, Trust, WorkerConfig};
use doorbell_operation::{Labels, Metrics};

use crate::world::{World, ms, rank};

const RING: [(usize, usize); 4] = [(0, 1), (1, 2), (2, 3), (3, 0)];
const LINE: [(usize, usize); 3] = [(0, 1), (1, 2), (2, 3)];

/// Content of a message: its sender, its receiver and its number.
fn message(from: usize, to: usize, number: usize) -> Vec<u8> {
    let mut message = vec![from as u8, to as u8, number as u8];
    message.resize(3 + number * 37 % 1900, (number * 7 + from) as u8);
    message
}

/// Everyone sends everyone so many messages.
fn fill(world: &mut World, count: usize) {
    let ranks = world.hosts.len();
    for from in 0..ranks {
        for number in 0..count {
            for to in (0..ranks).filter(|to| *to != from) {
                let said = message(from, to, number);
                world.member(from).outbox.push_back((rank(to), said));
            }
        }
    }
}

/// Runs until all came, each once and in its turn.
fn all_come(world: &mut World, count: usize, within_ms: u64) {
    let ranks = world.hosts.len();
    let all = world.run(ms(within_ms), |world| {
        world
            .members
            .iter_mut()
            .flatten()
            .for_each(|member| member.take());
        let came = |member: &crate::world::Member| member.inbox.iter().map(Vec::len).sum::<usize>();
        world
            .members
            .iter()
            .flatten()
            .all(|member| came(member) >= count * (ranks - 1))
    });
    for to in 0..ranks {
        for from in (0..ranks).filter(|from| *from != to) {
            let came = &world.member(to).inbox[from];
            let sent: Vec<_> = (0..count).map(|number| message(from, to, number)).collect();
            assert!(*came == sent, "{} of {count} from {from} to {to}", came.len());
        }
    }
    assert!(all);
}

#[test]
fn three_that_share_a_subnet_by_twos_need_nobody_between() {
    let mut world = World::new(3, &[(0, 1), (1, 2), (2, 0)], "");
    world.joined();
    fill(&mut world, 40);
    all_come(&mut world, 40, 500);
    for at in 0..3 {
        assert_eq!(world.member(at).mesh.counts().relayed, 0);
    }
    world.fabric.audit().unwrap();
}

#[test]
fn what_a_member_and_its_links_count_is_rendered() {
    let mut world = World::new(3, &LINE[..2], "");
    world.joined();
    fill(&mut world, 5);
    all_come(&mut world, 5, 500);
    let mesh = &world.members[1].as_ref().unwrap().mesh;
    let mut metrics = Metrics::default();
    metrics.mesh(&Labels::new(&[("rank", "1")]).unwrap(), mesh);
    let text = metrics.to_string();
    let sent: u64 = mesh.links().ids().map(|id| mesh.links().counts(id).sent).sum();
    // The rails carried all sends, and as many arrived at the other ends.
    let rails = |at: usize| {
        let links = world.members[at].as_ref().unwrap().mesh.links();
        let reports = links.ids().flat_map(|id| links.rails(id)).collect::<Vec<_>>();
        reports.into_iter().map(|report| report.counts)
    };
    assert!(rails(1).map(|counts| counts.sent).sum::<u64>() >= sent);
    assert!(rails(1).all(|counts| counts.sent_bytes > 500 && counts.received_bytes > 500));
    let (out, came): (u64, u64) = (
        rails(0).map(|counts| counts.sent_bytes).sum(),
        rails(1).take(1).map(|counts| counts.received_bytes).sum(),
    );
    assert!(came > 0 && came <= out, "{came} {out}");
    assert!(mesh.counts().relayed >= 10 && sent > 20);
    for (series, value) in [
        ("doorbell_mesh_sent_messages_total{rank=\"1\"}", 10),
        ("doorbell_mesh_received_messages_total{rank=\"1\"}", 10),
        (
            "doorbell_mesh_relayed_frames_total{rank=\"1\"}",
            mesh.counts().relayed,
        ),
        ("doorbell_mesh_reached_members{rank=\"1\"}", 3),
        ("doorbell_mesh_members{rank=\"1\"}", 3),
        ("doorbell_link_sent_fragments_total{rank=\"1\"}", sent),
        ("doorbell_links{rank=\"1\",state=\"connected\"}", 2),
        ("doorbell_links{rank=\"1\",state=\"without_rail\"}", 0),
        (
            "doorbell_mesh_member_sent_messages_total{rank=\"1\",member=\"2\"}",
            5,
        ),
        (
            "doorbell_mesh_member_received_messages_total{rank=\"1\",member=\"0\"}",
            5,
        ),
        (
            "doorbell_mesh_member_sent_again_messages_total{rank=\"1\",member=\"0\"}",
            0,
        ),
        ("doorbell_mesh_route_hops{rank=\"1\",member=\"2\",by=\"\"}", 1),
        (
            "doorbell_link_rails{rank=\"1\",member=\"0\",rail=\"sim0\",peer=\"10.1.0.1\",state=\"up\"}",
            1,
        ),
        (
            "doorbell_link_rails{rank=\"1\",member=\"2\",rail=\"sim1\",peer=\"10.1.1.3\",state=\"down\"}",
            0,
        ),
        (
            "doorbell_link_rail_connections_total{rank=\"1\",member=\"2\",rail=\"sim1\",peer=\"10.1.1.3\"}",
            1,
        ),
        (
            "doorbell_link_rail_failures_total{rank=\"1\",member=\"2\",rail=\"sim1\",peer=\"10.1.1.3\"}",
            0,
        ),
    ] {
        assert!(
            text.contains(&format!("{series} {value}\n")),
            "{series} {value}\n{text}"
        );
    }
}

#[test]
fn in_a_ring_and_in_a_line_others_pass_on_what_is_not_theirs() {
    for (cables, hops) in [(&RING[..], 2), (&LINE[..], 3)] {
        let mut world = World::new(4, cables, "");
        world.joined();
        let far = world.member(0).mesh.routes();
        assert_eq!((1..4).filter_map(|to| far.hops(rank(to))).max(), Some(hops));
        let by = if hops == 3 { vec![1, 2] } else { vec![] };
        let mesh = &world.member(0).mesh;
        assert_eq!(
            mesh.ways()[&rank(3)],
            by.iter().map(|at| rank(*at)).collect::<Vec<_>>()
        );
        let mut metrics = Metrics::default();
        metrics.mesh(&Labels::NONE, mesh);
        let by = if hops == 3 { "1, 2" } else { "" };
        let told = format!("doorbell_mesh_route_hops{{member=\"3\",by=\"{by}\"}} ");
        assert!(metrics.to_string().contains(&told), "{metrics}");
        fill(&mut world, 60);
        all_come(&mut world, 60, 1000);
        let counts: Vec<_> = (0..4).map(|at| world.member(at).mesh.counts()).collect();
        assert!(counts.iter().any(|counts| counts.relayed >= 60));
        assert!(
            counts
                .iter()
                .all(|counts| counts.dropped == 0 && counts.out_of_turn == 0),
            "{counts:?}"
        );
        world.fabric.audit().unwrap();
    }
}

/// A message through too many members would never arrive, and its sender would wait for ever.
#[test]
fn a_member_behind_as_many_as_a_message_may_go_through_is_reached_and_one_behind_more_is_not() {
    for (hops_max, is_reached) in [(2, true), (1, false)] {
        let mut world = World::made(4, &LINE, "", |at| {
            let mut config = crate::world::config(at, 4, 1);
            assert_eq!(config.hops_needed(), 2);
            assert!(config.hops_max >= MeshConfig::new(rank(0), 64, 1).hops_needed());
            config.hops_max = hops_max;
            config
        });
        world.run(ms(300), |_| false);
        for (at, far) in [(0, rank(3)), (3, rank(0))] {
            let mesh = &mut world.member(at).mesh;
            assert_eq!(mesh.routes().hops(far), Some(3));
            assert_eq!(mesh.reached().contains(far), is_reached);
            assert_eq!(mesh.reached().len(), 3 + u32::from(is_reached));
            assert_eq!(mesh.send(far, &[1], &[2]).is_ok(), is_reached);
        }
        world.run(ms(300), |world| {
            world
                .members
                .iter_mut()
                .flatten()
                .for_each(|member| member.take());
            false
        });
        let came = |at: usize, from: usize| world.members[at].as_ref().unwrap().inbox[from].len();
        assert_eq!([came(0, 3), came(3, 0)], [usize::from(is_reached); 2]);
    }
}

#[test]
fn a_cable_that_breaks_for_good_costs_no_message_where_another_way_is_left() {
    let mut world = World::new(4, &RING, "at 20ms link h1/sim1-h2/sim1 down");
    world.joined();
    fill(&mut world, 120);
    // Faster than they are taken, so that something is under way when it breaks.
    world.run(ms(20), |_| false);
    all_come(&mut world, 120, 20_000);
    let hops = world.member(1).mesh.routes().hops(rank(2));
    assert_eq!(hops, Some(3), "the other way round");
}

/// Messages of several fragments, and short ones. A link that comes back sends again what it still shares, of which other members have
/// all by then; one that is lost lets go of it.
#[test]
fn what_a_link_shares_when_its_cable_breaks_goes_the_other_way_round() {
    let (cut, back) = (
        "at 50ms link h1/sim1-h2/sim1 down",
        "\nat 400ms link h1/sim1-h2/sim1 up",
    );
    for (plan, recover_within) in [(cut.to_owned(), ms(300)), (format!("{cut}{back}"), ms(5000))] {
        let mut world = World::made(4, &RING, &plan, |at| {
            let mut config = crate::world::config(at, 4, 1);
            config.link.session.fragment_bytes = 400;
            config.link.session.recover_within = recover_within;
            config
        });
        world.joined();
        world.run(ms(51), |_| false);
        fill(&mut world, 40);
        all_come(&mut world, 40, 20_000);
        assert_eq!(world.member(1).mesh.routes().hops(rank(2)), Some(3));
        let again = world.member(1).mesh.member_counts(rank(2)).sent_again;
        assert!(again > 0, "{again}");
        let is_back = world.run(ms(3000), |world| {
            world.member(1).mesh.routes().hops(rank(2)) == Some(1)
        });
        assert_eq!(is_back, plan.ends_with("up"));
        let inboxes = world.members.iter_mut().flatten().map(|member| &mut member.inbox);
        inboxes.for_each(|inbox| inbox.iter_mut().for_each(Vec::clear));
        fill(&mut world, 20);
        all_come(&mut world, 20, 2000);
    }
}

/// With the time that links have to recover as it is by default, of which none of this needs to wait for the end.
fn patient(cables: &[(usize, usize)], plan: &str) -> World {
    let ranks = cables.iter().map(|(one, other)| one.max(other) + 1).max();
    let ranks = ranks.unwrap_or(0);
    let mut world = World::made(ranks, cables, plan, |at| {
        let mut config = crate::world::config(at, ranks, 1);
        config.link.session.recover_within = LinkConfig::default().session.recover_within;
        config
    });
    world.joined();
    world
}

fn nobody_was_lost(world: &World) -> bool {
    let mut events = world.members.iter().flatten().flat_map(|member| &member.events);
    events.all(|event| matches!(event, MeshEvent::Reachable(_)))
}

#[test]
fn a_cable_that_breaks_is_gone_round_while_its_link_is_still_trying() {
    let cut = "at 50ms link h1/sim1-h2/sim1 down\nat 1s link h1/sim1-h2/sim1 up";
    let mut world = patient(&RING, cut);
    world.run(ms(51), |_| false);
    let begin = world.fabric.now();
    fill(&mut world, 40);
    all_come(&mut world, 40, 500);
    let took = Duration::from_nanos(world.fabric.now().to_ns() - begin.to_ns());
    assert!(took < DETECTION_MAX + ms(50), "{took:?}");
    assert_eq!(world.member(1).mesh.routes().hops(rank(2)), Some(3));
    // As soon as there is a rail again, it is the way.
    let is_back = world.run(ms(3000), |world| {
        world.member(1).mesh.routes().hops(rank(2)) == Some(1)
    });
    assert!(is_back && nobody_was_lost(&world));
    fill(&mut world, 10);
    world
        .members
        .iter_mut()
        .flatten()
        .for_each(|member| member.inbox.iter_mut().for_each(Vec::clear));
    all_come(&mut world, 10, 500);
}

/// The sender has the same next step by either way, and as many hops. It learns of the lost link from others.
#[test]
fn a_cable_that_breaks_between_others_is_gone_round_where_both_ways_begin_alike() {
    const DIAMOND: [(usize, usize); 5] = [(0, 1), (1, 2), (1, 3), (2, 4), (3, 4)];
    for (cable, one, other) in [(1, 1, 2), (3, 2, 4)] {
        let cut = format!("at 50ms link h{one}/sim{cable}-h{other}/sim{cable} down");
        let mut world = patient(&DIAMOND, &cut);
        assert_eq!(world.member(1).mesh.routes().next(rank(4)), Some(rank(2)));
        world.run(ms(51), |_| false);
        let begin = world.fabric.now();
        let said = message(0, 4, 0);
        world.member(0).outbox.push_back((rank(4), said.clone()));
        let came = world.run(ms(2000), |world| {
            world.member(4).take();
            world.member(4).inbox[0] == [said.clone()]
        });
        let took = Duration::from_nanos(world.fabric.now().to_ns() - begin.to_ns());
        assert!(came && took < DETECTION_MAX + ms(50), "{cable}: {took:?}");
        let routes = world.member(0).mesh.routes();
        assert_eq!(
            (routes.hops(rank(4)), routes.next(rank(4))),
            (Some(3), Some(rank(1)))
        );
        assert!(nobody_was_lost(&world));
    }
}

#[test]
fn where_there_is_no_other_way_what_is_sent_waits_for_the_link() {
    let cut = "at 50ms link h1/sim1-h2/sim1 down\nat 2s link h1/sim1-h2/sim1 up";
    let mut world = patient(&LINE, cut);
    world.run(ms(300), |_| false);
    fill(&mut world, 40);
    all_come(&mut world, 40, 5000);
    assert!(nobody_was_lost(&world));
}

#[test]
fn a_member_that_is_lost_between_two_costs_them_no_message() {
    let mut world = World::new(4, &RING, "");
    world.joined();
    let between = world.member(0).mesh.routes().next(rank(2)).unwrap();
    for number in 0..50 {
        world.member(0).outbox.push_back((rank(2), message(0, 2, number)));
    }
    world.run(ms(1), |world| {
        world.members[between.index()]
            .as_ref()
            .unwrap()
            .mesh
            .counts()
            .relayed
            > 2
    });
    world.members[between.index()] = None;
    let all = world.run(ms(20_000), |world| {
        world.member(2).take();
        world.member(2).inbox[0].len() == 50
    });
    assert!(all, "{}", world.member(2).inbox[0].len());
    let sent: Vec<_> = (0..50).map(|number| message(0, 2, number)).collect();
    assert!(world.member(2).inbox[0] == sent);
    // Its messages went the other way before it was given up.
    let is_given_up = world.run(ms(2000), |world| {
        world.member(0).events.contains(&MeshEvent::Unreachable(between))
    });
    assert!(is_given_up);
}

/// Nothing else comes that would wake a member which has something to say.
#[test]
fn who_sends_or_receives_is_to_be_polled_at_once_and_then_no_more() {
    let mut world = World::new(2, &[(0, 1)], "");
    world.joined();
    world.run(ms(100), |_| false);
    let is_at_once = |world: &mut World, at: usize| {
        let now = world.fabric.now();
        world
            .member(at)
            .mesh
            .wake(now)
            .is_some_and(|wake| wake.has_passed(now))
    };
    // Taking less than half a window is acknowledged after some time, half of one at once.
    for (count, is_told_later) in [(1, true), (4, false)] {
        assert!(!is_at_once(&mut world, 0) && !is_at_once(&mut world, 1));
        for number in 0..count {
            let said = message(0, 1, number);
            world.member(0).mesh.send(rank(1), &said, &[]).unwrap();
        }
        assert!(is_at_once(&mut world, 0), "what was sent");
        world.run(ms(100), |_| false);
        assert!(!is_at_once(&mut world, 0) && !is_at_once(&mut world, 1));
        world.member(1).take();
        assert!(is_at_once(&mut world, 1), "what was taken of {count}");
        world.member(1).poll();
        let now = world.fabric.now();
        let wake = world.member(1).mesh.wake(now).unwrap().instant();
        let later = now.after(crate::world::config(1, 2, 1).acknowledge_after);
        assert!(
            wake > now && (wake <= later || !is_told_later),
            "{count}: {wake:?}"
        );
        world.run(ms(100), |_| false);
    }
}

/// A member's announcement of its room is lost with a link between others, and its own routes stay as they were. Nothing notifies it of
/// that: a sender that waits for room asks.
#[test]
fn room_that_is_told_and_lost_on_its_way_is_asked_for() {
    let cables = [(0, 1), (1, 2), (1, 3), (2, 4), (3, 4), (4, 5)];
    let mut world = World::new(6, &cables, "at 100ms link h1/sim2-h3/sim2 down");
    world.joined();
    // Messages of the last member to the first go over the cable that breaks.
    assert_eq!(world.member(4).mesh.routes().next(rank(0)), Some(rank(3)));
    for number in 0..20 {
        world.member(0).outbox.push_back((rank(5), message(0, 5, number)));
    }
    world.run(ms(101), |_| false);
    world.member(5).take();
    let taken = world.member(5).inbox[0].len();
    assert!((1..20).contains(&taken), "{taken}");
    let all = world.run(ms(5000), |world| {
        world.member(5).take();
        world.member(5).inbox[0].len() == 20
    });
    let sent: Vec<_> = (0..20).map(|number| message(0, 5, number)).collect();
    assert!(world.member(5).inbox[0] == sent);
    assert!(all);
}

#[test]
fn a_member_that_is_started_again_is_told_of_and_talked_to() {
    let mut world = World::new(4, &LINE, "");
    world.joined();
    world.members[2] = None;
    world.run(ms(5), |_| false);
    world.start(2, 2);
    let again = world.run(ms(20_000), |world| {
        [0, 1, 3]
            .iter()
            .all(|at| world.member(*at).events.contains(&MeshEvent::Restarted(rank(2))))
            && world
                .members
                .iter()
                .flatten()
                .all(|member| member.mesh.reached().len() == 4)
    });
    let seen: Vec<_> = world
        .members
        .iter()
        .flatten()
        .map(|member| &member.events)
        .collect();
    assert!(again, "{seen:?}");
    fill(&mut world, 10);
    all_come(&mut world, 10, 2000);
}

/// A member that knows of the new start by another one may report a way to the earlier start before. The order is the same for all.
#[test]
fn a_new_start_is_reported_while_the_member_is_unreachable() {
    for (stops_ms, cables) in [(5, &LINE[..]), (5, &RING), (12_000, &LINE), (12_000, &RING)] {
        let mut world = World::new(4, cables, "");
        world.joined();
        world.members[2] = None;
        world.run(ms(stops_ms), |_| false);
        world.start(2, 2);
        for at in [0, 1, 3] {
            let is_reached = world.run(ms(40_000), |world| {
                let member = world.member(at);
                let was_started = member.events.contains(&MeshEvent::Restarted(rank(2)));
                was_started && member.mesh.reached().contains(rank(2))
            });
            let events = &world.member(at).events;
            let mut has_way = false;
            for event in events {
                match *event {
                    MeshEvent::Reachable(whom) if whom == rank(2) => has_way = true,
                    MeshEvent::Unreachable(whom) if whom == rank(2) => has_way = false,
                    MeshEvent::Restarted(_) => assert!(!has_way, "rank {at}: {events:?}"),
                    _ => {}
                }
            }
            assert!(is_reached && has_way, "rank {at}: {events:?}");
        }
    }
}

/// As if the clock of its host was set back: its messages would be of a start that others do not go back to.
#[test]
fn a_member_that_says_it_was_started_before_it_was_is_turned_away_and_both_sides_know_why() {
    let mut world = World::new(3, &[(0, 1), (1, 2), (2, 0)], "");
    world.joined();
    world.members[1] = None;
    let is_gone = world.run(ms(5000), |world| {
        [0, 2]
            .iter()
            .all(|at| !world.member(*at).mesh.reached().contains(rank(1)))
    });
    assert!(is_gone);
    let tells = |world: &World, at: usize, of: usize, why: &str| {
        let mesh = &world.members[at].as_ref().unwrap().mesh;
        let mut reasons = mesh.not_linked(rank(of)).map(|reason| reason.to_string());
        !mesh.reached().contains(rank(of)) && reasons.any(|reason| reason.contains(why))
    };
    let (before, later) = ("started earlier than it was", "a later start");
    world.start(1, 0);
    let is_told = world.run(ms(1000), |world| {
        [0, 2].iter().all(|at| {
            let is_told = world
                .member(*at)
                .events
                .contains(&MeshEvent::StartedBefore(rank(1)));
            is_told && tells(world, *at, 1, before) && tells(world, 1, *at, later)
        })
    });
    assert!(is_told);
    // A member that knows nothing of the past believes the claimed start, until it hears of the later one.
    world.members[1] = None;
    world.members[2] = None;
    world.start(1, 0);
    world.start(2, 2);
    let is_told = world.run(ms(5000), |world| {
        tells(world, 2, 1, before)
            && tells(world, 1, 2, later)
            && world.member(0).mesh.reached().contains(rank(2))
    });
    assert!(is_told);
    world.members[1] = None;
    world.start(1, 2);
    world.joined();
    fill(&mut world, 10);
    all_come(&mut world, 10, 2000);
}

/// Links carry more than that: the limit bounds how much a member may make a relay keep.
#[test]
fn what_is_longer_than_messages_may_be_is_not_passed_on() {
    let mut world = World::made(3, &[(0, 1), (1, 2)], "", |at| {
        let mut config = crate::world::config(at, 3, 1);
        config.message_bytes_max += usize::from(at == 0);
        config
    });
    world.joined();
    let longest = world.member(1).mesh.message_bytes_max();
    let says = |world: &mut World, bytes: usize| {
        let sent = world.member(0).mesh.send(rank(2), &vec![7; bytes], &[]);
        sent.unwrap();
        world.run(ms(100), |_| false);
        world.member(2).take();
        let counts = |at: usize| world.members[at].as_ref().unwrap().mesh.counts();
        (
            world.members[2].as_ref().unwrap().inbox[0].len(),
            counts(1).dropped,
            counts(2).dropped,
        )
    };
    assert_eq!(says(&mut world, longest), (1, 0, 0));
    assert_eq!(says(&mut world, longest + 1), (1, 1, 0));
}

/// Between two members the one of the higher rank connects. A peer that connects here and claims a lower rank is no member; nor is one
/// that claims a higher rank in another version.
#[test]
fn who_links_to_a_member_is_of_a_higher_rank() {
    for (version, claimed, is_member) in [
        (2, 0, false),
        (2, 1, false),
        (2, 2, true),
        (1, 2, false),
        (3, 2, false),
    ] {
        let mut world = World::of_hosts(3, &[(0, 1)], "");
        world.begin(1, 1);
        let host = world.hosts[0].clone();
        let node = Node::with(host.clone(), host, Trust::unauthenticated_on_purpose()).unwrap();
        let mut own = WorkerConfig::default();
        (own.slots, own.slot_bytes) = (128, 4096);
        let mut workers = node.workers(&own).unwrap();
        let mut links = Links::new(&node, &workers, &crate::world::config(0, 3, 1).link).unwrap();
        let handle = world.member(1).handle;
        let link = links.connect(&node, &workers, &handle).unwrap();
        // A frame of this mesh of 3, with start 1.
        let join = [
            &[version, claimed, claimed, 0, 0, 1, 0, 0][..],
            &[0; 8],
            &1_u64.to_be_bytes(),
            &[3],
        ]
        .concat();
        let mut has_said = false;
        let is_known = world.run(ms(500), |world| {
            has_said = has_said || links.send(link, &join).is_ok();
            links.poll(&node, &mut workers, |_, _| {}).unwrap();
            let member = world.member(1);
            let is_heard = (claimed != 1).then(|| member.mesh.started(rank(claimed.into())));
            member.events.contains(&MeshEvent::TurnedAway) || is_heard.flatten().is_some()
        });
        assert!(has_said && is_known, "{version} {claimed}");
        let was_turned_away = world.member(1).events.contains(&MeshEvent::TurnedAway);
        assert_eq!(was_turned_away, !is_member, "{version} {claimed}");
    }
}

#[test]
fn whoever_does_not_belong_is_turned_away() {
    let mut world = World::new(2, &[(0, 1)], "");
    world.joined();
    let mut other = crate::world::config(1, 2, 9);
    other.mesh = 77;
    let handle = world.member(0).handle;
    world.restart_as(1, &other, &handle);
    let lost = world.run(ms(20_000), |world| {
        world.member(0).events.contains(&MeshEvent::TurnedAway)
    });
    assert!(lost, "{:?}", world.member(0).events);
    let is_over = world.run(ms(5000), |world| {
        let closed = |event: &MeshEvent| {
            matches!(event, MeshEvent::LinkLost { reason, .. } if *reason == FinalReason::PeerClosed)
        };
        world.member(1).events.iter().any(closed)
    });
    assert!(is_over, "{:?}", world.member(1).events);
}
