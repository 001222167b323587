//! The `doorbell` program: lists RDMA devices and ports, measures, and runs the daemons.
//!
//! This package is a program. [`main`] is its entry point, and nothing else here is an API.

use std::ffi::{OsStr, OsString};
use std::process::ExitCode;

use clap::{ArgMatches, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

mod address;
mod board;
mod broker;
mod changes;
mod closed_pipe;
mod columns;
mod config;
mod configured;
mod demo;
mod devices;
#[cfg(test)]
mod documents;
mod handle_file;
#[cfg(any(test, fuzzing))]
pub mod hostile;
mod key_file;
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
#[cfg(test)]
#[path = "../../../sim/scenarios/commands.rs"]
mod scenarios;
#[cfg(test)]
mod schema;
mod serve;
mod simulated;
mod status;
mod text_file;
mod topo;
mod unfinished;
mod value;
mod xfer;

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
    Xfer(Box<xfer::Arguments>),
    Mesh(mesh::Arguments),
    Serve(Box<serve::Arguments>),
    Broker(broker::Arguments),
    Status(status::Arguments),
    Config(config::Arguments),
    Demo(demo::Arguments),
    Keygen(keygen::Arguments),
    Completions(manual::CompletionsArguments),
    Man(manual::ManArguments),
}

/// Runs the command that the arguments of this process select.
pub fn main() -> ExitCode {
    closed_pipe::heed(std::process::exit);
    let words = json_behind_the_command(std::env::args_os().collect());
    let matches = match Arguments::command().try_get_matches_from(&words) {
        Ok(matches) => matches,
        Err(error) => return not_parsed(&words, &error),
    };
    let (name, wants_json) = report_format(&matches);
    let command = match Arguments::from_arg_matches(&matches) {
        Ok(Arguments { command }) => command,
        Err(error) => return not_parsed(&words, &error),
    };
    let ended = run(command);
    let unreported = |error: &&report::Failure| !error.is::<report::Reported>();
    if let Some(error) = ended.as_ref().err().filter(unreported) {
        if wants_json {
            report::print_error(name, &error.to_string());
        } else {
            log::write_last_line(&format!("doorbell: {error}"));
        }
    }
    log::finish();
    if ended.is_ok() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
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
        Command::Xfer(arguments) => xfer::run(&arguments),
        Command::Mesh(arguments) => mesh::run(&arguments),
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Broker(arguments) => broker::run(&arguments),
        Command::Status(arguments) => status::run(&arguments),
        Command::Config(arguments) => config::run(&arguments),
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Keygen(arguments) => keygen::run(&arguments),
        Command::Completions(arguments) => manual::completions(&arguments),
        Command::Man(arguments) => manual::man(&arguments),
    }
}

/// The name of the command, and whether its report has to be JSON.
fn report_format(matches: &ArgMatches) -> (&str, bool) {
    matches
        .subcommand()
        .map_or(("doorbell", false), |(name, matches)| {
            let json = matches.try_get_one::<bool>("json").ok().flatten();
            (name, json.copied().unwrap_or(false))
        })
}

/// Moves a `--json` before the command behind it: commands with a report accept the option there, and the others reject it.
fn json_behind_the_command(mut words: Vec<OsString>) -> Vec<OsString> {
    let is_in_front = words.get(1).is_some_and(|word| word == "--json");
    let names_command = |word: &OsString| !word.as_encoded_bytes().starts_with(b"-");
    if is_in_front && words.get(2).is_some_and(names_command) {
        words.swap(1, 2);
    }
    words
}

/// Prints why the command line is invalid, as JSON if JSON was requested.
fn not_parsed(words: &[OsString], error: &clap::Error) -> ExitCode {
    let mut words = words.iter().skip(1);
    let name = words.next().filter(|_| error.use_stderr());
    if words.any(|word| word == OsStr::new("--json")) {
        if let Some(name) = name.and_then(|name| name.to_str()) {
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
    use std::collections::BTreeMap;

    use clap::CommandFactory as _;
    use clap::error::ErrorKind;

    use crate::{documents, scenarios};

    /// Every command in README.md and in the pages of docs is valid, with its options and their values.
    #[test]
    fn the_commands_the_documents_show_are_understood() {
        let mut shown = documents::commands();
        shown.retain(|shown| shown.words[0] == "doorbell");
        assert!(shown.len() > 30, "{shown:?}");
        for documents::DocumentedCommand { document, words } in shown {
            // A word in brackets is a placeholder.
            let is_chosen = |word: &&String| !word.starts_with('[');
            let said: Vec<_> = words.iter().filter(is_chosen).collect();
            let parsed = super::Arguments::command().try_get_matches_from(&said);
            let Err(error) = parsed else { continue };
            // The name of a command may stand alone.
            let is_bare = said.len() == 2 && error.kind() == ErrorKind::MissingRequiredArgument;
            assert!(is_bare, "{document}: {words:?}: {error}");
        }
    }

    /// The commands of the unit, as systemd parses them.
    #[test]
    fn the_commands_of_the_unit_are_understood() {
        let unit = include_str!("../systemd/doorbell.service");
        let commands = unit.lines().filter_map(|line| line.strip_prefix("Exec"));
        let mut count = 0;
        for command in commands.filter_map(|line| line.split_once('=')) {
            let (name, command) = command;
            let command = command.trim_start_matches(['-', '@', ':', '+', '!']);
            let words: Vec<_> = command
                .split_whitespace()
                .filter(|word| !word.starts_with('$'))
                .collect();
            assert!(words[0].ends_with("/doorbell"), "{name}: {command}");
            let parsed = super::Arguments::command().try_get_matches_from(&words);
            assert!(parsed.is_ok(), "{name}: {command}: {}", parsed.unwrap_err());
            count += 1;
        }
        assert_eq!(count, 1);
        // Each option that the unit's comment lists for SERVE_OPTIONS.
        let said = unit
            .lines()
            .find(|line| line.contains("may have more options"))
            .unwrap();
        let serve = super::Arguments::command()
            .find_subcommand("serve")
            .unwrap()
            .clone();
        let options: Vec<_> = said
            .split([' ', ',', '.'])
            .filter_map(|word| word.strip_prefix("--"))
            .collect();
        assert!(options.len() > 2, "{said}");
        for option in options {
            let is_there = serve
                .get_arguments()
                .any(|argument| argument.get_long() == Some(option));
            assert!(is_there, "--{option}");
        }
    }

    #[test]
    fn json_may_stand_in_front_of_the_command() {
        let moved = |line: &str| {
            let words = line.split(' ').map(Into::into).collect();
            let words = super::json_behind_the_command(words);
            words.join(" ".as_ref()).into_string().unwrap()
        };
        assert_eq!(
            moved("doorbell --json lat --size 8"),
            "doorbell lat --json --size 8"
        );
        for unmoved in [
            "doorbell lat --json",
            "doorbell --json",
            "doorbell --json --help",
            "doorbell",
        ] {
            assert_eq!(moved(unmoved), unmoved);
        }
        let parse = |line: &str| super::Arguments::command().try_get_matches_from(moved(line).split(' '));
        let parsed = parse("doorbell --json devices").unwrap();
        assert_eq!(super::report_format(&parsed), ("devices", true));
        let error = parse("doorbell --json completions bash").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnknownArgument);
    }

    const DOORBELL: &str = "{bin}/doorbell";

    #[test]
    fn the_commands_of_scenarios_are_understood() {
        let (faults, commands) = scenarios::faults(DOORBELL, &super::Arguments::command());
        assert!(faults.is_empty(), "{faults:#?}");
        assert!(commands > 200, "{commands}");
    }

    #[test]
    fn a_command_of_a_scenario_that_is_none_is_found_with_its_line() {
        let scenario = r#"name = "planted"
[vars]
more = "--device rxe0 --json"

[[steps]]
command = ["{bin}/doorbell", "topo", "-s", "{out}/a.json"]

[[steps]]
command = """
# Comments count as lines.
for op in write 'send --size 8'; do
    {bin}/doorbell lat --unauthenticated {addr.a} --op $op \
        {var.more} 2>{out}/said || exit 1
done
exec taskset -c 1 {bin}/doorbell latency $(cat {out}/handle) >/dev/null &
{bin}/doorbell lat --op $unknown --sizes 8
sh -c 'until {bin}/doorbell devices --all; do sleep 1; done'
"""
"#;
        let (faults, commands) =
            scenarios::faults_of("x.toml", scenario, DOORBELL, &super::Arguments::command());
        let expected = [
            ("x.toml:6:", "'-s'"),
            ("x.toml:15:", "'latency'"),
            ("x.toml:16:", "'--sizes'"),
            ("x.toml:17:", "'--all'"),
        ];
        assert_eq!((faults.len(), commands), (expected.len(), 6), "{faults:#?}");
        for (fault, (place, word)) in faults.iter().zip(expected) {
            assert!(fault.starts_with(place) && fault.contains(word), "{fault}");
        }
    }

    /// The long names of a short option whose meaning differs between commands.
    const SHORT: &[(char, &[&str])] = &[
        ('D', &["duration", "seconds"]),
        ('F', &["cpu-freq"]),
        ('I', &["inline"]),
        ('S', &["service-level"]),
        ('a', &["all"]),
        ('c', &["check"]),
        ('d', &["device"]),
        ('e', &["events"]),
        ('h', &["help"]),
        ('i', &["ib-port"]),
        ('l', &["batch"]),
        ('m', &["mtu"]),
        ('n', &["iterations", "iters", "count", "rounds"]),
        ('p', &["port"]),
        ('q', &["qp"]),
        ('r', &["rx-depth"]),
        ('s', &["size"]),
        ('t', &["depth"]),
        ('v', &["verbose"]),
        ('x', &["gid-index"]),
    ];

    #[test]
    fn a_short_option_means_one_thing() {
        let known: BTreeMap<_, _> = SHORT.iter().copied().collect();
        for command in super::Arguments::command().get_subcommands() {
            for argument in command.get_arguments() {
                let Some(short) = argument.get_short() else {
                    continue;
                };
                let long = argument.get_long().unwrap_or_default();
                let names = known.get(&short).copied().unwrap_or_default();
                assert!(
                    names.contains(&long),
                    "{}: -{short} is --{long}",
                    command.get_name()
                );
            }
        }
    }

    #[test]
    fn the_command_line_is_sound() {
        super::Arguments::command().debug_assert();
    }
}
