//! The device: requests that were posted to it, and their results. A message arrives at once.

use doorbell_core::provider::{Completion, LentCompletion};
use doorbell_core::sync::{AtomicU64, Ordering};
use doorbell_core::{Qpn, WcStatus, WorkId};

/// Receives it holds at most.
const PLACES: usize = 64;

/// The one device there is.
pub(crate) static DEVICE: Device = Device::new();

/// One thread uses it: all accesses are relaxed.
pub(crate) struct Device {
    /// The id of the last send that was signaled and not taken back; zero is none.
    sent: AtomicU64,
    receives: [AtomicU64; PLACES],
    /// Receives posted, messages sent, and receives taken back.
    posted: AtomicU64,
    arrived: AtomicU64,
    taken: AtomicU64,
    /// Word that was last written into the one window.
    announced: AtomicU64,
}

impl Device {
    const fn new() -> Self {
        Self {
            sent: AtomicU64::new(0),
            receives: [const { AtomicU64::new(0) }; PLACES],
            posted: AtomicU64::new(0),
            arrived: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            announced: AtomicU64::new(0),
        }
    }

    fn place(&self, position: u64) -> Option<&AtomicU64> {
        let index = usize::try_from(position).ok()? % PLACES;
        self.receives.get(index)
    }

    /// Takes sends: so many messages, the last signaled one, and what was written into the window.
    pub(crate) fn send(&self, messages: u32, signaled: Option<WorkId>, written: Option<u64>) {
        count(&self.arrived, messages.into());
        if let Some(id) = signaled {
            self.sent.store(id.to_raw(), Ordering::Relaxed);
        }
        if let Some(word) = written {
            self.announced.store(word, Ordering::Relaxed);
        }
    }

    /// Takes a receive.
    pub(crate) fn receive(&self, id: WorkId) {
        if let Some(place) = self.place(self.posted.load(Ordering::Relaxed)) {
            place.store(id.to_raw(), Ordering::Relaxed);
        }
        count(&self.posted, 1);
    }

    /// The completion of a send, and with it of all before.
    pub(crate) fn take_sent(&self) -> Option<Done> {
        let id = self.sent.swap(0, Ordering::Relaxed);
        (id != 0).then_some(Done(WorkId::from_raw(id)))
    }

    /// The completion of the next receive that a message arrived in.
    pub(crate) fn take_arrived(&self) -> Option<Done> {
        let taken = self.taken.load(Ordering::Relaxed);
        let there = self
            .arrived
            .load(Ordering::Relaxed)
            .min(self.posted.load(Ordering::Relaxed));
        if taken == there {
            return None;
        }
        let id = self.place(taken)?.load(Ordering::Relaxed);
        count(&self.taken, 1);
        Some(Done(WorkId::from_raw(id)))
    }

    pub(crate) fn announced(&self) -> u64 {
        self.announced.load(Ordering::Relaxed)
    }
}

fn count(counter: &AtomicU64, more: u64) {
    counter.store(
        counter.load(Ordering::Relaxed).wrapping_add(more),
        Ordering::Relaxed,
    );
}

/// A completion: always a success.
#[derive(Debug)]
pub(crate) struct Done(pub(crate) WorkId);

impl Completion for Done {
    type Lent<'c> = &'c Self;

    fn lend(&self) -> &Self {
        self
    }
}

impl LentCompletion for &Done {
    type Kept = Done;

    fn work_id(&self) -> WorkId {
        self.0
    }
    fn status(&self) -> WcStatus {
        WcStatus::SUCCESS
    }
    fn qpn(&self) -> Qpn {
        Qpn::from_low_bits(0)
    }
    fn keep(self) -> Done {
        Done(self.0)
    }
}
