//! Links between ports of several addresses: one port is one rail.

use std::sync::Arc;

use doorbell::RailFilter;
use doorbell::link::{FinalReason, HealthState, SessionEvent};
use doorbell_sim::PortConfig;

use crate::fabric::prefix;
use crate::processes::{A, B, Process, Two, config, ms};

fn port(device: &str, addresses: &[&str]) -> PortConfig {
    let addresses: Vec<_> = addresses.iter().map(|address| prefix(address)).collect();
    PortConfig::new(device, &addresses)
}

/// How many connections each process has.
fn channels(two: &Two) -> [usize; 2] {
    [A, B].map(|at| {
        let workers = &two.process(at).workers;
        workers.iter().map(|worker| worker.channels().count()).sum()
    })
}

#[test]
fn two_ports_of_two_families_are_one_rail() {
    let at = |host: u8| {
        vec![port(
            "sim0",
            &[&format!("10.0.0.{host}/24"), &format!("fd00::{host}/64")],
        )]
    };
    let mut two = Two::between([at(1), at(2)], "", None);
    two.connected(1);
    two.run(ms(300), |_| false);
    assert_eq!(channels(&two), [1, 1]);
    two.sends_every = [Some(ms(1)), Some(ms(1))];
    two.run(ms(400), |_| false);
    assert!(two.settle(ms(600)));
    two.fabric.audit().unwrap();
}

/// Ports with addresses of both families, and one that is of their link alone: a handle has room for two of them.
fn eight(host: u8) -> Vec<PortConfig> {
    let of_port = |number: u8| {
        let addresses = [
            format!("fe80::{number}:{host}/64"),
            format!("fd00:{number}::{host}/64"),
            format!("10.0.{number}.{host}/24"),
        ];
        port(&format!("sim{number}"), &addresses.each_ref().map(String::as_str))
    };
    (0..8).map(of_port).collect()
}

#[test]
fn all_ports_are_rails_however_many_a_handle_has_room_for() {
    let mut two = Two::between([eight(1), eight(2)], "", None);
    let handle = two.process(B).handle.unwrap();
    assert!(handle.has_more());
    assert!(handle.rails().iter().count() >= 8);
    two.connected(8);
    assert_eq!(channels(&two), [8, 8]);
    two.sends_every = [Some(ms(1)), Some(ms(1))];
    two.run(ms(300), |_| false);
    assert!(two.settle(ms(500)));
    assert_eq!(channels(&two), [8, 8]);
    two.fabric.audit().unwrap();
}

/// The handle has an address of as many ports as can be.
#[test]
fn a_peer_is_found_by_its_last_port() {
    let mut two = Two::between([vec![port("sim7", &["10.0.7.1/24"])], eight(2)], "", None);
    two.connected(1);
    assert_eq!(channels(&two), [1, 1]);
    two.fabric.audit().unwrap();
}

/// Eight ports of IPv6, of which a handle has room for five, and a host on the last ones.
fn asked(plan: &str) -> Two {
    asked_by(4..8, plan)
}

fn asked_by(asking: core::ops::Range<u8>, plan: &str) -> Two {
    let of = |host: u8, ports: core::ops::Range<u8>| {
        let address = |number| format!("fd00:{number}::{host}/64");
        let ports = ports.map(|number| port(&format!("sim{number}"), &[&address(number)]));
        ports.collect()
    };
    let two = Two::apart([of(1, asking), of(2, 0..8)], plan, None);
    assert_eq!(two.process(B).handle.unwrap().rails().iter().count(), 5);
    two
}

#[test]
fn rails_that_a_handle_has_no_room_for_are_asked_for() {
    let mut two = asked("");
    two.begin();
    two.connected(4);
    assert_eq!(channels(&two), [4, 4]);
    // If nobody answers at first, the node asks again.
    let mut two = asked("at 0ms link a-b down for 1s");
    two.begin();
    assert!(
        two.run(ms(5000), |two| channels(two) == [4, 4]),
        "{:?}",
        two.process(A).events
    );
    two.sends_every = [Some(ms(1)), Some(ms(1))];
    two.run(ms(5500), |_| false);
    assert!(two.settle(ms(6000)));
    two.fabric.audit().unwrap();
}

/// A new port may reach a rail that the handle has no room for.
#[test]
fn a_peer_is_asked_for_its_rails_again_once_this_host_has_another_port() {
    let mut two = asked("");
    let filter = "^sim5,^sim6,^sim7".parse().unwrap();
    Arc::get_mut(&mut two.process_mut(A).node)
        .unwrap()
        .set_rail_filter(filter);
    two.begin();
    two.connected(1);
    two.run(ms(300), |_| false);
    assert_eq!(channels(&two), [1, 1]);
    let Process {
        links, workers, node, ..
    } = two.process_mut(A);
    Arc::get_mut(node).unwrap().set_rail_filter(RailFilter::default());
    links.refresh(node, workers).unwrap();
    assert!(two.run(ms(3000), |two| channels(two) == [4, 4]));
    two.fabric.audit().unwrap();
}

#[test]
fn a_peer_that_no_rail_of_its_handle_leads_to_is_asked_over_any_network() {
    let mut two = asked("");
    // The handle's address is on a network for TCP alone.
    let node = &mut two.process_mut(A).node;
    let filter = "^sim4".parse().unwrap();
    Arc::get_mut(node).unwrap().set_rail_filter(filter);
    two.begin();
    two.connected(3);
    assert_eq!(channels(&two), [3, 3]);
    two.fabric.audit().unwrap();
}

/// Nothing is tried for ever: a link that no rail can be found for ends like one whose rails all fail.
#[test]
fn a_peer_that_says_of_no_rail_that_reaches_it_is_given_up() {
    let mut two = asked("");
    let node = &mut two.process_mut(A).node;
    let filter = "^sim*,^sim4".parse().unwrap();
    Arc::get_mut(node).unwrap().set_rail_filter(filter);
    two.begin();
    assert!(two.run(ms(12_000), |two| two.process(A).over.is_some()));
    assert_eq!(two.process(A).over, Some(FinalReason::Unreachable));
    assert_eq!(channels(&two), [0, 0]);
    assert!(two.process(B).links.handshakes().begun < 40);
    two.fabric.audit().unwrap();
}

/// The rails of the process are not those of the peer, and none of them is connected.
#[test]
fn a_process_that_is_asked_in_the_place_of_the_peer_says_nothing_of_its_rails() {
    let mut two = asked("");
    let handle = two.process(B).handle.unwrap();
    two.processes[B] = None;
    two.processes[B] = Some(Process::on(&two.hosts[B], &config(), true));
    let node = &mut two.process_mut(A).node;
    let filter = "^sim4".parse().unwrap();
    Arc::get_mut(node).unwrap().set_rail_filter(filter);
    two.process_mut(A).connect(&handle);
    assert!(two.run(ms(12_000), |two| two.process(A).over.is_some()));
    assert_eq!(two.process(A).over, Some(FinalReason::Unreachable));
    assert!(two.process(B).links.handshakes().begun > 0);
    two.fabric.audit().unwrap();
}

/// The reasons of the link from A, once it is over.
fn given_up(mut two: Two) -> Vec<String> {
    two.begin();
    let link = two.process(A).link.unwrap();
    let why = |two: &Two| {
        let reasons = two.process(A).links.not_connected(link);
        reasons
            .map(|reason| format!("{:?}", reason.why))
            .collect::<Vec<_>>()
    };
    assert!(why(&two).iter().any(|why| why.starts_with("NoRoute")));
    assert!(two.run(ms(12_000), |two| two.process(A).over.is_some()));
    assert_eq!(two.process(A).over, Some(FinalReason::Unreachable));
    why(&two)
}

/// A link is asked for more rails, which comes to nothing: at an address that no network reaches, and by a peer that is gone.
#[test]
fn a_link_that_finds_no_rail_says_why() {
    let is_one = |why: &[String], name: &str| why.len() == 1 && why[0].starts_with(name);
    let why = given_up(asked_by(5..8, ""));
    assert!(is_one(&why, "Tcp"), "{why:?}");
    let mut two = asked("at 0ms link a-b down");
    let node = &mut two.process_mut(A).node;
    Arc::get_mut(node)
        .unwrap()
        .set_rail_filter("^sim*,^sim4".parse().unwrap());
    let why = given_up(two);
    assert!(is_one(&why, "Unanswered"), "{why:?}");
}

#[test]
fn a_port_that_two_lead_to_has_one_rail_and_the_other_once_that_is_lost() {
    let a = vec![port("sim0", &["10.0.0.1/24"]), port("sim1", &["10.0.1.1/24"])];
    let b = vec![port("sim0", &["10.0.0.2/24", "10.0.1.2/24"])];
    let mut two = Two::between([a, b], "at 100ms link a/sim0-b/sim0 down for 400ms", None);
    two.connected(1);
    two.sends_every = [Some(ms(1)), Some(ms(1))];
    two.run(ms(95), |_| false);
    let link = two.process(A).link.unwrap();
    let state = |two: &Two, rail| two.process(A).links.rail_state(link, rail);
    assert_eq!(
        (state(&two, 0), state(&two, 1)),
        (HealthState::Up, HealthState::Down)
    );
    // The peer sends a farewell to the one that it refused, and waits for processes that are gone.
    assert_eq!(channels(&two)[0], 1);
    assert_eq!(two.counts(A).rails_dead, 0);
    // The peer's port is reached from the other one, as soon as the first is known to be lost.
    assert!(
        two.run(ms(300), |two| state(two, 1) == HealthState::Up),
        "{:?}",
        two.process(A).events
    );
    // The first is back, and stands by in its turn.
    two.run(ms(2500), |_| false);
    assert_eq!(
        (state(&two, 0), state(&two, 1)),
        (HealthState::Down, HealthState::Up)
    );
    assert_eq!(channels(&two), [1, 1]);
    assert!(two.process(A).saw(SessionEvent::RailUp { rail: 0 }).is_some());
    assert!(two.settle(ms(3000)), "{:?} {:?}", two.counts(A), two.counts(B));
    two.fabric.audit().unwrap();
}

#[test]
fn where_one_rail_stays_dark_the_other_is_had_though_the_peer_noticed_later() {
    let a = vec![port("sim0", &["10.0.0.1/24"]), port("sim1", &["10.0.1.1/24"])];
    let b = vec![port("sim0", &["10.0.0.2/24", "10.0.1.2/24"])];
    for at_us in (100_000..160_000).step_by(9_500) {
        let plan = format!("at {at_us}us link a/sim0-b/sim0 down");
        let mut two = Two::between([a.clone(), b.clone()], &plan, None);
        two.connected(1);
        two.sends_every = [Some(ms(1)), None];
        two.run(ms(95), |_| false);
        let link = two.process(A).link.unwrap();
        let is_up = |two: &Two| two.process(A).links.rail_state(link, 1) == HealthState::Up;
        // The peer does not insist on one that it is in doubt of itself.
        let until = ms(at_us / 1000 + 200);
        assert!(two.run(until, is_up), "{at_us}: {:?}", two.process(A).events);
        assert!(two.settle(ms(4000)), "{:?} {:?}", two.counts(A), two.counts(B));
        two.fabric.audit().unwrap();
    }
}
