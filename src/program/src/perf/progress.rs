//! The progress of a long test, on standard error: a bar on a terminal, otherwise a line from time
//! to time.
//!
//! Progress is printed between timed sections, never within one.

use core::time::Duration;
use std::io::IsTerminal;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};

/// Tests shorter than this show no progress.
const QUIET: Duration = Duration::from_secs(1);
/// Intervals between two redraws of a bar, and between two lines.
const BAR_EVERY: Duration = Duration::from_millis(200);
const LINE_EVERY: Duration = Duration::from_secs(3);

/// The progress of one test.
pub(crate) struct Progress {
    name: String,
    total: u64,
    shown: ProgressOutput,
    next: Instant,
}

enum ProgressOutput {
    #[cfg(test)]
    Nothing,
    Lines,
    /// Created when there is something to show.
    Bar(Option<ProgressBar>),
}

impl Progress {
    /// Progress on standard error.
    pub(crate) fn on_stderr(name: String, total: u64) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        Self::new(
            name,
            total,
            if is_terminal {
                ProgressOutput::Bar(None)
            } else {
                ProgressOutput::Lines
            },
        )
    }

    /// Progress that is not shown.
    #[cfg(test)]
    pub(crate) fn silent() -> Self {
        Self::new(String::new(), 0, ProgressOutput::Nothing)
    }

    fn new(name: String, total: u64, shown: ProgressOutput) -> Self {
        Self {
            name,
            total,
            shown,
            next: Instant::now().checked_add(QUIET).unwrap_or_else(Instant::now),
        }
    }

    /// Updates the progress to `done` messages.
    pub(crate) fn reached(&mut self, done: u64) {
        let now = Instant::now();
        if now < self.next {
            return;
        }
        let every = match &mut self.shown {
            #[cfg(test)]
            ProgressOutput::Nothing => return,
            ProgressOutput::Lines => {
                let percent = done.saturating_mul(100).checked_div(self.total);
                eprintln!("{}: {}%", self.name, percent.unwrap_or(100));
                LINE_EVERY
            }
            ProgressOutput::Bar(bar) => {
                let (name, total) = (&self.name, self.total);
                bar.get_or_insert_with(|| make_bar(name, total))
                    .set_position(done);
                BAR_EVERY
            }
        };
        self.next = now.checked_add(every).unwrap_or(now);
    }
}

fn make_bar(name: &str, total: u64) -> ProgressBar {
    let bar = ProgressBar::new(total);
    if let Ok(style) = ProgressStyle::with_template("{msg} [{bar:40}] {percent}% {eta}") {
        bar.set_style(style);
    }
    bar.set_message(name.to_owned());
    bar
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let ProgressOutput::Bar(Some(bar)) = &self.shown {
            bar.finish_and_clear();
        }
    }
}
