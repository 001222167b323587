//! Events, as text.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Events so far.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// Returns all events during `run`, on this thread.
    pub(crate) fn of(level: LevelFilter, run: impl FnOnce()) -> String {
        Self::watched(level, |_| run())
    }

    /// Returns all events during `run`, on this thread, which looks at those so far.
    pub(crate) fn watched(level: LevelFilter, run: impl FnOnce(&Self)) -> String {
        let log = Self::default();
        let written = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(level)
            .with_ansi(false)
            .without_time()
            .with_writer(move || written.clone());
        let guard = subscriber.finish().set_default();
        run(&log);
        drop(guard);
        log.text()
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

/// Counts the lines of this event: a line with each of the parts between ` .. `.
pub(crate) fn count_told(log: &str, words: &str) -> usize {
    let is_told = |line: &&str| words.split(" .. ").all(|part| line.contains(part));
    log.lines().filter(is_told).count()
}

pub(crate) fn assert_told(log: &str, all: &[&str]) {
    for words in all {
        assert!(count_told(log, words) > 0, "{words}\n{log}");
    }
}
