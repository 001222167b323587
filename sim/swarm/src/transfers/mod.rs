//! Transfers of links, as both ends together see them, and the oracles over that.
//!
//! All bytes of a transfer that is done have arrived, and beside them nothing changed. The memory of an end is its
//! application's from its end on, or, if it was lent to the peer, once that is revoked: it writes there at once, and nothing
//! else does. Both ends report each transfer and its end
//! once, and the reasons fit. `judge` compares them.

pub(crate) mod case;
mod judge;

use doorbell::link::{
    LoanId, TransferEnd, TransferEvent, TransferId, TransferOptions, TransferRefusal, TransferRole,
};
use doorbell::memory::Region;
use doorbell::provider::PlacementConfig;
use doorbell_sim::Host;

use crate::classes::Sharer;
use crate::failure::{Verdict, ensure, failure};
use crate::linked::LinkedRun;
use crate::process::Process;
use case::{AnswerCase, BeginCase};

/// Bytes of the memory of a side behind the range.
const BEHIND_BYTES: usize = 40;

/// The parts of the seed of a pattern: what a giver has, what is in a taker's memory before, and what both write behind the end.
const GIVEN: u64 = 1;
const BEFORE: u64 = 2;
const AFTER: u64 = 3;

/// A transfer.
pub(crate) struct Moved {
    /// The link.
    pub(crate) bond: usize,
    /// The end that began it.
    pub(crate) beginner: usize,
    pub(crate) id: TransferId,
    pub(crate) how: BeginCase,
    began_ns: u64,
    pub(crate) sides: [Side; 2],
    /// Its number among all: its tag, too.
    tag: u64,
    /// Others of lower priority as it was joined, and the bytes of each that had come.
    rivals: Vec<(usize, u64)>,
    /// Others that lower classes have, in the same way.
    pub(crate) lower: Vec<(usize, u64)>,
    /// Others that share with it by weight.
    pub(crate) sharers: Vec<Sharer>,
}

/// One end of a transfer.
#[derive(Default)]
pub(crate) struct Side {
    /// The memory, once the end has joined.
    memory: Option<Region<Host>>,
    /// The loan that its memory is, until it is revoked.
    loan: Option<LoanId>,
    /// The other end began it, and this one was told.
    pub(crate) is_told: bool,
    /// When this end answers an offer.
    answers_at_ns: Option<u64>,
    pub(crate) has_joined: bool,
    /// When the application cancelled it, and whether it had not joined.
    pub(crate) cancelled: Option<(u64, bool)>,
    /// By when it is to be done, as the application said.
    pub(crate) until_ns: Option<u64>,
    /// How it ended.
    pub(crate) end: Option<TransferEnd>,
    pub(crate) ended_ns: u64,
    /// Its process, or the link of its process, is gone.
    pub(crate) is_gone: bool,
    /// The bytes that were reported last.
    progress: u64,
}

impl Side {
    pub(crate) const fn is_over(&self) -> bool {
        self.end.is_some() || self.is_gone
    }
}

impl Moved {
    /// Whether the application of a side may end it before it is whole.
    fn has_limit(&self) -> bool {
        self.sides
            .iter()
            .any(|side| side.cancelled.is_some() || side.until_ns.is_some())
    }

    pub(crate) const fn giver(&self) -> usize {
        if self.how.gives {
            self.beginner
        } else {
            1 - self.beginner
        }
    }

    /// Whether the side that joins takes the bytes into memory that it lends.
    const fn is_lent(&self) -> bool {
        self.tag % 3 == 1
    }

    fn role(&self, end: usize) -> TransferRole {
        match self.giver() == end {
            true => TransferRole::Giver,
            false => TransferRole::Taker,
        }
    }

    /// Whether nothing of it is open.
    pub(crate) fn is_over(&self) -> bool {
        let has_loan = self.sides.iter().any(|side| side.loan.is_some() && !side.is_gone);
        !has_loan
            && self.sides.iter().all(|side| side.is_over() || side.is_unheard())
            && self.sides[self.beginner].is_over()
    }

    /// Offset and bytes of its range in the memory of a side, and the bytes of that memory.
    fn place(&self) -> (usize, usize, usize) {
        let (offset, bytes) = (usize::from(self.how.offset), self.how.bytes as usize);
        (offset, bytes, offset + bytes + BEHIND_BYTES)
    }

    /// Bytes of its memory.
    fn pattern(&self, part: u64, bytes: usize) -> Vec<u8> {
        let mut filled = Vec::with_capacity(bytes + 8);
        let mut word = (self.tag << 2 | part).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        while filled.len() < bytes {
            word = word.wrapping_mul(0xbf58_476d_1ce4_e5b9).rotate_left(29) ^ part;
            filled.extend(word.to_le_bytes());
        }
        filled.truncate(bytes);
        filled
    }

    /// The memory of a side as it joins.
    fn memory(&self, end: usize, process: &Process) -> Verdict<Region<Host>> {
        let (offset, bytes, whole) = self.place();
        let region = process
            .node
            .region(&process.workers, whole, &PlacementConfig::DEFAULT);
        let region = region.map_err(|error| failure("region", error.to_string()))?;
        fill(&region, 0, &self.pattern(BEFORE, whole))?;
        if self.giver() == end {
            fill(&region, offset, &self.pattern(GIVEN, bytes))?;
        }
        Ok(region)
    }

    /// The application has its memory back: looks at what is there, and writes other bytes over it.
    fn reuse(&self, end: usize) -> Verdict {
        let Some(memory) = &self.sides[end].memory else {
            return Ok(());
        };
        let (offset, bytes, whole) = self.place();
        if self.giver() != end {
            let mut there = vec![0; whole];
            read(memory, &mut there)?;
            let mut due = self.pattern(BEFORE, whole);
            if self.sides[end].end == Some(TransferEnd::Done) {
                due[offset..offset + bytes].copy_from_slice(&self.pattern(GIVEN, bytes));
            } else {
                // Any part of it may have come.
                due[offset..offset + bytes].copy_from_slice(&there[offset..offset + bytes]);
            }
            ensure(there == due, "bytes", || {
                let at = there.iter().zip(&due).position(|(a, b)| a != b);
                format!(
                    "{} ended {:?}, and byte {at:?} of its memory is wrong",
                    self.name(),
                    self.sides[end].end
                )
            })?;
        }
        fill(memory, 0, &self.pattern(AFTER, whole))
    }

    /// Nothing has written into the memory of a side since its end.
    fn check_after(&self, end: usize) -> Verdict {
        let Some(memory) = self.sides[end].memory.as_ref() else {
            return Ok(());
        };
        let (.., whole) = self.place();
        let mut there = vec![0; whole];
        read(memory, &mut there)?;
        ensure(
            there == self.pattern(AFTER, whole),
            "written behind the end",
            || format!("the memory of end {end} of {}", self.name()),
        )
    }

    fn name(&self) -> String {
        format!(
            "transfer {} of {} bytes from end {} of link {}",
            self.id,
            self.how.bytes,
            self.giver(),
            self.bond + 1
        )
    }
}

impl Side {
    /// Never told of the transfer.
    const fn is_unheard(&self) -> bool {
        !self.is_told && !self.has_joined
    }
}

fn fill(region: &Region<Host>, offset: usize, bytes: &[u8]) -> Verdict {
    let copied = region.copy_in(offset, bytes);
    copied.map_err(|error| failure("region", error.to_string()))
}

fn read(region: &Region<Host>, bytes: &mut [u8]) -> Verdict {
    let copied = region.copy_out(0, bytes);
    copied.map_err(|error| failure("region", error.to_string()))
}

fn options(how: &BeginCase, tag: u64, within_ns: u64) -> TransferOptions {
    let mut options = TransferOptions::default();
    (options.tag, options.priority) = (tag, how.priority);
    options.within = (within_ns > 0).then_some(core::time::Duration::from_nanos(within_ns));
    options
}

impl LinkedRun<'_> {
    /// An end of a line's link begins a transfer.
    pub(crate) fn begin(&mut self, line: usize, end: usize, how: BeginCase) -> Verdict {
        let Some(bond) = self.current(line).filter(|at| self.bonds[*at].is_whole()) else {
            return Ok(());
        };
        let host = self.case.lines[line].hosts[end];
        let (Some(link), Some(process)) = (self.bonds[bond].id(end), &mut self.seats[host].process) else {
            return Ok(());
        };
        let now_ns = self.fabric.now().to_ns();
        let open = self
            .moved
            .iter()
            .filter(|moved| (moved.bond, moved.beginner) == (bond, end) && moved.sides[end].end.is_none());
        let is_full = open.count() >= self.transfers[host].transfers_max as usize;
        let tag = self.moved.len() as u64;
        let mut moved = Moved {
            bond,
            beginner: end,
            id: TransferId(0),
            how,
            began_ns: now_ns,
            sides: Default::default(),
            tag,
            rivals: Vec::new(),
            lower: Vec::new(),
            sharers: Vec::new(),
        };
        let memory = moved.memory(end, process)?;
        let (offset, bytes, _) = moved.place();
        let options = options(&how, tag, how.within_ns[0]);
        let range = (&memory, offset, bytes as u64);
        let begun = match how.gives {
            true => process.links.offer(&process.node, link, range, &options),
            false => process.links.ask(&process.node, link, range, &options),
        };
        let refused = match begun {
            Ok(id) => {
                moved.id = id;
                None
            }
            Err(refusal) => Some(refusal),
        };
        ensure(
            is_full == matches!(refused, Some(TransferRefusal::Full { .. })),
            "refused",
            || {
                format!(
                    "{} is begun: {refused:?}, and it is full: {is_full}",
                    moved.name()
                )
            },
        )?;
        match refused {
            None => {}
            Some(TransferRefusal::Full { .. }) => return Ok(()),
            Some(refusal) => return Err(failure("refused", format!("{}: {refusal}", moved.name()))),
        }
        let side = &mut moved.sides[end];
        (side.memory, side.has_joined) = (Some(memory), true);
        side.until_ns = options.within.map(|_| now_ns.saturating_add(how.within_ns[0]));
        let is_new = self
            .moved
            .iter()
            .all(|other| (other.bond, other.id) != (moved.bond, moved.id));
        ensure(is_new, "number", || {
            format!("{} has a number that was used", moved.name())
        })?;
        self.note(host, format_args!("begins {}", moved.name()));
        self.moved.push(moved);
        Ok(())
    }

    /// An end of a line's link cancels one of its transfers.
    pub(crate) fn cancel(&mut self, line: usize, end: usize, which: u8) -> Verdict {
        let Some(bond) = self.current(line) else {
            return Ok(());
        };
        let open: Vec<_> = (0..self.moved.len())
            .filter(|at| {
                let moved = &self.moved[*at];
                let side = &moved.sides[end];
                moved.bond == bond && !side.is_over() && (side.has_joined || side.is_told)
            })
            .collect();
        match open.get(usize::from(which) % open.len().max(1)) {
            Some(at) => self.cancel_moved(*at, end),
            None => Ok(()),
        }
    }

    /// An end cancels this one.
    pub(crate) fn cancel_moved(&mut self, at: usize, end: usize) -> Verdict {
        let bond = &self.bonds[self.moved[at].bond];
        let host = self.case.lines[bond.line].hosts[end];
        let (Some(link), Some(process)) = (bond.id(end), &mut self.seats[host].process) else {
            return Ok(());
        };
        let moved = &mut self.moved[at];
        let cancelled = process.links.cancel(&process.node, (link, moved.id));
        ensure(
            cancelled.is_ok() || matches!(cancelled, Err(TransferRefusal::Over(_))),
            "refused",
            || format!("{} is cancelled: {cancelled:?}", moved.name()),
        )?;
        let side = &mut moved.sides[end];
        let now_ns = self.fabric.now().to_ns();
        side.cancelled.get_or_insert((now_ns, !side.has_joined));
        side.answers_at_ns = None;
        let name = moved.name();
        self.note(host, format_args!("cancels {name}"));
        Ok(())
    }

    /// Answers the offers that are due at a host. Returns when it is to poll again: for the next one, or for what an answer gave its links
    /// to do, of which their `wake` of the last poll says nothing.
    pub(crate) fn answer_offers(&mut self, host: usize) -> Verdict<u64> {
        let now_ns = self.fabric.now().to_ns();
        let every_ns = self.case.links.map_or(1, |links| links.polls_every_ns);
        let mut next_ns = u64::MAX;
        for at in 0..self.moved.len() {
            let moved = &self.moved[at];
            let end = 1 - moved.beginner;
            let hosts = self.case.lines[self.bonds[moved.bond].line].hosts;
            let Some(due_ns) = moved.sides[end].answers_at_ns.filter(|_| hosts[end] == host) else {
                continue;
            };
            if due_ns > now_ns {
                next_ns = next_ns.min(due_ns);
                continue;
            }
            self.moved[at].sides[end].answers_at_ns = None;
            next_ns = next_ns.min(now_ns.saturating_add(every_ns));
            match self.moved[at].how.answer {
                AnswerCase::Declines { .. } => self.cancel_moved(at, end)?,
                _ => self.join(at, end)?,
            }
        }
        Ok(next_ns)
    }

    fn join(&mut self, at: usize, end: usize) -> Verdict {
        let bond = &self.bonds[self.moved[at].bond];
        let is_whole = bond.is_whole();
        let host = self.case.lines[bond.line].hosts[end];
        let (Some(link), Some(process)) = (bond.id(end), &mut self.seats[host].process) else {
            return Ok(());
        };
        let moved = &mut self.moved[at];
        if moved.sides[end].is_over() {
            return Ok(());
        }
        let memory = moved.memory(end, process)?;
        let (offset, _, whole) = moved.place();
        let mut options = options(&moved.how, moved.tag, moved.how.within_ns[1]);
        let to = (link, moved.id);
        if moved.is_lent() && moved.giver() != end {
            // A link that takes no loan refuses the transfer, too.
            let lent = process.links.lend(&process.node, link, (&memory, 0, whole));
            options.loan = lent.ok();
            moved.sides[end].loan = options.loan;
        }
        let joined = process.links.join(&process.node, to, (&memory, offset), &options);
        let now_ns = self.fabric.now().to_ns();
        match joined {
            Ok(()) => {
                let side = &mut moved.sides[end];
                (side.memory, side.has_joined) = (Some(memory), true);
                side.until_ns = options
                    .within
                    .map(|_| now_ns.saturating_add(moved.how.within_ns[1]));
                let name = moved.name();
                self.note(host, format_args!("joins {name}"));
                self.note_rivals(at);
                Ok(())
            }
            Err(TransferRefusal::Closing | TransferRefusal::Over(_)) if !is_whole => Ok(()),
            Err(refusal) => Err(failure(
                "refused",
                format!("{} is joined: {refusal}", moved.name()),
            )),
        }
    }

    /// An end is told something of a transfer.
    pub(crate) fn hear_transfer(
        &mut self,
        (bond, end): (usize, usize),
        id: TransferId,
        event: TransferEvent,
    ) -> Verdict {
        let found = self
            .moved
            .iter()
            .position(|moved| (moved.bond, moved.id) == (bond, id));
        let Some(at) = found else {
            return Err(failure("made up", format!("{id}: {event:?}")));
        };
        let now_ns = self.fabric.now().to_ns();
        let moved = &mut self.moved[at];
        let name = moved.name();
        ensure(!moved.sides[end].is_over(), "told", || {
            format!("{event:?} of {name} behind its end")
        })?;
        match event {
            TransferEvent::Offered { role, bytes, tag } => {
                let due = (moved.role(end), u64::from(moved.how.bytes), moved.tag);
                let is_so = end != moved.beginner && !moved.sides[end].is_told;
                ensure(is_so && (role, bytes, tag) == due, "told", || {
                    format!("{event:?} of {name} to end {end}")
                })?;
                moved.sides[end].is_told = true;
                moved.sides[end].answers_at_ns = moved.how.answer.at_ns(now_ns);
                self.check_room(bond, end)?;
                self.note_room(bond, end, now_ns);
                Ok(())
            }
            TransferEvent::Progress { bytes, .. } => {
                let side = &mut moved.sides[end];
                let is_more = bytes > side.progress && bytes < u64::from(moved.how.bytes);
                side.progress = bytes;
                ensure(is_more && side.has_joined, "progress", || {
                    format!("{event:?} of {name} at end {end}")
                })
            }
            TransferEvent::Ended { end: how, counts, .. } => {
                (moved.sides[end].end, moved.sides[end].ended_ns) = (Some(how), now_ns);
                moved.sides[end].progress = counts.landed_bytes;
                if how == TransferEnd::Done && moved.giver() != end {
                    let (bond, giver, bytes) = (moved.bond, moved.giver(), u64::from(moved.how.bytes));
                    self.note_arrived(bond, giver, bytes);
                }
                let moved = &mut self.moved[at];
                moved.sides[end].answers_at_ns = None;
                match moved.sides[end].loan {
                    // It may be revoked by the end of the link.
                    Some(loan) => {
                        let host = self.case.lines[self.bonds[moved.bond].line].hosts[end];
                        let link = self.bonds[moved.bond].id(end);
                        if let (Some(process), Some(link)) = (&mut self.seats[host].process, link) {
                            let _ = process.links.revoke(&process.node, (link, loan));
                        }
                    }
                    None => self.moved[at].reuse(end)?,
                }
                self.judge_transfer(at, end, (how, counts), now_ns)
            }
            _ => Err(failure("event", format!("{event:?}"))),
        }
    }

    /// An end is told that memory that it lent is its own again.
    pub(crate) fn hear_revoked(&mut self, (bond, end): (usize, usize), loan: LoanId) -> Verdict {
        let is_its = |moved: &&mut Moved| moved.bond == bond && moved.sides[end].loan == Some(loan);
        let Some(moved) = self.moved.iter_mut().find(is_its) else {
            return Err(failure("made up", format!("loan {loan} is revoked")));
        };
        ensure(moved.sides[end].end.is_some(), "told", || {
            format!("the loan of {} is revoked in front of its end", moved.name())
        })?;
        moved.sides[end].loan = None;
        moved.reuse(end)
    }

    /// A process is gone, and its memory with it.
    pub(crate) fn forget_transfers(&mut self, host: usize) {
        for moved in &mut self.moved {
            let hosts = self.case.lines[self.bonds[moved.bond].line].hosts;
            for end in (0..2).filter(|end| hosts[*end] == host) {
                let side = &mut moved.sides[end];
                (side.is_gone, side.memory, side.answers_at_ns) = (true, None, None);
                side.loan = None;
            }
        }
    }

    /// Nothing more is offered: those that wait for an answer that never comes are cancelled.
    pub(crate) fn end_offers(&mut self) -> Verdict {
        for at in 0..self.moved.len() {
            let moved = &self.moved[at];
            let end = moved.beginner;
            if moved.how.answer == AnswerCase::Never && !moved.sides[end].is_over() {
                self.cancel_moved(at, end)?;
            }
        }
        Ok(())
    }

    /// Whether every transfer has ended at both ends.
    pub(crate) fn are_transfers_quiet(&self) -> bool {
        self.moved.iter().all(Moved::is_over)
    }

    /// An end of a link that has something of a transfer left.
    pub(crate) fn kept_transfers(&self) -> Option<String> {
        self.moved.iter().find_map(|moved| {
            let bond = &self.bonds[moved.bond];
            let hosts = self.case.lines[bond.line].hosts;
            (0..2).find_map(|end| {
                let process = self.seats[hosts[end]].process.as_ref()?;
                let counts = process.links.transfer_counts(bond.id(end)?, moved.id)?;
                Some(format!("{} at end {end}: {counts:?}", moved.name()))
            })
        })
    }

    /// Nothing wrote into memory that was an application's again; then the memory goes.
    pub(crate) fn check_memory_of_transfers(&mut self) -> Verdict {
        for moved in &mut self.moved {
            for end in (0..2).filter(|end| moved.sides[*end].end.is_some()) {
                moved.check_after(end)?;
            }
            for side in &mut moved.sides {
                side.memory = None;
            }
        }
        Ok(())
    }

    /// The registrations, how many began, and how many windows there are.
    pub(crate) fn registrations(&self) -> [usize; 3] {
        let windows = self.windows.iter().filter(|window| window.is_registered());
        [self.fabric.registrations(), self.registered, windows.count()]
    }

    /// Links with a transfer that is to go on or to end: each with a key that changes as one does.
    pub(crate) fn transfers_awaited(&self) -> impl Iterator<Item = (usize, u64)> {
        (0..self.bonds.len()).filter_map(|bond| {
            let mut its = self.moved.iter().filter(|moved| moved.bond == bond);
            if !its.any(|moved| !moved.is_over()) {
                return None;
            }
            let hosts = self.case.lines[self.bonds[bond].line].hosts;
            let moved = self.moved.iter().filter(|moved| moved.bond == bond);
            let steps = moved.map(|moved| {
                let told = moved.sides.iter().map(|side| {
                    u64::from(side.is_told) + u64::from(side.has_joined) + 2 * u64::from(side.end.is_some())
                });
                let landed = (0..2).map(|end| {
                    let process = self.seats[hosts[end]].process.as_ref();
                    let link = process.zip(self.bonds[bond].id(end));
                    let counts =
                        link.and_then(|(process, link)| process.links.transfer_counts(link, moved.id));
                    counts.map_or(u64::from(moved.how.bytes), |counts| counts.landed_bytes)
                });
                told.sum::<u64>() + landed.sum::<u64>()
            });
            Some((bond, steps.sum()))
        })
    }
}
