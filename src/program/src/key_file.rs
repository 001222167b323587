//! Files of keys that are read again when they change.

use core::fmt;
use core::time::Duration;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::thread;

use doorbell::trust::KeyRingError;

/// Interval at which a file is checked for changes.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Reads the keys of a file.
type Read<K> = dyn Fn(&Path) -> Result<K, KeyRingError> + Send;

/// A file of keys that is read again when it changes.
pub(crate) struct KeyFile<K> {
    path: PathBuf,
    read: Box<Read<K>>,
    /// The file's stamp just before its last successful read.
    seen: Option<Stamp>,
    /// The stamp and the error of the last read, if that read failed.
    failed: Option<(Option<Stamp>, String)>,
}

/// Properties of a file that change when it is written, replaced, or made readable for other users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
    changed: (i64, i64),
}

impl<K: 'static> KeyFile<K> {
    /// Names a file, which `read` reads.
    pub(crate) fn new(path: &Path, read: impl Fn(&Path) -> Result<K, KeyRingError> + Send + 'static) -> Self {
        Self {
            path: path.to_owned(),
            read: Box::new(read),
            seen: None,
            failed: None,
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file.
    pub(crate) fn read(&mut self) -> Result<K, KeyRingError> {
        // The stamp is taken first, so that a change during the read is noticed at the next check.
        let stamp = self.stamp();
        let keys = (self.read)(&self.path)?;
        self.seen = stamp;
        Ok(keys)
    }

    /// Starts a thread that checks the file once a second, and passes to `take` its keys or its error after a change, and `None` without
    /// one. The thread ends when `take` returns `false`.
    ///
    /// # Errors
    /// No thread can be started.
    pub(crate) fn follow(
        mut self,
        mut take: impl FnMut(Option<Result<K, KeyRingError>>) -> bool + Send + 'static,
    ) -> io::Result<()> {
        let look = move || {
            loop {
                thread::sleep(LOOK_EVERY);
                if !take(self.changed()) {
                    return;
                }
            }
        };
        thread::Builder::new().name("doorbell-keys".into()).spawn(look)?;
        Ok(())
    }

    /// Returns the file's keys if the file has changed since it was last read. After a failed read it is read again each time,
    /// since the cause may lie elsewhere (too many open files). The same error is returned only once.
    fn changed(&mut self) -> Option<Result<K, KeyRingError>> {
        let stamp = self.stamp();
        if stamp == self.seen {
            return None;
        }
        let read = self.read();
        let failed = read.as_ref().err().map(|error| (stamp, error.to_string()));
        let is_told = failed.is_some() && failed == self.failed;
        self.failed = failed;
        (!is_told).then_some(read)
    }

    /// Returns the file's stamp, or `None` if the file does not exist.
    fn stamp(&self) -> Option<Stamp> {
        let is = fs::metadata(&self.path).ok()?;
        Some(Stamp {
            device: is.dev(),
            inode: is.ino(),
            bytes: is.len(),
            changed: (is.ctime(), is.ctime_nsec()),
        })
    }
}

impl<K> fmt::Debug for KeyFile<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyFile")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}
