//! Rows of the cost of idle channels: a Worker polled under callgrind, one of its channels used.

use anyhow::{Result, ensure};

use super::measurement::{Bench, Findings};
use super::native;
use super::record::Measured;
use crate::programs;
use crate::setup;
use crate::steps::step;

/// Kinds of polls to measure.
const WHAT: [&str; 5] = ["empty", "send", "receive", "shared", "refused"];

/// Channels of the Worker: the first is what the others are held against, the last what counts.
const CHANNELS: [u32; 5] = [1, 16, 64, 256, 1024];

/// Channels for the record: a poll takes the same with any number of them, and making a thousand takes a minute here.
const OF_RECORD: [u32; 1] = [64];

/// Polls of each run: as many for any number of channels, so that single events are the same, too.
const POLLS: u32 = 256;

/// Instructions of one poll, the provider's own in, with many channels beside one.
///
/// # Errors
///
/// The program does not build or run, or callgrind is not there.
pub(super) fn measure(bench: &Bench<'_>) -> Result<Findings> {
    setup::install_missing(|need| need.file == "valgrind")?;
    let folder = bench.folder("idle")?;
    let (program, library) = step("building the program that polls many channels", || {
        let program = programs::build_example("idle_instructions")?;
        Ok((program, programs::build_library("doorbell_fake")?))
    })?;
    let channels: &[u32] = if bench.is_of_record { &OF_RECORD } else { &CHANNELS };
    let most = channels.last().copied().unwrap_or_default();
    let mut findings = Findings::default();
    for what in WHAT {
        let name = format!("counting polls, {what}, with up to {most} channels");
        let counted = step(name, || {
            let count = |channels: u32| -> Result<f64> {
                let out = folder.join(format!("{what}.{channels}"));
                let arguments = [what, &channels.to_string(), &POLLS.to_string()];
                let profile = native::profile(&program, &arguments, "*::measured_*", Some(&library), &out)?;
                ensure!(profile.total() > 0, "nothing was counted of {what}");
                Ok(profile.total() as f64 / f64::from(POLLS))
            };
            channels.iter().copied().map(count).collect::<Result<Vec<_>>>()
        })?;
        findings.add(what, of(channels, &counted));
    }
    Ok(findings)
}

/// The figure of a row: that of the most channels beside that of the fewest, and those between.
fn of(channels: &[u32], counted: &[f64]) -> Measured {
    let told: Vec<String> = channels
        .iter()
        .zip(counted)
        .map(|(channels, count)| format!("{channels}: {count:.1}"))
        .collect();
    Measured {
        theirs: counted.first().copied(),
        note: Some(format!(
            "by how many channels there are: {}; the provider's own are in",
            told.join(", ")
        )),
        ..Measured::of(counted.last().copied().unwrap_or(f64::INFINITY))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_channels_stand_beside_one() {
        let measured = of(&CHANNELS, &[10.0, 10.0, 10.5, 12.0]);
        assert_eq!((measured.ours, measured.theirs), (12.0, Some(10.0)));
        assert_eq!(measured.difference(), Some(2.0));
        let note = measured.note.unwrap_or_default();
        assert!(note.contains("1: 10.0, 16: 10.0, 64: 10.5, 256: 12.0"), "{note}");
        assert!(of(&CHANNELS, &[]).theirs.is_none());
    }
}
