//! Opening of a regular file for reading. Reads of other files may never end, or wait for a writer that does not exist.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{Mode, OFlags, open as open_at};

/// Opens a path without blocking, and checks the kind of the open file, so that a later change of the path does not matter.
///
/// # Errors
/// The path cannot be opened, or is no regular file.
pub fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(open_at(path, flags, Mode::empty())?);
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::other("it is not a plain file"))
    }
}
