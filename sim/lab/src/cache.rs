//! Cache of the lab between runs, outside the repository: entries that are either whole, with a manifest of
//! checksums, or not there.
//!
//! An entry is built in a folder of its own, and renamed into place when its manifest is written. So an
//! interrupted run leaves nothing that looks like a whole entry.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Name of the manifest in an entry.
const MANIFEST: &str = "manifest.json";

/// The lab's cache.
#[derive(Clone, Debug)]
pub(crate) struct Cache {
    root: PathBuf,
}

/// Content of an entry, and its sources.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    /// Free-form facts: versions, sources and their checksums.
    pub(crate) facts: BTreeMap<String, String>,
    /// Every file, by its path in the entry.
    files: BTreeMap<String, Recorded>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Recorded {
    bytes: u64,
    sha256: String,
}

/// How closely an entry is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scrutiny {
    /// Every file is there with its size: at each use.
    Sizes,
    /// Every file has its checksum: in set-up.
    Checksums,
}

impl Cache {
    /// The user's cache: `$DOORBELL_LAB_CACHE`, else `doorbell-lab` under
    /// `$XDG_CACHE_HOME`, else under `~/.cache`.
    pub(crate) fn open() -> Result<Self> {
        let given = |name: &str| {
            std::env::var_os(name)
                .filter(|v| !v.is_empty())
                .map(PathBuf::from)
        };
        let root = given("DOORBELL_LAB_CACHE")
            .or_else(|| given("XDG_CACHE_HOME").map(|dir| dir.join("doorbell-lab")))
            .or_else(|| given("HOME").map(|dir| dir.join(".cache/doorbell-lab")))
            .context("no place for a cache: set DOORBELL_LAB_CACHE to a folder")?;
        ensure!(
            root.is_absolute(),
            "the cache folder {} is not an absolute path",
            root.display()
        );
        Self::at(root)
    }

    /// A cache in a given folder.
    pub(crate) fn at(root: PathBuf) -> Result<Self> {
        fs::create_dir_all(&root)
            .with_context(|| format!("cannot make the cache folder {}", root.display()))?;
        Ok(Self { root })
    }

    /// Returns its folder.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// A folder for what is not an entry: lists that a tool keeps for itself.
    pub(crate) fn folder(&self, name: &str) -> Result<PathBuf> {
        let path = self.root.join(name);
        fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(path)
    }

    /// A whole entry, if it is there.
    pub(crate) fn find(&self, name: &str, scrutiny: Scrutiny) -> Option<(PathBuf, Manifest)> {
        let path = self.root.join(name);
        let manifest = Manifest::read(&path).ok()?;
        manifest.check(&path, scrutiny).ok()?;
        Some((path, manifest))
    }

    /// The entry of this name; `build` fills its folder if it is not whole.
    pub(crate) fn entry(
        &self,
        name: &str,
        scrutiny: Scrutiny,
        build: impl FnOnce(&Path) -> Result<BTreeMap<String, String>>,
    ) -> Result<(PathBuf, Manifest)> {
        let _lock = self.lock(name)?;
        if let Some(found) = self.find(name, scrutiny) {
            return Ok(found);
        }
        let path = self.root.join(name);
        let partial = self.root.join(format!("{name}.partial"));
        for stale in [&partial, &path] {
            if stale.exists() {
                fs::remove_dir_all(stale).with_context(|| format!("cannot remove {}", stale.display()))?;
            }
        }
        fs::create_dir_all(&partial).with_context(|| format!("cannot make {}", partial.display()))?;
        let facts = build(&partial)?;
        let manifest = Manifest::of(&partial, facts)?;
        fs::write(partial.join(MANIFEST), serde_json::to_vec_pretty(&manifest)?)?;
        File::open(&partial)?.sync_all()?;
        fs::rename(&partial, &path).with_context(|| format!("cannot put {} in place", path.display()))?;
        Ok((path, manifest))
    }

    /// A small text kept under `name`, if there is one.
    pub(crate) fn note(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.root.join(name)).ok()
    }

    /// Keeps a small text, replacing what was there at once.
    pub(crate) fn set_note(&self, name: &str, text: &str) -> Result<()> {
        let path = self.root.join(name);
        // Other labs may keep the same note now.
        let partial = self.root.join(format!("{name}.{}.partial", std::process::id()));
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(&partial, text).with_context(|| format!("cannot write {}", partial.display()))?;
        fs::rename(&partial, &path).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Two labs do not build one entry at once.
    fn lock(&self, name: &str) -> Result<File> {
        let path = self.root.join(format!("{name}.lock"));
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        let file = File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive)?;
        Ok(file)
    }
}

impl Manifest {
    fn read(entry: &Path) -> Result<Self> {
        Ok(serde_json::from_slice(&fs::read(entry.join(MANIFEST))?)?)
    }

    fn of(entry: &Path, facts: BTreeMap<String, String>) -> Result<Self> {
        let mut files = BTreeMap::new();
        let paths = files_under(entry)?;
        for path in &paths {
            let sha256 = sha256(&entry.join(path))?;
            let bytes = fs::metadata(entry.join(path))?.len();
            files.insert(path.clone(), Recorded { bytes, sha256 });
        }
        Ok(Self { facts, files })
    }

    fn check(&self, entry: &Path, scrutiny: Scrutiny) -> Result<()> {
        for (path, recorded) in &self.files {
            let bytes = fs::metadata(entry.join(path))
                .with_context(|| format!("{path} is missing"))?
                .len();
            ensure!(
                bytes == recorded.bytes,
                "{path} has {bytes} bytes, not {}",
                recorded.bytes
            );
        }
        if scrutiny == Scrutiny::Checksums {
            for (path, recorded) in &self.files {
                let found = sha256(&entry.join(path))?;
                ensure!(found == recorded.sha256, "{path} has changed");
            }
        }
        Ok(())
    }
}

/// Regular files below a folder, as sorted relative paths.
fn files_under(folder: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(current) = folders.pop() {
        for entry in fs::read_dir(&current)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() {
                let path = entry.path();
                let relative = path.strip_prefix(folder)?;
                let Some(text) = relative.to_str() else {
                    bail!("{} is not UTF-8", path.display())
                };
                found.push(text.to_owned());
            }
        }
    }
    found.sort();
    Ok(found)
}

/// The checksum of a file, in hexadecimal.
fn sha256(path: &Path) -> Result<String> {
    let unread = || format!("cannot read {}", path.display());
    let mut file = File::open(path).with_context(unread)?;
    let (mut hash, mut piece) = (Sha256::new(), vec![0; 256 << 10]);
    loop {
        let bytes = file.read(&mut piece).with_context(unread)?;
        let Some(read) = piece.get(..bytes).filter(|read| !read.is_empty()) else {
            break;
        };
        hash.update(read);
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use super::*;

    fn cache() -> (tempfile::TempDir, Cache) {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().join("cache")).unwrap();
        (folder, cache)
    }

    fn facts() -> BTreeMap<String, String> {
        BTreeMap::from([("version".to_owned(), "1".to_owned())])
    }

    #[test]
    fn an_entry_is_built_once() {
        let (_folder, cache) = cache();
        let built = Cell::new(0);
        for _ in 0..2 {
            let (path, manifest) = cache
                .entry("kernels/one", Scrutiny::Checksums, |dir| {
                    built.set(built.get() + 1);
                    fs::create_dir(dir.join("sub"))?;
                    fs::write(dir.join("sub/a file"), "content")?;
                    Ok(facts())
                })
                .unwrap();
            assert_eq!(fs::read_to_string(path.join("sub/a file")).unwrap(), "content");
            assert_eq!(manifest.facts, facts());
        }
        assert_eq!(built.get(), 1);
    }

    #[test]
    fn what_was_interrupted_is_not_there_and_is_built_again() {
        let (_folder, cache) = cache();
        let failed = cache.entry("e", Scrutiny::Sizes, |dir| {
            fs::write(dir.join("half"), "ha")?;
            bail!("interrupted")
        });
        assert!(failed.is_err());
        assert!(cache.find("e", Scrutiny::Sizes).is_none());
        let (path, _) = cache
            .entry("e", Scrutiny::Sizes, |dir| {
                assert!(!dir.join("half").exists(), "nothing of the first attempt is left");
                fs::write(dir.join("whole"), "whole")?;
                Ok(facts())
            })
            .unwrap();
        assert!(path.join("whole").exists() && !path.join("half").exists());
    }

    /// Source: FIPS 180-2, appendix B.
    #[test]
    fn a_checksum_is_the_standards() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "abc").unwrap();
        assert_eq!(
            sha256(&path).unwrap(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        fs::write(&path, "a".repeat(1_000_000)).unwrap();
        assert_eq!(
            sha256(&path).unwrap(),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"
        );
    }

    #[test]
    fn damage_is_seen() {
        let (_folder, cache) = cache();
        let build = |dir: &Path| {
            fs::write(dir.join("file"), "right")?;
            Ok(facts())
        };
        let (path, _) = cache.entry("e", Scrutiny::Sizes, build).unwrap();
        fs::write(path.join("file"), "wrong").unwrap();
        assert!(cache.find("e", Scrutiny::Sizes).is_some(), "same size");
        assert!(cache.find("e", Scrutiny::Checksums).is_none());
        fs::write(path.join("file"), "short").unwrap();
        fs::remove_file(path.join("file")).unwrap();
        assert!(cache.find("e", Scrutiny::Sizes).is_none());
        let (path, _) = cache.entry("e", Scrutiny::Checksums, build).unwrap();
        assert_eq!(fs::read_to_string(path.join("file")).unwrap(), "right");
    }

    #[test]
    fn notes_are_kept() {
        let (_folder, cache) = cache();
        assert_eq!(cache.note("n"), None);
        cache.set_note("n", "text").unwrap();
        assert_eq!(cache.note("n").as_deref(), Some("text"));
    }
}
