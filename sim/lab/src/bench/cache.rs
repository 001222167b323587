//! Rows of the registration cache: a use of a registration that is kept, and one that has to be made, under callgrind.

use anyhow::Result;

use super::native;
use super::record::Measured;
use super::sources::{Bench, Findings};
use crate::programs;
use crate::setup;
use crate::steps::step;

/// Uses of two runs.
const USES: [u32; 2] = [200, 600];

/// Instructions of a use.
///
/// # Errors
///
/// The program does not build or run, or callgrind is not there.
pub(super) fn measure(bench: &Bench<'_>) -> Result<Findings> {
    setup::install_missing(|need| need.file == "valgrind")?;
    let folder = bench.folder("cache")?;
    let (program, library) = step("building the program that uses a registration cache", || {
        let program = programs::build_example("registration_hits")?;
        Ok((program, programs::build_library("doorbell_fake")?))
    })?;
    let mut findings = Findings::default();
    for how in ["kept", "missed"] {
        let ours = step(format!("counting uses of a registration cache, {how}"), || {
            native::of_one_more(USES, |uses| {
                let out = folder.join(format!("{how}.{uses}"));
                let arguments = [how, &uses.to_string()];
                native::without_provider(&program, &arguments, &library, &out)
            })
        })?;
        let measured = Measured {
            note: Some("instructions of the provider and of the kernel are out".to_owned()),
            ..Measured::of(ours)
        };
        findings.add(how, measured);
    }
    Ok(findings)
}
