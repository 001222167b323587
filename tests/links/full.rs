//! Links where there are as many as may be: another is refused before anything is made for it, and those there are stay whole.

use core::time::Duration;

use doorbell::ConnectError;
use doorbell::link::{HealthState, SessionEvent};
use doorbell_sim::{Host, PortConfig};

use crate::fabric::port;
use crate::processes::{A, B, LATENCY, Process, Two, config, ms, ports};

/// Returns the listener's last reason to refuse one of them.
fn refused(two: &Two) -> Option<ConnectError> {
    two.process(B).links.take_handshake_failure()
}

/// A process on a host of its own that goes on beside the two.
struct Third {
    process: Process,
    _host: Host,
}

impl Third {
    /// On a subnet with both.
    fn begins(two: &Two, ports: Vec<PortConfig>) -> Self {
        Self::on(two, two.fabric.host("c", ports).unwrap())
    }

    fn on(two: &Two, host: Host) -> Self {
        let process = Process::on(&host, &config(), false);
        Self::with(two, process, host)
    }

    /// Its devices are one host's, and its streams come from another.
    fn between(two: &Two, devices: Host, streams: &Host) -> Self {
        let process = Process::between(&devices, streams, &config(), false);
        Self::with(two, process, devices)
    }

    fn with(two: &Two, mut process: Process, host: Host) -> Self {
        process.connect(&two.process(B).handle.unwrap());
        Self { process, _host: host }
    }

    fn is_up(&self) -> bool {
        self.process.saw(SessionEvent::RailUp { rail: 0 }).is_some()
    }
}

/// Two processes, and B lets so many links be, and of one address so many.
fn with_room_for((links_max, links_per_address): (u32, u32), plan: &str) -> Two {
    let mut two = Two::waiting(2, plan);
    let mut own = config();
    (own.links_max, own.links_per_address) = (links_max, links_per_address);
    two.processes[B] = None;
    two.processes[B] = Some(Process::on(&two.hosts[B], &own, true));
    two
}

/// Runs all three; says how many queue pairs there were at most.
fn run(
    two: &mut Two,
    third: &mut Third,
    until: u64,
    is_done: impl Fn(&Two, &Third) -> bool,
) -> (bool, usize) {
    let (mut most, mut at) = (0, two.fabric.now().to_ns() / 1_000_000);
    loop {
        // Nobody wakes for the third.
        at = (at + 10).min(until);
        let is_done = two.run(ms(at), |two| {
            third.process.poll(two.fabric.now());
            most = most.max(two.fabric.queue_pairs());
            is_done(two, third)
        });
        if is_done || at == until {
            return (is_done, most);
        }
    }
}

#[test]
fn with_all_places_taken_another_link_is_refused_before_it_costs_a_queue_pair_and_rails_of_the_first_come_back()
 {
    let plan = "at 200ms link a/sim1-b/sim1 down for 200ms; at 1s link a/sim0-b/sim0 down for 300ms; at 1s link a/sim1-b/sim1 down for 300ms";
    let mut two = with_room_for((1, 1), plan);
    two.begin();
    two.connected(2);
    two.sends_every = [Some(ms(1)), Some(ms(1))];
    let before = two.process(B).links.handshakes();
    assert!(refused(&two).is_none());

    // Two at either end of each rail, and the one that asks for a third.
    let mut third = Third::begins(&two, vec![port("sim0", "10.0.0.3/24")]);
    let (_, most) = run(&mut two, &mut third, 190, |_, _| false);
    assert_eq!(most, 5);
    let after = two.process(B).links.handshakes();
    assert!(
        after.failed > before.failed && after.connected == before.connected,
        "{after:?}"
    );
    let why = refused(&two);
    assert!(matches!(why, Some(ConnectError::TooManyLinks { .. })), "{why:?}");

    // A rail that failed is let in again, and so is the link when it had none left.
    let state = |two: &Two, rail| {
        let process = two.process(A);
        process.links.rail_state(process.link.unwrap(), rail)
    };
    let (is_down, _) = run(&mut two, &mut third, 400, |two, _| {
        state(two, 1) == HealthState::Down
    });
    assert!(is_down);
    let (is_up, _) = run(&mut two, &mut third, 1000, |two, _| {
        state(two, 1) == HealthState::Up
    });
    assert!(is_up, "{:?}", two.process(A).events);
    let is_back = |two: &Two, _: &_| two.process(A).saw(SessionEvent::Recovered).is_some();
    assert!(
        run(&mut two, &mut third, 5000, is_back).0,
        "{:?}",
        two.process(A).events
    );
    assert!(!third.is_up() && third.process.over.is_none());

    // A refused peer comes in as soon as there is room.
    assert!(two.settle(ms(6000)), "{:?} {:?}", two.counts(A), two.counts(B));
    let (link, deadline) = (two.process(A).link.unwrap(), two.deadline(ms(500)));
    two.process_mut(A).links.close(link, deadline);
    assert!(two.run(ms(7000), |two| two.process(B).over.is_some()));
    two.process_mut(B).over = None;
    let (is_in, _) = run(&mut two, &mut third, 9900, |_, third| third.is_up());
    assert!(is_in, "{:?}", third.process.events);
    two.fabric.audit().unwrap();
}

#[test]
fn a_place_is_taken_by_who_is_on_the_way_and_of_two_the_other_never_hears_yes() {
    let mut two = with_room_for((1, 1), "");
    two.begin();
    // Both of A's rails, and one of the third, are on their way at once.
    let mut third = Third::begins(&two, ports(2, 1, 10_000));
    let (_, most) = run(&mut two, &mut third, 300, |_, _| false);
    let counts = two.process(B).links.handshakes();
    assert!(counts.failed > 0, "{counts:?}");
    assert!(matches!(refused(&two), Some(ConnectError::TooManyLinks { .. })));
    // It was not accepted and then refused.
    assert_eq!((counts.connected, most), (2, 5));
    assert!(!third.is_up());
    assert!(two.process(A).over.is_none() && third.process.over.is_none());
    two.fabric.audit().unwrap();
}

#[test]
fn an_address_has_no_more_links_than_one_may_though_there_are_places_left() {
    let mut two = with_room_for((4, 1), "");
    two.begin();
    // Its second rail is at another address, and of the same link.
    two.connected(2);
    two.sends_every = [Some(ms(1)), None];
    let mut again = Third::on(&two, two.hosts[A].clone());
    // Four of the first link, and at the second process one for each rail that it tries.
    let (is_in, most) = run(&mut two, &mut again, 300, |_, again| again.is_up());
    assert!(!is_in && most <= 6, "{most}");
    let why = refused(&two);
    assert!(
        matches!(why, Some(ConnectError::TooManyLinksFrom { .. })),
        "{why:?}"
    );
    // Somebody else is let in beside it, and the second process once the first is gone.
    let link = two.process_mut(B).link.take().unwrap();
    let mut other = Third::begins(&two, vec![port("sim0", "10.0.0.3/24")]);
    let (is_in, _) = run(&mut two, &mut other, 600, |_, other| other.is_up());
    assert!(is_in, "{:?}", other.process.events);
    assert_ne!(two.process_mut(B).link.replace(link), None);
    assert!(two.settle(ms(1000)), "{:?} {:?}", two.counts(A), two.counts(B));
    let (link, deadline) = (two.process(A).link.unwrap(), two.deadline(ms(500)));
    two.process_mut(A).links.close(link, deadline);
    assert!(two.run(ms(2000), |two| two.process(B).over.is_some()));
    two.process_mut(B).over = None;
    let (is_in, _) = run(&mut two, &mut again, 9000, |_, again| again.is_up());
    assert!(is_in, "{:?}", again.process.events);
}

/// A peer can make up the address in its Hello; it cannot make up the address of its stream.
#[test]
fn who_claims_the_address_of_another_takes_its_own_share_and_not_that_ones() {
    let mut two = with_room_for((4, 1), "");
    let other = two.fabric.host("c", vec![port("sim0", "10.0.0.3/24")]).unwrap();
    let own = two.fabric.host("d", vec![port("sim0", "10.0.0.4/24")]).unwrap();
    let mut liar = Third::between(&two, other.clone(), &own);
    let (is_in, _) = run(&mut two, &mut liar, 100, |_, liar| liar.is_up());
    assert!(is_in, "{:?}", liar.process.events);
    // B goes on with it, beside all others that it accepts.
    assert!(run(&mut two, &mut liar, 200, |two, _| two.process(B).link.is_some()).0);
    two.process_mut(B).link = None;

    // The peer at that address has all of its share, though the other's rails name the same.
    let mut honest = Third::on(&two, other);
    let (is_in, _) = run(&mut two, &mut honest, 500, |_, honest| honest.is_up());
    assert!(is_in, "{:?} {:?}", honest.process.events, refused(&two));
    assert!(run(&mut two, &mut honest, 600, |two, _| two.process(B).link.is_some()).0);
    two.process_mut(B).link = None;

    // And nothing is left of the share of where the other's stream came from.
    let mut again = Third::on(&two, own);
    let (is_in, _) = run(&mut two, &mut again, 1000, |_, again| again.is_up());
    let why = refused(&two);
    let is_of_own = matches!(why, Some(ConnectError::TooManyLinksFrom { address, .. }) if address.to_string() == "10.0.0.4");
    assert!(!is_in && is_of_own, "{why:?}");
}

#[test]
fn of_two_links_that_one_address_begins_at_once_one_has_a_place() {
    let mut two = Two::waiting(1, "");
    let mut own = config();
    own.links_per_address = 1;
    two.processes[B] = None;
    two.processes[B] = Some(Process::on(&two.hosts[B], &own, true));
    two.begin();
    let handle = two.process(B).handle.unwrap();
    let a = two.process_mut(A);
    a.beside = Some(Vec::new());
    let other = a.links.connect(&a.node, &a.workers, &handle).unwrap();
    let link = a.link.unwrap();
    two.run(ms(100), |_| false);
    let links = &two.process(A).links;
    assert_ne!(links.is_connected(link), links.is_connected(other));
    assert_eq!(two.process(B).links.ids().count(), 1);
    let why = refused(&two);
    assert!(
        matches!(why, Some(ConnectError::TooManyLinksFrom { .. })),
        "{why:?}"
    );
}

/// The rail's link has a place already, among all links and among those of its address.
#[test]
fn a_rail_that_is_on_its_way_takes_no_place_of_another_link() {
    for (limits, is_of_one_host) in [((2, 8), false), ((8, 2), true)] {
        let mut two = with_room_for(limits, "at 50ms link a/sim1-b/sim1 down for 300ms");
        two.begin();
        two.connected(2);
        two.process_mut(B).beside = Some(Vec::new());
        let begun = |two: &Two| two.process(B).links.handshakes().begun;
        let before = begun(&two);
        assert!(two.run(ms(3000), |two| begun(two) > before));
        // A has its Welcome by then, and B the Connect soon after. Nothing follows it.
        let soon = Duration::from_nanos(two.fabric.now().to_ns()) + LATENCY * 3 / 2;
        two.run(soon, |_| false);
        two.process_mut(A).is_stopped = true;
        let mut third = match is_of_one_host {
            true => Third::on(&two, two.hosts[A].clone()),
            false => Third::begins(&two, vec![port("sim0", "10.0.0.3/24")]),
        };
        let until = two.fabric.now().to_ns() / 1_000_000 + 100;
        let rails = if is_of_one_host { 2 } else { 1 };
        let is_in = |_: &Two, third: &Third| {
            (0..rails).all(|rail| third.process.saw(SessionEvent::RailUp { rail }).is_some())
        };
        assert!(
            run(&mut two, &mut third, until, is_in).0,
            "{:?}",
            third.process.events
        );
        let why = refused(&two);
        assert!(why.is_none(), "{why:?}");
    }
}
