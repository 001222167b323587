//! Rows of the cost of transfers: either side of one, polled under callgrind.

use anyhow::Result;

use super::measurement::{Bench, Findings};
use super::native;

/// MiB of two transfers.
const MIB: [u32; 2] = [16, 48];

/// Instructions of a MiB, at the side that gives and at the side that takes.
///
/// # Errors
///
/// The program does not build or run, or callgrind is not there.
pub(super) fn measure(bench: &Bench<'_>) -> Result<Findings> {
    let program = ("transfer_instructions", "a transfer");
    let note = "the provider's own instructions are out; polls are counted while bytes move";
    native::ways(bench, program, &["giver", "taker"], MIB, note)
}
