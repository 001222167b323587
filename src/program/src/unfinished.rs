//! New files that get their name once they are whole.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, open as open_at};

/// Creates the file that is to be renamed to `path` once it is whole, in the same folder. Returns its name, too.
///
/// The folder may be shared. A file or link planted by others is neither followed nor written to.
///
/// # Errors
/// The file cannot be created, or its random name is taken.
pub(crate) fn create(path: &Path, random: u64) -> io::Result<(PathBuf, File)> {
    let mut unfinished: OsString = path.to_owned().into_os_string();
    unfinished.push(format!(".{random:016x}.unfinished"));
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH;
    let file = File::from(open_at(&unfinished, flags, mode)?);
    Ok((unfinished.into(), file))
}

/// Randomness for such a name.
///
/// # Errors
/// The system gave no random bytes.
pub(crate) fn random() -> io::Result<u64> {
    let mut random = [0; size_of::<u64>()];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    Ok(u64::from_ne_bytes(random))
}
