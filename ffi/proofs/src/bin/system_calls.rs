//! Proves that the data path makes no system call: it runs under a filter that kills the process
//! for any but writing the verdict and exiting.
//!
//! `--plant` calls `sched_yield` half way, which must kill it.

use core::error::Error;

use doorbell_proofs::{Pair, Traffic, allow_only_verdict, arguments};

/// What is written in the end, and nothing else can be.
static VERDICT: &[u8] = b"no system call\n";

/// Requests before the filter: what is looked up once is found by then.
const WARM_UP: u64 = 1000;

fn main() -> Result<(), Box<dyn Error>> {
    let told = arguments()?;
    let mut pair = Pair::connect()?;
    let rings = pair.rings()?;
    let mut traffic = Traffic::new(pair, rings);
    traffic.run(WARM_UP)?;
    let half = told.requests.div_ceil(2);
    allow_only_verdict(VERDICT)?;
    let flowed = traffic.run(half).and_then(|()| {
        if told.plant {
            // SAFETY: takes nothing (sched_yield(2)).
            unsafe { libc::sched_yield() };
        }
        traffic.run(half)
    });
    if flowed.is_ok() {
        // SAFETY: readable bytes, and as many as are said (write(2)).
        unsafe { libc::write(libc::STDOUT_FILENO, VERDICT.as_ptr().cast(), VERDICT.len()) };
    }
    // Nothing may be dropped or flushed any more.
    // SAFETY: ends the process (_exit(2)).
    unsafe { libc::_exit(i32::from(flowed.is_err())) }
}
