//! Shared receive queues: queues of receives from which several queue pairs take.
//!
//! The queue pairs and the half that posts jointly own the queue in the device. If that half is dropped first, it leaves
//! its in-flight table there. When the last owner is dropped, no queue pair is left that could have begun a receive, and
//! the queue is destroyed. Only if that succeeds do the slots in the table return to their arenas.

use core::fmt;
use core::mem::ManuallyDrop;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use doorbell_core::ledger::Ledger;
use doorbell_core::provider::{
    Arrival, GATHER_MAX, LentCompletion as _, PostError, ProviderError, Refused, Rejected,
    SharedReceiveQueueConfig,
};
use doorbell_core::shared_in_flight::{Entry, SharedInFlight, entries_for};
use doorbell_core::{SharedReceiveId, Ticket};
use rdma_sys::{ibv_recv_wr, ibv_srq_attr, ibv_srq_attr_mask, ibv_srq_init_attr};

use crate::completion_queue::CompletionInner;
use crate::context::PostShared;
use crate::domain::DomainInner;
use crate::leak::Leaked;
use crate::work_list::{Description, WorkList};
use crate::{
    Completion, CompletionQueue, LentCompletion, SharedClaim, Slot, errno, orphan, receive_queue, unposted,
};

/// The in-flight table that the queue embeds.
pub(crate) type SharedTable = SharedInFlight<Slot, Box<[Entry<Slot>]>>;

/// The queue in the device. It lives as long as a queue pair takes from it.
pub(crate) struct SharedReceiveInner {
    srq: NonNull<rdma_sys::ibv_srq>,
    id: SharedReceiveId,
    /// The table, once the half that posts is dropped.
    parked: Mutex<Option<SharedTable>>,
    completions: ManuallyDrop<Arc<CompletionInner>>,
    domain: ManuallyDrop<Arc<DomainInner>>,
}

// SAFETY: libibverbs may be called from any thread, on any object, at any time
// (rdma-core Documentation/libibverbs.md); the rest is plain data and a mutex.
unsafe impl Send for SharedReceiveInner {}
// SAFETY: as above.
unsafe impl Sync for SharedReceiveInner {}

impl SharedReceiveInner {
    /// The handle, live as long as `self`.
    #[inline]
    pub(crate) const fn as_ptr(&self) -> *mut rdma_sys::ibv_srq {
        self.srq.as_ptr()
    }

    /// Completion queue of the receives, for all queue pairs on it.
    pub(crate) fn completions(&self) -> &Arc<CompletionInner> {
        &self.completions
    }

    pub(crate) fn domain(&self) -> &Arc<DomainInner> {
        &self.domain
    }
}

impl Drop for SharedReceiveInner {
    #[doc(alias = "ibv_destroy_srq")]
    fn drop(&mut self) {
        // SAFETY: made in `SharedReceiveQueue::new`, and destroyed only here. The queue pairs that take from it hold an
        // `Arc` of this until they are destroyed. Its asynchronous events are acknowledged as they are taken
        // (ibv_create_srq(3), ibv_get_async_event(3)).
        let status = unsafe { rdma_sys::ibv_destroy_srq(self.srq.as_ptr()) };
        let table = self
            .parked
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if errno::from_value("ibv_destroy_srq", status).is_err() {
            // The device may still use the slots, and the queue the objects that it was made from.
            Leaked::SharedReceiveQueue.count();
            core::mem::forget(table);
            return;
        }
        // The device is done with every receive, since neither the queue nor a queue pair that took from it is left.
        if let Some(mut table) = table {
            table.drain(drop);
        }
        // SAFETY: dropped here once, after the queue pairs that completed into it.
        unsafe { ManuallyDrop::drop(&mut self.completions) };
        // A dropped arena may have waited for some of these slots. Its memory has to be freed before its domain.
        orphan::reclaim();
        // SAFETY: dropped here once, last.
        unsafe { ManuallyDrop::drop(&mut self.domain) };
    }
}

/// Receives from which several queue pairs take. One thread owns the queue, together with its completion queue.
pub struct SharedReceiveQueue {
    /// Owns the slots whose memory requests name, from staging until the device is done.
    table: ManuallyDrop<SharedTable>,
    /// The list has as many requests as the table is deep.
    list: WorkList<ibv_recv_wr>,
    post_srq_recv: PostShared,
    /// How many receives the last batch left staged.
    left: u32,
    ledger: Ledger,
    depth: u32,
    scatter_max: u8,
    inner: Arc<SharedReceiveInner>,
}

const CREATE: &str = "ibv_create_srq";

impl SharedReceiveQueue {
    #[doc(alias = "ibv_create_srq")]
    pub(crate) fn new(
        domain: &Arc<DomainInner>,
        receive_completions: &CompletionQueue,
        config: &SharedReceiveQueueConfig,
    ) -> Result<Self, ProviderError> {
        let failed = |errno| ProviderError { call: CREATE, errno };
        let completions = receive_completions.inner();
        let same_device = Arc::ptr_eq(completions.context(), domain.context());
        if !same_device || usize::from(config.scatter_max) > GATHER_MAX {
            return Err(failed(libc::EINVAL));
        }
        let count = entries_for(config.depth).ok_or(failed(libc::EINVAL))?;
        let post_srq_recv = domain.context().data_path().post_srq_recv;
        let post_srq_recv = post_srq_recv.ok_or(failed(libc::EOPNOTSUPP))?;
        let number = completions.channels().number_shared()?;
        let entries = core::iter::repeat_with(Entry::default).take(count).collect();
        let table = SharedInFlight::new(entries, number, config.depth).ok_or(failed(libc::EINVAL))?;

        let id = fresh_id();
        let scatter_max = config.scatter_max.max(1);
        let mut attributes = ibv_srq_init_attr {
            // A word for the user, which identifies the queue in events.
            srq_context: ptr::without_provenance_mut(usize::try_from(id.0).unwrap_or(usize::MAX)),
            attr: ibv_srq_attr {
                max_wr: config.depth,
                max_sge: u32::from(scatter_max),
                srq_limit: 0,
            },
        };
        // SAFETY: the domain is live and the structure writable (ibv_create_srq(3)).
        let srq = unsafe { rdma_sys::ibv_create_srq(domain.as_ptr(), &raw mut attributes) };
        let srq = errno::from_pointer(CREATE, srq)?;
        let inner = SharedReceiveInner {
            srq,
            id,
            parked: Mutex::default(),
            completions: ManuallyDrop::new(Arc::clone(completions)),
            domain: ManuallyDrop::new(Arc::clone(domain)),
        };
        Ok(Self {
            // The table is empty, so its room is its depth.
            list: WorkList::new(table.room()),
            table: ManuallyDrop::new(table),
            post_srq_recv,
            left: 0,
            ledger: receive_completions.ledger(),
            depth: config.depth,
            scatter_max,
            inner: Arc::new(inner),
        })
    }

    pub(crate) const fn inner(&self) -> &Arc<SharedReceiveInner> {
        &self.inner
    }
}

/// Returns an id for a new queue.
fn fresh_id() -> SharedReceiveId {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    // Relaxed: only the number matters. It wraps round only after 2^64 queues.
    SharedReceiveId(NEXT.fetch_add(1, Ordering::Relaxed))
}

impl doorbell_core::provider::SharedReceiveQueue for SharedReceiveQueue {
    type Slot = Slot;
    type Completion = Completion;
    type Batch<'q> = SharedReceiveBatch<'q>;
    type Claim = SharedClaim;

    fn claim(&self) -> SharedClaim {
        SharedClaim::new(self)
    }

    #[inline]
    fn stage(&mut self) -> SharedReceiveBatch<'_> {
        if self.table.staged() != self.left {
            // A batch was forgotten (`mem::forget`).
            unposted::discard(&mut *self.table);
            self.left = 0;
        }
        SharedReceiveBatch { queue: self }
    }

    #[inline]
    fn retire<F: FnMut(Ticket, Slot)>(
        &mut self,
        completion: LentCompletion<'_>,
        mut each: F,
    ) -> Result<Arrival, Rejected> {
        let origin = completion.origin();
        let mut left = receive_queue::scattered(&completion);
        let give_back = |ticket: Ticket, mut slot: Slot| {
            let length = left.min(slot.capacity());
            left = left.saturating_sub(length);
            slot.set_length(length);
            each(ticket, slot);
        };
        let table = &mut *self.table;
        let ticket = self
            .ledger
            .redeem_alone(origin, completion.work_id(), |work_id| {
                table.retire(work_id, origin.sequence, give_back)
            })?;
        Ok(receive_queue::arrival(&completion, ticket))
    }

    #[inline]
    fn in_flight(&self) -> u32 {
        self.table.posted()
    }

    #[inline]
    fn room(&self) -> u32 {
        self.table.room()
    }

    #[inline]
    fn rejected(&self) -> u64 {
        self.ledger.rejected()
    }

    fn id(&self) -> SharedReceiveId {
        self.inner.id
    }

    fn number(&self) -> u32 {
        self.table.number()
    }

    #[doc(alias = "ibv_modify_srq")]
    fn set_limit(&mut self, receives: u32) -> Result<(), ProviderError> {
        const CALL: &str = "ibv_modify_srq";
        /// `IBV_SRQ_LIMIT`.
        const LIMIT: i32 = 2;
        const { assert!(ibv_srq_attr_mask::IBV_SRQ_LIMIT.0 == LIMIT as u32) };
        if receives > self.depth {
            return Err(ProviderError {
                call: CALL,
                errno: libc::EINVAL,
            });
        }
        let mut attributes = ibv_srq_attr {
            max_wr: 0,
            max_sge: 0,
            srq_limit: receives,
        };
        // SAFETY: the queue is live, and the attribute of the mask is set in the structure (ibv_modify_srq(3)).
        let status = unsafe { rdma_sys::ibv_modify_srq(self.inner.as_ptr(), &raw mut attributes, LIMIT) };
        errno::from_value(CALL, status)
    }
}

impl Drop for SharedReceiveQueue {
    fn drop(&mut self) {
        // SAFETY: taken here once, as the half is dropped.
        let table = unsafe { ManuallyDrop::take(&mut self.table) };
        // The device may still write into its slots, so the table stays until the queue ends.
        let mut parked = self.inner.parked.lock().unwrap_or_else(PoisonError::into_inner);
        *parked = Some(table);
    }
}

impl fmt::Debug for SharedReceiveQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedReceiveQueue")
            .field("id", &self.inner.id)
            .field("table", &*self.table)
            .finish_non_exhaustive()
    }
}

/// Receives staged for one post. A batch that is dropped posts nothing.
pub struct SharedReceiveBatch<'q> {
    queue: &'q mut SharedReceiveQueue,
}

impl doorbell_core::provider::ReceiveBatch for SharedReceiveBatch<'_> {
    type Slot = Slot;

    #[inline]
    fn push<const N: usize>(&mut self, slots: [Slot; N]) -> Result<Ticket, Refused<[Slot; N]>> {
        let queue = &mut *self.queue;
        let staged = queue.table.staged();
        receive_queue::push(queue.scatter_max, slots, |slots| {
            let description = Description::new(&slots, Slot::capacity);
            let (ticket, work_id) = queue.table.stage(slots)?;
            // SAFETY: the table had `staged` requests staged and took one more, so `staged` is below its depth, for which the
            // list was made.
            let (request, elements) = unsafe { queue.list.entry(staged) };
            request.wr_id = work_id.to_raw();
            request.num_sge = description.write(elements);
            Ok(ticket)
        })
    }

    #[inline]
    fn staged(&self) -> u32 {
        self.queue.table.staged()
    }

    #[inline]
    fn leave(self) {
        let Self { queue } = &mut *ManuallyDrop::new(self);
        queue.left = queue.table.staged();
    }

    #[inline]
    #[doc(alias = "ibv_post_srq_recv")]
    fn ring(self) -> Result<u32, PostError> {
        let queue = &mut *self.queue;
        let (post_srq_recv, srq) = (queue.post_srq_recv, queue.inner.as_ptr());
        let (status, posted) = queue.list.submit(queue.table.staged(), |first, refused| {
            // SAFETY: (ibv_post_srq_recv(3)) 1. The queue is live, held by `inner`, and the function is its provider's.
            // 2. The list ends in null, and its elements are written. 3. The memory that they name stays, as `table`
            // describes.
            unsafe { post_srq_recv(srq, first, refused) }
        });
        queue.left = 0;
        queue.table.post(posted);
        if status == 0 {
            return Ok(posted);
        }
        // Dropping the batch returns the rest to their arenas.
        Err(unposted::refused(
            &*queue.table,
            "ibv_post_srq_recv",
            status,
            posted,
        ))
    }
}

impl Drop for SharedReceiveBatch<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.queue.table.staged() != 0 {
            unposted::discard(&mut *self.queue.table);
            self.queue.left = 0;
        }
    }
}

impl fmt::Debug for SharedReceiveBatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedReceiveBatch({} staged)", self.queue.table.staged())
    }
}
