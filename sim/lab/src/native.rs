//! Test programs of this machine itself: all are built first, then each is run by itself.
//!
//! Building is in `building` and has no deadline; running one program is in `running` and has one.

use std::path::{Path, PathBuf};

mod building;
mod running;

pub(crate) use building::{build, chosen};
pub(crate) use running::run;

/// Test programs that one call of cargo builds.
#[derive(Debug)]
pub(crate) struct Suite {
    pub(crate) name: &'static str,
    /// The words for cargo that choose packages and features.
    pub(crate) arguments: &'static [&'static str],
    /// The most seconds one of its programs may print nothing: libtest prints a line for each test that ends. The longest test takes
    /// a minute on two slow cores, and some ten where they are busy.
    silence_s: u64,
    /// Whether its packages have tests in their documentation.
    is_documented: bool,
}

/// All of them. Features are switched on, since a library without them tests the same again.
pub(crate) static SUITES: [Suite; 2] = [
    Suite {
        name: "workspace",
        arguments: &["--features", "doorbell/tracing"],
        silence_s: 15 * 60,
        is_documented: true,
    },
    // Apart, since it builds what nothing else needs: `cargo test` by itself stays quick. Its programs run cargo and the linker.
    Suite {
        name: "proofs",
        arguments: &["--package", "doorbell-proofs"],
        silence_s: 30 * 60,
        is_documented: false,
    },
];

/// One test program, or all tests in documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    /// The package, and what cargo calls the target: `doorbell test links`.
    pub(crate) name: String,
    /// The index of its suite in [`SUITES`].
    pub(crate) suite: usize,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Built {
        executable: PathBuf,
        /// The package's folder, in which cargo runs its tests.
        folder: PathBuf,
        /// The words for cargo that choose this one.
        selector: Vec<String>,
    },
    /// Tests in documentation: cargo builds them when it runs them.
    Documentation,
}

impl Program {
    pub(crate) fn suite(&self) -> &'static Suite {
        // The index was made from this very list.
        #[expect(clippy::indexing_slicing, reason = "indices are made from this list")]
        &SUITES[self.suite]
    }

    /// The most seconds it may print nothing. While tests in documentation run, cargo compiles one crate after the other.
    pub(crate) fn silence_s(&self) -> u64 {
        let compiles = matches!(self.kind, Kind::Documentation);
        self.suite()
            .silence_s
            .saturating_mul(if compiles { 4 } else { 1 })
    }

    /// The file whose change means another program.
    pub(crate) fn executable(&self) -> Option<&Path> {
        match &self.kind {
            Kind::Built { executable, .. } => Some(executable),
            Kind::Documentation => None,
        }
    }

    /// The command that runs this program alone, or one test of it.
    pub(crate) fn command(&self, test: Option<&str>) -> String {
        let mut words = vec!["cargo", "test"];
        match &self.kind {
            Kind::Built { selector, .. } => words.extend(selector.iter().map(String::as_str)),
            Kind::Documentation => {
                words.push("--doc");
                words.extend(self.suite().arguments);
            }
        }
        match (test, &self.kind) {
            (Some(test), Kind::Built { .. }) => {
                words.extend(["--", "--exact", test]);
                words.join(" ")
            }
            // The name has blanks and a line's number: a part of it that stays.
            (Some(test), Kind::Documentation) => {
                let file = test.split(" - ").next().unwrap_or(test);
                words.extend(["--", file]);
                words.join(" ")
            }
            (None, _) => words.join(" "),
        }
    }
}
