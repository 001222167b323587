//! Checks the command line parser with arbitrary bytes, and the display of any status of a node daemon. Tests and the fuzzer
//! use it.

use core::time::Duration;

use clap::{Parser, Subcommand};
use doorbell::RemoteWindow;
use doorbell::provider::Rkey;

use crate::perf::hostile::check_test;
use crate::perf::{BwArguments, LatArguments, Message, PerfError, Setup, Terms, Test};
use crate::pingpong;
use crate::value::{PeerPlace, parse_bytes, parse_bytes_or_none, parse_mtu, parse_seconds};

pub use crate::perf::hostile::check as check_message;
pub use crate::status::check_shown as check_status;

/// Longer lines are skipped, since they test nothing more.
const LINE_BYTES_MAX: usize = 600;

/// The commands that take more than names and flags.
#[derive(Parser)]
#[command(name = "doorbell")]
struct Line {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Lat(LatArguments),
    Bw(BwArguments),
    Pingpong(pingpong::Arguments),
}

/// Parses `bytes` as a command line of words between spaces, and each word as a value. Returns whether the line is a valid
/// command.
///
/// # Panics
/// The parser violates a guarantee.
pub fn check(bytes: &[u8]) -> bool {
    let Some(line) = core::str::from_utf8(bytes)
        .ok()
        .filter(|line| line.len() <= LINE_BYTES_MAX)
    else {
        return false;
    };
    line.split([' ', ',']).for_each(check_value);
    check_value(line);
    match Line::try_parse_from(core::iter::once("doorbell").chain(line.split(' '))) {
        Ok(Line { command }) => {
            check_command(&command);
            true
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            assert!(matches!(error.exit_code(), 0 | 2), "{line}: {error}");
            false
        }
    }
}

fn check_command(command: &Command) {
    match command {
        Command::Lat(arguments) => check_tests(&arguments.terms(), &arguments.tests()),
        Command::Bw(arguments) => check_tests(&arguments.terms(), &arguments.tests()),
        Command::Pingpong(arguments) => check_pingpong(arguments),
    }
}

/// Checks that the requested tests are within their limits and that the peer can parse them, or that the error has a text.
fn check_tests(terms: &Terms, tests: &Result<Vec<Test>, PerfError>) {
    assert!((1..=86_400).contains(&terms.timeout.as_secs()) && terms.timeout.subsec_nanos() == 0);
    let tests = match tests {
        Ok(tests) => tests,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert!(!tests.is_empty());
    for test in tests {
        check_test(test);
        let asked = Message::Setup(Setup {
            token: 1,
            test: *test,
            window: RemoteWindow::new(8, 64, Rkey(1)),
        });
        assert_eq!(Message::parse(&asked.encode()), Ok(asked));
    }
}

fn check_pingpong(arguments: &pingpong::Arguments) {
    for span in [arguments.timeout, arguments.wait] {
        assert!((Duration::from_millis(1)..=Duration::from_secs(31_536_000)).contains(&span));
    }
    for device_max in [0, 1, 500, 1 << 15, u32::MAX] {
        match arguments.receive_depth(device_max) {
            Ok(depth) => assert!(depth <= device_max, "{depth} of {device_max}"),
            Err(reason) => assert!(!reason.is_empty()),
        }
    }
}

/// Panics if a word is parsed to a wrong value.
fn check_value(word: &str) {
    let bytes = plain_bytes(word);
    assert_eq!(parse_bytes_or_none(word).ok(), bytes, "{word:?}");
    assert_eq!(
        parse_bytes(word).ok(),
        bytes.filter(|bytes| *bytes > 0),
        "{word:?}"
    );
    if let Ok(mtu) = parse_mtu(word) {
        assert!([256, 512, 1024, 2048, 4096].contains(&mtu.bytes()));
        assert_eq!(bytes, Some(mtu.bytes()), "{word:?}");
    }
    check_seconds(word);
    if let Ok(place) = PeerPlace::parse(word, 18_700) {
        let written = match &place {
            PeerPlace::Handle(handle) => handle.to_string(),
            PeerPlace::Address(address) => address.to_string(),
            PeerPlace::Host { name, port } => format!("{name}:{port}"),
        };
        // The written form is complete: it parses to the same value with any default port.
        assert_eq!(
            PeerPlace::parse(&written, 1),
            Ok(place),
            "{word:?} is written {written:?}"
        );
    }
}

/// Parses a size independently of the program: digits, and a unit.
fn plain_bytes(word: &str) -> Option<u32> {
    let mut digits: Vec<char> = word.strip_prefix('+').unwrap_or(word).chars().collect();
    let unit = match digits.last()? {
        'k' | 'K' => 1 << 10,
        'm' | 'M' => 1 << 20,
        _ => 1,
    };
    if unit > 1 {
        digits.pop();
    }
    let mut count = Some(0_u128).filter(|_| !digits.is_empty())?;
    for digit in digits {
        count = (count * 10 + u128::from(digit.to_digit(10)?)).min(1 << 64);
    }
    u32::try_from(count * unit).ok()
}

/// Checks a duration in plain digits, with or without a decimal point. The parsed value is exact up to the precision of a
/// float: 4 ns.
fn check_seconds(word: &str) {
    let read = parse_seconds(word);
    if let Ok(span) = read {
        assert!((Duration::from_millis(1)..=Duration::from_secs(31_536_000)).contains(&span));
    }
    let (whole, part) = word.split_once('.').unwrap_or((word, "0"));
    let is_plain =
        |digits: &str| (1..=9).contains(&digits.len()) && digits.bytes().all(|digit| digit.is_ascii_digit());
    if !is_plain(whole) || !is_plain(part) {
        return;
    }
    let number = |digits: &str| digits.parse::<u64>().unwrap_or_default();
    let ns = number(whole) * 1_000_000_000 + number(&format!("{part:0<9}"));
    let is_one = (1_000_000..=31_536_000_000_000_000).contains(&ns);
    assert_eq!(read.is_ok(), is_one, "{word:?}");
    if let Ok(span) = read {
        assert!(
            span.as_nanos().abs_diff(ns.into()) <= 4,
            "{word:?} is read as {span:?}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::replay::{folder, replay};

    #[test]
    fn command_lines_keep_every_promise() {
        replay("arguments", |bytes| {
            check(bytes);
        });
        for (name, is_command) in [
            ("lat", true),
            ("bw", true),
            ("pingpong", true),
            ("handle", true),
            ("no_bandwidth", true),
            ("refused", false),
        ] {
            let bytes = std::fs::read(folder("arguments").join(name)).unwrap();
            assert_eq!(check(&bytes), is_command, "{name}");
        }
    }

    /// Every example of the help is cut at each place, and each of its characters is replaced.
    #[test]
    fn changed_lines_keep_every_promise() {
        for line in [
            "lat 10.0.0.1 --size 8,4K -n 10000 --json",
            "bw h:18700 --op send --batch 16 --mtu 4096",
            "pingpong -c [fd00::1]:5 --timeout 0.5 -r 9",
        ] {
            for at in 0..line.len() {
                check(&line.as_bytes()[..at]);
                for instead in *b"0,K:. -\xff" {
                    let mut changed = line.as_bytes().to_vec();
                    changed[at] = instead;
                    check(&changed);
                }
            }
        }
    }
}
