//! One transfer: the machine that decides, its memory, and what is reported of it.

use core::time::Duration;

use doorbell_core::provider::Provider;
use doorbell_core::transfer::{PieceState, Transfer};
use doorbell_core::wire::EndReason;
use doorbell_core::{Deadline, Instant};

use super::{TransferConfig, TransferEvent};
use crate::machine::makers::{Commission, Makers, Whom};
use crate::memory::{GrantedRegion, Region};

/// The memory of a transfer.
pub(super) enum Memory<P: Provider> {
    /// None yet: the application has not joined.
    None,
    /// Bytes to be given, from an offset of a region.
    Given(Region<P>, usize),
    /// Memory for bytes that come is being registered.
    Registering(Commission<GrantedRegion<P>>),
    /// It is registered.
    Granted(GrantedRegion<P>),
    /// It is being taken out of the peer's reach.
    Fencing(Commission<()>),
}

pub(super) struct Entry<P: Provider> {
    pub(super) machine: Transfer<Box<[PieceState]>>,
    pub(super) memory: Memory<P>,
    pub(super) priority: u8,
    /// Whether this side began it.
    pub(super) is_ours: bool,
    /// Whether its offer is to be reported.
    pub(super) is_news: bool,
    /// Whether its end was reported: it is kept for the peer alone.
    pub(super) is_ended: bool,
    reported_at: Instant,
    reported_bytes: u64,
}

impl<P: Provider> Entry<P> {
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
            is_ours,
            is_news: !is_ours,
            is_ended: false,
            reported_at: now,
            reported_bytes: 0,
        }
    }

    /// Ends one that the peer began, as too many are open. The application is told nothing, and the peer until it answers.
    pub(super) fn turn_away(&mut self, until: Deadline) {
        self.machine.end(EndReason::TOO_MANY, until);
        let _ = self.machine.take_end();
        (self.is_news, self.is_ended) = (false, true);
    }

    /// Takes what was registered, and has the memory taken out of the peer's reach where it is to be.
    ///
    /// # Errors
    /// The device did not register it.
    pub(super) fn go_on_with_memory(&mut self, makers: &Makers, whom: Whom) -> Result<(), ()> {
        let mut outcome = Ok(());
        if let Memory::Registering(commission) = &self.memory {
            match commission.take() {
                Ok(None) => {}
                Ok(Some(granted)) => {
                    self.memory = Memory::Granted(crate::machine::reaper::Reaped::into_inner(granted));
                }
                Err(_) => {
                    self.memory = Memory::None;
                    outcome = Err(());
                }
            }
        }
        if !self.machine.must_fence_memory() {
            return outcome;
        }
        match core::mem::replace(&mut self.memory, Memory::None) {
            // The peer was never told the key.
            Memory::Registering(_) | Memory::None | Memory::Given(..) => self.machine.fenced_memory(),
            Memory::Granted(granted) => {
                let fence = move || {
                    drop(granted);
                    Ok(())
                };
                self.memory = Memory::Fencing(makers.make(whom, None, fence));
            }
            Memory::Fencing(fencing) => self.memory = Memory::Fencing(fencing),
        }
        if let Memory::Fencing(fencing) = &self.memory {
            // A device that panicked has let go of nothing, and its objects are leaked: nobody reads the memory any more.
            if !matches!(fencing.take(), Ok(None)) {
                self.memory = Memory::None;
                self.machine.fenced_memory();
            }
        }
        outcome
    }

    /// Whether a thread works on its memory.
    pub(super) const fn is_making(&self) -> bool {
        matches!(self.memory, Memory::Registering(_) | Memory::Fencing(_))
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
        if self.is_ended {
            return None;
        }
        let counts = self.machine.counts();
        if let Some(end) = self.machine.take_end() {
            self.is_ended = true;
            // The memory is the application's, and so is its registration.
            self.memory = Memory::None;
            return Some(TransferEvent::Ended { end, counts });
        }
        let bytes = counts.landed_bytes;
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
