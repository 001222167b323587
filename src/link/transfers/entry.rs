//! One transfer: its state machine, its memory, and its events.

use core::time::Duration;

use doorbell_core::provider::{MemoryError, Provider};
use doorbell_core::transfer::{PieceState, Transfer, TransferEnd, TransferRole};
use doorbell_core::wire::{EndReason, RemoteWindow};
use doorbell_core::{Deadline, Instant};

use super::loans::Loans;
use super::reach::Reach;
use super::{LoanId, TransferConfig, TransferEvent};
use crate::link::one_sided::SOON;
use crate::machine::makers::{Makers, Whom};
use crate::memory::Region;
use crate::worker::schedule::Bucket;

/// The memory of a transfer.
pub(super) enum Memory<P: Provider> {
    /// None yet: the application has not joined.
    None,
    /// Bytes to be given, from an offset of a region.
    Given(Region<P>, usize),
    /// Memory to receive bytes, registered for the peer only for this transfer.
    Taken(Reach<P>),
    /// Memory to receive bytes in a loan, from an offset of the region on.
    Lent(LoanId, usize),
}

impl<P: Provider> Memory<P> {
    /// The key of the memory for the giver, on this Worker's device. `None` if there is none, or it is not registered yet.
    pub(super) fn key(&self, bytes: u64, worker: usize, loans: &Loans<P>) -> Option<RemoteWindow> {
        match self {
            Self::None | Self::Given(..) => None,
            Self::Taken(reach) => reach.key(worker),
            Self::Lent(loan, offset) => loans.key(*loan, (*offset, bytes), worker),
        }
    }
}

pub(super) struct TransferEntry<P: Provider> {
    pub(super) machine: Transfer<Box<[PieceState]>>,
    pub(super) memory: Memory<P>,
    pub(super) priority: u8,
    /// The rate limit on the bytes that this side gives.
    pub(super) bucket: Option<Bucket>,
    /// Why a device did not register its memory, or did not deregister it.
    pub(super) error: Option<MemoryError>,
    /// Whether a device did not deregister the memory, so that the peer can still access it.
    is_kept: bool,
    /// When its rate limit permits the next piece, if the limit delayed it at the last check.
    pub(super) not_before: Option<Instant>,
    /// The link's count of posts when this transfer last posted. Transfers of equal priority take turns by it.
    pub(super) served: u64,
    /// Whether this side began the transfer.
    pub(super) is_ours: bool,
    /// Whether its offer is yet to be reported.
    pub(super) is_news: bool,
    reported_at: Instant,
    reported_bytes: u64,
}

impl<P: Provider> TransferEntry<P> {
    pub(super) const fn new(
        machine: Transfer<Box<[PieceState]>>,
        memory: Memory<P>,
        is_ours: bool,
        now: Instant,
    ) -> Self {
        Self {
            machine,
            memory,
            priority: 0,
            bucket: None,
            error: None,
            is_kept: false,
            not_before: None,
            served: 0,
            is_ours,
            is_news: !is_ours,
            reported_at: now,
            reported_bytes: 0,
        }
    }

    /// Ends a transfer that the peer began, before it is reported. The application gets no event. The peer is notified until it answers.
    pub(super) fn turn_away(&mut self, reason: EndReason, until: Deadline) {
        self.machine.end(reason, until);
        let _ = self.machine.take_end();
        self.is_news = false;
    }

    /// Takes memory that was registered, and deregisters it if the transfer has to end the peer's access.
    ///
    /// # Errors
    /// The device did not register the memory.
    pub(super) fn go_on_with_memory(&mut self, makers: &Makers, whom: Whom) -> Result<(), MemoryError> {
        let Memory::Taken(reach) = &mut self.memory else {
            // The peer keeps its access to a loan until the loan is revoked.
            self.machine.fenced_memory();
            return Ok(());
        };
        let outcome = reach.look();
        if self.machine.must_fence_memory() {
            let fenced = reach.fence((makers, whom));
            if let Err(error) = fenced {
                (self.error, self.is_kept) = (Some(error), true);
            }
            // One that failed is over, too, and the end says that the memory is not fenced.
            if fenced != Ok(false) {
                self.machine.fenced_memory();
            }
        }
        outcome
    }

    /// Whether this side gives its bytes, and the end is not reported.
    pub(super) fn is_giving(&self) -> bool {
        self.machine.role() == TransferRole::Giver && !self.machine.is_reported()
    }

    /// Whether its rate limit permits the next piece now. If not, it notes when.
    pub(super) fn is_ready(&mut self, now: Instant) -> bool {
        let ready = self.bucket.map_or(now, |bucket| bucket.ready_at(now));
        self.not_before = (ready > now).then_some(ready);
        self.not_before.is_none()
    }

    /// When to poll again at the latest.
    pub(super) fn wake(&self, now: Instant) -> Option<Deadline> {
        let soon = Deadline::after(now, SOON);
        let is_making = self.machine.must_fence_memory()
            || matches!(&self.memory, Memory::Taken(reach) if reach.is_busy());
        let is_making = is_making || self.machine.is_leaving();
        // If the time has passed since the last check, the deadline is the next nanosecond.
        let limit = self.not_before.map(|at| match Deadline::at(at) {
            passed if passed.has_passed(now) => Deadline::after(now, Duration::from_nanos(1)),
            ahead => ahead,
        });
        let making = is_making.then_some(soon);
        self.machine.wake().into_iter().chain(making).chain(limit).min()
    }

    /// The next event.
    pub(super) fn event(&mut self, now: Instant, config: &TransferConfig) -> Option<TransferEvent> {
        if core::mem::take(&mut self.is_news) {
            return Some(TransferEvent::Offered {
                role: self.machine.role(),
                bytes: self.machine.pieces().bytes(),
                tag: self.machine.tag(),
            });
        }
        if self.machine.is_reported() {
            return None;
        }
        if let Some(end) = self.machine.take_end() {
            // The application may free the memory now, whatever the peer answers.
            self.memory = Memory::None;
            let (counts, error) = (self.machine.counts(), self.error);
            let end = match self.is_kept {
                true => TransferEnd::Here(EndReason::NOT_WITHDRAWN),
                false => end,
            };
            return Some(TransferEvent::Ended { end, counts, error });
        }
        let bytes = self.machine.counts().landed_bytes;
        let since = now.to_ns().saturating_sub(self.reported_at.to_ns());
        let is_due = Duration::from_nanos(since) >= config.progress_every;
        if bytes == self.reported_bytes || !is_due || bytes == self.machine.pieces().bytes() {
            return None;
        }
        let rate = u128::from(bytes.saturating_sub(self.reported_bytes)).saturating_mul(1_000_000_000);
        let rate = rate.checked_div(since.into()).unwrap_or(0);
        (self.reported_at, self.reported_bytes) = (now, bytes);
        Some(TransferEvent::Progress {
            bytes,
            bytes_per_second: u64::try_from(rate).unwrap_or(u64::MAX),
        })
    }
}
