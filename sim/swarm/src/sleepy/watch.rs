//! The results that sleeping hosts have to reach, each with its own time bound.

use super::{LOOKS_EVERY_NS, SleepRun};
use crate::awaited::Awaited;
use crate::failure::{Failure, Verdict};

/// Nothing that is awaited without a completion is looked for less often (`Sleep::at_most`).
const NAP_NS: u64 = 1_000_000;

/// A channel that is lost is gone some 10 ms behind what told that, and all its requests (`ChannelConfig::close_when_lost`).
const FORGOTTEN_NS: u64 = 40_000_000;

/// Time for flushing, if no completion reports its end (`Worker::close`).
const FLUSHED_NS: u64 = 500_000_000;

/// Slack of a bound. The work of hosts itself takes no time.
const SLACK_NS: u64 = 20_000;

impl SleepRun<'_> {
    /// Looks whether anything is late.
    pub(super) fn look(&mut self) -> Verdict {
        let mut awaited = Vec::new();
        for line in 0..self.lines.len() {
            self.awaited_of(line, &mut awaited);
        }
        let looked = self.watch.look(self.fabric.now().to_ns(), awaited);
        looked.map_err(|late| Failure {
            detail: format!("{}: {}", late.detail, self.describe()),
            ..late
        })
    }

    fn awaited_of(&self, line: usize, awaited: &mut Vec<Awaited>) {
        let mut push = |end: usize, what, which: u64, bound_ns| {
            awaited.push(Awaited {
                line,
                end,
                what,
                which,
                bound_ns,
            });
        };
        let bounds = self.bounds[line];
        let ends = &self.lines[line];
        let is_apart = |end: usize| self.sleepers[self.host(line, end)].body.threads() == 2;
        for (end, at) in ends.iter().enumerate() {
            if at.is_gone {
                continue;
            }
            if at.is_closing {
                push(end, "closing", 0, bounds.close_ns + FORGOTTEN_NS);
                continue;
            }
            // A closing is for a whole Worker.
            if at.is_told.contains(&true) && !is_apart(end) {
                let has_untold = self.case.lines[line].unsignaled_max > 0;
                let flushed_ns = if has_untold { FLUSHED_NS } else { 0 };
                let bound_ns = FORGOTTEN_NS + bounds.request_ns + flushed_ns;
                push(end, "being forgotten", 0, bound_ns);
                continue;
            }
            let is_peer_gone = ends[1 - end].is_gone;
            if is_peer_gone && !is_apart(end) {
                push(end, "the report of its end", 0, bounds.report_ns);
                let is_idle = !at
                    .flows
                    .iter()
                    .any(|flow| flow.awaits() || !flow.wanted.is_empty());
                let silence_ns = self.silences_ns[line][end].filter(|_| is_idle && !self.excuses.may_fail());
                if let Some(silence_ns) = silence_ns {
                    push(end, "giving up a silent peer", 0, silence_ns);
                }
            }
        }
        if ends.iter().any(super::End::is_ending) || self.excuses.may_fail() {
            return;
        }
        let path_ns = 2 * self.case.latency_ns + self.wire_ns();
        for (end, at) in ends.iter().enumerate() {
            let receiver = &self.sleepers[self.host(line, 1 - end)];
            let flows = &at.flows;
            for (stream, flow) in flows.iter().enumerate() {
                let prompt = flow.sent.get(flow.came + flow.lost).filter(|sent| sent.is_prompt);
                if prompt.is_some() && flow.wanted.is_empty() {
                    let which = (stream as u64) << 32 | flow.came as u64;
                    // The half that sends looks for what is submitted, too.
                    push(end, "a message that wakes", which, path_ns + SLACK_NS);
                }
            }
            // Messages that are not submitted yet may wait for memory that is on its way to others.
            let is_waiting = |flow: &super::Flow| flow.came + flow.lost < flow.sent.len();
            // Memory that the application keeps, its peer may lack for ever.
            let has_memory = self.sleepers.iter().all(|sleeper| sleeper.held.is_empty());
            if flows.iter().any(is_waiting) && has_memory && receiver.hold == 0 {
                let came: usize = flows.iter().map(|flow| flow.came + flow.lost).sum();
                let looks_ns = if self.sleepy.is_solicited {
                    2 * LOOKS_EVERY_NS
                } else {
                    0
                };
                // It waits for credits that wait for memory that waits for a request of another end.
                let bound_ns = 40 * (NAP_NS + path_ns) + looks_ns;
                push(end, "progress", came as u64, bound_ns);
            }
        }
    }

    /// All that may be on its way, one behind the other through one port.
    fn wire_ns(&self) -> u64 {
        let slots = self.case.hosts.iter().map(|host| u64::from(host.slot_bytes));
        let longest = slots.fold(0, u64::max);
        let requests: u64 = self
            .case
            .lines
            .iter()
            .map(|line| 2 * u64::from(line.send_depth))
            .sum();
        1_000 * 8 * 2 * longest * requests / u64::from(self.case.bandwidth_mbps.max(1))
    }
}
