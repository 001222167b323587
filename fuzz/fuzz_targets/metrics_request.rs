//! Any bytes as what a scraper asks of the metrics server.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| doorbell_fuzz::metrics_request(bytes));
