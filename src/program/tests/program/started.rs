//! A process of the program, and its output.

use core::time::Duration;
use std::io::{BufRead as _, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Instant;

/// No wait is longer. An example of the book takes minutes beside busy processes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(600);

/// The program with these arguments, on the fake libibverbs, with no settings but theirs.
pub(crate) fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_doorbell"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("DOORBELL_") {
            command.env_remove(name);
        }
    }
    command
        .args(arguments)
        .env("DOORBELL_LIBIBVERBS", doorbell_fake::library_path().unwrap())
        .stdin(Stdio::null());
    command
}

/// How it ends, by the time there is patience for, and what it says on standard error; its output goes there.
pub(crate) fn ended(mut command: Command, out: Stdio) -> (Option<i32>, String) {
    let mut child = command.stdout(out).stderr(Stdio::piped()).spawn().unwrap();
    let mut errors = child.stderr.take().unwrap();
    let mut started = Started(child);
    let reads = thread::spawn(move || {
        let mut said = String::new();
        errors.read_to_string(&mut said).map(|_| said)
    });
    (started.code(), reads.join().unwrap().unwrap())
}

/// One that is ended when it is dropped.
pub(crate) struct Started(pub(crate) Child);

impl Started {
    /// The code by which it ends, by the time there is patience for.
    pub(crate) fn code(&mut self) -> Option<i32> {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.code();
            }
            assert!(begun.elapsed() < PATIENCE, "the program does not end");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A process that runs on, with its lines on standard error.
pub(crate) struct Running {
    said: Lines,
    process: Started,
}

impl Running {
    pub(crate) fn start(command: Command) -> Self {
        Self::start_to(command, Stdio::null())
    }

    /// Starts a process with its standard output to `out`.
    pub(crate) fn start_to(mut command: Command, out: Stdio) -> Self {
        let mut child = command.stdout(out).stderr(Stdio::piped()).spawn().unwrap();
        Self {
            said: Lines::of(child.stderr.take().unwrap()),
            process: Started(child),
        }
    }

    /// Its number.
    pub(crate) fn id(&self) -> u32 {
        self.process.0.id()
    }

    pub(crate) fn said(&self) -> &Lines {
        &self.said
    }

    /// The next line with these words; those before it are passed over.
    pub(crate) fn line_with(&self, words: &str) -> String {
        self.said.until(words, |line| line.contains(words))
    }
}

/// Lines that a process writes.
pub(crate) struct Lines(Receiver<String>);

impl Lines {
    pub(crate) fn of(read: impl Read + Send + 'static) -> Self {
        let read = BufReader::new(read);
        let (to, lines) = channel();
        thread::spawn(move || {
            read.lines()
                .map_while(Result::ok)
                .try_for_each(|line| to.send(line))
        });
        Self(lines)
    }

    pub(crate) fn next(&self) -> String {
        self.until("a line", |_| true)
    }

    fn until(&self, what: &str, is_it: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let line = self.0.recv_timeout(deadline - Instant::now());
            let line = line.unwrap_or_else(|error| panic!("{what:?} was not said: {error}"));
            if is_it(&line) {
                return line;
            }
        }
    }
}
