//! Creation of submitters, on a Worker or on the sending half of a split Worker.

use doorbell_core::provider::{MemoryError, Provider};

use super::Worker;
use super::halves::SendWorker;
use super::send_side::SendSide;
use super::submissions::{Maker, Submissions};
use crate::machine::reaper::Reaper;
use crate::worker::config::SubmitterConfig;
use crate::worker::submission::Submitter;

impl<'w, P: Provider> Maker<'w, P> {
    /// Borrows the resources that new submitters are made from, and the submissions that they join.
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
    /// Makes a submitter for another thread, with its own memory and its own ring.
    ///
    /// The ring and the memory of a dropped submitter are released when the next submitter is made, or with the Worker.
    ///
    /// # Errors
    /// A setting is out of its range ([`SubmitterConfig::check`]), the device refused, or a required placement is not available.
    pub fn submitter(&mut self, config: &SubmitterConfig) -> Result<Submitter<P>, MemoryError> {
        let (submissions, maker) = Maker::of(&mut self.sends, &self.domain, &self.table.reaper, config);
        submissions.add_one(&mut self.table.entries, &maker)
    }

    /// Makes `count` submitters that share one ring, 1 to 1,024. Each is for its own thread and has its own memory. A poll looks
    /// at only one ring for all of them.
    ///
    /// # Errors
    /// As for [`Worker::submitter`], and if `count` is out of range ([`MemoryError::Setting`]).
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

    /// Makes `count` submitters that share one ring; see [`Worker::submitters`].
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
