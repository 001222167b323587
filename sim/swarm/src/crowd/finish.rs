//! The end of a run of limits: nobody holds anything any more, every count is zero, and there is room again.

use doorbell::Worker;

use super::{CrowdRun, Entrance};
use crate::failure::{Verdict, ensure};
use crate::finish::{audit_counts, conserved, free_slots};

/// Longer than anything waits that goes by itself: a stage, what is turned away, and what retries.
const ALL_OVER_NS: u64 = 8_000_000_000;

impl CrowdRun<'_> {
    pub(super) fn finish(&mut self) -> Verdict {
        self.settle()?;
        // Each in its own way: by its stream's end, or by its time.
        self.visitors.retain(|visitor| visitor.number % 2 == 0);
        self.is_vague = true;
        self.pass(ALL_OVER_NS)?;
        self.clear_out()?;
        for host in 0..self.parties.len() {
            self.release(host);
        }
        self.nobody_is_at_the_door()?;
        // There is as much room as the channels leave, for each line.
        for line in 0..self.case.lines.len() {
            self.act(line, 0, crate::crowd::case::CrowdAct::Connect)?;
        }
        while let Some(made) = self.made.first() {
            let (line, end) = (made.line, made.number as usize % 2);
            self.act(line, end, crate::crowd::case::CrowdAct::Close { nth: 0 })?;
        }
        self.pass(ALL_OVER_NS)?;
        self.nobody_is_at_the_door()?;
        self.nothing_is_held()
    }

    fn nobody_is_at_the_door(&mut self) -> Verdict {
        let is_empty = match &self.entrance {
            None => true,
            Some(Entrance::Polled(listener)) => listener.deadline().is_none(),
            Some(Entrance::Aside(handshakes, _)) => {
                handshakes.under_way() == 0 && handshakes.deadline().is_none()
            }
        };
        ensure(is_empty, "conserved", || {
            "handshakes are under way of nobody".into()
        })
    }

    fn nothing_is_held(&mut self) -> Verdict {
        let counts = match &self.entrance {
            None => return Ok(()),
            Some(Entrance::Polled(listener)) => listener.counts(),
            Some(Entrance::Aside(handshakes, _)) => handshakes.counts(),
        };
        // Each that was let in was connected, failed, or made room; those that are refused were not let in, or made room.
        let over = counts.connected + counts.failed;
        let is_even =
            counts.begun >= over && counts.begun <= over + counts.refused && counts.port_failures == 0;
        ensure(is_even, "counts", || format!("{counts:?}"))?;
        let queue_pairs = self.fabric.queue_pairs();
        ensure(queue_pairs == 0, "conserved", || {
            format!("{queue_pairs} queue pairs, where none is due")
        })?;
        let workers = self.parties.iter().flat_map(|party| &party.workers);
        conserved(&self.fabric, self.registrations, workers)?;
        ensure(self.fabric.next_at().is_none(), "conserved", || {
            "something is to happen yet, and nobody waits for it".into()
        })?;
        for host in 0..self.parties.len() {
            let free = self.rooms[host].free();
            let worker = &mut self.parties[host].workers[0];
            let channels = worker.channels().count();
            let found = free_slots(worker, Worker::lease, Worker::release) as u32;
            let rejected = worker.statistics().snapshot().rejected;
            ensure(
                channels == 0 && free.contains(&found) && rejected == 0,
                "conserved",
                || {
                    format!(
                        "h{host} has {channels} channels, lends {found} of {free:?} slots, and rejected {rejected}"
                    )
                },
            )?;
            self.submitters_have_their_slots(host)?;
        }
        if !self.crowd.is_aside {
            return Ok(());
        }
        let gone = self.entrance.take();
        drop(gone);
        self.pass(1_000_000)?;
        audit_counts(&self.fabric)
    }
}
