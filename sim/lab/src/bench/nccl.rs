//! Rows of the plugin for NCCL: calls that move a message of 8 bytes, under callgrind.

use anyhow::Result;

use super::measurement::{Bench, Findings};
use super::native;
use super::record::Measured;
use crate::programs;
use crate::setup;
use crate::steps::step;

/// Calls to measure, by their names in the program and in the rows.
const CALLS: [(&str, &str); 3] = [("isend", "isend"), ("irecv", "irecv"), ("test-receive", "test")];

/// Bytes of a message.
const BYTES: u32 = 8;

/// Messages of two runs.
const MESSAGES: [u32; 2] = [200, 600];

/// Instructions of one call, with the link's own.
///
/// # Errors
///
/// The program does not build or run, or callgrind is not there.
pub(super) fn measure(bench: &Bench<'_>) -> Result<Findings> {
    setup::install_missing(|need| need.file == "valgrind")?;
    let folder = bench.folder("nccl")?;
    let (program, library) = step("building the program that calls the plugin for NCCL", || {
        let program = programs::build_nccl_example("nccl_instructions")?;
        Ok((program, programs::build_library("doorbell_fake")?))
    })?;
    let mut findings = Findings::default();
    for (call, figure) in CALLS {
        let ours = step(format!("counting {call} of the plugin for NCCL"), || {
            native::of_one_more(MESSAGES, |messages| {
                let out = folder.join(format!("{call}.{messages}"));
                let arguments = [call, &BYTES.to_string(), &messages.to_string()];
                native::of_program(&program, &arguments, &library, &out)
            })
        })?;
        let measured = Measured {
            note: Some("no poll is in; some 35 are the program's that calls".to_owned()),
            ..Measured::of(ours)
        };
        findings.add(figure, measured);
    }
    Ok(findings)
}
