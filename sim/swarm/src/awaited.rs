//! The results that lines and links have to reach once faults have stopped, each with its own time bound.

use crate::bounds::{Bounds, PACED_NS};
use crate::failure::{Verdict, ensure};
use crate::line::End;
use crate::linked::LinkedRun;
use crate::run::{Run, prepares_sleep};

/// Something that is awaited of an end of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Awaited {
    pub(crate) line: usize,
    pub(crate) end: usize,
    pub(crate) what: &'static str,
    /// Which of those it is, where one comes after the other: each has its own time.
    pub(crate) which: u64,
    pub(crate) bound_ns: u64,
}

/// Since when each is awaited.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    since_ns: Vec<(Awaited, u64)>,
}

impl Watch {
    /// Looks at all that is awaited now.
    pub(crate) fn look(&mut self, now_ns: u64, awaited: Vec<Awaited>) -> Verdict {
        let before = core::mem::take(&mut self.since_ns);
        for each in awaited {
            let known = before.iter().find(|(known, _)| *known == each);
            let since_ns = known.map_or(now_ns, |(_, since_ns)| *since_ns);
            let took_ns = now_ns.saturating_sub(since_ns);
            let Awaited {
                line,
                end,
                what,
                bound_ns,
                ..
            } = each;
            ensure(took_ns <= bound_ns, "liveness", || {
                let [took_ms, bound_ms] = [took_ns, bound_ns].map(|span_ns| span_ns as f64 / 1e6);
                format!(
                    "line {line} end {end}: {what} takes {took_ms:.3} ms so far, and has {bound_ms:.3} ms"
                )
            })?;
            self.since_ns.push((each, since_ns));
        }
        Ok(())
    }
}

impl Run<'_> {
    /// Looks whether anything is late.
    pub(crate) fn check_late(&mut self) -> Verdict {
        let mut awaited = Vec::new();
        for line in 0..self.lines.len() {
            self.awaited_of(line, &mut awaited);
        }
        self.watch.look(self.fabric.now().to_ns(), awaited)
    }

    fn awaited_of(&mut self, line: usize, awaited: &mut Vec<Awaited>) {
        let bounds = self.bounds[line];
        let mut push = |end: usize, what, which: u64, bound_ns| {
            awaited.push(Awaited {
                line,
                end,
                what,
                which,
                bound_ns,
            });
        };
        let case = &self.case.lines[line];
        let endings = self.case.endings;
        if self.lines[line].listener.deadline().is_some() {
            push(1, "a handshake", 0, bounds.handshake_ns);
        }
        let is_connecting = self.lines[line].attempt.is_some();
        let Some(connection) = &self.lines[line].connection else {
            return;
        };
        let number = u64::from(connection.number);
        if is_connecting {
            push(0, "an attempt to connect", number, bounds.connect_ns);
        }
        let quirks = self.case.device.quirks();
        let vanishes = quirks.late_requests_vanish;
        let is_patient = endings.is_some() && quirks.failed_peers_are_waited_for;
        for end in 0..2 {
            let Some(at) = &connection.ends[end] else {
                // The other end has its channel. This end gets one within the bound, or its handshake fails and ends
                // the connection.
                if !is_connecting && !connection.is_ending {
                    push(end, "the peer's channel", number, bounds.handshake_ns);
                }
                continue;
            };
            if at.is_closing {
                push(end, "closing", number, bounds.close_ns);
                continue;
            }
            let is_alone = self.is_cut || connection.is_ending && connection.ends[1 - end].is_none();
            let is_lost = at.has_failed || is_alone;
            let paced_ns = if prepares_sleep(case.hosts[end]) {
                0
            } else {
                PACED_NS
            };
            if endings.is_some() && is_lost && !is_connecting {
                push(end, "the report of its end", number, bounds.report_ns + paced_ns);
            }
            if at.rings.are_opening() {
                push(end, "opening rings", number, bounds.rings_ns);
            }
            let worker = &mut self.stations[case.hosts[end]].workers[at.worker];
            let in_flight = worker.channel(at.id).map_or(0, |channel| channel.in_flight());
            let is_idle = in_flight == 0 && at.posted.is_empty() && !at.has_failed;
            if let Some(silence_ns) =
                Bounds::of_silence_ns(self.case, case, end).filter(|_| is_alone && is_idle && !is_connecting)
            {
                push(end, "giving up a silent peer", number, silence_ns + paced_ns);
            }
            // Unsignaled requests at the end wait for one that is signaled, which comes last.
            let is_told = case.end(end).unsignaled_max == 0 || self.told.contains(&[line, end]);
            // A device may try for as long as the peer's queue pair is there, though that failed.
            let other = connection.ends[1 - end].as_ref();
            let is_held_up = is_patient && other.is_some_and(End::is_leaving);
            let is_silent = vanishes && at.has_failed || is_held_up;
            if let Some(oldest) = at
                .posted
                .front()
                .filter(|_| is_told && in_flight > 0 && !is_silent)
            {
                let which = number << 48 ^ oldest.ticket.position();
                push(end, "a request", which, bounds.request_ns);
            }
        }
    }
}

impl LinkedRun<'_> {
    /// Looks whether anything is late.
    pub(crate) fn check_late(&mut self) -> Verdict {
        let mut awaited = Vec::new();
        let transfers: Vec<_> = self.transfers_awaited().collect();
        for (number, bond) in self.bonds.iter().enumerate().filter(|(_, bond)| !bond.is_over()) {
            let bounds = self.bounds[bond.line];
            let mut push = |end: usize, what, which: u64, bound_ns| {
                awaited.push(Awaited {
                    line: bond.line,
                    end,
                    what,
                    // The upper bits are the link's number, so each link has its own time.
                    which: (number as u64) << 48 | which,
                    bound_ns,
                });
            };
            if bond.is_ending() {
                let (what, within_ns) = match (bond.is_parting, bond.is_struck) {
                    (true, false) => ("the farewell of a link", bounds.farewell_ns),
                    // It is said again by another rail once the one is lost that took it.
                    (true, true) => (
                        "the farewell of a link beside a cable that is cut",
                        bounds.gone_ns + bounds.farewell_ns,
                    ),
                    (false, _) => ("the end of a link", bounds.end_ns),
                };
                push(0, what, 0, within_ns);
                continue;
            }
            if !bond.is_whole() {
                push(1, "a link", 0, bounds.message_ns);
            }
            for (end, flow) in bond.flows.iter().enumerate() {
                if let Some(progress) = flow.awaits() {
                    push(end, "a message", progress, bounds.message_ns);
                }
            }
            for end in 0..2 {
                let at = bond.end(end);
                if at.is_stalled && at.goes_on {
                    push(
                        end,
                        "the report that the other takes messages",
                        0,
                        bounds.polls_ns,
                    );
                }
            }
            for (end, rail) in self.rails_down(bond) {
                push(end, "a rail", u64::from(rail), bounds.rail_ns);
            }
            for (_, step) in transfers.iter().filter(|(of, _)| *of == number) {
                push(0, "a transfer", step % (1 << 48), bounds.transfer_ns);
            }
            for (_, end, which) in self.windows_awaited().filter(|(of, ..)| *of == number) {
                push(end, "a request of a window", which, bounds.window_ns);
            }
        }
        self.watch.look(self.fabric.now().to_ns(), awaited)
    }
}

#[cfg(test)]
mod tests {
    use super::{Awaited, Watch};

    #[test]
    fn what_is_late_is_named_with_its_bound_and_what_it_took() {
        let one = Awaited {
            line: 2,
            end: 1,
            what: "a request",
            which: 7,
            bound_ns: 5_000_000,
        };
        let mut watch = Watch::default();
        for now_ns in [1_000, 3_000_000, 5_001_000] {
            assert_eq!(watch.look(now_ns, vec![one]), Ok(()), "{now_ns}");
        }
        // The next has its own time, and so has one that is awaited again.
        let next = Awaited { which: 8, ..one };
        assert_eq!(watch.look(6_000_000, vec![next]), Ok(()));
        assert_eq!(watch.look(6_500_000, vec![]), Ok(()));
        assert_eq!(watch.look(7_000_000, vec![next]), Ok(()));
        assert_eq!(watch.look(12_000_000, vec![next]), Ok(()));
        let late = watch.look(12_500_000, vec![next]).unwrap_err();
        assert_eq!(late.oracle, "liveness");
        let told = "line 2 end 1: a request takes 5.500 ms so far, and has 5.000 ms";
        assert_eq!(late.detail, told);
    }
}
