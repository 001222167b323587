//! Making submitters: on a whole Worker, or on the half of one that sends.

use doorbell_core::provider::{MemoryError, Provider};

use super::Worker;
use super::halves::SendWorker;
use super::polling::SendSide;
use super::submissions::Submissions;
use crate::edge::reaper::Reaper;
use crate::{Submitter, SubmitterConfig};

/// What submitters are made of.
pub(super) struct Maker<'w, P: Provider> {
    pub(super) domain: &'w P::ProtectionDomain,
    pub(super) reaper: &'w Reaper,
    /// A queue that the Worker, and its half that sends, sleeps at.
    pub(super) sleeps_at: &'w P::CompletionQueue,
    pub(super) config: &'w SubmitterConfig,
}

impl<'w, P: Provider> Maker<'w, P> {
    /// Of what a Worker, or its half that sends, has; beside the submissions that what is made joins.
    fn of(
        sends: &'w mut SendSide<P>,
        domain: &'w P::ProtectionDomain,
        reaper: &'w Reaper,
        config: &'w SubmitterConfig,
    ) -> (&'w mut Submissions<P>, Self) {
        let SendSide {
            completions,
            submissions,
            ..
        } = sends;
        let maker = Self {
            domain,
            reaper,
            sleeps_at: completions,
            config,
        };
        (submissions, maker)
    }
}

impl<P: Provider> Worker<P> {
    /// Makes what submits requests from another thread, with memory and a ring of its own.
    ///
    /// What is left of submitters that are gone is let go of when the next is made.
    ///
    /// # Errors
    /// The sizes are zero or too large, the device refused, or what is required of the placement
    /// cannot be had.
    pub fn submitter(&mut self, config: &SubmitterConfig) -> Result<Submitter<P>, MemoryError> {
        let (submissions, maker) = Maker::of(&mut self.sends, &self.domain, &self.places.reaper, config);
        submissions.add_one(&mut self.places.entries, &maker)
    }

    /// Makes so many of them, 1,024 at most, that share one ring: each for a thread of its own, with
    /// memory of its own. Polling looks at one ring for all of them.
    ///
    /// # Errors
    /// As for [`Worker::submitter`], and for another number of them (`EINVAL`).
    pub fn submitters(
        &mut self,
        count: usize,
        config: &SubmitterConfig,
    ) -> Result<Vec<Submitter<P>>, MemoryError> {
        let (submissions, maker) = Maker::of(&mut self.sends, &self.domain, &self.places.reaper, config);
        submissions.add(&mut self.places.entries, count, true, &maker)
    }
}

impl<P: Provider> SendWorker<P> {
    /// Makes what submits requests from another thread; see [`Worker::submitter`].
    ///
    /// # Errors
    /// As there.
    pub fn submitter(&mut self, config: &SubmitterConfig) -> Result<Submitter<P>, MemoryError> {
        let (submissions, maker) = Maker::of(&mut self.sends, &self.domain, &self.places.reaper, config);
        submissions.add_one(&mut self.places.entries, &maker)
    }

    /// Makes so many of them that share one ring; see [`Worker::submitters`].
    ///
    /// # Errors
    /// As there.
    pub fn submitters(
        &mut self,
        count: usize,
        config: &SubmitterConfig,
    ) -> Result<Vec<Submitter<P>>, MemoryError> {
        let (submissions, maker) = Maker::of(&mut self.sends, &self.domain, &self.places.reaper, config);
        submissions.add(&mut self.places.entries, count, true, &maker)
    }
}
