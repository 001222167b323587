//! Rows of the registration cache: a use of a registration that is kept, and one that has to be made, under callgrind.

use anyhow::Result;

use super::measurement::{Bench, Findings};
use super::native;

/// Uses of two runs.
const USES: [u32; 2] = [200, 600];

/// Instructions of a use.
///
/// # Errors
///
/// The program does not build or run, or callgrind is not there.
pub(super) fn measure(bench: &Bench<'_>) -> Result<Findings> {
    let program = ("registration_hits", "uses of a registration cache");
    let note = "instructions of the provider and of the kernel are out";
    native::ways(bench, program, &["kept", "missed"], USES, note)
}
