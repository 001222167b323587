//! One thread's owner of two completion queues, an arena, and the channels on them.

mod admission;
mod channel_list;
mod closing;
mod memory;
mod polling;
mod waiting;

use core::fmt;
use std::sync::{Arc, Weak};

use doorbell_core::Ticket;
use doorbell_core::provider::{
    Arena, ArenaConfig, CompletionQueueConfig, Context, MemoryError, Pages, Placement, ProtectionDomain,
    Provider, RemoteAccess, WindowConfig,
};
use doorbell_core::work_id::CHANNELS_MAX;
use doorbell_ffi::Rdma;
use doorbell_hotpath::Statistics;

use crate::channel::{Channel, ChannelId};
use crate::edge::reaper::Reaper;
use crate::{Lease, Notify, WorkerConfig};

use channel_list::ChannelList;
use closing::Closing;
pub use closing::{CloseError, CloseProgress};
use waiting::Waiting;
pub use waiting::{Sleep, WaitError};

/// One thread's owner of a send and a receive completion queue of one device, of registered
/// memory, and of all the channels that live on them. Polling costs the same however many
/// channels are idle.
pub struct Worker<P: Provider = Rdma> {
    // Channels go first: their queue pairs give their slots back to the arena.
    pub(crate) channels: Vec<Entry<P>>,
    pub(crate) send_completions: P::CompletionQueue,
    pub(crate) receive_completions: P::CompletionQueue,
    pub(crate) arena: P::Arena,
    /// A word for each channel, in which its peer announces receives.
    pub(crate) credit_words: Arc<P::Window>,
    pub(crate) domain: P::ProtectionDomain,
    pub(crate) context: P::Context,
    pub(crate) device: String,
    /// Channels whose receives could not all be posted again for want of memory.
    hungry: ChannelList,
    /// Channels that have receives to announce, and nothing yet that goes out.
    unannounced: ChannelList,
    channels_max: u32,
    /// What one completion of READs and atomics brought back, until it is delivered.
    fetched: Vec<(Ticket, Lease<P>)>,
    pub(crate) statistics: Arc<Statistics>,
    closing: Vec<Closing>,
    waiting: Waiting,
    reaper: Reaper,
}

/// The size of the word in which a peer announces receives.
pub(crate) const CREDIT_WORD_BYTES: usize = size_of::<u64>();

/// A place for a channel. Empty ones are used again.
pub(crate) struct Entry<P: Provider> {
    generation: u32,
    listed: Listed,
    /// What is promised to the channel, from before it exists until it is gone.
    reserved: Weak<Reservation>,
    channel: Option<Channel<P>>,
    /// How the last channel here was closed, by its generation.
    closed: Option<(u32, Result<(), CloseError>)>,
}

/// The lists a channel is on.
#[derive(Clone, Copy, Debug, Default)]
struct Listed {
    /// Of the hungry.
    is_hungry: bool,
    /// Of those with receives to announce.
    is_unannounced: bool,
}

/// Completions promised to a channel: all it may have posted has room in the queues.
#[derive(Debug)]
pub(crate) struct Reservation {
    pub(crate) id: ChannelId,
    sends: u32,
    receives: u32,
}

/// The channel an event is for, and the memory to answer from.
pub struct Turn<'w, P: Provider = Rdma> {
    /// The channel.
    pub channel: &'w mut Channel<P>,
    pub(crate) arena: &'w mut P::Arena,
}

impl<P: Provider> Turn<'_, P> {
    /// Leases memory; `None` is back-pressure.
    #[inline]
    pub fn lease(&mut self) -> Option<Lease<P>> {
        self.arena.lease().map(|slot| Lease { slot })
    }

    /// Gives memory back, cheaper than dropping it.
    #[inline]
    pub fn release(&mut self, lease: Lease<P>) {
        self.arena.release(lease.slot);
    }
}

impl<P: Provider> Worker<P> {
    pub(crate) fn new(
        context: P::Context,
        device: String,
        config: &WorkerConfig,
        reaper: Reaper,
    ) -> Result<Self, MemoryError> {
        let domain = context.protection_domain()?;
        let queue = CompletionQueueConfig {
            depth: config.completion_depth,
            notify: config.notify != Notify::Never,
        };
        let send_completions = context.completion_queue(&queue)?;
        let receive_completions = context.completion_queue(&queue)?;
        let arena = domain.arena(&ArenaConfig {
            slots: config.slots,
            slot_bytes: config.slot_bytes,
            placement: config.placement,
        })?;
        let channels_max = config.channels_max.clamp(1, CHANNELS_MAX);
        let credit_bytes = (channels_max as usize).saturating_mul(CREDIT_WORD_BYTES);
        let mut credits = WindowConfig::new(credit_bytes, RemoteAccess::WRITE);
        // Beside the slots, and small: a huge page for it would be wasted.
        credits.placement = config.placement;
        credits.placement.pages = Pages::Ordinary;
        let credit_words = domain.window(&credits)?;
        Ok(Self {
            channels: Vec::new(),
            send_completions,
            receive_completions,
            arena,
            credit_words: Arc::new(credit_words),
            domain,
            context,
            device,
            hungry: ChannelList::default(),
            unannounced: ChannelList::default(),
            channels_max,
            fetched: Vec::new(),
            statistics: Arc::default(),
            closing: Vec::new(),
            waiting: Waiting::new(config.notify),
            reaper,
        })
    }

    /// The RDMA device it works on.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.device
    }

    /// The open device: its ports, limits and asynchronous events.
    #[must_use]
    pub const fn context(&self) -> &P::Context {
        &self.context
    }

    /// Leases memory; `None` is back-pressure.
    #[inline]
    pub fn lease(&mut self) -> Option<Lease<P>> {
        self.arena.lease().map(|slot| Lease { slot })
    }

    /// Gives memory back, cheaper than dropping it.
    #[inline]
    pub fn release(&mut self, lease: Lease<P>) {
        self.arena.release(lease.slot);
    }

    /// The bytes of each piece of memory it lends.
    #[must_use]
    pub fn slot_bytes(&self) -> u32 {
        self.arena.slot_bytes()
    }

    /// How the memory it lends was placed: what was asked of the machine, what it gave, and
    /// why not more.
    #[must_use]
    pub fn placement(&self) -> Placement {
        self.arena.placement()
    }

    /// Registers zeroed memory that peers may reach once they are told of it.
    ///
    /// # Errors
    /// The size is zero, the device refused, or what is required of its placement cannot be
    /// had.
    pub fn window(&self, config: &WindowConfig) -> Result<P::Window, MemoryError> {
        self.domain.window(config)
    }

    /// A channel, while it is open or failed and not closed.
    #[inline]
    pub fn channel(&mut self, id: ChannelId) -> Option<&mut Channel<P>> {
        let entry = self.channels.get_mut(id.index as usize)?;
        if entry.generation != id.generation {
            return None;
        }
        entry.channel.as_mut()
    }

    /// The channels there are.
    pub fn channels(&self) -> impl Iterator<Item = ChannelId> {
        self.channels
            .iter()
            .filter_map(|entry| entry.channel.as_ref().map(Channel::id))
    }

    /// What it counts, with all its channels. A clone may be read on any thread, at any time.
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

impl<P: Provider> fmt::Debug for Turn<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn")
            .field("channel", &self.channel)
            .finish_non_exhaustive()
    }
}
