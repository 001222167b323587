//! The commands `cargo lab swarm` and `cargo lab replay` as README.md and the book show them, each with few seeds.

use std::process::Command;

#[path = "../../../src/program/src/documents.rs"]
mod shown;

/// The values of placeholders.
const PLACEHOLDERS: &[(&str, &str)] = &[("SEED|FILE", "1"), ("FILE", "out.json")];

/// Options that take minutes, whose line is parsed and not run.
const LONG: &[&str] = &["--ci", "--mutate", "--mutate-all", "--minutes"];

#[test]
fn every_command_of_a_document_is_run() {
    let folder = tempfile::tempdir().unwrap();
    let mut run = 0;
    for shown::DocumentedCommand { document, words } in shown::commands() {
        let is_ours =
            words.len() > 2 && words[1] == "lab" && ["swarm", "replay"].contains(&words[2].as_str());
        if !is_ours {
            continue;
        }
        let named = |word: &String| {
            let stands = PLACEHOLDERS.iter().find(|(name, _)| name == word);
            stands.map_or(word.clone(), |(_, value)| (*value).to_owned())
        };
        let mut arguments: Vec<_> = words[2..].iter().map(named).collect();
        let is_long = arguments.iter().any(|word| LONG.contains(&word.as_str()));
        match arguments.iter().position(|word| word == "--seeds") {
            _ if is_long => arguments.push("--help".into()),
            Some(at) => arguments[at + 1] = "2".into(),
            None if arguments == ["replay"] => arguments.push("1".into()),
            None if arguments[0] == "swarm" => arguments.extend(["--seeds", "2"].map(str::to_owned)),
            None => {}
        }
        let output = Command::new(env!("CARGO_BIN_EXE_swarm"))
            .args(&arguments)
            .current_dir(folder.path())
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{document}: {arguments:?}: {error}");
        run += 1;
    }
    assert!(run >= 5, "{run} commands");
}
