//! Shared receive queues: receives that several queue pairs take from.
//!
//! The in-flight table holds no slots here: a receive takes its slots into the device, which
//! hands them back with it. The table gives out ids and judges completions.

use core::convert::Infallible;
use core::fmt;
use core::mem::ManuallyDrop;
use std::collections::VecDeque;
use std::sync::Arc;

use doorbell_core::ledger::Ledger;
use doorbell_core::provider::{
    Arrival, ArrivalKind, AsyncEvent, GATHER_MAX, LentCompletion as _, PostError, ProviderError, Refused,
    Rejected, SharedReceiveQueueConfig,
};
use doorbell_core::shared_in_flight::{self, SharedInFlight, entries_for};
use doorbell_core::{SharedReceiveId, Ticket};

use crate::completion::CompletionKey;
use crate::errno::{EINVAL, failed};
use crate::host::DomainInner;
use crate::id::Id;
use crate::oracle::Violation;
use crate::receive::{Receive, posted};
use crate::slab::Key;
use crate::world::{ContextKey, World};
use crate::{Completion, CompletionQueue, LentCompletion, Slot};

type Table = SharedInFlight<Infallible, Box<[shared_in_flight::Entry<Infallible>]>>;

/// A shared receive queue, as the device knows it.
pub(crate) struct SharedReceiveState {
    pub(crate) context: ContextKey,
    id: Id,
    /// Receives posted and not consumed.
    receives: VecDeque<Receive>,
    /// Receives that ended and were not retired, by their place: their slots wait here.
    ended: Vec<Option<Receive>>,
    /// Number of receives below which an event is raised; zero raises none.
    limit: usize,
    /// Whether that event is due.
    limit_passed: bool,
}

/// Names one.
pub(crate) type SharedReceiveKey = Key<SharedReceiveState>;

impl SharedReceiveState {
    pub(crate) fn is_empty(&self) -> bool {
        self.receives.is_empty()
    }

    pub(crate) fn post(&mut self, receives: impl Iterator<Item = Receive>) {
        self.receives.extend(receives);
    }

    /// Consumes the next receive, and notes where the limit is passed (S22).
    pub(crate) fn take(&mut self) -> Option<Receive> {
        let receive = self.receives.pop_front()?;
        if self.receives.len() < self.limit {
            self.limit = 0;
            self.limit_passed = true;
        }
        Some(receive)
    }

    /// Keeps one that ended until it is retired.
    pub(crate) fn end(&mut self, receive: Receive) {
        if let Some(place) = self.ended.get_mut(usize::from(receive.work_id.slot())) {
            *place = Some(receive);
        }
    }

    /// The event that is due.
    pub(crate) fn take_event(&mut self) -> Option<AsyncEvent> {
        let is_due = core::mem::take(&mut self.limit_passed);
        is_due.then(|| AsyncEvent::SharedReceiveLimit(self.id.to_shared_receive()))
    }

    /// Whether an event is about this one.
    fn is_meant(&self, event: &AsyncEvent) -> bool {
        matches!(event, AsyncEvent::SharedReceiveLimit(id) | AsyncEvent::SharedReceiveFatal(id)
            if *id == self.id.to_shared_receive())
    }

    /// How many are posted, and how many ended and were not retired.
    pub(crate) fn counts(&self) -> [usize; 2] {
        [self.receives.len(), self.ended.iter().flatten().count()]
    }
}

/// The queue in the device, destroyed when its half and the queue pairs on it are gone.
pub(crate) struct SharedReceiveInner {
    domain: Arc<DomainInner>,
    id: Id,
    key: SharedReceiveKey,
    completions: CompletionKey,
}

impl SharedReceiveInner {
    pub(crate) const fn domain(&self) -> &Arc<DomainInner> {
        &self.domain
    }

    pub(crate) const fn key(&self) -> SharedReceiveKey {
        self.key
    }

    /// Completion queue of the receives of all queue pairs on it.
    pub(crate) const fn completions(&self) -> CompletionKey {
        self.completions
    }

    /// Gives `each` the world, then runs the events that are due.
    fn with<T>(&self, each: impl FnOnce(&mut World) -> T) -> T {
        let mut world = self.domain.context().fabric().lock();
        let outcome = each(&mut world);
        world.settle();
        outcome
    }
}

impl Drop for SharedReceiveInner {
    fn drop(&mut self) {
        // Receives that never completed go home with the state.
        self.with(|world| {
            let Some(state) = world.shared_receives.remove(self.key) else {
                return;
            };
            world.forget_events(state.context, |event| state.is_meant(event));
            world.tally.receives.destroyed_more(state.counts().iter().sum());
        });
    }
}

/// Receives that several queue pairs take from; with its completion queue it belongs to one
/// thread.
pub struct SharedReceiveQueue {
    table: Table,
    staged: Vec<Receive>,
    /// How many of them batches left.
    left: u32,
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
        let queue = world.completion_queues.get_mut(receive_completions.key());
        let number = queue.ok_or(invalid)?.number_shared()?;
        let entries = core::iter::repeat_with(Default::default).take(count).collect();
        let table = SharedInFlight::new(entries, number, config.depth).ok_or(invalid)?;
        let state = SharedReceiveState {
            context: context.key(),
            id,
            receives: VecDeque::new(),
            ended: core::iter::repeat_with(|| None).take(count).collect(),
            limit: 0,
            limit_passed: false,
        };
        let key = world.shared_receives.insert(state);
        drop(world);
        let inner = SharedReceiveInner {
            domain: Arc::clone(domain),
            id,
            key,
            completions: receive_completions.key(),
        };
        Ok(Self {
            table,
            staged: Vec::new(),
            left: 0,
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
        self.left = 0;
    }
}

/// Right of a queue pair to take receives from a shared receive queue.
pub struct SharedClaim(pub(crate) Arc<SharedReceiveInner>);

impl fmt::Debug for SharedClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedClaim")
    }
}

impl doorbell_core::provider::SharedReceiveQueue for SharedReceiveQueue {
    type Slot = Slot;
    type Completion = Completion;
    type Batch<'q> = SharedReceiveBatch<'q>;
    type Claim = SharedClaim;

    fn claim(&self) -> SharedClaim {
        SharedClaim(Arc::clone(&self.inner))
    }

    fn stage(&mut self) -> SharedReceiveBatch<'_> {
        if self.table.staged() != self.left {
            // A batch was forgotten.
            self.unstage();
        }
        SharedReceiveBatch { queue: self }
    }

    fn retire<F: FnMut(Ticket, Slot)>(
        &mut self,
        completion: LentCompletion<'_>,
        each: F,
    ) -> Result<Arrival, Rejected> {
        let (origin, entry) = (completion.origin(), *completion.entry());
        let completion_qpn = completion.qpn();
        let table = &mut self.table;
        let ticket = self
            .ledger
            .redeem_alone(origin, completion.work_id(), |work_id| {
                table.retire(work_id, origin.sequence, |_, never| match never {})
            })?;
        let key = self.inner.key;
        let ended = self.inner.with(|world| {
            let state = world.shared_receives.get_mut(key)?;
            let place = state.ended.get_mut(usize::from(entry.work_id.slot()))?;
            let ended = place.take_if(|receive| receive.ticket == ticket)?;
            world.tally.receives.retired_more(1);
            let changed = Violation::ReceiveChanged(completion_qpn);
            world.tally.check(ended.is_untouched(), changed);
            Some(ended)
        });
        // Not under the lock: the callback may post.
        if let Some(receive) = ended {
            let scattered = entry.kind == ArrivalKind::Send;
            receive.give_back(if scattered { entry.bytes } else { 0 }, each);
        }
        Ok(entry.arrival(ticket))
    }

    fn in_flight(&self) -> u32 {
        self.table.posted()
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

    /// If fewer are left already, the event comes with the next message.
    fn set_limit(&mut self, receives: u32) -> Result<(), ProviderError> {
        let invalid = failed("set_limit", EINVAL);
        if receives > self.depth {
            return Err(invalid);
        }
        let key = self.inner.key;
        self.inner.with(|world| {
            let queue = world.shared_receives.get_mut(key).ok_or(invalid)?;
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

    fn leave(self) {
        let Self { queue } = &mut *ManuallyDrop::new(self);
        queue.left = queue.table.staged();
    }

    /// Posts all that is staged. The simulated device refuses only what a plan says; the slots of what it did not take go home.
    fn ring(self) -> Result<u32, PostError> {
        let queue = &mut *self.queue;
        let (staged, key) = (&mut queue.staged, queue.inner.key);
        let (count, refused) = queue.inner.with(|world| world.post_shared_receives(key, staged));
        queue.table.post(count);
        // Dropping the guard unstages the rest.
        posted(
            count,
            queue.table.staged(),
            refused.map(|errno| failed("post_srq_recv", errno)),
        )
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
