//! Requests of a scraper: the file of the library itself.
#![expect(dead_code, reason = "who is too slow is for the server to tell")]

#[path = "../../src/operation/src/metrics/hostile.rs"]
pub(crate) mod hostile;
#[path = "../../src/operation/src/metrics/request.rs"]
mod request;
