//! The received file. A thread writes it from the slots of a region, in order, and computes its checksum.
//!
//! The file has a random name in the same folder until the sender's checksum matches that of the received bytes.

use core::sync::atomic::{AtomicBool, Ordering};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use doorbell::memory::Region;
use doorbell::provider::Provider;

use super::wire::{Sum, Summing};
use crate::unfinished;

/// Number of bytes that are written at a time.
const BUFFER_BYTES: usize = 1 << 20;

/// Number of bytes after which the file is synced, so that neither this nor the sync at the end takes long.
const SYNC_BYTES: usize = 32 << 20;

/// The path of a file that is discarded.
const NOWHERE: &str = "/dev/null";

/// An output file that gets its name when it is complete.
#[derive(Debug)]
pub(super) struct OutputFile {
    /// `None` if the bytes are discarded.
    file: Option<Unnamed>,
}

#[derive(Debug)]
struct Unnamed {
    file: File,
    unfinished: PathBuf,
    path: PathBuf,
    is_named: bool,
}

impl OutputFile {
    /// Creates a temporary file in the folder of `path`.
    ///
    /// # Errors
    /// The folder cannot be written to, or `path` is something other than a regular file or a link.
    pub(super) fn create(path: &Path) -> Result<Self, String> {
        if path == Path::new(NOWHERE) {
            return Ok(Self { file: None });
        }
        let named = |error: io::Error| format!("{}: {error}", path.display());
        match fs::symlink_metadata(path) {
            Ok(there) if there.is_dir() => {
                return Err(format!("{}: it is a folder: name the file in it", path.display()));
            }
            Ok(there) if !there.is_file() && !there.is_symlink() => {
                return Err(format!(
                    "{}: it is no plain file, and is not replaced",
                    path.display()
                ));
            }
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(named(error)),
            _ => {}
        }
        let random = unfinished::random().map_err(named)?;
        let (unfinished, file) = unfinished::create(path, random).map_err(named)?;
        let path = path.to_owned();
        Ok(Self {
            file: Some(Unnamed {
                file,
                unfinished,
                path,
                is_named: false,
            }),
        })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), String> {
        match &mut self.file {
            Some(Unnamed { file, path, .. }) => file
                .write_all(bytes)
                .map_err(|error| format!("{}: {error}", path.display())),
            None => Ok(()),
        }
    }

    /// Waits until the written bytes are on the disk.
    fn sync(&self) -> Result<(), String> {
        let Some(Unnamed { file, path, .. }) = &self.file else {
            return Ok(());
        };
        file.sync_all()
            .map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Gives the file its name, after it is on the disk, unless it was given up.
    fn name(&mut self, is_settled: &AtomicBool) -> Result<(), String> {
        self.sync()?;
        if is_settled.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let Some(unnamed) = &mut self.file else {
            return Ok(());
        };
        let named = fs::rename(&unnamed.unfinished, &unnamed.path);
        unnamed.is_named = named.is_ok();
        named.map_err(|error| format!("{}: {error}", unnamed.path.display()))
    }
}

impl Drop for Unnamed {
    fn drop(&mut self) {
        if !self.is_named {
            // If the removal fails, the bytes stay under a name that no reader uses.
            let _ = fs::remove_file(&self.unfinished);
        }
    }
}

/// An order to the thread.
#[derive(Debug)]
enum Order {
    Write {
        slot: usize,
        offset: usize,
        bytes: u64,
    },
    /// Compares the sum with the sender's, and gives the file its name if they are equal.
    End(Sum),
}

/// The result of an order.
#[derive(Debug)]
pub(super) enum WriteOutcome {
    /// [`SYNC_BYTES`] more are on the disk. The order is not done yet.
    Part,
    /// The slot is free again.
    Slot {
        slot: usize,
        bytes: u64,
    },
    /// The sum of all received bytes. The file has its name if the sender's sum is equal.
    All(Sum),
    Failed(String),
}

/// The writing thread.
#[derive(Debug)]
pub(super) struct Sink {
    /// `None` after the last order.
    orders: Option<Sender<Order>>,
    written: Receiver<WriteOutcome>,
    awaited: u64,
    /// Set once, by the first of two: the command gives up the file, or the thread gives it its name.
    is_settled: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Sink {
    /// Starts the thread. The region is missing if the file is empty.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn start<P: Provider>(
        place: OutputFile,
        region: Option<Region<P>>,
        has_checksum: bool,
    ) -> io::Result<Self> {
        let (orders, ordered) = channel();
        let (to, written) = channel();
        let is_settled = Arc::new(AtomicBool::new(false));
        let settled = Arc::clone(&is_settled);
        let work = move || {
            let sum = Summing::new(has_checksum);
            if let Err(why) = write_all(place, region.as_ref(), (&ordered, &to), (sum, &settled)) {
                // The receiver is gone if the command gave up.
                let _ = to.send(WriteOutcome::Failed(why));
            }
        };
        let thread = thread::Builder::new().name("doorbell-write".into()).spawn(work)?;
        Ok(Self {
            orders: Some(orders),
            written,
            awaited: 0,
            is_settled,
            thread: Some(thread),
        })
    }

    /// Orders the bytes of a slot to be appended to the file.
    pub(super) fn write(&mut self, slot: usize, offset: usize, bytes: u64) {
        self.order(Order::Write { slot, offset, bytes });
    }

    /// Orders the end, with the sender's sum.
    pub(super) fn end(&mut self, sum: Sum) {
        self.order(Order::End(sum));
    }

    /// Gives up the file, unless the thread gives it its name already. Returns whether it did so. The thread ends after the write in
    /// progress, which has at most [`BUFFER_BYTES`], or after the sync in progress. Nothing waits for it here.
    pub(super) fn give_up(&mut self) -> bool {
        if self.is_settled.swap(true, Ordering::Relaxed) && self.is_busy() {
            return false;
        }
        self.orders = None;
        self.awaited = 0;
        true
    }

    /// Whether the thread gives the file its name, and has not reported so yet.
    pub(super) fn is_naming(&self) -> bool {
        self.is_busy() && self.is_settled.load(Ordering::Relaxed)
    }

    /// A thread that gives the file its name, with the end that it reports to.
    #[cfg(test)]
    pub(super) fn naming() -> (Self, Sender<WriteOutcome>) {
        let (to, written) = channel();
        let sink = Self {
            orders: None,
            written,
            awaited: 1,
            is_settled: Arc::new(AtomicBool::new(true)),
            thread: None,
        };
        (sink, to)
    }

    fn order(&mut self, order: Order) {
        if let Some(orders) = &self.orders {
            self.awaited = self.awaited.saturating_add(1);
            // If the thread has failed, it has reported so.
            let _ = orders.send(order);
        }
    }

    /// Returns the next result, if there is one, or waits for it.
    pub(super) fn take(&mut self, wait: bool) -> Option<WriteOutcome> {
        if self.awaited == 0 {
            return None;
        }
        let written = if wait {
            self.written.recv().ok()?
        } else {
            self.written.try_recv().ok()?
        };
        self.awaited = match written {
            WriteOutcome::Failed(_) => 0,
            WriteOutcome::Part => self.awaited,
            WriteOutcome::Slot { .. } | WriteOutcome::All(_) => self.awaited.saturating_sub(1),
        };
        Some(written)
    }

    /// Whether a result is expected.
    pub(super) const fn is_busy(&self) -> bool {
        self.awaited > 0
    }
}

impl Drop for Sink {
    /// Waits for the thread, which removes an incomplete file.
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has dropped its file.
            let _ = thread.join();
        }
    }
}

fn write_all<P: Provider>(
    mut place: OutputFile,
    region: Option<&Region<P>>,
    (ordered, to): (&Receiver<Order>, &Sender<WriteOutcome>),
    (mut sum, is_settled): (Summing, &AtomicBool),
) -> Result<(), String> {
    let (mut buffer, mut unsynced) = (vec![0; BUFFER_BYTES], 0_usize);
    while let Ok(order) = ordered.recv() {
        if is_settled.load(Ordering::Relaxed) {
            return Ok(());
        }
        let (slot, mut offset, bytes) = match order {
            Order::Write { slot, offset, bytes } => (slot, offset, bytes),
            Order::End(theirs) => {
                let ours = sum.end();
                if ours == theirs {
                    place.name(is_settled)?;
                }
                drop(place);
                let _ = to.send(WriteOutcome::All(ours));
                return Ok(());
            }
        };
        let mut left = bytes;
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(usize::MAX).min(BUFFER_BYTES);
            let buffer = buffer.get_mut(..most).unwrap_or_default();
            let region = region.ok_or("there is no memory for the file")?;
            region
                .copy_out(offset, buffer)
                .map_err(|error| error.to_string())?;
            sum.add(buffer);
            if is_settled.load(Ordering::Relaxed) {
                return Ok(());
            }
            place.write(buffer)?;
            unsynced = unsynced.saturating_add(most);
            if unsynced >= SYNC_BYTES {
                unsynced = 0;
                place.sync()?;
                let _ = to.send(WriteOutcome::Part);
            }
            offset = offset.saturating_add(most);
            left = left.saturating_sub(most.try_into().unwrap_or(u64::MAX));
        }
        let _ = to.send(WriteOutcome::Slot { slot, bytes });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{
        AtomicBool, BUFFER_BYTES, Ordering, OutputFile, Region, SYNC_BYTES, Sink, Unnamed, WriteOutcome,
    };
    use doorbell::provider::PlacementConfig;
    use doorbell::{Trust, WorkerConfig};
    use doorbell_sim::{Fabric, Host};
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use sha2::{Digest as _, Sha256};
    use std::fs;
    use std::io::Read as _;
    use std::os::fd::OwnedFd;
    use std::path::Path;

    fn names(folder: &Path) -> Vec<String> {
        let names = fs::read_dir(folder).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.collect()
    }

    fn end(place: OutputFile, sum: [u8; 32]) -> WriteOutcome {
        let mut sink = Sink::start::<Host>(place, None, true).unwrap();
        sink.end(sum);
        sink.take(true).unwrap()
    }

    #[test]
    fn a_file_has_its_name_only_with_the_senders_sum() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        fs::write(&path, "what was there").unwrap();
        let empty: [u8; 32] = Sha256::digest([]).into();
        let place = OutputFile::create(&path).unwrap();
        assert_eq!(names(folder.path()).len(), 2);
        assert!(matches!(end(place, [1; 32]), WriteOutcome::All(sum) if sum == empty));
        assert_eq!(names(folder.path()), ["out"]);
        assert_eq!(fs::read_to_string(&path).unwrap(), "what was there");
        let place = OutputFile::create(&path).unwrap();
        assert!(matches!(end(place, empty), WriteOutcome::All(_)));
        assert_eq!(names(folder.path()), ["out"]);
        assert_eq!(fs::read_to_string(&path).unwrap(), "");
        // A command that gives up leaves no file.
        drop(OutputFile::create(&path).unwrap());
        assert_eq!(names(folder.path()), ["out"]);
    }

    #[test]
    fn a_place_that_cannot_be_written_to_is_said_with_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let error = |path: &Path| {
            let error = OutputFile::create(path).unwrap_err();
            assert!(error.starts_with(path.to_str().unwrap()), "{error}");
            error
        };
        assert!(error(folder.path()).contains("it is a folder"));
        assert!(error(&folder.path().join("no/out")).contains("No such file"));
        let pipe = folder.path().join("pipe");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR, 0).unwrap();
        assert!(error(&pipe).contains("no plain file"));
        assert!(OutputFile::create(Path::new("/dev/null")).is_ok());
    }

    #[test]
    fn a_full_disk_is_said_with_the_files_name() {
        let mut place = OutputFile::create(Path::new("/dev/null")).unwrap();
        assert_eq!(place.write(b"kept nowhere"), Ok(()));
        let file = fs::File::options().write(true).open("/dev/full").unwrap();
        place.file = Some(Unnamed {
            file,
            unfinished: "no/such/file".into(),
            path: "out".into(),
            is_named: false,
        });
        let error = place.write(b"x").unwrap_err();
        assert!(error.starts_with("out: No space left"), "{error}");
    }

    #[test]
    fn a_file_that_is_given_up_is_written_no_further_and_nothing_waits_for_it() {
        let region = region(4 * BUFFER_BYTES);
        // The pipe is full long before the first slot is written, so that the thread waits in a write.
        let (mut from, to) = std::io::pipe().unwrap();
        let place = OutputFile {
            file: Some(Unnamed {
                file: OwnedFd::from(to).into(),
                unfinished: "no/such/file".into(),
                path: "out".into(),
                is_named: false,
            }),
        };
        let mut sink = Sink::start(place, Some(region), false).unwrap();
        for slot in 0..4 {
            sink.write(slot, slot * BUFFER_BYTES, BUFFER_BYTES as u64);
        }
        from.read_exact(&mut [0]).unwrap();
        assert!(sink.give_up() && !sink.is_busy());
        let mut rest = Vec::new();
        from.read_to_end(&mut rest).unwrap();
        assert!(rest.len() < BUFFER_BYTES, "{}", rest.len());
    }

    fn region(bytes: usize) -> Region<Host> {
        let trust = Trust::unauthenticated_on_purpose();
        let node = crate::simulated::host(&Fabric::new(), 1, 1, &trust).unwrap();
        let workers = node.workers(&WorkerConfig::default()).unwrap();
        node.region(&workers, bytes, &PlacementConfig::DEFAULT).unwrap()
    }

    #[test]
    fn a_long_slot_is_synced_and_reported_in_parts() {
        let folder = tempfile::tempdir().unwrap();
        let place = OutputFile::create(&folder.path().join("out")).unwrap();
        let bytes = 2 * SYNC_BYTES + 1;
        let mut sink = Sink::start(place, Some(region(bytes)), false).unwrap();
        sink.write(0, 0, bytes as u64);
        for _ in 0..2 {
            assert!(matches!(sink.take(true), Some(WriteOutcome::Part)));
        }
        assert!(matches!(
            sink.take(true),
            Some(WriteOutcome::Slot { slot: 0, .. })
        ));
        assert!(!sink.is_busy());
    }

    #[test]
    fn a_file_is_either_given_up_or_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        for is_given_up in [true, false] {
            let mut place = OutputFile::create(&path).unwrap();
            // The command gave up during the sync.
            let is_settled = AtomicBool::new(is_given_up);
            assert_eq!(place.name(&is_settled), Ok(()));
            drop(place);
            assert_eq!(path.exists(), !is_given_up);
            assert!(is_settled.load(Ordering::Relaxed));
        }
        let (mut sink, _to) = Sink::naming();
        assert!(!sink.give_up() && sink.is_naming());
    }
}
