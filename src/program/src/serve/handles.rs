//! The handles of other nodes: from the command line, or from files that are read again and again.

use core::time::Duration;
use std::path::Path;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

use doorbell::provider::Instant;
use doorbell::{Deadline, Handle, within};
use doorbell_daemon::{NodeNumber, Server};

use super::{FIRST_READ_WITHIN, LOOK_EVERY, READ_AGAIN_EVERY};
use crate::handle_file;
use crate::log;
use crate::report::Failure;

/// Maximum number of results of reads that are queued.
const READ_MAX: usize = 64;

/// Time for which a handle file may have no valid handle, since another process may be writing it.
const HALF_WRITTEN: Duration = Duration::from_secs(5);

/// The index of a node, and its handle or the reason why it cannot be read.
type Read = (usize, Result<Option<Handle>, String>);

/// Handles of other nodes.
pub(super) struct NodeHandles {
    nodes: Vec<u32>,
    /// The last valid handle of each node.
    known: Vec<KnownHandle>,
    has_files: bool,
    results: Receiver<Read>,
    /// Results that were received and not applied yet.
    early: Vec<Read>,
}

impl NodeHandles {
    /// Begins to read the handles of nodes. A thread reads files again and again, so that only this thread blocks if a file system does not
    /// respond.
    ///
    /// # Errors
    /// No thread can be started.
    pub(super) fn read(nodes: &[(u32, String)]) -> Result<Self, Failure> {
        let (give, results) = sync_channel(READ_MAX.max(nodes.len()));
        let (files, given): (Vec<_>, Vec<_>) = nodes
            .iter()
            .enumerate()
            .map(|(at, (_, place))| (at, place.clone()))
            .partition(|(_, place)| place.starts_with('@'));
        for (at, place) in given {
            give.send((at, handle(&place).map_err(|error| error.to_string())))?;
        }
        let has_files = !files.is_empty();
        if has_files {
            let mut missing = files.len();
            let mut found = vec![false; nodes.len()];
            thread::Builder::new()
                .name("handle-files".into())
                .spawn(move || {
                    loop {
                        for (at, place) in &files {
                            let read = handle(place).map_err(|error| error.to_string());
                            if let Some(found) = found.get_mut(*at).filter(|found| !**found) {
                                *found = matches!(read, Ok(Some(_)));
                                missing = missing.saturating_sub((*found).into());
                            }
                            // The daemon has ended.
                            if give.send((*at, read)).is_err() {
                                return;
                            }
                        }
                        thread::sleep(if missing > 0 { LOOK_EVERY } else { READ_AGAIN_EVERY });
                    }
                })?;
        }
        Ok(Self {
            nodes: nodes.iter().map(|(number, _)| *number).collect(),
            known: vec![KnownHandle::default(); nodes.len()],
            has_files,
            results,
            early: Vec::new(),
        })
    }

    /// Whether there are files, which may change.
    pub(super) const fn has_files(&self) -> bool {
        self.has_files
    }

    /// Waits for a first result of each node, for [`FIRST_READ_WITHIN`] at most.
    pub(super) fn await_first(&mut self) {
        let deadline = within(FIRST_READ_WITHIN);
        let next = || {
            self.results
                .recv_timeout(deadline.remaining(doorbell::now()))
                .ok()
        };
        self.early = self.nodes.iter().map_while(|_| next()).collect();
    }

    /// Passes new handles to the server, and logs files without a valid handle.
    ///
    /// # Errors
    /// As for [`outlived`].
    pub(super) fn apply(&mut self, server: &mut Server) -> Result<(), Failure> {
        for (at, read) in self.early.drain(..).chain(self.results.try_iter()) {
            let Some((number, known)) = self.nodes.get(at).zip(self.known.get_mut(at)) else {
                continue;
            };
            match known.update(read.map_err(Into::into), doorbell::now()) {
                Ok(None) => {}
                Ok(Some(found)) => server.add_peer(NodeNumber(*number), found),
                Err(error) => log::write_line(&outlived(*number, error, server.counts().attached)?),
            }
        }
        Ok(())
    }
}

/// The last handle that the file of a node had.
#[derive(Clone, Copy, Debug, Default)]
struct KnownHandle {
    handle: Option<Handle>,
    /// Time until which the file may have no valid handle.
    patience: Option<Deadline>,
}

impl KnownHandle {
    /// Applies a result of a read. Returns the handle if it differs from the previous one.
    ///
    /// # Errors
    /// The file never had a valid handle, and has had none for [`HALF_WRITTEN`]. The time restarts then.
    fn update(
        &mut self,
        read: Result<Option<Handle>, Failure>,
        now: Instant,
    ) -> Result<Option<Handle>, Failure> {
        match read {
            Ok(found) => {
                self.patience = None;
                let is_new = found.is_some() && found != self.handle;
                self.handle = found.or(self.handle);
                Ok(found.filter(|_| is_new))
            }
            Err(_) if self.handle.is_some() => Ok(None),
            Err(error) => {
                let patience = self
                    .patience
                    .get_or_insert_with(|| Deadline::after(now, HALF_WRITTEN));
                if !patience.has_passed(now) {
                    return Ok(None);
                }
                self.patience = None;
                Err(error)
            }
        }
    }
}

/// Returns the log line with the reason why the handle of a node cannot be read.
///
/// # Errors
/// No process ever attached: then the daemon ends. A daemon with processes continues despite the file of another node.
fn outlived(number: u32, error: Failure, attached: u64) -> Result<String, Failure> {
    if attached == 0 {
        return Err(error);
    }
    Ok(format!("doorbell: node {number}: {error}"))
}

/// The handle of a node. `None` while its file is missing.
fn handle(place: &str) -> Result<Option<Handle>, Failure> {
    match place.strip_prefix('@') {
        Some(path) => Ok(handle_file::find(Path::new(path))?),
        None => Ok(Some(place.parse().map_err(|error| format!("{place}: {error}"))?)),
    }
}

#[cfg(test)]
mod tests {
    use doorbell::provider::Instant;

    use super::{HALF_WRITTEN, KnownHandle, outlived};

    #[test]
    fn each_file_has_its_own_time_to_be_written() {
        let at = |time: u64| Instant::from_ns(time);
        let patience = u64::try_from(HALF_WRITTEN.as_nanos()).unwrap();
        let half = || Err("half".into());
        // The file appears late, after the daemon has started.
        let (mut known, begun) = (KnownHandle::default(), 100 * patience);
        assert!(known.update(Ok(None), at(begun)).is_ok());
        for time in [begun, begun + patience - 1] {
            assert!(matches!(known.update(half(), at(time)), Ok(None)));
        }
        assert!(known.update(half(), at(begun + patience)).is_err());
        // The time limit is that of one attempt.
        let later = begun + 10 * patience;
        assert!(known.update(half(), at(later)).is_ok());
        assert!(known.update(Ok(None), at(later + 1)).is_ok());
        assert!(known.update(half(), at(later + patience)).is_ok());
    }

    #[test]
    fn a_file_that_cannot_be_read_ends_a_daemon_without_processes_alone() {
        assert_eq!(outlived(7, "half".into(), 1).unwrap(), "doorbell: node 7: half");
        assert_eq!(outlived(7, "half".into(), 0).unwrap_err().to_string(), "half");
    }
}
