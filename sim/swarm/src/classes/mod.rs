//! Oracles over classes of service.
//!
//! A limit is never exceeded by more than its burst and the bytes of one request. All that arrives was counted in its class. While a
//! transfer of a higher class is under way, those below it bring no more than what may be under way while it waits for its peer.
//! While two classes of one priority have transfers, they post by their weights, but for as much.

pub(crate) mod case;

use doorbell::link::{TransferConfig, TransferId};
use doorbell::provider::Clock as _;
use doorbell::wire::{SESSION_HEADER_BYTES, SESSION_PLACED_BYTES};
use doorbell::worker::ClassCounts;

use crate::case::{Case, What};
use crate::classes::case::ClassesCase;
use crate::failure::{Verdict, ensure};
use crate::linked::LinkedRun;
use crate::run::Run;
use crate::transfers::Side;

/// Rails of a link at most, and how often each may be filled by others while a transfer waits for its peer.
const RAILS: u64 = 2;
const ROUNDS: u64 = 8;

/// A transfer that another shares with by weight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sharer {
    at: usize,
    /// The class of each, and what had been posted in it when both were joined.
    own: (u8, u64),
    its: (u8, u64),
}

/// The classes of one process or Worker, as seen from outside.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    began_ns: u64,
    /// The bucket of each class that has a limit: its level, and when that was.
    buckets: Vec<(i128, u64)>,
    /// Bytes that were counted in each class.
    counted: Vec<u64>,
    /// Bytes of messages and transfers that have arrived.
    arrived: Vec<u64>,
}

impl Watched {
    /// Classes that began at this time.
    pub(crate) fn since(began_ns: u64) -> Self {
        Self {
            began_ns,
            ..Self::default()
        }
    }

    /// Looks at the counts before a poll and behind it, at a time by the clock that limits go by: so a bucket is full at most as the poll
    /// begins. No request has more bytes than this.
    pub(crate) fn look(
        &mut self,
        (case, classes): (&Case, &ClassesCase),
        counts: impl Fn(u8) -> Option<ClassCounts>,
        (now_ns, bytes_max): (u64, u64),
        is_clock_well: bool,
    ) -> Verdict {
        let takes_time = case.handler_ns > 0 || case.call_ns > 0;
        for (number, class) in classes.table.iter().enumerate() {
            let Some(counts) = counts(number as u8) else {
                return Ok(());
            };
            if self.counted.len() <= number {
                self.counted.push(0);
                self.arrived.push(0);
                self.buckets.push((0, self.began_ns));
            }
            let came = counts.bytes - self.counted[number];
            self.counted[number] = counts.bytes;
            let arrived = self.arrived[number];
            ensure(arrived <= counts.bytes, "counted", || {
                format!("class {number} has {} bytes, and {arrived} arrived", counts.bytes)
            })?;
            if class.rate == 0 || !is_clock_well || takes_time {
                continue;
            }
            let (level, at_ns) = &mut self.buckets[number];
            let burst = match class.burst {
                0 => i128::from(class.rate / 100),
                burst => i128::from(burst),
            };
            // In billionths of a byte, so that nothing is lost.
            let gained = i128::from(now_ns - *at_ns) * i128::from(class.rate);
            *level += gained - i128::from(came) * 1_000_000_000;
            *at_ns = now_ns;
            let most = (i128::from(bytes_max) + 1) * 1_000_000_000;
            ensure(*level >= -most, "limit", || {
                let beyond = -*level / 1_000_000_000;
                format!("class {number} is {beyond} bytes beyond {class:?}")
            })?;
            *level = (*level).min(burst * 1_000_000_000);
        }
        Ok(())
    }
}

impl Run<'_> {
    /// Looks at the counts of a Worker's classes, before a poll and behind it.
    pub(crate) fn check_classes(&mut self, host: usize, worker: usize) -> Verdict {
        let Some(classes) = &self.case.classes else {
            return Ok(());
        };
        let station = &mut self.stations[host];
        let now_ns = station.host.now().to_ns();
        let (watched, worker) = (&mut station.watched[worker], &station.workers[worker]);
        let bytes_max = u64::from(self.case.hosts[host].slot_bytes);
        let is_clock_well = !self.excuses.clocks;
        let counts = |class| worker.class_counts(class);
        watched.look((self.case, classes), counts, (now_ns, bytes_max), is_clock_well)
    }
}

impl LinkedRun<'_> {
    /// Whether nothing holds a host up.
    fn is_steady(&self) -> bool {
        let mut operations = self.case.operations.iter();
        self.is_untroubled
            && !operations.any(|each| matches!(each.what, What::Stop { .. } | What::StopOnceHeard { .. }))
    }

    /// Looks at the counts of a host's classes, before a poll and behind it.
    pub(crate) fn check_classes(&mut self, host: usize) -> Verdict {
        let Some(classes) = &self.case.classes else {
            return Ok(());
        };
        let (seat, watched) = (&self.seats[host], &mut self.watched[host]);
        let Some(process) = &seat.process else {
            return Ok(());
        };
        let now_ns = seat.host().now().to_ns();
        let bytes_max = self.request_bytes_max[host];
        let is_clock_well = !self.excuses.clocks;
        let counts = |class| process.links.class_counts(class);
        watched.look((self.case, classes), counts, (now_ns, bytes_max), is_clock_well)
    }

    /// Bytes arrived that an end of a link sent.
    pub(crate) fn note_arrived(&mut self, bond: usize, end: usize, bytes: u64) {
        let bond = &self.bonds[bond];
        let host = self.case.lines[bond.line].hosts[end];
        let process = self.seats[host].process.as_ref();
        let class = process
            .zip(bond.id(end))
            .and_then(|(process, id)| process.links.class(id));
        let watched = class.and_then(|class| self.watched[host].arrived.get_mut(usize::from(class)));
        if let Some(arrived) = watched {
            *arrived += bytes;
        }
    }

    /// The priority of an end's class, if its process has classes, and whether that has a limit.
    fn priority(&self, bond: usize, end: usize) -> Option<(u8, bool)> {
        let classes = self.case.classes.as_ref()?;
        let host = self.case.lines[self.bonds[bond].line].hosts[end];
        let process = self.seats[host].process.as_ref()?;
        process.links.class_counts(0)?;
        let number = process.links.class(self.bonds[bond].id(end)?)?;
        let class = classes.class(number);
        Some((
            class.map_or(0, |class| class.priority),
            class.is_some_and(|class| class.rate > 0),
        ))
    }

    /// Transfers of lower classes that the giver of one gives, too, as that is joined, and the bytes of each that had come.
    pub(crate) fn lower_rivals(&self, at: usize) -> Vec<(usize, u64)> {
        let moved = &self.moved[at];
        let host_of = |at: usize| {
            let moved = &self.moved[at];
            self.case.lines[self.bonds[moved.bond].line].hosts[moved.giver()]
        };
        let Some((own, false)) = self.priority(moved.bond, moved.giver()) else {
            return Vec::new();
        };
        let rivals = (0..self.moved.len()).filter(|other| {
            let rival = &self.moved[*other];
            let is_lower = self
                .priority(rival.bond, rival.giver())
                .is_some_and(|(its, _)| its < own);
            is_lower && host_of(*other) == host_of(at) && rival.sides.iter().all(|side| side.has_joined)
        });
        rivals.map(|other| (other, self.landed(other))).collect()
    }

    /// The process that gives a transfer, and its class there.
    fn giver_of(&self, at: usize) -> Option<(usize, u8)> {
        let moved = &self.moved[at];
        let host = self.case.lines[self.bonds[moved.bond].line].hosts[moved.giver()];
        let process = self.seats[host].process.as_ref()?;
        let class = process.links.class(self.bonds[moved.bond].id(moved.giver())?)?;
        Some((host, class))
    }

    /// The bytes that a process has posted in a class.
    fn posted(&self, host: usize, class: u8) -> u64 {
        let process = self.seats[host].process.as_ref();
        let counts = process.and_then(|process| process.links.class_counts(class));
        counts.map_or(0, |counts| counts.bytes)
    }

    /// Notes, at each of them, the transfers of other classes that share with one by weight, as that is joined.
    pub(crate) fn note_sharers(&mut self, at: usize) {
        let Some((host, own)) = self.giver_of(at) else {
            return;
        };
        let of = |at: usize| self.priority(self.moved[at].bond, self.moved[at].giver());
        let Some(level @ (_, false)) = of(at) else {
            return;
        };
        let is_under_way = |side: &Side| side.has_joined && side.end.is_none();
        let sharers = (0..self.moved.len()).filter_map(|other| {
            let (its_host, its) = self.giver_of(other)?;
            let shares = its_host == host && its != own && of(other) == Some(level);
            (shares && self.moved[other].sides.iter().all(is_under_way)).then_some((other, its))
        });
        let sharers: Vec<_> = sharers.collect();
        let own = (own, self.posted(host, own));
        for (other, its) in sharers {
            let its = (its, self.posted(host, its));
            self.moved[at].sharers.push(Sharer { at: other, own, its });
            self.moved[other].sharers.push(Sharer {
                at,
                own: its,
                its: own,
            });
        }
    }

    /// Classes posted by their weights until a transfer was done, while another of theirs was under way all the time.
    pub(crate) fn judge_shares(&self, at: usize) -> Verdict {
        let classes = self.case.classes.as_ref().filter(|classes| classes.is_contest);
        let Some(classes) = classes.filter(|_| self.is_steady()) else {
            return Ok(());
        };
        let Some((host, _)) = self.giver_of(at) else {
            return Ok(());
        };
        let weight = |class: u8| {
            let weight = classes.class(class).map_or(1, |class| class.weight);
            u128::from(weight.max(1))
        };
        let slack = self.slack(classes);
        for sharer in &self.moved[at].sharers {
            if self.moved[sharer.at].sides.iter().any(|side| side.end.is_some()) {
                continue;
            }
            let [own, its] = [sharer.own, sharer.its].map(|(class, before)| {
                let bytes = self.posted(host, class).saturating_sub(before);
                (weight(class), u128::from(bytes))
            });
            for ((weight, bytes), (other_weight, others)) in [(own, its), (its, own)] {
                let fair = others * weight / other_weight;
                ensure(bytes <= fair + u128::from(slack), "share", || {
                    format!("{bytes} bytes of weight {weight} beside {others} of {other_weight}: {sharer:?}")
                })?;
            }
        }
        Ok(())
    }

    /// Bytes that others may fill rails with while a transfer waits for its peer.
    fn slack(&self, classes: &ClassesCase) -> u64 {
        let pieces = self.transfers.iter().map(|config| config.piece_bytes);
        let each = u64::from(classes.bytes_ahead_max) + pieces.max().map_or(0, u64::from);
        RAILS * ROUNDS * each
    }

    /// Lower classes brought no more, until a transfer was done, than what may be under way while it waits for its peer.
    pub(crate) fn judge_classes(&self, at: usize) -> Verdict {
        let classes = self.case.classes.as_ref().filter(|classes| classes.is_contest);
        let Some(classes) = classes.filter(|_| self.is_steady()) else {
            return Ok(());
        };
        let moved = &self.moved[at];
        let most = self.slack(classes);
        let came = moved
            .lower
            .iter()
            .map(|(rival, before)| self.landed(*rival).saturating_sub(*before));
        let came = came.sum::<u64>();
        ensure(came <= most, "class", || {
            let of: Vec<TransferId> = moved
                .lower
                .iter()
                .map(|(rival, _)| self.moved[*rival].id)
                .collect();
            format!(
                "{came} bytes of {of:?} came in front of {}, of a higher class, and {most} may",
                moved.id
            )
        })
    }
}

/// The longest request of each host: a message in one fragment with its header, or a piece. A fragment that is written is as long as
/// a piece at most, and goes with its frame. The side that begins a transfer says how
/// long its pieces are, and another side may begin it.
pub(crate) fn request_bytes_max(case: &Case, transfers: &[TransferConfig]) -> Vec<u64> {
    let pieces = (0..).zip(transfers).map(|(host, config)| {
        let classes = case.classes.as_ref().and_then(|classes| classes.of(host));
        // A quarter of what may be under way, but no less than pieces have.
        let most = classes.map_or(u32::MAX, |classes| (classes.bytes_ahead_max / 4).max(4096));
        u64::from(config.piece_bytes.min(most))
    });
    let frame = case.links.map_or(0, |links| match links.places {
        0 => 0,
        _ => SESSION_PLACED_BYTES as u64,
    });
    let pieces = pieces.max().map(|bytes| bytes + frame);
    let fragment = case.links.map_or(0, |links| u64::from(links.fragment_bytes));
    let most = pieces.unwrap_or(0).max(fragment + SESSION_HEADER_BYTES as u64);
    vec![most; transfers.len()]
}
