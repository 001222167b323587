//! Proves that the hot functions cannot panic: with the feature `panic_free`, in an optimised build,
//! the linker finds no name for what would be called if one did.
//!
//! Each is a function of its own, so that its name is the one in the linker's message; and each is
//! called here, so that it is really linked.

mod channel;
mod halves;
mod queues;
mod rings;
mod windows;
mod words;

use core::error::Error;
use core::mem::ManuallyDrop;

use doorbell_proofs::{Bare, Pair};

fn main() -> Result<(), Box<dyn Error>> {
    // It settles on the fake, for both. Nothing is dropped here: destruction would be in line, too.
    let mut pair = ManuallyDrop::new(Pair::connect()?);
    let mut through = ManuallyDrop::new(pair.rings()?);
    let mut bare = ManuallyDrop::new(Bare::new(queues::DEPTH)?);
    let done = [
        channel::run(&mut pair, &mut through),
        queues::run(&mut bare),
        rings::run(),
        words::run(),
        windows::run(&pair.b.window),
        halves::run(ManuallyDrop::into_inner(pair)),
    ];
    if done.contains(&false) {
        return Err(format!("ran, but not as it should: {done:?}").into());
    }
    println!("ran, and cannot panic");
    Ok(())
}
