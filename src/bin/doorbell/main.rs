//! The `doorbell` program: what RDMA devices there are, and how well they move bytes.

use std::ffi::OsStr;
use std::process::ExitCode;

use clap::{ArgMatches, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

mod address;
mod board;
mod changes;
mod closed_pipe;
mod columns;
mod config;
mod configured;
mod demo;
mod devices;
mod handle_file;
#[cfg(test)]
mod hostile;
mod keygen;
mod link;
mod log;
mod manual;
mod mesh;
mod opened;
mod peers;
mod perf;
mod pingpong;
mod port_counts;
#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;
mod report;
mod simulated;
mod status;
mod topo;
mod value;

/// RDMA from the command line: devices, rails, latency, bandwidth, interoperation.
///
/// Measurements need two processes: one listens, the other names it. Every payload byte is
/// checked on arrival, outside the timed section. With --simulated both ends are in one process,
/// and no device is needed. All reports come as text, or with --json as one JSON document on
/// standard output, failures too (docs/json.md).
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
    Keygen(keygen::Arguments),
    Completions(manual::CompletionsArguments),
    Man(manual::ManArguments),
}

fn main() -> ExitCode {
    closed_pipe::heed(std::process::exit);
    let matches = match Arguments::command().try_get_matches() {
        Ok(matches) => matches,
        Err(error) => return not_parsed(&error),
    };
    let (name, wants_json) = asked(&matches);
    let command = match Arguments::from_arg_matches(&matches) {
        Ok(Arguments { command }) => command,
        Err(error) => return not_parsed(&error),
    };
    let Err(error) = run(command) else {
        return ExitCode::SUCCESS;
    };
    if !error.is::<report::Reported>() {
        if wants_json {
            report::print_error(name, &error.to_string());
        } else {
            eprintln!("doorbell: {error}");
        }
    }
    ExitCode::FAILURE
}

fn run(command: Command) -> Result<(), report::Failure> {
    match command {
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
        Command::Keygen(arguments) => keygen::run(&arguments),
        Command::Completions(arguments) => manual::completions(&arguments),
        Command::Man(arguments) => manual::man(&arguments),
    }
}

/// The name of the command, and whether its report is to be JSON.
fn asked(matches: &ArgMatches) -> (&str, bool) {
    matches
        .subcommand()
        .map_or(("doorbell", false), |(name, matches)| {
            let json = matches.try_get_one::<bool>("json").ok().flatten();
            (name, json.copied().unwrap_or(false))
        })
}

/// Says why the command line is none, as JSON where it asks for that.
fn not_parsed(error: &clap::Error) -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    let name = words.next().filter(|_| error.use_stderr());
    if words.any(|word| word == OsStr::new("--json")) {
        if let Some(name) = name.as_deref().and_then(OsStr::to_str) {
            let text = error.to_string();
            let text = text.split("\n\nFor more information").next().unwrap_or_default();
            report::print_error(name, text.trim_start_matches("error: ").trim_end());
            return ExitCode::from(2);
        }
    }
    error.exit()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    /// The words of every command of `doorbell` in a document, as far as it goes on its line.
    fn named(text: &str) -> impl Iterator<Item = Vec<&str>> {
        let leads = ["\n", "`", "$ "].map(|lead| text.split(lead).skip(1));
        leads.into_iter().flatten().filter_map(|rest| {
            let rest = rest.strip_prefix("doorbell ")?;
            let end = rest.find(['`', '\'', '#', '\n']).unwrap_or(rest.len());
            let command = rest[..end].split("  ").next()?;
            Some(command.split_whitespace().collect())
        })
    }

    /// With the options they are named with.
    #[test]
    fn the_commands_the_documents_name_exist() {
        let cli = super::Arguments::command();
        for (document, at_least) in [
            (include_str!("../../../README.md"), 11),
            (include_str!("../../../docs/operation.md"), 6),
            (include_str!("../../../docs/rails.md"), 4),
        ] {
            let commands: Vec<_> = named(document).collect();
            assert!(commands.len() >= at_least, "{commands:?}");
            for words in commands {
                let said = words.join(" ");
                let command = cli.find_subcommand(words[0]).expect(&said);
                for option in words.iter().filter_map(|word| word.strip_prefix("--")) {
                    let is_it = |known: &clap::Arg| known.get_long() == Some(option);
                    assert!(command.get_arguments().any(is_it), "{said}");
                }
            }
        }
    }

    #[test]
    fn the_command_line_is_sound() {
        super::Arguments::command().debug_assert();
    }
}
