//! Callbacks of a poll: they forward and fan out to other channels, and a panic of theirs loses nothing. Beside it, requests over a link.

use core::array;
use core::cell::Cell;
use core::net::IpAddr;
use core::panic::AssertUnwindSafe;
use std::panic::{catch_unwind, resume_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use doorbell::link::{LinkConfig, LinkEvent, LinkId, Links};
use doorbell::requests::{Ended, Framing, RequestHeader, RequestKind, Requests};
use doorbell::{ChannelId, Event, Listener, Node, Operation, PostFlags, Turn, Worker, WorkerConfig, within};

use super::{SOON, config, node, worker};

const CHANNELS: usize = 3;

/// A Worker with three channels, and the Worker that has their other ends.
struct Star {
    hub: Worker,
    peer: Worker,
    /// The names of each channel: here and there.
    channels: [(ChannelId, ChannelId); CHANNELS],
    began: Instant,
}

impl Star {
    fn new() -> Self {
        let node = node();
        let (mut hub, mut peer) = (worker(&node, 1024), worker(&node, 1024));
        let address = (IpAddr::from([127, 0, 0, 1]), 0).into();
        let config = config();
        let mut listener = Listener::bind(&node, &hub, address, &config).unwrap();
        let address = listener.address();
        let channels = array::from_fn(|_| {
            thread::scope(|scope| {
                let accepting = scope.spawn(|| listener.accept(&node, &mut hub, within(SOON)).unwrap());
                let there = node.connect_at(&mut peer, address, &config, within(SOON));
                (accepting.join().unwrap().channel, there.unwrap().channel)
            })
        });
        Self {
            hub: hub.remove(0),
            peer: peer.remove(0),
            channels,
            began: Instant::now(),
        }
    }

    fn at(&self, here: ChannelId) -> usize {
        self.channels.iter().position(|(id, _)| *id == here).unwrap()
    }

    /// Polls the peers until so many messages came: for each the place of its channel, and its bytes.
    fn take(&mut self, count: usize) -> Vec<(usize, Vec<u8>)> {
        let mut taken = Vec::new();
        while taken.len() < count {
            assert!(self.began.elapsed() < SOON, "{taken:?}");
            let channels = &self.channels;
            self.peer
                .poll_tending(|turn, event| match event {
                    Event::Received { message, .. } => {
                        let id = turn.channel.id();
                        let at = channels.iter().position(|(_, there)| *there == id).unwrap();
                        taken.push((at, message.payload().to_vec()));
                    }
                    Event::Done { .. } => {}
                    other => panic!("{other:?}"),
                })
                .unwrap();
            self.hub.poll_tending(|_, event| done(&event)).unwrap();
        }
        taken.sort();
        taken
    }
}

fn done(event: &Event<'_>) {
    assert!(matches!(event, Event::Done { .. }), "{event:?}");
}

#[test]
fn a_message_is_forwarded_within_the_poll_that_brought_it() {
    let mut star = Star::new();
    for round in 0..100_u8 {
        let bytes = [1, 64, 300, 1024][usize::from(round) % 4];
        for (at, (_, there)) in star.channels.into_iter().enumerate() {
            let number = round.wrapping_add(u8::try_from(at).unwrap());
            star.peer.send(there, &vec![number; bytes]).unwrap();
        }
        let mut forwarded = 0;
        while forwarded < CHANNELS {
            assert!(star.began.elapsed() < SOON, "{forwarded} in round {round}");
            let channels = star.channels;
            star.hub
                .poll_tending(|mut turn, event| match event {
                    Event::Received { message, .. } => {
                        let id = turn.channel.id();
                        let at = channels.iter().position(|(here, _)| *here == id).unwrap();
                        let (next, _) = channels[(at + 1) % CHANNELS];
                        turn.other(next).unwrap().send_lease(message.keep()).unwrap();
                        forwarded += 1;
                    }
                    event => done(&event),
                })
                .unwrap();
        }
        let expected = [(0, 2), (1, 0), (2, 1)];
        let expected = expected.map(|(at, from)| (at, vec![round.wrapping_add(from); bytes]));
        assert_eq!(star.take(CHANNELS), expected, "round {round}");
    }
}

#[test]
fn a_message_fans_out_within_the_poll_that_brought_it() {
    let mut star = Star::new();
    for round in 0..100_u8 {
        let from = usize::from(round) % CHANNELS;
        let bytes = vec![round; [8, 200, 700][from]];
        star.peer.send(star.channels[from].1, &bytes).unwrap();
        let mut came = None;
        while came.is_none() {
            assert!(star.began.elapsed() < SOON, "round {round}");
            star.hub
                .poll_tending(|mut turn, event| match event {
                    Event::Received { message, .. } => {
                        assert_eq!(turn.send_to_others(message.payload()), 0);
                        // By its name, and behind the others.
                        let own = turn.channel.id();
                        turn.send_to(own, b"done").unwrap();
                        came = Some(own);
                    }
                    event => done(&event),
                })
                .unwrap();
        }
        assert_eq!(came.map(|id| star.at(id)), Some(from));
        let expected: Vec<_> = (0..CHANNELS)
            .map(|at| {
                (
                    at,
                    if at == from {
                        b"done".to_vec()
                    } else {
                        bytes.clone()
                    },
                )
            })
            .collect();
        assert_eq!(star.take(CHANNELS), expected, "round {round}");
    }
}

/// Memory that is at home, or posted to be received into.
fn slots(worker: &mut Worker, channels: impl Iterator<Item = ChannelId>) -> usize {
    let mut slots = core::iter::from_fn(|| worker.lease()).collect::<Vec<_>>().len();
    for id in channels {
        let channel = worker.channel(id).unwrap();
        slots += (channel.receives_posted() + channel.receives_staged()) as usize;
    }
    slots
}

/// The panic of a callback.
const OWN: &str = "the callback's own";

/// How many panics of a callback ended a poll. Any other panic goes on.
fn caught_of(polled: thread::Result<u32>) -> u32 {
    match polled {
        Ok(_) => 0,
        Err(cause) if cause.downcast_ref() == Some(&OWN) => 1,
        Err(cause) => resume_unwind(cause),
    }
}

#[test]
fn a_panic_in_a_callback_loses_nothing_of_the_batch() {
    const BATCH: u32 = 12;
    const MESSAGES: u32 = 5 * BATCH;
    for every in [1, 2, 3, 5] {
        let mut star = Star::new();
        let (here, there) = star.channels[0];
        let all = star.channels.map(|(here, _)| here);
        let before = slots(&mut star.hub, all.into_iter());
        let (until, mut caught, mut sent) = (Cell::new(every), 0, 0);
        let (mut received, mut ended) = (Vec::new(), Vec::new());
        let panics = || {
            until.set(until.get() - 1);
            if until.get() == 0 {
                until.set(every);
                resume_unwind(Box::new(OWN));
            }
        };
        while received.len() < MESSAGES as usize || star.peer.channel(there).unwrap().in_flight() > 0 {
            assert!(star.began.elapsed() < SOON, "{received:?} {ended:?}");
            let channel = star.peer.channel(there).unwrap();
            if sent < MESSAGES && channel.credits().min(channel.room()) >= BATCH {
                let numbers: Vec<_> = (sent..sent + BATCH).map(u32::to_be_bytes).collect();
                let mut batch = channel.batch();
                for number in &numbers {
                    batch
                        .push_inline(Operation::Send, number, PostFlags::SIGNALED)
                        .unwrap();
                }
                batch.ring().unwrap();
                sent += BATCH;
            }
            let polled = catch_unwind(AssertUnwindSafe(|| {
                let each = |_: Turn<'_>, event: Event<'_>| match event {
                    Event::Received { message, .. } => {
                        received.push(u32::from_be_bytes(message.payload().try_into().unwrap()));
                        panics();
                    }
                    event => done(&event),
                };
                star.hub.poll_tending(each).unwrap()
            }));
            caught += caught_of(polled);
            let polled = catch_unwind(AssertUnwindSafe(|| {
                let each = |_: Turn<'_>, event: Event<'_>| {
                    let Event::Done { through } = event else {
                        panic!("{event:?}");
                    };
                    ended.push(through);
                    panics();
                };
                star.peer.poll_tending(each).unwrap()
            }));
            caught += caught_of(polled);
        }
        assert!(
            received.iter().copied().eq(0..MESSAGES),
            "every {every}: {received:?}"
        );
        assert_eq!(ended.len(), MESSAGES as usize, "every {every}: {ended:?}");
        assert!(
            ended.is_sorted_by(|one, next| one < next),
            "every {every}: {ended:?}"
        );
        assert!(caught >= MESSAGES / every, "every {every}: {caught}");
        star.hub.send(here, b"back").unwrap();
        assert_eq!(star.take(1), [(0, b"back".to_vec())]);
        assert_eq!(slots(&mut star.hub, all.into_iter()), before, "every {every}");
    }
}

/// One side of a link.
struct Side {
    node: Arc<Node>,
    workers: Vec<Worker>,
    links: Links,
}

impl Side {
    fn new() -> Self {
        let node = Arc::new(node());
        let workers = node.workers(&WorkerConfig::default()).unwrap();
        let mut config = LinkConfig::default();
        config.session.attach_within = SOON;
        config.channel.handshake_stage = SOON;
        let links = Links::new(&node, &workers, &config).unwrap();
        Self { node, workers, links }
    }

    fn poll(&mut self, each: impl FnMut(LinkId, LinkEvent<'_>)) {
        self.links.poll(&self.node, &mut self.workers, each).unwrap();
    }
}

#[test]
fn requests_over_a_link_are_answered_once_each() {
    const REQUESTS: u32 = 500;
    const BODY_BYTES: usize = 64;
    let (mut client, mut server) = (Side::new(), Side::new());
    let any = "[::]:0".parse().unwrap();
    let handle = server.links.listen(&server.node, &server.workers, any).unwrap();
    let link = client
        .links
        .connect(&client.node, &client.workers, &handle)
        .unwrap();
    let mut requests = Requests::new(16, BODY_BYTES);
    let (mut framing, mut asked, mut answers) = (Framing::new(BODY_BYTES), Vec::new(), Vec::new());
    let (mut next, began) = (0_u32, Instant::now());
    while answers.len() < REQUESTS as usize {
        assert!(began.elapsed() < SOON, "{} answers", answers.len());
        while next < REQUESTS {
            let body = next.to_be_bytes();
            match requests.send_link(&mut client.links, link, &body, within(SOON), next) {
                Ok(_) => next += 1,
                Err(refused) => {
                    assert!(refused.kind.is_temporary(), "{refused}");
                    break;
                }
            }
        }
        client.poll(|_, event| {
            requests.take_link(event, |number, end| match end {
                Ended::Answered(body) => {
                    assert_eq!(body, (2 * number).to_be_bytes());
                    answers.push(number);
                }
                end => panic!("{end:?}"),
            });
        });
        server.poll(|link, event| {
            if let LinkEvent::Received { message } = event {
                let (kind, id, body) = RequestHeader::parse(message).unwrap();
                assert_eq!(kind, RequestKind::Request);
                asked.push((link, id, u32::from_be_bytes(body.try_into().unwrap())));
            }
        });
        // The last come first, as from a server that asks others before.
        while let Some((link, id, number)) = asked.last().copied() {
            let answer = framing.answer(id, &(2 * number).to_be_bytes()).unwrap();
            if server.links.send(link, answer).is_err() {
                break;
            }
            asked.pop();
        }
    }
    answers.sort_unstable();
    assert!(answers.into_iter().eq(0..REQUESTS));
    assert_eq!(
        (requests.counts().answered, requests.in_flight()),
        (u64::from(REQUESTS), 0)
    );
}
