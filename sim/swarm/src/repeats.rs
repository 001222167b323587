//! Messages that some devices repeat as a queue pair fails. The fabric counts the repeats, and no more than these are
//! excused. Only the last message is repeated, and nothing new comes after it.

use doorbell::Event;
use doorbell_sim::Host;

use crate::failure::{Verdict, ensure};
use crate::run::Run;

/// An arrival that takes a receive, as an application sees it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    Message { bytes: Vec<u8>, word: Option<u32> },
    Written { bytes: u32, word: u32 },
}

impl Arrival {
    fn of(event: &Event<'_, Host>) -> Option<Self> {
        match event {
            Event::Received { message, immediate } => Some(Self::Message {
                bytes: message.payload().to_vec(),
                word: *immediate,
            }),
            Event::Written {
                payload_bytes,
                immediate,
            } => Some(Self::Written {
                bytes: *payload_bytes,
                word: *immediate,
            }),
            _ => None,
        }
    }
}

impl Run<'_> {
    /// Whether an end is told once more what came to it last: by its device, which fails, and no more often than the
    /// fabric says.
    pub(crate) fn is_repeated(&mut self, line: usize, end: usize, event: &Event<'_, Host>) -> Verdict<bool> {
        if !self.may_repeat() {
            return Ok(false);
        }
        let Some(arrival) = Arrival::of(event) else {
            return Ok(false);
        };
        let made = self.repeated_to(line, end);
        let connection = self.lines[line].connection.as_mut();
        let Some(at) = connection.and_then(|connection| connection.ends[end].as_mut()) else {
            return Ok(false);
        };
        if at.repeats < made && at.newest.as_ref() == Some(&arrival) {
            at.repeats += 1;
            return Ok(true);
        }
        ensure(at.repeats == 0, "twice", || {
            format!(
                "line {line} end {end}: {} came again, of {made}, and {arrival:?} behind it",
                at.repeats
            )
        })?;
        at.newest = Some(arrival);
        Ok(false)
    }

    /// A Worker says that an end was brought more than it had granted: of what its device repeats, one more.
    pub(crate) fn is_overdrawn_by_repeats(&mut self, line: usize, end: usize) -> bool {
        let made = self.repeated_to(line, end);
        let connection = self.lines[line].connection.as_mut();
        let at = connection.and_then(|connection| connection.ends[end].as_mut());
        at.is_some_and(|at| {
            let is_one_more = at.repeats < made;
            at.repeats += u64::from(is_one_more);
            is_one_more
        })
    }

    /// How many receives of an end took again what came to it last.
    pub(crate) fn repeated_to(&self, line: usize, end: usize) -> u64 {
        let connection = self.lines[line].connection.as_ref();
        let found =
            connection.and_then(|connection| Some((connection.ends[end].as_ref()?, connection.qpns[end]?)));
        let Some((at, qpn)) = found.filter(|_| self.may_repeat()) else {
            return 0;
        };
        let host = self.case.lines[line].hosts[end];
        let device = self.stations[host].workers[at.worker].device();
        self.fabric
            .repeated(self.stations[host].host.name(), device, Some(qpn))
    }

    /// How many receives that channels of a Worker share took something again: of these, what goes beyond the share of a
    /// channel that is refused for that, the Worker rejects.
    pub(crate) fn rejects_max(&self, host: usize, worker: usize) -> u64 {
        let station = &self.stations[host];
        let device = station.workers[worker].device();
        match self.case.hosts[host].shared_receives {
            Some(_) => self.fabric.repeated(station.host.name(), device, None),
            None => 0,
        }
    }

    /// Whether receives that channels share went to what a device repeats: others may find none then.
    pub(crate) fn took_shared_receives(&self) -> bool {
        let workers_of =
            |host: usize| (0..self.stations[host].workers.len()).map(move |worker| (host, worker));
        let mut workers = (0..self.stations.len()).flat_map(workers_of);
        self.may_repeat() && workers.any(|(host, worker)| self.rejects_max(host, worker) > 0)
    }

    const fn may_repeat(&self) -> bool {
        self.case.device.quirks().repeats_failing_ns > 0
    }
}
