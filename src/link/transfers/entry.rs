//! One transfer: the machine that decides, its memory, and what is reported of it.

use core::time::Duration;

use doorbell_core::Instant;
use doorbell_core::provider::{Provider, ProviderError};
use doorbell_core::transfer::{PieceState, Transfer};

use super::pace::Bucket;
use super::{TransferConfig, TransferEvent};
use crate::error::ConnectError;
use crate::machine::makers::{Commission, Makers, PANICKED, Whom};
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
    /// The limit on what this side gives.
    pub(super) bucket: Option<Bucket>,
    /// Why the device did not register its memory.
    pub(super) error: Option<ProviderError>,
    /// Count of the pieces of the link as one of it was posted last: equals take turns by it.
    pub(super) served: u64,
    /// Whether this side began it.
    pub(super) is_ours: bool,
    /// Whether its offer is to be reported.
    pub(super) is_news: bool,
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
            bucket: None,
            error: None,
            served: 0,
            is_ours,
            is_news: !is_ours,
            reported_at: now,
            reported_bytes: 0,
        }
    }

    /// Takes what was registered, and has the memory taken out of the peer's reach where it is to be.
    ///
    /// # Errors
    /// The device did not register it.
    pub(super) fn go_on_with_memory(&mut self, makers: &Makers, whom: Whom) -> Result<(), ProviderError> {
        let mut outcome = Ok(());
        if let Memory::Registering(commission) = &self.memory {
            match commission.take() {
                Ok(None) => {}
                Ok(Some(granted)) => {
                    self.memory = Memory::Granted(crate::machine::reaper::Reaped::into_inner(granted));
                }
                Err(error) => {
                    self.memory = Memory::None;
                    outcome = Err(match error {
                        ConnectError::Provider(error) => error,
                        _ => PANICKED,
                    });
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

    /// When its next piece may go, if it has one.
    pub(super) fn ready_at(&self, now: Instant) -> Option<Instant> {
        let ready = |bucket: Bucket| bucket.ready_at(now);
        self.machine.has_pieces().then(|| self.bucket.map_or(now, ready))
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
        let counts = self.machine.counts();
        if let Some(end) = self.machine.take_end() {
            let counts = self.machine.counts();
            let error = self.error;
            return Some(TransferEvent::Ended { end, counts, error });
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
