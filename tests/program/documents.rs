//! The commands that the documents show, run as they are shown where that needs no device and no guest.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::shown;
use crate::started::{ended, program};

/// Commands that need nothing, whatever their options.
const ANYWHERE: &[&str] = &["completions", "config", "devices", "keygen", "man"];

#[test]
fn commands_that_need_no_device_run_as_the_documents_show_them() {
    let mut run = 0;
    for shown::Shown { document, words } in shown::commands("doorbell") {
        let words: Vec<_> = words.iter().skip(1).map(String::as_str).collect();
        let is_chosen = words.iter().any(|word| word.starts_with('['));
        if is_chosen || !(ANYWHERE.contains(&words[0]) || words.contains(&"--simulated")) {
            continue;
        }
        // Some show a command alone, whose arguments stand elsewhere.
        if words.len() == 1 && ["completions", "keygen"].contains(&words[0]) {
            continue;
        }
        let folder = tempfile::tempdir().unwrap();
        let mut command = program(&words);
        command.current_dir(folder.path());
        if words[0] == "status" && !words.contains(&"--once") {
            command.arg("--once");
        }
        let (code, said) = ended(command, Stdio::null());
        assert_eq!(code, Some(0), "{document}: {words:?}: {said}");
        run += 1;
    }
    assert!(run >= 8, "{run} commands");
}

/// What `cargo metadata` says of the workspace.
fn metadata() -> Value {
    let mut command = Command::new(env!("CARGO"));
    command.args(["metadata", "--no-deps", "--offline", "--format-version", "1"]);
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let output = command.args(["--manifest-path", root]).output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The name behind an option.
fn behind<'w>(words: &[&'w str], option: &str) -> Option<&'w str> {
    let at = words.iter().position(|word| *word == option)?;
    words.get(at + 1).copied()
}

/// Building what a command of cargo builds would take minutes: here it is that there is such a thing to be built.
#[test]
fn commands_of_cargo_name_what_there_is() {
    let metadata = metadata();
    let packages = metadata["packages"].as_array().unwrap();
    let named = |name: &str| packages.iter().find(|package| package["name"] == name);
    let lab = include_str!("../../sim/lab/src/main.rs");
    let mut checked = 0;
    for shown::Shown { document, words } in shown::commands("cargo") {
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        let said = format!("{document}: {}", words.join(" "));
        let ours = words.split(|word| *word == "--").next().unwrap();
        let package = behind(ours, "-p").unwrap_or("doorbell");
        let package = named(package).unwrap_or_else(|| panic!("{said}: no package {package}"));
        let has = |kind: &str, name: &str| {
            let targets = package["targets"].as_array().unwrap();
            targets
                .iter()
                .any(|target| target["name"] == name && target["kind"][0] == kind)
        };
        for (option, kind) in [
            ("--example", "example"),
            ("--test", "test"),
            ("--bin", "bin"),
            ("--bench", "bench"),
        ] {
            if let Some(name) = behind(ours, option) {
                assert!(has(kind, name), "{said}: no {kind} {name}");
            }
        }
        for feature in behind(ours, "--features")
            .iter()
            .flat_map(|features| features.split(','))
        {
            let feature = feature.trim_start_matches("doorbell/");
            assert!(
                !package["features"][feature].is_null(),
                "{said}: no feature {feature}"
            );
        }
        match words[1] {
            "run" if behind(ours, "--example").is_none() && behind(ours, "--bin").is_none() => {
                assert_eq!(package["default_run"], "doorbell", "{said}: which binary?");
            }
            "lab" => {
                // The lab's own tests run its commands; here it is that they are there.
                let of = words.get(2).copied().unwrap_or_default();
                let variant: String = of.split('-').map(capital).collect();
                let is_there =
                    of.starts_with("--") || lab.contains(&variant) || lab.contains(&format!("\"{of}\""));
                assert!(is_there, "{said}: no command {of} of the lab");
            }
            _ => {}
        }
        checked += 1;
    }
    assert!(checked > 8, "{checked} commands");
    assert!(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.cargo/config.toml")).exists());
}

fn capital(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map_or_else(String::new, |first| {
        first.to_ascii_uppercase().to_string() + letters.as_str()
    })
}
