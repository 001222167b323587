//! Records events of the link and their times: rails that died and returned, times without progress, and the effects of each
//! command.

use core::time::Duration;

use doorbell::link::{FinalReason, SESSION_RAILS_MAX, SessionEvent};
use doorbell::provider::Instant;
use serde::Serialize;

use super::drill::Note;

/// A command that was run, and the events until the next one. Times are relative to its begin.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Mark {
    #[serde(rename = "shell_command")]
    pub(super) command: String,
    /// The rail that the command line says it makes fail.
    pub(super) rail: Option<u8>,
    /// Its duration; `None` if the run ended before the command.
    pub(super) took_ms: Option<f64>,
    pub(super) deaths: Vec<Death>,
    #[serde(rename = "returns")]
    pub(super) ups: Vec<RailUse>,
    /// The longest time in which no message arrived and none was done.
    pub(super) outage_ms: f64,
    pub(super) stalled_after_ms: Option<f64>,
    pub(super) resumed_after_ms: Option<f64>,
    pub(super) over_after_ms: Option<f64>,
}

impl Mark {
    /// Returns the death that this command caused. If the command names a rail, it is the last death of that rail, unless the rail
    /// returned before the next command: then it died of another cause. If no rail is named, it is the first death.
    pub(super) fn death(&self) -> Option<Death> {
        let Some(rail) = self.rail else {
            return self.deaths.first().copied();
        };
        let mut last_first = self.deaths.iter().rev();
        let last = last_first.find(|death| death.rail == rail).copied()?;
        let is_back = |up: &RailUse| up.rail == rail && up.after_ms > last.after_ms;
        (!self.ups.iter().any(is_back)).then_some(last)
    }
}

/// A rail that was declared dead.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Death {
    pub(super) rail: u8,
    pub(super) after_ms: f64,
    /// Time since its last sign of life.
    pub(super) silent_ms: Option<f64>,
}

/// A rail that is used, or used again.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct RailUse {
    pub(super) rail: u8,
    pub(super) after_ms: f64,
}

/// A rail over the whole run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct RailReport {
    pub(super) rail: u8,
    /// The epoch of its last connection.
    pub(super) epoch: u32,
    pub(super) ups: u32,
    pub(super) downs: u32,
}

#[derive(Debug, Default)]
pub(super) struct Watch {
    rails: [Rail; SESSION_RAILS_MAX as usize],
    pub(super) marks: Vec<Mark>,
    marked_at: Option<Instant>,
    /// Commands that failed.
    pub(super) failures: Vec<String>,
    pub(super) connected_at: Option<Instant>,
    pub(super) over: Option<FinalReason>,
    pub(super) recoveries: u32,
    /// Rails that died while another was up, and rails that returned while another was up.
    pub(super) failovers: u32,
    pub(super) fail_backs: u32,
    pub(super) stalls: u32,
    stalled_since: Option<Instant>,
    pub(super) stalled: Duration,
    /// Time at which a message last arrived or was done.
    pub(super) progress_at: Option<Instant>,
    pub(super) outage: Duration,
    /// The number of messages done and the time when a quarter or more was done.
    quarter: Option<(u64, Instant)>,
    /// The records at one quarter and at three quarters.
    pub(super) middle: Option<[(u64, Instant); 2]>,
    polled_at: Option<Instant>,
    /// The longest time between two polls.
    pub(super) pause: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
struct Rail {
    is_up: bool,
    ups: u32,
    downs: u32,
}

impl Watch {
    /// Records a poll of the links.
    pub(super) fn polled(&mut self, now: Instant) {
        if let Some(before) = self.polled_at.replace(now) {
            self.pause = self.pause.max(span(before, now));
        }
    }

    /// Records the begin or the end of a command.
    pub(super) fn noted(&mut self, note: Note) {
        match note {
            Note::Begun { command, rail, at } => {
                self.marked_at = Some(at);
                self.marks.push(Mark {
                    command,
                    rail,
                    ..Mark::default()
                });
            }
            Note::Over { took, failure } => {
                let Some(mark) = self.marks.last_mut() else {
                    return;
                };
                mark.took_ms = Some(ms(took));
                if let Some(failure) = failure {
                    self.failures.push(format!("`{}`: {failure}", mark.command));
                }
            }
        }
    }

    /// Records that messages arrived or were done.
    pub(super) fn progress(&mut self, now: Instant) {
        if let Some(before) = self.progress_at.replace(now).or(self.connected_at) {
            self.waited(before, now);
        }
    }

    /// Records that `done` of `of` messages are done.
    pub(super) fn done(&mut self, done: u64, of: u64, now: Instant) {
        let is_past = |quarters: u64| done.saturating_mul(4) >= of.saturating_mul(quarters);
        if self.quarter.is_none() && is_past(1) {
            self.quarter = Some((done, now));
        }
        if let Some(quarter) = self.quarter.filter(|_| self.middle.is_none() && is_past(3)) {
            self.middle = Some([quarter, (done, now)]);
        }
    }

    /// Records the end of the run. Unless the link was closed, the time since the last progress counts as an outage.
    pub(super) fn ended(&mut self, now: Instant) {
        let is_closed = matches!(self.over, Some(FinalReason::Closed | FinalReason::PeerClosed));
        if let Some(since) = self.progress_at.or(self.connected_at).filter(|_| !is_closed) {
            self.waited(since, now);
        }
    }

    fn waited(&mut self, since: Instant, now: Instant) {
        let gap = span(since, now);
        self.outage = self.outage.max(gap);
        if let Some(mark) = self.marks.last_mut() {
            mark.outage_ms = mark.outage_ms.max(ms(gap));
        }
    }

    /// Records an event. `heard_at` is the time of a rail's last sign of life.
    pub(super) fn saw(&mut self, event: SessionEvent, heard_at: Option<Instant>, now: Instant) {
        match event {
            SessionEvent::Connected => self.connected_at = Some(now),
            SessionEvent::Recovered => self.recoveries = self.recoveries.saturating_add(1),
            SessionEvent::RailUp { rail } => self.up(rail, now),
            SessionEvent::RailDown { rail } => self.down(rail, heard_at, now),
            SessionEvent::Stalled => {
                self.stalls = self.stalls.saturating_add(1);
                self.stalled_since = Some(now);
                self.mark(now, |mark, after_ms| mark.stalled_after_ms = Some(after_ms));
            }
            SessionEvent::Resumed => {
                self.stalls_no_more(now);
                self.mark(now, |mark, after_ms| mark.resumed_after_ms = Some(after_ms));
            }
            SessionEvent::Recovering => self.stalls_no_more(now),
            SessionEvent::Final { reason } => {
                self.stalls_no_more(now);
                self.over = Some(reason);
                self.mark(now, |mark, after_ms| mark.over_after_ms = Some(after_ms));
            }
            _ => {}
        }
    }

    fn up(&mut self, rail: u8, now: Instant) {
        let is_another = self.is_another_up(rail);
        let Some(state) = self.rails.get_mut(usize::from(rail)) else {
            return;
        };
        state.is_up = true;
        state.ups = state.ups.saturating_add(1);
        if is_another && state.downs > 0 {
            self.fail_backs = self.fail_backs.saturating_add(1);
        }
        self.mark(now, |mark, after_ms| mark.ups.push(RailUse { rail, after_ms }));
    }

    fn down(&mut self, rail: u8, heard_at: Option<Instant>, now: Instant) {
        let is_another = self.is_another_up(rail);
        let Some(state) = self.rails.get_mut(usize::from(rail)) else {
            return;
        };
        state.is_up = false;
        state.downs = state.downs.saturating_add(1);
        if is_another {
            self.failovers = self.failovers.saturating_add(1);
        }
        let silent_ms = heard_at.map(|heard_at| ms(span(heard_at, now)));
        self.mark(now, |mark, after_ms| {
            mark.deaths.push(Death {
                rail,
                after_ms,
                silent_ms,
            });
        });
    }

    /// The number of rails that are up.
    pub(super) fn rails_up(&self) -> u64 {
        self.rails.iter().map(|rail| u64::from(rail.is_up)).sum()
    }

    fn is_another_up(&self, rail: u8) -> bool {
        (0_u8..)
            .zip(&self.rails)
            .any(|(other, state)| other != rail && state.is_up)
    }

    fn stalls_no_more(&mut self, now: Instant) {
        if let Some(since) = self.stalled_since.take() {
            self.stalled = self.stalled.saturating_add(span(since, now));
        }
    }

    /// Adds an event to the last command, if there is one.
    fn mark(&mut self, now: Instant, note: impl FnOnce(&mut Mark, f64)) {
        if let Some((mark, at)) = self.marks.last_mut().zip(self.marked_at) {
            note(mark, ms(span(at, now)));
        }
    }

    /// The rails that were ever up, with the epochs of their last connections.
    pub(super) fn rails(&self, epoch: impl Fn(u8) -> u32) -> Vec<RailReport> {
        (0_u8..)
            .zip(&self.rails)
            .filter(|(_, state)| state.ups > 0)
            .map(|(rail, state)| RailReport {
                rail,
                epoch: epoch(rail),
                ups: state.ups,
                downs: state.downs,
            })
            .collect()
    }

    /// Returns the death that each command caused. If any command names a rail, only commands that name one count, since the others
    /// may repair rails. If no command names a rail, the first death after each command counts.
    pub(super) fn found(&self) -> Vec<Death> {
        let is_said = self.marks.iter().any(|mark| mark.rail.is_some());
        let marks = self.marks.iter().filter(|mark| mark.rail.is_some() == is_said);
        marks.filter_map(Mark::death).collect()
    }
}

pub(crate) fn span(from: Instant, to: Instant) -> Duration {
    Duration::from_nanos(to.to_ns().saturating_sub(from.to_ns()))
}

/// Milliseconds, rounded to microseconds.
pub(super) fn ms(span: Duration) -> f64 {
    (span.as_secs_f64() * 1e6).round() / 1e3
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use doorbell::link::{FinalReason, SessionEvent};
    use doorbell::provider::Instant;

    use super::super::drill::Note;
    use super::Watch;

    const fn at(ms: u64) -> Instant {
        Instant::from_ns(ms * 1_000_000)
    }

    #[test]
    fn what_follows_a_command_is_counted_from_it() {
        let mut watch = Watch::default();
        for rail in [0, 1] {
            watch.saw(SessionEvent::RailUp { rail }, None, at(10));
        }
        watch.progress(at(100));
        watch.noted(Note::Begun {
            command: "cut".into(),
            rail: None,
            at: at(110),
        });
        watch.saw(SessionEvent::RailDown { rail: 1 }, Some(at(112)), at(250));
        watch.progress(at(260));
        watch.noted(Note::Over {
            took: Duration::from_millis(5),
            failure: None,
        });
        watch.noted(Note::Begun {
            command: "mend".into(),
            rail: None,
            at: at(400),
        });
        watch.noted(Note::Over {
            took: Duration::from_millis(5),
            failure: Some("exit status: 1".into()),
        });
        watch.saw(SessionEvent::RailUp { rail: 1 }, None, at(450));
        watch.progress(at(460));
        let [cut, mend] = watch.marks.as_slice() else {
            panic!("{watch:?}");
        };
        assert_eq!((cut.deaths[0].rail, cut.deaths[0].after_ms), (1, 140.0));
        assert_eq!((cut.deaths[0].silent_ms, cut.outage_ms), (Some(138.0), 160.0));
        assert_eq!(
            (mend.ups[0].rail, mend.ups[0].after_ms, mend.outage_ms),
            (1, 50.0, 200.0)
        );
        assert_eq!((watch.failovers, watch.fail_backs), (1, 1));
        let [found] = watch.found()[..] else {
            panic!("{watch:?}");
        };
        assert_eq!((found.after_ms, found.silent_ms), (140.0, Some(138.0)));
        assert_eq!(watch.failures, ["`mend`: exit status: 1"]);
        let rails = watch.rails(|rail| 10 + u32::from(rail));
        assert_eq!((rails[0].ups, rails[0].downs, rails[0].epoch), (1, 0, 10));
        assert_eq!((rails[1].ups, rails[1].downs, rails[1].epoch), (2, 1, 11));
    }

    #[test]
    fn only_the_rail_that_a_command_was_to_make_fail_counts_as_found() {
        let mut watch = Watch::default();
        let mut is_done = |rail: Option<u8>, begun: u64, deaths: &[(u8, u64)], up: Option<u64>| {
            let (command, at_begun) = ("a command".into(), at(begun));
            watch.noted(Note::Begun {
                command,
                rail,
                at: at_begun,
            });
            for &(rail, ms) in deaths {
                watch.saw(SessionEvent::RailDown { rail }, Some(at(ms - 5)), at(ms));
            }
            if let Some(ms) = up {
                watch.saw(SessionEvent::RailUp { rail: 1 }, None, at(ms));
            }
            let found = watch.found();
            found.iter().map(|death| death.after_ms).collect::<Vec<_>>()
        };
        // A command that names no rail: the first death counts.
        assert_eq!(is_done(None, 100, &[(0, 110), (1, 120)], None), [10.0]);
        // The rail died before the command, and was up again.
        assert_eq!(
            is_done(Some(1), 200, &[(0, 230), (1, 240), (1, 250)], None),
            [50.0]
        );
        // A command that repairs a rail, a rail that was already dead, and a rail that came back without a command.
        assert_eq!(is_done(None, 300, &[(1, 330)], Some(340)), [50.0]);
        assert_eq!(is_done(Some(1), 400, &[(0, 430)], None), [50.0]);
        assert_eq!(is_done(Some(1), 500, &[(1, 530)], Some(560)), [50.0]);
        assert_eq!(is_done(Some(1), 600, &[(1, 630)], Some(620)), [50.0, 30.0]);
    }

    #[test]
    fn the_last_rail_is_no_failover_and_stalls_end_with_it() {
        let mut watch = Watch::default();
        watch.saw(SessionEvent::RailUp { rail: 0 }, None, at(0));
        watch.saw(SessionEvent::Stalled, None, at(100));
        watch.saw(SessionEvent::Resumed, None, at(400));
        watch.saw(SessionEvent::Stalled, None, at(500));
        watch.saw(SessionEvent::Recovering, None, at(520));
        watch.saw(SessionEvent::RailDown { rail: 0 }, None, at(520));
        watch.saw(SessionEvent::Recovered, None, at(600));
        watch.saw(SessionEvent::RailUp { rail: 0 }, None, at(600));
        let reason = FinalReason::Unreachable;
        watch.saw(SessionEvent::Final { reason }, None, at(900));
        assert_eq!((watch.failovers, watch.fail_backs, watch.recoveries), (0, 0, 1));
        assert_eq!((watch.stalls, watch.stalled), (2, Duration::from_millis(320)));
        assert_eq!(watch.over, Some(reason));
    }

    #[test]
    fn an_outage_that_does_not_end_counts_and_closing_is_none() {
        let reasons = [
            (Some(FinalReason::Unreachable), 880),
            (None, 880),
            (Some(FinalReason::Closed), 20),
        ];
        for (reason, outage) in reasons {
            let mut watch = Watch::default();
            watch.saw(SessionEvent::Connected, None, at(90));
            watch.progress(at(100));
            watch.progress(at(120));
            watch.noted(Note::Begun {
                command: "cut".into(),
                rail: None,
                at: at(130),
            });
            if let Some(reason) = reason {
                watch.saw(SessionEvent::Final { reason }, None, at(1000));
            }
            watch.ended(at(1000));
            assert_eq!(watch.outage, Duration::from_millis(outage), "{reason:?}");
            let since_cut = if outage > 20 { 880.0 } else { 0.0 };
            assert_eq!(watch.marks[0].outage_ms, since_cut);
        }
        let mut never = Watch::default();
        never.saw(SessionEvent::Connected, None, at(90));
        never.ended(at(1000));
        assert_eq!(never.outage, Duration::from_millis(910));
    }

    #[test]
    fn the_middle_half_is_from_the_first_quarter_to_the_third() {
        let mut watch = Watch::default();
        for (done, ms) in [(0, 10), (24, 20), (26, 30), (74, 40)] {
            watch.done(done, 100, at(ms));
        }
        assert_eq!(watch.middle, None);
        for (done, ms) in [(75, 50), (100, 60)] {
            watch.done(done, 100, at(ms));
        }
        assert_eq!(watch.middle, Some([(26, at(30)), (75, at(50))]));
    }

    #[test]
    fn the_longest_pause_between_polls_is_kept() {
        let mut watch = Watch::default();
        for now in [5, 6, 30, 31] {
            watch.polled(at(now));
        }
        assert_eq!(watch.pause, Duration::from_millis(24));
    }
}
