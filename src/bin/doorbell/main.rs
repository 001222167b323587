//! The `doorbell` program: what RDMA devices there are, and how well they move bytes.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod address;
mod config;
mod configured;
mod demo;
mod devices;
#[cfg(test)]
mod hostile;
mod link;
mod log;
mod mesh;
mod peers;
mod perf;
mod pingpong;
#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;
mod report;
mod status;
mod topo;
mod value;

/// RDMA from the command line: devices, rails, latency, bandwidth, interoperation.
///
/// Measurements need two processes: one listens, the other names it. Every payload byte is
/// checked on arrival, outside the timed section. All reports come as text, or with --json as
/// one JSON document on standard output.
#[derive(Parser)]
#[command(name = "doorbell", version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Devices(devices::Arguments),
    Topo(topo::TopoArguments),
    Preflight(topo::PreflightArguments),
    Lat(perf::LatArguments),
    Bw(perf::BwArguments),
    Pingpong(pingpong::Arguments),
    Link(Box<link::Arguments>),
    Mesh(mesh::Arguments),
    Status(status::Arguments),
    Config(config::Arguments),
    Demo(demo::Arguments),
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Devices(arguments) => devices::run(&arguments),
        Command::Topo(arguments) => topo::topo(&arguments),
        Command::Preflight(arguments) => topo::check(&arguments),
        Command::Lat(arguments) => perf::lat(&arguments),
        Command::Bw(arguments) => perf::bw(&arguments),
        Command::Pingpong(arguments) => pingpong::run(&arguments),
        Command::Link(arguments) => link::run(&arguments),
        Command::Mesh(arguments) => mesh::run(&arguments),
        Command::Status(arguments) => status::run(&arguments),
        Command::Config(arguments) => config::run(&arguments),
        Command::Demo(arguments) => demo::run(&arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("doorbell: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_commands_the_readme_names_exist() {
        let readme = include_str!("../../../README.md");
        let command = super::Arguments::command();
        let named: Vec<_> = readme
            .lines()
            .filter_map(|line| line.strip_prefix("doorbell "))
            .collect();
        assert!(named.len() >= 5, "{named:?}");
        for line in named {
            let name = line.split_whitespace().next().unwrap_or_default();
            assert!(command.find_subcommand(name).is_some(), "doorbell {line}");
        }
    }

    #[test]
    fn the_command_line_is_sound() {
        super::Arguments::command().debug_assert();
    }
}
