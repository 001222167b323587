//! Copies of 64 MiB out of a window and into one, beside `memcpy` between two buffers: the ratio of the rates.
//!
//! The window is `ffi`'s, on the fake libibverbs. Rounds alternate, and the median of each decides, so that a busy machine
//! slows all of them. Fails where a ratio is below the goal.
//!
//! ```text
//! cargo bench -p doorbell-proofs --bench windows
//! ```

use core::error::Error;
use core::time::Duration;
use std::process::ExitCode;
use std::time::Instant;

use doorbell::provider::Window as _;
use doorbell::{RemoteAccess, WindowConfig};
use doorbell_proofs::Pair;

const BYTES: usize = 64 << 20;
const ROUNDS: usize = 21;

/// The least rate of a copy, as a part of `memcpy`'s.
const GOAL: f64 = 0.8;

fn main() -> ExitCode {
    match measure() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn measure() -> Result<bool, Box<dyn Error>> {
    let pair = Pair::connect()?;
    let window = pair
        .a
        .worker
        .window(&WindowConfig::new(BYTES, RemoteAccess::ALL))?;
    let source = vec![7_u8; BYTES];
    let mut destination = vec![1_u8; BYTES];
    window.copy_in(0, &source)?;
    let mut spans = [const { Vec::new() }; 3];
    for _ in 0..ROUNDS {
        let [plain, out, into] = &mut spans;
        let since = Instant::now();
        destination.copy_from_slice(core::hint::black_box(&source));
        plain.push(since.elapsed());
        core::hint::black_box(&mut destination);
        let since = Instant::now();
        window.copy_out(0, &mut destination)?;
        out.push(since.elapsed());
        let since = Instant::now();
        window.copy_in(0, &source)?;
        into.push(since.elapsed());
    }
    let [plain, out, into] = spans.map(median);
    let ratios = [out, into].map(|span| plain.as_secs_f64() / span.as_secs_f64());
    let [out_ratio, in_ratio] = ratios;
    println!("64 MiB by memcpy: {:.2} ms", millis(plain));
    println!(
        "copied out: {:.2} ms, {out_ratio:.2} of memcpy's rate",
        millis(out)
    );
    println!(
        "copied in: {:.2} ms, {in_ratio:.2} of memcpy's rate",
        millis(into)
    );
    let is_met = ratios.iter().all(|ratio| *ratio >= GOAL);
    println!(
        "goal: at least {GOAL} each: {}",
        if is_met { "met" } else { "missed" }
    );
    Ok(is_met)
}

fn millis(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}

fn median(mut spans: Vec<Duration>) -> Duration {
    spans.sort_unstable();
    spans.get(spans.len() / 2).copied().unwrap_or_default()
}
