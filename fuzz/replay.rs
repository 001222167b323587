//! The seeds of a target, for the tests that replay them.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns the folder of a target's seeds.
pub(crate) fn folder(target: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut corpora = here.ancestors().map(|above| above.join("fuzz/corpus"));
    let corpora = corpora.find(|corpora| corpora.is_dir());
    corpora.expect("no seeds of anything").join(target)
}

/// Checks each seed of a target, of which there must be at least one.
pub(crate) fn replay(target: &str, check: impl Fn(&[u8])) {
    let mut replayed = 0;
    for entry in fs::read_dir(folder(target)).unwrap() {
        check(&fs::read(entry.unwrap().path()).unwrap());
        replayed += 1;
    }
    assert!(replayed > 0, "no seed of {target}");
}
