//! Every document against docs/json.md: each field is there, and of its type, for any command and outcome.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::schema;
use crate::started::program;

/// Fields that no command has here, and where they are checked.
const ELSEWHERE: &[&str] = &[
    // Tests of the program's own: of pingpong, which needs a peer on a device.
    "content_checked",
    "events",
    "gid_kind",
    "gid_reason",
    "iteration_ns",
    "lid",
    "local_end",
    "peer_end",
    "psn",
    "qpn",
    "receive_depth",
    "total_bytes",
    "gid_index",
    // For status, where a kernel counts at ports.
    "counters",
    "retries_per_second",
    // For serve, which ends by a signal, and for status of its daemon: their own test has them.
    "answered_messages",
    "arrived_messages",
    "attached",
    "attached_s",
    "begun_here",
    "cut_off_by_reason",
    "daemon",
    "daemon_epoch",
    "endpoint",
    "endpoints",
    "endpoints_left_out",
    "in_flight",
    "job",
    "job_keys_by_file",
    "jobs",
    "mapped_bytes",
    "node",
    "node_links",
    "nodes",
    "pid",
    "processes",
    "queued",
    "rails_total",
    "rails_up",
    "received_bytes",
    "refused_by_reason",
    "reported",
    "running_s",
    "sees_all",
    "sent_bytes",
    "socket",
    "submitted",
    "taken_bytes",
    "times_lost",
    "uid",
    "waiting_bytes",
    "waiting_frames",
    "cut_off",
    "local_messages",
    "sent_messages",
    "received_messages",
    "undelivered_messages",
    "arena_operations",
    "replaced",
    // For demo, which takes a while where processors are few.
    "left_out",
    // For link, with rails that fail.
    "after_ms",
    "deaths",
    "longest_ms",
    "median_ms",
    "over_after_ms",
    "resumed_after_ms",
    "returns",
    "shell_command",
    "silent_ms",
    "stalled_after_ms",
    "took_ms",
];

/// The document of a command, which is all of its output, and its exit code.
fn document(mut command: Command) -> (Value, i32) {
    let output = command.stderr(Stdio::null()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let document = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{command:?}: {error}: {text}"));
    (document, output.status.code().unwrap())
}

/// Checks the document of a command.
fn check(arguments: &[&str], code: i32, seen: &mut BTreeSet<String>) -> Value {
    let (document, ended) = document(program(&[arguments, &["--json"]].concat()));
    assert_eq!(ended, code, "{arguments:?}: {document}");
    schema::check(&document, seen);
    for common in ["version", "command", "passed", "error"] {
        assert!(document.get(common).is_some(), "{arguments:?}: no {common}");
    }
    assert_eq!(document["command"], arguments[0], "{arguments:?}");
    assert_eq!(document["passed"], code == 0, "{arguments:?}");
    assert_eq!(document["error"].is_null(), code == 0, "{arguments:?}");
    document
}

/// A test of few messages, for more options.
const FEW: [&str; 6] = ["lat", "--simulated", "--op", "send", "-n", "20"];

#[test]
fn every_command_prints_the_fields_that_are_documented() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (keys, job_keys, saved) = (at("keys"), at("job-keys"), at("a.json"));
    let mut seen = BTreeSet::new();
    for arguments in [
        &["lat", "--simulated", "-n", "5", "--warmup", "0"][..],
        &[
            "bw",
            "--simulated",
            "-s",
            "64",
            "-n",
            "40",
            "-l",
            "4",
            "--warmup",
            "0",
        ],
        &["link", "--simulated", "-n", "20", "-s", "4K"],
        &["link", "--simulated", "-n", "20", "--op", "write"],
        &["xfer", "/dev/zero", "--bytes", "1M", "--simulated"],
        &["mesh", "--simulated", "--ranks", "3", "-n", "3"],
        &["status", "--simulated", "--once", "--interval", "0.2"],
        &["keygen", &keys],
        &["keygen", &job_keys, "--job", "7", "--uid", "1000,1001"],
        &["config"],
        &["devices"],
        &["topo", "--name", "a", "--save", &saved],
        &["topo", "--here", "--name", "b", "--snapshot", &saved],
    ] {
        check(arguments, 0, &mut seen);
    }
    let planted = [&FEW[..], &["--plant-corruption", "listener"]].concat();
    let document = check(&planted, 1, &mut seen);
    assert!(document["tests"][0]["corrupt_messages"].as_u64() > Some(0));
    let received = [&FEW[..], &["--shared-receives", "2"]].concat();
    check(&received, 0, &mut seen);
    assert!(fs::read_to_string(&keys).unwrap().starts_with("1:"));
    let unseen: Vec<_> = schema::documented()
        .into_keys()
        .filter(|name| !seen.contains(*name) && !ELSEWHERE.contains(name))
        .collect();
    assert!(
        unseen.is_empty(),
        "docs/json.md names fields that no command has: {unseen:?}"
    );
}

#[test]
fn failures_are_documents_and_nothing_beside_them() {
    let mut seen = BTreeSet::new();
    for (arguments, code, why) in [
        // The command line is checked before any device is opened.
        (&["lat", "--size", "0", "--simulated"][..], 2, "--size"),
        (&["bw", "--nonsense"], 2, "--nonsense"),
        (&["lat"], 1, "doorbell keygen FILE"),
        (&["link"], 1, "doorbell keygen FILE"),
        (&["xfer", "--listen"], 1, "doorbell keygen FILE"),
        (&["xfer", "no/file", "--simulated"], 1, "no/file: No such file"),
        (
            &["mesh", "--rank", "3", "--ranks", "2", "--listen", "127.0.0.1:0"],
            1,
            "there is no rank 3 among 2",
        ),
        (&["link", "no-handle", "--unauthenticated"], 1, "no-handle: "),
        (
            &["lat", "--key-file", "no/keys"],
            1,
            "`doorbell keygen no/keys` makes a file",
        ),
        (&["devices", "-d", "none"], 1, "no RDMA device none: there are "),
        (
            &[
                "lat",
                "--unauthenticated",
                "-d",
                "none",
                "--listen",
                "127.0.0.1:0",
            ],
            1,
            "no RDMA device none",
        ),
        (&["status", "127.0.0.1:1", "--once"], 1, "127.0.0.1:1: "),
        (&["config", "--set", "worker.slots=0"], 1, "worker.slots"),
        (&["topo", "--snapshot", "no/file"], 1, "no/file: "),
        (&["keygen", "/no/such/folder/keys"], 1, "/no/such/folder/keys: "),
    ] {
        let document = check(arguments, code, &mut seen);
        let error = document["error"].as_str().unwrap();
        assert!(error.contains(why), "{arguments:?}: {error}");
    }
}

/// Without an RDMA device a command reports why there is none, and how to get one.
#[test]
fn without_a_device_every_command_says_what_devices_says() {
    let why = |arguments: &[&str]| {
        let mut command = program(&[arguments, &["--json"]].concat());
        command.env("DOORBELL_LIBIBVERBS", "/no/libibverbs.so");
        let (document, code) = document(command);
        assert_eq!(code, 1, "{arguments:?}");
        document["error"].as_str().unwrap().to_owned()
    };
    let devices = why(&["devices"]);
    assert!(devices.contains("rdma link add"), "{devices}");
    for arguments in [
        &["lat", "--unauthenticated"][..],
        &["bw", "127.0.0.1", "--unauthenticated"],
        &["link", "--unauthenticated"],
        &["xfer", "--listen", "--unauthenticated"],
        &[
            "xfer",
            "/dev/null",
            "--bytes",
            "1",
            "127.0.0.1",
            "--unauthenticated",
        ],
        &[
            "mesh",
            "--unauthenticated",
            "--rank",
            "0",
            "--ranks",
            "2",
            "--listen",
            "127.0.0.1:0",
        ],
        &["pingpong"],
        &["demo"],
    ] {
        assert_eq!(why(arguments), devices, "{arguments:?}");
    }
}

/// A failure is printed once.
#[test]
fn a_failure_is_printed_once() {
    let planted = [&FEW[..], &["--plant-corruption"]].concat();
    let output = program(&planted).output().unwrap();
    let told = [output.stdout, output.stderr].concat();
    let told = String::from_utf8(told).unwrap();
    assert_eq!(told.matches("corrupt, the first").count(), 1, "{told}");
}
