//! The rules of the house that text alone can show: lints, dependencies between packages, the source of
//! atomics.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test")]

mod api;
mod arrows;
mod circles;
mod packages;
mod prose;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

/// Each package's folder, and what of ours and of others it may depend on. A star is anything.
const MAY_DEPEND: &[(&str, &[&str])] = &[
    (
        "core",
        &[
            "bitflags",
            "heapless",
            "static_assertions",
            "zerocopy",
            "loom",
            "shuttle",
        ],
    ),
    ("hotpath", &["doorbell-core", "static_assertions"]),
    ("ffi", &["doorbell-core", "rdma_sys", "heapless", "libc"]),
    ("ffi/sys", &["libc"]),
    ("ffi/fake", &["rdma_sys", "libc"]),
    ("ffi/tokio", &["doorbell", "tokio"]),
    ("ffi/nccl", &["doorbell", "doorbell-operation", "libc"]),
    ("ffi/sandbox", &["libc", "rustix"]),
    ("ffi/proofs", &["*"]),
    ("ffi/proofs/freestanding", &["doorbell-core", "doorbell-hotpath"]),
    ("sim", &["doorbell-core"]),
    ("sim/conformance", &["doorbell-core"]),
    (
        ".",
        &[
            "doorbell-core",
            "doorbell-hotpath",
            "doorbell-ffi",
            "getrandom",
            "hmac",
            "rustix",
            "scopeguard",
            "sha2",
            // Behind its feature.
            "tracing",
        ],
    ),
    (
        "src/operation",
        &["doorbell", "rustix", "serde", "serde_json", "toml"],
    ),
    ("src/daemon", &["doorbell", "rustix", "tracing", "zerocopy"]),
    (
        "src/broker",
        &["doorbell-sandbox", "rustix", "serde", "serde_json", "toml"],
    ),
    ("src/program", &["*"]),
    ("sim/swarm", &["*"]),
    ("sim/lab", &["*"]),
    ("sim/lab/models", &["*"]),
    ("benches", &["*"]),
];

/// Packages that an embedder gets with the root package, with any of its features.
const EMBEDDED: &[&str] = &[
    "doorbell-core",
    "doorbell-hotpath",
    "doorbell-ffi",
    "getrandom",
    // Proofs of a key, which no embedder can do without and nobody should write anew.
    "hmac",
    "sha2",
    "rustix",
    // Holds objects that are destroyed elsewhere, so their use needs no check; by hand that takes unsafe.
    "scopeguard",
];

/// The packages where unsafe is allowed.
const UNSAFE: &[&str] = &[
    "ffi",
    "ffi/sys",
    "ffi/fake",
    "ffi/tokio",
    "ffi/nccl",
    "ffi/sandbox",
    "ffi/proofs",
    "ffi/proofs/freestanding",
];

/// Nobody depends on these.
const ENDS: &[&str] = &[
    "doorbell-lab",
    "doorbell-swarm",
    "doorbell-models",
    "doorbell-benches",
    "doorbell-program",
    "doorbell-proofs",
    "doorbell-nccl",
];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn manifest(folder: &str) -> Table {
    let path = root().join(folder).join("Cargo.toml");
    fs::read_to_string(&path)
        .unwrap()
        .parse()
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn members() -> Vec<String> {
    let workspace = manifest(".");
    let members = workspace["workspace"]["members"].as_array().unwrap();
    members
        .iter()
        .map(|member| member.as_str().unwrap().to_owned())
        .collect()
}

/// The normal dependencies of a package, for all targets.
fn dependencies(manifest: &Table) -> Vec<(String, Value)> {
    let mut tables = vec![manifest.get("dependencies")];
    if let Some(targets) = manifest.get("target").and_then(Value::as_table) {
        tables.extend(targets.values().map(|target| target.get("dependencies")));
    }
    tables
        .into_iter()
        .flatten()
        .flat_map(|table| table.as_table().unwrap().clone())
        .collect()
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    files(folder, "rs")
}

/// The files of a folder and of those in it that have this extension.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|of| of == extension) {
            found.push(path);
        }
    }
    found
}

/// Whether a file of sources is one of tests, by its name or that of a folder above it.
fn is_of_tests(name: &str) -> bool {
    name.split(['/', '.'])
        .any(|part| matches!(part, "tests" | "hostile"))
}

/// The lines of a source file that are code, up to the tests that it ends with.
fn code_before_tests(path: &Path) -> Vec<(usize, String)> {
    let mut lines = code(path);
    // A test module in a file of its own is named in the middle.
    let opens = |line: &str| line.starts_with("mod ") && line.ends_with('{');
    let is_begin = |two: &[(usize, String)]| two[0].1 == "#[cfg(test)]" && opens(&two[1].1);
    if let Some(tests) = lines.windows(2).position(is_begin) {
        lines.truncate(tests);
    }
    lines
}

/// The lines of a source file that are code.
fn code(path: &Path) -> Vec<(usize, String)> {
    let text = fs::read_to_string(path).unwrap();
    text.lines()
        .enumerate()
        .filter(|(_, line)| !line.trim_start().starts_with("//"))
        .map(|(index, line)| (index + 1, line.to_owned()))
        .collect()
}

#[test]
fn one_lint_table_forbids_unsafe_but_in_ffi() {
    let workspace = manifest(".");
    let table = &workspace["workspace"]["lints"];
    assert_eq!(table["rust"]["unsafe_code"].as_str(), Some("forbid"));
    for member in members() {
        let lints = manifest(&member)["lints"].clone();
        if !UNSAFE.contains(&member.as_str()) {
            assert_eq!(
                lints["workspace"].as_bool(),
                Some(true),
                "{member} has the workspace's table"
            );
            continue;
        }
        let mut expected = table.clone();
        expected["rust"]["unsafe_code"] = Value::from("allow");
        assert_eq!(
            lints, expected,
            "{member} has the workspace's table but for unsafe_code"
        );
    }
}

#[test]
fn every_member_is_known_here() {
    let known: BTreeSet<_> = MAY_DEPEND
        .iter()
        .map(|(folder, _)| (*folder).to_owned())
        .collect();
    assert_eq!(members().into_iter().collect::<BTreeSet<_>>(), known);
}

#[test]
fn arrows_point_one_way() {
    for (folder, allowed) in MAY_DEPEND {
        for (name, _) in dependencies(&manifest(folder)) {
            assert!(
                allowed.contains(&"*") || allowed.contains(&name.as_str()),
                "{folder} depends on {name}"
            );
            assert!(
                !ENDS.contains(&name.as_str()),
                "{folder} depends on {name}, which nothing may"
            );
        }
    }
}

#[test]
fn an_embedder_pays_for_nothing_else() {
    let manifest = manifest(".");
    assert_eq!(manifest["features"]["default"].as_array().unwrap().len(), 0);
    for (name, value) in dependencies(&manifest) {
        let optional = value.get("optional").and_then(Value::as_bool) == Some(true);
        assert!(
            optional || EMBEDDED.contains(&name.as_str()),
            "{name} is neither optional nor for embedders"
        );
    }
}

#[test]
fn atomics_come_from_one_place() {
    for folder in ["core/src", "hotpath/src"] {
        for path in sources(&root().join(folder)) {
            if path.ends_with("core/src/sync.rs") {
                continue;
            }
            for (line, text) in code(&path) {
                assert!(
                    !text.contains("sync::atomic"),
                    "{}:{line}: {text}",
                    path.display()
                );
            }
        }
    }
}

/// An ordering without a name is one that no model weakens; the control plane locks, or uses what has names.
#[test]
fn orderings_have_names() {
    for folder in ["core/src", "hotpath/src", "src"] {
        for path in sources(&root().join(folder)) {
            // This file gives the names, and weakens them.
            if path.ends_with("core/src/sync.rs") {
                continue;
            }
            for (line, text) in code(&path) {
                for stronger in ["Acquire", "Release", "AcqRel", "SeqCst"] {
                    assert!(
                        !text.contains(&format!("Ordering::{stronger}")),
                        "{}:{line}: {text}",
                        path.display()
                    );
                }
            }
        }
    }
}

/// An ordering is documented with its partner by name; so is what else has such a name.
#[test]
fn constants_that_documentation_names_exist() {
    let words = |text: &str| -> Vec<String> {
        let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
        let named = words.filter(|word| word.contains('_') && !word.contains(char::is_lowercase));
        named.map(str::to_owned).collect()
    };
    let paths = ["core/src", "hotpath/src"]
        .map(|folder| sources(&root().join(folder)))
        .concat();
    let lines = paths.iter().flat_map(|path| code(path));
    let used: BTreeSet<_> = lines.flat_map(|(_, line)| words(&line)).collect();
    for path in paths {
        let text = fs::read_to_string(&path).unwrap();
        for line in text.lines().filter(|line| line.trim_start().starts_with("//")) {
            for name in line.split('`').skip(1).step_by(2).flat_map(words) {
                assert!(used.contains(&name), "{}: {name}", path.display());
            }
        }
    }
}

#[test]
fn nothing_allocates_or_needs_std_below_the_control_plane() {
    for folder in ["core/src", "hotpath/src"] {
        let lib = fs::read_to_string(root().join(folder).join("lib.rs")).unwrap();
        assert!(lib.contains("#![no_std]"), "{folder}");
        for path in sources(&root().join(folder)) {
            for (line, text) in code(&path) {
                assert!(!text.contains("extern crate alloc"), "{}:{line}", path.display());
            }
        }
    }
}

#[test]
fn raw_verbs_stay_in_ffi() {
    for folder in ["core/src", "hotpath/src", "sim/src", "src"] {
        for path in sources(&root().join(folder)) {
            for (line, text) in code(&path) {
                assert!(!text.contains("rdma_sys"), "{}:{line}: {text}", path.display());
            }
        }
    }
}

/// File in which a fabric follows a clock that its builder was given, and wakes sleeping threads.
const REAL_TIME: &str = "sim/src/real_time.rs";

/// Files above `machine` that meet this host, too: threads, servers, and readers of its facts.
const MEETS_THE_HOST: [&str; 15] = [
    "src/broker/src/container_state.rs",
    "src/broker/src/containers.rs",
    "src/broker/src/host.rs",
    "src/broker/src/sandbox.rs",
    "src/broker/src/supervisor.rs",
    "src/connect/background.rs",
    "src/daemon/src/client.rs",
    "src/daemon/src/serving",
    "src/daemon/tests",
    "src/operation/tests",
    "src/operation/src/metrics_server",
    "src/operation/src/port_counters.rs",
    "src/operation/src/settings_file.rs",
    "src/operation/src/survey",
    "src/trust/key_file.rs",
];

/// A simulated host has no real clock, socket or entropy. This host's clocks, sockets and entropy are in `machine`, in the few files
/// above it that are listed, and in `ffi`.
#[test]
fn clocks_sockets_and_entropy_stay_at_the_boundary() {
    let real = [
        "std::time",
        "std::net",
        "rustix",
        "getrandom::",
        "Condvar",
        "thread::sleep",
        "wait_timeout",
        "doorbell_ffi::now",
    ];
    let mut seen = 0;
    for folder in ["core/src", "hotpath/src", "sim/src", "src"] {
        for path in sources(&root().join(folder)) {
            let name = path.strip_prefix(root()).unwrap().to_str().unwrap();
            let mut apart = ["src/machine/", "src/program/", REAL_TIME]
                .iter()
                .chain(&MEETS_THE_HOST);
            let is_apart = apart.any(|apart| name.starts_with(apart));
            for (line, text) in code(&path) {
                let found = real.iter().find(|word| text.contains(**word));
                if is_apart {
                    seen += usize::from(found.is_some());
                    continue;
                }
                assert_eq!(found, None, "{}:{line}: {text}", path.display());
            }
        }
    }
    assert!(seen > 5, "the boundary has them");
}

/// Only these files log events, and none of them is on the way of a message.
#[test]
fn the_data_path_logs_nothing() {
    let logging = [
        "src/connect/connecting.rs",
        "src/connect/connector.rs",
        "src/machine/reaper.rs",
        "src/connect/handshakes/backlog.rs",
        "src/connect/handshakes/rejection_log.rs",
        "src/link/dialing.rs",
        "src/link/log.rs",
        "src/memory/shared.rs",
        "src/connect/listener.rs",
        "src/mesh/membership.rs",
        "src/mesh/discovery.rs",
        "src/connect/node.rs",
        "src/daemon/src/peers.rs",
        "src/daemon/src/serving/server/watching.rs",
        "src/rails/mod.rs",
        "src/worker/closing.rs",
        "src/worker/device_events.rs",
    ];
    let mut seen = BTreeSet::new();
    for folder in ["core/src", "hotpath/src", "ffi/src", "src"] {
        for path in sources(&root().join(folder)) {
            let name = path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
            let is_macro = ["src/daemon/src/log.rs", "src/machine/log.rs"].contains(&name.as_str());
            if is_macro || name.starts_with("src/program/") {
                continue;
            }
            for (line, text) in code(&path) {
                assert!(!text.contains("tracing::"), "{name}:{line}: {text}");
                if text.contains("log!(") || text.contains("machine::log") {
                    assert!(logging.contains(&name.as_str()), "{name}:{line}: {text}");
                    seen.insert(name.clone());
                }
            }
        }
    }
    assert_eq!(seen.len(), logging.len(), "{seen:?}");
}

/// The floors of `src`, from the ground: a file, or a folder. A file imports from its own floor and from those below.
const FLOORS: &[&str] = &[
    "provider",
    "wire",
    "interprocess",
    "error",
    "machine",
    "rails",
    "trust",
    "memory",
    "worker",
    "connect",
    "link",
    "mesh",
    "requests",
];

/// The index of the floor of a path in `src`, or in the crate.
fn floor_of(path: &str) -> Option<usize> {
    let first = path.split(['/', ':']).next().unwrap();
    FLOORS.iter().position(|floor| *floor == first)
}

/// The paths from the root of the crate in a line of code: `machine::tcp::Tcp` for `crate::machine::tcp::Tcp`.
fn named_paths(line: &str) -> impl Iterator<Item = &str> {
    let is_of_path = |c: char| c.is_alphanumeric() || "_:{".contains(c);
    let behind_crate = line.split("crate::").skip(1);
    behind_crate.map(move |rest| rest.split(|c| !is_of_path(c)).next().unwrap())
}

/// Faults in the imports of a file.
fn wrong_imports(name: &str, lines: &[(usize, String)]) -> Vec<String> {
    let own = floor_of(name).unwrap();
    let mut wrong = Vec::new();
    for (number, line) in lines {
        for path in named_paths(line) {
            match floor_of(path) {
                Some(floor) if floor <= own => {}
                Some(_) => wrong.push(format!("{name}:{number}: {path} is above {}", FLOORS[own])),
                None => wrong.push(format!(
                    "{name}:{number}: crate::{path} hides its floor: name the module"
                )),
            }
        }
    }
    wrong
}

#[test]
fn a_file_of_src_imports_from_its_floor_and_from_below() {
    let src = root().join("src");
    let (mut wrong, mut files) = (Vec::new(), vec![0; FLOORS.len()]);
    for path in sources(&src) {
        let name = path.strip_prefix(&src).unwrap().with_extension("");
        let name = name.to_str().unwrap();
        if ["lib", "book"].contains(&name)
            || name.starts_with("program/")
            || name.starts_with("operation/")
            || name.starts_with("daemon/")
            || name.starts_with("broker/")
        {
            continue;
        }
        let Some(floor) = floor_of(name) else {
            wrong.push(format!("src/{name}.rs is on no floor"));
            continue;
        };
        files[floor] += 1;
        // Tests bring up what is above.
        if is_of_tests(name) {
            continue;
        }
        wrong.extend(wrong_imports(name, &code_before_tests(&path)));
    }
    for (floor, files) in FLOORS.iter().zip(&files) {
        println!("{floor}: {files} files");
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(files.iter().all(|files| *files > 0), "{files:?}");
}

#[test]
fn an_import_from_above_is_found() {
    let of = |name: &str, line: &str| wrong_imports(name, &[(7, line.to_owned())]).join("; ");
    assert_eq!(of("worker/mod", "use crate::error::NodeError;"), "");
    assert_eq!(of("connect/node", "use crate::connect::look::Looks;"), "");
    assert_eq!(
        of("machine/tcp", "use crate::connect::node::Node;"),
        "machine/tcp:7: connect::node::Node is above machine"
    );
    assert_eq!(
        of("worker/mod", "    let links = crate::link::links::Links::new();"),
        "worker/mod:7: link::links::Links::new is above worker"
    );
    for hidden in ["use crate::Channel;", "use crate::{Channel, Event};"] {
        assert!(of("mesh/mod", hidden).contains("hides its floor"), "{hidden}");
    }
}

/// One seed decides everything: nothing that is ordered by an address or a hash, and no thread.
#[test]
fn nothing_in_the_simulation_is_left_to_the_machine() {
    for path in sources(&root().join("sim/src")) {
        if path.ends_with(REAL_TIME) {
            continue;
        }
        for (line, text) in code(&path) {
            let found = ["HashMap", "HashSet", "RandomState", "thread::spawn"]
                .into_iter()
                .find(|word| text.contains(word));
            assert_eq!(found, None, "{}:{line}: {text}", path.display());
        }
    }
}

/// The pages of the book, its summary among them.
fn pages() -> Vec<PathBuf> {
    let mut pages = files(&root().join("docs"), "md");
    pages.sort();
    pages
}

/// `docs/SUMMARY.md` has every page, and every Rust snippet of a page is compiled and run.
#[test]
fn every_page_of_the_book_is_listed_and_its_snippets_run() {
    let docs = root().join("docs");
    let summary = fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
    let run = ["src/book.rs", "ffi/tokio/src/lib.rs", "src/daemon/src/lib.rs"]
        .map(|path| fs::read_to_string(root().join(path)).unwrap());
    for page in pages() {
        let name = page.strip_prefix(&docs).unwrap().to_str().unwrap();
        if name == "SUMMARY.md" {
            continue;
        }
        assert!(
            summary.contains(&format!("]({name})")),
            "docs/SUMMARY.md lacks {name}"
        );
        let has_snippets = fs::read_to_string(&page).unwrap().contains("```rust");
        let is_run = run.iter().any(|file| file.contains(&format!("docs/{name}\"")));
        assert!(is_run || !has_snippets, "src/book.rs lacks docs/{name}");
    }
}

#[test]
fn links_between_the_documents_lead_somewhere() {
    let mut documents = vec![root().join("README.md")];
    documents.extend(pages());
    for folder in ["fuzz", "sim/scenarios", "ffi/sys"] {
        let entries = fs::read_dir(root().join(folder)).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        documents.extend(paths.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    }
    for document in documents {
        let text = fs::read_to_string(&document).unwrap();
        for target in text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split([')', '#']).next())
        {
            if target.is_empty() || target.contains("://") {
                continue;
            }
            let path = document.parent().unwrap().join(target);
            assert!(path.exists(), "{}: {target}", document.display());
        }
    }
}

/// A test that a document names has to exist.
#[test]
fn tests_that_security_names_exist() {
    let text = fs::read_to_string(root().join("docs/security.md")).unwrap();
    let named: BTreeSet<_> = text
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|quoted| {
            let files = ["wire::", "trust::", "links::", "program::", "…"];
            files.iter().any(|file| quoted.starts_with(file))
        })
        .filter_map(|quoted| quoted.rsplit("::").next())
        .collect();
    assert!(named.len() > 8, "{named:?}");
    let tests = [
        sources(&root().join("core/tests/wire")),
        sources(&root().join("src/program/tests")),
        sources(&root().join("tests")),
    ]
    .concat();
    let tests: String = tests
        .iter()
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    for name in named {
        let is_there =
            tests.contains(&format!("#[test]\nfn {name}()")) || tests.contains(&format!("mod {name};"));
        assert!(is_there, "{name}");
    }
}

/// A target without seeds, or with seeds that no test replays, holds nothing between one fuzzing and the next.
#[test]
fn every_fuzz_target_is_replayed() {
    let replays = [
        "core/tests/wire/corpus.rs",
        "hotpath/tests/hostile/main.rs",
        "src/program/src/hostile.rs",
        "src/program/src/perf/hostile.rs",
        "src/mesh/hostile.rs",
        "src/operation/src/metrics/hostile.rs",
        "src/daemon/src/hostile.rs",
        "src/trust/hostile.rs",
        "ffi/nccl/src/relay/hostile.rs",
        "tests/mesh/strangers.rs",
        "sim/lab/src/scenario/hostile.rs",
        "sim/tests/operations/main.rs",
        "sim/tests/plan/main.rs",
        "src/operation/tests/settings/main.rs",
    ]
    .map(|path| fs::read_to_string(root().join(path)).unwrap())
    .concat();
    let manifest = manifest("fuzz");
    let targets = manifest["bin"].as_array().unwrap();
    let targets: BTreeSet<_> = targets
        .iter()
        .map(|target| target["name"].as_str().unwrap())
        .collect();
    // A copy of `handle` with a mistake in it, which runs on the seeds of that.
    let open: BTreeSet<_> = targets
        .iter()
        .filter(|name| **name != "planted")
        .copied()
        .collect();
    assert_ne!(open.len(), targets.len());
    for name in &open {
        let seeds = root().join("fuzz/corpus").join(name);
        let count = fs::read_dir(&seeds).map_or(0, |entries| entries.count());
        assert!(count > 0, "{} has no seed", seeds.display());
        assert!(
            replays.contains(&format!("replay(\"{name}\"")),
            "no test replays {name}"
        );
        let dictionary = root().join(format!("fuzz/dictionaries/{name}.dict"));
        let text = fs::read_to_string(&dictionary)
            .unwrap_or_else(|error| panic!("{}: {error}", dictionary.display()));
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (_, value) = line.split_once('=').unwrap_or_else(|| panic!("{name}: {line}"));
            assert!(
                value.len() > 2 && value.starts_with('"') && value.ends_with('"'),
                "{name}: {line}"
            );
        }
    }
    for (folder, suffix) in [("corpus", ""), ("dictionaries", ".dict")] {
        for entry in fs::read_dir(root().join("fuzz").join(folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let name = name.strip_suffix(suffix).unwrap_or(&name);
            assert!(open.contains(name), "fuzz/{folder}/{name} is of no target");
        }
    }
}
