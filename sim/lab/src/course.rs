//! Progress of a run of many parts: which have begun and ended, how long each took, and how long the rest took last time.
//!
//! Durations are kept in `target/lab/durations.json` by the kind of the run, and are for people only: nothing is judged by them.

use core::fmt::Display;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::steps::say;

/// After so long without a line the running parts are named.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Between looks whether it was silent for so long.
const LOOK: Duration = Duration::from_secs(1);

/// How long a part took, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Took {
    took_s: f64,
    /// From its begin to the end of the whole run. Absent if the run was interrupted.
    rest_s: Option<f64>,
}

/// The durations of the last runs: by kind of run, then by part.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Durations(BTreeMap<String, BTreeMap<String, Took>>);

/// The progress of one run. Clones are the same run; a thread can have its own.
#[derive(Clone, Debug)]
pub(crate) struct Course(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// The kind of the run, as in `test --quick`.
    kind: String,
    file: PathBuf,
    last: Durations,
    began: Instant,
    parts: usize,
    /// Whether only the ends of parts are said.
    is_terse: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    ended: usize,
    /// When each part began, by name.
    running: BTreeMap<String, Instant>,
    done: Vec<Done>,
    said: Instant,
}

#[derive(Debug)]
struct Done {
    name: String,
    /// Since the begin of the run.
    began: Duration,
    took: Duration,
}

impl Course {
    /// Begins a run of so many parts.
    ///
    /// # Errors
    ///
    /// The target folder is not known.
    pub(crate) fn begin(kind: &str, parts: usize) -> Result<Self> {
        let file = crate::scenario::lab_folder()?.join("durations.json");
        let course = Self::with_record(kind, parts, file);
        course.keep_talking();
        Ok(course)
    }

    fn with_record(kind: &str, parts: usize, file: PathBuf) -> Self {
        let inner = Inner {
            kind: kind.to_owned(),
            // A record that is absent or of another version only means that nothing is known of last time.
            last: read(&file).unwrap_or_default(),
            file,
            began: Instant::now(),
            parts,
            is_terse: AtomicBool::new(false),
            state: Mutex::new(State {
                ended: 0,
                running: BTreeMap::new(),
                done: Vec::new(),
                said: Instant::now(),
            }),
        };
        if let Some(took) = inner.whole() {
            say(format_args!(
                "{}: {parts} parts; it took {} last time",
                inner.kind,
                span(took)
            ));
        }
        Self(Arc::new(inner))
    }

    /// Says nothing when a part begins: there are many, and most are short.
    pub(crate) fn tersely(self) -> Self {
        self.0.is_terse.store(true, Ordering::Relaxed);
        self
    }

    /// Names what is running whenever no line came for a while, until the last clone is dropped.
    fn keep_talking(&self) {
        let weak = Arc::downgrade(&self.0);
        thread::spawn(move || {
            loop {
                thread::sleep(LOOK);
                let Some(inner) = weak.upgrade() else { break };
                let mut state = inner.state();
                if state.said.elapsed() < SILENCE_MAX || state.running.is_empty() {
                    continue;
                }
                state.said = Instant::now();
                let running: Vec<String> = state
                    .running
                    .iter()
                    .map(|(name, began)| format!("{name} ({})", inner.so_far(name, began.elapsed())))
                    .collect();
                inner.say(&state, format_args!("still running: {}", running.join(", ")));
            }
        });
    }

    /// Says that a part begins, and how long it took last time.
    pub(crate) fn began(&self, name: &str) {
        let mut state = self.0.state();
        state.running.insert(name.to_owned(), Instant::now());
        state.said = Instant::now();
        if self.0.is_terse.load(Ordering::Relaxed) {
            return;
        }
        let last = self
            .0
            .last(name)
            .map(|last| format!(" (it took {} last time)", seconds(last.took_s)));
        self.0
            .say(&state, format_args!("{name}{}", last.unwrap_or_default()));
    }

    /// Says what a part came to, and how long the rest took last time. Gives how long this part took.
    pub(crate) fn ended(&self, name: &str, outcome: impl Display) -> Duration {
        let mut state = self.0.state();
        let began = state.running.remove(name).unwrap_or(self.0.began);
        let took = began.elapsed();
        state.ended = state.ended.saturating_add(1);
        state.said = Instant::now();
        state.done.push(Done {
            name: name.to_owned(),
            began: began.duration_since(self.0.began),
            took,
        });
        let rest = self.0.last(name).and_then(|last| {
            let rest = last.rest_s? - last.took_s;
            (rest > 0.0).then(|| format!("; the rest took {} last time", seconds(rest)))
        });
        self.0.say(
            &state,
            format_args!("{name}: {outcome} ({}){}", span(took), rest.unwrap_or_default()),
        );
        // Kept at once: the times of an interrupted run count, too.
        self.0.keep(&state, None);
        took
    }

    /// Ends the run and keeps its durations.
    pub(crate) fn finish(&self) {
        let state = self.0.state();
        self.0.keep(&state, Some(self.0.began.elapsed()));
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say(&self, state: &State, line: impl Display) {
        let elapsed = span(self.began.elapsed());
        say(format_args!(
            "[{} of {}, {elapsed}] {line}",
            state.ended, self.parts
        ));
    }

    /// The last time of a part: in a run of this kind, else in one of another.
    fn last(&self, name: &str) -> Option<Took> {
        let same = self.last.0.get(&self.kind).and_then(|parts| parts.get(name));
        let other = || {
            let took = self.last.0.values().find_map(|parts| parts.get(name))?;
            // The rest of a run of another kind is not that of this one.
            Some(Took {
                rest_s: None,
                ..*took
            })
        };
        same.copied().or_else(other)
    }

    /// The length of the last whole run.
    fn whole(&self) -> Option<Duration> {
        let parts = self.last.0.get(&self.kind)?;
        let longest = parts.values().filter_map(|took| took.rest_s).reduce(f64::max)?;
        Duration::try_from_secs_f64(longest).ok()
    }

    fn so_far(&self, name: &str, elapsed: Duration) -> String {
        let last = self.last(name);
        let last = last.map(|last| format!(" of {} last time", seconds(last.took_s)));
        format!("{}{}", span(elapsed), last.unwrap_or_default())
    }

    fn keep(&self, state: &State, end: Option<Duration>) {
        let mut durations = self.last.clone();
        let parts = durations.0.entry(self.kind.clone()).or_default();
        for done in &state.done {
            let before = parts.get(&done.name).and_then(|took| took.rest_s);
            let rest = end.map(|end| end.saturating_sub(done.began).as_secs_f64());
            let took = Took {
                took_s: done.took.as_secs_f64(),
                rest_s: rest.or(before),
            };
            parts.insert(done.name.clone(), took);
        }
        // Only people miss it.
        if let Err(error) = write(&self.file, &durations) {
            say(format_args!("durations are not kept: {error:#}"));
        }
    }
}

fn read(file: &Path) -> Option<Durations> {
    serde_json::from_slice(&std::fs::read(file).ok()?).ok()
}

fn write(file: &Path, durations: &Durations) -> Result<()> {
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    }
    let text = serde_json::to_vec_pretty(durations)?;
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

fn seconds(seconds: f64) -> String {
    span(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

/// A duration for people: `4.1 s`, `3 min 20 s`.
pub(crate) fn span(duration: Duration) -> String {
    let seconds = duration.as_secs();
    if seconds < 60 {
        return format!("{:.1} s", duration.as_secs_f64());
    }
    format!("{} min {} s", seconds / 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_for_people() {
        assert_eq!(span(Duration::from_millis(4_100)), "4.1 s");
        assert_eq!(span(Duration::from_secs(200)), "3 min 20 s");
    }

    #[test]
    fn durations_of_a_run_are_there_in_the_next_one() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("lab/durations.json");
        let run = |kind: &str| Course::with_record(kind, 2, file.clone());
        let first = run("test");
        assert_eq!(first.0.last("a"), None);
        for part in ["a", "b"] {
            first.began(part);
            first.ended(part, "passed");
        }
        // Interrupted: it is known how long the parts took, and not how long the rest.
        assert!(run("test").0.last("a").unwrap().rest_s.is_none());
        assert_eq!(run("test").0.whole(), None);
        first.finish();
        let second = run("test");
        let [a, b] = ["a", "b"].map(|part| second.0.last(part).unwrap());
        assert!(a.rest_s.unwrap() >= b.rest_s.unwrap() && b.rest_s.unwrap() >= b.took_s);
        assert!(second.0.whole().is_some());
        // The parts alone are known of a run of another kind.
        assert_eq!(run("test --quick").0.last("a").unwrap().rest_s, None);
        assert_eq!(run("test --quick").0.whole(), None);
    }

    #[test]
    fn a_broken_record_is_no_record() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("durations.json");
        std::fs::write(&file, "{").unwrap();
        assert_eq!(Course::with_record("test", 1, file).0.last("a"), None);
    }
}
