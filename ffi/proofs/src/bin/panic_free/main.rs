//! Proves that the hot functions cannot panic: with the feature `panic_free`, in an optimised build,
//! the linker finds no name for what would be called if one did.
//!
//! Each is a function of its own, so that its name is the one in the linker's message; and each is
//! called here, so that it is really linked. With `plant_panic` one of them can panic.

mod channel;
mod halves;
mod queues;
mod rings;
mod windows;
mod words;

use core::error::Error;
use core::hint::black_box;

use doorbell_proofs::{Bare, Pair};

fn main() -> Result<(), Box<dyn Error>> {
    // It settles on the fake, for both.
    let mut pair = Pair::connect()?;
    let mut through = pair.rings()?;
    let done = [
        channel::run(&mut pair, &mut through),
        queues::run(&mut Bare::new(queues::DEPTH)?),
        rings::run(),
        words::run(),
        windows::run(&mut pair.b.window),
        halves::run(pair),
        black_box(planted(&[7], black_box(0))) == 7,
    ];
    if done.contains(&false) {
        return Err(format!("ran, but not as it should: {done:?}").into());
    }
    println!("ran, and cannot panic");
    Ok(())
}

/// What the proof would not be one without: it fails where this can panic.
#[cfg_attr(feature = "panic_free", no_panic::no_panic)]
#[inline(never)]
fn planted(bytes: &[u8], at: usize) -> u8 {
    #[cfg(feature = "plant_panic")]
    #[expect(clippy::indexing_slicing, reason = "it is to panic")]
    return bytes[at];
    #[cfg(not(feature = "plant_panic"))]
    bytes.get(at).copied().unwrap_or(0)
}
