//! Rows of the cost of transfers: either side of one, polled under callgrind.

use anyhow::Result;

use super::native;
use super::record::Measured;
use super::sources::{Bench, Findings};
use crate::programs;
use crate::setup;
use crate::steps::step;

/// MiB of two transfers.
const MIB: [u32; 2] = [16, 48];

/// Instructions of a MiB, at the side that gives and at the side that takes.
///
/// # Errors
///
/// The program does not build or run, or callgrind is not there.
pub(super) fn measure(bench: &Bench<'_>) -> Result<Findings> {
    setup::install_missing(|need| need.file == "valgrind")?;
    let folder = bench.folder("transfer")?;
    let (program, library) = step("building the program that moves bytes by a transfer", || {
        let program = programs::build_example("transfer_instructions")?;
        Ok((program, programs::build_library("doorbell_fake")?))
    })?;
    let mut findings = Findings::default();
    for side in ["giver", "taker"] {
        let ours = step(format!("counting a transfer, the {side}"), || {
            native::of_one_more(MIB, |mib| {
                let out = folder.join(format!("{side}.{mib}"));
                let arguments = [side, &mib.to_string()];
                native::without_provider(&program, &arguments, &library, &out)
            })
        })?;
        let measured = Measured {
            note: Some("the provider's own instructions are out; polls that find little are in".to_owned()),
            ..Measured::of(ours)
        };
        findings.add(side, measured);
    }
    Ok(findings)
}
