//! The example over the simulated fabric, a server and its clients in one process; what its API does where something is wrong;
//! and that what the clients check can fail.

use core::time::Duration;
use std::sync::Barrier;

use clap::Parser as _;
use doorbell::Clock as _;
use doorbell_sim::Host;

use super::around::simulated::{self, Simulated as Node};
use super::endpoint::{Endpoint, Error, Kind, PROBE_EVERY, PeerId, Round, Settings, Why};
use super::{All, Arguments, Hearing, Joined, PROGRAM, Role, Served, all, statement};

fn run(arguments: &[&str]) -> All<Served, Joined> {
    let program = [PROGRAM, "simulated"].iter().chain(arguments);
    let Role::Simulated(simulated) = Arguments::try_parse_from(program).unwrap().role else {
        panic!("another role");
    };
    all(&simulated).unwrap()
}

#[test]
fn everybody_hears_everybody() {
    let found = run(&["--clients", "3", "--rounds", "20"]);
    assert_eq!(found.failures, [""; 0]);
    assert_eq!((found.listener.clients, found.listener.rounds), (3, 20));
    assert_eq!(found.listener.answered, 30);
    for client in &found.connected {
        assert_eq!((client.rounds, client.heard, client.answers), (20, 60, 10));
    }
}

#[test]
fn sixty_four_clients_are_served() {
    let found = run(&["--clients", "64", "--rounds", "3", "--questions", "2"]);
    assert_eq!(found.failures, [""; 0]);
    assert_eq!(found.connected.len(), 64);
    assert_eq!(found.listener.answered, 128);
    assert!(found.connected.iter().all(|client| client.heard == 3 * 64));
}

#[test]
fn the_others_go_on_where_one_leaves() {
    let found = run(&["--clients", "3", "--rounds", "10", "--leave-after", "4"]);
    assert_eq!(found.failures, [""; 0]);
    assert_eq!((found.listener.rounds, found.listener.left_early), (10, 1));
    let heard: Vec<_> = found.connected.iter().map(|client| client.heard).collect();
    assert_eq!(heard, [12, 24, 24]);
}

/// A server and clients that do as they are told.
fn between<L: Send, C: Send>(
    clients: u8,
    server: impl FnOnce(&Node, &mut Endpoint<'_, Host, Host>) -> L + Send,
    client: impl Fn(&Node, &mut Endpoint<'_, Host, Host>) -> C + Sync,
) -> (L, Vec<C>) {
    let settings = settings(clients);
    let outcome = simulated::together(
        clients,
        |node, announce| {
            let mut endpoint = Endpoint::init(node, &settings)?;
            announce(endpoint.listen("[::]:0".parse()?)?)?;
            for _ in 0..clients {
                endpoint.accept(node.within(Duration::from_secs(60)))?;
            }
            let outcome = server(node, &mut endpoint);
            let peers: Vec<_> = endpoint.peers().collect();
            for peer in peers {
                let left = endpoint.recv(peer, long(node)).unwrap_err();
                assert!(matches!(left, Error::Gone { why: Why::Left, .. }), "{left}");
                endpoint.disconnect(peer, long(node))?;
            }
            Ok(outcome)
        },
        |_, node, handle| {
            let mut endpoint = Endpoint::init(node, &settings)?;
            endpoint.connect(handle, node.within(Duration::from_secs(60)))?;
            Ok(client(node, &mut endpoint))
        },
    );
    outcome.unwrap()
}

fn settings(peers_max: u8) -> Settings {
    Settings {
        peers_max: peers_max.into(),
        message_bytes_max: 256,
        messages_max: 4,
    }
}

fn long(node: &Node) -> doorbell::Deadline {
    node.within(Duration::from_secs(60))
}

fn short(node: &Node) -> doorbell::Deadline {
    node.within(Duration::from_millis(5))
}

/// The only peer.
fn only(endpoint: &Endpoint<'_, Host, Host>) -> PeerId {
    endpoint.peers().next().unwrap()
}

#[test]
fn who_is_not_heard_waits_and_loses_nothing() {
    let full = Barrier::new(2);
    between(
        1,
        |node, server| {
            full.wait();
            let client = only(server);
            for number in 0..5 {
                assert_eq!(server.recv(client, long(node)).unwrap(), [number; 3]);
            }
        },
        |node, client| {
            let server = only(client);
            for number in 0..4 {
                client.send(server, &[number; 3], long(node)).unwrap();
            }
            let late = client.send(server, &[4; 3], short(node)).unwrap_err();
            assert_eq!(
                late.to_string(),
                "no room for a message to peer 0 by the deadline"
            );
            full.wait();
            client.send(server, &[4; 3], long(node)).unwrap();
            client.disconnect(server, long(node)).unwrap();
        },
    );
}

#[test]
fn whoever_was_heard_waits_for_the_others() {
    let said = Barrier::new(4);
    between(
        3,
        |node, server| {
            server.broadcast(b"speak", long(node)).unwrap();
            said.wait();
            let speakers: Vec<_> = (0..6).map(|_| server.recv_any(long(node)).unwrap().0).collect();
            let (mut first, second) = (speakers[..3].to_vec(), &speakers[3..]);
            assert_eq!(first, second);
            first.sort();
            assert_eq!(first, server.peers().collect::<Vec<_>>());
        },
        |node, client| {
            let server = only(client);
            assert_eq!(client.recv(server, long(node)).unwrap(), b"speak");
            for message in [b"one", b"two"] {
                client.send(server, message, long(node)).unwrap();
            }
            said.wait();
            client.disconnect(server, long(node)).unwrap();
        },
    );
}

#[test]
fn a_round_that_is_late_can_be_done_again() {
    let late = Barrier::new(2);
    between(
        1,
        |node, server| {
            let client = only(server);
            let error = server.serve_all_to_all(short(node)).unwrap_err();
            assert!(
                matches!(error, Error::TimedOut { peer, .. } if peer == Some(client)),
                "{error}"
            );
            late.wait();
            // A message stands before it.
            let error = server.serve_all_to_all(long(node)).unwrap_err();
            assert!(
                matches!(error, Error::OutOfStep(peer) if peer == client),
                "{error}"
            );
            assert_eq!(server.recv(client, long(node)).unwrap(), b"first");
            let error = server.recv(client, long(node)).unwrap_err();
            assert!(
                matches!(error, Error::OutOfStep(peer) if peer == client),
                "{error}"
            );
            assert_eq!(server.serve_all_to_all(long(node)).unwrap(), []);
        },
        |node, client| {
            let server = only(client);
            late.wait();
            client.send(server, b"first", long(node)).unwrap();
            let round = client.all_to_all(server, b"then", long(node)).unwrap();
            assert_eq!((round.own, round.messages), (0, vec![Some(b"then".to_vec())]));
            client.disconnect(server, long(node)).unwrap();
        },
    );
}

/// What the server says late is no answer in the next round.
#[test]
fn a_round_that_timed_out_is_the_last_one() {
    let late = Barrier::new(2);
    between(
        1,
        |node, server| {
            late.wait();
            assert_eq!(server.serve_all_to_all(long(node)).unwrap(), []);
            late.wait();
        },
        |node, client| {
            let server = only(client);
            let error = client.all_to_all(server, b"first", short(node)).unwrap_err();
            assert!(matches!(error, Error::TimedOut { .. }), "{error}");
            late.wait();
            let error = client.all_to_all(server, b"second", long(node)).unwrap_err();
            assert!(matches!(error, Error::RoundBroken), "{error}");
            late.wait();
            client.disconnect(server, long(node)).unwrap();
        },
    );
}

#[test]
fn who_leaves_is_heard_to_the_end() {
    between(
        1,
        |node, server| {
            let client = only(server);
            let is_gone = |error| matches!(error, Error::Gone { peer, why: Why::Left } if peer == client);
            assert_eq!(server.recv_any(long(node)).unwrap(), (client, b"last".to_vec()));
            assert!(is_gone(server.recv(client, long(node)).unwrap_err()));
            assert!(is_gone(server.send(client, b"?", long(node)).unwrap_err()));
            assert!(is_gone(server.recv_any(long(node)).unwrap_err()));
            assert_eq!(server.serve_all_to_all(long(node)).unwrap(), [client]);
            server.disconnect(client, long(node)).unwrap();
            let error = server.recv(client, long(node)).unwrap_err();
            assert!(
                matches!(error, Error::NoSuchPeer(peer) if peer == client),
                "{error}"
            );
        },
        |node, client| {
            let server = only(client);
            client.send(server, b"last", long(node)).unwrap();
            client.disconnect(server, long(node)).unwrap();
        },
    );
}

#[test]
fn who_dies_is_missed_by_who_sends() {
    let dead = Barrier::new(2);
    simulated::together(
        1,
        |node, announce| {
            let mut server = Endpoint::init(node, &settings(1))?;
            announce(server.listen("[::]:0".parse()?)?)?;
            let client = server.accept(long(node))?;
            dead.wait();
            let error = server.recv(client, short(node)).unwrap_err();
            assert!(matches!(error, Error::TimedOut { .. }), "{error}");
            server.send(client, b"?", long(node)).unwrap();
            let error = server.recv(client, long(node)).unwrap_err();
            assert!(
                matches!(error, Error::Gone { peer, why: Why::Failed(_) } if peer == client),
                "{error}"
            );
            assert!(server.disconnect(client, long(node)).is_err());
            Ok(())
        },
        |_, node, handle| {
            let mut client = Endpoint::init(node, &settings(1))?;
            client.connect(handle, long(node))?;
            drop(client);
            dead.wait();
            Ok(())
        },
    )
    .unwrap();
}

/// Who only waits learns of it, and in time; one that lives and is silent is waited for.
#[test]
fn who_dies_is_missed_by_who_waits() {
    let (met, dead) = (Barrier::new(2), Barrier::new(2));
    simulated::together(
        1,
        |node, announce| {
            let mut server = Endpoint::init(node, &settings(1))?;
            announce(server.listen("[::]:0".parse()?)?)?;
            let client = server.accept(long(node))?;
            let error = server.recv(client, node.within(PROBE_EVERY * 4)).unwrap_err();
            assert!(matches!(error, Error::TimedOut { .. }), "{error}");
            met.wait();
            dead.wait();
            let began = node.network().now();
            let error = server.recv_any(long(node)).unwrap_err();
            assert!(
                matches!(error, Error::Gone { peer, why: Why::Failed(_) } if peer == client),
                "{error}"
            );
            let took_ns = node.network().now().to_ns() - began.to_ns();
            assert!(
                u128::from(took_ns) < PROBE_EVERY.as_nanos() * 7 / 2,
                "{took_ns} ns"
            );
            Ok(())
        },
        |_, node, handle| {
            let mut client = Endpoint::init(node, &settings(1))?;
            client.connect(handle, long(node))?;
            met.wait();
            drop(client);
            dead.wait();
            Ok(())
        },
    )
    .unwrap();
}

#[test]
fn what_cannot_be_is_said_at_once() {
    between(
        1,
        |node, server| {
            assert!(matches!(server.accept(long(node)), Err(Error::Full)));
            assert_eq!(server.recv(only(server), long(node)).unwrap(), [7; 256]);
        },
        |node, client| {
            let server = only(client);
            let error = client.send(server, &[7; 257], long(node)).unwrap_err();
            assert_eq!(
                error.to_string(),
                "a message of 257 bytes to peer 0, which takes 256"
            );
            client.send(server, &[7; 256], long(node)).unwrap();
            client.disconnect(server, long(node)).unwrap();
            assert!(matches!(client.accept(long(node)), Err(Error::NotListening)));
            assert!(matches!(
                client.disconnect(server, long(node)),
                Err(Error::NoSuchPeer(_))
            ));
        },
    );
}

#[test]
fn what_came_twice_is_taken_once() {
    let word = Kind::Heard.word(5);
    assert_eq!(Kind::of(word, 5), Some(Kind::Heard));
    assert_eq!(Kind::of(word, 6), None);
    // Numbers wrap where the word has no room for more of them.
    assert_eq!(Kind::of(Kind::Plain.word(u32::MAX), u32::MAX), Some(Kind::Plain));
}

#[test]
fn a_round_is_read_whole_or_not_at_all() {
    let mut joined = Round::join(&[Some(b"one"), None, Some(b"")]);
    Round::address(&mut joined, 2);
    let round = Round {
        own: 2,
        messages: vec![Some(b"one".to_vec()), None, Some(Vec::new())],
    };
    assert_eq!(Round::parse(&joined), Some(round));
    // Where a message ends, one that is for an earlier one could, and this is for the last.
    for end in 0..joined.len() {
        assert_eq!(Round::parse(&joined[..end]), None, "cut after {end} bytes");
    }
    Round::address(&mut joined, 3);
    assert_eq!(Round::parse(&joined), None);
}

#[test]
fn clients_find_what_is_wrong() {
    let said = |number, names: [Option<u64>; 3]| Round {
        own: 1,
        messages: names.map(|name| Some(statement(name?, number, 24))).to_vec(),
    };
    let all = [Some(1), Some(2), Some(3)];
    let check = |rounds: &[Round]| {
        let mut hearing = Hearing::new(2, 24);
        for (number, round) in (0..).zip(rounds) {
            hearing.check(number, round);
        }
        (hearing.heard, hearing.failures)
    };
    assert_eq!(
        check(&[said(0, all), said(1, [None, Some(2), Some(3)])]),
        (5, vec![])
    );
    for wrong in [
        // Of another round, without one's own, and with somebody else in a place.
        said(0, all),
        said(1, [Some(1), None, Some(3)]),
        said(1, [Some(1), Some(2), Some(4)]),
    ] {
        assert_ne!(check(&[said(0, all), wrong]).1, [""; 0]);
    }
    let mut flipped = said(1, all);
    flipped.messages[2].as_mut().unwrap()[23] ^= 1;
    assert_eq!(
        check(&[said(0, all), flipped]).1,
        ["round 1: message 2 is not what was said"]
    );
}
