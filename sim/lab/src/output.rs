//! Standard output, and the end of the lab when nobody reads it any more.

use std::io::{self, ErrorKind, Write as _};

use anyhow::{Context as _, Result};

use crate::{closed_pipe, leash};

/// From now on the lab ends quietly, with everything it holds, when something is printed that nobody reads.
pub(crate) fn heed() {
    closed_pipe::heed(leash::exit);
}

/// Writes what is not text of ours; ends the lab where nobody reads it.
///
/// # Errors
///
/// It cannot be written for another reason.
pub(crate) fn write(bytes: &[u8]) -> Result<()> {
    let mut out = io::stdout().lock();
    let written = out.write_all(bytes).and_then(|()| out.flush());
    if is_unread(&written) {
        leash::exit(closed_pipe::ENDED.into());
    }
    written.context("cannot write to standard output")
}

/// Whether something was not written for want of a reader.
pub(crate) fn is_unread(written: &io::Result<()>) -> bool {
    written
        .as_ref()
        .is_err_and(|error| error.kind() == ErrorKind::BrokenPipe)
}
