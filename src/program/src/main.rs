//! The binary of [`doorbell_program`], and nothing else.

use std::process::ExitCode;

fn main() -> ExitCode {
    doorbell_program::main()
}
