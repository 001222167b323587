//! Telling what is being done, and how long it took: one line for each step,
//! on standard error, with a spinner where that is a terminal.

use core::fmt::Display;
use core::time::Duration;
use std::time::Instant;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};

/// Does `work` under a title; the line says how long it took, or that it failed.
pub(crate) fn step<T>(title: impl Display, work: impl FnOnce() -> Result<T>) -> Result<T> {
    step_saying(title, || Ok((work()?, String::new())))
}

/// As [`step`], for work that ends with something to say about its result.
pub(crate) fn step_saying<T>(title: impl Display, work: impl FnOnce() -> Result<(T, String)>) -> Result<T> {
    let title = title.to_string();
    let started = Instant::now();
    let spinner = ProgressBar::new_spinner().with_message(title.clone());
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
        spinner.set_style(style);
    }
    spinner.enable_steady_tick(Duration::from_millis(120));
    let result = work();
    spinner.finish_and_clear();
    let seconds = started.elapsed().as_secs_f64();
    match result {
        Ok((value, said)) => {
            let said = if said.is_empty() {
                said
            } else {
                format!(": {said}")
            };
            say(format_args!("{title}{said} ({seconds:.1} s)"));
            Ok(value)
        }
        Err(e) => {
            say(format_args!("{title}: failed after {seconds:.1} s"));
            Err(e)
        }
    }
}

/// Prints one line for the waiting user.
pub(crate) fn say(line: impl Display) {
    eprintln!("lab: {line}");
}
