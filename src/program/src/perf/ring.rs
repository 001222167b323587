//! Latency of messages through the one-sided ring.
//!
//! The timed section lasts from just before the post until the answer has been copied out. Everything else is as in
//! [`super::latency`].

use doorbell::Event;
use doorbell::provider::Provider;
use doorbell::wire::Publication;
use doorbell::worker::{RingChannel, RingConfig};

use super::error::PerfError;
use super::latency::{Times, tick};
use super::link::{Arrival, LOOKS_AT_MEMORY, LOOKS_AT_QUEUE, Outgoing, Run};
use super::progress::Progress;

/// The client's side.
///
/// # Errors
/// As for [`super::latency::measure`].
pub(super) fn exchange<P: Provider>(
    run: &mut Run<'_, P>,
    times: &mut Times,
    progress: &mut Progress,
) -> Result<(), PerfError> {
    let mut ringed = RingTest::open(run)?;
    for sequence in 0..run.test.total() {
        let outgoing = ringed.prepare(run, sequence)?;
        let start = times.clock.raw();
        ringed.send(run, outgoing)?;
        ringed.receive(run)?;
        let end = times.clock.raw();
        run.moved();
        times.note(sequence, start, end);
        ringed.check(run, sequence)?;
        tick(progress, sequence);
    }
    Ok(())
}

/// The listener's side.
///
/// # Errors
/// As for [`super::latency::answer`].
pub(super) fn reply<P: Provider>(run: &mut Run<'_, P>) -> Result<(), PerfError> {
    let mut ringed = RingTest::open(run)?;
    for sequence in 0..run.test.total() {
        let outgoing = ringed.prepare(run, sequence)?;
        ringed.receive(run)?;
        ringed.send(run, outgoing)?;
        run.moved();
        ringed.check(run, sequence)?;
    }
    Ok(())
}

/// The rings of the connection under test.
struct RingTest<P: Provider> {
    ring: RingChannel<P>,
    /// Whether messages are detected by bytes in memory, so that no completion reports them.
    is_told_by_memory: bool,
    /// The message that arrived last.
    message: Vec<u8>,
    bytes: usize,
}

impl<P: Provider> RingTest<P> {
    fn open(run: &mut Run<'_, P>) -> Result<Self, PerfError> {
        let mut config = RingConfig::default();
        config.cell_bytes = run.test.place_bytes().max(config.cell_bytes);
        let deadline = run.link.worker.within(run.control.timeout());
        let link = &mut *run.link;
        let ring = RingChannel::open(&mut link.worker, link.id, &config, deadline, |_, _| {});
        let ring = ring.map_err(PerfError::Ring)?;
        Ok(Self {
            is_told_by_memory: ring.publications().received == Publication::Trailer,
            ring,
            message: vec![0; run.test.bytes()],
            bytes: 0,
        })
    }

    /// Creates the next message, and takes completions.
    fn prepare(&mut self, run: &mut Run<'_, P>, sequence: u64) -> Result<Outgoing<P>, PerfError> {
        // The poll takes completions, which return the memory of posted messages.
        self.poll(run)?;
        let mut early = None;
        let outgoing = run.prepare(sequence, &mut early)?;
        if let Some(Arrival::Written { immediate, .. }) = early {
            self.ring.note_written(immediate);
        }
        Ok(outgoing)
    }

    #[inline]
    fn send(&mut self, run: &mut Run<'_, P>, outgoing: Outgoing<P>) -> Result<(), PerfError> {
        let Run { link, made, .. } = run;
        let channel = link.channel()?;
        match outgoing {
            // Messages of a ring are never sent from a cell of the send queue.
            Outgoing::Inline | Outgoing::Cell => self.ring.send_inline(channel, made)?,
            Outgoing::Lease(lease) => self.ring.send(channel, lease).map_err(|refused| refused.kind)?,
        };
        Ok(())
    }

    /// Waits for the next message.
    #[inline]
    fn receive(&mut self, run: &mut Run<'_, P>) -> Result<(), PerfError> {
        let mut looks = 0_u32;
        loop {
            let got = self.ring.receive(run.link.channel()?, &mut self.message);
            if let Some(bytes) = got.map_err(PerfError::RingRead)? {
                self.bytes = bytes;
                return Ok(());
            }
            looks = looks.wrapping_add(1);
            if !self.is_told_by_memory {
                self.poll(run)?;
                run.idle(LOOKS_AT_QUEUE)?;
            } else if looks & LOOKS_AT_MEMORY.wrapping_sub(1) == 0 {
                // Only completions report a failed connection.
                self.poll(run)?;
                run.idle(1)?;
            }
        }
    }

    #[inline]
    fn poll(&mut self, run: &mut Run<'_, P>) -> Result<(), PerfError> {
        let ring = &mut self.ring;
        run.link.poll(|_, event| {
            if let Event::Written { immediate, .. } = event {
                ring.note_written(immediate);
            }
        })?;
        Ok(())
    }

    fn check(&self, run: &mut Run<'_, P>, sequence: u64) -> Result<(), PerfError> {
        run.check_length(self.bytes)?;
        let outcome = run.source.theirs.check(sequence, &self.message);
        run.tally.note(self.bytes as u64, outcome);
        Ok(())
    }
}
