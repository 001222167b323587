//! Exits quietly if the output is no longer read, as with `head`. The exit code is as if by SIGPIPE, which Rust programs
//! ignore. Other programs of this repository include this file, too.

use std::io::{self, Write as _};
use std::panic;

/// The exit code that a shell reports for a program that SIGPIPE ended.
pub(crate) const ENDED: u8 = 128 + 13;

/// The beginning of the panic message of `print!` and similar macros, and its end if the reader is gone.
const UNPRINTED: &str = "failed printing to std";
const CLOSED: &str = "(os error 32)";

/// Makes a failed `print!` end the program by `exit`, without a panic message. The code is [`ENDED`] if the reader is gone.
/// Otherwise it is 1, and the reason goes to standard error.
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
        // If standard error fails too, there is no place left to report it.
        let _ = writeln!(io::stderr(), "{said}");
        exit(1);
    }));
}
