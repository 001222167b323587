//! A plain file, opened to be read. What is none may never end, or have nobody who writes to it.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{Mode, OFlags, open as open_at};

/// Opens it without waiting for anybody, and looks at what is open, whatever becomes of the path.
///
/// # Errors
/// It cannot be opened, or is no plain file.
pub(super) fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(open_at(path, flags, Mode::empty())?);
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::other("it is not a plain file"))
    }
}
