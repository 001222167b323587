//! `cargo lab`: Soft-RoCE hosts, scenarios and tests on real kernels.
//!
//! The command line, and nothing else: [`main`] is the entry. Inside a guest this same program is process 1 and the agent.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

mod bench;
mod boot;
mod busy;
mod cache;
#[path = "../../../src/program/src/closed_pipe.rs"]
mod closed_pipe;
mod cluster;
mod conformance;
mod control;
mod course;
mod demo;
mod doctor;
mod fuzz;
mod guest;
mod guests;
mod harness;
mod headers;
mod kernel;
mod leash;
mod machine;
mod mutants;
mod native;
mod nccl;
mod output;
mod process;
mod programs;
#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;
mod scenario;
mod setup;
mod shell;
#[cfg(test)]
#[path = "../../../src/program/src/documents.rs"]
mod shown;
mod soak;
mod steps;
mod swarm;
mod test;
mod tool;
mod topology;
mod up;

#[cfg(any(test, fuzzing))]
pub use scenario::hostile;

/// Soft-RoCE hosts on real kernels, for anybody without an RDMA card.
///
/// Boots kernels with rdma_rxe in virtual machines, makes hosts and links in them, and runs commands there.
/// Commands that boot hosts first install missing packages and download a kernel, as `setup` does. Nothing is left running.
#[derive(Debug, Parser)]
#[command(name = "cargo lab", bin_name = "cargo lab", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Install and fetch what is missing
    Setup(setup::SetupArgs),
    /// Report whether a lab can boot: packages, kernels, KVM, and what to install; changes nothing
    Doctor(doctor::DoctorArgs),
    /// Boot hosts and keep them until interrupted
    Up(up::UpArgs),
    /// Enter a host of a running lab, or run one command there
    Shell(shell::ShellArgs),
    /// Run a scenario
    Run {
        #[command(flatten)]
        args: scenario::RunArgs,
        #[command(flatten)]
        how: up::HowArgs,
    },
    /// Run verified transfers of every operation between three hosts, beside perftest
    Demo {
        #[command(flatten)]
        args: demo::DemoArgs,
        #[command(flatten)]
        how: up::HowArgs,
    },
    /// Run all tests: here, then in the lab those that need a device, then scenarios
    Test {
        #[command(flatten)]
        args: test::TestArgs,
        #[command(flatten)]
        how: up::HowArgs,
    },
    /// Run native test programs and scenarios many times, alone and beside busy processes, and say what failed how often
    Soak {
        #[command(flatten)]
        args: soak::SoakArgs,
        #[command(flatten)]
        how: up::HowArgs,
    },
    /// Measure what the project has goals for, beside others, and say which are met
    Bench {
        #[command(flatten)]
        args: bench::BenchArgs,
        #[command(flatten)]
        how: up::HowArgs,
    },
    /// Fuzz the code that handles input of peers with libFuzzer, and report what fails
    Fuzz(fuzz::FuzzArgs),
    /// Run the conformance tests of verbs on the simulator, the fake libibverbs and each kernel; write docs/conformance.md
    Conformance {
        #[command(flatten)]
        args: conformance::ConformanceArgs,
        #[command(flatten)]
        how: up::HowArgs,
    },
    /// Drive a net plugin for NCCL on clusters of two to four hosts, and show what came of each scenario
    Nccl {
        #[command(flatten)]
        args: nccl::NcclArgs,
        #[command(flatten)]
        how: up::HowArgs,
    },
    /// Run random workloads with faults on simulated hosts, and check each run; `--help` lists its options
    #[command(disable_help_flag = true)]
    Swarm(swarm::PassedOn),
    /// Repeat one run of the swarm by its seed or file, and print it; `--help` lists its options
    #[command(disable_help_flag = true)]
    Replay(swarm::PassedOn),
    /// Mutate the code with cargo-mutants, and report which tests detect each mutant
    Mutants(mutants::MutantsArgs),
    /// List the scenarios of the repository
    List,
    /// Run commands inside a guest
    #[command(hide = true)]
    Agent,
    /// Inside a guest, move a network device into another namespace, with all it has
    #[command(hide = true)]
    MoveNetdev(guest::netdev::MoveArgs),
}

/// Runs the command that the arguments of this process name.
pub fn main() -> ExitCode {
    if std::process::id() == 1 {
        guest::init::run();
    }
    match run(Cli::parse().command) {
        Ok(code) => code,
        Err(e) => {
            eprintln!("lab: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<ExitCode> {
    if !matches!(command, Command::Agent) {
        leash::obey_interrupts()?;
        output::heed();
    }
    let good = match command {
        Command::Setup(args) => setup::run(&args).map(|()| true),
        Command::Doctor(args) => doctor::run(&args),
        Command::Up(args) => match up::run(&args)? {},
        Command::Shell(args) => return shell::run(&args),
        Command::Run { args, how } => {
            let verdict = scenario::run(&args, &mut up::RealLab::new(how))?;
            Ok(verdict == scenario::Verdict::Passed)
        }
        Command::Demo { args, how } => demo::run(&args, &mut up::RealLab::new(how)),
        Command::Test { args, how } => test::run(&args, &how, &mut up::RealLab::new(how.clone())),
        Command::Soak { args, how } => soak::run(&args, &how, &mut up::RealLab::new(how.clone())),
        Command::Bench { args, how } => bench::run(&args, &mut up::RealLab::new(how)),
        Command::Fuzz(args) => fuzz::run(&args),
        Command::Conformance { args, how } => conformance::run(&args, &mut up::RealLab::new(how)),
        Command::Nccl { args, how } => nccl::run(&args, &mut up::RealLab::new(how)),
        Command::Swarm(args) => match swarm::run("swarm", &args)? {},
        Command::Replay(args) => match swarm::run("replay", &args)? {},
        Command::Mutants(args) => mutants::run(&args),
        Command::List => scenario::list().map(|()| true),
        Command::Agent => guest::agent::run().map(|()| true),
        Command::MoveNetdev(args) => guest::netdev::run(&args).map(|()| true),
    }?;
    Ok(if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use clap::CommandFactory as _;
    use clap::error::ErrorKind;

    use super::*;

    /// A `cargo lab` command in a text.
    #[derive(Debug)]
    struct Named {
        words: Vec<String>,
        /// It begins a line, or stands between backquotes: all of it is meant, and not the beginning of a sentence.
        is_whole: bool,
    }

    /// Every `cargo lab` command in a text, as far as it goes on its line.
    fn named(text: &str) -> impl Iterator<Item = Named> {
        text.match_indices("cargo lab ").map(|(at, begin)| {
            let before = &text[..at];
            let is_quoted = before.ends_with('`');
            let line = before.rsplit('\n').next().unwrap_or_default();
            let rest = &text[at + begin.len()..];
            // A quoted command may go on on the next line.
            let ends: &[char] = if is_quoted {
                &['`', '#', ';']
            } else {
                &['`', '\'', '#', ';', '\n']
            };
            let command = &rest[..rest.find(ends).unwrap_or(rest.len())];
            let command = command.split("  ").next().unwrap_or_default();
            Named {
                words: command.split_whitespace().map(str::to_owned).collect(),
                is_whole: is_quoted || line.trim().is_empty(),
            }
        })
    }

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    /// Every Markdown file of the repository outside build folders, and the gate.
    fn documents() -> Vec<PathBuf> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let (mut found, mut folders) = (vec![root.join(".ci/run")], vec![root]);
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).unwrap() {
                let path = entry.unwrap().path();
                let name = path.file_name().unwrap().to_string_lossy().into_owned();
                if path.is_dir() && name != "target" && !name.starts_with('.') {
                    folders.push(path);
                } else if name.ends_with(".md") {
                    found.push(path);
                }
            }
        }
        found
    }

    /// It is taken by the very parser that takes it from a user, and its scenario is there.
    #[test]
    fn every_command_that_is_written_of_is_accepted() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut count = 0;
        for file in documents() {
            let text = std::fs::read_to_string(&file).unwrap();
            for Named { words, is_whole } in named(&text) {
                let said = format!("{}: cargo lab {}", file.display(), words.join(" "));
                if is_whole {
                    let line = core::iter::once("cargo lab").chain(words.iter().map(String::as_str));
                    if let Err(error) = Cli::try_parse_from(line) {
                        // In a text a command may be named without what it needs.
                        let is_named = error.kind() == ErrorKind::MissingRequiredArgument;
                        assert!(is_named, "{said}: {error}");
                    }
                } else {
                    Cli::command().find_subcommand(&words[0]).expect(&said);
                }
                let is_name = |word: &&String| !word.contains(|c: char| c.is_ascii_uppercase() || c == '.');
                if let Some(scenario) = words.get(1).filter(is_name).filter(|_| words[0] == "run") {
                    let file = root.join(format!("sim/scenarios/{scenario}.toml"));
                    assert!(file.exists(), "{said}");
                }
                count += 1;
            }
        }
        assert!(
            count >= 60,
            "only {count} were found: is the test still reading them?"
        );
    }

    /// How a command of the lab that a document shows is run.
    #[derive(Clone, Copy, Debug)]
    enum How {
        /// Here, as it is shown.
        Here,
        /// Here, so that it lists what it would do: the rows that it names are there.
        Listed,
        /// On a real kernel: the scenario of this name by `cargo lab test`, or the scenario that the command names.
        Scenario(Option<&'static str>),
        /// By the gate: a line of `.ci/run` begins with it.
        Gate,
        /// By a test, in this file of the repository.
        Test(&'static str),
        /// It takes hours, or is for people: its line is parsed, as every line is.
        Parsed,
    }

    /// For each command of the lab that a document shows, how it is run.
    const RUN: &[(&str, How)] = &[
        ("list", How::Here),
        ("doctor", How::Here),
        ("bench", How::Listed),
        ("run", How::Scenario(None)),
        ("demo", How::Scenario(Some("demo"))),
        ("nccl", How::Scenario(Some("nccl-triangle"))),
        ("conformance", How::Scenario(Some("conformance"))),
        ("setup", How::Gate),
        ("test", How::Gate),
        ("fuzz", How::Gate),
        ("mutants", How::Gate),
        ("swarm", How::Test("sim/swarm/tests/documents.rs")),
        ("replay", How::Test("sim/swarm/tests/documents.rs")),
        ("soak", How::Parsed),
        ("up", How::Parsed),
        ("shell", How::Parsed),
    ];

    /// The commands of README.md and the book. Another command has no row, and fails.
    #[test]
    fn every_command_of_a_document_is_run() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let gate = std::fs::read_to_string(root.join(".ci/run")).unwrap();
        let scenarios = scenario::repository().unwrap();
        let of_name = |name: &str| scenarios.iter().find(|scenario| scenario.name == name);
        let is_tested = |name: &str| of_name(name).is_some_and(|scenario| !scenario.test_on.is_empty());
        let mut seen = Vec::new();
        for shown::DocumentedCommand { document, words } in shown::commands() {
            if words[0] != "cargo" || words[1] != "lab" || words.len() < 3 || seen.contains(&words) {
                continue;
            }
            seen.push(words.clone());
            let said = format!("{document}: {}", words.join(" "));
            let row = RUN.iter().find(|(name, _)| *name == words[2]);
            let (name, how) = row.unwrap_or_else(|| panic!("{said}: no row says how it is run"));
            let parsed = |more: &[&str]| {
                let behind = words
                    .iter()
                    .skip(3)
                    .map(String::as_str)
                    .chain(more.iter().copied());
                Cli::try_parse_from(["cargo lab", name].into_iter().chain(behind)).map(|cli| cli.command)
            };
            match (how, parsed(&[])) {
                (How::Here, Ok(Command::List)) => scenario::list().unwrap(),
                // Whether a lab can be booted is this machine's affair.
                (How::Here, Ok(Command::Doctor(args))) => drop(doctor::run(&args).unwrap()),
                (How::Listed, _) => match parsed(&["--list"]) {
                    Ok(Command::Bench { args, how }) => {
                        assert!(bench::run(&args, &mut up::RealLab::new(how)).unwrap(), "{said}");
                    }
                    other => panic!("{said}: {other:?}"),
                },
                (How::Scenario(Some(name)), _) => assert!(is_tested(name), "{said}: no part of the gate"),
                (How::Scenario(None), _) => {
                    let chosen = words.get(3).filter(|name| !name.ends_with(".toml"));
                    assert!(chosen.is_none_or(|name| of_name(name).is_some()), "{said}");
                }
                (How::Gate, _) => assert!(gate.contains(&format!("cargo lab {name}")), "{said}"),
                (How::Test(file), _) => assert!(root.join(file).exists(), "{said}: no {file}"),
                (How::Parsed, _) => {}
                (how, parsed) => panic!("{said}: {how:?}: {parsed:?}"),
            }
        }
        assert!(seen.len() > 30, "only {} were found", seen.len());
    }

    #[test]
    fn a_command_that_does_not_exist_would_be_found() {
        let texts = [
            "see `cargo lab tset`",
            "cargo lab test --quik\n",
            "`cargo lab soak\n--alone many`",
        ];
        for text in texts {
            let command = named(text).next().unwrap();
            assert!(command.is_whole, "{command:?}");
            let line = core::iter::once("cargo lab").chain(command.words.iter().map(String::as_str));
            let kind = Cli::try_parse_from(line).unwrap_err().kind();
            assert_ne!(kind, ErrorKind::MissingRequiredArgument, "{text}");
        }
    }
}
