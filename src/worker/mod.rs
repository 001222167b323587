//! Workers and their channels: the data path.
//!
//! A [`Worker`] belongs to one thread and one device. It has two completion queues, an arena of registered memory, and the channels on
//! them.
//!
//! | subject | names |
//! |---|---|
//! | polling and waiting | [`Worker::poll`], [`Worker::wait`], [`Event`], [`Turn`], [`Wait`], [`Woken`], [`Sleep`], [`Watched`] |
//! | sending | [`Channel`], [`Claim`], [`Batch`], [`SendError`], [`SendErrorKind`] |
//! | memory | [`Lease`], [`Message`], [`LocalWindow`], [`NotRevoked`], [`WindowRange`](crate::provider::WindowRange), [`Arena`], [`StableMemory`] |
//! | threads that send through one Worker | [`Submitter`], [`Submission`], [`SubmitError`] |
//! | one Worker on two threads | [`SendWorker`], [`ReceiveWorker`], [`SendHalf`], [`ReceiveHalf`] |
//! | one-sided rings of messages | [`RingChannel`], [`RingConfig`], [`RingError`] |
//! | configuration and size | [`WorkerConfig`], [`ChannelConfig`], [`SharedReceivesConfig`], [`SubmitterConfig`] |
//! | traffic classes | [`Classes`], [`Class`], [`ClassCounts`] |
//! | ends | [`CloseProgress`], [`CloseError`], [`ChannelState`], [`FirstCause`] |

mod admission;
pub(crate) mod arena;
pub(crate) mod batch;
pub(crate) mod cells;
pub(crate) mod channel;
mod channel_list;
mod channel_table;
mod checked;
pub(crate) mod claim;
pub(crate) mod class;
mod closing;
pub(crate) mod config;
mod device_events;
mod early;
pub(crate) mod ending;
pub(crate) mod event;
pub(crate) mod half;
mod halves;
pub(crate) mod in_turn;
pub(crate) mod lease;
mod memory;
pub(crate) mod message;
mod ordered;
pub(crate) mod peer;
mod polling;
mod posting;
pub(crate) mod promised;
mod qpn_table;
mod ranges;
mod receive_side;
pub(crate) mod ring_channel;
pub(crate) mod schedule;
mod send_side;
mod shared;
pub(crate) mod sizing;
pub(crate) mod submission;
mod submissions;
mod submitting;
mod turn;
mod undelivered;
mod upkeep;
mod waiting;
pub(crate) mod window;

use core::fmt;
use core::net::IpAddr;
use core::time::Duration;
use std::sync::Arc;

use doorbell_core::provider::{
    Arena as _, ArenaConfig, CompletionQueue as _, CompletionQueueConfig, Context, MemoryError, Pages,
    Placement, ProtectionDomain, Provider, RemoteAccess, WindowConfig,
};
use doorbell_core::sync::{AtomicU32, Ordering};
use doorbell_core::wire::InstanceId;
use doorbell_core::{Clock as _, Deadline, Qpn, Ticket};
use doorbell_ffi::Rdma;

use crate::error::NodeError;
use crate::machine::reaper::{Reaped, Reaper};
use crate::memory::NO_BYTES;
use crate::worker::cells::Cells;
use crate::worker::half::usable;

pub use arena::Arena;
pub use batch::Batch;
pub use cells::CellCounts;
pub use channel::{Channel, ChannelId, SendError, SendErrorKind};
pub(crate) use channel_list::{Due, Notice};
pub use claim::{BatchClaim, Claim};
pub use class::{CLASSES_MAX, Class, Classes};
use closing::Closing;
pub use closing::{CloseError, CloseProgress};
pub use config::{ChannelConfig, Notify, SharedReceivesConfig, SubmitterConfig, WorkerConfig};
pub use doorbell_ffi::StableMemory;
pub use doorbell_hotpath::{
    BATCH_BUCKETS, FirstCause, RingReadError, Statistics, StatisticsSnapshot, Wait, Woken,
};
pub use event::{ChannelState, Event};
pub use half::{ReceiveHalf, SendHalf};

use channel_table::ChannelTable;
use device_events::DeviceEvents;
pub use halves::{NotAPair, NotSplit, ReceiveWorker, SendWorker, SplitError};
pub use lease::{Lease, TooLong};
pub use message::Message;
pub use peer::Peer;
use receive_side::ReceiveSide;
pub use ring_channel::{Publications, RingChannel, RingConfig, RingError, RingOpening};
pub use schedule::ClassCounts;
use send_side::SendSide;
use shared::Shared;
pub use shared::SharedReceives;
pub use submission::{Submission, SubmissionError, SubmitError, SubmitErrorKind, Submitter};
pub use turn::Turn;
use upkeep::Upkeep;
use waiting::Waiting;
pub use waiting::{Sleep, WaitError, Watched};
pub use window::{LocalWindow, NotRevoked};

/// Owns a send and a receive completion queue of one device, registered memory, and all channels on these queues. It belongs to one
/// thread. The cost of a poll does not depend on the number of idle channels.
pub struct Worker<P: Provider = Rdma> {
    // Dropped first: the queue pairs of the channels return their slots to the arena.
    table: ChannelTable<Channel<P>>,
    pub(crate) sends: SendSide<P>,
    pub(crate) receives: ReceiveSide<P>,
    pub(crate) arena: Reaped<P::Arena>,
    /// A word for each channel, in which its peer announces receives.
    pub(crate) credit_words: Arc<P::Window>,
    /// Registered memory for the cells of all channels.
    pub(crate) cells: Arc<Cells<P>>,
    pub(crate) domain: Arc<P::ProtectionDomain>,
    pub(crate) context: Arc<P::Context>,
    device_events: DeviceEvents,
    pub(crate) device: String,
    /// The Node that made the Worker, which is its trust domain.
    pub(crate) node: InstanceId,
    channels_max: u32,
    channels_per_address: u32,
    /// Slots that are reserved for leases.
    leases_kept: u32,
    /// The traffic classes of the channels.
    pub(crate) classes: Option<Box<Classes>>,
    pub(crate) statistics: Arc<Statistics>,
    closing: Vec<Closing>,
    upkeep: Upkeep,
    waiting: Waiting,
    // Dropped last and handed to the reaper. So the reaper holds the last references, and destroys the objects.
    under: Reaped<Under<P>>,
}

/// The objects that a Worker's channels and memory depend on.
struct Under<P: Provider> {
    credit_words: Arc<P::Window>,
    cells: Arc<Cells<P>>,
    domain: Arc<P::ProtectionDomain>,
    context: Arc<P::Context>,
}

impl<P: Provider> Clone for Under<P> {
    fn clone(&self) -> Self {
        Self {
            credit_words: Arc::clone(&self.credit_words),
            cells: Arc::clone(&self.cells),
            domain: Arc::clone(&self.domain),
            context: Arc::clone(&self.context),
        }
    }
}

/// The size of the word in which a peer announces receives.
const CREDIT_WORD_BYTES: usize = size_of::<u64>();

/// The reservation of a channel's place in the table. With it the completion queues have room for all requests that the channel
/// may post.
#[derive(Debug)]
pub(crate) struct Reservation {
    pub(crate) id: ChannelId,
    /// The source address of the peer's stream, if the peer connected to this side.
    from: Option<IpAddr>,
    /// A note of the receiving half for the sending half: [`REFUSED`], [`PEER_CLOSED`], [`PEER_CLOSED_EARLY`], or 0 for none.
    news: AtomicU32,
    /// Whether the peer's handshake is finished, and the channel waits to be admitted.
    is_finished: AtomicU32,
    /// The number of the channel's queue pair, once a thread has made that.
    qpn: Arc<QueuePairNumber>,
}

/// The number of a queue pair, which one thread sets while the Worker's thread reads it.
#[derive(Debug)]
struct QueuePairNumber(AtomicU32);

impl QueuePairNumber {
    /// No queue pair yet. The value is not a valid number, since those have 24 bits.
    const fn none() -> Self {
        Self(AtomicU32::new(u32::MAX))
    }

    fn is(&self, qpn: Qpn) -> bool {
        // Relaxed: the number is stored before the peer learns it, and completions follow only after that.
        self.0.load(Ordering::Relaxed) == qpn.to_u32()
    }
}

/// Note: the peer used receives that it was not granted, and the sending half has to move the queue pair to ERR.
pub(crate) const REFUSED: u32 = 1;

/// Note: the peer closed the channel, and all its messages have arrived.
pub(crate) const PEER_CLOSED: u32 = 2;

/// Note: the peer closed the channel, and not all its messages have arrived.
pub(crate) const PEER_CLOSED_EARLY: u32 = 3;

impl Reservation {
    /// Stores the number of the channel's queue pair. Called before the peer learns the number.
    pub(crate) fn note_queue_pair(&self, qpn: Qpn) {
        // Relaxed, like the load.
        self.qpn.0.store(qpn.to_u32(), Ordering::Relaxed);
    }

    /// Notes that the peer has finished its part of the handshake.
    pub(crate) fn note_finished(&self) {
        // Relaxed: a later request for a place is ordered after this store by a lock.
        self.is_finished.store(1, Ordering::Relaxed);
    }

    /// Returns the source address of the peer's stream while the handshake is unfinished.
    fn unfinished(&self) -> Option<IpAddr> {
        // Relaxed, like the store.
        self.from
            .filter(|_| self.is_finished.load(Ordering::Relaxed) == 0)
    }

    /// Asks the sending half to move the queue pair to ERR. The caller then puts the channel on the list of the sending half.
    #[cold]
    pub(crate) fn refuse(&self) {
        // Relaxed: the list orders this store before the load of the sending half.
        self.news.store(REFUSED, Ordering::Relaxed);
    }

    /// Notes for the sending half that the peer closed the channel. The caller then puts the channel on the list of the sending
    /// half.
    #[cold]
    pub(crate) fn note_peer_closed(&self, all_arrived: bool) {
        let news = if all_arrived {
            PEER_CLOSED
        } else {
            PEER_CLOSED_EARLY
        };
        // Relaxed, as above.
        self.news.store(news, Ordering::Relaxed);
    }

    /// Takes the note of the receiving half; 0 if there is none.
    pub(crate) fn take_news(&self) -> u32 {
        // Relaxed, like the store. A swap, so that a note that replaces this one meanwhile is not lost.
        match self.news.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.news.swap(0, Ordering::Relaxed),
        }
    }
}

/// Returns how many slots are reserved for leases.
fn leases_kept(config: &WorkerConfig) -> u32 {
    let percent = u64::from(config.lease_share_percent);
    let kept = u64::from(config.slots).saturating_mul(percent).div_ceil(100);
    // The conversion fails only for a percentage above 100.
    u32::try_from(kept).unwrap_or(config.slots)
}

impl<P: Provider> Worker<P> {
    pub(crate) fn new(
        context: P::Context,
        device: String,
        config: &WorkerConfig,
        node: InstanceId,
        reaper: Reaper,
    ) -> Result<Self, NodeError> {
        let domain = context.protection_domain()?;
        let queue = CompletionQueueConfig {
            depth: config.completion_depth,
            notify: config.notify != Notify::Never,
        };
        let send_completions = context.completion_queue(&queue)?;
        let receive_completions = context.completion_queue(&CompletionQueueConfig {
            // At most `shared.depth` shared receives complete, whichever channels used them.
            depth: config
                .shared_receives
                .map_or(queue.depth, |shared| queue.depth.max(shared.depth)),
            ..queue
        })?;
        let mut arena = domain.arena(&ArenaConfig {
            slots: config.slots,
            slot_bytes: config.slot_bytes,
            placement: config.placement,
        })?;
        let leases_kept = leases_kept(config);
        let receives = config.shared_receives.map_or(0, |shared| shared.depth);
        if receives > config.slots.saturating_sub(leases_kept) {
            return Err(NodeError::SharedReceives {
                depth: receives,
                slots: config.slots.saturating_sub(leases_kept),
            });
        }
        let channels_max = config.channels_max;
        let statistics = Arc::default();
        let shared = match &config.shared_receives {
            Some(shared) => Some(Shared::new(
                &domain,
                &receive_completions,
                &mut arena,
                &statistics,
                shared,
                channels_max,
            )?),
            None => None,
        };
        let credit_bytes = (channels_max as usize).saturating_mul(CREDIT_WORD_BYTES);
        let mut credits = WindowConfig::new(credit_bytes, RemoteAccess::WRITE);
        // The window is small, so a huge page would be mostly unused.
        credits.placement = config.placement;
        credits.placement.pages = Pages::Ordinary;
        let now = context.now();
        let under = Under {
            credit_words: Arc::new(domain.window(&credits)?),
            cells: Arc::new(Cells::new(config.placement)),
            domain: Arc::new(domain),
            context: Arc::new(context),
        };
        let Under {
            credit_words,
            cells,
            domain,
            context,
        } = under.clone();
        Ok(Self {
            under: reaper.keep(under),
            sends: SendSide::new(
                reaper.keep(send_completions),
                receive_completions.depth(),
                channels_max,
                config.submissions_per_poll,
                config.classes.as_ref().map(|classes| (classes, now)),
            ),
            receives: ReceiveSide::new(
                reaper.keep(receive_completions),
                shared.map(|shared| Box::new(reaper.keep(shared))),
            ),
            arena: reaper.keep(arena),
            table: ChannelTable::new(reaper),
            credit_words,
            cells,
            domain,
            context,
            device_events: DeviceEvents::new(),
            device,
            node,
            channels_max,
            channels_per_address: config.channels_per_address,
            leases_kept,
            classes: config.classes.map(Box::new),
            statistics,
            closing: Vec::new(),
            upkeep: Upkeep::new(),
            waiting: Waiting::new(config.notify),
        })
    }

    /// Returns the reaper, which destroys the Worker's objects on another thread.
    pub(crate) const fn reaper(&self) -> &Reaper {
        &self.table.reaper
    }

    /// Returns the name of the Worker's RDMA device.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Returns the open device, with its ports and limits, and the descriptor of its asynchronous events. Read the events by
    /// [`Worker::next_event`], since the Worker handles some of them.
    #[must_use]
    pub fn context(&self) -> &P::Context {
        &self.context
    }

    /// Returns the deadline this long from now, by the clock of the Worker's host.
    #[must_use]
    pub fn within(&self, span: Duration) -> Deadline {
        self.context.within(span)
    }

    /// Returns the counts of a class, for requests that submitters and the Worker's thread submitted; `None` if the Worker has no
    /// classes. Links have separate counts ([`Links::class_counts`](crate::link::Links::class_counts)).
    #[must_use]
    pub fn class_counts(&self, class: u8) -> Option<ClassCounts> {
        self.sends.submissions.class_counts(class)
    }

    /// Leases a slot. `None` is backpressure: every slot that is not a receive is in flight or held by the application. A slot
    /// becomes free when a request completes or the application releases a message or a lease. If [`Worker::leases_max`] is 0, no
    /// slot becomes free while these channels exist. Slots of a queue pair that the device refused to destroy
    /// ([`Worker::not_destroyed`]) never become free.
    #[inline]
    pub fn lease(&mut self) -> Option<Lease<P>> {
        self.arena.lease().map(|slot| Lease { slot })
    }

    /// Returns how many slots are reserved for leases; see [`WorkerConfig::lease_share_percent`].
    #[must_use]
    pub const fn leases_kept(&self) -> u32 {
        self.leases_kept
    }

    /// Returns how many slots the receives of the channels leave for leases. The result is 0 only with a
    /// [`WorkerConfig::lease_share_percent`] of 0. Then no slot can be leased while these channels exist.
    #[must_use]
    pub fn leases_max(&self) -> u32 {
        let receives = match &self.receives.shared {
            Some(shared) => shared.depth(),
            None => {
                let taken = self.table.entries.iter().filter(|entry| entry.channel.is_some());
                taken.fold(0_u32, |sum, entry| sum.saturating_add(entry.room.receives))
            }
        };
        self.arena.slots().saturating_sub(receives)
    }

    /// Returns a lease to its Worker. This is cheaper than dropping it.
    #[inline]
    pub fn release(&mut self, lease: Lease<P>) {
        self.arena.release(lease.slot);
    }

    /// Returns the counts of the memory that is registered for cells
    /// ([`ChannelConfig::cell_bytes`](crate::ChannelConfig::cell_bytes)).
    #[must_use]
    pub fn cells(&self) -> CellCounts {
        self.cells.counts()
    }

    /// Returns the bytes of each slot.
    #[must_use]
    pub fn slot_bytes(&self) -> u32 {
        self.arena.slot_bytes()
    }

    /// Returns how the slots were placed in memory: what was requested, what was provided, and the reason for any difference.
    #[must_use]
    pub fn placement(&self) -> Placement {
        self.arena.placement()
    }

    /// Allocates and registers zeroed memory that peers may access once they have its key.
    ///
    /// # Errors
    /// The size is zero ([`MemoryError::Misuse`]), the device refused, or a required placement is not available.
    pub fn window(&self, config: &WindowConfig) -> Result<LocalWindow<P>, MemoryError> {
        if config.bytes == 0 {
            return Err(NO_BYTES);
        }
        Ok(LocalWindow::new(self.domain.window(config)?, self.reaper()))
    }

    /// Returns a channel, if it is open, or failed and not closed yet.
    #[inline]
    pub fn channel(&mut self, id: ChannelId) -> Option<&mut Channel<P>> {
        self.table.named(id)
    }

    /// Sends one message with a copy of these bytes, as [`Channel::send`] does. Bytes that do not fit a cell are copied into a
    /// lease.
    ///
    /// # Errors
    /// [`SendErrorKind`] has the reason. If [`SendErrorKind::is_temporary`], poll and try again.
    #[inline]
    pub fn send(&mut self, id: ChannelId, bytes: &[u8]) -> Result<Ticket, SendErrorKind> {
        usable(self.table.named(id))?.send_bytes(&mut self.arena, bytes)
    }

    /// Leases a slot for a message, if the channel can send one now.
    ///
    /// # Errors
    /// There is no room or no credit ([`SendErrorKind::WouldBlock`]), no slot is free now ([`SendErrorKind::NoMemory`]), no slot
    /// can be leased while these channels exist ([`SendErrorKind::NoLeases`]), or the channel is closed or failed.
    #[inline]
    pub fn lease_for(&mut self, id: ChannelId) -> Result<Lease<P>, SendErrorKind> {
        usable(self.table.named(id))?.lease_for(&mut self.arena)
    }

    /// Returns the state of a channel, or its final state after it was closed. The final state is kept until a later channel with
    /// the same index is closed.
    #[must_use]
    pub fn state(&self, id: ChannelId) -> Option<ChannelState> {
        let entry = self.table.entries.get(id.index as usize)?;
        if entry.generation == id.generation {
            return entry.channel.as_ref().map(Channel::state);
        }
        let closing = self.closing.iter().find(|closing| closing.is_of(id));
        let closed = entry.closed.filter(|closed| closed.generation == id.generation);
        closing
            .and_then(|closing| closing.state)
            .or(closed.map(|closed| closed.state))
    }

    /// Returns the ids of all channels.
    pub fn channels(&self) -> impl Iterator<Item = ChannelId> {
        self.table.names()
    }

    /// Returns how many queue pairs of channels or failed connection attempts the device refused to destroy
    /// ([`CloseError::NotDestroyed`]).
    #[must_use]
    pub fn not_destroyed(&self) -> u32 {
        let table = self.table.entries.iter().enumerate();
        let left = table.filter(|(at, entry)| {
            !entry.is_promised() && admission::is_claimed::<P>(&self.sends.completions, *at)
        });
        // The table has at most `channels_max` places, so the count fits.
        u32::try_from(left.count()).unwrap_or(u32::MAX)
    }

    /// Returns the counters of the Worker and its channels. A clone may be read on any thread, at any time.
    #[must_use]
    pub const fn statistics(&self) -> &Arc<Statistics> {
        &self.statistics
    }
}

impl<P: Provider> fmt::Debug for Worker<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("device", &self.device)
            .field("channels", &self.channels().count())
            .finish_non_exhaustive()
    }
}
