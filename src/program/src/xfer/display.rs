//! The progress of a file, on standard error: a bar on a terminal, otherwise a line from time to
//! time.

use core::time::Duration;
use std::io::IsTerminal as _;
use std::time::Instant;

use doorbell::provider::{Network, Provider};
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};

use super::end::End;
use crate::log;

/// Intervals between two redraws of a bar, and between two lines.
const BAR_EVERY: Duration = Duration::from_millis(200);
const LINE_EVERY: Duration = Duration::from_secs(3);

pub(super) struct ProgressDisplay {
    is_terminal: bool,
    /// Created when there is something to show.
    bar: Option<ProgressBar>,
    /// Time of the last update, and the number of bytes then.
    last: (Instant, u64),
}

impl ProgressDisplay {
    pub(super) fn on_stderr() -> Self {
        Self {
            is_terminal: std::io::stderr().is_terminal(),
            bar: None,
            last: (Instant::now(), 0),
        }
    }

    pub(super) fn show<P: Provider, N: Network>(&mut self, end: &End<P, N>) {
        let now = Instant::now();
        let (at, before) = self.last;
        let since = now.duration_since(at);
        let every = if self.is_terminal { BAR_EVERY } else { LINE_EVERY };
        let Some(total) = end
            .bytes()
            .filter(|_| since >= every && end.line.open().is_some())
        else {
            return;
        };
        let landed = end.landed_bytes();
        self.last = (now, landed);
        let rails = match end.line.rails_up() {
            1 => "1 rail".to_owned(),
            rails => format!("{rails} rails"),
        };
        if !self.is_terminal {
            let percent = landed.saturating_mul(100).checked_div(total).unwrap_or(100);
            let ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX).max(1);
            let rate = landed
                .saturating_sub(before)
                .saturating_mul(1000)
                .checked_div(ms)
                .unwrap_or(0);
            let (landed, total, rate) = (HumanBytes(landed), HumanBytes(total), HumanBytes(rate));
            log::write_line(&format!("{percent}%: {landed} of {total}, {rate}/s, {rails}"));
            return;
        }
        let bar = self.bar.get_or_insert_with(|| bar(total));
        bar.set_message(rails);
        bar.set_position(landed);
    }
}

fn bar(total: u64) -> ProgressBar {
    let bar = ProgressBar::new(total);
    let template = "[{bar:30}] {bytes} of {total_bytes}, {binary_bytes_per_sec}, {msg}, {eta} left";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

impl Drop for ProgressDisplay {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
