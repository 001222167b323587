//! Runs a checked scenario on a cluster: which step starts when, what is stopped when, and what fails the run.
//!
//! One thread drives everything: each turn starts the steps whose conditions hold, then takes the events of
//! the running ones. A step fails the run at once; what else runs is then stopped. [`super::live`] handles
//! one running process, [`super::judging`] one that has ended.

use core::time::Duration;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, ensure};

use super::counters;
use super::judging::failure_text;
use super::live::Live;
use super::model::{Block, END_WITHIN, Folders, Line, STOP_GRACE, Scenario, Step, Until};
use super::output::Output;
use super::progress::Progress;
use super::report::{Outcome, Report, StepReport};
use super::schema::AtEnd;
use super::summary;
use super::template::Values;
use crate::cluster::{Cluster, CommandSpec, Signal};

/// Lines of a failed step's output that are shown at once; all of it is kept.
const TAIL_LINES: usize = 30;

/// Lines of the output of a step that ran beside a failed one.
const BESIDE_LINES: usize = 15;

/// How long a turn waits for news when there is none.
const TURN: Duration = Duration::from_millis(20);

/// How long the end of a killed process is waited for.
const KILL_GRACE: Duration = Duration::from_secs(5);

/// Settings of a run, beside the scenario and the cluster.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings<'a> {
    /// Folders of our programs: `{bin}`, `{examples}` and `{tests}`.
    pub(crate) programs: &'a Folders,
    /// Folder for output: `{out}`. It lies in the cluster's shared folder.
    pub(crate) out: &'a Path,
}

/// Runs `scenario` on `cluster`.
///
/// A step that fails is no error but a report with the verdict "failed".
///
/// # Errors
///
/// The output folder cannot be used, or lies outside what the hosts share.
pub(crate) fn run(
    scenario: &Scenario,
    cluster: &dyn Cluster,
    settings: Settings<'_>,
    progress: &mut Progress,
) -> Result<Report> {
    ensure!(
        settings.out.starts_with(cluster.shared_dir()),
        "the output folder {} is not in the folder the hosts share, {}",
        settings.out.display(),
        cluster.shared_dir().display()
    );
    let mut runner = Runner {
        scenario,
        cluster,
        settings,
        progress,
        started: Instant::now(),
        tracked: BTreeMap::new(),
        steps: Vec::new(),
        failures: Vec::new(),
        notes: Vec::new(),
        figures: vec![Vec::new(); scenario.metrics.len()],
    };
    let before = counters::read(cluster);
    for block in &scenario.blocks {
        if !runner.block(block)? {
            break;
        }
    }
    runner.end()?;
    let required = scenario.require_rdma_traffic;
    let traffic = match before.and_then(|before| Ok((before, counters::read(cluster)?))) {
        Ok((before, after)) => counters::between(cluster, &before, &after, required),
        Err(error) => {
            runner.failures.push(format!("{error:#}"));
            counters::Traffic {
                required,
                ..counters::Traffic::default()
            }
        }
    };
    let Runner {
        started,
        steps,
        failures,
        notes,
        figures,
        ..
    } = runner;
    let found = summary::Found {
        steps,
        failures,
        notes,
        figures,
        traffic,
        duration: started.elapsed(),
    };
    Ok(summary::report(scenario, cluster, settings.out, found))
}

pub(super) struct Runner<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) cluster: &'a dyn Cluster,
    pub(super) settings: Settings<'a>,
    pub(super) progress: &'a mut Progress,
    started: Instant,
    /// Steps of the current pass, and background steps of earlier ones that still live, by index.
    pub(super) tracked: BTreeMap<usize, Tracked>,
    pub(super) steps: Vec<StepReport>,
    failures: Vec<String>,
    notes: Vec<String>,
    /// Measured rounds of each metric.
    pub(super) figures: Vec<Vec<f64>>,
}

/// A step that was started in this pass or still lives.
pub(super) struct Tracked {
    pub(super) live: Live,
    /// Index into [`Runner::steps`].
    pub(super) report: usize,
    /// Its end has been judged.
    pub(super) done: bool,
    /// The runner ended it, so its exit says nothing about it.
    pub(super) told: bool,
}

/// One run of the steps of one variant.
#[derive(Clone, Copy)]
struct Pass<'a> {
    group: &'a str,
    steps: &'a [usize],
    /// From 1, and out of how many; absent for what runs once.
    round: Option<(u32, u32)>,
    warmup: bool,
    /// Background steps outlive the pass.
    setup: bool,
}

impl Pass<'_> {
    fn folder(&self) -> PathBuf {
        match self.round {
            None => PathBuf::new(),
            Some((round, _)) if self.warmup => PathBuf::from(format!("warmup-{round:02}")),
            Some((round, _)) => PathBuf::from(format!("round-{round:02}")),
        }
    }

    fn label(&self, step: &str) -> String {
        match self.round {
            None => step.to_owned(),
            Some((round, rounds)) => {
                let kind = if self.warmup { "warm-up" } else { "round" };
                format!("{kind} {round}/{rounds} {step}")
            }
        }
    }
}

impl<'a> Runner<'a> {
    /// Runs every round of a block; `false` when something failed.
    fn block(&mut self, block: &'a Block) -> Result<bool> {
        let once = block.rounds == 1 && block.warmup_rounds == 0;
        let warmups = (1..=block.warmup_rounds).map(|round| (round, block.warmup_rounds, true));
        let rounds = (1..=block.rounds).map(|round| (round, block.rounds, false));
        for (round, of, warmup) in warmups.chain(rounds) {
            for variant in &block.variants {
                let round = (!once).then_some((round, of));
                let pass = Pass {
                    group: &variant.name,
                    steps: &variant.steps,
                    round,
                    warmup,
                    setup: block.setup,
                };
                if !self.pass(pass)? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn pass(&mut self, pass: Pass<'a>) -> Result<bool> {
        let mut pending: Vec<usize> = pass.steps.to_vec();
        for index in pass.steps {
            self.tracked.remove(index);
        }
        let (mut moved_at, mut before) = (Instant::now(), None);
        loop {
            self.start_what_can(&mut pending, pass)?;
            self.turn(pass.warmup)?;
            if self.failed() {
                self.stop(None, pass.warmup)?;
                return Ok(false);
            }
            let running = || {
                let left = self.tracked.iter().filter(|(_, tracked)| !tracked.done);
                left.map(|(&index, _)| self.step(index))
            };
            if pending.is_empty() && running().all(|step| step.background) {
                break;
            }
            // A step with a deadline ends by it, and another step may follow from that.
            let has_end = running().any(|step| step.deadline.is_some());
            let now = Some((pending.len(), running().count()));
            if has_end || now != before {
                (moved_at, before) = (Instant::now(), now);
            } else if moved_at.elapsed() > END_WITHIN {
                self.fail_awaited(&pending);
            }
        }
        if pass.setup {
            return Ok(true);
        }
        self.settle(pass.steps, pass.warmup)
    }

    /// Fails what does not end while these wait for that.
    fn fail_awaited(&mut self, pending: &[usize]) {
        let awaited = pending.iter().flat_map(|&index| &self.step(index).wait_for);
        let ends: Vec<usize> = awaited
            .filter(|wait| wait.until == Until::Exit)
            .map(|wait| wait.step)
            .collect();
        for index in ends {
            if self.tracked.get(&index).is_some_and(|tracked| !tracked.done) {
                let seconds = END_WITHIN.as_secs();
                self.fail(
                    index,
                    format!("had not ended by itself {seconds} s after all others, which wait for it"),
                );
            }
        }
    }

    /// Lets background steps that must end by themselves do so, and stops the others.
    fn settle(&mut self, steps: &[usize], warmup: bool) -> Result<bool> {
        let since = Instant::now();
        loop {
            let waited: Vec<usize> = steps
                .iter()
                .copied()
                .filter(|&index| self.step(index).at_end == AtEnd::Wait)
                .filter(|index| self.tracked.get(index).is_some_and(|tracked| !tracked.done))
                .collect();
            if waited.is_empty() || self.failed() {
                break;
            }
            self.turn(warmup)?;
            for index in waited {
                if self.step(index).deadline.is_none() && since.elapsed() > END_WITHIN {
                    let seconds = END_WITHIN.as_secs();
                    self.fail(
                        index,
                        format!("had not ended by itself {seconds} s after all others"),
                    );
                }
            }
        }
        let all = self.failed();
        self.stop((!all).then_some(steps), warmup)?;
        Ok(!self.failed())
    }

    /// Ends what outlives its block.
    fn end(&mut self) -> Result<()> {
        if !self.failed() {
            let left: Vec<usize> = self.tracked.keys().copied().collect();
            self.settle(&left, false)?;
        }
        self.stop(None, false)
    }

    pub(super) fn step(&self, index: usize) -> &'a Step {
        // Indices come from `check`, which made them from this very list.
        #[expect(clippy::indexing_slicing, reason = "indices were made from this list")]
        &self.scenario.steps[index]
    }

    pub(super) fn failed(&self) -> bool {
        !self.failures.is_empty() || self.steps.iter().any(|step| step.outcome == Outcome::Failed)
    }

    fn start_what_can(&mut self, pending: &mut Vec<usize>, pass: Pass<'a>) -> Result<()> {
        let mut index = 0;
        while let Some(&step) = pending.get(index) {
            if self.may_start(step) {
                pending.remove(index);
                self.start(step, pass)?;
            } else {
                index = index.saturating_add(1);
            }
        }
        Ok(())
    }

    fn may_start(&self, index: usize) -> bool {
        let step = self.step(index);
        let done = |other: &usize| self.tracked.get(other).is_some_and(|tracked| tracked.done);
        step.after.as_ref().is_none_or(done)
            && step.wait_for.iter().all(|wait| match wait.until {
                Until::Exit => done(&wait.step),
                Until::Ready => self
                    .tracked
                    .get(&wait.step)
                    .is_some_and(|tracked| tracked.live.ready),
            })
    }

    fn start(&mut self, index: usize, pass: Pass<'a>) -> Result<()> {
        let step = self.step(index);
        let dir = self.settings.out.join(pass.folder());
        let output = Output::create(&dir, &step.id)?;
        let label = pass.label(&step.id);
        let mut report = StepReport {
            id: step.id.clone(),
            host: step.host.clone(),
            group: pass.group.to_owned(),
            round: pass.round.map(|(round, _)| round),
            warmup: pass.warmup,
            command: Vec::new(),
            command_line: String::new(),
            outcome: Outcome::Passed,
            reason: None,
            exit: None,
            started_s: self.started.elapsed().as_secs_f64(),
            duration_s: 0.0,
            stdout: output.stdout_path().to_owned(),
            stderr: output.stderr_path().to_owned(),
            files: Vec::new(),
            tests: None,
        };
        let started = self.command(step).and_then(|(spec, line)| {
            report.command.clone_from(&spec.argv);
            report.command_line = line;
            self.progress.started(&label, &step.host, &report.command_line);
            Live::start(self.cluster, step, &spec, output)
        });
        let slot = self.steps.len();
        match started {
            Ok(live) => {
                self.steps.push(report);
                self.tracked.insert(
                    index,
                    Tracked {
                        live,
                        report: slot,
                        done: false,
                        told: false,
                    },
                );
            }
            Err(error) => {
                report.outcome = Outcome::Failed;
                report.reason = Some(format!("cannot be started: {error:#}"));
                self.failures.push(failure_text(&report, &[]));
                self.steps.push(report);
            }
        }
        Ok(())
    }

    fn command(&self, step: &Step) -> Result<(CommandSpec, String)> {
        let hosts = self.cluster.hosts();
        let values = Values {
            topology: &self.scenario.topology,
            hosts,
            bin: &self.settings.programs.bin,
            examples: &self.settings.programs.examples,
            tests: &self.settings.programs.tests,
            rivals: &self.settings.programs.rivals,
            out: self.settings.out,
        };
        let (argv, line) = match &step.command {
            Line::Argv(argv) => {
                let argv: Vec<String> = argv
                    .iter()
                    .map(|word| word.fill(&values))
                    .collect::<Result<_>>()?;
                let line = command_line(&argv);
                (argv, line)
            }
            Line::Shell(line) => {
                let line = line.fill(&values)?;
                (
                    ["sh", "-e", "-c", &line].map(str::to_owned).to_vec(),
                    line.trim().to_owned(),
                )
            }
        };
        let mut env = Vec::new();
        for (name, value) in &step.env {
            env.push((name.clone(), value.fill(&values)?));
        }
        Ok((
            CommandSpec {
                argv,
                env,
                ..CommandSpec::default()
            },
            line,
        ))
    }

    /// Takes in what all running steps have done, waiting a little when that is nothing.
    fn turn(&mut self, warmup: bool) -> Result<()> {
        let running: Vec<usize> = self
            .tracked
            .iter()
            .filter(|(_, tracked)| !tracked.done)
            .map(|(&index, _)| index)
            .collect();
        let mut news = false;
        for &index in &running {
            news |= self.poll(index, Duration::ZERO, warmup)?;
        }
        if let (false, Some(&index)) = (news, running.first()) {
            self.poll(index, TURN, warmup)?;
        }
        Ok(())
    }

    fn poll(&mut self, index: usize, wait: Duration, warmup: bool) -> Result<bool> {
        let step = self.step(index);
        let now = Instant::now();
        let deadline = now.checked_add(wait).unwrap_or(now);
        let Some(tracked) = self.tracked.get_mut(&index).filter(|tracked| !tracked.done) else {
            return Ok(false);
        };
        let news = match tracked.live.poll(step, deadline) {
            Ok(news) => news,
            Err(error) => {
                self.fail(index, format!("{error:#}"));
                false
            }
        };
        let Some(tracked) = self.tracked.get(&index) else {
            return Ok(news);
        };
        let (elapsed, told) = (tracked.live.elapsed(), tracked.told);
        if !tracked.live.running() {
            self.judge(index, warmup)?;
        } else if told {
            // It is being stopped; its deadlines no longer matter.
        } else if step.deadline.is_some_and(|deadline| elapsed > deadline) {
            let seconds = step.deadline.unwrap_or_default().as_secs_f64();
            self.fail(
                index,
                format!("ran past its deadline of {seconds} s and was killed"),
            );
        } else if let Some(ready) = step.ready.as_ref().filter(|_| !tracked.live.ready) {
            if elapsed > ready.within {
                self.fail(
                    index,
                    format!("was not ready after {} s", ready.within.as_secs_f64()),
                );
            }
        }
        Ok(news)
    }

    /// Marks a step as failed; only its first reason is kept.
    pub(super) fn fail(&mut self, index: usize, reason: String) {
        let Some(tracked) = self.tracked.get(&index) else {
            return;
        };
        if let Some(report) = self.steps.get_mut(tracked.report) {
            report.outcome = Outcome::Failed;
            report.reason.get_or_insert(reason);
        }
    }

    /// Ends the running ones of `only` (of all, with `None`): TERM, then KILL; then reports every failure.
    fn stop(&mut self, only: Option<&[usize]>, warmup: bool) -> Result<()> {
        // Steps that have ended by themselves by now are judged by their own exit.
        self.turn(warmup)?;
        let ours = |index: &usize| only.is_none_or(|only| only.contains(index));
        let left = |runner: &Self| -> Vec<usize> {
            let running = runner.tracked.iter().filter(|(_, tracked)| !tracked.done);
            running
                .map(|(&index, _)| index)
                .filter(|index| ours(index))
                .collect()
        };
        for (signal, grace) in [(Signal::Terminate, STOP_GRACE), (Signal::Kill, KILL_GRACE)] {
            for index in left(self) {
                if let Some(tracked) = self.tracked.get_mut(&index) {
                    tracked.told = true;
                    // A machine that is gone has nothing left to stop.
                    let _ = tracked.live.signal(signal);
                }
                if signal == Signal::Kill {
                    let (id, seconds) = (&self.step(index).id, STOP_GRACE.as_secs());
                    self.notes.push(format!(
                        "step `{id}` did not end {seconds} s after TERM and was killed"
                    ));
                }
            }
            let since = Instant::now();
            while !left(self).is_empty() && since.elapsed() < grace {
                self.turn(warmup)?;
            }
        }
        for index in left(self) {
            self.fail(index, "does not end, not even after KILL".to_owned());
            if let Some(tracked) = self.tracked.get_mut(&index) {
                tracked.done = true;
            }
        }
        self.tell_failures();
        Ok(())
    }

    /// Puts every failed step that was not reported yet into words.
    fn tell_failures(&mut self) {
        for tracked in self.tracked.values() {
            let Some(report) = self.steps.get(tracked.report) else {
                continue;
            };
            if report.outcome == Outcome::Failed {
                let text = failure_text(report, &tracked.live.output.tail(TAIL_LINES));
                if !self.failures.contains(&text) {
                    self.failures.push(text);
                }
            }
        }
        self.note_beside();
    }

    /// Notes the last lines of the steps that ran beside the first one that failed: the fault may be theirs.
    fn note_beside(&mut self) {
        let failed = self.steps.iter().find(|step| step.outcome == Outcome::Failed);
        let Some(began_s) = failed.map(|step| step.started_s) else {
            return;
        };
        for tracked in self.tracked.values() {
            let tail = tracked.live.output.tail(BESIDE_LINES);
            let Some(report) = self.steps.get(tracked.report) else {
                continue;
            };
            let was_beside = report.started_s + report.duration_s >= began_s;
            if report.outcome == Outcome::Failed || !was_beside || tail.is_empty() {
                continue;
            }
            let words = format!("beside it, step `{}` on host `{}` said", report.id, report.host);
            let note = format!("{words}:\n  | {}", tail.join("\n  | "));
            if !self.notes.contains(&note) {
                self.notes.push(note);
            }
        }
    }
}

/// A command as one may type it.
pub(super) fn command_line(argv: &[String]) -> String {
    let quoted: Vec<String> = argv
        .iter()
        .map(|word| {
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+{}".contains(c);
            if !word.is_empty() && word.chars().all(plain) {
                word.clone()
            } else {
                format!("'{}'", word.replace('\'', r"'\''"))
            }
        })
        .collect();
    quoted.join(" ")
}
