//! Failure reports: they return requests that one thread submitted and another thread could not execute. Each
//! request is reported once, and its memory is not reused before its report is taken.
//!
//! Reports go through a many-producer ring, since any thread may find the failure. The ring has a place for each
//! slot of memory. A slot with a report in the ring is not lent before the report is taken, so the ring is never
//! full. Usually the report carries the slot. If the device still has the slot, the slot returns to its arena at any
//! later time. For this case a word for each slot marks that it must not be lent.

use core::fmt;
use core::ops::Deref;

use doorbell_core::sync::{AtomicU32, Ordering};

use crate::ring::{Consumer, Descriptor, MpscHandle, MpscProducer, PushError, Ring, TakeError};

/// Failure reports: a ring, and a word for each slot, in storage from the caller.
///
/// The index of a descriptor is the index of its slot. A slot gets a second report only after the first was taken
/// ([`FailureTaker::take`]) and the slot was submitted again.
pub struct Failures<R, Words> {
    ring: R,
    /// For each slot: nonzero from a report without the slot until that report is taken.
    apart: Words,
}

impl<R: MpscHandle, Words: AsRef<[AtomicU32]>> Failures<R, Words> {
    /// Failure reports over a ring with as many places as there are words, one for each slot.
    pub const fn new(ring: R, words: Words) -> Self {
        Self { ring, apart: words }
    }

    /// Returns the end that takes reports, unless it is claimed already. `set_aside` has a place for each slot.
    pub fn taker<Places>(&self, set_aside: Places) -> Option<FailureTaker<R, Places>> {
        Some(FailureTaker {
            reports: Consumer::claim(self.ring.clone()).ok()?,
            set_aside,
        })
    }

    /// Reports a request whose slot is in the report.
    ///
    /// # Errors
    /// Reports are not taken any more: the report is returned.
    ///
    /// # Ordering
    /// As for [`MpscProducer::push`].
    #[cold]
    pub fn report(&self, report: Descriptor) -> Result<(), PushError> {
        // By reference: a cloned counted handle could become the last one of its ring.
        MpscProducer::new(&*self.ring).push(report)
    }

    /// Reports a request whose slot returns to its arena separately. The thread that lets the slot return calls this
    /// before it does so.
    ///
    /// # Errors
    /// As for [`Failures::report`].
    #[cold]
    pub fn report_apart(&self, report: Descriptor) -> Result<(), PushError> {
        if let Some(word) = self.apart.as_ref().get(report.index as usize) {
            // Relaxed: the slot returns, and the report is published, only after this store.
            word.store(1, Ordering::Relaxed);
        }
        self.report(report)
    }

    /// Whether a slot that returned has a report that was not taken yet.
    #[must_use]
    #[inline]
    pub fn is_apart(&self, index: u32) -> bool {
        let word = self.apart.as_ref().get(index as usize);
        // Relaxed: it was set before the slot returned, and that is ordered by the free list.
        word.is_some_and(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// Clears the word of a slot whose report was taken. Returns whether the report came without the slot.
    fn settle(&self, index: u32) -> bool {
        let is_apart = self.is_apart(index);
        if let Some(word) = self.apart.as_ref().get(index as usize).filter(|_| is_apart) {
            // Relaxed: no thread sets it before the slot is submitted again.
            word.store(0, Ordering::Relaxed);
        }
        is_apart
    }
}

/// The end that takes reports, with the slots that returned before their reports were taken.
pub struct FailureTaker<R: MpscHandle, Places> {
    reports: Consumer<R>,
    /// By index: slots that returned before their reports were taken.
    set_aside: Places,
}

impl<R: MpscHandle, Places> FailureTaker<R, Places> {
    /// Takes the earliest report. If it came without its slot, and the slot has returned already, the slot is also
    /// returned here, and may be lent again.
    ///
    /// # Errors
    /// There is no report.
    pub fn take<L>(
        &mut self,
        failures: &Failures<R, impl AsRef<[AtomicU32]>>,
    ) -> Result<(Descriptor, Option<L>), TakeError>
    where
        Places: AsMut<[Option<L>]>,
    {
        let report = self.reports.take()?;
        let mut home = None;
        if failures.settle(report.index) {
            let place = self.set_aside.as_mut().get_mut(report.index as usize);
            home = place.and_then(Option::take);
        }
        Ok((report, home))
    }

    /// Returns the first slot that may be lent, from the free slots that `next` yields. A slot with an untaken report is
    /// set aside until the report is taken.
    #[inline]
    pub fn lend<L>(
        &mut self,
        failures: &Failures<R, impl AsRef<[AtomicU32]>>,
        mut next: impl FnMut() -> Option<L>,
        index_of: impl Fn(&L) -> u32,
    ) -> Option<L>
    where
        Places: AsMut<[Option<L>]>,
    {
        loop {
            let lease = next()?;
            let index = index_of(&lease);
            if !failures.is_apart(index) {
                return Some(lease);
            }
            self.set_aside(index, lease);
        }
    }

    #[cold]
    fn set_aside<L>(&mut self, index: u32, lease: L)
    where
        Places: AsMut<[Option<L>]>,
    {
        if let Some(place) = self.set_aside.as_mut().get_mut(index as usize) {
            *place = Some(lease);
        }
    }

    /// Stops taking reports: a later report is returned to its sender.
    pub fn close(&self) {
        self.reports.close();
    }
}

/// Takes the descriptors that were pushed while the consumer closed the ring and was dropped. Takes nothing if the
/// ring is open, or if it still has a consumer.
///
/// Each pushing thread calls this until it has found its own descriptor, or until its descriptor was reported to it. A
/// descriptor after an unfinished push is found by the thread that calls this after that push.
pub fn take_late<R: Deref<Target: Ring>>(ring: R, mut each: impl FnMut(Descriptor)) {
    let Ok(mut left) = Consumer::claim(ring) else {
        return;
    };
    if left.is_closed() {
        while let Ok(item) = left.take() {
            each(item);
        }
    }
}

impl<R, Words> fmt::Debug for Failures<R, Words> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failures").finish_non_exhaustive()
    }
}

impl<R: MpscHandle, Places> fmt::Debug for FailureTaker<R, Places> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FailureTaker").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(any(doorbell_loom, doorbell_shuttle))))]
mod tests;
