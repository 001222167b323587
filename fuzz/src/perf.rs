//! Requests and messages of the two sides of a measurement: the file of the program itself.
#![expect(dead_code, reason = "the program uses more of it")]

#[path = "../../src/bin/doorbell/perf/arguments.rs"]
mod arguments;
#[path = "../../src/bin/doorbell/perf/error.rs"]
mod error;
#[path = "../../src/bin/doorbell/perf/hostile.rs"]
pub(crate) mod hostile;
#[path = "../../src/bin/doorbell/perf/message.rs"]
mod message;
#[path = "../../src/bin/doorbell/perf/metering.rs"]
mod metering;
#[path = "../../src/bin/doorbell/perf/pattern.rs"]
mod pattern;
#[path = "../../src/bin/doorbell/perf/terms.rs"]
mod terms;
#[path = "../../src/bin/doorbell/perf/test.rs"]
mod test;

pub(crate) use arguments::{BwArguments, LatArguments};
pub(crate) use error::PerfError;
pub(crate) use message::{Message, Setup};
pub(crate) use terms::Terms;
pub(crate) use test::Test;
