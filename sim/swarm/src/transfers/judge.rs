//! Judges how transfers end: each reason has its cause, and comes in time.

use doorbell::link::{EndReason, FinalReason, TransferCounts, TransferEnd};

use super::Moved;
use crate::bounds::ns;
use crate::failure::{Verdict, ensure};
use crate::linked::LinkedRun;

/// Rails of a link at most, and how often each may be filled with pieces until a key has come.
const RAILS: u32 = 2;
const ROUNDS: u32 = 8;

impl LinkedRun<'_> {
    /// No more offers of a peer are open than may be.
    pub(crate) fn check_room(&mut self, bond: usize, end: usize) -> Verdict {
        let host = self.case.lines[self.bonds[bond].line].hosts[end];
        let most = self.transfers[host].transfers_max as usize;
        let open = self.offers_open(bond, end);
        ensure(open <= most, "refused", || {
            format!(
                "{open} offers are open at end {end} of link {}, and {most} may be",
                bond + 1
            )
        })
    }

    /// Offers of the peer that are open at an end.
    fn offers_open(&self, bond: usize, end: usize) -> usize {
        let open = self.moved.iter().filter(|moved| {
            let side = &moved.sides[end];
            (moved.bond, moved.beginner) == (bond, 1 - end) && side.is_told && !side.is_over()
        });
        open.count()
    }

    /// An end is told how a transfer ended.
    pub(super) fn judge_transfer(
        &mut self,
        at: usize,
        end: usize,
        (how, counts): (TransferEnd, TransferCounts),
        now_ns: u64,
    ) -> Verdict {
        self.note_room(self.moved[at].bond, end, now_ns);
        let moved = &self.moved[at];
        let bond = &self.bonds[moved.bond];
        let line = bond.line;
        let host = self.case.lines[line].hosts[end];
        let (this, other) = (&moved.sides[end], &moved.sides[1 - end]);
        let is_late = |at_ns: u64, within_ns: u64| {
            let by_ns = at_ns.saturating_add(within_ns + self.bounds[line].polls_ns);
            now_ns > by_ns && !self.reach.is_stopped(host, [at_ns, now_ns])
        };
        // A giver waits until its WRITEs are done, or their rail is lost.
        let drain_ns = match moved.giver() == end {
            true => self.bounds[line].gone_ns,
            false => ns(self.transfers[host].drain_within),
        };
        let (has_cause, is_late) = match how {
            TransferEnd::Done => {
                let is_whole = counts.landed_bytes == u64::from(moved.how.bytes);
                let is_joined = moved.sides.iter().all(|side| side.has_joined);
                (is_whole && is_joined && counts.duplicates == 0, false)
            }
            TransferEnd::Here(EndReason::CANCELLED) => match this.cancelled {
                Some((at_ns, false)) => (true, is_late(at_ns, drain_ns)),
                _ => (false, false),
            },
            TransferEnd::Here(EndReason::REFUSED) => match this.cancelled {
                Some((at_ns, true)) => (true, is_late(at_ns, 0)),
                // A side that closes the link declines what it has not joined.
                _ => (bond.is_closing(end) && !this.has_joined, false),
            },
            TransferEnd::Here(EndReason::DEADLINE) => match this.until_ns {
                Some(until_ns) => (
                    until_ns <= now_ns || self.excuses.clocks,
                    is_late(until_ns, drain_ns) && !self.excuses.clocks,
                ),
                None => (false, false),
            },
            TransferEnd::ByPeer(EndReason::CANCELLED) => (
                other.cancelled.is_some_and(|(_, is_declined)| !is_declined),
                false,
            ),
            TransferEnd::ByPeer(EndReason::REFUSED) => {
                let is_declined = other.cancelled.is_some_and(|(_, is_declined)| is_declined);
                let closes = bond.is_closing(1 - end) && !other.has_joined;
                (is_declined || closes, false)
            }
            TransferEnd::ByPeer(EndReason::DEADLINE) => {
                let has_passed = other.until_ns.is_some_and(|until_ns| until_ns <= now_ns);
                (has_passed || self.excuses.clocks, false)
            }
            TransferEnd::ByPeer(EndReason::TOO_MANY) => (self.was_full(moved), false),
            // A taker that went took its memory away, and word of that may be lost with a rail.
            TransferEnd::Here(EndReason::DENIED) => {
                let has_passed = other.until_ns.is_some_and(|until_ns| until_ns <= now_ns);
                (
                    moved.giver() == end && (other.cancelled.is_some() || has_passed),
                    false,
                )
            }
            TransferEnd::Over(_) => (true, false),
            _ => (false, false),
        };
        ensure(has_cause, "excuse", || {
            format!("{} ended at end {end}: {how}, {counts:?}", moved.name())
        })?;
        ensure(!is_late, "late", || {
            format!("{} ended at end {end} at {now_ns} ns: {how}", moved.name())
        })?;
        let is_calm = self.is_untroubled && !bond.is_ending();
        ensure(
            !is_calm
                || moved.has_limit()
                || matches!(how, TransferEnd::Done | TransferEnd::ByPeer(EndReason::TOO_MANY)),
            "excuse",
            || format!("{} ended {how}, and nothing was wrong", moved.name()),
        )?;
        ensure(!is_calm || counts.repeated_bytes == 0, "repeated", || {
            format!("{} wrote bytes again, and nothing was wrong", moved.name())
        })?;
        if is_calm && how == TransferEnd::Done && moved.giver() != end {
            self.judge_priority(at)?;
            self.judge_classes(at)?;
            self.judge_shares(at)?;
        }
        Ok(())
    }

    /// Notes how far those of lower priority are that the same end gives, as a transfer is joined.
    pub(super) fn note_rivals(&mut self, at: usize) {
        let moved = &self.moved[at];
        let rivals = (0..self.moved.len()).filter(|other| {
            let other = &self.moved[*other];
            let is_beside = (other.bond, other.giver()) == (moved.bond, moved.giver());
            is_beside
                && other.how.priority < moved.how.priority
                && other.sides.iter().all(|side| side.has_joined)
        });
        let rivals = rivals.map(|other| (other, self.landed(other))).collect();
        self.moved[at].rivals = rivals;
        self.moved[at].lower = self.lower_rivals(at);
        self.note_sharers(at);
    }

    /// The bytes of a transfer that its taker has.
    pub(crate) fn landed(&self, at: usize) -> u64 {
        let moved = &self.moved[at];
        let bond = &self.bonds[moved.bond];
        let end = 1 - moved.giver();
        let host = self.case.lines[bond.line].hosts[end];
        let link = self.seats[host].process.as_ref().zip(bond.id(end));
        let counts = link.and_then(|(process, link)| process.links.transfer_counts(link, moved.id));
        if let Some(counts) = counts {
            return counts.landed_bytes;
        }
        // It has ended, and perhaps nobody was told yet: then it is whole, unless something ends it before.
        let side = &moved.sides[end];
        let is_whole = match side.end {
            Some(how) => how == TransferEnd::Done,
            None => !side.is_gone && !moved.has_limit(),
        };
        match is_whole {
            true => u64::from(moved.how.bytes),
            false => side.progress,
        }
    }

    /// No more of lower priorities came until a transfer was done than was posted while its key was on its way.
    fn judge_priority(&self, at: usize) -> Verdict {
        let moved = &self.moved[at];
        let hosts = self.case.lines[self.bonds[moved.bond].line].hosts;
        let ahead = self.transfers[hosts[moved.giver()]].pieces_ahead;
        for (rival, before) in &moved.rivals {
            let other = &self.moved[*rival];
            let piece_bytes = self.transfers[hosts[other.beginner]].piece_bytes;
            // With classes, their own bound takes the place of pieces ahead.
            let classes = self.case.classes.as_ref();
            let window = classes.map_or(0, |classes| {
                u64::from(classes.bytes_ahead_max) + u64::from(piece_bytes)
            });
            let window = window.max(u64::from(ahead.max(1)) * u64::from(piece_bytes));
            let most = u64::from(RAILS * ROUNDS) * window;
            let came = self.landed(*rival).saturating_sub(*before);
            ensure(came <= most, "priority", || {
                let (name, before) = (moved.name(), other.name());
                format!(
                    "{came} bytes of {before} came in front of {name}, of higher priority, and {most} may"
                )
            })?;
        }
        Ok(())
    }

    /// Notes when an end had as many offers open as it may have. Offers that ended in the same poll were open in it.
    pub(super) fn note_room(&mut self, bond: usize, end: usize, now_ns: u64) {
        let host = self.case.lines[self.bonds[bond].line].hosts[end];
        let ended = self.moved.iter().filter(|moved| {
            let side = &moved.sides[end];
            let is_its = (moved.bond, moved.beginner) == (bond, 1 - end) && side.is_told;
            is_its && side.end.is_some() && side.ended_ns == now_ns
        });
        if self.offers_open(bond, end) + ended.count() >= self.transfers[host].transfers_max as usize {
            self.full_ns.insert((bond, end), now_ns);
        }
    }

    /// Whether the end that was offered a transfer had as many open as it may have since it was begun.
    fn was_full(&self, moved: &Moved) -> bool {
        let end = 1 - moved.beginner;
        let host = self.case.lines[self.bonds[moved.bond].line].hosts[end];
        let is_full = self.offers_open(moved.bond, end) >= self.transfers[host].transfers_max as usize;
        let was_full = self.full_ns.get(&(moved.bond, end));
        let is_unheard = !moved.sides[end].is_told;
        // Offers that it declines as it closes were there, too, and nobody was told of them.
        let is_closing = self.bonds[moved.bond].is_closing(end);
        is_unheard && (is_full || is_closing || was_full.is_some_and(|full_ns| *full_ns >= moved.began_ns))
    }

    /// The end of a link comes behind those of its transfers, which give its reason.
    pub(crate) fn judge_transfers_of(&self, at: usize, end: usize, reason: FinalReason) -> Verdict {
        for moved in self.moved.iter().filter(|moved| moved.bond == at) {
            let side = &moved.sides[end];
            let is_known = side.has_joined || side.is_told;
            ensure(!is_known || side.is_over(), "told", || {
                format!("the end of the link, and {} has none", moved.name())
            })?;
            let Some(TransferEnd::Over(over)) = side.end else {
                continue;
            };
            ensure(over == reason, "told", || {
                format!("{} ended as {over}, and its link as {reason}", moved.name())
            })?;
        }
        Ok(())
    }

    /// Both ends of each transfer agree.
    pub(crate) fn check_agreement(&self) -> Verdict {
        for moved in &self.moved {
            let (gave, took) = (&moved.sides[moved.giver()], &moved.sides[1 - moved.giver()]);
            let is_agreed = gave.end != Some(TransferEnd::Done)
                || took.is_gone && took.end.is_none()
                || took.end == Some(TransferEnd::Done);
            ensure(is_agreed, "agreement", || {
                format!("{}: {:?} and {:?}", moved.name(), gave.end, took.end)
            })?;
        }
        Ok(())
    }
}
