//! One step while it runs: its process, what it has written, and whether it is ready.
//!
//! Which step runs when is [`super::runner`]'s business.

use core::time::Duration;
use std::time::Instant;

use anyhow::Result;

use super::measure::matching;
use super::model::{Ready, ReadyWhen, Step};
use super::output::{Output, Stream};
use crate::cluster::{Cluster, CommandSpec, Exit, Process, ProcessEvent, Signal};

/// Most events taken from one process in a row, so that one that writes without end does not starve the rest.
const EVENTS_AT_ONCE: usize = 64;

/// A step that was started.
pub(super) struct Live {
    process: Box<dyn Process>,
    pub(super) output: Output,
    pub(super) started: Instant,
    pub(super) ready: bool,
    pub(super) exit: Option<Exit>,
    pub(super) ended: Option<Instant>,
    /// Nothing more can be heard of it: its machine is gone.
    lost: bool,
    /// Ends with 0 once the awaited port has a listener.
    probe: Option<Box<dyn Process>>,
}

impl Live {
    /// Starts `spec` for `step`.
    pub(super) fn start(
        cluster: &dyn Cluster,
        step: &Step,
        spec: &CommandSpec,
        output: Output,
    ) -> Result<Self> {
        let started = Instant::now();
        let process = cluster.spawn(&step.host, spec)?;
        let probe = match &step.ready {
            Some(Ready {
                when: ReadyWhen::Port(port),
                ..
            }) => Some(cluster.spawn(&step.host, &listening(*port))?),
            _ => None,
        };
        Ok(Self {
            process,
            output,
            started,
            ready: false,
            exit: None,
            ended: None,
            lost: false,
            probe,
        })
    }

    pub(super) fn running(&self) -> bool {
        self.exit.is_none() && !self.lost
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.ended
            .unwrap_or_else(Instant::now)
            .saturating_duration_since(self.started)
    }

    /// Takes in what has happened, waiting for it until `deadline` at most.
    ///
    /// # Errors
    ///
    /// The machine is gone, the output is too long, a line matches `fails_if`, or the probe for the port died.
    pub(super) fn poll(&mut self, step: &Step, deadline: Instant) -> Result<bool> {
        let mut news = false;
        let mut until = deadline;
        for _ in 0..EVENTS_AT_ONCE {
            if !self.running() {
                break;
            }
            let event = match self.process.next_event(until) {
                Ok(Some(event)) => event,
                Ok(None) => break,
                Err(error) => {
                    self.lost = true;
                    self.ended = Some(Instant::now());
                    self.probe = None;
                    self.output.finish();
                    return Err(error);
                }
            };
            until = Instant::now();
            news = true;
            let start = match event {
                ProcessEvent::Stdout(bytes) => self.output.take(Stream::Out, &bytes)?,
                ProcessEvent::Stderr(bytes) => self.output.take(Stream::Err, &bytes)?,
                ProcessEvent::Exited(exit) => {
                    self.exit = Some(exit);
                    self.ended = Some(Instant::now());
                    self.output.finish()
                }
            };
            self.read(step, start)?;
        }
        self.poll_probe()?;
        Ok(news)
    }

    fn read(&mut self, step: &Step, start: usize) -> Result<()> {
        let text = self.output.news(start);
        for line in text.lines() {
            if let Some(pattern) = matching(&step.fails_if, line) {
                anyhow::bail!("its output matches fails_if `{pattern}`: {line}");
            }
            if let Some(Ready {
                when: ReadyWhen::Pattern(pattern),
                ..
            }) = &step.ready
            {
                self.ready = self.ready || pattern.is_match(line);
            }
        }
        Ok(())
    }

    fn poll_probe(&mut self) -> Result<()> {
        let Some(probe) = &mut self.probe else {
            return Ok(());
        };
        while let Some(event) = probe.next_event(Instant::now())? {
            if let ProcessEvent::Exited(exit) = event {
                self.probe = None;
                anyhow::ensure!(
                    exit.success(),
                    "cannot look for its port in /proc/net on its host: {exit}"
                );
                self.ready = true;
                break;
            }
        }
        Ok(())
    }

    /// Sends a signal to it.
    pub(super) fn signal(&mut self, signal: Signal) -> Result<()> {
        self.process.signal(signal)
    }
}

/// Waits until a socket listens on `port`, by the kernel's table: connecting would take the one connection
/// that a simple server accepts.
fn listening(port: u16) -> CommandSpec {
    // State 0A is LISTEN; the second field is the local address with the port in hexadecimal.
    let pattern = format!("^ *[0-9]+: [0-9A-F]+:{port:04X} [0-9A-F]+:0000 0A ");
    // One process a turn: each costs tens of milliseconds of an emulated processor. A kernel without IPv6 has
    // no tcp6, which `-s` forgives.
    let script = format!(
        "test -r /proc/net/tcp || exit 1; until grep -qsE '{pattern}' /proc/net/tcp /proc/net/tcp6; do sleep 0.1; done"
    );
    CommandSpec {
        argv: vec!["sh".to_owned(), "-c".to_owned(), script],
        ..CommandSpec::default()
    }
}
