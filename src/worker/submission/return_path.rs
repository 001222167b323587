//! State that a Worker and one submitter share: the ring that returns failed requests, and a detail word for each slot.

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

/// The submitter's end of the failure ring.
pub(super) type Taker<P> = FailureTaker<FailureRing, Box<[Option<Lease<P>>]>>;

/// Return path for failed requests. The Worker's thread and the thread that destroys its channels report failures here.
pub(crate) struct ReturnPath<P: Provider> {
    /// Unique number of this return path in the process; never zero.
    number: u64,
    ring: FailureRing,
    failures: Failures<FailureRing, Box<[AtomicU32]>>,
    /// Keeps the submitter's memory registered for requests in flight after the submitter is dropped.
    attacher: <P::Arena as Arena>::Attacher,
    /// The detail word of each slot: the part of its request that does not fit into a descriptor.
    details: Box<[AtomicU64]>,
}

/// Returns a new number for a return path. Numbers are never reused.
fn fresh_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    // Relaxed: the counter orders no other memory.
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Makes the slots of a ring for at least `count` items. The memory is touched here.
pub(super) fn ring_slots(count: usize) -> Box<[Slot]> {
    let mut slots: Box<[_]> = (0..count.next_power_of_two()).map(|_| Slot::new()).collect();
    in_place::put(&mut slots, Slot::new);
    slots
}

impl<P: Provider> ReturnPath<P> {
    /// Makes the return path of a submitter with this arena; `None` if rings cannot be that large.
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

    /// Returns the unique number of this return path.
    #[inline]
    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    /// Returns the failure ring.
    #[inline]
    pub(super) const fn failures(&self) -> &Failures<FailureRing, Box<[AtomicU32]>> {
        &self.failures
    }

    /// Makes the submitter's end of the failure ring; `None` if there is one already.
    pub(super) fn taker(&self) -> Option<Taker<P>> {
        let mut set_aside: Box<[_]> = self.details.iter().map(|_| None).collect();
        in_place::put(&mut set_aside, || None);
        self.failures.taker(set_aside)
    }

    #[inline]
    pub(super) const fn attacher(&self) -> &<P::Arena as Arena>::Attacher {
        &self.attacher
    }

    /// Makes the slot of a request again from its detached form.
    #[inline]
    pub(crate) fn attach(&self, request: &Request) -> Option<P::Slot> {
        self.attacher.attach(request.slot())
    }

    /// Stores the detail word of a slot whose request is about to be pushed.
    #[inline]
    pub(super) fn keep_detail(&self, index: u32, detail: u64) {
        if let Some(word) = self.details.get(index as usize) {
            // Relaxed, like the load: pushing and taking the request order this store before the load. The word is stored again
            // only by the next owner of the slot, and the slot returns after the load.
            word.store(detail, Ordering::Relaxed);
        }
    }

    /// Returns the detail word of a slot whose request was taken out of the ring.
    #[inline]
    pub(crate) fn detail(&self, index: u32) -> u64 {
        let word = self.details.get(index as usize);
        word.map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// Makes a failed submission from a descriptor of the failure ring.
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

    /// Reports a failed request, with its slot.
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

    /// Returns a request that was not posted, since the Worker was dropped.
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

    /// Reports a posted request whose queue pair is about to be destroyed. Called before the slot can return to its arena.
    pub(super) fn unknown(&self, channel: ChannelId, index: u32) {
        let (kind, word) = SubmissionError::Unknown.pack();
        self.note_reported(self.failures.report_apart(Descriptor {
            // No detached slot has the words zero, so the submitter sees that the report has no slot.
            words: [pair(channel.index, channel.generation), 0, word],
            index,
            kind,
        }));
    }

    /// Handles the outcome of a report. If the submitter was dropped, the report is refused, and the slot returns to its arena.
    fn note_reported(&self, outcome: Result<(), PushError>) {
        if let Err(refused) = outcome {
            drop(self.attach(&Request::of(refused.into_item())));
        }
    }
}

impl<P: Provider> Drop for ReturnPath<P> {
    /// Returns the slots of failures that were not taken to their arena. No later report is possible, since each reporter holds a
    /// reference to the return path.
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

/// The return paths of a Worker, for the thread that destroys its channels.
#[derive(Debug)]
pub(crate) struct Registry<P: Provider> {
    /// Locked when a submitter is made, and when a channel with submitted requests in flight is destroyed.
    return_paths: Mutex<Vec<Weak<ReturnPath<P>>>>,
}

impl<P: Provider> Registry<P> {
    pub(crate) const fn new() -> Self {
        Self {
            return_paths: Mutex::new(Vec::new()),
        }
    }

    /// Adds a return path.
    pub(crate) fn enter(&self, return_path: &Arc<ReturnPath<P>>) {
        let mut return_paths = self.lock();
        return_paths.retain(|return_path| return_path.strong_count() > 0);
        return_paths.push(Arc::downgrade(return_path));
    }

    /// Returns the return path with this number, if it still exists.
    pub(super) fn find(&self, number: u64) -> Option<Arc<ReturnPath<P>>> {
        let return_paths = self.lock();
        return_paths
            .iter()
            .filter_map(Weak::upgrade)
            .find(|return_path| return_path.number == number)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<ReturnPath<P>>>> {
        // No operation leaves the list inconsistent, so a poisoned lock can be used.
        self.return_paths.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
