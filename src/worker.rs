//! One thread's owner of two completion queues, an arena, and the channels on them.

use core::fmt;
use std::sync::{Arc, Weak};

use doorbell_core::provider::{
    Arena, ArenaConfig, Completion, CompletionQueue, CompletionQueueConfig, Context, GATHER_MAX,
    ProtectionDomain, Provider, ProviderError, WindowConfig,
};
use doorbell_core::work_id::CHANNELS_MAX;
use doorbell_core::{Deadline, Ticket, WorkKind};
use doorbell_ffi::Rdma;

use crate::channel::{Channel, ChannelId};
use crate::error::ConnectError;
use crate::{ChannelState, Event, Lease, WorkerConfig, edge};

/// One thread's owner of a send and a receive completion queue of one device, of registered
/// memory, and of all the channels that live on them. Polling costs the same however many
/// channels are idle.
pub struct Worker<P: Provider = Rdma> {
    // Channels go first: their queue pairs give their slots back to the arena.
    pub(crate) channels: Vec<Entry<P>>,
    pub(crate) send_completions: P::CompletionQueue,
    pub(crate) receive_completions: P::CompletionQueue,
    pub(crate) arena: P::Arena,
    pub(crate) domain: P::ProtectionDomain,
    pub(crate) context: P::Context,
    pub(crate) device: String,
    /// Channels whose receives could not all be posted again for want of memory.
    hungry: Vec<u32>,
    /// What one completion of READs and atomics brought back, until it is delivered.
    fetched: Vec<(Ticket, Lease<P>)>,
    counters: WorkerCounters,
}

/// A place for a channel. Empty ones are used again.
pub(crate) struct Entry<P: Provider> {
    generation: u32,
    /// Whether it is on the list of the hungry.
    is_hungry: bool,
    /// What is promised to the channel, from before it exists until it is gone.
    reserved: Weak<Reservation>,
    channel: Option<Channel<P>>,
}

/// Completions promised to a channel: all it may have posted has room in the queues.
#[derive(Debug)]
pub(crate) struct Reservation {
    pub(crate) id: ChannelId,
    sends: u32,
    receives: u32,
}

/// What a Worker counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerCounters {
    /// Completions of channels that are closed, or of none.
    pub orphaned: u64,
    /// Completions that named nothing in flight on their channel.
    pub rejected: u64,
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
    ) -> Result<Self, ProviderError> {
        let domain = context.protection_domain()?;
        let queue = CompletionQueueConfig {
            depth: config.completion_depth,
            notify: config.notify,
        };
        let send_completions = context.completion_queue(&queue)?;
        let receive_completions = context.completion_queue(&queue)?;
        let arena = domain.arena(&ArenaConfig {
            slots: config.slots,
            slot_bytes: config.slot_bytes,
        })?;
        Ok(Self {
            channels: Vec::new(),
            send_completions,
            receive_completions,
            arena,
            domain,
            context,
            device,
            hungry: Vec::new(),
            fetched: Vec::new(),
            counters: WorkerCounters::default(),
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

    /// Registers zeroed memory that peers may reach once they are told of it.
    ///
    /// # Errors
    /// The size is zero, or the device refused.
    pub fn window(&self, config: &WindowConfig) -> Result<P::Window, ProviderError> {
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

    /// What was counted so far.
    #[must_use]
    pub const fn counters(&self) -> WorkerCounters {
        self.counters
    }

    /// Takes what completed, in bulk, receives first; `each` gets every event with its
    /// channel. Says how many completions there were. Never waits.
    ///
    /// # Errors
    /// A completion queue cannot be polled; the Worker is of no further use.
    #[inline]
    pub fn poll(&mut self, mut each: impl FnMut(Turn<'_, P>, Event<P>)) -> Result<u32, ProviderError> {
        let received = self.poll_receives(&mut each)?;
        let sent = self.poll_sends(&mut each)?;
        Ok(received.saturating_add(sent))
    }

    /// The file descriptors to wait for after [`Worker::arm`]: of the receive and of the send
    /// completion queue.
    pub fn notification_fds(&self) -> Option<[i32; 2]> {
        Some([
            self.receive_completions.notification_fd()?,
            self.send_completions.notification_fd()?,
        ])
    }

    /// Asks for one notification at the next completion of either queue. Poll again after
    /// arming, and before sleeping, for what came in between.
    ///
    /// # Errors
    /// The Worker was made without notification, or the device refused.
    pub fn arm(&mut self) -> Result<(), ProviderError> {
        self.receive_completions.acknowledge()?;
        self.send_completions.acknowledge()?;
        self.receive_completions.arm(false)?;
        self.send_completions.arm(false)
    }

    /// Closes a channel: waits until what was posted is done, fails its queue pair, and
    /// destroys it. `each` gets the events that come meanwhile, of all channels.
    ///
    /// What was posted after the last signaled request cannot be waited for: with
    /// `unsignaled_max` set, end with a request of [`PostFlags::SIGNALED`](crate::PostFlags).
    ///
    /// # Errors
    /// Something was not done by the deadline, the device refused, or polling failed. The
    /// channel is closed all the same, and its memory goes home.
    pub fn close(
        &mut self,
        id: ChannelId,
        deadline: Deadline,
        mut each: impl FnMut(Turn<'_, P>, Event<P>),
    ) -> Result<(), CloseError> {
        if self.channel(id).is_none() {
            return Err(CloseError::Unknown);
        }
        let done = self.settle(id, deadline, &mut each);
        let failed = self
            .channel(id)
            .map_or(Ok(()), |channel| channel.shut().map_err(CloseError::Provider));
        // What was left is flushed now, which takes no peer.
        let flushed = if done.is_err() {
            Ok(())
        } else {
            self.settle(id, deadline, &mut each)
        };
        self.remove(id);
        let swept = self.sweep(&mut each);
        done.and(failed).and(flushed).and(swept)
    }

    /// Takes what a queue pair that is gone left in the completion queues: another channel may
    /// be promised that room from now on.
    fn sweep(&mut self, each: &mut impl FnMut(Turn<'_, P>, Event<P>)) -> Result<(), CloseError> {
        let (sends, receives) = (self.send_completions.depth(), self.receive_completions.depth());
        // No more than that was there; what comes meanwhile is not waited for.
        let mut left = sends.saturating_add(receives);
        while left > 0 {
            match self.poll(&mut *each).map_err(CloseError::Poll)? {
                0 => break,
                taken => left = left.saturating_sub(taken),
            }
        }
        Ok(())
    }

    /// Polls until every signaled request of a channel is done.
    fn settle(
        &mut self,
        id: ChannelId,
        deadline: Deadline,
        each: &mut impl FnMut(Turn<'_, P>, Event<P>),
    ) -> Result<(), CloseError> {
        while self
            .channel(id)
            .is_some_and(|channel| channel.sender.awaits_completion())
        {
            self.poll(&mut *each).map_err(CloseError::Poll)?;
            if deadline.has_passed(edge::clock::now()) {
                return Err(CloseError::TimedOut);
            }
        }
        Ok(())
    }

    fn remove(&mut self, id: ChannelId) {
        let Some(entry) = self.channels.get_mut(id.index as usize) else {
            return;
        };
        if entry.channel.take().is_some() {
            entry.generation = entry.generation.wrapping_add(1);
        }
    }

    /// Promises a place and room for completions to a channel that is to be made.
    ///
    /// # Errors
    /// The completion queues hold no more, or there are too many channels.
    pub(crate) fn reserve(&mut self, sends: u32, receives: u32) -> Result<Arc<Reservation>, ConnectError> {
        let promised = self.channels.iter().filter_map(|entry| entry.reserved.upgrade());
        let (sends_left, receives_left) = promised.fold(
            (self.send_completions.depth(), self.receive_completions.depth()),
            |(sends, receives), held| {
                (
                    sends.saturating_sub(held.sends),
                    receives.saturating_sub(held.receives),
                )
            },
        );
        if sends > sends_left || receives > receives_left {
            return Err(ConnectError::NoRoom {
                sends_left,
                receives_left,
            });
        }
        let free = self
            .channels
            .iter()
            .position(|entry| entry.reserved.strong_count() == 0);
        let at = free.unwrap_or(self.channels.len());
        let index = u32::try_from(at).ok().filter(|index| *index < CHANNELS_MAX);
        let index = index.ok_or(ConnectError::TooManyChannels)?;
        if free.is_none() {
            self.channels.push(Entry {
                generation: 0,
                is_hungry: false,
                reserved: Weak::new(),
                channel: None,
            });
        }
        let entry = self.channels.get_mut(at).ok_or(ConnectError::TooManyChannels)?;
        let id = ChannelId {
            index,
            generation: entry.generation,
        };
        let reservation = Arc::new(Reservation { id, sends, receives });
        entry.reserved = Arc::downgrade(&reservation);
        Ok(reservation)
    }

    /// Puts a channel into the place reserved for it.
    ///
    /// # Errors
    /// The place was reserved on another Worker.
    pub(crate) fn admit(&mut self, channel: Channel<P>) -> Result<ChannelId, ConnectError> {
        let id = channel.id();
        let reserved = self
            .channels
            .get(id.index as usize)
            .map(|entry| entry.reserved.as_ptr());
        if reserved != Some(Arc::as_ptr(&channel.reservation)) {
            return Err(ConnectError::OtherWorkers);
        }
        // Here, so that polling never allocates.
        self.hungry
            .reserve(self.channels.len().saturating_sub(self.hungry.len()));
        self.fetched
            .reserve((channel.limits().send_depth as usize).saturating_mul(GATHER_MAX));
        let Some(entry) = self.channels.get_mut(id.index as usize) else {
            return Err(ConnectError::OtherWorkers);
        };
        // Memory may have sufficed for a part of its receives only.
        if channel.receiver.is_short() && !entry.is_hungry {
            entry.is_hungry = true;
            self.hungry.push(id.index);
        }
        entry.channel = Some(channel);
        Ok(id)
    }

    #[inline]
    fn poll_receives(&mut self, each: &mut impl FnMut(Turn<'_, P>, Event<P>)) -> Result<u32, ProviderError> {
        let Self {
            channels,
            receive_completions,
            arena,
            counters,
            hungry,
            ..
        } = self;
        let count = receive_completions.poll(|completion| {
            let id = completion.work_id();
            let entry = channels.get_mut(id.channel() as usize);
            let Some((is_hungry, channel)) = entry
                .and_then(Entry::split)
                .filter(|_| id.kind() == Some(WorkKind::Receive))
            else {
                counters.orphaned = counters.orphaned.saturating_add(1);
                return;
            };
            let Some(event) = channel.retire_receive(completion, arena) else {
                counters.rejected = counters.rejected.saturating_add(1);
                return;
            };
            let failed = matches!(event, Event::ReceiveFailed { .. });
            each(Turn { channel, arena }, event);
            if !failed && !channel.replenish(arena, each) && !*is_hungry {
                *is_hungry = true;
                hungry.push(id.channel());
            }
        })?;
        if !self.hungry.is_empty() {
            self.feed(each);
        }
        Ok(count)
    }

    /// Posts receives for channels that went without, as far as memory came back.
    #[cold]
    fn feed(&mut self, each: &mut impl FnMut(Turn<'_, P>, Event<P>)) {
        let Self {
            channels,
            arena,
            hungry,
            ..
        } = self;
        hungry.retain(|index| {
            let Some(entry) = channels.get_mut(*index as usize) else {
                return false;
            };
            let channel = entry.channel.as_mut();
            entry.is_hungry = channel
                .filter(|channel| channel.state() == ChannelState::Open)
                .is_some_and(|channel| !channel.replenish(arena, each));
            entry.is_hungry
        });
    }

    #[inline]
    fn poll_sends(&mut self, each: &mut impl FnMut(Turn<'_, P>, Event<P>)) -> Result<u32, ProviderError> {
        let Self {
            channels,
            send_completions,
            arena,
            counters,
            fetched,
            ..
        } = self;
        send_completions.poll(|completion| {
            let id = completion.work_id();
            let entry = channels.get_mut(id.channel() as usize);
            let channel = entry.and_then(|entry| entry.channel.as_mut());
            let Some(channel) = channel.filter(|_| id.kind() == Some(WorkKind::Send)) else {
                counters.orphaned = counters.orphaned.saturating_add(1);
                return;
            };
            let outcome = channel.sender.retire(
                completion,
                |ticket, slot| fetched.push((ticket, Lease { slot })),
                |slot| arena.release(slot),
            );
            let Ok(retired) = outcome else {
                counters.rejected = counters.rejected.saturating_add(1);
                return;
            };
            let success = retired.status.is_success();
            for (ticket, data) in fetched.drain(..) {
                if success || ticket != retired.last {
                    each(Turn { channel, arena }, Event::Fetched { ticket, data });
                } else {
                    arena.release(data.slot);
                }
            }
            let event = if success {
                Event::Done {
                    through: retired.last,
                }
            } else {
                Event::Failed {
                    ticket: retired.last,
                    status: retired.status,
                }
            };
            each(Turn { channel, arena }, event);
        })
    }
}

impl<P: Provider> Entry<P> {
    /// The mark of the hungry, and the channel.
    #[inline]
    fn split(&mut self) -> Option<(&mut bool, &mut Channel<P>)> {
        Some((&mut self.is_hungry, self.channel.as_mut()?))
    }
}

/// Why a channel was not closed cleanly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloseError {
    /// There is no such channel, or it was closed already.
    Unknown,
    /// The queue pair could not be failed.
    Provider(ProviderError),
    /// The Worker could not be polled.
    Poll(ProviderError),
    /// Not everything came back by the deadline.
    TimedOut,
}

impl fmt::Display for CloseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("there is no such channel"),
            Self::Provider(error) => write!(f, "the queue pair could not be failed: {error}"),
            Self::Poll(error) => write!(f, "while closing, the completion queue cannot be polled: {error}"),
            Self::TimedOut => f.write_str("not everything in flight came back before the deadline"),
        }
    }
}

impl core::error::Error for CloseError {}

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
