//! Links to a peer that is reached otherwise by now: what it says of it, and what it is asked.

use core::net::SocketAddr;
use std::sync::Arc;

use doorbell::connect::HandshakeLimits;
use doorbell::link::{FinalReason, HealthState, Sequence, SessionEvent};
use doorbell::provider::{AsyncEvent, PortState};
use doorbell::wire::{Attach, AttachParameters, Fit, SessionFrame, SessionHeader};
use doorbell::{Event, Handle, KeyRing, Listener, Node, Operation, Trust};
use doorbell_sim::Host;

use crate::fabric::{key, port};
use crate::processes::{A, B, PORT, Process, Two, config, ms, ports_of_one_device};

const CHANGED: &str = "at 50ms gid b/sim0:1 10.0.0.2 becomes 10.0.0.99";

fn ups(two: &Two, rail: u8) -> usize {
    let up = |(_, event): &&(_, SessionEvent)| *event == SessionEvent::RailUp { rail };
    two.process(A).events.iter().filter(up).count()
}

/// Runs until B's device has said that an address changed, and has B look.
fn refreshed(two: &mut Two) -> Handle {
    two.run(ms(60), |_| false);
    let Process {
        links, workers, node, ..
    } = two.process_mut(B);
    let mut events = Vec::new();
    for worker in workers.iter_mut() {
        while let Some(event) = worker.next_event().unwrap() {
            events.push(event);
        }
    }
    assert!(
        events
            .iter()
            .any(|event| matches!(event, AsyncEvent::GidChange(1))),
        "{events:?}"
    );
    let mut refreshed = || {
        links.refresh(node, workers).unwrap();
        links.take_refreshed().unwrap().unwrap()
    };
    let handle = refreshed().unwrap();
    assert_eq!(refreshed(), None);
    assert!(links.take_refreshed().is_none());
    assert_eq!(links.handle(), Some(&handle));
    let addresses: Vec<_> = handle
        .rails()
        .iter()
        .map(|rail| rail.address().to_string())
        .collect();
    assert_eq!(addresses, ["10.0.0.99/24", "10.0.1.2/24"]);
    handle
}

#[test]
fn a_change_that_nobody_took_yet_is_reported_after_a_scan_without_one() {
    let mut two = Two::new(2, CHANGED);
    two.connected(2);
    two.run(ms(60), |_| false);
    let Process {
        links, workers, node, ..
    } = two.process_mut(B);
    for _ in 0..2 {
        links.refresh(node, workers).unwrap();
    }
    let handle = links.take_refreshed().unwrap().unwrap();
    assert!(handle.is_some() && handle.as_ref() == links.handle());
}

#[test]
fn a_listener_whose_address_changes_says_so_and_is_connected_by_the_new_one() {
    let mut two = Two::new(2, CHANGED);
    two.connected(2);
    two.sends_every = [Some(ms(1)), Some(ms(1))];
    refreshed(&mut two);
    assert!(
        two.run(ms(5000), |two| ups(two, 0) == 2),
        "{:?}",
        two.process(A).events
    );
    assert!(two.settle(ms(6000)), "{:?} {:?}", two.counts(A), two.counts(B));
    assert_eq!(two.process(A).saw(SessionEvent::Recovering), None);
    two.fabric.audit().unwrap();
}

#[test]
fn who_goes_by_an_older_handle_again_is_told_anew_on_the_next_connection() {
    let plan =
        format!("{CHANGED}\nat 5100ms port a/sim0:1 down for 1000ms\nat 8000ms port b/sim1:1 down for 500ms");
    let mut two = Two::new(2, &plan);
    two.connected(2);
    let old = two.process(B).handle.unwrap();
    two.sends_every = [Some(ms(1)), Some(ms(1))];
    refreshed(&mut two);
    assert!(two.run(ms(5000), |two| ups(two, 0) == 2));
    assert!(two.process_mut(A).reroute(&old));
    // Its connection is lost, and there is none at the old address.
    two.run(ms(8000), |_| false);
    assert_eq!((ups(&two, 0), ups(&two, 1)), (2, 1));
    assert!(
        two.run(ms(20_000), |two| ups(two, 0) == 3),
        "{:?}",
        two.process(A).events
    );
    assert!(two.settle(ms(21_000)), "{:?} {:?}", two.counts(A), two.counts(B));
    two.fabric.audit().unwrap();
}

/// No other event would report its end.
#[test]
fn a_link_that_is_over_by_another_handle_wakes_who_polls() {
    let mut two = Two::waiting(1, "");
    let whole = two.process(B).handle.unwrap();
    // As long as it may have more rails, one of them may be reached.
    let mut partial = Handle::builder(whole.port(), whole.instance());
    while partial.push(&whole.rails().iter().next().unwrap()) == Fit::Included {}
    let filter = "^sim*".parse().unwrap();
    let node = &mut two.process_mut(A).node;
    Arc::get_mut(node).unwrap().set_rail_filter(filter);
    two.process_mut(A).connect(&partial.finish().unwrap());
    let now = two.fabric.now();
    let process = two.process_mut(A);
    assert!(process.reroute(&whole));
    assert!(process.links.wake(now).unwrap().has_passed(now));
    two.run(ms(5), |two| two.process(A).over.is_some());
    assert_eq!(two.process(A).over, Some(FinalReason::Unreachable));
}

#[test]
fn whoever_connected_has_a_port_that_is_new_by_looking_again() {
    let mut ports = [1, 2].map(ports_of_one_device);
    ports[A][1].state = PortState::DOWN;
    let mut two = Two::between(ports, "at 50ms port a/sim0:2 up", None);
    two.connected(1);
    two.sends_every = [Some(ms(1)), Some(ms(1))];
    two.run(ms(100), |_| false);
    assert_eq!(ups(&two, 1), 0);
    let Process {
        links, workers, node, ..
    } = two.process_mut(A);
    // It has no listener, and so no handle to announce.
    links.refresh(node, workers).unwrap();
    assert_eq!(links.take_refreshed().unwrap().unwrap(), None);
    assert!(
        two.run(ms(200), |two| ups(two, 1) == 1),
        "{:?}",
        two.process(A).events
    );
    // Rails that are there already do not come twice.
    let Process {
        links, workers, node, ..
    } = two.process_mut(A);
    links.refresh(node, workers).unwrap();
    two.run(ms(400), |_| false);
    assert_eq!((ups(&two, 0), ups(&two, 1)), (1, 1));
    assert!(two.settle(ms(600)), "{:?} {:?}", two.counts(A), two.counts(B));
    two.fabric.audit().unwrap();
}

#[test]
fn where_handshakes_are_done_elsewhere_peers_are_told_all_the_same() {
    let mut two = Two::waiting(2, CHANGED);
    two.processes[B] = None;
    let mut b = Process::on(&two.hosts[B], &config(), false);
    let any = SocketAddr::from(([0, 0, 0, 0], PORT));
    let listener = Listener::bind(&b.node, &b.workers, any, &config().channel).unwrap();
    let limits = HandshakeLimits::default();
    let (mut handshakes, acceptances) = listener.aside(&b.node, &b.workers, &limits);
    b.links.accept_from(acceptances);
    assert_eq!(b.links.handle(), Some(handshakes.handle()));
    b.handle = b.links.handle().copied();
    two.processes[B] = Some(b);
    two.begin();
    two.sends_every = [Some(ms(1)), Some(ms(1))];
    let both_up = |two: &Two| ups(two, 0) == 1 && ups(two, 1) == 1;
    assert!(two.run(ms(40), |two| {
        handshakes.poll();
        both_up(two)
    }));
    refreshed(&mut two);
    assert!(
        two.run(ms(5000), |two| {
            handshakes.poll();
            ups(two, 0) == 2
        }),
        "{:?}",
        two.process(A).events
    );
    assert!(two.settle(ms(6000)), "{:?} {:?}", two.counts(A), two.counts(B));
    two.fabric.audit().unwrap();
}

#[test]
fn one_that_says_nothing_is_not_guessed_at() {
    let mut two = Two::new(2, CHANGED);
    two.connected(2);
    two.sends_every = [Some(ms(1)), Some(ms(1))];
    two.run(ms(5000), |_| false);
    let link = two.process(A).link.unwrap();
    assert_eq!(two.process(A).links.rail_state(link, 0), HealthState::Down);
    // By its handle, that has come another way, it is found all the same; by that of another process it is not.
    let handle = refreshed(&mut two);
    let stranger = Process::on(&two.hosts[A], &config(), true);
    let process = two.process_mut(A);
    assert!(!process.reroute(&stranger.handle.unwrap()));
    assert!(process.reroute(&handle));
    assert!(
        two.run(ms(8000), |two| ups(two, 0) == 2),
        "{:?}",
        two.process(A).events
    );
}

/// If it were taken, the peer could lead the link to another process, which would be let in as this side's peer.
#[test]
fn an_announcement_that_names_another_process_is_refused() {
    let mut two = Two::waiting(1, "at 60ms link a-b down for 250ms");
    let third = two.fabric.host("c", vec![port("sim0", "10.0.0.3/24")]).unwrap();
    let mut other = Process::on(&third, &config(), true);
    // B's part is done by hand.
    let Process {
        node, mut workers, ..
    } = two.processes[B].take().unwrap();
    let any = SocketAddr::from(([0, 0, 0, 0], PORT));
    let mut listener = Listener::bind(&node, &workers, any, &config().channel).unwrap();
    two.process_mut(A).connect(listener.handle());
    let mut epochs = Vec::new();
    let announced = other.handle.unwrap();
    let mut go_on = |two: &Two| {
        let _ = listener.poll_accept(&node, &mut workers).unwrap();
        for worker in &mut workers {
            let mut attached = Vec::new();
            let polled = worker.poll_tending(|turn, event| {
                let Event::Received { message, .. } = event else {
                    return;
                };
                if let Ok(SessionFrame::Attach(said)) = SessionFrame::parse(message.payload()) {
                    let answer = AttachParameters {
                        begins: false,
                        ..said
                    };
                    let _ = turn
                        .channel
                        .post_inline(Operation::Send, &Attach::new(&answer).to_bytes());
                    attached.push((turn.channel.id(), said.epoch));
                }
            });
            polled.unwrap();
            for (channel, epoch) in attached {
                let header = SessionHeader::moved(epoch, Sequence(epochs.len() as u64 + 1)).to_bytes();
                let mut lease = worker.lease().unwrap();
                lease.fill(&[&header, announced.as_bytes()].concat()).unwrap();
                let there = worker.channel(channel).unwrap();
                assert!(there.send_lease(lease).is_ok());
                epochs.push((epoch, two.fabric.now()));
            }
        }
        other.poll(two.fabric.now());
        false
    };
    two.run(ms(1500), |two| go_on(two));
    // Each time the link leads where it led before.
    assert!(epochs.len() >= 2, "{epochs:?}");
    assert_eq!(other.links.handshakes().begun, 0);
    let a = two.process(A);
    let link = a.link.unwrap();
    assert_eq!((a.over, a.links.is_connected(link)), (None, true));
}

/// Returns the handle, or the error, that a node gets from the listener at an address.
fn asked(two: &mut Two, node: &Arc<Node<Host, Host>>, to: SocketAddr) -> Result<Handle, String> {
    let mut asking = node
        .begin_ask(to, two.deadline(ms(500)))
        .map_err(|error| error.to_string())?;
    let mut outcome = None;
    let until = ms(two.fabric.now().to_ns() / 1_000_000 + 1000);
    assert!(two.run(until, |_| {
        outcome = asking.poll(node);
        outcome.is_some()
    }));
    outcome.unwrap().map_err(|error| error.to_string())
}

#[test]
fn a_listener_is_asked_for_its_handle_at_any_of_its_addresses() {
    let mut two = Two::new(2, "");
    two.connected(2);
    let known = two.process(B).handle.unwrap();
    let node = Arc::clone(&two.process(A).node);
    for address in ["10.0.0.2", "10.0.1.2"] {
        let to = SocketAddr::new(address.parse().unwrap(), PORT);
        assert_eq!(asked(&mut two, &node, to), Ok(known));
    }
    // The port has no listener, or one without the key.
    let nobody = SocketAddr::from(([10, 0, 0, 2], PORT + 1));
    assert!(asked(&mut two, &node, nobody).is_err());
    let host = two.hosts[A].clone();
    let stranger =
        Arc::new(Node::with(host.clone(), host, Trust::keys(KeyRing::new(key(1, "another")))).unwrap());
    let there = SocketAddr::from(([10, 0, 0, 2], PORT));
    assert!(asked(&mut two, &stranger, there).is_err());
    // The links did not notice.
    assert_eq!((two.counts(A).rails_dead, two.counts(B).rails_dead), (0, 0));
}
