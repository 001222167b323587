//! How a report reaches whoever asked: text for people, or one JSON document.

use std::io::{self, Write};

use serde::Serialize;

/// What every command ends with when it cannot go on.
pub(crate) type Failure = Box<dyn core::error::Error>;

/// Prints `report` as JSON, or `text` of it.
pub(crate) fn print<R: Serialize>(
    report: &R,
    json: bool,
    text: impl FnOnce(&R) -> String,
) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    if json {
        serde_json::to_writer_pretty(&mut out, report)?;
        writeln!(out)?;
    } else {
        write!(out, "{}", text(report))?;
    }
    out.flush()?;
    Ok(())
}
