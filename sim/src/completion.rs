//! Completions, and the queues they are polled from.

use core::fmt;
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::RawFd;
use std::sync::{Arc, OnceLock};

use doorbell_core::ledger::{Ledger, Origin};
use doorbell_core::provider::{Arrival, ArrivalKind, AsyncEvent, CompletionQueueConfig, ProviderError};
use doorbell_core::work_id::CHANNELS_MAX;
use doorbell_core::{QpState, Qpn, Ticket, WcStatus, WorkId, WorkKind};

use crate::descriptor::{Bells, Descriptor, Descriptors};
use crate::errno::{EBUSY, EEXIST, EINVAL, EOPNOTSUPP, EOVERFLOW, failed};
use crate::host::{ContextInner, LIMITS};
use crate::id::Id;
use crate::queue_pair::QueuePairKey;
use crate::slab::Key;
use crate::world::{ContextKey, World};

/// How many completions one poll takes at most.
const POLL_MAX: usize = 16;
/// For how many timers a poll that finds nothing waits at most, where time passes by itself:
/// more than the retries of one request, and few enough for a poll to stay cheap.
const PATIENCE: u32 = 16;

/// Completion that the device writes when a request ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompletionEntry {
    pub(crate) work_id: WorkId,
    pub(crate) status: WcStatus,
    /// Kind of message that consumed the receive, if it succeeded.
    pub(crate) kind: ArrivalKind,
    pub(crate) bytes: u32,
    pub(crate) immediate: Option<u32>,
    /// Whether the sender asked to wake the receiver.
    pub(crate) solicited: bool,
    /// The sender, if it is a datagram.
    pub(crate) source_qpn: Option<Qpn>,
}

impl CompletionEntry {
    /// Reports the completion as an arrival, for the receive that it consumed.
    pub(crate) const fn arrival(&self, ticket: Ticket) -> Arrival {
        Arrival {
            ticket,
            status: self.status,
            kind: self.kind,
            payload_bytes: self.bytes,
            immediate: self.immediate,
            vendor_error: 0,
        }
    }

    /// The end of a request without details: a send, or any failure (S7).
    pub(crate) const fn of(work_id: WorkId, status: WcStatus) -> Self {
        let kind = ArrivalKind::Failed;
        Self {
            work_id,
            status,
            kind,
            bytes: 0,
            immediate: None,
            solicited: false,
            source_qpn: None,
        }
    }
}

/// A completion, as a [`CompletionQueue`] lends it.
///
/// It can be neither cloned:
/// ```compile_fail,E0599
/// # fn f(completion: doorbell_sim::LentCompletion<'_>) {
/// let twin = completion.clone();
/// # }
/// ```
/// nor made:
/// ```compile_fail,E0423
/// let completion = doorbell_sim::LentCompletion(unreachable!());
/// ```
/// nor redeemed twice:
/// ```compile_fail,E0382
/// # use doorbell_core::provider::SendQueue as _;
/// # fn f(send: &mut doorbell_sim::SendQueue, completion: doorbell_sim::LentCompletion<'_>) {
/// send.retire(completion, |_, _| ()).ok();
/// send.retire(completion, |_, _| ()).ok();
/// # }
/// ```
/// nor held beyond the callback, unless it is kept:
/// ```compile_fail,E0521
/// # use doorbell_core::provider::CompletionQueue as _;
/// # fn f(queue: &mut doorbell_sim::CompletionQueue) {
/// let mut held = None;
/// queue.poll(|completion| held = Some(completion)).ok();
/// # }
/// ```
#[derive(Debug)]
pub struct LentCompletion<'c>(&'c Completion);

impl doorbell_core::provider::LentCompletion for LentCompletion<'_> {
    type Kept = Completion;

    fn work_id(&self) -> WorkId {
        self.0.entry.work_id
    }

    fn status(&self) -> WcStatus {
        self.0.entry.status
    }

    fn qpn(&self) -> Qpn {
        self.0.qpn
    }

    fn keep(self) -> Completion {
        let Completion { entry, qpn, origin } = *self.0;
        Completion { entry, qpn, origin }
    }
}

impl LentCompletion<'_> {
    pub(crate) const fn entry(&self) -> &CompletionEntry {
        &self.0.entry
    }

    pub(crate) const fn origin(&self) -> Origin {
        self.0.origin
    }
}

/// A completion that was kept.
///
/// It can be neither cloned:
/// ```compile_fail,E0599
/// # fn f(completion: doorbell_sim::Completion) {
/// let twin = completion.clone();
/// # }
/// ```
/// nor made:
/// ```compile_fail,E0451
/// let completion = doorbell_sim::Completion { origin: unreachable!(), ..unreachable!() };
/// ```
#[derive(Debug)]
pub struct Completion {
    entry: CompletionEntry,
    qpn: Qpn,
    origin: Origin,
}

impl doorbell_core::provider::Completion for Completion {
    type Lent<'c> = LentCompletion<'c>;

    fn lend(&self) -> LentCompletion<'_> {
        LentCompletion(self)
    }
}

/// A channel of one kind of queue.
#[derive(Clone, Copy, Default)]
struct Channel {
    is_live: bool,
    next_generation: u32,
}

/// A completion queue, as the device knows it.
pub(crate) struct CompletionState {
    context: ContextKey,
    depth: usize,
    /// The next completion finds no room, even in an empty queue.
    pub(crate) overruns_next: bool,
    /// Each with the queue pair it is of.
    entries: VecDeque<(Qpn, CompletionEntry)>,
    /// It overran, and is of no further use (S21).
    is_failed: bool,
    /// Whether it is armed, and then whether for solicited completions alone.
    armed: Option<bool>,
    notifications: u32,
    /// A wake-up that was not taken.
    is_woken: bool,
    bells: Bells,
    channels: BTreeMap<(bool, u32), Channel>,
    /// Number for the events of the next shared receive queue.
    next_shared: u32,
}

/// Names one.
pub(crate) type CompletionKey = Key<CompletionState>;

impl CompletionState {
    pub(crate) const fn context(&self) -> ContextKey {
        self.context
    }

    /// Whether something waits to be polled, or nothing ever will.
    pub(crate) fn has_news(&self) -> bool {
        self.is_failed || !self.entries.is_empty()
    }

    /// Whether a notification waits to be taken.
    pub(crate) const fn has_notification(&self) -> bool {
        self.notifications > 0 || self.is_woken
    }

    /// Whether one of these descriptors is one of its, and readable.
    pub(crate) fn is_readable(&self, descriptors: &[RawFd]) -> bool {
        self.has_notification() && self.bells.is_readable(descriptors)
    }

    /// Writes a completion, and notifies a thread that armed the queue. Failures may count as solicited.
    ///
    /// # Errors
    /// There is no room.
    fn write(&mut self, qpn: Qpn, entry: CompletionEntry, counts_failures: bool) -> Result<(), ()> {
        let overruns = core::mem::take(&mut self.overruns_next);
        if self.is_failed || overruns || self.entries.len() >= self.depth {
            return Err(());
        }
        self.entries.push_back((qpn, entry));
        let wakes = match self.armed {
            None => false,
            Some(solicited_only) => {
                !solicited_only || entry.solicited || counts_failures && !entry.status.is_success()
            }
        };
        if wakes {
            self.armed = None;
            self.notifications = self.notifications.saturating_add(1);
            self.ring();
        }
        Ok(())
    }

    /// Lets its descriptors say whether there is something to be taken.
    fn ring(&mut self) {
        self.bells.set([self.notifications > 0, self.is_woken]);
    }

    /// Takes a channel; says at which generation its queue begins.
    ///
    /// # Errors
    /// It is taken (`EEXIST`).
    pub(crate) fn take_channel(&mut self, kind: WorkKind, channel: u32) -> Result<u32, ProviderError> {
        let entry = self
            .channels
            .entry((kind == WorkKind::Receive, channel))
            .or_default();
        if entry.is_live {
            return Err(failed("queue_pair: the channel is taken", EEXIST));
        }
        entry.is_live = true;
        Ok(entry.next_generation)
    }

    /// Whether the sends of a channel are taken.
    fn is_taken(&self, channel: u32) -> bool {
        let entry = self.channels.get(&(false, channel));
        entry.is_some_and(|entry| entry.is_live)
    }

    /// A number for a shared receive queue, which no other on this completion queue ever has.
    ///
    /// # Errors
    /// As many were made as there are numbers (`EBUSY`).
    pub(crate) fn number_shared(&mut self) -> Result<u32, ProviderError> {
        let number = self.next_shared;
        if number >= CHANNELS_MAX {
            return Err(failed("shared_receive_queue: make a new completion queue", EBUSY));
        }
        self.next_shared = number.saturating_add(1);
        Ok(number)
    }

    /// Gives a channel back; the next queue on it begins at this generation.
    pub(crate) fn give_channel_back(&mut self, kind: WorkKind, channel: u32, next_generation: u32) {
        let entry = Channel {
            is_live: false,
            next_generation,
        };
        self.channels.insert((kind == WorkKind::Receive, channel), entry);
    }
}

impl World {
    /// Writes a completion of a queue pair.
    ///
    /// A queue that is full loses it and fails, and with it each queue pair that has
    /// something to complete there (S21); or it loses it and works on.
    pub(crate) fn complete(&mut self, key: QueuePairKey, queue: CompletionKey, entry: CompletionEntry) {
        let Some(qp) = self.queue_pairs.get(key) else {
            return;
        };
        let (qpn, context, is_alive) = (qp.qpn, qp.context, qp.state != QpState::Error);
        let quirks = *self.quirks(qp.device);
        let Some(state) = self.completion_queues.get_mut(queue) else {
            // Its owner is gone, and nobody will ever poll it.
            return;
        };
        self.news = true;
        self.moved = true;
        let has_room = state.write(qpn, entry, quirks.failures_are_solicited).is_ok();
        let (is_first, owner) = (!state.is_failed, state.context);
        state.is_failed |= !has_room && !quirks.overrun_queues_work_on;
        self.record_completion(key, &entry, has_room);
        if has_room {
            return;
        }
        if is_first {
            self.raise(owner, AsyncEvent::CompletionQueueError);
        }
        let is_receive = entry.work_id.kind() != Some(WorkKind::Send);
        let fails = is_receive || !quirks.overrun_queues_work_on;
        if is_alive && fails && !self.failing.contains(&key) {
            if quirks.states_are_reported {
                self.raise(context, AsyncEvent::QueuePairFatal(qpn));
            }
            self.failing.push_back(key);
        }
    }
}

/// A completion queue; polled by one thread.
pub struct CompletionQueue {
    context: Arc<ContextInner>,
    id: Id,
    key: CompletionKey,
    depth: u32,
    notify: bool,
    /// Once they were asked for; `None` where the system gave none.
    descriptors: OnceLock<Option<Arc<Descriptors>>>,
    /// How many completions it gave out.
    polled: u64,
    /// Completions that a poll is giving out.
    taken: VecDeque<(Qpn, CompletionEntry)>,
}

impl CompletionQueue {
    pub(crate) fn new(
        context: &Arc<ContextInner>,
        config: &CompletionQueueConfig,
    ) -> Result<Self, ProviderError> {
        if config.depth == 0 || config.depth > LIMITS.completion_depth_max {
            return Err(failed("completion_queue", EINVAL));
        }
        let state = CompletionState {
            context: context.key(),
            depth: config.depth as usize,
            overruns_next: false,
            entries: VecDeque::new(),
            is_failed: false,
            armed: None,
            notifications: 0,
            is_woken: false,
            bells: Bells::default(),
            channels: BTreeMap::new(),
            next_shared: 0,
        };
        let key = context.fabric().lock().completion_queues.insert(state);
        let context = Arc::clone(context);
        Ok(Self {
            context,
            id: Id::fresh(),
            key,
            depth: config.depth,
            notify: config.notify,
            descriptors: OnceLock::new(),
            polled: 0,
            taken: VecDeque::with_capacity(POLL_MAX),
        })
    }

    pub(crate) const fn key(&self) -> CompletionKey {
        self.key
    }

    pub(crate) const fn context(&self) -> &Arc<ContextInner> {
        &self.context
    }

    /// Its descriptors, where it can notify.
    fn descriptors(&self) -> Option<&Descriptors> {
        let make = || {
            let made = Arc::new(Descriptors::new().ok()?);
            let hang = |state: &mut CompletionState| {
                state.bells.hang(&made);
                state.ring();
            };
            self.with_notifier("descriptors", hang).ok()?;
            Some(made)
        };
        self.descriptors.get_or_init(make).as_deref()
    }

    /// The ledger of a queue that is made now and completes here.
    pub(crate) const fn ledger(&self) -> Ledger {
        Ledger::new(self.id.to_queue(), self.polled)
    }

    /// Gives `each` the state, where the queue can notify.
    fn with_notifier<T>(
        &self,
        call: &'static str,
        each: impl FnOnce(&mut CompletionState) -> T,
    ) -> Result<T, ProviderError> {
        let unsupported = failed(call, EOPNOTSUPP);
        if !self.notify {
            return Err(unsupported);
        }
        let mut world = self.context.fabric().lock();
        world
            .completion_queues
            .get_mut(self.key)
            .map(each)
            .ok_or(unsupported)
    }
}

/// A channel of a completion queue that is promised to a queue pair. It is given back unless that comes to be.
pub struct Claim {
    context: Arc<ContextInner>,
    id: Id,
    key: CompletionKey,
    kind: WorkKind,
    channel: u32,
    generation: u32,
    /// How many completions had been polled.
    polled: u64,
    /// Whether the queue came to be, which gives the channel back itself.
    is_kept: bool,
}

impl Claim {
    pub(crate) fn new(queue: &CompletionQueue, kind: WorkKind, channel: u32) -> Result<Self, ProviderError> {
        let invalid = failed("queue_pair", EINVAL);
        if channel >= CHANNELS_MAX {
            return Err(invalid);
        }
        let mut world = queue.context.fabric().lock();
        let state = world.completion_queues.get_mut(queue.key).ok_or(invalid)?;
        let generation = state.take_channel(kind, channel)?;
        drop(world);
        Ok(Self {
            context: Arc::clone(&queue.context),
            id: queue.id,
            key: queue.key,
            kind,
            channel,
            generation,
            polled: queue.polled,
            is_kept: false,
        })
    }

    pub(crate) const fn key(&self) -> CompletionKey {
        self.key
    }

    pub(crate) const fn generation(&self) -> u32 {
        self.generation
    }

    /// Whether it was made for this.
    pub(crate) fn is_for(&self, context: &Arc<ContextInner>, kind: WorkKind, channel: u32) -> bool {
        Arc::ptr_eq(&self.context, context) && self.kind == kind && self.channel == channel
    }

    /// The queue came to be: its ledger.
    pub(crate) fn keep(mut self) -> Ledger {
        self.is_kept = true;
        Ledger::new(self.id.to_queue(), self.polled)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        let mut world = self.context.fabric().lock();
        if let Some(queue) = world.completion_queues.get_mut(self.key) {
            queue.give_channel_back(self.kind, self.channel, self.generation);
        }
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Claim({:?}, {})", self.kind, self.channel)
    }
}

/// Wakes a thread that sleeps at a completion queue.
#[derive(Clone)]
pub struct Waker {
    context: Arc<ContextInner>,
    id: Id,
    key: CompletionKey,
}

impl doorbell_core::provider::Waker for Waker {
    fn wake(&self) {
        let mut world = self.context.fabric().lock();
        if let Some(queue) = world.completion_queues.get_mut(self.key) {
            queue.is_woken = true;
            queue.ring();
        }
        world.moved = true;
    }
}

impl fmt::Debug for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waker")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl doorbell_core::provider::CompletionQueue for CompletionQueue {
    type Completion = Completion;
    type Waker = Waker;
    type Claim = Claim;
    type Descriptor = Descriptor;

    fn claim_sends(&self, channel: u32) -> Result<Claim, ProviderError> {
        Claim::new(self, WorkKind::Send, channel)
    }

    fn claim_receives(&self, channel: u32) -> Result<Claim, ProviderError> {
        Claim::new(self, WorkKind::Receive, channel)
    }

    fn is_claimed(&self, channel: u32) -> bool {
        let world = self.context.fabric().lock();
        let state = world.completion_queues.get(self.key);
        state.is_some_and(|state| state.is_taken(channel))
    }

    fn poll<F: FnMut(LentCompletion<'_>)>(&mut self, mut each: F) -> Result<u32, ProviderError> {
        // Else a callback that panicked left some.
        if self.taken.is_empty() {
            let mut world = self.context.fabric().lock();
            let key = self.key;
            // A poll that finds nothing lets time pass until there is a completion.
            world.idle(
                |world| {
                    world
                        .completion_queues
                        .get(key)
                        .is_none_or(CompletionState::has_news)
                },
                PATIENCE,
            );
            let lost = failed("poll: the completion queue overran", EOVERFLOW);
            let state = world.completion_queues.get_mut(key).ok_or(lost)?;
            if state.is_failed {
                return Err(lost);
            }
            let count = state.entries.len().min(POLL_MAX);
            self.taken.extend(state.entries.drain(..count));
        }
        // Not under the lock: the callback may post.
        let mut count = 0_u32;
        while let Some((qpn, entry)) = self.taken.pop_front() {
            self.polled = self.polled.wrapping_add(1);
            count = count.wrapping_add(1);
            let origin = Origin {
                queue: self.id.to_queue(),
                sequence: self.polled,
            };
            each(LentCompletion(&Completion { entry, qpn, origin }));
        }
        Ok(count)
    }

    fn depth(&self) -> u32 {
        self.depth
    }

    /// It is made when it is first asked for. If nobody drives the fabric, a thread that sleeps at it lets no time pass:
    /// that takes [`FabricBuilder::real_time`](crate::FabricBuilder::real_time).
    fn notification(&self) -> Option<&Descriptor> {
        Some(&self.descriptors()?.notification)
    }

    fn waking(&self) -> Option<&Descriptor> {
        Some(&self.descriptors()?.waking)
    }

    fn arm(&mut self, solicited_only: bool) -> Result<(), ProviderError> {
        self.with_notifier("arm", |state| {
            // Armed for any completion stays so. Source: `ibv_req_notify_cq(3)`.
            let solicited_only = solicited_only && state.armed != Some(false);
            state.armed = Some(solicited_only);
        })
    }

    fn acknowledge(&mut self) -> Result<u32, ProviderError> {
        self.with_notifier("acknowledge", |state| {
            state.is_woken = false;
            let taken = core::mem::take(&mut state.notifications);
            state.ring();
            taken
        })
    }

    fn waker(&self) -> Option<Waker> {
        self.notify.then(|| Waker {
            context: Arc::clone(&self.context),
            id: self.id,
            key: self.key,
        })
    }

    /// Lets the time of the fabric pass, driven or not, until one of them notifies or the span is over. If
    /// nobody drives the fabric, other threads get their turn before.
    fn sleep<const N: usize>(queues: [&Self; N], span: Duration) -> Result<(), ProviderError> {
        let Some(first) = queues.first() else {
            return Ok(());
        };
        let fabric = first.context.fabric();
        for queue in queues {
            queue.with_notifier("sleep", |_| ())?;
        }
        let keys = queues.map(|queue| queue.key);
        let is_notified = |world: &World| {
            let mut states = keys.iter().filter_map(|key| world.completion_queues.get(*key));
            states.any(CompletionState::has_notification)
        };
        fabric.wait_for(is_notified, span);
        Ok(())
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        self.context.fabric().lock().completion_queues.remove(self.key);
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue")
            .field("id", &self.id)
            .field("depth", &self.depth)
            .field("polled", &self.polled)
            .finish_non_exhaustive()
    }
}
