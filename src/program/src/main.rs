//! The binary of [`doorbell_program`].

use std::process::ExitCode;

fn main() -> ExitCode {
    doorbell_program::main()
}
