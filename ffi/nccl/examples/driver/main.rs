//! Drives a net plugin as NCCL does, with host memory and no GPU. It knows the interface and nothing of the plugin.
//!
//! | arguments | what runs |
//! |---|---|
//! | `PLUGIN VERSION [SCENARIO...]` | scenarios with ranks on threads, a line for each |
//! | `PLUGIN VERSION --ring FOLDER RANK RANKS [ROUNDS [FILE]]` | one rank of a ring of processes; half of the rounds wait for the file |
//! | `PLUGIN --hosts FOLDER RANK RANKS VERSIONS [FAR [SCENARIOS]]` | one host's part of scenarios between hosts; `FAR` are pairs of ranks that share no subnet: `0-2,1-3` |
//! | `PLUGIN VERSION --between SCENARIO FOLDER RANK RANKS FAR` | one rank of one of those |
//! | `PLUGIN VERSION --has` | nothing: the exit says whether the plugin has this version |
//! | `PLUGIN VERSION --count BYTES ROUNDS` | messages of one size one by one, for a counter of instructions |
//!
//! With `by:` before the pairs of `FAR`, the plugin relays between them.
//!
//! The ranks of a ring exchange their handles in a folder that all of them see, and reduce words until the rounds are over.

mod between;
mod buffer;
mod hosts;
mod peers;
mod plugin;
mod process;
mod relayed;
mod scenarios;

use std::process::ExitCode;

use plugin::Net;
use scenarios::SCENARIOS;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, version, wanted @ ..] = &arguments[..] else {
        eprintln!(
            "usage: nccl-driver PLUGIN VERSION [SCENARIO... | --ring FOLDER RANK RANKS [ROUNDS [FILE]] | --count BYTES ROUNDS], with a version from 8 to 12"
        );
        return ExitCode::from(2);
    };
    if version == "--hosts" {
        return match hosts::run(path, wanted) {
            Ok(is_good) => ExitCode::from(u8::from(!is_good)),
            Err(why) => {
                eprintln!("{why}");
                ExitCode::from(2)
            }
        };
    }
    let net = match version
        .parse()
        .map_err(|_| "the version is no number".to_owned())
        .and_then(|version| Net::load(path, version))
    {
        Ok(net) => net,
        Err(why) => {
            let is_between = wanted.first().is_some_and(|word| word == "--between");
            match why.contains(plugin::NO_TABLE) {
                true if is_between => println!("LEFT OUT: {why}"),
                false if is_between => println!("FAILED: {why}"),
                _ => eprintln!("{why}"),
            }
            return ExitCode::from(2);
        }
    };
    if wanted == ["--has"] {
        return ExitCode::SUCCESS;
    }
    if let [between, arguments @ ..] = wanted {
        if between == "--between" {
            let outcome = between::run(&net, arguments);
            for line in plugin::log() {
                println!("log: {line}");
            }
            return match outcome {
                Ok(between::Done::Passed(done)) => {
                    println!("ok: {done}");
                    ExitCode::SUCCESS
                }
                Ok(between::Done::LeftOut(why)) => {
                    println!("LEFT OUT: {why}");
                    ExitCode::SUCCESS
                }
                Err(why) => {
                    println!("FAILED: {why}");
                    ExitCode::FAILURE
                }
            };
        }
    }
    if let [ring, arguments @ ..] = wanted {
        let run = match ring.as_str() {
            "--ring" => Some(process::run(&net, arguments)),
            "--count" => Some(scenarios::messages::one_by_one(&net, arguments)),
            _ => None,
        };
        if let Some(ran) = run {
            return match ran {
                Ok(done) => {
                    println!("ok: {done}");
                    ExitCode::SUCCESS
                }
                Err(why) => {
                    println!("FAILED: {why}");
                    ExitCode::FAILURE
                }
            };
        }
    }
    let unknown = wanted
        .iter()
        .find(|name| !SCENARIOS.iter().any(|(known, _)| known == name));
    if let Some(unknown) = unknown {
        let known: Vec<_> = SCENARIOS.iter().map(|(name, _)| *name).collect();
        eprintln!("no scenario {unknown}: there are {}", known.join(", "));
        return ExitCode::from(2);
    }
    let mut failed = 0_u32;
    for (name, run) in SCENARIOS {
        if !wanted.is_empty() && !wanted.iter().any(|wanted| wanted == name) {
            continue;
        }
        plugin::clear_log();
        match run(&net) {
            Ok(done) => println!("ok {name}: {done}"),
            Err(why) => {
                println!("FAILED {name}: {why}");
                for line in plugin::log() {
                    println!("  log: {line}");
                }
                failed = failed.saturating_add(1);
            }
        }
    }
    println!("{failed} failed");
    ExitCode::from(u8::from(failed > 0))
}
