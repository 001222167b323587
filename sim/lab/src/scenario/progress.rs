//! Progress of a run on standard error: a bar on a terminal, else a line for every step.

use std::io::{IsTerminal as _, Write as _};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};

use super::model::Scenario;
use super::report::{Outcome, StepReport};

/// The display of one run.
#[derive(Debug)]
pub(crate) struct Progress {
    form: Form,
}

#[derive(Debug)]
enum Form {
    Bar(ProgressBar),
    Lines(Instant),
    /// Nothing is shown.
    #[cfg(test)]
    Silent,
}

impl Progress {
    /// A display that suits standard error.
    pub(crate) fn of(scenario: &Scenario) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self {
                form: Form::Lines(Instant::now()),
            };
        }
        let bar = ProgressBar::new(executions(scenario));
        // The template is a constant and good; should it ever not be, the plain style serves too.
        if let Ok(style) = ProgressStyle::with_template("{elapsed:>4} [{bar:30}] {pos}/{len} {msg}") {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.enable_steady_tick(core::time::Duration::from_millis(200));
        Self { form: Form::Bar(bar) }
    }

    /// A display that shows nothing.
    #[cfg(test)]
    pub(crate) fn silent() -> Self {
        Self { form: Form::Silent }
    }

    pub(super) fn started(&mut self, label: &str, host: &str, command: &str) {
        match &self.form {
            Form::Bar(bar) => bar.set_message(format!("{label} on {host}")),
            Form::Lines(start) => {
                let first = command.lines().next().unwrap_or_default();
                line(&format!(
                    "[{:7.1} s] {label} on {host}: {first}",
                    start.elapsed().as_secs_f64()
                ));
            }
            #[cfg(test)]
            Form::Silent => {}
        }
    }

    pub(super) fn ended(&mut self, report: Option<&StepReport>) {
        let Some(report) = report else { return };
        match &self.form {
            Form::Bar(bar) => bar.inc(1),
            Form::Lines(start) => {
                let word = match report.outcome {
                    Outcome::Passed => "passed",
                    Outcome::Failed => "FAILED",
                    Outcome::Stopped => "stopped",
                };
                let (at, id, took) = (start.elapsed().as_secs_f64(), &report.id, report.duration_s);
                line(&format!("[{at:7.1} s] {id}: {word} after {took:.1} s"));
            }
            #[cfg(test)]
            Form::Silent => {}
        }
    }

    /// Clears what moves, before the result is printed.
    pub(crate) fn finish(&self) {
        if let Form::Bar(bar) = &self.form {
            bar.finish_and_clear();
        }
    }
}

fn executions(scenario: &Scenario) -> u64 {
    scenario.blocks.iter().fold(0, |sum, block| {
        let steps: usize = block.variants.iter().map(|variant| variant.steps.len()).sum();
        let rounds = block.rounds.saturating_add(block.warmup_rounds);
        let steps = u64::try_from(steps).unwrap_or(u64::MAX);
        steps.saturating_mul(u64::from(rounds)).saturating_add(sum)
    })
}

fn line(text: &str) {
    // Nobody to read standard error is no reason to fail.
    let _ = writeln!(std::io::stderr(), "{text}");
}
