//! Prints reports, as text or as one JSON document. docs/json.md lists the names of the fields.

use core::fmt;

use serde::Serialize;

/// The error that ends a command.
pub(crate) type Failure = Box<dyn core::error::Error>;

/// A failure that the report of the command has already printed.
#[derive(Debug)]
pub(crate) struct Reported;

impl fmt::Display for Reported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the report says why")
    }
}

impl core::error::Error for Reported {}

/// The fields that every document has, before the fields of the command.
#[derive(Serialize)]
struct Document<'r, R: Serialize> {
    version: &'static str,
    command: &'r str,
    passed: bool,
    /// The reason, if it did not pass.
    error: Option<String>,
    #[serde(flatten)]
    report: R,
}

#[derive(Serialize)]
struct NoReport {}

impl<'r, R: Serialize> Document<'r, R> {
    fn new(command: &'r str, report: R, error: Option<String>) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION"),
            command,
            passed: error.is_none(),
            error,
            report,
        }
    }
}

/// Prints `report` as JSON, or as `text`.
///
/// # Errors
/// The report cannot be written as JSON.
pub(crate) fn print<R: Serialize>(
    command: &str,
    report: &R,
    json: bool,
    text: impl FnOnce(&R) -> String,
) -> Result<(), Failure> {
    if json {
        println!("{}", pretty(&Document::new(command, report, None))?);
    } else {
        print!("{}", text(report));
    }
    Ok(())
}

/// Prints the `report` of a command that may have failed. Both the text and the document have the reason.
///
/// # Errors
/// [`Reported`] if the command failed: `error` has the reason.
pub(crate) fn print_outcome<R: Serialize>(
    command: &str,
    report: &R,
    error: Option<String>,
    json: bool,
    text: impl FnOnce(&R) -> String,
) -> Result<(), Failure> {
    let has_failed = error.is_some();
    if json {
        println!("{}", pretty(&Document::new(command, report, error))?);
    } else {
        print!("{}", text(report));
    }
    if has_failed { Err(Reported.into()) } else { Ok(()) }
}

/// Prints `report` as a one-line document, for a command that prints several.
///
/// # Errors
/// The report cannot be written as JSON.
pub(crate) fn print_line<R: Serialize>(command: &str, report: &R) -> Result<(), Failure> {
    let document = Document::new(command, report, None);
    println!("{}", serde_json::to_string(&document)?);
    Ok(())
}

/// Prints the document of a command that failed before it had a report.
pub(crate) fn print_error(command: &str, error: &str) {
    let document = Document::new(command, NoReport {}, Some(error.to_owned()));
    // Serializing text fields cannot fail.
    if let Ok(document) = pretty(&document) {
        println!("{document}");
    }
}

fn pretty<R: Serialize>(document: &Document<'_, R>) -> serde_json::Result<String> {
    serde_json::to_string_pretty(document)
}
