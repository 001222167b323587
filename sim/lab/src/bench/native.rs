//! Rows that need no device: programs counted under callgrind on this machine.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::callgrind::Profile;
use super::measurement::{Bench, Findings};
use super::record::Measured;
use crate::programs;
use crate::setup;
use crate::steps::step;
use crate::tool;

/// How often a handle is parsed in one run: any number gives the same count for each.
const PARSES: u64 = 1000;

/// Most rails in a handle.
const IPV4_RAILS: u64 = 15;
const IPV6_RAILS: u64 = 5;

/// Names the libibverbs to load.
const LIBRARY_VARIABLE: &str = "DOORBELL_LIBIBVERBS";

/// Part of the path of the fake provider.
const PROVIDER: &str = "doorbell_fake";

/// Batches of two runs: their difference is free of what happens once.
const SHORT: u32 = 500;
const LONG: u32 = 1500;

/// Instructions of parsing and checking a handle.
///
/// # Errors
///
/// The program does not build or run, or callgrind is not there.
pub(super) fn handle(bench: &Bench<'_>) -> Result<Findings> {
    setup::install_missing(|need| need.file == "valgrind")?;
    let program = step("building the program that parses handles", || {
        programs::build_example("handle_instructions")
    })?;
    let folder = bench.folder("handle")?;
    let count = |family: &str, rails: u64, length: &str| {
        let out = folder.join(format!("{family}-{rails}-{length}.callgrind"));
        let (rails, parses) = (rails.to_string(), PARSES.to_string());
        let arguments = [family, &rails, length, &parses];
        counted(&program, &arguments, "*parse_and_check*", &out)
    };
    step("counting the instructions of parsing handles", || {
        let mut findings = Findings::default();
        let mut headers = Vec::new();
        for (family, rails) in [("ipv4", IPV4_RAILS), ("ipv6", IPV6_RAILS)] {
            let (one, all) = (count(family, 1, "exact")?, count(family, rails, "exact")?);
            let rail = (all - one) / (rails as f64 - 1.0);
            headers.push(one - rail);
            findings.add(format!("rail-{family}"), Measured::of(rail));
        }
        let padded = count("ipv4", 1, "padded")?;
        let note = format!(
            "in a buffer of 128 bytes, whose rest must be zero, a handle with one IPv4 rail takes {padded:.0}"
        );
        let measured = Measured {
            note: Some(note),
            ..Measured::of(headers.into_iter().fold(0.0, f64::max))
        };
        findings.add("header", measured);
        Ok(findings)
    })
}

/// Instructions of one call of the function that `toggle` matches.
fn counted(program: &Path, arguments: &[&str], toggle: &str, out: &Path) -> Result<f64> {
    let total = profile(program, arguments, toggle, None, out)?.total();
    ensure!(total > 0, "nothing was counted of {}", program.display());
    Ok(total as f64 / PARSES as f64)
}

/// The profile of a program's functions that `toggle` matches, and of all they call.
///
/// # Errors
///
/// The program does not run, or callgrind left no profile.
pub(super) fn profile(
    program: &Path,
    arguments: &[&str],
    toggle: &str,
    library: Option<&Path>,
    out: &Path,
) -> Result<Profile> {
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--dump-line=no"])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(format!("--toggle-collect={toggle}"))
        .arg(program)
        .args(arguments);
    if let Some(library) = library {
        command.env(LIBRARY_VARIABLE, library);
    }
    tool::output_of(&mut command)?;
    Profile::read(out)
}

/// The instructions of a program's functions `measured_…`, and of all they call but the fake provider.
///
/// # Errors
///
/// As for [`profile`]; or nothing was counted, of the program or of the provider.
pub(super) fn without_provider(
    program: &Path,
    arguments: &[&str],
    library: &Path,
    out: &Path,
) -> Result<u64> {
    let profile = profile(program, arguments, "*::measured_*", Some(library), out)?;
    let ours = profile.total_without(PROVIDER);
    ensure!(ours > 0, "nothing was counted of {}", program.display());
    ensure!(ours < profile.total(), "nothing was counted of {PROVIDER}");
    Ok(ours)
}

/// The instructions of a program's functions `measured_…`, which call no provider.
///
/// # Errors
///
/// As for [`profile`]; or nothing was counted, or a provider was called.
pub(super) fn of_program(program: &Path, arguments: &[&str], library: &Path, out: &Path) -> Result<u64> {
    let profile = profile(program, arguments, "*::measured_*", Some(library), out)?;
    let ours = profile.total_without(PROVIDER);
    ensure!(ours > 0, "nothing was counted of {}", program.display());
    ensure!(ours == profile.total(), "{PROVIDER} was called");
    Ok(ours)
}

/// Instructions of one more, by the counts of a shorter run and a longer one: free of what happens once.
///
/// # Errors
///
/// A count fails.
pub(super) fn of_one_more(lengths: [u32; 2], count: impl Fn(u32) -> Result<u64>) -> Result<f64> {
    let [short, long] = lengths;
    let more = count(long)?.saturating_sub(count(short)?);
    Ok(more as f64 / f64::from(long.saturating_sub(short)))
}

/// Instructions of one more, in each way that a program knows: `PROGRAM WAY LENGTH`.
///
/// # Errors
///
/// The program does not build or run, or callgrind is not there.
pub(super) fn ways(
    bench: &Bench<'_>,
    (example, what): (&str, &str),
    ways: &[&str],
    lengths: [u32; 2],
    note: &str,
) -> Result<Findings> {
    setup::install_missing(|need| need.file == "valgrind")?;
    let folder = bench.folder(example)?;
    let (program, library) = step(format!("building the program for {what}"), || {
        let program = programs::build_example(example)?;
        Ok((program, programs::build_library("doorbell_fake")?))
    })?;
    let mut findings = Findings::default();
    for way in ways {
        let ours = step(format!("counting {what}, {way}"), || {
            of_one_more(lengths, |length| {
                let out = folder.join(format!("{way}.{length}"));
                without_provider(&program, &[way, &length.to_string()], &library, &out)
            })
        })?;
        let measured = Measured {
            note: Some(note.to_owned()),
            ..Measured::of(ours)
        };
        findings.add(*way, measured);
    }
    Ok(findings)
}

/// Instructions of posting and polling through the fake libibverbs: `ffi` alone and the public `Channel`, by cells and by
/// slots, each beside the loop by hand; and of receiving.
///
/// # Errors
///
/// A program does not build or run, callgrind is not there, or what was printed is not as it should be.
pub(super) fn posting(bench: &Bench<'_>) -> Result<Findings> {
    setup::install_missing(|need| need.file == "valgrind")?;
    let folder = bench.folder("posting")?;
    let by_hand = step("building `ffi` and the loop by hand", || {
        programs::build_example("posting")
    })?;
    let printed = step("counting `ffi` and the loop by hand", || {
        tool::output_of(Command::new(by_hand).arg("--keep").arg(&folder))
    })?;
    let counts = counts(&printed)?;
    let seldom_by_hand = seldom(&printed)?;
    let (program, library) = step("building the program that sends through a channel", || {
        let program = programs::build_example("channel_instructions")?;
        Ok((program, programs::build_library("doorbell_fake")?))
    })?;
    step("counting the public channel", || {
        let mut findings = Findings::default();
        let count = |how: &str, batch: u32, batches: u32| -> Result<u64> {
            let out = folder.join(format!("channel.{how}.{batch}.{batches}"));
            let arguments = [how.to_owned(), batch.to_string(), batches.to_string()];
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            without_provider(&program, &arguments, &library, &out)
        };
        let beside = |ours: f64, theirs: f64| Measured {
            theirs: Some(theirs),
            note: Some("the provider's own instructions are out; every poll finds something".to_owned()),
            ..Measured::of(ours)
        };
        let more = count("seldom", 1, LONG)?.saturating_sub(count("seldom", 1, SHORT)?);
        let ours = more as f64 / f64::from(LONG.saturating_sub(SHORT));
        findings.add("channel-seldom/1", beside(ours, seldom_by_hand));
        for Counted {
            batch,
            cells,
            by_hand,
            receiving_by_hand,
        } in counts
        {
            findings.add(format!("cells/{batch}"), beside(cells, by_hand));
            let messages = f64::from(LONG.saturating_sub(SHORT)) * f64::from(batch);
            for (how, figure, by_hand) in [
                ("cells", "channel", by_hand),
                ("leases", "leases", by_hand),
                ("receiving", "receiving", receiving_by_hand),
            ] {
                let more = count(how, batch, LONG)?.saturating_sub(count(how, batch, SHORT)?);
                let ours = more as f64 / messages;
                findings.add(format!("{figure}/{batch}"), beside(ours, by_hand));
            }
        }
        Ok(findings)
    })
}

/// A line of what the benchmark `posting` prints.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Counted {
    batch: u32,
    cells: f64,
    by_hand: f64,
    receiving_by_hand: f64,
}

/// The lines `BATCH CELLS GUARD HAND DIFFERENCE RECEIVING …`.
fn counts(printed: &str) -> Result<Vec<Counted>> {
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let batch = words.next()?.parse().ok()?;
        let cells = words.next()?.parse().ok()?;
        words.next()?.parse::<f64>().ok()?;
        let by_hand = words.next()?.parse().ok()?;
        words.next()?.parse::<f64>().ok()?;
        let receiving_by_hand = words.next()?.parse().ok()?;
        Some(Counted {
            batch,
            cells,
            by_hand,
            receiving_by_hand,
        })
    };
    let found: Vec<Counted> = printed.lines().filter_map(line).collect();
    ensure!(
        !found.is_empty(),
        "the benchmark `posting` printed no counts: {printed}"
    );
    Ok(found)
}

/// The figure of the line `seldom HAND …`.
fn seldom(printed: &str) -> Result<f64> {
    let mut lines = printed.lines().filter_map(|line| line.strip_prefix("seldom "));
    let figure = lines.next().and_then(|line| line.split_whitespace().next());
    let figure = figure.and_then(|figure| figure.parse().ok());
    figure.with_context(|| format!("the benchmark `posting` printed no count of `seldom`: {printed}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_from_what_is_printed() {
        let printed = "instructions per 64 B message, post and poll, without the provider's own\n\
                       batch    cells    guard     hand   cells over hand   receiving by hand   goal\n\
                       \u{20}   1    130.0    150.0    120.5              +9.5               123.0   +25 met\n\
                       \u{20}  16     56.0     60.0     55.0              +1.0                42.5   +0 missed\n\
                       seldom 45.5 by hand, each by itself, one of 64 signaled\n";
        let first = Counted {
            batch: 1,
            cells: 130.0,
            by_hand: 120.5,
            receiving_by_hand: 123.0,
        };
        let second = Counted {
            batch: 16,
            cells: 56.0,
            by_hand: 55.0,
            receiving_by_hand: 42.5,
        };
        assert_eq!(counts(printed).unwrap(), [first, second]);
        assert_eq!(seldom(printed).unwrap(), 45.5);
        assert!(counts("nothing").is_err() && seldom("nothing").is_err());
    }
}
