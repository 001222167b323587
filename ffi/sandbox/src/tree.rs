//! A tree of files that a program finds at a folder: a file system in memory of its own, read-only, which ends with its namespace.
//!
//! All of it is prepared before the fork. [`Prepared::mount`] allocates nothing.

use std::ffi::{CString, OsString};
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags};

/// A tree to mount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    /// The folder that it covers, which is there.
    pub at: PathBuf,
    /// Its entries. A folder stands before what is in it.
    pub entries: Vec<(PathBuf, TreeEntry)>,
}

/// An entry of a tree. Its path has no root.
#[expect(clippy::exhaustive_enums, reason = "sysfs has no others")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TreeEntry {
    /// A folder.
    Folder,
    /// A file with these bytes.
    File(Vec<u8>),
    /// A symbolic link to this path.
    Link(PathBuf),
}

enum PreparedEntry {
    Folder,
    File(Vec<u8>),
    Link(CString),
}

/// A tree whose paths the kernel takes.
pub(crate) struct Prepared {
    at: CString,
    entries: Vec<(CString, PreparedEntry)>,
}

fn text(path: &Path) -> io::Result<CString> {
    Ok(CString::new(OsString::from(path).into_vec())?)
}

impl Tree {
    pub(crate) fn prepared(&self) -> io::Result<Prepared> {
        let entry = |(path, entry): &(PathBuf, TreeEntry)| {
            let prepared = match entry {
                TreeEntry::Folder => PreparedEntry::Folder,
                TreeEntry::File(bytes) => PreparedEntry::File(bytes.clone()),
                TreeEntry::Link(target) => PreparedEntry::Link(text(target)?),
            };
            Ok::<_, io::Error>((text(path)?, prepared))
        };
        Ok(Prepared {
            at: text(&self.at)?,
            entries: self.entries.iter().map(entry).collect::<Result<_, _>>()?,
        })
    }

    /// Writes the tree into a folder that is there and empty.
    ///
    /// # Errors
    /// An entry cannot be made.
    pub fn write(&self) -> io::Result<()> {
        self.prepared()?.write()
    }
}

impl Prepared {
    pub(crate) fn at(&self) -> &CString {
        &self.at
    }

    /// Makes the entries in the folder.
    pub(crate) fn write(&self) -> io::Result<()> {
        let folder = rustix::fs::openat(
            CWD,
            &self.at,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        let readable = Mode::from_raw_mode(0o444);
        for (path, entry) in &self.entries {
            match entry {
                PreparedEntry::Folder => rustix::fs::mkdirat(&folder, path, Mode::from_raw_mode(0o755))?,
                PreparedEntry::Link(target) => rustix::fs::symlinkat(target, &folder, path)?,
                PreparedEntry::File(bytes) => {
                    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                    let file = rustix::fs::openat(&folder, path, flags, readable)?;
                    let mut rest = bytes.as_slice();
                    while !rest.is_empty() {
                        let count = rustix::io::write(&file, rest)?;
                        rest = rest.get(count..).unwrap_or_default();
                    }
                }
            }
        }
        Ok(())
    }
}
