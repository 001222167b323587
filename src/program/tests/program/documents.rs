//! Every command that README.md and the book show, run as it is shown where that needs no guest. A table says for each kind how it is run, and a command
//! without a row fails. The commands of `cargo lab` are run by tests of `sim/lab` and `sim/swarm`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::shown::{DocumentedCommand, commands, torn_line};
use crate::started::{Running, ended, program};

/// How a command is run.
enum How {
    /// As it is shown, in a folder with what it reads. It ends with one of these codes.
    Run(&'static [i32]),
    /// With an option that has it end at once, and with one of these codes.
    Once(&'static str, &'static [i32]),
    /// As it is shown, until this line comes on standard error. Tests of its other side are elsewhere.
    Starts(&'static str),
    /// A name, or an outline with something to choose: its help is printed.
    Help,
    /// By what another file has: a scenario, or a test. The words stand there.
    Elsewhere(&'static str, &'static str),
    /// Building it takes minutes: what it names is there, and is built by the gate.
    Named,
    /// A tool of the kernel or of a card's vendor, which changes the host. No test runs it.
    Foreign,
}

use How::{Elsewhere, Foreign, Help, Named, Once, Run, Starts};

/// Tools that set up a host, or run programs of others on it.
const OF_THE_HOST: [&str; 14] = [
    "cat",
    "devlink",
    "echo",
    "export",
    "grep",
    "install",
    "journalctl",
    "mlnx_qos",
    "modprobe",
    "mpirun",
    "rdma",
    "systemctl",
    "systemd-sysusers",
    "usermod",
];

/// Whether a command is of the row.
type Is = fn(&[&str]) -> bool;

/// The first row that a command is of says how it is run.
const ROWS: &[(&str, Is, How)] = &[
    (
        "an outline",
        |words| {
            words
                .iter()
                .any(|word| word.starts_with('[') || *word == "ADDR:PORT")
        },
        Help,
    ),
    (
        "completions",
        |words| words.len() > 2 && words[1] == "completions",
        Run(&[0]),
    ),
    (
        "keygen",
        |words| words.len() > 2 && words[1] == "keygen",
        Run(&[0]),
    ),
    // It is 1 on a host without a usable port.
    (
        "usable devices",
        |words| words[1] == "devices" && words.contains(&"--require-usable"),
        Run(&[0, 1]),
    ),
    (
        "settings and devices",
        |words| ["config", "devices", "man"].contains(&words[1]) && words[0] == "doorbell",
        Run(&[0]),
    ),
    // Its file of keys is that of an example.
    (
        "keys of jobs",
        |words| words[..2] == ["doorbell", "serve"] && words.contains(&"--job-keys"),
        Elsewhere(
            "src/program/tests/program/job_keys.rs",
            "fn a_file_decides_about_jobs_and_is_read_again_while_processes_stay",
        ),
    ),
    // Its socket and its peers are those of an example.
    (
        "the node daemon",
        |words| words[..2] == ["doorbell", "serve"] && words.len() > 2,
        Elsewhere(
            "src/program/tests/program/serve.rs",
            "fn processes_attach_exchange_and_learn_of_a_kill",
        ),
    ),
    // Its devices are those of an example.
    (
        "a sandbox",
        |words| words[..2] == ["doorbell", "broker"] && words.len() > 2,
        Elsewhere("sim/scenarios/broker.toml", "{bin}/doorbell broker --counts"),
    ),
    // Its socket is that of an example.
    (
        "status of the node daemon",
        |words| words[..2] == ["doorbell", "status"] && words.contains(&"--socket"),
        Elsewhere(
            "src/program/tests/program/serve.rs",
            "fn the_state_of_a_daemon_is_shown_scraped_and_logged",
        ),
    ),
    // The port is that of an example: no node is there.
    (
        "status of a node",
        |words| words[1] == "status" && words.len() == 3,
        Once("--once", &[1]),
    ),
    (
        "status",
        |words| words[1] == "status" && words.contains(&"--once"),
        Run(&[0]),
    ),
    (
        "simulated",
        |words| words[0] == "doorbell" && words.contains(&"--simulated"),
        Run(&[0]),
    ),
    ("topology", |words| words[1] == "topo", Run(&[0])),
    // It is 1 where something will fail, which on a machine of tests may be so.
    ("preflight", |words| words[1] == "preflight", Run(&[0, 1])),
    (
        "a demo",
        |words| words[..2] == ["doorbell", "demo"],
        Elsewhere("src/program/src/demo.rs", "fn every_operation_is_shown_both_ways"),
    ),
    (
        "a link that is asked for",
        |words| words.contains(&"doorbell:..."),
        Elsewhere("sim/scenarios/link-faults.toml", "--at"),
    ),
    ("a name", |words| words[0] == "doorbell" && words.len() == 2, Help),
    (
        "a link's first side",
        |words| words[..2] == ["doorbell", "link"] && words.contains(&"--key-file"),
        Starts("doorbell:"),
    ),
    (
        "a file to another host",
        |words| words[..2] == ["doorbell", "xfer"] && !words.contains(&"--listen"),
        Elsewhere("src/program/src/xfer/tests.rs", "fn a_file_of_any_size_arrives"),
    ),
    (
        "a side that listens",
        |words| words[0] == "doorbell" && words.contains(&"--key-file"),
        Starts("listening at "),
    ),
    (
        "a scrape",
        |words| words[0] == "curl",
        Elsewhere("src/operation/src/metrics_server/tests.rs", "GET /metrics"),
    ),
    (
        "the lab",
        |words| words[..2] == ["cargo", "lab"],
        Elsewhere("sim/lab/src/lib.rs", "fn every_command_of_a_document_is_run"),
    ),
    // The reader's own: its program is a snippet of the book.
    (
        "the first program",
        |words| {
            words[0] == "cd"
                || matches!(
                    words,
                    ["cargo", "run"] | ["cargo", "run", "--", _] | ["cargo", "new", ..]
                )
        },
        Elsewhere("src/book.rs", "start/first-program.md"),
    ),
    // Its daemon is that of an example.
    (
        "a client of the node daemon that shares memory",
        |words| words.contains(&"doorbell-daemon") && words.contains(&"arena"),
        Elsewhere("sim/scenarios/daemon-sandboxed.toml", "{examples}/arena"),
    ),
    (
        "a client of the node daemon",
        |words| words.contains(&"doorbell-daemon") && words.contains(&"hello"),
        Elsewhere("src/daemon/examples/hello/tests.rs", "fn a_message_is_answered"),
    ),
    ("cargo", |words| words[0] == "cargo", Named),
    (
        "the host's set-up",
        |words| OF_THE_HOST.contains(&words[0]),
        Foreign,
    ),
    (
        "a program on the fake",
        |words| words[0] == "target/debug/your-program",
        Elsewhere("src/program/tests/program/started.rs", "DOORBELL_LIBIBVERBS"),
    ),
    (
        "a program that was built",
        |words| words[0].starts_with("target/"),
        Named,
    ),
];

fn how(words: &[&str]) -> Option<&'static How> {
    // The predicates look at two words.
    let two = [words, &[""]].concat();
    let of = if words.len() < 2 { &two[..] } else { words };
    ROWS.iter().find(|(_, is, _)| is(of)).map(|(_, _, how)| how)
}

#[test]
fn every_command_of_a_document_is_run() {
    let (metadata, folder) = (metadata(), tempfile::tempdir().unwrap());
    prepare(folder.path());
    let mut run = 0;
    let mut seen: Vec<Vec<String>> = Vec::new();
    for DocumentedCommand { document, words } in commands() {
        if seen.contains(&words) {
            continue;
        }
        seen.push(words.clone());
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        let said = format!("{document}: {}", words.join(" "));
        match how(&words).unwrap_or_else(|| panic!("{said}: no row says how it is run")) {
            Run(codes) => is_run(&words, &[], codes, folder.path(), &said),
            Once(option, codes) => is_run(&words, &[option], codes, folder.path(), &said),
            Help => is_run(&words[..2], &["--help"], &[0], folder.path(), &said),
            Starts(line) => drop(listening(&words, folder.path()).line_with(line)),
            Elsewhere(file, line) => {
                let text = fs::read_to_string(root().join(file)).unwrap();
                assert!(text.contains(line), "{said}: {file} has no {line:?}");
                continue;
            }
            Named => {
                is_there(&metadata, &words, &said);
                continue;
            }
            Foreign => continue,
        }
        run += 1;
    }
    assert!(run >= 30, "{run} commands");
}

#[test]
fn a_command_without_a_row_would_be_found() {
    for unknown in [
        &["perftest"][..],
        &["doorbell", "fly", "--high"],
        &["sudo", "modprobe", "rdma_rxe"],
    ] {
        assert!(how(unknown).is_none(), "{unknown:?}");
    }
}

#[test]
fn a_quotation_without_an_end_in_its_line_would_be_found() {
    let torn = "`doorbell bw\n--size 8`\n";
    let text = "- ```text\n  a ` alone\n  ```\n```sh\necho `\n```\n``a ` b``\n";
    assert_eq!(torn_line(text), None);
    assert_eq!(torn_line(torn), Some(1));
    assert_eq!(torn_line(&format!("`one`\n{torn}")), Some(2));
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Keys, and the snapshots of two hosts.
fn prepare(folder: &Path) {
    for words in [
        &["keygen", "keys"][..],
        &["topo", "--save", "a.json", "--name", "a"],
        &["topo", "--save", "b.json", "--name", "b"],
    ] {
        let mut command = program(words);
        command.current_dir(folder);
        let (code, said) = ended(command, Stdio::null());
        assert_eq!(code, Some(0), "{words:?}: {said}");
    }
}

fn is_run(words: &[&str], more: &[&str], codes: &[i32], folder: &Path, said: &str) {
    // A key is never written over.
    if let [_, "keygen", file, ..] = words {
        let _ = fs::remove_file(folder.join(file));
    }
    let mut command = program(&words[1..]);
    command.args(more).current_dir(folder);
    let (code, error) = ended(command, Stdio::null());
    assert!(
        code.is_some_and(|code| codes.contains(&code)),
        "{said}: {code:?}: {error}"
    );
}

/// A side that listens, at ports that are free.
fn listening(words: &[&str], folder: &Path) -> Running {
    let words: Vec<_> = words.iter().map(|word| word.replace(":9400", ":0")).collect();
    let words: Vec<_> = words[1..].iter().map(String::as_str).collect();
    let mut command = program(&words);
    command.current_dir(folder).args(["--listen", "127.0.0.1:0"]);
    Running::start(command)
}

/// The workspace as `cargo metadata` describes it.
fn metadata() -> Value {
    let mut command = Command::new(env!("CARGO"));
    command.args(["metadata", "--no-deps", "--offline", "--format-version", "1"]);
    let output = command.current_dir(root()).output().unwrap();
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

/// There is what a command builds or starts. An example that this build has made is run with what stands behind `--`.
fn is_there(metadata: &Value, words: &[&str], said: &str) {
    let packages = metadata["packages"].as_array().unwrap();
    let mut sides = words.splitn(2, |word| *word == "--");
    let (ours, theirs) = (sides.next().unwrap(), sides.next());
    let package = behind(ours, "-p").unwrap_or("doorbell");
    let package = packages.iter().find(|one| one["name"] == package);
    let package = package.unwrap_or_else(|| panic!("{said}: no such package"));
    let has = |kind: &str, name: &str| {
        let targets = package["targets"].as_array().unwrap();
        let is_it = |target: &Value| target["name"] == name && target["kind"][0] == kind;
        targets.iter().any(is_it)
    };
    if let Some((_, name)) = words[0].split_once("/examples/") {
        return assert!(has("example", name), "{said}: no example {name}");
    }
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
    let features = behind(ours, "--features").unwrap_or_default();
    for feature in features.split(',').filter(|feature| !feature.is_empty()) {
        let feature = feature.trim_start_matches("doorbell/");
        assert!(
            !package["features"][feature].is_null(),
            "{said}: no feature {feature}"
        );
    }
    if ours.get(1) != Some(&"run") {
        return;
    }
    let Some(example) = behind(ours, "--example") else {
        return assert_eq!(package["default_run"], "doorbell", "{said}: which binary?");
    };
    let built = Path::new(env!("CARGO_BIN_EXE_doorbell"))
        .with_file_name("examples")
        .join(example);
    if !built.exists() {
        eprintln!("skipped: {said}: this build has no examples");
        return;
    }
    // With optimisation it measures: as it is built here that takes minutes, and says nothing.
    if ours.contains(&"--release") {
        return;
    }
    let mut command = Command::new(built);
    command.args(theirs.unwrap_or_default());
    let (code, error) = ended(command, Stdio::null());
    assert_eq!(code, Some(0), "{said}: {error}");
}
