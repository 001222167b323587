//! Load: for a while every end of every line sends as much as is taken, in all ways there are, and hosts poll as often as they do.

use core::time::Duration;

use crate::case::What;
use crate::failure::Verdict;
use crate::run::Run;

/// The fabric is looked at after so many rounds.
const AUDITED_EVERY: u64 = 32;

impl Run<'_> {
    /// Loads all lines for so long, so often, with messages of so many bytes.
    pub(crate) fn load(&mut self, ns: u64, every_ns: u64, bytes: u16) -> Verdict {
        let until_ns = self.fabric.now().to_ns().saturating_add(ns);
        let mut round = 0_u64;
        while self.fabric.now().to_ns() < until_ns {
            for line in 0..self.lines.len() {
                for end in 0..2 {
                    let what = self.loaded_with(line, round + (line + end) as u64, bytes);
                    self.act(line, end, what)?;
                }
            }
            self.fabric.run_for(Duration::from_nanos(every_ns.max(1000)));
            for host in 0..self.stations.len() {
                // Some are slower than others.
                let polls_every = [1, 1, 3, 8][host % 4];
                if round % polls_every == 0 {
                    self.poll(host)?;
                }
            }
            if round % AUDITED_EVERY == 0 {
                self.audit()?;
            }
            round += 1;
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
