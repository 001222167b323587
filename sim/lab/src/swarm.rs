//! `cargo lab swarm` and `cargo lab replay`: the program of `sim/swarm`, built with optimisation and run.

use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};

use crate::programs;

/// Arguments that are that program's.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PassedOn {
    /// As its own help says
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    arguments: Vec<String>,
}

/// Runs the program and returns its exit code.
///
/// # Errors
///
/// It cannot be built or started.
pub(crate) fn run(what: &str, args: &PassedOn) -> Result<ExitCode> {
    let workspace = programs::workspace()?;
    let status = Command::new(programs::program())
        .args([
            "run",
            "--quiet",
            "--profile",
            "lab",
            "--package",
            "doorbell-swarm",
            "--manifest-path",
        ])
        .arg(workspace.join("Cargo.toml"))
        .args(["--", what])
        .args(&args.arguments)
        .status()
        .context("cannot run cargo")?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}
