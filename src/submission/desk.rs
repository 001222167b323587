//! What a Worker and one submitter share: the way back of what failed, and words for each slot.

use core::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use doorbell_core::in_place;
use doorbell_core::provider::{Arena, Attacher, Provider, Slot as _};
use doorbell_core::sync::{AtomicU32, AtomicU64, Ordering};
use doorbell_hotpath::ring::{Consumer, Descriptor, MpscProducer, MpscRing, Slot};

use super::request::{Request, pair};
use super::{Submission, SubmissionError};
use crate::{ChannelId, Lease};

/// A ring of failures. As many go in as the submitter has slots, since the slot of each stays taken until
/// the submitter takes it: it is never full.
pub(super) type FailureRing = Arc<MpscRing<Box<[Slot]>>>;

/// Where failures are told from: the Worker, and whatever destroys its channels.
pub(crate) struct Desk<P: Provider> {
    /// Tells it from all others of the process; not zero.
    number: u64,
    failures: FailureRing,
    /// Keeps the submitter's memory for what is under way, though the submitter is gone.
    attacher: <P::Arena as Arena>::Attacher,
    /// Of each slot what of its request does not fit into a descriptor.
    details: Box<[AtomicU64]>,
    /// Of each slot whether it was told of as [`SubmissionError::Unknown`], and that is not taken yet.
    unknown: Box<[AtomicU32]>,
}

/// What tells a desk from others: they do not come round.
fn fresh_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    // Relaxed: only the number matters.
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Slots of a ring of at least so many, in memory that was touched.
pub(super) fn ring_slots(count: usize) -> Box<[Slot]> {
    let mut slots: Box<[_]> = (0..count.next_power_of_two()).map(|_| Slot::new()).collect();
    in_place::put(&mut slots, Slot::new);
    slots
}

impl<P: Provider> Desk<P> {
    /// For a submitter with this memory; `None` where there is no ring as large.
    pub(crate) fn new(arena: &P::Arena) -> Option<Self> {
        let slots = arena.slots() as usize;
        let mut details: Box<[_]> = (0..slots).map(|_| AtomicU64::new(0)).collect();
        in_place::put(&mut details, || AtomicU64::new(0));
        let mut unknown: Box<[_]> = (0..slots).map(|_| AtomicU32::new(0)).collect();
        in_place::put(&mut unknown, || AtomicU32::new(0));
        Some(Self {
            number: fresh_number(),
            failures: Arc::new(MpscRing::new(ring_slots(slots)).ok()?),
            attacher: arena.attacher(),
            details,
            unknown,
        })
    }

    /// The end at which failures are taken.
    pub(super) fn failures(&self) -> Option<Consumer<FailureRing>> {
        Consumer::claim(Arc::clone(&self.failures)).ok()
    }

    #[inline]
    pub(super) const fn attacher(&self) -> &<P::Arena as Arena>::Attacher {
        &self.attacher
    }

    /// Makes a slot of what a request carried.
    #[inline]
    pub(crate) fn attach(&self, request: &Request) -> Option<P::Slot> {
        self.attacher.attach(request.slot())
    }

    /// Keeps the word of a slot whose request is about to be pushed.
    #[inline]
    pub(super) fn keep_detail(&self, index: u32, detail: u64) {
        if let Some(word) = self.details.get(index as usize) {
            // Relaxed, as the load: the request goes through a ring behind it, and it is written again
            // by whoever has the slot then, which came home behind that load.
            word.store(detail, Ordering::Relaxed);
        }
    }

    /// The word of a slot whose request was taken.
    #[inline]
    pub(crate) fn detail(&self, index: u32) -> u64 {
        let word = self.details.get(index as usize);
        word.map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// Whether a slot that came home was told of as unknown, and that is not taken yet.
    ///
    /// Relaxed: it is set by the thread that then gives up the slot, whose way home orders it.
    #[inline]
    pub(super) fn is_unknown(&self, index: u32) -> bool {
        let word = self.unknown.get(index as usize);
        word.is_some_and(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// Makes a failure of what came through the ring.
    pub(super) fn submission(&self, told: Descriptor) -> Submission<P> {
        let [_, _, word] = told.words;
        let error = SubmissionError::unpack(told.kind, word);
        if let (SubmissionError::Unknown, Some(word)) = (error, self.unknown.get(told.index as usize)) {
            // Relaxed: nobody sets it before the slot was submitted again.
            word.store(0, Ordering::Relaxed);
        }
        let words = Request::of(told);
        Submission {
            channel: words.channel(),
            index: told.index,
            error,
            lease: self.attach(&words).map(|slot| Lease { slot }),
        }
    }
}

impl<P: Provider> Drop for Desk<P> {
    /// What nobody took goes home. Nobody tells any more: whoever could had this.
    fn drop(&mut self) {
        if let Some(mut failures) = self.failures() {
            while let Ok(told) = failures.take() {
                drop(self.attach(&Request::of(told)));
            }
        }
    }
}

impl<P: Provider> fmt::Debug for Desk<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Desk").finish_non_exhaustive()
    }
}

/// Tells a submitter what failed.
#[derive(Debug)]
pub(crate) struct Telling<P: Provider> {
    pub(crate) desk: Arc<Desk<P>>,
    ring: MpscProducer<FailureRing>,
}

impl<P: Provider> Telling<P> {
    pub(crate) fn new(desk: Arc<Desk<P>>) -> Self {
        let ring = MpscProducer::new(Arc::clone(&desk.failures));
        Self { desk, ring }
    }

    /// The number of its desk.
    #[inline]
    pub(crate) fn number(&self) -> u64 {
        self.desk.number
    }

    /// A request failed whose slot is here.
    #[cold]
    pub(crate) fn failed(&mut self, channel: ChannelId, slot: P::Slot, error: SubmissionError) {
        let slot = slot.detach();
        let (kind, word) = error.pack();
        self.tell(Descriptor {
            words: [
                pair(channel.index, channel.generation),
                pair(slot.len_bytes, slot.tag),
                word,
            ],
            index: slot.index,
            kind,
        });
    }

    /// A request is given back as it came, the Worker being gone.
    pub(super) fn returned(&mut self, request: &Request) {
        let Descriptor { words, index, .. } = request.descriptor();
        let [channel, slot, _] = words;
        let (kind, word) = SubmissionError::WorkerGone.pack();
        self.tell(Descriptor {
            words: [channel, slot, word],
            index,
            kind,
        });
    }

    /// A request was posted, and its queue pair is about to go. Called before its slot can come home.
    pub(super) fn unknown(&mut self, channel: ChannelId, index: u32) {
        let Some(word) = self.desk.unknown.get(index as usize) else {
            return;
        };
        // Relaxed: the slot comes home behind it.
        word.store(1, Ordering::Relaxed);
        let (kind, word) = SubmissionError::Unknown.pack();
        self.tell(Descriptor {
            // Nothing is detached to zero.
            words: [pair(channel.index, channel.generation), 0, word],
            index,
            kind,
        });
    }

    /// Where the submitter is gone, nobody asks, and the slot goes home.
    fn tell(&mut self, told: Descriptor) {
        if let Err(refused) = self.ring.push(told) {
            drop(self.desk.attach(&Request::of(refused.into_item())));
        }
    }
}

/// The desks of a Worker, for whatever destroys its channels.
#[derive(Debug)]
pub(crate) struct Registry<P: Provider> {
    /// Locked to make a submitter, and for requests that are in flight when their channel goes.
    desks: Mutex<Vec<Weak<Desk<P>>>>,
}

impl<P: Provider> Registry<P> {
    pub(crate) const fn new() -> Self {
        Self {
            desks: Mutex::new(Vec::new()),
        }
    }

    /// Enters a desk.
    pub(crate) fn enter(&self, desk: &Arc<Desk<P>>) {
        let mut desks = self.lock();
        desks.retain(|desk| desk.strong_count() > 0);
        desks.push(Arc::downgrade(desk));
    }

    /// The desk of this number, where anyone has it still.
    pub(super) fn find(&self, number: u64) -> Option<Arc<Desk<P>>> {
        let desks = self.lock();
        desks
            .iter()
            .filter_map(Weak::upgrade)
            .find(|desk| desk.number == number)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<Desk<P>>>> {
        // Nothing that is done with it leaves it half done.
        self.desks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
