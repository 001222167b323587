//! The table of a link's transfers: calls of the application, frames of the peer, and removal.

use std::collections::VecDeque;

use doorbell_core::provider::{MemoryError, Provider, RemoteAccess};
use doorbell_core::session::{Epoch, FinalReason, Role, SESSION_RAILS_MAX, Violation};
use doorbell_core::transfer::{
    Broken, PieceState, Pieces, TRANSFER_WINDOW, Transfer, TransferId, TransferRole, Word,
};
use doorbell_core::wire::{End, EndReason, Open, SessionFrame, VERSION, VERSION_TRANSFERS};
use doorbell_core::{Deadline, Instant};

use super::entry::{Memory, TransferEntry};
use super::loans::{LoanEnd, Loans};
use super::numbers::{Numbers, UNUSED_MAX};
use super::pace::Pace;
use super::reach::Reach;
use super::{
    LoanId, TransferConfig, TransferCounts, TransferEvent, TransferOptions, TransferRefusal, TransferTotals,
};
use crate::link::grants::Ours;
use crate::link::one_sided::SOON;
use crate::machine::makers::{Makers, Whom};
use crate::memory::Region;
use crate::worker::schedule::Bucket;

/// Piece length up to which a giver accepts every transfer of a taker.
const PIECE_BYTES_TAKEN: u32 = 1 << 20;

/// Maximum number of answers about transfers that do not exist. Beyond it the oldest is dropped, and the peer asks again.
const ANSWERS_MAX: usize = 64;

/// Maximum number of ended transfers that are kept only until the peer answers their end, in addition to the open transfers of both
/// sides. Beyond it the oldest are dropped. An honest peer answers, so it never causes so many.
const UNANSWERED_MAX: usize = 64;

/// Maximum number of ends that cannot be posted since the peer posts too few receives, in addition to the open transfers of both sides. An
/// honest peer never causes so many.
const UNSAID_MAX: usize = 1024;

/// An answer to a frame about a transfer that does not exist here, sent on the connection of that frame. If the connection is lost, the
/// peer asks again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    pub(super) on: (u8, Epoch),
    transfer: TransferId,
    is_answer: bool,
}

impl Answer {
    pub(super) const fn word(self) -> End {
        let (_, epoch) = self.on;
        End {
            epoch,
            transfer: self.transfer,
            reason: EndReason::UNKNOWN,
            is_answer: self.is_answer,
        }
    }
}

/// The transfers and loans of a link, and the pieces in flight on its rails.
pub(in super::super) struct Transfers<P: Provider> {
    pub(super) config: TransferConfig,
    pub(super) entries: Vec<TransferEntry<P>>,
    pub(super) loans: Loans<P>,
    /// The number of the next transfer that this side begins.
    next: u32,
    theirs: Numbers,
    pub(super) answers: VecDeque<Answer>,
    pub(super) paces: [Pace; SESSION_RAILS_MAX as usize],
    /// Counts posts of pieces; consecutive pieces that are posted together count once.
    pub(super) posted: u64,
    totals: TransferTotals,
    /// The lowest version of the wire format on any connection so far; this build's version before the first connection.
    version: u8,
}

fn table() -> Box<[PieceState]> {
    vec![PieceState::default(); TRANSFER_WINDOW as usize].into_boxed_slice()
}

impl<P: Provider> Transfers<P> {
    pub(in super::super) fn new(config: TransferConfig, role: Role) -> Self {
        Self {
            config,
            entries: Vec::new(),
            loans: Loans::new(),
            next: match role {
                Role::Initiator => 0,
                Role::Responder => 1,
            },
            theirs: Numbers::new(),
            answers: VecDeque::new(),
            paces: [Pace::default(); SESSION_RAILS_MAX as usize],
            posted: 0,
            totals: TransferTotals::default(),
            version: VERSION,
        }
    }

    /// The lowest version of the wire format on any connection so far.
    pub(in super::super) const fn version(&self) -> u8 {
        self.version
    }

    /// Notes the version of the wire format on a new connection. A peer without support for transfers is sent no frame about them: transfers
    /// that were begun before the connection end.
    pub(in super::super) fn met(&mut self, version: u8, now: Instant) {
        self.version = self.version.min(version);
        if self.version < VERSION_TRANSFERS {
            let until = self.config.drain_by(now);
            for entry in &mut self.entries {
                entry.machine.end(EndReason::UNSUPPORTED, until);
            }
        }
    }

    /// The counts of all transfers, including those that have ended.
    pub(in super::super) fn totals(&self) -> TransferTotals {
        let mut totals = self.totals;
        let open = self.entries.iter().filter(|entry| !entry.machine.is_reported());
        for entry in open {
            totals.add(entry.machine.role(), &entry.machine.counts());
        }
        totals
    }

    /// Whether there is a transfer or a loan whose end is not reported.
    pub(in super::super) fn is_any_open(&self) -> bool {
        self.loans.is_any() || self.entries.iter().any(|entry| !entry.machine.is_reported())
    }

    /// Clears the times at which rate limits permit further pieces. The next attempt to post sets them again.
    pub(in super::super) fn forget_limits(&mut self) {
        for entry in &mut self.entries {
            entry.not_before = None;
        }
    }

    /// Whether there is any transfer, including those that wait only for the peer.
    pub(in super::super) fn is_any(&self) -> bool {
        !self.entries.is_empty()
    }

    /// Whether no answer is to be sent about a transfer that does not exist, and nothing is to be done for a loan.
    pub(in super::super) fn is_at_rest(&self) -> bool {
        self.answers.is_empty() && !self.loans.is_any_busy()
    }

    /// Number of open transfers that this side began, or the peer. Transfers that wait only for the peer do not count.
    fn open(&self, is_ours: bool) -> u32 {
        let entries = self.entries.iter().filter(|entry| entry.is_ours == is_ours);
        let open = entries.filter(|entry| !entry.machine.is_reported()).count();
        u32::try_from(open).unwrap_or(u32::MAX)
    }

    /// This many, in addition to the open transfers of both sides.
    const fn most(&self, further: usize) -> usize {
        let open_max = (self.config.transfers_max as usize).saturating_mul(2);
        further.saturating_add(open_max)
    }

    /// Whether too many ended transfers are kept only because their end could not be posted.
    pub(in super::super) fn owes_too_many(&self) -> bool {
        let most = self.most(UNSAID_MAX);
        let machines = self.entries.iter().map(|entry| &entry.machine);
        let is_unsaid = |machine: &&Transfer<_>| machine.is_reported() && machine.owes_end();
        self.entries.len() > most && machines.filter(is_unsaid).count() > most
    }

    /// Notes that another port has the place of a rail, so that the rate of the rail says nothing any more.
    pub(in super::super) fn vacated(&mut self, rail: u8) {
        if let Some(pace) = self.paces.get_mut(usize::from(rail)) {
            *pace = Pace::default();
        }
    }

    /// The pace of a rail.
    pub(super) fn pace(&self, rail: u8) -> Pace {
        self.paces.get(usize::from(rail)).copied().unwrap_or_default()
    }

    fn find(&mut self, id: TransferId) -> Option<&mut TransferEntry<P>> {
        self.entries.iter_mut().find(|entry| entry.machine.id() == id)
    }

    /// Begins a transfer of a range of a region.
    pub(in super::super) fn begin(
        &mut self,
        (role, bytes): (TransferRole, u64),
        (region, offset): (&Region<P>, usize),
        options: &TransferOptions,
        (now, makers, whom): (Instant, &Makers, Whom),
    ) -> Result<TransferId, TransferRefusal> {
        let (transfers_max, version) = (self.config.transfers_max, self.version);
        if version < VERSION_TRANSFERS {
            return Err(TransferRefusal::Unsupported { version });
        }
        if self.open(true) >= transfers_max {
            return Err(TransferRefusal::Full { transfers_max });
        }
        let pieces =
            Pieces::new(bytes, self.config.piece_bytes()).ok_or(TransferRefusal::Length { bytes })?;
        let place = (region, offset, options.loan);
        let memory = memory_for(role, pieces, place, &self.loans, (makers, whom))?;
        let transfer = self.take_number();
        let open = Open {
            epoch: Epoch::NONE,
            transfer,
            pieces,
            tag: options.tag,
            role,
        };
        let machine = match role {
            TransferRole::Giver => Transfer::give(&open, table()),
            TransferRole::Taker => Some(Transfer::take(&open)),
        };
        let machine = machine.ok_or(TransferRefusal::Length { bytes })?;
        let mut entry = TransferEntry::new(machine, memory, true, now);
        entry.set(options, now);
        self.entries.push(entry);
        self.totals.note_begun();
        Ok(transfer)
    }

    /// The number of a transfer that this side begins. The numbers start again after 2^31 transfers.
    fn take_number(&mut self) -> TransferId {
        loop {
            let number = TransferId(self.next);
            self.next = self.next.wrapping_add(2);
            if self.find(number).is_none() {
                return number;
            }
        }
    }

    /// Joins a transfer that the peer offered.
    pub(in super::super) fn join(
        &mut self,
        id: TransferId,
        (region, offset): (&Region<P>, usize),
        options: &TransferOptions,
        (now, makers, whom): (Instant, &Makers, Whom),
    ) -> Result<(), TransferRefusal> {
        let own = self
            .config
            .piece_bytes()
            .saturating_mul(self.config.pieces_ahead.max(1));
        let bytes_max = own.max(PIECE_BYTES_TAKEN);
        let Self { entries, loans, .. } = self;
        let mut offered = entries.iter_mut().filter(|entry| entry.machine.is_offered());
        let entry = offered.find(|entry| entry.machine.id() == id);
        let entry = entry.ok_or(TransferRefusal::NotOpen)?;
        let (role, pieces) = (entry.machine.role(), entry.machine.pieces());
        let bytes = pieces.piece_bytes();
        if role == TransferRole::Giver && bytes > bytes_max && pieces.count() > 1 {
            return Err(TransferRefusal::PiecesTooLong { bytes, bytes_max });
        }
        let place = (region, offset, options.loan);
        entry.memory = memory_for(role, pieces, place, loans, (makers, whom))?;
        entry.machine.join((role == TransferRole::Giver).then(table));
        entry.set(options, now);
        Ok(())
    }

    /// Ends a transfer, or declines an offered one.
    pub(in super::super) fn cancel(&mut self, id: TransferId, now: Instant) -> Result<(), TransferRefusal> {
        let until = self.config.drain_by(now);
        let entry = self.find(id).filter(|entry| !entry.machine.is_reported());
        let entry = entry.ok_or(TransferRefusal::NotOpen)?;
        let reason = match entry.machine.is_offered() {
            true => EndReason::REFUSED,
            false => EndReason::CANCELLED,
        };
        entry.machine.end(reason, until);
        Ok(())
    }

    /// Announces the windows of loans that are registered now, and withdraws those of loans that are revoked.
    pub(in super::super) fn announce(&mut self, windows: &mut Ours) {
        self.loans.announce(windows);
    }

    /// Revokes a loan, and ends all transfers into it.
    pub(in super::super) fn revoke(&mut self, loan: LoanId, now: Instant) -> Result<(), TransferRefusal> {
        if !self.loans.revoke(loan) {
            return Err(TransferRefusal::NoLoan);
        }
        self.end_lent(loan, (EndReason::CANCELLED, None), Deadline::at(now));
        Ok(())
    }

    /// Ends the transfers into a loan.
    fn end_lent(&mut self, loan: LoanId, (reason, error): (EndReason, Option<MemoryError>), until: Deadline) {
        for entry in &mut self.entries {
            if matches!(entry.memory, Memory::Lent(of, _) if of == loan) {
                entry.error = entry.error.or(error);
                entry.machine.end(reason, until);
            }
        }
    }

    /// Declines offered transfers that were not joined: the link is being closed, so they cannot be joined any more.
    pub(in super::super) fn decline_offers(&mut self, now: Instant) {
        let until = self.config.drain_by(now);
        for entry in self.entries.iter_mut().filter(|entry| entry.machine.is_offered()) {
            match entry.is_news {
                true => entry.turn_away(EndReason::REFUSED, until),
                false => entry.machine.end(EndReason::REFUSED, until),
            }
        }
    }

    /// The counts of a transfer.
    pub(in super::super) fn counts(&self, id: TransferId) -> Option<TransferCounts> {
        let mut entries = self.entries.iter();
        let entry = entries.find(|entry| entry.machine.id() == id && !entry.machine.is_reported())?;
        Some(entry.machine.counts())
    }

    /// Handles a frame of the peer about a transfer.
    pub(in super::super) fn hear(
        &mut self,
        rail: u8,
        frame: &SessionFrame<'_>,
        now: Instant,
    ) -> Result<(), Violation> {
        let until = self.config.drain_by(now);
        let broken = |Broken| Violation::OutOfPlace;
        match frame {
            SessionFrame::Open(open) => return self.hear_open((rail, open), now),
            SessionFrame::Take(take) => match self.find(take.transfer) {
                Some(entry) => entry.machine.heard_take(rail, take).map_err(broken)?,
                None => self.answer((rail, take.epoch), take.transfer, false),
            },
            SessionFrame::Landed(landed) => {
                match self.find(landed.transfer) {
                    Some(entry) => entry.machine.heard_landed(landed).map_err(broken)?,
                    // The giver asks which pieces arrived, so it does not know that the transfer has ended.
                    None if landed.question > 0 => self.answer((rail, landed.epoch), landed.transfer, false),
                    None => {}
                }
            }
            SessionFrame::Progress(progress) => {
                if let Some(entry) = self.find(progress.transfer) {
                    entry.machine.heard_progress(progress).map_err(broken)?;
                }
            }
            SessionFrame::End(end) => match self.find(end.transfer) {
                Some(entry) => entry.machine.heard_end(rail, end, until).map_err(broken)?,
                None if end.is_answer => {}
                None => {
                    // The frame that begins the transfer may arrive later, over another rail, and has no effect then.
                    if self.is_of_peer(end.transfer) {
                        self.note_number(end.transfer);
                    }
                    self.answer((rail, end.epoch), end.transfer, true);
                }
            },
            _ => {}
        }
        Ok(())
    }

    /// Whether a number is one of the peer's. One side uses even numbers, and the other odd ones.
    const fn is_of_peer(&self, id: TransferId) -> bool {
        id.0 % 2 != self.next % 2
    }

    /// Notes a number of the peer's. Returns whether it was not used before.
    fn note_number(&mut self, id: TransferId) -> bool {
        let most = UNUSED_MAX.saturating_add(self.config.transfers_max as usize);
        self.theirs.note(id, most)
    }

    fn hear_open(&mut self, (rail, open): (u8, &Open), now: Instant) -> Result<(), Violation> {
        if !self.is_of_peer(open.transfer) {
            return Err(Violation::OutOfPlace);
        }
        if self.find(open.transfer).is_some() {
            return Ok(());
        }
        let is_full = self.open(false) >= self.config.transfers_max;
        if !self.note_number(open.transfer) {
            self.answer((rail, open.epoch), open.transfer, false);
            return Ok(());
        }
        let mut entry = TransferEntry::new(Transfer::offered(open), Memory::None, false, now);
        if is_full {
            entry.turn_away(EndReason::TOO_MANY, self.config.drain_by(now));
        }
        self.entries.push(entry);
        Ok(())
    }

    fn answer(&mut self, on: (u8, Epoch), transfer: TransferId, is_answer: bool) {
        if self.answers.len() >= ANSWERS_MAX {
            self.answers.pop_front();
        }
        self.answers.push_back(Answer {
            on,
            transfer,
            is_answer,
        });
    }

    /// Notes that a WRITE of this many bytes and pieces of a transfer is done on a rail.
    pub(in super::super) fn completed(&mut self, rail: u8, id: TransferId, write: (u32, u16), now: Instant) {
        if let Some(pace) = self.paces.get_mut(usize::from(rail)) {
            pace.completed(write, now);
        }
        if let Some(entry) = self.find(id) {
            entry.machine.retired(rail);
        }
    }

    /// Notes that a rail's connection is lost. Returns whether it needs a fence, for which pieces wait until `fence_by`.
    pub(in super::super) fn lost(&mut self, rail: u8, fence_by: Deadline) -> bool {
        if let Some(pace) = self.paces.get_mut(usize::from(rail)) {
            pace.lost();
        }
        let mut is_any = false;
        for entry in &mut self.entries {
            is_any |= entry.machine.lost(rail, fence_by);
        }
        is_any
    }

    /// Notes that the peer accepts nothing more from a rail's connections up to this one.
    pub(in super::super) fn fenced(&mut self, rail: u8, through: Epoch) {
        for entry in &mut self.entries {
            entry.machine.fenced(rail, through);
        }
    }

    /// Notes that the peer's device refused a WRITE of a transfer.
    pub(in super::super) fn denied(&mut self, id: TransferId) {
        if let Some(entry) = self.find(id) {
            entry.machine.denied();
        }
    }

    /// Notes that the peer's device failed at a WRITE of a transfer.
    pub(in super::super) fn failed_at_taker(&mut self, id: TransferId) {
        if let Some(entry) = self.find(id) {
            entry.machine.failed_at_taker();
        }
    }

    /// Ends a transfer, since the device of this side refused to post a piece.
    pub(in super::super) fn refused(&mut self, id: TransferId, reason: EndReason, now: Instant) {
        let until = self.config.drain_by(now);
        if let Some(entry) = self.find(id) {
            entry.machine.end(reason, until);
        }
    }

    /// Notes that a poll begins: connections that were lost in the previous one are shut.
    pub(in super::super) fn begin_turn(&mut self) {
        for entry in &mut self.entries {
            entry.machine.left();
        }
    }

    /// Whether devices may still read memory for a transfer.
    pub(in super::super) fn is_any_writing(&self) -> bool {
        self.entries.iter().any(|entry| entry.machine.is_writing())
    }

    /// Notes that the session is over.
    pub(in super::super) fn over(&mut self, reason: FinalReason) {
        self.loans.revoke_all();
        for entry in &mut self.entries {
            entry.machine.over(reason);
        }
    }

    /// Checks deadlines, and takes the results of threads that register or deregister memory.
    pub(in super::super) fn look(&mut self, now: Instant, makers: &Makers, whom: Whom) {
        let until = self.config.drain_by(now);
        while let Some((failed, error)) = self.loans.look((makers, whom)) {
            self.end_lent(failed, (EndReason::NO_MEMORY, Some(error)), until);
        }
        for entry in &mut self.entries {
            entry.machine.look(now, until);
            if let Err(error) = entry.go_on_with_memory(makers, whom) {
                entry.error = Some(error);
                entry.machine.end(EndReason::NO_MEMORY, until);
                let _ = entry.go_on_with_memory(makers, whom);
            }
        }
    }

    /// Reports the events of transfers, and removes those that are over.
    pub(in super::super) fn report(&mut self, now: Instant, mut each: impl FnMut(TransferId, TransferEvent)) {
        let config = self.config;
        for entry in &mut self.entries {
            let id = entry.machine.id();
            while let Some(event) = entry.event(now, &config) {
                self.totals.note(entry.machine.role(), &event);
                each(id, event);
            }
        }
        // A peer might never answer an end.
        let unanswered = self
            .entries
            .iter()
            .filter(|entry| entry.machine.is_reported())
            .count();
        let mut too_many = unanswered.saturating_sub(self.most(UNANSWERED_MAX));
        self.entries.retain_mut(|entry| {
            if too_many > 0 && entry.machine.is_reported() && !entry.machine.owes_end() {
                too_many = too_many.saturating_sub(1);
                entry.machine.settle();
            }
            entry.machine.is_open()
        });
    }

    /// Removes and returns a loan that is over, to be reported.
    pub(in super::super) fn poll_revoked(&mut self) -> Option<(LoanId, LoanEnd)> {
        self.loans.take_over()
    }

    /// When to poll again at the latest.
    pub(in super::super) fn wake(&self, now: Instant) -> Option<Deadline> {
        let loans = self.loans.is_any_busy().then(|| Deadline::after(now, SOON));
        let entries = self.entries.iter().filter_map(|entry| entry.wake(now));
        entries.chain(loans).min()
    }

    /// Returns the next frame of a transfer for a connection of this Worker.
    pub(super) fn word_for(&self, place: usize, on: (u8, Epoch), worker: usize) -> Option<Word> {
        let TransferEntry { machine, memory, .. } = self.entries.get(place)?;
        machine.word_for(on, memory.key(machine.pieces().bytes(), worker, &self.loans))
    }
}

impl<P: Provider> TransferEntry<P> {
    fn set(&mut self, options: &TransferOptions, now: Instant) {
        self.priority = options.priority;
        self.bucket = options
            .bytes_per_second_max
            .map(|rate| Bucket::new(rate.get(), 0, now));
        self.machine
            .end_by(options.within.map(|within| Deadline::after(now, within)));
    }
}

/// Makes the memory of one side of a transfer, after checking the range.
fn memory_for<P: Provider>(
    role: TransferRole,
    pieces: Pieces,
    (region, offset, loan): (&Region<P>, usize, Option<LoanId>),
    loans: &Loans<P>,
    by: (&Makers, Whom),
) -> Result<Memory<P>, TransferRefusal> {
    let outside = || TransferRefusal::OutOfRegion {
        offset,
        bytes: pieces.bytes(),
        region_bytes: region.bytes(),
    };
    if role == TransferRole::Taker && !region.is_writable() {
        return Err(TransferRefusal::ReadOnly);
    }
    let bytes = usize::try_from(pieces.bytes()).map_err(|_| outside())?;
    if offset.checked_add(bytes).is_none_or(|end| end > region.bytes()) {
        return Err(outside());
    }
    match (role, loan) {
        (TransferRole::Giver, _) => Ok(Memory::Given(region.clone(), offset)),
        (TransferRole::Taker, None) => Ok(Memory::Taken(Reach::register(
            region,
            (offset, bytes),
            RemoteAccess::WRITE,
            by,
        ))),
        (TransferRole::Taker, Some(loan)) if loans.covers(loan, (region, offset, pieces.bytes())) => {
            Ok(Memory::Lent(loan, offset))
        }
        (TransferRole::Taker, Some(_)) => Err(TransferRefusal::NoLoan),
    }
}

#[cfg(test)]
mod tests {
    use doorbell_core::Instant;
    use doorbell_core::provider::PlacementConfig;
    use doorbell_core::session::{Epoch, Role};
    use doorbell_core::transfer::{Pieces, TransferId, TransferRole};
    use doorbell_core::wire::{End, EndReason, Open, SessionFrame};
    use doorbell_sim::{Fabric, Host};

    use super::{TransferConfig, TransferOptions, Transfers, UNSAID_MAX};
    use crate::connect::node::Node;
    use crate::machine::makers::Whom;
    use crate::trust::Trust;
    use crate::worker::config::WorkerConfig;

    #[test]
    fn as_many_transfers_as_may_be_open_begin_in_any_order() {
        let (now, epoch) = (Instant::from_ns(0), Epoch::from_wire(1));
        let config = TransferConfig {
            transfers_max: 256,
            ..TransferConfig::default()
        };
        let mut transfers = Transfers::<Host>::new(config, Role::Responder);
        // Each second one goes over rail 1, and rail 0 is read last.
        for number in (1..256).step_by(2).rev().chain((0..256).step_by(2)) {
            let open = Open {
                epoch,
                transfer: TransferId(2 * number),
                pieces: Pieces::new(1, 4096).unwrap(),
                tag: 0,
                role: TransferRole::Giver,
            };
            transfers.hear(0, &SessionFrame::Open(open), now).unwrap();
        }
        assert_eq!((transfers.open(false), transfers.answers.len()), (256, 0));
    }

    #[test]
    fn a_giver_that_waits_only_for_the_answer_to_its_end_counts_no_more() {
        let (now, on) = (Instant::from_ns(0), (0, Epoch::from_wire(1)));
        giving(TransferConfig::default(), |transfers, begin| {
            let transfer = begin(transfers);
            let open = transfers.word_for(0, on, 0).unwrap();
            transfers.entries[0].machine.said(&open, on);
            assert!(transfers.entries[0].is_giving());
            transfers.cancel(transfer, now).unwrap();
            transfers.report(now, |_, _| {});
            assert!(!transfers.entries[0].is_giving());
        });
    }

    /// Transfers of a node, a region of it, and what it takes to begin one.
    fn giving<R>(
        config: TransferConfig,
        each: impl FnOnce(&mut Transfers<Host>, &mut dyn FnMut(&mut Transfers<Host>) -> TransferId) -> R,
    ) -> R {
        let [host] = Fabric::new().hosts().unwrap();
        let node = Node::simulated(host, Trust::unauthenticated_on_purpose()).unwrap();
        let workers = node.workers(&WorkerConfig::default()).unwrap();
        let region = node.region(&workers, 4096, &PlacementConfig::default()).unwrap();
        let mut begin = |transfers: &mut Transfers<Host>| {
            let by = (Instant::from_ns(0), node.makers(), Whom::All);
            let options = TransferOptions::default();
            transfers
                .begin((TransferRole::Giver, 1), (&region, 0), &options, by)
                .unwrap()
        };
        each(&mut Transfers::new(config, Role::Responder), &mut begin)
    }

    #[test]
    fn numbers_start_again_and_no_open_transfer_has_its_number_twice() {
        giving(TransferConfig::default(), |transfers, begin| {
            assert_eq!(begin(transfers), TransferId(1));
            transfers.next = u32::MAX;
            assert_eq!(begin(transfers), TransferId(u32::MAX));
            assert_eq!(begin(transfers), TransferId(3));
        });
    }

    #[test]
    fn as_many_ends_as_transfers_may_be_open_wait_for_their_answers() {
        let (now, on) = (Instant::from_ns(0), (0, Epoch::from_wire(1)));
        let config = TransferConfig {
            transfers_max: 256,
            ..TransferConfig::default()
        };
        giving(config, |transfers, begin| {
            for place in 0..200 {
                let transfer = begin(transfers);
                let open = transfers.word_for(place, on, 0).unwrap();
                transfers.entries[place].machine.said(&open, on);
                transfers.cancel(transfer, now).unwrap();
                let end = transfers.word_for(place, on, 0).unwrap();
                transfers.entries[place].machine.said(&end, on);
            }
            transfers.report(now, |_, _| {});
            assert_eq!(
                transfers.entries.len(),
                200,
                "each is sent again if its rail is lost"
            );
        });
    }

    /// The way in which a transfer ends whose end cannot be posted, since the peer posts no receives.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum InVain {
        /// The peer begins and ends it.
        Theirs,
        /// The peer begins it, and it is declined beyond the limit.
        TurnedAway,
        /// This side begins it, and the peer ends it over a rail on which nothing can be posted.
        Ours,
    }

    /// Returns the number of transfers that are kept when the link ends.
    fn begun_in_vain(how: InVain) -> usize {
        let (now, epoch) = (Instant::from_ns(0), Epoch::from_wire(1));
        let config = TransferConfig::default();
        let most = UNSAID_MAX + 2 * config.transfers_max as usize;
        giving(config, |transfers, begin| {
            for count in 0..4 * UNSAID_MAX {
                let transfer = match how {
                    InVain::Ours => {
                        let transfer = begin(transfers);
                        let (place, on) = (transfers.entries.len() - 1, (0, epoch));
                        let open = transfers.word_for(place, on, 0).unwrap();
                        transfers.entries[place].machine.said(&open, on);
                        transfer
                    }
                    InVain::Theirs | InVain::TurnedAway => {
                        let open = Open {
                            epoch,
                            transfer: TransferId(2 * count as u32),
                            pieces: Pieces::new(1, 4096).unwrap(),
                            tag: 0,
                            role: TransferRole::Giver,
                        };
                        transfers.hear(0, &SessionFrame::Open(open), now).unwrap();
                        open.transfer
                    }
                };
                if how != InVain::TurnedAway {
                    let end = End {
                        epoch,
                        transfer,
                        reason: EndReason::CANCELLED,
                        is_answer: false,
                    };
                    transfers.hear(1, &SessionFrame::End(end), now).unwrap();
                }
                transfers.report(now, |_, _| {});
                if transfers.owes_too_many() {
                    return transfers.entries.len();
                }
                assert!(transfers.entries.len() <= most + config.transfers_max as usize);
            }
            panic!("{} transfers are kept", transfers.entries.len());
        })
    }

    #[test]
    fn a_peer_that_takes_no_ends_ends_the_link_whoever_began_the_transfers() {
        let open_max = TransferConfig::default().transfers_max as usize;
        let most = UNSAID_MAX + 2 * open_max;
        assert_eq!(begun_in_vain(InVain::Theirs), most + 1);
        assert_eq!(begun_in_vain(InVain::Ours), most + 1);
        // Transfers up to the limit stay open, too.
        assert_eq!(begun_in_vain(InVain::TurnedAway), most + open_max + 1);
    }
}
