//! Files that get their final name when they are complete.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, open as open_at};

/// Creates a file in the same folder, to be renamed to `path` when it is complete. Also returns its name.
///
/// The folder may be shared. A file or link that another user created there is neither followed nor written to.
///
/// # Errors
/// The file cannot be created, or its random name exists.
pub(crate) fn create(path: &Path, random: u64) -> io::Result<(PathBuf, File)> {
    let mut unfinished: OsString = path.to_owned().into_os_string();
    unfinished.push(format!(".{random:016x}.unfinished"));
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH;
    let file = File::from(open_at(&unfinished, flags, mode)?);
    Ok((unfinished.into(), file))
}

/// A random number for such a name.
///
/// # Errors
/// No random bytes are available.
pub(crate) fn random() -> io::Result<u64> {
    let mut random = [0; size_of::<u64>()];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    Ok(u64::from_ne_bytes(random))
}
