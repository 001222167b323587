//! Requests and answers over simulated hosts: over a channel, and over a link.

use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

use crate::fabric::{End, LONG, pair, pair_on, small};
use crate::many::Many;
use doorbell::link::{FinalReason, LinkConfig, LinkEvent, LinkId, Links, SessionEvent};
use doorbell::requests::{
    Asked, Ended, Framing, NotSentKind, REQUEST_HEADER_BYTES, RequestFailure, RequestHeader, RequestKind,
    Requests,
};
use doorbell::{Clock as _, Event, Lease, Node, SendErrorKind, Trust, WorkerConfig};
use doorbell_sim::{Fabric, Host, Plan, plan::Clause};

const BODY_BYTES_MAX: usize = 1024;

/// The requests that came to an answerer.
fn asked(end: &mut End) -> Vec<Asked<Host>> {
    let mut asked = Vec::new();
    let worker = end.worker();
    worker
        .poll(|_, event| {
            if let Event::Received { message, .. } = event {
                asked.push(Asked::of(message).expect("a request"));
            }
        })
        .unwrap();
    asked
}

fn send(end: &mut End, message: Lease<Host>) {
    let id = end.id();
    end.worker().channel(id).unwrap().send_lease(message).unwrap();
}

#[test]
fn many_are_in_flight_and_each_has_its_own_answer() {
    let (mut server, mut client) = pair();
    let (mut requests, to) = (Requests::new(8, BODY_BYTES_MAX), client.id());
    let (mut next, mut answers) = (0_u32, Vec::new());
    let mut held: VecDeque<Asked<Host>> = VecDeque::new();
    while answers.len() < 200 {
        let worker = client.worker();
        let deadline = worker.within(LONG);
        while requests.room() > 0 && next < 200 {
            match requests.send(worker, to, &next.to_be_bytes(), deadline, next) {
                Ok(_) => next += 1,
                Err(refused) => {
                    assert!(refused.kind.is_temporary(), "{refused}");
                    break;
                }
            }
        }
        // The last come first, as a server answers that asks others before.
        held.extend(asked(&mut server));
        while let Some(asked) = held.pop_back() {
            let twice = 2 * u32::from_be_bytes(asked.body().try_into().unwrap());
            let answer = asked.answer(&twice.to_be_bytes()).unwrap();
            send(&mut server, answer);
        }
        let end = |number: u32, end: Ended<'_>| {
            assert_eq!(end, Ended::Answered(&(2 * number).to_be_bytes()));
            answers.push(number);
        };
        requests.poll(client.worker(), end).unwrap();
    }
    answers.sort_unstable();
    assert!(answers.into_iter().eq(0..200));
    assert_eq!((requests.counts().answered, requests.in_flight()), (200, 0));
}

#[test]
fn a_request_that_fits_a_cell_takes_no_lease() {
    let (mut server, mut client) = pair();
    let (mut requests, to) = (Requests::new(4, BODY_BYTES_MAX), client.id());
    let worker = client.worker();
    let deadline = worker.within(LONG);
    let cell_bytes = worker.channel(to).unwrap().cell_bytes() as usize;
    let most = vec![7; cell_bytes - REQUEST_HEADER_BYTES];
    let longer = vec![7; most.len() + 1];
    let leases: Vec<_> = core::iter::from_fn(|| worker.lease()).collect();
    for body in [&b"short"[..], &most] {
        requests.send(worker, to, body, deadline, ()).unwrap();
    }
    let refused = requests.send(worker, to, &longer, deadline, ()).unwrap_err();
    assert_eq!(refused.kind, NotSentKind::Channel(SendErrorKind::NoMemory));
    leases.into_iter().for_each(|lease| worker.release(lease));
    requests.send(worker, to, &longer, deadline, ()).unwrap();
    let mut bodies = Vec::new();
    while bodies.len() < 3 {
        bodies.extend(asked(&mut server).iter().map(|asked| asked.body().to_vec()));
    }
    assert_eq!(bodies, [b"short".to_vec(), most, longer]);
}

#[test]
fn a_deadline_ends_a_request_and_its_answer_is_late() {
    let (mut server, mut client) = pair();
    let (mut requests, to) = (Requests::new(4, BODY_BYTES_MAX), client.id());
    let worker = client.worker();
    let deadline = worker.within(Duration::from_millis(1));
    requests.send(worker, to, b"slowly", deadline, "slow").unwrap();
    let later = worker.within(LONG);
    let given_up = requests
        .send(worker, to, b"never mind", later, "given up")
        .unwrap();
    assert_eq!(requests.cancel(given_up), Some("given up"));
    let mut ended = None;
    while ended.is_none() {
        // Time passes in polls that find nothing.
        let end = |name, end: Ended<'_>| ended = Some((name, end == Ended::TimedOut));
        requests.poll(client.worker(), end).unwrap();
    }
    assert_eq!(ended, Some(("slow", true)));
    for asked in asked(&mut server) {
        let answer = asked.answer(b"at last").unwrap();
        send(&mut server, answer);
    }
    while requests.counts().late < 2 {
        requests
            .poll(client.worker(), |_, _| panic!("ended twice"))
            .unwrap();
    }
    let counts = requests.counts();
    assert_eq!(
        (counts.timed_out, counts.cancelled, counts.sent, counts.unasked),
        (1, 1, 2, 0)
    );
}

#[test]
fn what_is_not_sent_is_handed_back() {
    let (_server, mut client) = pair();
    let (mut requests, to) = (Requests::new(17, BODY_BYTES_MAX), client.id());
    let worker = client.worker();
    let deadline = worker.within(LONG);
    let long = [0; BODY_BYTES_MAX + 1];
    let refused = requests.send(worker, to, &long, deadline, 1).unwrap_err();
    let (bytes, bytes_max) = (long.len(), BODY_BYTES_MAX);
    assert_eq!(
        (refused.kind, refused.context),
        (NotSentKind::TooLong { bytes, bytes_max }, 1)
    );
    for _ in 0..16 {
        requests.send(worker, to, b"", deadline, 2).unwrap();
    }
    let refused = requests.send(worker, to, b"", deadline, 3).unwrap_err();
    assert_eq!(refused.kind, NotSentKind::Channel(SendErrorKind::WouldBlock));
    assert_eq!((requests.in_flight(), requests.counts().sent), (16, 16));
    worker.close(to, worker.within(LONG), |_, _| {}).unwrap();
    let refused = requests.send(worker, to, b"", deadline, 4).unwrap_err();
    assert_eq!(
        (refused.kind, refused.context),
        (NotSentKind::Channel(SendErrorKind::Closed), 4)
    );
    assert!(!refused.kind.is_temporary());
}

#[test]
fn an_answer_longer_than_its_memory_is_handed_back() {
    let (mut server, mut client) = pair();
    let (mut requests, to) = (Requests::new(1, BODY_BYTES_MAX), client.id());
    let worker = client.worker();
    let deadline = worker.within(LONG);
    requests.send(worker, to, b"all of it", deadline, ()).unwrap();
    let came = loop {
        if let Some(came) = asked(&mut server).pop() {
            break came;
        }
    };
    let long = vec![7; came.answer_bytes_max() + 1];
    let came = came.answer(&long).unwrap_err();
    assert_eq!(came.body(), b"all of it");
    let answer = came.answer(&long[1..]).unwrap();
    send(&mut server, answer);
    while requests.in_flight() > 0 {
        let end = |(), end: Ended<'_>| assert_eq!(end, Ended::Answered(&long[1..]));
        requests.poll(client.worker(), end).unwrap();
    }
}

#[test]
fn a_peer_that_dies_fails_what_it_was_asked() {
    let fabric = Fabric::new();
    let (_server, mut client) = pair_on(&fabric, small(), small(), doorbell::Notify::Never);
    let (mut requests, to) = (Requests::new(4, BODY_BYTES_MAX), client.id());
    let plan: Plan = "at 0s kill a".parse().unwrap();
    let Clause::At(kill) = &plan.clauses[0] else {
        panic!("a step")
    };
    fabric.perform(&kill.action).unwrap();
    let worker = client.worker();
    let deadline = worker.within(LONG);
    requests
        .send(worker, to, b"anybody there?", deadline, "asked")
        .unwrap();
    let mut ended = None;
    while ended.is_none() {
        let worker = client.worker();
        requests
            .poll(worker, |name, end| {
                let Ended::Failed(RequestFailure::Channel(cause)) = end else {
                    panic!("{end:?}");
                };
                assert!(!cause.is_flush());
                ended = Some(name);
            })
            .unwrap();
    }
    assert_eq!((ended, requests.counts().failed), (Some("asked"), 1));
}

/// Sends in flight on a channel that failed may be reported once requests go over the next one. A request that the application sends by a
/// way of its own ends with the first channel that fails behind it.
#[test]
fn a_channel_that_fails_ends_what_was_sent_over_it_and_not_what_was_sent_over_another() {
    for (first, due) in [(0, ["own", "before", "next"]), (1, ["own", "next", "before"])] {
        let own = WorkerConfig::default();
        let mut many = Many::new(&own, &small(), &own);
        (0..2).for_each(|_| many.connect(&small()).unwrap());
        let channels = [many.channels[0], many.channels[1]].map(|[here, _]| here);
        let mut requests = Requests::new(4, BODY_BYTES_MAX);
        let worker = &mut many.hub[0];
        let deadline = worker.within(LONG);
        requests.begin(deadline, "own").unwrap();
        for (channel, name) in channels.iter().zip(["before", "next"]) {
            requests
                .send(worker, *channel, b"a body", deadline, name)
                .unwrap();
        }
        let mut all = Vec::new();
        for (turn, failing) in [channels[first], channels[1 - first]].into_iter().enumerate() {
            worker.channel(failing).unwrap().shut().unwrap();
            let mut reported = 0;
            while reported == 0
                || worker
                    .channel(failing)
                    .is_some_and(|channel| channel.in_flight() > 0)
            {
                worker
                    .poll(|mut turn, event| {
                        let is_failure = matches!(event, Event::Failed { .. } | Event::ChannelFailed { .. });
                        let is_its = turn.channel.id() == failing;
                        let given_back = requests.take(&mut turn, event, |name, _| all.push(name));
                        assert!(given_back.is_some() || !is_failure);
                        reported += usize::from(is_failure && is_its);
                    })
                    .unwrap();
            }
            requests.expire(worker.context().now(), |name, _| all.push(name));
            assert_eq!(all, due[..2 + turn]);
            assert_eq!(requests.wake().is_some(), turn == 0);
        }
    }
}

#[test]
fn a_peer_that_closes_fails_what_it_has_not_answered() {
    let (mut server, mut client) = pair();
    let (mut requests, to) = (Requests::new(4, BODY_BYTES_MAX), client.id());
    let worker = client.worker();
    let deadline = worker.within(LONG);
    for name in ["answered", "asked"] {
        requests
            .send(worker, to, name.as_bytes(), deadline, name)
            .unwrap();
    }
    let mut came = Vec::new();
    while came.len() < 2 {
        came.extend(asked(&mut server));
    }
    send(&mut server, came.remove(0).answer(b"yes").unwrap());
    drop(server);
    let mut ends = Vec::new();
    while requests.in_flight() > 0 {
        let end = |name, end: Ended<'_>| {
            ends.push((name, end == Ended::Answered(b"yes"), format!("{end:?}")));
        };
        requests.poll(client.worker(), end).unwrap();
    }
    let failed = format!("{:?}", Ended::Failed(RequestFailure::PeerClosed));
    assert_eq!(ends.len(), 2, "{ends:?}");
    assert!(ends[0].0 == "answered" && ends[0].1, "{ends:?}");
    assert_eq!((ends[1].0, &ends[1].2), ("asked", &failed));
}

/// A host with links.
struct Linked {
    node: Arc<Node<Host, Host>>,
    workers: Vec<doorbell::Worker<Host>>,
    links: Links<Host, Host>,
}

impl Linked {
    fn new(host: Host) -> Self {
        let node = Arc::new(Node::simulated(host, Trust::unauthenticated_on_purpose()).unwrap());
        let workers = node.workers(&WorkerConfig::default()).unwrap();
        let links = Links::new(&node, &workers, &LinkConfig::default()).unwrap();
        Self { node, workers, links }
    }

    fn poll(&mut self, mut each: impl FnMut(LinkId, LinkEvent<'_>)) {
        self.links.poll(&self.node, &mut self.workers, &mut each).unwrap();
    }
}

#[test]
fn over_a_link_requests_are_answered_and_fail_with_its_end() {
    let [mut server, mut client] = Fabric::new().hosts().unwrap().map(Linked::new);
    let at = "127.0.0.1:7000".parse().unwrap();
    server
        .links
        .listen_polled(&server.node, &server.workers, at)
        .unwrap();
    let handle = *server.links.handle().unwrap();
    let link = client
        .links
        .connect(&client.node, &client.workers, &handle)
        .unwrap();
    let mut requests = Requests::new(4, BODY_BYTES_MAX);
    let (mut framing, mut answers) = (Framing::new(BODY_BYTES_MAX), Vec::new());
    let (mut sent, mut is_over) = (0_u32, false);
    while !is_over {
        if sent < 3 && requests.in_flight() == 0 {
            let deadline = client.node.within(LONG);
            let asked = requests.send_link(&mut client.links, link, &sent.to_be_bytes(), deadline, sent);
            match asked {
                Ok(_) => sent += 1,
                Err(refused) => assert!(refused.kind.is_temporary(), "{refused}"),
            }
        }
        let mut came = None;
        server.poll(|id, event| {
            if let LinkEvent::Received { message } = event {
                let (kind, request, body) = RequestHeader::parse(message).unwrap();
                assert_eq!(kind, RequestKind::Request);
                came = Some((id, request, body.to_vec()));
            }
        });
        if let Some((id, request, body)) = came {
            // The last one is not answered: the server leaves.
            if sent < 3 {
                let answer = framing.answer(request, &body).unwrap();
                server.links.send(id, answer).unwrap();
            } else {
                server.links.close(id, server.node.within(Duration::ZERO));
            }
        }
        client.poll(|_, event| {
            let end = |number: u32, end: Ended<'_>| {
                answers.push(match end {
                    Ended::Answered(body) => (number, body == number.to_be_bytes()),
                    end => (
                        number,
                        end != Ended::Failed(RequestFailure::Link(FinalReason::PeerClosed)),
                    ),
                });
            };
            // The end of a link is reported to others, too.
            let left = requests.take_link(event, end);
            is_over |= matches!(left, Some(LinkEvent::Session(SessionEvent::Final { .. })));
        });
    }
    assert_eq!(answers, [(0, true), (1, true), (2, false)]);
}
