//! How a report reaches whoever asked: text for people, or one JSON document.

use serde::Serialize;

/// What every command ends with when it cannot go on.
pub(crate) type Failure = Box<dyn core::error::Error>;

/// Prints `report` as JSON, or `text` of it.
pub(crate) fn print<R: Serialize>(
    report: &R,
    json: bool,
    text: impl FnOnce(&R) -> String,
) -> Result<(), Failure> {
    if json {
        println!("{}", serde_json::to_string_pretty(report)?);
    } else {
        print!("{}", text(report));
    }
    Ok(())
}
