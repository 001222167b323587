//! Rows of the cost of a message through a node daemon: both processes and the router in one program, under callgrind.

use anyhow::{Result, ensure};

use super::measurement::{Bench, Findings};
use super::native;
use super::record::Measured;
use crate::programs;
use crate::setup;
use crate::steps::step;

/// Parts of a message's way.
const PARTS: [&str; 3] = ["send", "route", "receive"];

/// Messages at a time: the first number is what counts.
const BATCHES: [u32; 2] = [16, 1];

/// Idle endpoints beside, in one more run.
const IDLE: u32 = 64;

/// Rounds of a run.
const ROUNDS: u32 = 256;

/// Instructions of one message in each part of its way.
///
/// # Errors
///
/// The program does not build or run, or callgrind is not there.
pub(super) fn measure(bench: &Bench<'_>) -> Result<Findings> {
    setup::install_missing(|need| need.file == "valgrind")?;
    let folder = bench.folder("daemon")?;
    let program = step("building the program that sends through a router", || {
        programs::build_example("daemon_instructions")
    })?;
    let mut findings = Findings::default();
    for part in PARTS {
        let counted = step(format!("counting messages through a daemon, {part}"), || {
            let count = |batch: u32, idle: u32| -> Result<f64> {
                let out = folder.join(format!("{part}.{batch}.{idle}"));
                let arguments = [batch, ROUNDS, idle].map(|number| number.to_string());
                let arguments = arguments.each_ref().map(String::as_str);
                let toggle = format!("*::measured_{part}");
                let profile = native::profile(&program, &arguments, &toggle, None, &out)?;
                ensure!(profile.total() > 0, "nothing was counted of {part}");
                Ok(profile.total() as f64 / f64::from(ROUNDS) / f64::from(batch))
            };
            let [many, one] = BATCHES;
            Ok([count(many, 0)?, count(one, 0)?, count(many, IDLE)?])
        })?;
        findings.add(part, of(counted));
    }
    Ok(findings)
}

/// The figure of a row, from the counts in batches, alone, and in batches beside idle endpoints.
fn of([many, alone, beside]: [f64; 3]) -> Measured {
    Measured {
        note: Some(format!(
            "alone {alone:.1}; beside {IDLE} idle endpoints {beside:.1}"
        )),
        ..Measured::of(many)
    }
}

#[cfg(test)]
mod tests {
    use super::of;

    #[test]
    fn the_count_in_batches_is_the_figure() {
        let measured = of([70.0, 140.0, 71.0]);
        assert_eq!(measured.ours, 70.0);
        let note = measured.note.unwrap_or_default();
        assert_eq!(note, "alone 140.0; beside 64 idle endpoints 71.0");
    }
}
