//! Rows of the cost of idle links: a poll of all links of a thread's Workers under callgrind, with nothing to do.

use anyhow::Result;

use super::measurement::{Bench, Findings};
use super::native;
use super::record::Measured;
use crate::programs;
use crate::setup;
use crate::steps::step;

/// Sides to measure.
const SIDES: [&str; 2] = ["connecting", "listening"];

/// Links: the first number is what counts, and from the last one follows the cost of a further link.
const FEW: u32 = 2;
const MORE: u32 = 8;

/// Polls of each run.
const POLLS: u32 = 256;

/// Instructions of one poll of idle links, at the side that connects and at the side that accepts.
///
/// # Errors
///
/// The program does not build or run, or callgrind is not there.
pub(super) fn measure(bench: &Bench<'_>) -> Result<Findings> {
    setup::install_missing(|need| need.file == "valgrind")?;
    let folder = bench.folder("links")?;
    let (program, library) = step("building the program that polls idle links", || {
        let program = programs::build_example("links_instructions")?;
        Ok((program, programs::build_library("doorbell_fake")?))
    })?;
    let mut findings = Findings::default();
    for side in SIDES {
        let (few, more) = step(format!("counting polls of idle links, {side}"), || {
            let count = |links: u32| -> Result<f64> {
                let out = folder.join(format!("{side}.{links}"));
                let arguments = [side, &links.to_string(), &POLLS.to_string()];
                let ours = native::without_provider(&program, &arguments, &library, &out)?;
                Ok(ours as f64 / f64::from(POLLS))
            };
            Ok((count(FEW)?, count(MORE)?))
        })?;
        findings.add(side, of(few, more));
    }
    Ok(findings)
}

/// The figure of a row, from the counts with few links and with more.
fn of(few: f64, more: f64) -> Measured {
    let each = (more - few) / f64::from(MORE.saturating_sub(FEW));
    Measured {
        note: Some(format!(
            "a further link takes {each:.1}; the provider's own instructions are out"
        )),
        ..Measured::of(few)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_further_link_takes_its_share_of_the_difference() {
        let measured = of(300.0, 312.0);
        assert_eq!(measured.ours, 300.0);
        let note = measured.note.unwrap_or_default();
        assert!(note.contains("a further link takes 2.0;"), "{note}");
    }
}
