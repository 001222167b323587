//! Files that pass handles from one process to another.

use std::fs;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::path::Path;

use doorbell::Handle;
use doorbell::trust::open_plain_file;

use crate::unfinished;

/// Maximum number of bytes that are read: a handle has 128 bytes, and less than twice as many as text.
const BYTES_MAX: u64 = 4 << 10;

/// Writes a handle atomically: no reader finds a part of it.
///
/// The folder may be shared. The function writes a new file with a random name, and renames it. It neither follows nor writes
/// to a file or link of another user, and replaces a link at `path` itself.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn leave(path: &Path, handle: &Handle) -> io::Result<()> {
    leave_by(path, unfinished::random()?, handle)
}

fn leave_by(path: &Path, random: u64, handle: &Handle) -> io::Result<()> {
    let (unfinished, mut file) = unfinished::create(path, random)?;
    let written = writeln!(file, "{handle}").and_then(|()| fs::rename(&unfinished, path));
    if written.is_err() {
        // The file belongs to this process. If the removal fails, a partial handle stays under a name that no reader uses.
        let _ = fs::remove_file(&unfinished);
    }
    written
}

/// Reads the handle in a file. Returns `None` if the file does not exist.
///
/// # Errors
/// The file contains no valid handle. A later read may succeed: a copy between hosts may be in progress.
pub(crate) fn find(path: &Path) -> Result<Option<Handle>, String> {
    let named = |error: &dyn core::fmt::Display| format!("{}: {error}", path.display());
    match read(path) {
        Ok(text) => text.trim().parse().map(Some).map_err(|error| named(&error)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(named(&error)),
    }
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    open_plain_file(path)?.take(BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::{find, leave, leave_by};
    use core::num::NonZeroU16;
    use doorbell::Handle;
    use doorbell::provider::{Gid, IpPrefix};
    use doorbell::rails::{AdvertisedRail, SpeedClass};
    use doorbell::wire::InstanceId;
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    fn handle() -> Handle {
        let mut builder = Handle::builder(NonZeroU16::new(7000).unwrap(), InstanceId::new(1).unwrap());
        let address = "10.1.0.1".parse().unwrap();
        let prefix = IpPrefix::new(address, 24).unwrap();
        let rail = AdvertisedRail::new(prefix, Gid::from_ip(address), SpeedClass(7));
        let _ = builder.push(&rail.unwrap());
        builder.finish().unwrap()
    }

    #[test]
    fn what_was_left_is_found_and_nothing_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.handle");
        assert_eq!(find(&path), Ok(None));
        let handle = handle();
        leave(&path, &handle).unwrap();
        assert_eq!(find(&path), Ok(Some(handle)));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_others_planted_is_neither_followed_nor_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let (path, victim) = (folder.path().join("a.handle"), folder.path().join("victim"));
        fs::write(&victim, "untouched").unwrap();
        // An attacker has guessed the name, and created a link to a file, to nothing or to itself there, or a file.
        let guessed = folder.path().join(format!("a.handle.{:016x}.unfinished", 7));
        for target in [victim.as_path(), Path::new("nothing"), guessed.as_path()] {
            symlink(target, &guessed).unwrap();
            let error = leave_by(&path, 7, &handle()).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists, "{error}");
            fs::remove_file(&guessed).unwrap();
        }
        fs::write(&guessed, "another's").unwrap();
        assert!(leave_by(&path, 7, &handle()).is_err());
        assert_eq!(fs::read_to_string(&guessed).unwrap(), "another's");
        assert_eq!((find(&path), path.exists()), (Ok(None), false));
        // Links at the temporary name without a random number, and at the handle's own name.
        symlink(&victim, folder.path().join("a.handle.unfinished")).unwrap();
        symlink(&victim, &path).unwrap();
        leave(&path, &handle()).unwrap();
        assert_eq!(find(&path), Ok(Some(handle())));
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
        assert_eq!(fs::read_to_string(&victim).unwrap(), "untouched");
    }

    #[test]
    fn what_cannot_be_renamed_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.handle");
        fs::create_dir(&path).unwrap();
        assert!(leave(&path, &handle()).is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_part_of_a_handle_is_told_and_the_whole_of_it_found_later() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.handle");
        let text = handle().to_string();
        for length in 0..text.len() {
            fs::write(&path, &text[..length]).unwrap();
            let why = find(&path).unwrap_err();
            assert!(why.starts_with(path.to_str().unwrap()), "{why}");
        }
        fs::write(&path, text).unwrap();
        assert_eq!(find(&path), Ok(Some(handle())));
    }

    #[test]
    fn what_is_no_file_is_refused_and_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.handle");
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        assert!(find(&path).unwrap_err().ends_with("it is not a plain file"));
        assert!(find(folder.path()).is_err());
    }
}
