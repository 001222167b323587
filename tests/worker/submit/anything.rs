//! Random operations in any order: everything is reported, and comes home.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use doorbell::worker::{SubmissionError, Submitter};
use doorbell::{ChannelId, Event, Operation, PostFlags, Turn, Wait, Worker};
use doorbell_sim::Host;

use super::{Hub, config, home, hub};
use crate::fabric::{End, SOON, small};

/// A sequence of numbers that looks random and is always the same.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

/// A submitter, and its submissions by channel, each with a number of its own and its fate.
struct Player {
    submitter: Submitter<Host>,
    who: u32,
    next: u32,
    open: BTreeMap<u32, usize>,
}

/// Content of a message: its sender, and its number.
fn word(who: u32, number: u32) -> u32 {
    who << 20 | number
}

#[derive(Default)]
struct Seen {
    /// The last number of each sender that came on each channel.
    last: BTreeMap<(usize, u32), u32>,
    all: Vec<u32>,
}

impl Seen {
    fn take(&mut self, channel: usize, numbers: Vec<u32>) {
        for word in numbers {
            let (who, number) = (word >> 20, word & 0xf_ffff);
            let before = self.last.insert((channel, who), number);
            assert!(before.is_none_or(|before| before < number), "in order, and once");
            self.all.push(word);
        }
    }
}

/// The numbers that are there now, of an end that may fail.
fn heard(end: &mut End) -> Vec<u32> {
    let mut numbers = Vec::new();
    for _ in 0..4 {
        end.worker()
            .poll_tending(|_, event| {
                if let Event::Received { message, .. } = event {
                    numbers.push(u32::from_be_bytes(message.payload().try_into().unwrap()));
                }
            })
            .unwrap();
    }
    numbers
}

/// Takes what failed; what it failed with does not contradict what was seen.
fn take_failures(player: &mut Player) -> Vec<(u32, SubmissionError)> {
    let mut failed = Vec::new();
    while let Some(failure) = player.submitter.failure() {
        if failure.error == SubmissionError::Unknown {
            assert!(failure.lease.is_none());
            continue;
        }
        let lease = failure.lease.unwrap();
        let word = u32::from_be_bytes(lease.payload().try_into().unwrap());
        assert!(
            player.open.remove(&(word & 0xf_ffff)).is_some(),
            "once, and its own"
        );
        failed.push((word, failure.error));
        player.submitter.release(lease);
    }
    failed
}

/// Sender number of the polling thread.
const OWN: u32 = 0;

/// Requests that the polling thread submitted, and their fates.
#[derive(Default)]
struct Own {
    next: u32,
    /// By number, which was taken, the channel.
    taken: BTreeMap<u32, usize>,
    back: BTreeSet<u32>,
    /// Channels on which a request failed.
    failed: BTreeSet<usize>,
}

impl Own {
    /// Submits the next number, which may be refused at once.
    fn submit(&mut self, worker: &mut Worker<Host>, ids: &[ChannelId], channel: usize) {
        let number = self.next;
        self.next += 1;
        if let (Some(mut lease), Some(_)) = (worker.lease(), worker.channel(ids[channel])) {
            lease.fill(&word(OWN, number).to_be_bytes()).unwrap();
            let to = worker.channel(ids[channel]).unwrap();
            if to.submit(Operation::Send, lease, PostFlags::empty()).is_ok() {
                self.taken.insert(number, channel);
            }
        }
    }

    fn note(&mut self, mut turn: Turn<'_, Host>, event: Event<'_, Host>, ids: &[ChannelId]) {
        match event {
            Event::Unsent {
                lease: Some(lease), ..
            } => {
                let word = u32::from_be_bytes(lease.payload().try_into().unwrap());
                assert!(self.back.insert(word & 0xf_ffff), "once");
                turn.release(lease);
            }
            Event::Failed { .. } => {
                let id = turn.channel.id();
                self.failed.extend(ids.iter().position(|own| *own == id));
            }
            _ => {}
        }
    }

    /// Returns the submissions that were taken and have no known fate, each with its channel.
    fn untold(&self, seen: &Seen) -> Vec<(u32, usize)> {
        let all = self.taken.iter().map(|(number, channel)| (*number, *channel));
        all.filter(|(number, channel)| {
            let came = seen.all.contains(&word(OWN, *number));
            assert!(
                !(came && self.back.contains(number)),
                "either it came, or it came back"
            );
            !(came || self.back.contains(number) || self.failed.contains(channel))
        })
        .collect()
    }
}

/// How much memory of the Worker can be leased now.
fn home_of(worker: &mut Worker<Host>) -> usize {
    core::iter::from_fn(|| worker.lease()).collect::<Vec<_>>().len()
}

fn play(seed: u64) {
    let mut chance = Chance(seed);
    let mut quiet = small();
    quiet.unsignaled_max = [0, 4, 1000][chance.below(3)];
    let Hub {
        node,
        worker,
        ids,
        mut ends,
        ..
    } = hub(3, quiet);
    let mut worker = Some(worker);
    let fabric = node.provider().fabric().clone();
    let mut next_who = 0;
    let mut player = |submitter: Submitter<Host>| {
        next_who += 1;
        Player {
            submitter,
            who: next_who,
            next: 0,
            open: BTreeMap::new(),
        }
    };
    let mut players = Vec::new();
    for _ in 0..2 {
        players.push(player(worker.as_mut().unwrap().submitter(&config(6, 4)).unwrap()));
    }
    for submitter in worker.as_mut().unwrap().submitters(2, &config(6, 4)).unwrap() {
        players.push(player(submitter));
    }
    let mut seen = Seen::default();
    let mut own = Own::default();
    for _ in 0..600 {
        let at = chance.below(players.len());
        let channel = chance.below(ids.len());
        match (chance.below(100), &mut worker) {
            (0..30, Some(worker)) => {
                own.submit(worker, &ids, channel);
            }
            (30..60, _) => {
                let player = &mut players[at];
                if let Some(mut lease) = player.submitter.lease() {
                    lease.fill(&word(player.who, player.next).to_be_bytes()).unwrap();
                    if player.submitter.send(ids[channel], lease).is_ok() {
                        player.open.insert(player.next, channel);
                    }
                    player.next += 1;
                }
            }
            (60..80, Some(worker)) => {
                worker
                    .poll_tending(|turn, event| own.note(turn, event, &ids))
                    .unwrap();
            }
            (80..90, _) => seen.take(channel, heard(&mut ends[channel])),
            (90..95, _) => {
                take_failures(&mut players[at]);
            }
            (95, Some(_)) => {
                let call = ["post", "post", "unclear-post"][chance.below(3)];
                let plan = format!("fail {}th {call} of hub with 12", 4 + chance.below(5));
                fabric.follow(&plan.parse().unwrap());
            }
            (96, Some(worker)) if chance.below(4) == 0 => {
                let patience = Duration::from_millis(chance.below(3) as u64);
                let soon = worker.within(patience);
                worker.begin_close(ids[channel], soon).ok();
            }
            (97, Some(worker)) => {
                if let (0, Some(channel)) = (chance.below(4), worker.channel(ids[channel])) {
                    channel.shut().unwrap();
                }
            }
            (98, Some(worker)) => {
                drop(players.remove(at));
                players.push(player(worker.submitter(&config(6, 4)).unwrap()));
            }
            (99, _) if chance.below(20) == 0 => worker = None,
            _ => {}
        }
    }
    // Closed, so that unsignaled requests in flight are reported, too; polled until all are.
    if let Some(worker) = &mut worker {
        for id in &ids {
            let soon = worker.within(Duration::from_millis(5 * chance.below(2) as u64));
            worker.begin_close(*id, soon).ok();
        }
    }
    let mut failed = Vec::new();
    let (mut is_over, mut open) = (false, (vec![], 64));
    let began = Instant::now();
    while !is_over {
        assert!(
            began.elapsed() < SOON,
            "seed {seed}: something is never told of, {open:?}"
        );
        if let Some(worker) = &mut worker {
            // Time passes meanwhile: unsignaled requests have no report before their queue pair goes.
            let soon = worker.within(Duration::from_millis(10));
            let waited = worker.wait_tending(Wait::Busy, soon, |turn, event| own.note(turn, event, &ids));
            waited.unwrap();
        }
        for (channel, end) in ends.iter_mut().enumerate() {
            seen.take(channel, heard(end));
        }
        is_over = players.iter_mut().all(|player| {
            failed.extend(take_failures(player));
            home(&mut player.submitter) == 6
        });
        // Once the channels are gone, all the Worker's memory is.
        if let Some(worker) = &mut worker {
            open = (own.untold(&seen), home_of(worker));
            is_over &= open == (vec![], 64);
        }
    }
    for player in &mut players {
        failed.extend(take_failures(player));
    }
    // Nothing that failed before it was posted has come, and nothing twice.
    for (word, error) in failed {
        if !matches!(error, SubmissionError::Ended(_)) {
            assert!(!seen.all.contains(&word), "seed {seed}: {error:?} of what came");
        }
    }
    drop((players, worker));
}

#[test]
fn whatever_happens_everything_is_told_of_and_comes_home() {
    for seed in 0..24 {
        play(seed);
    }
}
