use core::time::Duration;

use clap::{CommandFactory as _, Parser, Subcommand};

use super::{BwArguments, LatArguments, Op, Plant, target};
use crate::perf::terms::Target;

#[derive(Parser)]
struct Line {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Lat(LatArguments),
    Bw(BwArguments),
}

fn parse(line: &str) -> Result<Command, String> {
    let line = Line::try_parse_from(line.split(' ')).map_err(|error| error.to_string())?;
    Ok(line.command)
}

fn tests(line: &str) -> Vec<super::Test> {
    match parse(line).unwrap() {
        Command::Lat(arguments) => arguments.tests().unwrap(),
        Command::Bw(arguments) => arguments.tests().unwrap(),
    }
}

#[test]
fn everything_is_measured_where_nothing_is_said() {
    let lat = tests("doorbell lat peer");
    assert_eq!(lat.iter().map(|test| test.op).collect::<Vec<_>>(), Op::ALL);
    assert!(
        lat.iter()
            .all(|test| test.iterations == 1000 && test.depth == 128)
    );
    assert_eq!((lat[0].message_bytes, lat[5].message_bytes), (64, 8));
    let bw = tests("doorbell bw peer");
    assert_eq!(bw.len(), 6);
    assert_eq!((bw[0].message_bytes, bw[0].batch), (65_536, 1));
}

#[test]
fn a_ring_has_latency_alone() {
    let lat = tests("doorbell lat peer --op ring");
    assert_eq!((lat.len(), lat[0].op), (1, Op::Ring));
    let Ok(Command::Bw(arguments)) = parse("doorbell bw peer --op send,ring") else {
        panic!("not parsed");
    };
    let refused = arguments.tests().unwrap_err().to_string();
    assert_eq!(refused, "bw does not measure ring, only lat does");
}

#[test]
fn operations_and_sizes_may_be_several() {
    let some = tests("doorbell bw peer --op send,read --op fetch-add --size 8,4K,1M --batch 4");
    let found: Vec<_> = some.iter().map(|test| (test.op, test.message_bytes)).collect();
    let expected = [
        (Op::Send, 8),
        (Op::Send, 4096),
        (Op::Send, 1 << 20),
        (Op::Read, 8),
        (Op::Read, 4096),
        (Op::Read, 1 << 20),
        (Op::FetchAdd, 8),
    ];
    assert_eq!(found, expected);
    let planted = tests("doorbell lat peer --op send --plant-corruption");
    assert_eq!(planted[0].plant, Some(Plant::Client));
    let planted = tests("doorbell lat peer --op send --plant-corruption listener");
    assert_eq!(planted[0].plant, Some(Plant::Listener));
}

#[test]
fn the_help_names_options_of_perftest_that_the_command_has() {
    for command in Line::command().get_subcommands() {
        let help = command.get_after_help().unwrap().to_string();
        let (_, named) = help.split_once("As in perftest: ").unwrap();
        for word in named.trim_end().trim_end_matches('.').split(' ') {
            let is_it = |short: Option<char>| short.is_some_and(|short| word == format!("-{short}"));
            let is_there = command
                .get_arguments()
                .any(|argument| is_it(argument.get_short()));
            assert!(is_there, "{} has no {word}", command.get_name());
        }
    }
}

#[test]
fn settings_of_the_other_side_are_refused() {
    for line in [
        "doorbell lat --op send",
        "doorbell bw --size 64",
        "doorbell bw --batch 2",
        "doorbell lat peer --keep",
        "doorbell lat peer --listen 127.0.0.1:1",
        "doorbell lat peer --size 0",
        "doorbell lat peer --size 5G",
        "doorbell lat peer --mtu 1500",
        "doorbell lat peer --timeout 0",
        "doorbell lat peer --op nothing",
    ] {
        assert!(parse(line).is_err(), "{line}");
    }
    assert!(parse("doorbell lat --keep --listen 127.0.0.1:1 --device rxe0").is_ok());
}

#[test]
fn peers_are_addresses_or_handles() {
    for (peer, address) in [
        ("127.0.0.1", "127.0.0.1:18700"),
        ("127.0.0.1:5", "127.0.0.1:5"),
        ("::1", "[::1]:18700"),
        ("[::1]:5", "[::1]:5"),
    ] {
        let Ok(Target::Addresses { addresses, .. }) = target(peer, Duration::from_secs(20)) else {
            panic!("{peer}");
        };
        assert_eq!(addresses, [address.parse().unwrap()]);
    }
    for wrong in ["doorbell:00", "127.0.0.1:notaport", ""] {
        assert!(target(wrong, Duration::from_secs(20)).is_err(), "{wrong}");
    }
}
