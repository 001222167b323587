//! Files by which handles get from one process to another.

use std::fs;
use std::io::{self, ErrorKind, Read as _};
use std::path::Path;

use doorbell::Handle;

#[path = "../../edge/plain_file.rs"]
mod plain_file;

/// More of a file is not looked at: a handle is 128 bytes, and as text not twice that.
const BYTES_MAX: u64 = 4 << 10;

/// Writes a handle so that nobody finds a part of it.
///
/// # Errors
/// It cannot be written there.
pub(crate) fn leave(path: &Path, handle: &Handle) -> io::Result<()> {
    let mut unfinished = path.to_owned().into_os_string();
    unfinished.push(".unfinished");
    fs::write(&unfinished, format!("{handle}\n"))?;
    fs::rename(unfinished, path)
}

/// The handle in a file; `None` where there is no such file.
///
/// # Errors
/// What is there is no handle. That may pass: files are copied between hosts, and not at once.
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
    plain_file::open(path)?
        .take(BYTES_MAX)
        .read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::{find, leave};
    use core::num::NonZeroU16;
    use doorbell::vocabulary::wire::{AdvertisedRail, SpeedClass};
    use doorbell::vocabulary::{Gid, IpPrefix};
    use doorbell::{Handle, InstanceId};
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use std::fs;

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
