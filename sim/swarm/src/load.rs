//! Load: for a while every end of every line sends as much as is taken, in all ways there are, and hosts poll as often as they do.

use core::time::Duration;

use crate::case::What;
use crate::failure::{Verdict, ensure};
use crate::linked::LinkedRun;
use crate::run::Run;

/// The fabric is looked at after so many rounds.
const AUDITED_EVERY: u64 = 32;

/// Messages that each end of a loaded link tries to send at a time.
const LOAD_MESSAGES: usize = 8;

/// A line starves where nothing of it comes for so many rounds.
const SHARED_WITHIN: u64 = 128;

/// The progress of one end of a line.
struct Share {
    line: usize,
    end: usize,
    /// The number of its connection.
    number: u32,
    received: usize,
    /// The submitted messages that came, and whether more are on their way.
    submitted: usize,
    is_submitting: bool,
}

/// The messages that the ends of a line send for a while.
pub(crate) struct Load {
    pub(crate) until_ns: u64,
    pub(crate) next_ns: u64,
    pub(crate) every_ns: u64,
    pub(crate) bytes: u16,
}

impl Run<'_> {
    /// Loads all lines for so long, so often, with messages of so many bytes.
    pub(crate) fn load(&mut self, ns: u64, every_ns: u64, bytes: u16) -> Verdict {
        let began_ns = self.fabric.now().to_ns();
        let until_ns = began_ns.saturating_add(ns);
        let mut round = 0_u64;
        let mut half: Option<(u64, Vec<Share>)> = None;
        while self.fabric.now().to_ns() < until_ns {
            if half.is_none() && self.fabric.now().to_ns() > began_ns + ns / 2 {
                half = Some((round, self.shares()));
            }
            for line in 0..self.lines.len() {
                for end in 0..2 {
                    let what = self.loaded_with(line, round + (line + end) as u64, bytes);
                    self.act(line, end, what)?;
                }
            }
            self.fabric.run_for(Duration::from_nanos(every_ns.max(1000)));
            for host in 0..self.stations.len() {
                // Some are slower than others.
                let polls_every = [1, 1, 3, 7][host % 4];
                if round % polls_every == 0 {
                    self.poll(host)?;
                }
            }
            if round % AUDITED_EVERY == 0 {
                self.audit()?;
            }
            round += 1;
        }
        match half {
            Some((since, before)) if round - since >= SHARED_WITHIN => self.check_shares(&before),
            _ => Ok(()),
        }
    }

    /// Returns the progress of each end of each line that is open at both ends and whose Workers have memory left.
    fn shares(&mut self) -> Vec<Share> {
        let mut shares = Vec::new();
        for line in 0..self.lines.len() {
            for end in 0..2 {
                let has_memory = (0..2).all(|end| self.has_memory(line, end));
                let is_open = self.sent(line, end).is_some();
                let connection = self.lines[line].connection.as_ref();
                if let Some(connection) = connection.filter(|_| has_memory && is_open) {
                    shares.push(Share {
                        line,
                        end,
                        number: connection.number,
                        received: connection.flows[end].came(),
                        submitted: connection.flows[end].submitted_received,
                        is_submitting: connection.flows[end].is_submitting(),
                    });
                }
            }
        }
        shares
    }

    /// Checks that something came from each end since `before`, if nothing goes wrong. No line starves for others.
    fn check_shares(&mut self, before: &[Share]) -> Verdict {
        if !self.case.plan.is_empty() || self.stations.iter().any(|station| !station.held.is_empty()) {
            return Ok(());
        }
        let after = self.shares();
        for was in before {
            let Share {
                line, end, number, ..
            } = *was;
            let is_its = |share: &&Share| (share.line, share.end, share.number) == (line, end, number);
            let Some(now) = after.iter().find(is_its) else {
                continue;
            };
            ensure(now.received > was.received, "starved", || {
                format!(
                    "line {line} end {end}: nothing came for half of a load, since message {}",
                    was.received
                )
            })?;
            // Neither the channel's own thread nor submitters starve the other.
            ensure(
                now.submitted > was.submitted || !was.is_submitting,
                "starved",
                || {
                    format!(
                        "line {line} end {end}: nothing that was submitted came for half of a load, since message {}",
                        was.submitted
                    )
                },
            )?;
        }
        Ok(())
    }

    fn loaded_with(&self, line: usize, number: u64, bytes: u16) -> What {
        let has_rings = self.case.lines[line].rings.is_some();
        match number % 8 {
            1 if has_rings => What::Ring {
                count: 3,
                bytes,
                is_copied: number % 16 == 1,
            },
            3 => What::Submit { bytes },
            5 => What::Write {
                bytes,
                is_told: number % 16 == 5,
            },
            6 => What::Read {
                bytes,
                is_fenced: number % 16 == 6,
            },
            7 => What::SendInline { bytes: bytes % 200 },
            _ => What::Send { count: 4, bytes },
        }
    }
}

impl LinkedRun<'_> {
    /// Sends what lines are loaded with; when there is more to be sent.
    pub(crate) fn send_load(&mut self) -> Verdict<u64> {
        let now_ns = self.fabric.now().to_ns();
        self.loads.retain(|(_, load)| load.until_ns > now_ns);
        let mut next_ns = u64::MAX;
        for index in 0..self.loads.len() {
            let (line, load) = &mut self.loads[index];
            let (line, bytes) = (*line, load.bytes);
            let is_due = load.next_ns <= now_ns;
            if is_due {
                load.next_ns = now_ns.saturating_add(load.every_ns);
            }
            next_ns = next_ns.min(load.next_ns);
            for end in (0..2).filter(|_| is_due) {
                for _ in 0..LOAD_MESSAGES {
                    self.send(line, end, bytes)?;
                }
            }
        }
        Ok(next_ns)
    }
}
