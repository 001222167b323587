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
/// A submitter has its own registered memory. Its requests go through a ring to the Worker. When the Worker is polled, it posts
/// the requests of one channel with one doorbell, in the order of submission. A request without credits or room waits at the
/// Worker and delays no other channel.
///
/// When a request completes, its slot returns to the submitter and can be leased again; nothing else reports the completion. A
/// failed request comes back through [`Submitter::failure`], and its slot stays in use until that call takes it. So call
/// [`Submitter::failure`] when [`Submitter::lease`] returns `None`.
///
/// A submitter may be dropped at any time; its submitted requests are still sent. The drop returns in bounded time: another
/// thread deregisters and frees the memory.
pub struct Submitter<P: Provider = Rdma> {
    requests: RequestProducer,
    failures: Taker<P>,
    arena: Arena<P>,
    /// Index among the submitters that share the ring.
    who: u16,
    // The last owner of these deregisters memory, which takes long, so the reaper drops them.
    return_path: Reaped<Arc<ReturnPath<P>>>,
    intake: Reaped<Arc<Intake<P>>>,
}

impl<P: Provider> Submitter<P> {
    /// Makes the submitter with index `who` of an intake; `None` if there is no such index, or the index already has a submitter.
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

    /// Leases a slot. `None` is backpressure: every slot is leased, waiting or in flight, or belongs to a failure that
    /// [`Submitter::failure`] has not taken yet.
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

    /// Returns a lease to this submitter, which is cheaper than dropping it. A lease of another arena returns to that arena.
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
        // No other thread has seen the words of the detached slot, so the slot is made from them again.
        let slot = self.return_path.attacher().attach(slot);
        Err(SubmitError {
            kind,
            lease: slot.map(|slot| Lease { slot }),
        })
    }

    /// Takes the earliest reported failure; `None` if there is none now.
    ///
    /// Requests that a dropped Worker had not posted come back here, too.
    pub fn failure(&mut self) -> Option<Submission<P>> {
        let (failure, home) = match self.failures.take(self.return_path.failures()) {
            Ok(taken) => taken,
            Err(_) => {
                // Checked first, since claiming the ring writes a cache line that the Worker reads.
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

    /// Returns how the slots were placed in memory; see [`Worker::placement`](crate::Worker::placement).
    #[must_use]
    pub const fn placement(&self) -> Placement {
        self.arena.placement()
    }
}

/// Checks that the bytes of a WRITE fit into the range of its remote address. The Worker makes all other checks when it posts the
/// request.
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
    /// Closes the failure ring, so slots of failed requests return to the arena from now on. Submitted requests are still sent.
    fn drop(&mut self) {
        self.failures.close();
    }
}
