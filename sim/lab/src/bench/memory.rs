//! Rows of each peer's cost in memory at one hub: counted by the allocator, on the simulated fabric.

use anyhow::{Context as _, Result};

use super::measurement::Findings;
use super::record::Measured;
use crate::programs;
use crate::steps::step;
use crate::tool;

/// How many peers: each is a row.
const PEERS: [&str; 3] = ["64", "1024", "16384"];

/// Bytes for each peer at a hub with shared receives, at least depth.
///
/// # Errors
///
/// The program does not build or run, or what it prints is not as it should be.
pub(super) fn measure() -> Result<Findings> {
    let program = step("building the program that counts what peers cost", || {
        programs::build_program("memory_per_peer")
    })?;
    let mut findings = Findings::default();
    for peers in PEERS {
        let printed = step(format!("counting the memory of {peers} peers"), || {
            tool::output_of(std::process::Command::new(&program).arg(peers))
        })?;
        findings.add(peers, of(&printed)?);
    }
    Ok(findings)
}

/// The figure of a row: ours; the rest beside it.
fn of(printed: &str) -> Result<Measured> {
    let mut words = printed.split([' ', ',', ';', '\n']);
    let mut after = |word: &str| -> Result<f64> {
        let found = words
            .by_ref()
            .any(|it| it == word)
            .then(|| words.next())
            .flatten();
        let number = found.with_context(|| format!("`{word}` and a number are not in: {printed}"))?;
        number
            .parse()
            .with_context(|| format!("`{word}` has no number in: {printed}"))
    };
    let (ours, messages, simulator) = (after("ours")?, after("messages")?, after("simulator")?);
    Ok(Measured {
        note: Some(format!(
            "beside ours {messages:.0} for messages; the simulator has {simulator:.0} for both sides"
        )),
        ..Measured::of(ours)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ours_counts_and_the_rest_is_told() {
        let printed = "64 peers; bytes for each: ours 1943, messages 128, simulator 5456 (both sides)\n";
        let measured = of(printed).unwrap();
        assert_eq!((measured.ours, measured.theirs), (1943.0, None));
        let note = measured.note.unwrap();
        assert!(
            note.contains("128 for messages") && note.contains("5456"),
            "{note}"
        );
        for wrong in ["", "64 peers; ours, messages 1", "ours 1, messages 2"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }
}
