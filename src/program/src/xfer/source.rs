//! The file that is sent. A thread reads it into the slots of a region, in order, and computes its checksum.

use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use doorbell::memory::Region;
use doorbell::provider::Provider;

use super::wire::{Sum, Summing};

/// Number of bytes that are read at a time.
const BUFFER_BYTES: usize = 1 << 20;

/// A file that was opened to be sent.
#[derive(Debug)]
pub(super) struct SourceFile {
    file: File,
    name: String,
    /// The number of bytes that are sent.
    pub(super) bytes: u64,
    /// The stamp of the file when it was opened; `None` for a device.
    before: Option<Stamp>,
}

/// Properties of a file that change when it is written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    bytes: u64,
    modified: (i64, i64),
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self {
            bytes: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }
}

impl SourceFile {
    /// Opens a file. The whole file is sent unless `bytes` limits it.
    ///
    /// # Errors
    /// The file cannot be read, or its length is unknown.
    pub(super) fn open(path: &Path, bytes: Option<u64>) -> Result<Self, String> {
        let name = path.display().to_string();
        let named = |error: io::Error| format!("{name}: {error}");
        // Checks the type first: opening a pipe would block until its other end is opened.
        let kind = std::fs::metadata(path).map_err(named)?.file_type();
        if kind.is_dir() {
            return Err(format!(
                "{name}: it is a folder: send its files one by one, or an archive of it"
            ));
        }
        if !kind.is_file() && !kind.is_char_device() && !kind.is_block_device() {
            return Err(format!("{name}: it is neither a plain file nor a device"));
        }
        let file = File::open(path).map_err(named)?;
        let metadata = file.metadata().map_err(named)?;
        if !metadata.is_file() {
            let bytes = bytes
                .ok_or_else(|| format!("{name}: it is a device: --bytes says how much of it is sent"))?;
            return Ok(Self {
                file,
                name,
                bytes,
                before: None,
            });
        }
        let before = Stamp::of(&metadata);
        if let Some(bytes) = bytes.filter(|bytes| *bytes > before.bytes) {
            return Err(format!(
                "{name}: it has {} bytes, and --bytes asks for {bytes}",
                before.bytes
            ));
        }
        Ok(Self {
            file,
            name,
            bytes: bytes.unwrap_or(before.bytes),
            before: Some(before),
        })
    }

    /// Checks that the file has not changed since it was opened.
    fn check(&self) -> Result<(), String> {
        let Some(before) = self.before else {
            return Ok(());
        };
        let name = &self.name;
        let after = self.file.metadata().map_err(|error| format!("{name}: {error}"))?;
        let after = Stamp::of(&after);
        if after.bytes != before.bytes {
            let (was, is) = (before.bytes, after.bytes);
            return Err(format!(
                "{name}: its length changed from {was} to {is} bytes while it was sent"
            ));
        }
        if after != before {
            return Err(format!("{name}: it was written to while it was sent"));
        }
        Ok(())
    }
}

/// A part of the file that is to be read into a region.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) chunk: u64,
    pub(super) slot: usize,
    pub(super) offset: usize,
    pub(super) bytes: u64,
}

/// The result of a part, or of the whole file.
#[derive(Debug)]
pub(super) enum Read {
    /// The chunk is in its slot.
    Chunk {
        chunk: u64,
        slot: usize,
    },
    /// The whole file was read, and has not changed meanwhile.
    All(Sum),
    Failed(String),
}

/// The reading thread.
#[derive(Debug)]
pub(super) struct Source {
    /// Parts to be read; `None` after the last one was ordered.
    parts: Option<Sender<Part>>,
    read: Receiver<Read>,
    /// Number of results that are expected.
    pub(super) awaited: u64,
}

impl Source {
    /// Starts the thread. The region is missing if the file is empty.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn start<P: Provider>(
        opened: SourceFile,
        region: Option<Region<P>>,
        has_checksum: bool,
    ) -> io::Result<Self> {
        let (parts, ordered) = channel();
        let (to, read) = channel();
        let work = move || {
            let outcome = read_all(
                opened,
                region.as_ref(),
                (&ordered, &to),
                Summing::new(has_checksum),
            );
            // The receiver is gone if the command gave up.
            let _ = to.send(outcome.map_or_else(Read::Failed, Read::All));
        };
        thread::Builder::new().name("doorbell-read".into()).spawn(work)?;
        Ok(Self {
            parts: Some(parts),
            read,
            awaited: 1,
        })
    }

    /// Orders a part to be read.
    pub(super) fn order(&mut self, part: Part) {
        if let Some(parts) = &self.parts {
            self.awaited = self.awaited.saturating_add(1);
            // If the thread has failed, it has reported so.
            let _ = parts.send(part);
        }
    }

    /// Records that every part was ordered.
    pub(super) fn ordered_all(&mut self) {
        self.parts = None;
    }

    /// Returns the next result, if there is one, or waits for it.
    pub(super) fn take(&mut self, wait: bool) -> Option<Read> {
        if self.awaited == 0 {
            return None;
        }
        let read = if wait {
            self.read.recv().ok()?
        } else {
            self.read.try_recv().ok()?
        };
        self.awaited = match read {
            Read::Failed(_) => 0,
            Read::Chunk { .. } | Read::All(_) => self.awaited.saturating_sub(1),
        };
        Some(read)
    }

    /// Whether a result will come without another order.
    pub(super) const fn is_busy(&self) -> bool {
        self.awaited > 1 || (self.parts.is_none() && self.awaited > 0)
    }
}

fn read_all<P: Provider>(
    mut opened: SourceFile,
    region: Option<&Region<P>>,
    (ordered, to): (&Receiver<Part>, &Sender<Read>),
    mut sum: Summing,
) -> Result<Sum, String> {
    let mut buffer = vec![0; BUFFER_BYTES];
    while let Ok(part) = ordered.recv() {
        let (mut offset, mut left) = (part.offset, part.bytes);
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(usize::MAX).min(BUFFER_BYTES);
            let buffer = buffer.get_mut(..most).unwrap_or_default();
            let SourceFile { file, name, .. } = &mut opened;
            let bytes = match file.read(buffer) {
                Ok(0) => {
                    opened.check()?;
                    return Err(format!("{}: it ended before all of it was read", opened.name));
                }
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(format!("{name}: {error}")),
            };
            let came = buffer.get(..bytes).unwrap_or_default();
            sum.add(came);
            let region = region.ok_or("there is no memory for the file")?;
            region.copy_in(offset, came).map_err(|error| error.to_string())?;
            offset = offset.saturating_add(bytes);
            left = left.saturating_sub(bytes.try_into().unwrap_or(u64::MAX));
        }
        let Part { chunk, slot, .. } = part;
        let _ = to.send(Read::Chunk { chunk, slot });
    }
    opened.check()?;
    Ok(sum.end())
}

#[cfg(test)]
mod tests {
    use super::SourceFile;
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use std::fs;
    use std::path::Path;

    fn error(path: &Path, bytes: Option<u64>) -> String {
        let error = SourceFile::open(path, bytes).unwrap_err();
        assert!(error.starts_with(path.to_str().unwrap()), "{error}");
        error
    }

    #[test]
    fn what_cannot_be_sent_is_said_with_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        assert!(error(&at("none"), None).contains("No such file"));
        assert!(error(folder.path(), None).contains("it is a folder"));
        mknodat(CWD, at("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        assert!(error(&at("pipe"), None).contains("neither a plain file nor a device"));
        assert!(error(Path::new("/dev/zero"), None).contains("--bytes"));
        fs::write(at("file"), "seven b").unwrap();
        assert!(error(&at("file"), Some(8)).contains("7 bytes, and --bytes asks for 8"));
        assert_eq!(SourceFile::open(&at("file"), Some(7)).unwrap().bytes, 7);
        assert_eq!(SourceFile::open(&at("file"), None).unwrap().bytes, 7);
        assert_eq!(
            SourceFile::open(Path::new("/dev/zero"), Some(9)).unwrap().bytes,
            9
        );
    }

    #[test]
    fn a_file_that_changes_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "seven b").unwrap();
        let opened = SourceFile::open(&path, None).unwrap();
        assert_eq!(opened.check(), Ok(()));
        fs::write(&path, "eight by").unwrap();
        assert!(opened.check().unwrap_err().contains("from 7 to 8 bytes"));
        let opened = SourceFile::open(&path, None).unwrap();
        let other = std::time::SystemTime::UNIX_EPOCH;
        fs::File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_modified(other)
            .unwrap();
        assert!(opened.check().unwrap_err().contains("it was written to"));
    }
}
