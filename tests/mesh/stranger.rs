//! A member that sends any bytes, beside two that are honest, and the conditions that must hold. Tests and the fuzzer run it.
//!
//! Members of a mesh trust each other: one that speaks for another can cut it off. One that speaks for itself alone, however wrongly,
//! changes nothing between others.

use doorbell::link::{LinkId, Links};
use doorbell::provider::Clock as _;
use doorbell::{Deadline, Handle, Node, Trust, Worker, WorkerConfig};
use doorbell_sim::Host;

use super::choices::Choices;
use super::world::{World, config, ms, rank};

/// The honest member that is linked to the other two; the other honest one; and the stranger.
const BETWEEN: usize = 0;
const HONEST: usize = 1;
const STRANGER: usize = 2;

const STEPS_MAX: usize = 100;
/// Messages each way between those that are honest.
const MESSAGES_MAX: usize = 24;

/// Result of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ended {
    /// Whether the stranger spoke for another.
    pub(crate) has_forged: bool,
    /// Messages of the honest to each other that came.
    pub(crate) came: usize,
    /// Messages of the stranger that were taken.
    pub(crate) taken: usize,
    /// Frames that were dropped.
    pub(crate) dropped: u64,
}

/// Panics where what a stranger says breaks a promise.
pub(crate) fn check(bytes: &[u8]) -> Ended {
    let mut choices = Choices::new(bytes);
    let mut world = World::of_hosts(3, &[(BETWEEN, HONEST), (BETWEEN, STRANGER)], "");
    world.start(BETWEEN, 1);
    world.start(HONEST, 1);
    let both = |world: &mut World| (0..2).all(|at| world.member(at).mesh.reached().len() == 2);
    assert!(world.run(ms(500), both));
    let handle = world.member(BETWEEN).handle;
    let mut stranger = Stranger::new(&world.hosts[STRANGER], &handle);
    if choices.byte() % 2 == 0 {
        stranger.say(&join(1));
        stranger.say(&announcement(2, 1, 1, 0b001));
    }
    let mut sent = [Vec::new(), Vec::new()];
    for _ in 0..STEPS_MAX {
        if choices.is_over() {
            break;
        }
        match choices.byte() % 8 {
            0..=2 => {
                let frame = made_up(&mut choices, &mut stranger.numbered);
                stranger.say(&frame);
            }
            3 => {
                let length = choices.below(48);
                let raw: Vec<u8> = (0..length).map(|_| choices.byte()).collect();
                stranger.say(&raw);
            }
            4 => {
                let from = choices.below(2);
                if sent[from].len() < MESSAGES_MAX {
                    let mut message = vec![from as u8, sent[from].len() as u8];
                    message.resize(2 + choices.below(2000), 7);
                    sent[from].push(message.clone());
                    world.member(from).outbox.push_back((rank(1 - from), message));
                }
            }
            5 => {
                // To the member at the stranger's rank, if there is one.
                let message = vec![choices.byte(); 2];
                let _ = world.member(BETWEEN).mesh.send(rank(STRANGER), &message, &[]);
            }
            6 => stranger.link_again(&handle),
            _ => {
                let span = ms(1 + choices.below(20) as u64);
                world.run(span, |_| stranger.goes_on());
            }
        }
    }
    let all = [sent[HONEST].len(), sent[BETWEEN].len()];
    // Long enough for a link that was given up, and for retransmissions.
    let span = if stranger.has_forged { ms(30) } else { ms(5_000) };
    let is_all = world.run(span, |world| {
        let _ = stranger.goes_on();
        (0..2).for_each(|at| world.member(at).take());
        (0..2).all(|at| world.member(at).inbox[1 - at].len() >= all[at])
    });
    let ended = judge(&mut world, &stranger, &sent);
    assert!(is_all || stranger.has_forged, "{ended:?}");
    world.fabric.audit().unwrap();
    ended
}

/// Judges the result for each member.
fn judge(world: &mut World, stranger: &Stranger, sent: &[Vec<Vec<u8>>; 2]) -> Ended {
    let mut ended = Ended {
        has_forged: stranger.has_forged,
        ..Ended::default()
    };
    for at in 0..2 {
        let inbox = &world.member(at).inbox;
        if stranger.has_forged {
            let is_known = |message: &Vec<u8>| sent[1 - at].contains(message) || stranger.is_said(message);
            assert!(inbox[1 - at].iter().all(is_known));
        } else {
            assert_eq!(inbox[1 - at], sent[1 - at], "at {at}");
        }
        assert!(inbox[STRANGER].iter().all(|message| stranger.is_said(message)));
        ended.came += inbox[1 - at].len();
        ended.taken += inbox[STRANGER].len();
        let counts = world.member(at).mesh.counts();
        assert!(counts.received >= world.member(at).inbox.iter().map(Vec::len).sum::<usize>() as u64);
        ended.dropped += counts.dropped;
    }
    ended
}

/// Links to the member between, and no mesh behind them.
pub(crate) struct Stranger {
    node: Node<Host, Host>,
    workers: Vec<Worker<Host>>,
    links: Links<Host, Host>,
    link: LinkId,
    /// Frames it still has to send, in order.
    unsaid: Vec<Vec<u8>>,
    said: Vec<Vec<u8>>,
    /// How many messages were numbered as they should be.
    numbered: u32,
    has_forged: bool,
}

impl Stranger {
    pub(crate) fn new(host: &Host, handle: &Handle) -> Self {
        let node = Node::with(host.clone(), host.clone(), Trust::unauthenticated_on_purpose()).unwrap();
        let mut own = WorkerConfig::default();
        (own.slots, own.slot_bytes) = (128, 4096);
        let workers = node.workers(&own).unwrap();
        let mut links = Links::new(&node, &workers, &config(STRANGER, 3, 1).link).unwrap();
        let link = links.connect(&node, &workers, handle).unwrap();
        Self {
            node,
            workers,
            links,
            link,
            unsaid: Vec::new(),
            said: Vec::new(),
            numbered: 0,
            has_forged: false,
        }
    }

    pub(crate) fn say(&mut self, frame: &[u8]) {
        // The header's source, and whose an announcement is.
        let is_own =
            frame.get(1) == Some(&2) && (frame.get(4..6) != Some(&[0, 2]) || frame.get(9) == Some(&2));
        self.has_forged |= frame.len() >= 8 && !is_own;
        self.unsaid.push(frame.to_vec());
    }

    /// Whether its link is up.
    pub(crate) fn is_linked(&self) -> bool {
        self.links.is_connected(self.link)
    }

    /// Sends what it can, and never is done.
    pub(crate) fn goes_on(&mut self) -> bool {
        let sent = self
            .unsaid
            .iter()
            .position(|frame| self.links.send(self.link, frame).is_err());
        let sent = sent.unwrap_or(self.unsaid.len());
        self.said.extend(self.unsaid.drain(..sent));
        self.links.poll(&self.node, &mut self.workers, |_, _| {}).unwrap();
        false
    }

    fn link_again(&mut self, handle: &Handle) {
        self.links
            .close(self.link, Deadline::after(self.node.network().now(), ms(1)));
        if let Ok(link) = self.links.connect(&self.node, &self.workers, handle) {
            self.link = link;
        }
    }

    /// Whether some frame of it ends with this.
    fn is_said(&self, message: &[u8]) -> bool {
        self.said
            .iter()
            .chain(&self.unsaid)
            .any(|frame| frame.ends_with(message))
    }
}

/// A frame of parts that are right, or next to it.
fn made_up(choices: &mut Choices<'_>, numbered: &mut u32) -> Vec<u8> {
    let kind = [3, 3, 4, 2, 1, 5][choices.below(6)];
    let source = [2, 2, 2, 2, 1, 0, 63, 64][choices.below(8)];
    let destination = [0, 0, 1, 2, 63, 64][choices.below(6)];
    let hops_left = [16, 1, 0, 255][choices.below(4)];
    let time = |choices: &mut Choices<'_>| [1, 1, 1, 2, 0, u64::MAX][choices.below(6)];
    let count = |choices: &mut Choices<'_>| [0, 1, 2, 4, 5, 16, u32::MAX][choices.below(7)];
    let mut frame = match kind {
        1 => {
            let mesh = [0, 0, 0, 1_u64][choices.below(4)];
            let ranks = [3, 3, 3, 0, 4, 255][choices.below(6)];
            let started = time(choices);
            frame(
                1,
                source,
                destination,
                hops_left,
                &[&mesh.to_be_bytes()[..], &started.to_be_bytes(), &[ranks]],
            )
        }
        2 => {
            let whose = [2, 2, 2, 1, 0, 63, 64][choices.below(7)];
            let neighbours = [0b001, 0b011, 0, u64::MAX, 0b111 << 61][choices.below(5)];
            announcement(whose, count(choices), time(choices), neighbours)
        }
        _ => {
            let (from, to) = (time(choices), time(choices));
            let is_next = kind == 3 && choices.below(4) > 0;
            let sequence = if is_next { *numbered } else { count(choices) };
            *numbered = numbered.wrapping_add(is_next.into());
            let room = if kind == 3 && choices.below(8) > 0 {
                0
            } else {
                count(choices)
            };
            let payload = vec![choices.byte(); if kind == 3 { choices.below(2_100) } else { 0 }];
            // A message says what its sender takes, too; a grant numbers none.
            let numbers = if kind == 3 {
                [sequence, room, room]
            } else {
                [0, sequence, room]
            };
            let numbers = numbers.map(u32::to_be_bytes).concat();
            frame(
                kind,
                source,
                destination,
                hops_left,
                &[&from.to_be_bytes(), &to.to_be_bytes(), &numbers, &payload],
            )
        }
    };
    match choices.below(8) {
        6 => frame.truncate(choices.below(frame.len())),
        7 => frame.push(choices.byte()),
        _ => {}
    }
    frame
}

/// A join of rank 2, which says that it started then.
pub(crate) fn join(started: u64) -> Vec<u8> {
    join_as(2, started)
}

pub(crate) fn join_as(rank: u8, started: u64) -> Vec<u8> {
    frame(1, rank, 0, 0, &[&[0; 8][..], &started.to_be_bytes(), &[3]])
}

pub(crate) fn announcement(whose: u8, sequence: u32, started: u64, neighbours: u64) -> Vec<u8> {
    // Later ones say that no rail leads to any of them.
    let without_rail = if sequence > 2 { neighbours } else { 0 };
    let parts = [
        &[2, whose, 0, 0][..],
        &sequence.to_be_bytes(),
        &started.to_be_bytes(),
        &neighbours.to_be_bytes(),
        &without_rail.to_be_bytes(),
    ];
    frame(2, 2, 0, 0, &parts)
}

fn frame(kind: u8, source: u8, destination: u8, hops_left: u8, parts: &[&[u8]]) -> Vec<u8> {
    [
        &[2, source, destination, hops_left, 0, kind, 0, 0][..],
        &parts.concat(),
    ]
    .concat()
}
