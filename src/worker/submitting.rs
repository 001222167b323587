//! Making submitters: on a whole Worker, or on the half of one that sends.

use doorbell_core::provider::{MemoryError, Provider};

use super::Worker;
use super::halves::SendWorker;
use super::send_side::SendSide;
use super::submissions::{Maker, Submissions};
use crate::machine::reaper::Reaper;
use crate::worker::config::SubmitterConfig;
use crate::worker::submission::Submitter;

impl<'w, P: Provider> Maker<'w, P> {
    /// Borrows the resources of a Worker, or of its sending half, and the submissions that new submitters join.
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
    /// Makes a submitter for another thread, with memory and a ring of its own.
    ///
    /// The remains of submitters that are gone are released when the next one is made.
    ///
    /// # Errors
    /// A setting is out of its range ([`SubmitterConfig::check`]), the device refused, or what is required of the placement
    /// cannot be had.
    pub fn submitter(&mut self, config: &SubmitterConfig) -> Result<Submitter<P>, MemoryError> {
        let (submissions, maker) = Maker::of(&mut self.sends, &self.domain, &self.table.reaper, config);
        submissions.add_one(&mut self.table.entries, &maker)
    }

    /// Makes so many submitters, 1,024 at most, that share one ring: each for a thread of its own, with memory of its own.
    /// Polling looks at one ring for all of them.
    ///
    /// # Errors
    /// As for [`Worker::submitter`], and for another number of them ([`MemoryError::Setting`]).
    pub fn submitters(
        &mut self,
        count: usize,
        config: &SubmitterConfig,
    ) -> Result<Vec<Submitter<P>>, MemoryError> {
        let (submissions, maker) = Maker::of(&mut self.sends, &self.domain, &self.table.reaper, config);
        submissions.add(&mut self.table.entries, count, true, &maker)
    }
}

impl<P: Provider> SendWorker<P> {
    /// Makes a submitter for another thread; see [`Worker::submitter`].
    ///
    /// # Errors
    /// As for [`Worker::submitter`].
    pub fn submitter(&mut self, config: &SubmitterConfig) -> Result<Submitter<P>, MemoryError> {
        let (submissions, maker) = Maker::of(&mut self.sends, &self.domain, &self.table.reaper, config);
        submissions.add_one(&mut self.table.entries, &maker)
    }

    /// Makes so many submitters that share one ring; see [`Worker::submitters`].
    ///
    /// # Errors
    /// As for [`Worker::submitters`].
    pub fn submitters(
        &mut self,
        count: usize,
        config: &SubmitterConfig,
    ) -> Result<Vec<Submitter<P>>, MemoryError> {
        let (submissions, maker) = Maker::of(&mut self.sends, &self.domain, &self.table.reaper, config);
        submissions.add(&mut self.table.entries, count, true, &maker)
    }
}
