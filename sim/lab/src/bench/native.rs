//! Rows that need no device: programs of the benches package, counted under callgrind on this machine.

use std::path::Path;

use anyhow::{Result, ensure};

use super::callgrind::Profile;
use super::record::Measured;
use super::sources::{Bench, Findings};
use crate::programs;
use crate::setup;
use crate::steps::step;
use crate::tool;

/// How often a handle is parsed in one run: any number gives the same count for each.
const PARSES: u64 = 1000;

/// What a handle holds at most.
const IPV4_RAILS: u64 = 15;
const IPV6_RAILS: u64 = 5;

/// Instructions of parsing and checking a handle.
///
/// # Errors
///
/// The program does not build or run, or callgrind is not there.
pub(super) fn handle(bench: &Bench<'_>) -> Result<Findings> {
    setup::install_missing(|need| need.file == "valgrind")?;
    let program = step("building the program that parses handles", || {
        programs::build_example("doorbell-benches", "handle_instructions")
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
    let (program, out_file) = (program.to_string_lossy(), out.to_string_lossy());
    let out_file = format!("--callgrind-out-file={out_file}");
    let toggle = format!("--toggle-collect={toggle}");
    let mut words = vec!["--tool=callgrind", "--dump-line=no", &out_file, &toggle, &program];
    words.extend(arguments);
    tool::output("valgrind", &words)?;
    let total = Profile::read(out)?.total();
    ensure!(total > 0, "nothing was counted of {program}");
    Ok(total as f64 / PARSES as f64)
}
