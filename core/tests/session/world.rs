//! Rails between two processes: connections that carry frames in order, complete them, and die at any moment with some
//! delivered and some not.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use doorbell_core::Instant;
use doorbell_core::session::{Action, Role, SessionConfig, SessionId};
use doorbell_core::wire::{Refusal, RefusalReason, SessionFrame};

use crate::side::Side;

const A: usize = 0;
const B: usize = 1;

/// Receives each end of a connection has.
const CREDITS: usize = 6;

/// How long a connection takes to be made, in ns.
const HANDSHAKE_NS: u64 = 300_000;

#[derive(Debug)]
enum Happening {
    /// A frame arrives at the other end.
    Arrive {
        conn: usize,
        from: usize,
        bytes: Vec<u8>,
        backlog: u64,
    },
    /// The other end's transport acknowledges a posted frame.
    Complete {
        conn: usize,
        at: usize,
        backlog: u64,
    },
    Connect {
        rail: u8,
    },
    Fault(Fault),
}

/// Faults to inject.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    LinkDown(usize),
    LinkUp(usize),
    Pause(usize),
    Resume(usize),
    /// The process that is connected to dies, and another takes its place.
    Restart,
    /// The device reports that a connection failed, before either side has noticed.
    Break(usize),
}

struct Conn {
    rail: u8,
    /// Whether each end is still there.
    is_open: [bool; 2],
    /// Frames that arrived and were not looked at.
    arrived: [VecDeque<Vec<u8>>; 2],
    /// The number of the process that was there when the connection was made.
    process: u32,
    is_claimed: bool,
    /// Whether a frame was lost on it: later frames are not taken either.
    is_broken: bool,
}

pub(crate) struct World {
    pub(crate) now_ns: u64,
    pub(crate) sides: [Side; 2],
    conns: Vec<Conn>,
    /// Each side's connection of each rail.
    of_rail: [[Option<usize>; 8]; 2],
    links_up: Vec<bool>,
    latency_ns: Vec<u64>,
    /// When each direction of each rail is free again: frames keep their order.
    free_at: Vec<[u64; 2]>,
    queue: BTreeMap<(u64, u64), Happening>,
    count: u64,
    process: u32,
    random: u64,
    config: SessionConfig,
    /// Messages each side still has to send.
    pub(crate) wanted: [u64; 2],
    pub(crate) refused_old: u64,
}

impl World {
    pub(crate) fn new(speeds_mbps: &[u32], seed: u64, config: SessionConfig) -> Self {
        let id = SessionId::new(seed | 1).unwrap();
        let now = Instant::from_ns(0);
        let mut sides = [Role::Initiator, Role::Responder].map(|role| Side::new(role, config, id, now));
        for speed in speeds_mbps {
            sides[A].session.add_rail(*speed, now).unwrap();
        }
        Self {
            now_ns: 0,
            sides,
            conns: Vec::new(),
            of_rail: [[None; 8]; 2],
            links_up: vec![true; speeds_mbps.len()],
            latency_ns: (0..speeds_mbps.len() as u64)
                .map(|rail| 500_000 + 70_000 * rail)
                .collect(),
            free_at: vec![[0; 2]; speeds_mbps.len()],
            queue: BTreeMap::new(),
            count: 0,
            process: 0,
            random: seed | 1,
            config,
            wanted: [0; 2],
            refused_old: 0,
        }
    }

    pub(crate) fn draw(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn plan(&mut self, at_ns: u64, what: Happening) {
        self.count += 1;
        self.queue.insert((at_ns, self.count), what);
    }

    pub(crate) fn fault_at(&mut self, at: Duration, fault: Fault) {
        self.plan(at.as_nanos() as u64, Happening::Fault(fault));
    }

    fn now(&self) -> Instant {
        Instant::from_ns(self.now_ns)
    }

    /// Lets time pass, until `is_done` or the end; returns which.
    pub(crate) fn run(&mut self, until: Duration, mut is_done: impl FnMut(&Self) -> bool) -> bool {
        let until_ns = until.as_nanos() as u64;
        loop {
            self.turn(A);
            self.turn(B);
            if is_done(self) {
                return true;
            }
            let now = self.now();
            let wakes = self
                .sides
                .iter()
                .filter(|side| !side.is_paused)
                .filter_map(|side| side.session.wake(now))
                .map(|wake| wake.instant().to_ns());
            let next = self.queue.keys().next().map(|(at, _)| *at);
            let Some(next_ns) = wakes.chain(next).min().filter(|next| *next <= until_ns) else {
                self.now_ns = until_ns;
                return false;
            };
            assert!(
                next_ns > self.now_ns || next == Some(next_ns),
                "it wakes for nothing"
            );
            self.now_ns = next_ns;
            while let Some(entry) = self.queue.first_entry() {
                if entry.key().0 > next_ns {
                    break;
                }
                let happening = entry.remove();
                self.happen(happening);
            }
        }
    }

    fn happen(&mut self, what: Happening) {
        match what {
            Happening::Arrive {
                conn,
                from,
                bytes,
                backlog,
            } => {
                let to = 1 - from;
                let there = &mut self.conns[conn];
                // After the other end is gone, no transport acknowledges.
                if !there.is_open[to] {
                    return;
                }
                if !bytes.is_empty() {
                    there.arrived[to].push_back(bytes);
                }
                let at = self.now_ns + self.latency_ns[usize::from(there.rail)];
                self.plan(
                    at,
                    Happening::Complete {
                        conn,
                        at: from,
                        backlog,
                    },
                );
            }
            Happening::Complete { conn, at, backlog } => {
                let there = &self.conns[conn];
                let is_current = self.of_rail[at][usize::from(there.rail)] == Some(conn);
                if there.is_open[at] && is_current {
                    let (rail, now) = (there.rail, self.now());
                    self.sides[at].session.completed(rail, 1, backlog, now);
                }
            }
            Happening::Connect { rail } => self.connect(rail),
            Happening::Fault(fault) => self.strike(fault),
        }
    }

    fn connect(&mut self, rail: u8) {
        let (now, random) = (self.now(), self.draw());
        if self.sides[A].session.over().is_some() {
            return;
        }
        if !self.links_up[usize::from(rail)] || self.sides[B].is_paused {
            self.sides[A].session.connect_failed(rail, false, now, random);
            return;
        }
        self.conns.push(Conn {
            rail,
            is_open: [true; 2],
            arrived: [VecDeque::new(), VecDeque::new()],
            process: self.process,
            is_claimed: false,
            is_broken: false,
        });
        self.of_rail[A][usize::from(rail)] = Some(self.conns.len() - 1);
        self.sides[A].session.connected(rail, now);
    }

    fn strike(&mut self, fault: Fault) {
        match fault {
            Fault::LinkDown(rail) => self.cut(rail),
            Fault::LinkUp(rail) => self.links_up[rail] = true,
            Fault::Pause(side) => self.sides[side].is_paused = true,
            Fault::Resume(side) => self.sides[side].is_paused = false,
            Fault::Restart => {
                self.process += 1;
                for conn in &mut self.conns {
                    conn.is_open[B] = false;
                }
                self.of_rail[B] = [None; 8];
                // It does not know the session that was.
                let other = SessionId::new(u64::from(self.process) + 1000).unwrap();
                let old = core::mem::replace(
                    &mut self.sides[B],
                    Side::new(Role::Responder, self.config, other, Instant::from_ns(self.now_ns)),
                );
                drop(old);
                self.wanted[B] = 0;
            }
            Fault::Break(rail) => {
                for side in [A, B] {
                    if let Some(conn) = self.of_rail[side][rail] {
                        self.shut(side, conn);
                        let (now, random) = (self.now(), self.draw());
                        self.sides[side].session.failed(rail as u8, now, random);
                    }
                }
            }
        }
    }

    fn shut(&mut self, side: usize, conn: usize) {
        let there = &mut self.conns[conn];
        there.is_open[side] = false;
        there.arrived[side].clear();
        let rail = usize::from(there.rail);
        if self.of_rail[side][rail] == Some(conn) {
            self.of_rail[side][rail] = None;
        }
    }

    /// Runs one poll of a process.
    fn turn(&mut self, side: usize) {
        if self.sides[side].is_paused {
            return;
        }
        self.sides[side].session.begin_turn();
        for conn in 0..self.conns.len() {
            while let Some(bytes) = self.conns[conn].arrived[side].pop_front() {
                self.take(side, conn, &bytes);
            }
        }
        while self.wanted[side] > 0 && self.sides[side].send().is_ok() {
            self.wanted[side] -= 1;
        }
        loop {
            let (now, random) = (self.now(), self.draw());
            let Some(action) = self.sides[side].session.poll_action(now, random) else {
                break;
            };
            self.act(side, action);
        }
        self.sides[side].listen();
    }

    fn take(&mut self, side: usize, conn: usize, bytes: &[u8]) {
        let (rail, now) = (self.conns[conn].rail, self.now());
        if self.of_rail[side][usize::from(rail)] == Some(conn) {
            self.sides[side].take(rail, bytes, now);
            return;
        }
        if side == A || self.conns[conn].is_claimed {
            return;
        }
        // The first frame on a connection that no session has claimed.
        self.conns[conn].is_claimed = true;
        let Ok(SessionFrame::Attach(said)) = SessionFrame::parse(bytes) else {
            panic!("something else came first")
        };
        match self.sides[side].session.offered(&said, 1000, now) {
            Ok(offer) => {
                assert_eq!(offer.rail, rail);
                if let Some(old) = self.of_rail[side][usize::from(rail)] {
                    assert!(offer.replaces);
                    self.shut(side, old);
                }
                self.of_rail[side][usize::from(rail)] = Some(conn);
            }
            Err(reason) => {
                self.refused_old += u64::from(reason == RefusalReason::OLD_EPOCH);
                let refusal = Refusal::new(said.epoch, reason).to_bytes().to_vec();
                self.post(side, conn, refusal, 0);
            }
        }
    }

    fn act(&mut self, side: usize, action: Action) {
        let now = self.now();
        let (rail, bytes) = match action {
            Action::Connect { rail, .. } => {
                let at = self.now_ns + HANDSHAKE_NS;
                self.plan(at, Happening::Connect { rail });
                return;
            }
            Action::Shut { rail } => {
                if let Some(conn) = self.of_rail[side][usize::from(rail)] {
                    self.shut(side, conn);
                }
                return;
            }
            Action::Attach { rail, said } => {
                (rail, doorbell_core::wire::Attach::new(&said).to_bytes().to_vec())
            }
            Action::Transmit {
                rail,
                header,
                fragment,
            } => {
                let payload = self.sides[side].bytes_at(fragment.place);
                (rail, [&header.to_bytes(), payload].concat())
            }
            Action::Acknowledge { rail, header } | Action::Farewell { rail, header } => {
                (rail, header.to_bytes().to_vec())
            }
            Action::Probe { rail } => (rail, Vec::new()),
            other => panic!("{other:?}"),
        };
        let conn = self.of_rail[side][usize::from(rail)].expect("an action for a rail without connection");
        let in_the_way = self
            .queue
            .values()
            .filter(|what| matches!(what, Happening::Arrive { conn: other, from, .. } if *other == conn && *from == side))
            .count();
        if !bytes.is_empty() && in_the_way + self.conns[conn].arrived[1 - side].len() >= CREDITS {
            self.sides[side].session.blocked(rail);
            return;
        }
        self.post(side, conn, bytes, action.backlog_bytes());
        self.sides[side].session.did(&action, now);
    }

    /// Posts a frame or a probe: the link decides whether it arrives, and whether it is acknowledged.
    fn post(&mut self, side: usize, conn: usize, bytes: Vec<u8>, backlog: u64) {
        let rail = usize::from(self.conns[conn].rail);
        let is_there = self.conns[conn].is_open[1 - side] && self.conns[conn].process == self.process;
        if !self.links_up[rail] || self.conns[conn].is_broken || !is_there {
            self.conns[conn].is_broken = true;
            return;
        }
        let latency = self.latency_ns[rail] + self.draw() % 50_000;
        let at = (self.now_ns + latency).max(self.free_at[rail][side] + 1);
        self.free_at[rail][side] = at;
        self.plan(
            at,
            Happening::Arrive {
                conn,
                from: side,
                bytes,
                backlog,
            },
        );
    }

    /// Takes a link down. Frames after a random point of the stream do not arrive. Frames that arrive after another
    /// random point are not acknowledged.
    fn cut(&mut self, rail: usize) {
        self.links_up[rail] = false;
        for conn in self
            .conns
            .iter_mut()
            .filter(|conn| usize::from(conn.rail) == rail)
        {
            conn.is_broken = true;
        }
        let (keep_arriving, keep_completing) = (self.draw() % 5, self.draw() % 5);
        for side in [A, B] {
            let (mut arriving, mut completing) = (0, 0);
            let conns = &self.conns;
            self.queue.retain(|_, what| match what {
                Happening::Arrive { conn, from, .. }
                    if *from == side && usize::from(conns[*conn].rail) == rail =>
                {
                    arriving += 1;
                    arriving <= keep_arriving
                }
                Happening::Complete { conn, at, .. }
                    if *at == side && usize::from(conns[*conn].rail) == rail =>
                {
                    completing += 1;
                    completing <= keep_completing.min(keep_arriving)
                }
                _ => true,
            });
        }
    }
}
