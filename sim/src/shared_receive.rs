//! Shared receive queues: receives that several queue pairs take from.
//!
//! The in-flight table holds no slots here: a receive takes its slots into the device, which
//! hands them back with it. The table gives out ids and judges completions.

use core::convert::Infallible;
use core::fmt;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use doorbell_core::ledger::Ledger;
use doorbell_core::provider::{
    Arrival, ArrivalKind, AsyncEvent, Completion as _, GATHER_MAX, PostError, ProviderError, Refused,
    Rejected, SharedReceiveQueueConfig,
};
use doorbell_core::shared_in_flight::{self, SharedInFlight, entries_for};
use doorbell_core::{SharedReceiveId, Ticket, WorkId};

use crate::errno::{EINVAL, failed};
use crate::fabric::{Id, QueuePairKey, World};
use crate::host::DomainInner;
use crate::receive::Receive;
use crate::{Completion, CompletionQueue, Slot};

type Table = SharedInFlight<Infallible, Box<[shared_in_flight::Entry<Infallible>]>>;

/// A shared receive queue, as the device knows it.
pub(crate) struct SharedReceiveState {
    context: Id,
    /// Receives posted and not consumed.
    receives: VecDeque<Receive>,
    /// Receives that ended and were not retired: their slots wait here.
    ended: BTreeMap<Ticket, Receive>,
    /// Where fewer are left than this an event tells; zero where none is to.
    limit: usize,
}

impl SharedReceiveState {
    /// The receive the next message will be put into.
    pub(crate) fn next(&mut self) -> Option<&mut Receive> {
        self.receives.front_mut()
    }
}

impl World {
    /// Consumes the next receive of a shared receive queue, and tells where its limit is passed
    /// (S22).
    pub(crate) fn take_shared_receive(&mut self, id: Id) -> Option<WorkId> {
        let queue = self.shared_receives.get_mut(&id)?;
        let receive = queue.receives.pop_front()?;
        let work_id = receive.work_id;
        queue.ended.insert(receive.ticket, receive);
        if queue.receives.len() < queue.limit {
            queue.limit = 0;
            let context = queue.context;
            self.raise(context, AsyncEvent::SharedReceiveLimit(id.to_shared_receive()));
        }
        Some(work_id)
    }

    /// Lets go on what waits for a receive of this queue.
    fn wake_peers_of(&mut self, id: Id) {
        let on_it = self.queue_pairs.iter().filter(|(_, qp)| qp.shared == Some(id));
        let keys: Vec<QueuePairKey> = on_it.map(|(key, _)| *key).collect();
        keys.into_iter().for_each(|key| self.wake_peer(key));
    }
}

/// The queue in the device, destroyed when its half and the queue pairs on it are gone.
pub(crate) struct SharedReceiveInner {
    domain: Arc<DomainInner>,
    id: Id,
    completions: Id,
}

impl SharedReceiveInner {
    pub(crate) const fn domain(&self) -> &Arc<DomainInner> {
        &self.domain
    }

    pub(crate) const fn id(&self) -> Id {
        self.id
    }

    /// Where all queue pairs on it complete their receives.
    pub(crate) const fn completions(&self) -> Id {
        self.completions
    }

    /// Gives `each` the world, then lets happen what can.
    fn with<T>(&self, each: impl FnOnce(&mut World) -> T) -> T {
        let mut world = self.domain.context().fabric().lock();
        let outcome = each(&mut world);
        world.settle();
        outcome
    }
}

impl Drop for SharedReceiveInner {
    fn drop(&mut self) {
        // What never completed goes home with the state.
        self.with(|world| world.shared_receives.remove(&self.id));
    }
}

/// Receives that several queue pairs take from; with its completion queue it belongs to one
/// thread.
pub struct SharedReceiveQueue {
    table: Table,
    staged: Vec<Receive>,
    ledger: Ledger,
    depth: u32,
    scatter_max: u8,
    inner: Arc<SharedReceiveInner>,
}

impl SharedReceiveQueue {
    pub(crate) fn new(
        domain: &Arc<DomainInner>,
        receive_completions: &CompletionQueue,
        config: &SharedReceiveQueueConfig,
    ) -> Result<Self, ProviderError> {
        let invalid = failed("shared_receive_queue", EINVAL);
        let context = domain.context();
        let same_device = Arc::ptr_eq(receive_completions.context(), context);
        if !same_device || usize::from(config.scatter_max) > GATHER_MAX {
            return Err(invalid);
        }
        let count = entries_for(config.depth).ok_or(invalid)?;
        let id = Id::fresh();
        let mut world = context.fabric().lock();
        let queue = world.completion_queues.get_mut(&receive_completions.id());
        let number = queue.ok_or(invalid)?.number_shared()?;
        let entries = core::iter::repeat_with(Default::default).take(count).collect();
        let table = SharedInFlight::new(entries, number, config.depth).ok_or(invalid)?;
        let state = SharedReceiveState {
            context: context.id(),
            receives: VecDeque::new(),
            ended: BTreeMap::new(),
            limit: 0,
        };
        world.shared_receives.insert(id, state);
        drop(world);
        let inner = SharedReceiveInner {
            domain: Arc::clone(domain),
            id,
            completions: receive_completions.id(),
        };
        Ok(Self {
            table,
            staged: Vec::new(),
            ledger: receive_completions.ledger(),
            depth: config.depth,
            scatter_max: config.scatter_max.max(1),
            inner: Arc::new(inner),
        })
    }

    pub(crate) const fn inner(&self) -> &Arc<SharedReceiveInner> {
        &self.inner
    }

    /// Forgets what is staged; its slots go home.
    fn unstage(&mut self) {
        self.table.unstage(|_, never| match never {});
        self.staged.clear();
    }
}

impl doorbell_core::provider::SharedReceiveQueue for SharedReceiveQueue {
    type Slot = Slot;
    type Completion = Completion;
    type Batch<'q> = SharedReceiveBatch<'q>;

    fn stage(&mut self) -> SharedReceiveBatch<'_> {
        // Where a batch was forgotten, something is left.
        self.unstage();
        SharedReceiveBatch { queue: self }
    }

    fn retire<F: FnMut(Ticket, Slot)>(
        &mut self,
        completion: Completion,
        each: F,
    ) -> Result<Arrival, Rejected> {
        let (origin, entry) = (completion.origin(), *completion.entry());
        let table = &mut self.table;
        let ticket = self
            .ledger
            .redeem_alone(origin, completion.work_id(), |work_id| {
                table.retire(work_id, origin.sequence, |_, never| match never {})
            })?;
        let id = self.inner.id;
        let ended = self
            .inner
            .with(|world| world.shared_receives.get_mut(&id)?.ended.remove(&ticket));
        // Not under the lock: the callback may post.
        if let Some(receive) = ended {
            let scattered = entry.kind == ArrivalKind::Send;
            receive.give_back(if scattered { entry.bytes } else { 0 }, each);
        }
        Ok(entry.arrival(ticket))
    }

    fn in_flight(&self) -> u32 {
        self.table.in_flight()
    }

    fn room(&self) -> u32 {
        self.table.room()
    }

    fn rejected(&self) -> u64 {
        self.ledger.rejected()
    }

    fn id(&self) -> SharedReceiveId {
        self.inner.id.to_shared_receive()
    }

    fn number(&self) -> u32 {
        self.table.number()
    }

    /// Where fewer are left already, the event comes with the next message.
    fn set_limit(&mut self, receives: u32) -> Result<(), ProviderError> {
        let invalid = failed("set_limit", EINVAL);
        if receives > self.depth {
            return Err(invalid);
        }
        let id = self.inner.id;
        self.inner.with(|world| {
            let queue = world.shared_receives.get_mut(&id).ok_or(invalid)?;
            queue.limit = receives as usize;
            Ok(())
        })
    }
}

impl fmt::Debug for SharedReceiveQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedReceiveQueue")
            .field("id", &self.inner.id)
            .field("table", &self.table)
            .finish_non_exhaustive()
    }
}

/// Receives staged for one post. Dropping it posts nothing.
pub struct SharedReceiveBatch<'q> {
    queue: &'q mut SharedReceiveQueue,
}

impl doorbell_core::provider::ReceiveBatch for SharedReceiveBatch<'_> {
    type Slot = Slot;

    fn push<const N: usize>(&mut self, slots: [Slot; N]) -> Result<Ticket, Refused<[Slot; N]>> {
        let queue = &mut *self.queue;
        let receive = Receive::stage(slots, queue.scatter_max, || queue.table.stage([]).ok())?;
        let ticket = receive.ticket;
        queue.staged.push(receive);
        Ok(ticket)
    }

    fn staged(&self) -> u32 {
        self.queue.table.staged()
    }

    /// Posts all that is staged. The simulated device refuses nothing that could be staged.
    fn ring(self) -> Result<u32, PostError> {
        let queue = &mut *self.queue;
        let count = queue.table.staged();
        queue.table.post(count);
        let staged = core::mem::take(&mut queue.staged);
        let id = queue.inner.id;
        queue.inner.with(|world| {
            if let Some(state) = world.shared_receives.get_mut(&id) {
                state.receives.extend(staged);
            }
            world.wake_peers_of(id);
        });
        Ok(count)
    }
}

impl Drop for SharedReceiveBatch<'_> {
    fn drop(&mut self) {
        self.queue.unstage();
    }
}

impl fmt::Debug for SharedReceiveBatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "SharedReceiveBatch({} staged, room for {})",
            self.queue.table.staged(),
            self.queue.table.room()
        )
    }
}
