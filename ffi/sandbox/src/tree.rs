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
    /// Options of a file system in memory that has room for the entries.
    options: CString,
    entries: Vec<(CString, PreparedEntry)>,
}

fn text(path: &Path) -> io::Result<CString> {
    Ok(CString::new(OsString::from(path).into_vec())?)
}

/// Options of a file system in memory that has room for these bytes and so many entries. Each and the root have two inodes: newer kernels may
/// count labels of security modules as room of inodes.
///
/// Source: Linux, Documentation/filesystems/tmpfs.rst.
pub(crate) fn room(bytes: usize, entries: usize) -> String {
    let inodes = entries.saturating_add(1).saturating_mul(2);
    format!("size={bytes},nr_inodes={inodes},mode=0755")
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
            options: CString::new(self.options())?,
            entries: self.entries.iter().map(entry).collect::<Result<_, _>>()?,
        })
    }

    /// Room for whole pages of each entry.
    fn options(&self) -> String {
        let page = rustix::param::page_size();
        let pages = self.entries.iter().map(|(_, entry)| match entry {
            TreeEntry::File(bytes) => bytes.len().div_ceil(page).max(1),
            TreeEntry::Folder | TreeEntry::Link(_) => 1,
        });
        let bytes = pages.fold(page, |all, pages| all.saturating_add(pages.saturating_mul(page)));
        room(bytes, self.entries.len())
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

    /// Options of the file system to be mounted.
    pub(crate) fn options(&self) -> &CString {
        &self.options
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

#[cfg(test)]
mod tests {
    use super::{Tree, TreeEntry};

    #[test]
    fn the_file_system_has_room_for_all_entries() {
        let page = rustix::param::page_size();
        let mut tree = Tree::default();
        assert_eq!(tree.options(), format!("size={page},nr_inodes=2,mode=0755"));
        // More than 64 MiB, as many ports with full tables have.
        let small = (0..20_000).map(|at| (at.to_string().into(), TreeEntry::File(vec![b'0'])));
        tree.entries = small.collect();
        tree.entries.push(("link".into(), TreeEntry::Link("0".into())));
        tree.entries
            .push(("large".into(), TreeEntry::File(vec![0; page + 1])));
        let size = 20_004 * page;
        assert_eq!(tree.options(), format!("size={size},nr_inodes=40006,mode=0755"));
        assert_eq!(
            tree.prepared().unwrap().options().to_str(),
            Ok(tree.options().as_str())
        );
    }
}
