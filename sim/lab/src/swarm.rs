//! `cargo lab swarm` and `cargo lab replay`: the program of `sim/swarm`, built with optimisation and run.

use core::convert::Infallible;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::programs;

/// Arguments that are that program's.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PassedOn {
    /// As its own help says
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    arguments: Vec<String>,
}

/// Runs the program in the place of the lab. So a signal that ends the lab ends the program.
///
/// # Errors
///
/// It cannot be built or started.
pub(crate) fn run(what: &str, args: &PassedOn) -> Result<Infallible> {
    let workspace = programs::workspace()?;
    let error = Command::new(programs::program())
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
        .exec();
    Err(error).context("cannot run cargo")
}
