//! The log, on standard error.
//!
//! A command that others depend on, as the node daemon, has its lines written by a thread of their own. A reader of standard error that stops
//! holds up that thread alone. Lines without room are dropped and counted.

use core::mem::take;
use core::time::Duration;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use doorbell_operation::LogLevel;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, write};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::writer::BoxMakeWriter;

/// The most bytes of lines that wait for the thread; as many may be in its hands.
const WAITING_BYTES_MAX: usize = 256 << 10;

/// How long the end of the program waits for lines that are not written yet.
const WRITTEN_WITHIN: Duration = Duration::from_secs(1);

/// The lines of this program.
static LINES: Lines = Lines::new();

/// Starts the log, from this level on, until the program ends. The thread that logs writes.
pub(crate) fn start(level: LogLevel) {
    start_with(level, BoxMakeWriter::new(io::stderr));
}

/// Starts the log, from this level on, until the program ends. No thread that logs waits for a reader.
pub(crate) fn start_unhindered(level: LogLevel) {
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

/// Puts a line on standard error, without waiting for a reader.
pub(crate) fn say(line: &str) {
    LINES.put(format!("{line}\n").as_bytes());
}

/// Puts the last line of a program on standard error: by the thread of the lines before, if there is one.
pub(crate) fn say_last(line: &str) {
    let has_thread = LINES.lock().has_thread;
    if has_thread {
        say(line);
    } else {
        eprintln!("{line}");
    }
}

/// Waits a second at most until all lines of [`say`] and of [`start_unhindered`] are written.
pub(crate) fn finish() {
    LINES.finish(WRITTEN_WITHIN);
}

/// One event: the subscriber writes each by one call.
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

/// Lines that wait for a thread to write them.
#[derive(Debug)]
struct Lines {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug)]
struct Waiting {
    bytes: Vec<u8>,
    /// Lines that had no room.
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

    /// Takes a line, or counts it if there is no room. The first line starts the thread: so that one has the signals that are blocked then.
    fn put(&'static self, line: &[u8]) {
        let mut waiting = self.lock();
        if !waiting.has_thread {
            let run = || self.write_all(write_to_stderr);
            // Without a thread for now, the next line looks for one again.
            waiting.has_thread = thread::Builder::new()
                .name("doorbell-log".into())
                .spawn(run)
                .is_ok();
        }
        waiting.take(line);
        self.changed.notify_all();
    }

    /// Writes lines as they come, for ever.
    fn write_all(&self, mut write: impl FnMut(&[u8])) {
        loop {
            write(&self.next());
        }
    }

    /// Waits for lines, and takes them. The number of lines that had no room stands behind those that had.
    fn next(&self) -> Vec<u8> {
        let mut waiting = self.lock();
        waiting.is_writing = false;
        self.changed.notify_all();
        let waits = self.changed.wait_while(waiting, |waiting| waiting.is_empty());
        let mut waiting = waits.unwrap_or_else(PoisonError::into_inner);
        waiting.is_writing = true;
        let mut bytes = take(&mut waiting.bytes);
        let dropped = take(&mut waiting.dropped);
        if dropped > 0 {
            let count = format!("doorbell: {dropped} lines are missing here: nobody read standard error\n");
            bytes.extend_from_slice(count.as_bytes());
        }
        bytes
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
        // Behind a line that was dropped, none is kept until their number has its place.
        if self.dropped == 0 && self.bytes.len().saturating_add(line.len()) <= WAITING_BYTES_MAX {
            self.bytes.extend_from_slice(line);
        } else {
            self.dropped = self.dropped.saturating_add(1);
        }
    }
}

/// Writes by the descriptor alone: a lock of `std` would hold up the whole program. A standard error that fails takes no line, and ends
/// nobody.
fn write_to_stderr(mut bytes: &[u8]) {
    let stderr = io::stderr();
    while !bytes.is_empty() {
        match write(&stderr, bytes) {
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            // Another process made it non-blocking.
            Err(Errno::AGAIN) => drop(poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], None)),
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;
    use std::sync::mpsc::{channel, sync_channel};
    use std::thread;

    use super::{Lines, WAITING_BYTES_MAX};

    #[test]
    fn lines_without_room_are_counted_in_their_place() {
        let lines = Lines::new();
        let line = vec![b'x'; WAITING_BYTES_MAX / 2];
        for _ in 0..4 {
            lines.lock().take(&line);
        }
        // Short enough, but out of order.
        lines.lock().take(b"behind\n");
        let taken = lines.next();
        assert!(taken.starts_with(&[b'x'; WAITING_BYTES_MAX]));
        let text = String::from_utf8(taken[WAITING_BYTES_MAX..].to_vec()).unwrap();
        assert_eq!(
            text,
            "doorbell: 3 lines are missing here: nobody read standard error\n"
        );
        lines.lock().take(b"next\n");
        assert_eq!(lines.next(), b"next\n");
    }

    #[test]
    fn a_reader_that_stops_holds_up_the_writing_thread_alone() {
        let lines: &Lines = Box::leak(Box::new(Lines::new()));
        lines.lock().has_thread = true;
        // A reader that takes one batch of lines whenever this test does.
        let (give, read) = sync_channel::<Vec<u8>>(0);
        thread::spawn(move || lines.write_all(|bytes| give.send(bytes.to_vec()).unwrap_or_default()));
        lines.put(b"0\n");
        let mut put = 1;
        while lines.lock().dropped < 3 {
            lines.put(format!("{put}\n").as_bytes());
            put += 1;
        }
        // Nobody reads: the end of the program waits no longer than it may.
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
