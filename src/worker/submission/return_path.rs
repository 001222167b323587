//! State that a Worker and one submitter share: the way back of failed requests, and a word for each slot.

use core::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use doorbell_core::in_place;
use doorbell_core::provider::{Arena, Attacher, Provider, Slot as _};
use doorbell_core::sync::{AtomicU32, AtomicU64, Ordering};
use doorbell_hotpath::ring::{Consumer, Descriptor, MpscRing, PushError, Slot};
use doorbell_hotpath::{FailureTaker, Failures};

use super::request::{Request, pair};
use super::{Submission, SubmissionError};
use crate::worker::channel::ChannelId;
use crate::worker::lease::Lease;

type FailureRing = Arc<MpscRing<Box<[Slot]>>>;

/// The end of a submitter at which failures are taken.
pub(super) type Taker<P> = FailureTaker<FailureRing, Box<[Option<Lease<P>>]>>;

/// Return path for failures: the Worker reports them, and so does the thread that destroys its channels.
pub(crate) struct ReturnPath<P: Provider> {
    /// Distinguishes it from all others of the process; not zero.
    number: u64,
    ring: FailureRing,
    failures: Failures<FailureRing, Box<[AtomicU32]>>,
    /// Keeps the submitter's memory for what is under way, though the submitter is gone.
    attacher: <P::Arena as Arena>::Attacher,
    /// For each slot, the part of its request that does not fit into a descriptor.
    details: Box<[AtomicU64]>,
}

/// Number that distinguishes a return path from all others; numbers are never reused.
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

impl<P: Provider> ReturnPath<P> {
    /// For a submitter with this memory; `None` where there is no ring as large.
    pub(crate) fn new(arena: &P::Arena) -> Option<Self> {
        let slots = arena.slots() as usize;
        let mut details: Box<[_]> = (0..slots).map(|_| AtomicU64::new(0)).collect();
        in_place::put(&mut details, || AtomicU64::new(0));
        let mut unknown: Box<[_]> = (0..slots).map(|_| AtomicU32::new(0)).collect();
        in_place::put(&mut unknown, || AtomicU32::new(0));
        let ring = Arc::new(MpscRing::new(ring_slots(slots)).ok()?);
        Some(Self {
            number: fresh_number(),
            failures: Failures::new(Arc::clone(&ring), unknown),
            ring,
            attacher: arena.attacher(),
            details,
        })
    }

    /// The number that distinguishes it from others.
    #[inline]
    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    /// Failures reported so far.
    #[inline]
    pub(super) const fn failures(&self) -> &Failures<FailureRing, Box<[AtomicU32]>> {
        &self.failures
    }

    /// The end at which it is taken, with a place for each slot.
    pub(super) fn taker(&self) -> Option<Taker<P>> {
        let mut set_aside: Box<[_]> = self.details.iter().map(|_| None).collect();
        in_place::put(&mut set_aside, || None);
        self.failures.taker(set_aside)
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
            // Relaxed, as the load: the request goes through a ring behind it. The next owner of the slot writes the word
            // again, and that slot came home behind the load.
            word.store(detail, Ordering::Relaxed);
        }
    }

    /// The word of a slot whose request was taken.
    #[inline]
    pub(crate) fn detail(&self, index: u32) -> u64 {
        let word = self.details.get(index as usize);
        word.map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// Makes a failure of what came through the ring.
    pub(super) fn submission(&self, failure: Descriptor) -> Submission<P> {
        let [_, _, word] = failure.words;
        let words = Request::of(failure);
        Submission {
            channel: words.channel(),
            index: failure.index,
            error: SubmissionError::unpack(failure.kind, word),
            lease: self.attach(&words).map(|slot| Lease { slot }),
        }
    }

    /// A request failed whose slot is here.
    #[cold]
    pub(crate) fn failed(&self, channel: ChannelId, slot: P::Slot, error: SubmissionError) {
        let slot = slot.detach();
        let (kind, word) = error.pack();
        self.note_reported(self.failures.report(Descriptor {
            words: [
                pair(channel.index, channel.generation),
                pair(slot.len_bytes, slot.tag),
                word,
            ],
            index: slot.index,
            kind,
        }));
    }

    /// A request is given back as it came, the Worker being gone.
    pub(super) fn returned(&self, request: &Request) {
        let Descriptor { words, index, .. } = request.descriptor();
        let [channel, slot, _] = words;
        let (kind, word) = SubmissionError::WorkerGone.pack();
        self.note_reported(self.failures.report(Descriptor {
            words: [channel, slot, word],
            index,
            kind,
        }));
    }

    /// A request was posted, and its queue pair is about to go. Called before its slot can come home.
    pub(super) fn unknown(&self, channel: ChannelId, index: u32) {
        let (kind, word) = SubmissionError::Unknown.pack();
        self.note_reported(self.failures.report_apart(Descriptor {
            // Nothing is detached to zero.
            words: [pair(channel.index, channel.generation), 0, word],
            index,
            kind,
        }));
    }

    /// Handles the outcome of a report. If the submitter is gone, nobody takes the report, and the slot returns to its arena.
    fn note_reported(&self, outcome: Result<(), PushError>) {
        if let Err(refused) = outcome {
            drop(self.attach(&Request::of(refused.into_item())));
        }
    }
}

impl<P: Provider> Drop for ReturnPath<P> {
    /// Slots of failures that nobody took return to their arena. No report follows: every reporter held this.
    fn drop(&mut self) {
        if let Ok(mut failures) = Consumer::claim(&*self.ring) {
            while let Ok(failure) = failures.take() {
                drop(self.attach(&Request::of(failure)));
            }
        }
    }
}

impl<P: Provider> fmt::Debug for ReturnPath<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReturnPath").finish_non_exhaustive()
    }
}

/// The return paths of a Worker, for whatever destroys its channels.
#[derive(Debug)]
pub(crate) struct Registry<P: Provider> {
    /// Locked to make a submitter, and for requests that are in flight when their channel goes.
    return_paths: Mutex<Vec<Weak<ReturnPath<P>>>>,
}

impl<P: Provider> Registry<P> {
    pub(crate) const fn new() -> Self {
        Self {
            return_paths: Mutex::new(Vec::new()),
        }
    }

    /// Enters a return path.
    pub(crate) fn enter(&self, return_path: &Arc<ReturnPath<P>>) {
        let mut return_paths = self.lock();
        return_paths.retain(|return_path| return_path.strong_count() > 0);
        return_paths.push(Arc::downgrade(return_path));
    }

    /// The return path of this number, where anyone has it still.
    pub(super) fn find(&self, number: u64) -> Option<Arc<ReturnPath<P>>> {
        let return_paths = self.lock();
        return_paths
            .iter()
            .filter_map(Weak::upgrade)
            .find(|return_path| return_path.number == number)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<ReturnPath<P>>>> {
        // Nothing that is done with it leaves it half done.
        self.return_paths.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
