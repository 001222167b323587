//! The log, on standard error.
//!
//! For a command that others depend on, such as the node daemon, a separate thread writes the lines. If nobody reads standard error, only that
//! thread blocks. Lines that do not fit are dropped and counted.

use core::mem::take;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use doorbell_operation::LogLevel;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, write};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::writer::BoxMakeWriter;

/// Maximum number of bytes of waiting lines. The thread may hold as many more.
const WAITING_BYTES_MAX: usize = 256 << 10;

/// Longest time that the end of the program waits for unwritten lines.
const WRITTEN_WITHIN: Duration = Duration::from_secs(1);

/// The lines of this program.
static LINES: Lines = Lines::new();

/// Whether all lines of this program, including the last, are written by the log thread.
static UNHINDERED: AtomicBool = AtomicBool::new(false);

/// Starts the log at this level, until the program ends. Each thread writes its own events.
pub(crate) fn start(level: LogLevel) {
    start_with(level, BoxMakeWriter::new(io::stderr));
}

/// Starts the log at this level, until the program ends. The log thread writes all events, so that no other thread blocks.
pub(crate) fn start_unhindered(level: LogLevel) {
    UNHINDERED.store(true, Relaxed);
    start_with(level, BoxMakeWriter::new(|| Line));
}

fn start_with(level: LogLevel, writer: BoxMakeWriter) {
    let level = match level {
        LogLevel::Off => return,
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(writer)
        .with_ansi(false)
        .init();
}

/// Passes a line to the log thread, which writes it to standard error. Does not block.
pub(crate) fn write_line(line: &str) {
    LINES.put(format!("{line}\n").as_bytes());
}

/// Writes the last line of a program to standard error. The log thread writes it if the log was started unhindered, or if that thread exists.
pub(crate) fn write_last_line(line: &str) {
    if UNHINDERED.load(Relaxed) || LINES.lock().has_thread {
        write_line(line);
    } else {
        eprintln!("{line}");
    }
}

/// Waits until all lines of [`write_line`] and of [`start_unhindered`] are written, for one second at most.
pub(crate) fn finish() {
    LINES.finish(WRITTEN_WITHIN);
}

/// A writer for one event: the subscriber writes each event by one call.
struct Line;

impl io::Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LINES.put(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Lines that wait for the log thread.
#[derive(Debug)]
struct Lines {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug)]
struct Waiting {
    bytes: Vec<u8>,
    /// Number of lines that did not fit.
    dropped: u64,
    has_thread: bool,
    is_writing: bool,
}

impl Waiting {
    fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.dropped == 0
    }
}

impl Lines {
    const fn new() -> Self {
        Self {
            waiting: Mutex::new(Waiting {
                bytes: Vec::new(),
                dropped: 0,
                has_thread: false,
                is_writing: false,
            }),
            changed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a line, or counts it if there is no room. The first line starts the thread, which inherits the signal mask of its caller.
    fn put(&'static self, line: &[u8]) {
        let mut waiting = self.lock();
        if !waiting.has_thread {
            let run = || self.write_all(write_to_stderr);
            // If no thread can be started, the next line tries again.
            waiting.has_thread = thread::Builder::new()
                .name("doorbell-log".into())
                .spawn(run)
                .is_ok();
        }
        waiting.take(line);
        self.changed.notify_all();
    }

    /// Writes lines as they arrive, forever.
    fn write_all(&self, mut write: impl FnMut(&[u8]) -> usize) {
        let mut written = OutputState::default();
        loop {
            let (lines, dropped) = self.next();
            written.write(lines, dropped, &mut write);
        }
    }

    /// Waits for lines. Takes them, with the number of lines that were dropped after them.
    fn next(&self) -> (Vec<u8>, u64) {
        let mut waiting = self.lock();
        waiting.is_writing = false;
        self.changed.notify_all();
        let waits = self.changed.wait_while(waiting, |waiting| waiting.is_empty());
        let mut waiting = waits.unwrap_or_else(PoisonError::into_inner);
        waiting.is_writing = true;
        (take(&mut waiting.bytes), take(&mut waiting.dropped))
    }

    fn finish(&self, patience: Duration) {
        let is_unwritten =
            |waiting: &mut Waiting| waiting.has_thread && (waiting.is_writing || !waiting.is_empty());
        drop(
            self.changed
                .wait_timeout_while(self.lock(), patience, is_unwritten),
        );
    }
}

impl Waiting {
    fn take(&mut self, line: &[u8]) {
        // After a dropped line no line is queued until the count is taken, so that the count appears in its place.
        if self.dropped == 0 && self.bytes.len().saturating_add(line.len()) <= WAITING_BYTES_MAX {
            self.bytes.extend_from_slice(line);
        } else {
            self.dropped = self.dropped.saturating_add(1);
        }
    }
}

/// State of the output.
#[derive(Debug, Default)]
struct OutputState {
    /// Number of lines that a failed write lost, and that were not reported yet.
    lost: u64,
    /// Whether the last line was written only in part.
    is_torn: bool,
}

impl OutputState {
    /// Writes lines, between reports of the lines that are missing before and after them. `write` returns the number of bytes that it wrote.
    /// After a failure the rest is lost.
    fn write(&mut self, lines: Vec<u8>, dropped: u64, mut write: impl FnMut(&[u8]) -> usize) {
        let lost = take(&mut self.lost);
        let mut before = missing(lost, "standard error failed");
        if self.is_torn {
            before.insert(0, b'\n');
        }
        let behind = missing(dropped, "nobody read standard error");
        for (bytes, count) in [(before, lost), (lines, 0), (behind, dropped)] {
            let has_failed = self.lost > 0;
            let written = if has_failed || bytes.is_empty() {
                0
            } else {
                write(&bytes)
            };
            let (done, rest) = bytes.split_at(written.min(bytes.len()));
            if let Some(last) = done.last() {
                self.is_torn = *last != b'\n';
            }
            if !rest.is_empty() {
                let ends = rest.iter().filter(|byte| **byte == b'\n').count();
                // The report of missing lines counts as these lines.
                let lines = if count > 0 { count } else { ends as u64 };
                self.lost = self.lost.saturating_add(lines);
            }
        }
    }
}

/// The line that reports missing lines. Empty if there are none.
fn missing(lines: u64, why: &str) -> Vec<u8> {
    if lines == 0 {
        return Vec::new();
    }
    format!("doorbell: {lines} lines are missing here: {why}\n").into_bytes()
}

/// Writes to the file descriptor directly: the lock of `std` would block the whole program. Write errors are ignored. Returns the number of bytes
/// that were written.
fn write_to_stderr(bytes: &[u8]) -> usize {
    let stderr = io::stderr();
    let mut rest = bytes;
    while !rest.is_empty() {
        match write(&stderr, rest) {
            Ok(count) => rest = rest.get(count..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            // Another process made the descriptor non-blocking.
            Err(Errno::AGAIN) => drop(poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], None)),
            Err(_) => break,
        }
    }
    bytes.len().saturating_sub(rest.len())
}

#[cfg(test)]
mod tests {
    use core::time::Duration;
    use std::sync::mpsc::{channel, sync_channel};
    use std::thread;

    use super::{Lines, OutputState, WAITING_BYTES_MAX};

    #[test]
    fn lines_without_room_are_counted_in_their_place() {
        let lines = Lines::new();
        let line = vec![b'x'; WAITING_BYTES_MAX / 2];
        for _ in 0..4 {
            lines.lock().take(&line);
        }
        // Short enough, but out of order.
        lines.lock().take(b"behind\n");
        assert_eq!(lines.next(), (vec![b'x'; WAITING_BYTES_MAX], 3));
        lines.lock().take(b"next\n");
        assert_eq!(lines.next(), (b"next\n".to_vec(), 0));
    }

    #[test]
    fn lines_of_a_failed_write_are_counted_before_the_next() {
        let (mut written, mut file) = (OutputState::default(), String::new());
        let mut write = |lines: &str, dropped: u64, room: usize| {
            let mut room = room;
            written.write(lines.into(), dropped, |bytes: &[u8]| {
                let count = bytes.len().min(room);
                room -= count;
                file.push_str(core::str::from_utf8(&bytes[..count]).unwrap());
                count
            });
            core::mem::take(&mut file)
        };
        // Torn in the second of three lines.
        assert_eq!(write("1\n2 is torn\n3\n", 0, 6), "1\n2 is");
        // There is no room for the count of lines, but for the end of the line.
        assert_eq!(write("4\n", 0, 1), "\n");
        assert_eq!(write("5\n", 7, 0), "");
        assert_eq!(
            write("6\n", 0, 1000),
            "doorbell: 11 lines are missing here: standard error failed\n6\n"
        );
        assert_eq!(
            write("7\n", 3, 1000),
            "7\ndoorbell: 3 lines are missing here: nobody read standard error\n"
        );
        assert_eq!((written.lost, written.is_torn), (0, false));
    }

    #[test]
    fn a_reader_that_stops_holds_up_the_writing_thread_alone() {
        let lines: &Lines = Box::leak(Box::new(Lines::new()));
        lines.lock().has_thread = true;
        // A reader that takes one batch of lines whenever this test tells it to.
        let (give, read) = sync_channel::<Vec<u8>>(0);
        thread::spawn(move || {
            lines.write_all(|bytes| {
                give.send(bytes.to_vec()).unwrap_or_default();
                bytes.len()
            });
        });
        lines.put(b"0\n");
        let mut put = 1;
        while lines.lock().dropped < 3 {
            lines.put(format!("{put}\n").as_bytes());
            put += 1;
        }
        // There is no reader. The end of the program does not wait longer than its limit.
        lines.finish(Duration::from_millis(1));
        let (mut text, mut expected) = (String::new(), 0);
        while !text.contains("are missing") {
            text.push_str(core::str::from_utf8(&read.recv().unwrap()).unwrap());
        }
        let mut all = text.lines();
        for line in all.by_ref().take_while(|line| !line.contains("are missing")) {
            assert_eq!(line, expected.to_string());
            expected += 1;
        }
        assert_eq!((expected + 3, all.next()), (put, None));
        let (done, is_done) = channel();
        thread::spawn(move || {
            lines.finish(Duration::from_secs(3600));
            done.send(()).unwrap();
        });
        is_done.recv().unwrap();
    }
}
