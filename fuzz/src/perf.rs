//! Requests and messages of the two sides of a measurement: the file of the program itself.
#![expect(dead_code, reason = "the program uses more of it")]

#[path = "../../src/program/src/perf/arguments.rs"]
mod arguments;
#[path = "../../src/program/src/perf/error.rs"]
mod error;
#[path = "../../src/program/src/perf/hostile.rs"]
pub(crate) mod hostile;
#[path = "../../src/program/src/perf/message.rs"]
mod message;
#[path = "../../src/program/src/perf/metering.rs"]
mod metering;
#[path = "../../src/program/src/perf/pattern.rs"]
mod pattern;
#[path = "../../src/program/src/perf/terms.rs"]
mod terms;
#[path = "../../src/program/src/perf/test.rs"]
mod test;

pub(crate) use arguments::{BwArguments, LatArguments};
pub(crate) use error::PerfError;
pub(crate) use message::{Message, Setup};
pub(crate) use terms::Terms;
pub(crate) use test::Test;
