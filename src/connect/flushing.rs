//! Flushes: loopback READs that force received bytes into the memory of another device, such as a GPU.
//!
//! A NIC reports a transfer as done when it has issued the writes over PCIe. The report may reach the host before the bytes reach the
//! GPU. A READ of the same memory by the same NIC cannot overtake these writes, so they have arrived when the READ completes.

use core::fmt;
use std::collections::BTreeSet;

use doorbell_core::network::Network;
use doorbell_core::provider::{
    CompletionQueue as _, CompletionQueueConfig, Context as _, MemoryError, Operation, PostFlags,
    ProtectionDomain as _, Provider, ProviderError, PushError, QueuePair as _, QueuePairConfig,
    ReadyToReceive, ReadyToSend, RemoteAccess, RemoteAddress, SendBatch as _, SendQueue as _, WindowConfig,
    WindowRange,
};
use doorbell_core::{Psn, WcStatus};
use doorbell_ffi::Rdma;

use crate::connect::node::{Entropy, Node};
use crate::error::ConnectError;
use crate::machine::reaper::Reaped;
use crate::memory::{GrantedRegion, Region};
use crate::rails::NodeRail;
use crate::worker::Worker;
use crate::worker::config::ChannelConfig;

/// The maximum number of READs in flight on one device.
const DEPTH: u32 = 64;

/// The length of a READ in bytes.
const BYTES: u32 = 1;

/// Numbers of the two queue pairs on the completion queue of a device.
const REQUESTER: u32 = 0;
const RESPONDER: u32 = 1;

/// Flushes received data to the memory of other devices, such as GPUs: see [`Node::flusher`]. One thread uses it. It has its own
/// completion queues, separate from the Workers'.
pub struct Flusher<P: Provider = Rdma> {
    /// One entry for each Worker. `None` if the Worker's device has no usable port.
    rails: Vec<Option<Reaped<Loopback<P>>>>,
    begun: u64,
    failure: Option<WcStatus>,
}

/// Two queue pairs of one device that are connected to each other.
struct Loopback<P: Provider> {
    // Fields are dropped in this order: the queue pairs before the completion queue and the memory.
    requester: P::SendQueue,
    _control: P::QueuePair,
    _responder: (P::QueuePair, P::SendQueue),
    queue: P::CompletionQueue,
    /// The local buffer of the READs.
    landing: P::Window,
    /// The number of completed READs.
    done: u64,
}

/// Memory that can be flushed. One byte of it is registered for remote reads; the remote key is never sent to a peer.
pub struct FlushTarget<P: Provider = Rdma>(GrantedRegion<P>);

/// A flush of one [`Flusher`]. [`Flusher::is_done`] says whether it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flush(u64);

impl<P: Provider> Region<P> {
    /// Registers the first byte of the region again with each device, so that a [`Flusher`] can read it. Dropping the result
    /// deregisters the byte: keep the result until its flushes are done. Registering and deregistering may take milliseconds.
    ///
    /// # Errors
    /// A device refused.
    pub fn flush_target(&self) -> Result<FlushTarget<P>, ProviderError> {
        self.grant((0, 1), RemoteAccess::READ).map(FlushTarget)
    }
}

impl<P: Provider, N: Network> Node<P, N> {
    /// Makes a [`Flusher`]: on each Worker's device, two queue pairs that are connected to each other, and a completion queue. This takes
    /// milliseconds. A device without a usable port receives no data, so it gets no queue pairs ([`Flusher::is_complete`]).
    ///
    /// # Errors
    /// A Worker belongs to another Node, the ports could not be queried, or a call of a device failed.
    pub fn flusher(&self, workers: &[Worker<P>]) -> Result<Flusher<P>, ConnectError> {
        let found = self.worker_rails(workers)?;
        let mut seen = BTreeSet::new();
        let mut rails: Vec<_> = workers.iter().map(|_| None).collect();
        for rail in (0..).map_while(|index| found.get(index)) {
            let (Some(worker), Some(place)) = (workers.get(rail.worker), rails.get_mut(rail.worker)) else {
                continue;
            };
            if seen.insert(rail.worker) {
                let psn = Entropy::new(self.network())?.psn;
                *place = Some(worker.reaper().keep(Loopback::new(worker, &rail, psn)?));
            }
        }
        Ok(Flusher {
            rails,
            begun: 0,
            failure: None,
        })
    }
}

impl<P: Provider> Flusher<P> {
    /// Whether each Worker's device takes part. If one does not, make a new [`Flusher`] after the port of that device came up.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.rails.iter().all(Option::is_some)
    }

    /// Begins a flush. When the flush is [done](Self::is_done), all bytes that the devices reported as received before this call are in
    /// the memory. Returns `None` if the maximum number of flushes is in progress: poll, and try again.
    ///
    /// # Errors
    /// [`FlushError::OtherWorkers`], after which nothing was begun. Or a call of a device failed, and the [`Flusher`] is not usable
    /// afterwards.
    ///
    /// # Ordering
    /// The READs are posted in this call, and so after all completions that were polled before it.
    pub fn begin(&mut self, target: &FlushTarget<P>) -> Result<Option<Flush>, FlushError> {
        if self.rails.iter().flatten().any(|rail| rail.requester.room() == 0) {
            return Ok(None);
        }
        let source = |worker| {
            let key = target.0.key(worker).ok_or(FlushError::OtherWorkers)?;
            RemoteAddress::within(&key, 0, BYTES.into()).ok_or(FlushError::OtherWorkers)
        };
        // All are checked before any is read, so that a target of other Workers changes nothing.
        for (worker, _) in self.rails.iter().enumerate().filter(|(_, rail)| rail.is_some()) {
            source(worker)?;
        }
        for (worker, rail) in self.rails.iter_mut().enumerate() {
            let Some(rail) = rail else { continue };
            rail.read(source(worker)?)?;
        }
        self.begun = self.begun.wrapping_add(1);
        Ok(Some(Flush(self.begun)))
    }

    /// Polls the completions of the READs.
    ///
    /// # Errors
    /// A READ failed, or a device cannot be polled. The [`Flusher`] is not usable afterwards: all flushes that are not done have failed.
    pub fn poll(&mut self) -> Result<(), FlushError> {
        for rail in self.rails.iter_mut().flatten() {
            let failed = rail.poll()?;
            self.failure = self.failure.or(failed);
        }
        self.failure
            .map_or(Ok(()), |status| Err(FlushError::Failed(status)))
    }

    /// Returns the status of the first READ that failed, if any failed.
    #[must_use]
    pub const fn failure(&self) -> Option<WcStatus> {
        self.failure
    }

    /// Returns whether a flush is done.
    #[must_use]
    pub fn is_done(&self, flush: Flush) -> bool {
        self.rails.iter().flatten().all(|rail| rail.done >= flush.0)
    }
}

/// Reason why memory was not flushed. Unless the caller named a wrong target, its [`Flusher`] cannot be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FlushError {
    /// A call of a device failed.
    Provider(ProviderError),
    /// A READ could not be staged.
    Push(PushError),
    /// A READ failed with this status.
    Failed(WcStatus),
    /// Caller misuse: the memory is registered with other Workers than the flusher's.
    OtherWorkers,
}

impl fmt::Display for FlushError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Provider(error) => fmt::Display::fmt(error, f),
            Self::Push(error) => write!(f, "a READ that flushes was not sent: {error}; make a new flusher"),
            Self::Failed(status) => write!(f, "a READ that flushes failed: {status}; make a new flusher"),
            Self::OtherWorkers => {
                f.write_str("the memory is registered with other Workers than the flusher's: use one slice of Workers for both")
            }
        }
    }
}

impl core::error::Error for FlushError {}

impl From<ProviderError> for FlushError {
    fn from(error: ProviderError) -> Self {
        Self::Provider(error)
    }
}

impl<P: Provider> Loopback<P> {
    fn new(worker: &Worker<P>, rail: &NodeRail, psn: Psn) -> Result<Self, ConnectError> {
        let (context, domain) = (&worker.context, &worker.domain);
        let depth = CompletionQueueConfig {
            depth: DEPTH.saturating_mul(2),
            notify: false,
        };
        let queue = context.completion_queue(&depth)?;
        let window = WindowConfig::new(64, RemoteAccess::NONE);
        let landing = domain.window(&window).map_err(|error| match error {
            MemoryError::Provider(error) => ConnectError::Provider(error),
            _ => ConnectError::Unreachable("a window of one byte without wishes was refused"),
        })?;
        let asked = |channel, send_depth| QueuePairConfig {
            channel,
            send_depth,
            receive_depth: 1,
            gather_max: 1,
            scatter_max: 1,
            inline_bytes_max: 0,
        };
        let mut requester = domain.queue_pair(&queue, &queue, &asked(REQUESTER, DEPTH))?;
        let mut responder = domain.queue_pair(&queue, &queue, &asked(RESPONDER, 1))?;
        let config = ChannelConfig::default();
        let limits = context.limits();
        let reads = limits.max_rd_atomic.min(limits.max_dest_rd_atomic).clamp(1, 16);
        let to = |destination_qpn| ReadyToReceive {
            address: config.address(rail, rail.gid),
            path_mtu: rail.active_mtu,
            destination_qpn,
            receive_psn: psn,
            max_dest_rd_atomic: reads,
            min_rnr_timer: config.min_rnr_timer,
        };
        let (ours, others) = (requester.control.qpn(), responder.control.qpn());
        requester.control.initialize(rail.port, RemoteAccess::NONE)?;
        responder.control.initialize(rail.port, RemoteAccess::READ)?;
        responder.control.ready_to_receive(&to(ours))?;
        requester.control.ready_to_receive(&to(others))?;
        requester.control.ready_to_send(&ReadyToSend {
            send_psn: psn,
            max_rd_atomic: reads,
            timeout: config.timeout,
            retry_count: config.retry_count,
            rnr_retry: config.rnr_retry,
        })?;
        Ok(Self {
            requester: requester.send,
            _control: requester.control,
            _responder: (responder.control, responder.send),
            queue,
            landing,
            done: 0,
        })
    }

    fn read(&mut self, from: RemoteAddress) -> Result<(), FlushError> {
        let into = WindowRange {
            window: &self.landing,
            offset: 0,
            bytes: BYTES,
        };
        let mut batch = self.requester.stage();
        let pushed = batch.push_ranges(Operation::Read(from), [into], PostFlags::SIGNALED);
        pushed.map_err(FlushError::Push)?;
        Ok(batch.ring().map(drop).map_err(|error| error.cause)?)
    }

    /// Returns the status of a READ that failed.
    fn poll(&mut self) -> Result<Option<WcStatus>, ProviderError> {
        let Self {
            requester,
            queue,
            done,
            ..
        } = self;
        let mut failed = None;
        // The loop ends: nothing is posted meanwhile, so at most the queue's depth of completions follow.
        while queue.poll(|completion| match requester.retire(completion, |_, _| {}) {
            Ok(retired) if retired.status == WcStatus::SUCCESS => *done = done.wrapping_add(retired.count()),
            Ok(retired) => failed = failed.or(Some(retired.status)),
            // The completion belongs to no READ, so a READ will never complete.
            Err(_) => failed = failed.or(Some(WcStatus::GENERAL_ERR)),
        })? > 0
        {}
        Ok(failed)
    }
}

impl<P: Provider> fmt::Debug for Flusher<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Flusher({} begun)", self.begun)
    }
}

impl<P: Provider> fmt::Debug for FlushTarget<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FlushTarget({:?})", self.0)
    }
}
