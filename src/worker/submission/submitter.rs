//! The handle that submits requests to a Worker from another thread.

use core::fmt;
use std::sync::Arc;

use doorbell_core::provider::{Attacher as _, Operation, Placement, PostFlags, Provider, Slot as _};
use doorbell_ffi::Rdma;
use doorbell_hotpath::ring::PushError as RingError;

use super::intake::{Intake, LastOfAll, RequestProducer};
use super::request::Request;
use super::return_path::{ReturnPath, Taker};
use super::{Submission, SubmitError, SubmitErrorKind};
use crate::machine::reaper::{Reaped, Reaper};
use crate::worker::arena::Arena;
use crate::worker::channel::ChannelId;
use crate::worker::lease::Lease;

/// Submits requests to a [`Worker`](crate::Worker) from another thread, without a lock.
///
/// It has memory of its own. Its requests go through a ring; the Worker posts it when it is polled, the
/// requests of one channel in the order in which they were submitted, as one doorbell. A request that
/// cannot go yet, for want of credits or room, waits at the Worker and holds up no other channel.
///
/// A request that is done sends its memory home, to be leased again: nothing else reports it. A request that failed comes back
/// through [`Submitter::failure`], and its memory is taken until then. So a caller that runs out of memory looks there.
///
/// It may go at any time: what it submitted is still sent. Dropped, it returns in bounded time: memory that goes with
/// it, its own or that of another that shared its ring, is let go of on another thread.
pub struct Submitter<P: Provider = Rdma> {
    requests: RequestProducer,
    failures: Taker<P>,
    arena: Arena<P>,
    /// Which of those that share the ring it is.
    who: u16,
    // The last to let go of these frees memory that the device has: so they go to the reaper.
    return_path: Reaped<Arc<ReturnPath<P>>>,
    intake: Reaped<Arc<Intake<P>>>,
}

impl<P: Provider> Submitter<P> {
    /// One of those of an intake; `None` where there is one of this number.
    pub(crate) fn new(
        intake: &Arc<Intake<P>>,
        last: &Arc<LastOfAll>,
        who: usize,
        arena: Arena<P>,
        reaper: &Reaper,
    ) -> Option<Self> {
        let return_path = intake.return_paths.get(who)?;
        Some(Self {
            requests: intake.ring.producer(last).ok()?,
            failures: return_path.taker()?,
            arena,
            who: u16::try_from(who).ok()?,
            return_path: reaper.keep(Arc::clone(return_path)),
            intake: reaper.keep(Arc::clone(intake)),
        })
    }

    /// Leases memory; `None` is backpressure: all of it is under way, or failed and not taken.
    #[inline]
    pub fn lease(&mut self) -> Option<Lease<P>> {
        let Self {
            failures,
            arena,
            return_path,
            ..
        } = self;
        failures.lend(return_path.failures(), || arena.lease(), Lease::index)
    }

    /// Gives memory back, cheaper than dropping it. A lease of elsewhere goes where it is from.
    #[inline]
    pub fn release(&mut self, lease: Lease<P>) {
        self.arena.release(lease);
    }

    /// Submits one message.
    ///
    /// # Errors
    /// [`SubmitError`] hands the lease back.
    #[inline]
    pub fn send(&mut self, channel: ChannelId, message: Lease<P>) -> Result<(), SubmitError<P>> {
        self.submit(channel, Operation::Send, message, PostFlags::empty())
    }

    /// Submits one request: a SEND or a WRITE, with or without immediate.
    ///
    /// # Errors
    /// [`SubmitError`] hands the lease back.
    ///
    /// # Ordering
    /// Requests of one submitter for one channel are posted in the order in which they were submitted.
    #[inline]
    pub fn submit(
        &mut self,
        channel: ChannelId,
        operation: Operation,
        lease: Lease<P>,
        flags: PostFlags,
    ) -> Result<(), SubmitError<P>> {
        if !self.return_path.attacher().owns(&lease.slot) {
            return Err(SubmitError {
                kind: SubmitErrorKind::OtherMemory,
                lease: Some(lease),
            });
        }
        if let Err(kind) = reaches(operation, lease.len_bytes()) {
            return Err(SubmitError {
                kind,
                lease: Some(lease),
            });
        }
        let slot = lease.slot.detach();
        let kind = match Request::pack(self.who, channel, operation, slot, flags) {
            None => SubmitErrorKind::BringsDataBack,
            Some((request, detail)) => {
                if let Some(detail) = detail {
                    self.return_path.keep_detail(slot.index, detail);
                }
                match self.requests.push(request) {
                    Ok(()) => {
                        if let Some(bell) = &self.intake.bell {
                            bell.ring();
                        }
                        return Ok(());
                    }
                    Err(RingError::Closed(_)) => SubmitErrorKind::WorkerGone,
                    Err(_) => SubmitErrorKind::WouldBlock,
                }
            }
        };
        // Nobody else knows of these words.
        let slot = self.return_path.attacher().attach(slot);
        Err(SubmitError {
            kind,
            lease: slot.map(|slot| Lease { slot }),
        })
    }

    /// Takes a request that failed, the earliest reported first; `None` where there is none now.
    ///
    /// When the Worker is gone, what it did not post comes back here, too.
    pub fn failure(&mut self) -> Option<Submission<P>> {
        let (failure, home) = match self.failures.take(self.return_path.failures()) {
            Ok(taken) => taken,
            Err(_) => {
                // A look first: who claims the ring writes where the Worker reads.
                if !self.requests.is_closed() {
                    return None;
                }
                self.intake.return_late();
                self.failures.take(self.return_path.failures()).ok()?
            }
        };
        if let Some(lease) = home {
            self.arena.release(lease);
        }
        Some(self.return_path.submission(failure))
    }

    /// Returns the number of slots.
    #[must_use]
    pub const fn slots(&self) -> u32 {
        self.arena.slots()
    }

    /// Returns the bytes of each slot.
    #[must_use]
    pub const fn slot_bytes(&self) -> u32 {
        self.arena.slot_bytes()
    }

    /// How its memory was placed; see [`Worker::placement`](crate::Worker::placement).
    #[must_use]
    pub const fn placement(&self) -> Placement {
        self.arena.placement()
    }
}

/// Whether so many bytes lie in the range that the address of a WRITE was made for. The Worker knows everything else of
/// a request.
#[inline]
fn reaches(operation: Operation, bytes: usize) -> Result<(), SubmitErrorKind> {
    let (Operation::Write(remote) | Operation::WriteWithImmediate(remote, _)) = operation else {
        return Ok(());
    };
    let bytes_max = remote.write_bytes_max();
    if bytes <= bytes_max as usize {
        return Ok(());
    }
    Err(
        if bytes_max == 0 && remote.read_bytes_max() | remote.atomic_bytes_max() != 0 {
            SubmitErrorKind::NotGranted
        } else {
            SubmitErrorKind::OutOfWindow { bytes, bytes_max }
        },
    )
}

impl<P: Provider> fmt::Debug for Submitter<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Submitter")
            .field("who", &self.who)
            .field("slots", &self.arena.slots())
            .finish_non_exhaustive()
    }
}

impl<P: Provider> Drop for Submitter<P> {
    /// Its requests are still sent; what failed goes home with its memory.
    fn drop(&mut self) {
        self.failures.close();
    }
}
