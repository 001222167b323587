//! Attempts of safe code at misuse, in `tests/refused`. The compiler refuses each with exactly the errors named beside it. Without
//! the attempts the files compile.
//!
//! An attempt is a line that ends in `//~` and the codes of its errors. Codes and lines are compared. The compiler's
//! messages are not, since they change from release to release.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

const MARK: &str = "//~ ";

/// The libraries the attempts are compiled against.
const LIBRARIES: [&str; 2] = ["doorbell", "doorbell_sim"];

/// Errors, each by its line and its code.
type Errors = BTreeSet<(u64, String)>;

/// The compiler, the libraries for the attempts, and a folder for the programs.
struct Compiler {
    rustc: std::ffi::OsString,
    libraries: BTreeMap<String, PathBuf>,
    folder: PathBuf,
}

impl Compiler {
    /// Builds the libraries as they are now; fresh ones are only looked up.
    fn new(cargo: &std::ffi::OsStr) -> Self {
        let output = Command::new(cargo)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .args(["build", "--quiet", "--lib", "--message-format=json"])
            .args(LIBRARIES.map(|name| format!("--package={}", name.replace('_', "-"))))
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let mut libraries = BTreeMap::new();
        for message in messages(&output.stdout) {
            let name = message["target"]["name"].as_str().unwrap_or_default();
            if message["reason"] != "compiler-artifact" || !LIBRARIES.contains(&name) {
                continue;
            }
            let files = message["filenames"].as_array().unwrap().iter();
            let file = files
                .filter_map(Value::as_str)
                .find(|file| file.ends_with(".rlib"));
            libraries.insert(name.to_owned(), PathBuf::from(file.unwrap()));
        }
        assert_eq!(libraries.len(), LIBRARIES.len(), "{libraries:?}");
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("refused");
        fs::create_dir_all(&folder).unwrap();
        Self {
            rustc: std::env::var_os("RUSTC").unwrap_or("rustc".into()),
            libraries,
            folder,
        }
    }

    /// Compiles a program; says what was wrong with it, with the compiler's words.
    fn errors(&self, name: &str, text: &str) -> (Errors, String) {
        let file = self.folder.join(format!("{name}.rs"));
        fs::write(&file, text).unwrap();
        let mut command = Command::new(&self.rustc);
        command
            .args(["--edition=2024", "--crate-type=lib", "--emit=metadata"])
            .args(["--error-format=json", "--cap-lints=allow", "--out-dir"])
            .arg(&self.folder)
            .arg(&file);
        for (name, library) in &self.libraries {
            command
                .arg("--extern")
                .arg(format!("{name}={}", library.display()));
            command
                .arg("-L")
                .arg(format!("dependency={}", deps(library).display()));
        }
        let output = command.output().unwrap();
        let (mut errors, mut words) = (Errors::new(), String::new());
        for message in messages(&output.stderr) {
            if message["level"] != "error" {
                continue;
            }
            words += message["rendered"].as_str().unwrap_or_default();
            let spans = message["spans"].as_array().unwrap().iter();
            // The last message counts the others, and stands nowhere.
            for span in spans.filter(|span| span["is_primary"] == true) {
                let code = message["code"]["code"].as_str().unwrap_or("without a code");
                errors.insert((span["line_start"].as_u64().unwrap(), code.to_owned()));
            }
        }
        let is_refused = !output.status.success();
        assert_eq!(
            is_refused,
            !errors.is_empty(),
            "{name}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        (errors, words)
    }
}

/// Returns the folder of the libraries that a library needs.
fn deps(library: &Path) -> PathBuf {
    let folder = library.parent().unwrap();
    match folder.file_name() {
        Some(name) if name == "deps" => folder.to_owned(),
        _ => folder.join("deps"),
    }
}

/// The lines that are JSON.
fn messages(output: &[u8]) -> Vec<Value> {
    let text = String::from_utf8_lossy(output);
    text.lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

/// The errors a program says it has.
fn marked(text: &str) -> Errors {
    (1..)
        .zip(text.lines())
        .filter_map(|(line, text)| Some((line, text.split_once(MARK)?.1)))
        .flat_map(|(line, codes)| codes.split_whitespace().map(move |code| (line, code.to_owned())))
        .collect()
}

/// The program without its attempts.
fn without_attempts(text: &str) -> String {
    let kept = text
        .lines()
        .map(|line| if line.contains(MARK) { "" } else { line });
    kept.collect::<Vec<_>>().join("\n")
}

#[test]
fn every_attempt_is_refused_for_its_own_reason() {
    let Some(cargo) = std::env::var_os("CARGO") else {
        eprintln!("SKIPPED: every_attempt_is_refused_for_its_own_reason: not run by cargo");
        return;
    };
    let compiler = Compiler::new(&cargo);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/refused");
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    let (mut attempts, mut failures) = (0, Vec::new());
    for file in files {
        let name = file.file_stem().unwrap().to_str().unwrap();
        let text = fs::read_to_string(&file).unwrap();
        let expected = marked(&text);
        assert!(!expected.is_empty(), "{name} attempts nothing");
        attempts += expected.len();
        let (errors, words) = compiler.errors(name, &text);
        if errors != expected {
            let missing: Vec<_> = expected.difference(&errors).collect();
            let others: Vec<_> = errors.difference(&expected).collect();
            failures.push(format!(
                "{name}: not refused {missing:?}, refused besides {others:?}\n{words}"
            ));
        }
        let (errors, words) = compiler.errors(&format!("{name}_allowed"), &without_attempts(&text));
        if !errors.is_empty() {
            failures.push(format!("{name}: without its attempts, {errors:?}\n{words}"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    println!("{attempts} attempts, each refused");
}

#[test]
fn marks_are_read() {
    let text = "one\ntwo; //~ E0001 E0002\nthree";
    let codes = ["E0001", "E0002"].map(|code| (2, code.to_owned()));
    assert_eq!(marked(text), Errors::from(codes));
    assert_eq!(without_attempts(text), "one\n\nthree");
}
