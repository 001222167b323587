//! The example over the simulated fabric, a server and its clients in one process; what its API does where something is wrong;
//! and that what the clients check can fail.

use core::time::Duration;
use std::sync::Barrier;

use clap::{CommandFactory as _, Parser as _};
use doorbell::provider::Clock as _;
use doorbell_sim::plan::{Clause, Plan};
use doorbell_sim::{Fabric, Host};

use super::around::simulated::{self, Simulated as Node};
use super::endpoint::{BODY_BYTES_MAX, DEPTH, Endpoint, Error, PROBE_AFTER, PeerId, Why};
use super::round::Round;
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

/// Runs a server and clients that do their part.
fn between<L: Send, C: Send>(
    clients: u8,
    server: impl FnOnce(&Node, &mut Endpoint<'_, Host, Host>) -> L + Send,
    client: impl Fn(&Node, &mut Endpoint<'_, Host, Host>) -> C + Sync,
) -> (L, Vec<C>) {
    let outcome = simulated::together(
        &Fabric::new(),
        clients,
        |node, announce| {
            let mut endpoint = Endpoint::init(node, clients.into())?;
            announce(endpoint.listen("[::]:0".parse()?)?)?;
            for _ in 0..clients {
                endpoint.accept(node.within(Duration::from_secs(60)))?;
            }
            let outcome = server(node, &mut endpoint);
            while endpoint.peers().next().is_some() {
                let left = endpoint.next(long(node)).unwrap_err();
                assert!(matches!(left.why, Why::Left), "{left}");
                endpoint.disconnect(left.peer.unwrap(), long(node))?;
            }
            Ok(outcome)
        },
        |_, node, handle| {
            let mut endpoint = Endpoint::init(node, clients.into())?;
            endpoint.connect(handle, node.within(Duration::from_secs(60)))?;
            Ok(client(node, &mut endpoint))
        },
    );
    outcome.unwrap()
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

/// Answers a question by itself.
fn echo(node: &Node, endpoint: &mut Endpoint<'_, Host, Host>) -> (PeerId, Vec<u8>) {
    let (peer, question) = endpoint.next(long(node)).unwrap();
    let body = question.body().to_vec();
    endpoint.answer(peer, question, &body, long(node)).unwrap();
    (peer, body)
}

#[test]
fn a_question_that_is_late_is_asked_again_and_has_its_own_answer() {
    let late = Barrier::new(2);
    between(
        1,
        |node, server| {
            late.wait();
            assert_eq!(echo(node, server).1, b"first");
            assert_eq!(echo(node, server).1, b"second");
        },
        |node, client| {
            let server = only(client);
            let error = client.ask(server, b"first", short(node)).unwrap_err();
            assert_eq!(error.to_string(), "peer 0: no answer by the deadline");
            late.wait();
            assert_eq!(client.ask(server, b"second", long(node)).unwrap(), b"second");
            client.disconnect(server, long(node)).unwrap();
        },
    );
}

/// A peer that is not answered waits by itself, and nothing grows.
#[test]
fn questions_that_nobody_answers_find_no_more_room() {
    let full = Barrier::new(2);
    between(
        1,
        |node, server| {
            full.wait();
            let mut heard: Vec<u8> = Vec::new();
            while heard.last() != Some(&u8::MAX) {
                heard.extend(echo(node, server).1);
            }
            let mut expected: Vec<u8> = (0..DEPTH as u8).collect();
            expected.push(u8::MAX);
            assert_eq!(heard, expected);
        },
        |node, client| {
            let server = only(client);
            for number in 0..DEPTH as u8 {
                let error = client.ask(server, &[number], short(node)).unwrap_err();
                assert_eq!(error.to_string(), "peer 0: no answer by the deadline");
            }
            let error = client.ask(server, &[100], short(node)).unwrap_err();
            assert_eq!(
                error.to_string(),
                "peer 0: no room for a question by the deadline"
            );
            full.wait();
            assert_eq!(client.ask(server, &[u8::MAX], long(node)).unwrap(), [u8::MAX]);
            client.disconnect(server, long(node)).unwrap();
        },
    );
}

#[test]
fn a_peer_that_was_heard_waits_for_the_others() {
    let said = Barrier::new(4);
    between(
        3,
        |node, server| {
            server.ask_all(b"speak", long(node)).unwrap();
            said.wait();
            let speakers: Vec<_> = (0..6).map(|_| server.next(long(node)).unwrap().0).collect();
            let (mut first, second) = (speakers[..3].to_vec(), &speakers[3..]);
            assert_eq!(first, second);
            first.sort();
            assert_eq!(first, server.peers().collect::<Vec<_>>());
        },
        |node, client| {
            let server = only(client);
            assert_eq!(echo(node, client).1, b"speak");
            for question in [b"one", b"two"] {
                let error = client.ask(server, question, short(node)).unwrap_err();
                assert!(matches!(error.why, Why::TimedOut(_)), "{error}");
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
                matches!(error.why, Why::TimedOut(_)) && error.peer == Some(client),
                "{error}"
            );
            late.wait();
            assert_eq!(server.serve_all_to_all(long(node)).unwrap(), []);
        },
        |node, client| {
            let server = only(client);
            late.wait();
            let round = client.all_to_all(server, b"then", long(node)).unwrap();
            assert_eq!((round.own, round.messages), (0, vec![Some(b"then".to_vec())]));
            client.disconnect(server, long(node)).unwrap();
        },
    );
}

/// An answer that the server gives late is no answer in the next round.
#[test]
fn a_round_that_timed_out_is_not_taken_for_the_next() {
    let late = Barrier::new(2);
    between(
        1,
        |node, server| {
            late.wait();
            for _ in 0..2 {
                assert_eq!(server.serve_all_to_all(long(node)).unwrap(), []);
            }
        },
        |node, client| {
            let server = only(client);
            let error = client.all_to_all(server, b"first", short(node)).unwrap_err();
            assert!(matches!(error.why, Why::TimedOut(_)), "{error}");
            late.wait();
            let round = client.all_to_all(server, b"second", long(node)).unwrap();
            assert_eq!(round.messages, [Some(b"second".to_vec())]);
            client.disconnect(server, long(node)).unwrap();
        },
    );
}

#[test]
fn an_answer_that_is_no_round_is_told() {
    between(
        1,
        |node, server| drop(echo(node, server)),
        |node, client| {
            let server = only(client);
            let error = client.all_to_all(server, &[7; 3], long(node)).unwrap_err();
            assert_eq!(error.to_string(), "peer 0: the answer is none of a round");
            client.disconnect(server, long(node)).unwrap();
        },
    );
}

#[test]
fn a_peer_that_leaves_is_heard_to_the_end() {
    let left = Barrier::new(2);
    between(
        1,
        |node, server| {
            let client = only(server);
            left.wait();
            let is_gone = |error: Error| matches!(error.why, Why::Left) && error.peer == Some(client);
            let (peer, last) = server.next(long(node)).unwrap();
            assert_eq!((peer, last.body()), (client, &b"last"[..]));
            assert!(is_gone(server.next(long(node)).unwrap_err()));
            assert!(is_gone(
                server.answer(client, last, b"!", long(node)).unwrap_err()
            ));
            assert!(is_gone(server.ask(client, b"?", long(node)).unwrap_err()));
            assert_eq!(server.serve_all_to_all(long(node)).unwrap(), [client]);
            server.disconnect(client, long(node)).unwrap();
            let error = server.ask(client, b"?", long(node)).unwrap_err();
            assert_eq!(error.to_string(), NO_SUCH);
        },
        |node, client| {
            let server = only(client);
            assert!(client.ask(server, b"last", short(node)).is_err());
            client.disconnect(server, long(node)).unwrap();
            left.wait();
        },
    );
}

/// A server whose only client dies after it was silent for so long, and what the server does then.
fn with_a_death(silence: Duration, then: impl FnOnce(&Node, &mut Endpoint<'_, Host, Host>, PeerId) + Send) {
    let (fabric, met, dead) = (Fabric::new(), Barrier::new(2), Barrier::new(2));
    let plan: Plan = "at 0s kill host2".parse().unwrap();
    let [Clause::At(kill)] = &plan.clauses[..] else {
        panic!("a step")
    };
    simulated::together(
        &fabric,
        1,
        |node, announce| {
            let mut server = Endpoint::init(node, 1)?;
            announce(server.listen("[::]:0".parse()?)?)?;
            let client = server.accept(long(node))?;
            // A peer that lives and is silent is waited for.
            let error = server.next(node.within(silence)).unwrap_err();
            assert!(matches!(error.why, Why::TimedOut(_)), "{error}");
            met.wait();
            dead.wait();
            then(node, &mut server, client);
            assert!(server.disconnect(client, long(node)).is_err());
            Ok(())
        },
        |_, node, handle| {
            let mut client = Endpoint::init(node, 1)?;
            client.connect(handle, long(node))?;
            met.wait();
            fabric.perform(&kill.action).unwrap();
            dead.wait();
            Ok(())
        },
    )
    .unwrap();
}

fn is_lost(error: &Error, client: PeerId) -> bool {
    matches!(error.why, Why::Lost(_)) && error.peer == Some(client)
}

#[test]
fn a_dead_peer_is_missed_by_a_call_that_asks() {
    with_a_death(Duration::from_millis(5), |node, server, client| {
        let error = server.ask(client, b"?", long(node)).unwrap_err();
        assert!(is_lost(&error, client), "{error}");
    });
}

/// A call that only waits learns of it, and in time.
#[test]
fn a_dead_peer_is_missed_by_a_call_that_waits() {
    with_a_death(PROBE_AFTER * 2, |node, server, client| {
        let began = node.network().now();
        let error = server.next(long(node)).unwrap_err();
        assert!(is_lost(&error, client), "{error}");
        let took_ns = node.network().now().to_ns() - began.to_ns();
        assert!(
            u128::from(took_ns) < PROBE_AFTER.as_nanos() * 7 / 2,
            "{took_ns} ns"
        );
    });
}

const NO_SUCH: &str = "peer 0: there is no such peer, or it was disconnected";

#[test]
fn misuse_is_told_at_once() {
    const MOST: usize = BODY_BYTES_MAX as usize;
    between(
        1,
        |node, server| {
            let full = server.accept(long(node)).unwrap_err();
            assert_eq!(full.to_string(), "as many peers as there may be are connected");
            let (client, question) = server.next(long(node)).unwrap();
            assert_eq!(question.body(), [7; MOST]);
            let long_answer = vec![0; question.answer_bytes_max() + 1];
            let error = server
                .answer(client, question, &long_answer, long(node))
                .unwrap_err();
            assert!(matches!(error.why, Why::Refused(_)), "{error}");
        },
        |node, client| {
            let server = only(client);
            let error = client.ask(server, &[7; MOST + 1], long(node)).unwrap_err();
            let told = error.to_string();
            assert!(
                told.starts_with("peer 0: a body of 8193 bytes, but only 8192 fit"),
                "{told}"
            );
            assert!(client.ask(server, &[7; MOST], short(node)).is_err());
            client.disconnect(server, long(node)).unwrap();
            let deaf = client.accept(long(node)).unwrap_err();
            assert_eq!(deaf.to_string(), "this endpoint does not listen");
            let error = client.disconnect(server, long(node)).unwrap_err();
            assert_eq!(error.to_string(), NO_SUCH);
        },
    );
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
    // A cut at the end of a message could be taken for a shorter round, but this message is for the last place.
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
        // A message of another round, one without the client's own, and one with another name in a place.
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

#[test]
fn the_commands_of_scenarios_are_understood() {
    let (faults, commands) =
        super::around::scenarios::faults("{examples}/client-server", &Arguments::command());
    assert!(faults.is_empty() && commands > 0, "{faults:#?}");
}
