//! The queue pair in the device, and how it is destroyed.

use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use doorbell_core::in_flight::{self, InFlight, Request};
use doorbell_core::provider::ProviderError;
use doorbell_core::{QpState, Qpn, WorkKind};

use crate::address::Addresses;
use crate::cells::Cells;
use crate::completion_queue::CompletionInner;
use crate::domain::DomainInner;
use crate::leak::Leaked;
use crate::receive_ring::ReceiveRing;
use crate::shared_receive_queue::SharedReceiveInner;
use crate::{Slot, errno, orphan};

/// The in-flight table that a half embeds.
pub(crate) type Table<S = Slot> = InFlight<S, Box<[Request<S>]>>;
pub(crate) type Vacancy<'t> = in_flight::Vacancy<'t, Slot, Box<[Request<Slot>]>>;

/// The queue pair in the device, with everything that must outlive it.
pub(crate) struct Shared {
    qp: NonNull<rdma_sys::ibv_qp>,
    qpn: Qpn,
    channel: u32,
    /// The state that the queue pair was last brought to. The device may have moved it into an error state since.
    state: AtomicU8,
    /// Limit on the elements of a send in this state: see [`Shared::segments_limit`].
    segments_limit: AtomicU8,
    /// The most elements that a send may have.
    gather_max: u8,
    /// Requests that dropped halves had in flight.
    parked: Mutex<Parked>,
    send_completions: ManuallyDrop<Arc<CompletionInner>>,
    receives: ManuallyDrop<Receives>,
    domain: ManuallyDrop<Arc<DomainInner>>,
}

/// Source of a queue pair's receives.
pub(super) enum Receives {
    /// The queue pair's own receive half, which completes here.
    Own(Arc<CompletionInner>),
    /// A shared receive queue, held until the queue pair is destroyed.
    Shared(Arc<SharedReceiveInner>),
}

impl Receives {
    /// Completion queue of the receives.
    pub(super) fn completions(&self) -> &Arc<CompletionInner> {
        match self {
            Self::Own(completions) => completions,
            Self::Shared(queue) => queue.completions(),
        }
    }
}

#[derive(Default)]
struct Parked {
    send: Option<Table>,
    /// The cells of the send half.
    cells: Cells,
    receive: Option<ReceiveRing>,
    /// Address handles that requests of a datagram queue pair may name.
    addresses: Addresses,
}

// SAFETY: libibverbs may be called from any thread, on any object, at any time
// (rdma-core Documentation/libibverbs.md); the rest is plain data and a mutex.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// Makes the object that owns a new queue pair.
    pub(super) fn new(
        qp: NonNull<rdma_sys::ibv_qp>,
        qpn: Qpn,
        channel: u32,
        gather_max: u8,
        send_completions: &Arc<CompletionInner>,
        receives: Receives,
        domain: &Arc<DomainInner>,
    ) -> Arc<Self> {
        Arc::new(Self {
            qp,
            qpn,
            channel,
            state: AtomicU8::new(QpState::Reset as u8),
            segments_limit: AtomicU8::new(0),
            gather_max,
            parked: Mutex::default(),
            send_completions: ManuallyDrop::new(Arc::clone(send_completions)),
            receives: ManuallyDrop::new(receives),
            domain: ManuallyDrop::new(Arc::clone(domain)),
        })
    }

    pub(crate) const fn qpn(&self) -> Qpn {
        self.qpn
    }

    pub(crate) const fn channel(&self) -> u32 {
        self.channel
    }

    pub(crate) fn domain(&self) -> &DomainInner {
        &self.domain
    }

    /// The handle, live as long as `self`.
    #[inline]
    pub(crate) const fn as_ptr(&self) -> *mut rdma_sys::ibv_qp {
        self.qp.as_ptr()
    }

    /// The state that the queue pair was last brought to.
    #[inline]
    pub(crate) fn state(&self) -> QpState {
        // Relaxed: the state only saves requests that the device would refuse anyway.
        QpState::from_raw(u32::from(self.state.load(Ordering::Relaxed))).unwrap_or(QpState::Error)
    }

    /// A send must have fewer elements than this. The limit is 0 in a state that takes no sends, so even a send without
    /// elements is refused then.
    #[inline]
    pub(crate) fn segments_limit(&self) -> u8 {
        // Relaxed: as for the state.
        self.segments_limit.load(Ordering::Relaxed)
    }

    pub(super) fn set_state(&self, state: QpState) {
        self.state.store(state as u8, Ordering::Relaxed);
        let segments_limit = if state.accepts_sends() {
            self.gather_max.saturating_add(1)
        } else {
            0
        };
        self.segments_limit.store(segments_limit, Ordering::Relaxed);
    }

    /// Counts another life on both channels, for a reset.
    pub(super) fn live_on(&self) -> Result<(), ProviderError> {
        let channel = self.channel;
        self.send_completions
            .channels()
            .live_on(WorkKind::Send, channel)?;
        let receives = self.receives.completions().channels();
        receives.live_on(WorkKind::Receive, channel)
    }

    /// Keeps the table of a send half that is dropped before the queue pair.
    pub(crate) fn park_sends(&self, table: Table) {
        let mut parked = self.parked.lock().unwrap_or_else(PoisonError::into_inner);
        parked.send = Some(table);
    }

    /// Keeps the ring of a receive half that is dropped before the queue pair.
    pub(crate) fn park_receives(&self, ring: ReceiveRing) {
        let mut parked = self.parked.lock().unwrap_or_else(PoisonError::into_inner);
        parked.receive = Some(ring);
    }

    /// Keeps the cells of a send half that is dropped before the queue pair.
    pub(crate) fn park_cells(&self, cells: Cells) {
        let mut parked = self.parked.lock().unwrap_or_else(PoisonError::into_inner);
        parked.cells = cells;
    }

    /// Keeps the address handles of a send half that is dropped before the queue pair.
    pub(crate) fn park_addresses(&self, addresses: Addresses) {
        let mut parked = self.parked.lock().unwrap_or_else(PoisonError::into_inner);
        parked.addresses = addresses;
    }
}

impl Drop for Shared {
    #[doc(alias = "ibv_destroy_qp")]
    fn drop(&mut self) {
        // SAFETY: made by `ibv_create_qp`, and destroyed only here, when the last part is gone. Its asynchronous events are
        // acknowledged as they are taken, so the call does not wait forever (ibv_create_qp(3), ibv_get_async_event(3)).
        let status = unsafe { rdma_sys::ibv_destroy_qp(self.qp.as_ptr()) };
        let parked = self.parked.get_mut().unwrap_or_else(PoisonError::into_inner);
        let Parked {
            send,
            cells,
            receive,
            addresses,
        } = core::mem::take(parked);
        if errno::from_value("ibv_destroy_qp", status).is_err() {
            // The device may still use the slots, and the queue pair the objects that it was made from.
            Leaked::QueuePair.count();
            core::mem::forget((send, cells, receive, addresses));
            return;
        }
        // The device is done with every request, so the slots return to their arenas and the channels are free.
        let end = |kind, completions: &CompletionInner, next_generation| {
            completions
                .channels()
                .give_back(kind, self.channel, next_generation);
        };
        if let Some(mut table) = send {
            let next_generation = table.next_generation();
            table.drain(drop);
            end(WorkKind::Send, &self.send_completions, next_generation);
        }
        if let Some(ring) = receive {
            let next_generation = ring.positions().next_generation();
            drop(ring);
            end(WorkKind::Receive, self.receives.completions(), next_generation);
        }
        // No request that names one of these is left.
        drop((cells, addresses));
        // SAFETY: dropped here once, after the queue pair that completed into it.
        unsafe { ManuallyDrop::drop(&mut self.send_completions) };
        // SAFETY: dropped here once, after the queue pair that took receives from there.
        unsafe { ManuallyDrop::drop(&mut self.receives) };
        // A dropped arena may have waited for some of these slots. Its memory has to be freed before its domain.
        orphan::reclaim();
        // SAFETY: dropped here once, last.
        unsafe { ManuallyDrop::drop(&mut self.domain) };
    }
}
