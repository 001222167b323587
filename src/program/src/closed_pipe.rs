//! The end of a program that prints and is not read any more, as by `head`: it is quiet, and as if SIGPIPE had ended it, which
//! Rust's programs ignore. The other programs of this repository take this file, too.

use std::io::{self, Write as _};
use std::panic;

/// What a shell says of a program that SIGPIPE ended.
pub(crate) const ENDED: u8 = 128 + 13;

/// How what `print!` and its like panic with begins, and how where the reader is gone.
const UNPRINTED: &str = "failed printing to std";
const CLOSED: &str = "(os error 32)";

/// From now on the program ends where something cannot be printed, by `exit` and without a panic's words: with [`ENDED`]
/// where nobody reads it, else with the reason on standard error.
pub(crate) fn heed(exit: fn(i32) -> !) {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        let said = panic.payload().downcast_ref::<String>();
        let Some(said) = said.filter(|said| said.starts_with(UNPRINTED)) else {
            return usual(panic);
        };
        if said.ends_with(CLOSED) {
            exit(ENDED.into());
        }
        // Where that is what fails there is nobody to tell.
        let _ = writeln!(io::stderr(), "{said}");
        exit(1);
    }));
}
