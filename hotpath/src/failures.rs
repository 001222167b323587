//! Failure reports: the way back of requests that one thread submitted and another thread could not do. Each
//! request is reported once, and its memory is not used again before its report was taken.
//!
//! Reports go through a ring of many producers, since any thread may find the failure. The ring has a place for
//! each slot of memory. A slot with a report in the ring is not lent before the report was taken, so the ring is
//! never full. Usually the report carries the slot. If the device still has the slot, the slot comes home by
//! itself at any later moment. Until then a word for each slot says that it must not be lent.

use core::fmt;
use core::ops::Deref;

use doorbell_core::sync::{AtomicU32, Ordering};

use crate::ring::{Consumer, Descriptor, MpscHandle, MpscProducer, PushError, Ring, TakeError};

/// Failure reports: a ring, and a word for each slot, in storage of the caller's.
///
/// The index of a descriptor is the index of its slot. A slot has no second report before the first was taken
/// ([`FailureTaker::take`]) and the slot was submitted again.
pub struct Failures<R, Words> {
    ring: R,
    /// For each slot: not zero from a report without the slot until that report is taken.
    apart: Words,
}

impl<R: MpscHandle, Words: AsRef<[AtomicU32]>> Failures<R, Words> {
    /// Over a ring with as many places as there are words, one for each slot.
    pub const fn new(ring: R, words: Words) -> Self {
        Self { ring, apart: words }
    }

    /// Returns the end that takes reports, if nobody has it. `set_aside` has a place for each slot.
    pub fn taker<Places>(&self, set_aside: Places) -> Option<FailureTaker<R, Places>> {
        Some(FailureTaker {
            reports: Consumer::claim(self.ring.clone()).ok()?,
            set_aside,
        })
    }

    /// Reports a request whose slot is in the report.
    ///
    /// # Errors
    /// Nobody takes reports any more: the report is given back.
    ///
    /// # Ordering
    /// As [`MpscProducer::push`].
    #[cold]
    pub fn report(&self, report: Descriptor) -> Result<(), PushError> {
        // By reference: a handle that is counted could be the last of its ring.
        MpscProducer::new(&*self.ring).push(report)
    }

    /// Reports a request whose slot comes home by itself. The thread that lets the slot go home calls this before
    /// it does so.
    ///
    /// # Errors
    /// As for [`Failures::report`].
    #[cold]
    pub fn report_apart(&self, report: Descriptor) -> Result<(), PushError> {
        if let Some(word) = self.apart.as_ref().get(report.index as usize) {
            // Relaxed: the slot comes home afterwards, and the report is published afterwards.
            word.store(1, Ordering::Relaxed);
        }
        self.report(report)
    }

    /// Whether a slot that came home has a report that is not taken yet.
    #[must_use]
    #[inline]
    pub fn is_apart(&self, index: u32) -> bool {
        let word = self.apart.as_ref().get(index as usize);
        // Relaxed: it was set before the slot went home, whose way orders it.
        word.is_some_and(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// Clears the word of a slot whose report was taken; says whether the report came without the slot.
    fn settle(&self, index: u32) -> bool {
        let is_apart = self.is_apart(index);
        if let Some(word) = self.apart.as_ref().get(index as usize).filter(|_| is_apart) {
            // Relaxed: nobody sets it before the slot was submitted again.
            word.store(0, Ordering::Relaxed);
        }
        is_apart
    }
}

/// The end that takes reports, and the slots that came home before their reports were taken.
pub struct FailureTaker<R: MpscHandle, Places> {
    reports: Consumer<R>,
    /// By index: slots that came home before their reports were taken.
    set_aside: Places,
}

impl<R: MpscHandle, Places> FailureTaker<R, Places> {
    /// Takes the earliest report. With it comes a slot that may be lent again: one that was reported without its
    /// slot, and came home before this.
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

    /// Returns the first slot that may be lent, out of the slots that came home, which `next` yields. A slot with
    /// an untaken report is set aside until the report is taken.
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

    /// Ends the taking of reports: a later report is given back to its sender.
    pub fn close(&self) {
        self.reports.close();
    }
}

/// Takes the descriptors that were pushed while the consumer closed the ring and went away. Takes nothing if the
/// ring is open, or if it still has a consumer.
///
/// If several threads push, each calls this until it has found its own descriptor, or until its descriptor was
/// reported to it. A descriptor behind an unfinished push is found by the thread that calls this after that push.
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
