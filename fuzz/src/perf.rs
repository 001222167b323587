//! What the program's two sides of a measurement say to each other: of the program itself.
#![expect(dead_code, reason = "the program uses more of it")]

#[path = "../../src/bin/doorbell/perf/hostile.rs"]
pub(crate) mod hostile;
#[path = "../../src/bin/doorbell/perf/message.rs"]
mod message;
#[path = "../../src/bin/doorbell/perf/pattern.rs"]
mod pattern;
#[path = "../../src/bin/doorbell/perf/test.rs"]
mod test;
