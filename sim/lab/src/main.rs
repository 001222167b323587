//! The binary of [`doorbell_lab`], and nothing else.

use std::process::ExitCode;

fn main() -> ExitCode {
    doorbell_lab::main()
}
