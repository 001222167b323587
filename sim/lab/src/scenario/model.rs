//! A scenario that has been checked: what runs where, in which order, and what is read from it.
//!
//! Every name has become an index, every pattern is compiled, every default is filled in (and has its reason
//! here). How a file becomes this is in [`super::check`]; running it is in [`super::runner`].

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use regex::Regex;

use super::goal::Goal;
use super::schema::{AtEnd, ExpectExit, Profile};
use super::template::Template;
use crate::kernel::Choice;
use crate::programs::Rival;
use crate::topology::Topology;

/// How long a foreground step may take when the file does not say: four times the slowest stock tool in an
/// emulated guest.
pub(super) const DEADLINE_DEFAULT: Duration = Duration::from_secs(120);

/// How long a step may take to become ready when the file does not say.
pub(super) const READY_WITHIN_DEFAULT: Duration = Duration::from_secs(60);

/// How long a background step with `at_end = "wait"` and no deadline has, once nothing else runs. A test waits for
/// all of it.
pub(super) const END_WITHIN: Duration = Duration::from_secs(if cfg!(test) { 10 } else { 60 });

/// How long a step has between TERM and KILL.
pub(super) const STOP_GRACE: Duration = Duration::from_secs(if cfg!(test) { 3 } else { 30 });

/// Most rounds of one group: output of every round is kept, and a typing error should not fill a disk.
pub(super) const ROUNDS_MAX: u32 = 10_000;

/// Which of our programs are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Programs {
    /// The folder of programs: `{bin}`.
    pub(crate) bin: bool,
    /// The folder of examples: `{examples}`.
    pub(crate) examples: bool,
    /// The folder of tests that need a device: `{tests}`.
    pub(crate) tests: bool,
    /// How the first are built.
    pub(crate) profile: Profile,
    /// Programs of others: `{rival.NAME}`.
    pub(crate) rivals: BTreeSet<Rival>,
}

/// Folders of the built programs; empty paths for programs that were not asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Folders {
    pub(crate) bin: PathBuf,
    pub(crate) examples: PathBuf,
    pub(crate) tests: PathBuf,
    pub(crate) rivals: BTreeMap<Rival, PathBuf>,
}

/// A checked scenario.
#[derive(Debug)]
pub(crate) struct Scenario {
    /// File that it was read from.
    pub(crate) path: PathBuf,
    pub(crate) name: String,
    pub(crate) about: String,
    /// The kernel it asks for.
    pub(crate) kernel: Choice,
    pub(crate) topology: Topology,
    /// Whether a run in which no packet crossed rxe fails.
    pub(crate) require_rdma_traffic: bool,
    pub(super) steps: Vec<Step>,
    pub(super) blocks: Vec<Block>,
    pub(super) metrics: Vec<Metric>,
    pub(super) comparisons: Vec<Comparison>,
    pub(super) tables: Vec<Table>,
    /// The kernels on which it belongs to `cargo lab test`.
    pub(crate) test_on: Vec<Choice>,
    /// Further kernels, for `cargo lab test --all` alone.
    pub(crate) all_on: Vec<Choice>,
    /// The one guest of `cargo lab test --quick`.
    pub(crate) quick: bool,
    /// Run by `cargo lab test` at the same time as others.
    pub(crate) beside_others: bool,
    /// How our programs are built for it.
    pub(super) profile: Profile,
}

/// Steps that are run together, in the order of the file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// One: repeated. Several: alternating, A B A B.
    pub(super) variants: Vec<Variant>,
    /// Measured rounds.
    pub(super) rounds: u32,
    /// Rounds before them, run and checked alike but not measured.
    pub(super) warmup_rounds: u32,
    /// Steps outside all groups: run once, and their background steps live to the end of the scenario.
    pub(super) setup: bool,
}

/// One of the alternating groups of a block.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Variant {
    /// The group's name; empty for steps outside all groups.
    pub(super) name: String,
    /// Indices into [`Scenario::steps`], in the order of the file.
    pub(super) steps: Vec<usize>,
}

/// One step.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) id: String,
    pub(super) host: String,
    pub(super) command: Line,
    pub(super) env: Vec<(String, Template)>,
    pub(super) background: bool,
    pub(super) at_end: AtEnd,
    pub(super) expect_exit: ExpectExit,
    /// `None`: a background step that may live as long as its scope.
    pub(super) deadline: Option<Duration>,
    /// The foreground step that must have ended before this one starts.
    pub(super) after: Option<usize>,
    pub(super) wait_for: Vec<Wait>,
    pub(super) ready: Option<Ready>,
    pub(super) expect_output: Vec<Regex>,
    pub(super) fails_if: Vec<Regex>,
    pub(super) files: Vec<Template>,
    pub(super) tests: bool,
}

/// A step's command line.
#[derive(Debug)]
pub(super) enum Line {
    Argv(Vec<Template>),
    Shell(Template),
}

/// Event that a step waits for before it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wait {
    pub(super) step: usize,
    pub(super) until: Until,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    Ready,
    Exit,
}

/// When a step is ready.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) when: ReadyWhen,
    /// From its start.
    pub(super) within: Duration,
}

#[derive(Debug)]
pub(super) enum ReadyWhen {
    /// A line of its output has matched.
    Pattern(Regex),
    /// Somebody listens on this TCP port of its host.
    Port(u16),
}

/// A figure read from a step's output.
#[derive(Debug)]
pub(super) struct Metric {
    pub(super) name: String,
    pub(super) step: usize,
    pub(super) source: MetricSource,
    pub(super) unit: String,
    pub(super) scale: f64,
    /// Reported as met or missed, never a failure.
    pub(super) goal: Option<Goal>,
}

#[derive(Debug)]
pub(super) enum MetricSource {
    /// The capture of the last match in the output.
    Pattern(Regex),
    /// A number in the JSON document that standard output is.
    Pointer(String),
}

/// The ratio of two metrics' medians.
#[derive(Debug)]
pub(super) struct Comparison {
    pub(super) name: String,
    /// Index into [`Scenario::metrics`]: above the line.
    pub(super) metric: usize,
    /// Below the line.
    pub(super) to: usize,
    pub(super) min: Option<f64>,
    pub(super) max: Option<f64>,
    /// Whether the bounds are a goal, which is reported, instead of a condition of the run.
    pub(super) is_goal: bool,
}

/// A table of figures.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) title: String,
    pub(super) columns: Vec<String>,
    /// Each as long as `columns`.
    pub(super) rows: Vec<Vec<Cell>>,
}

/// Cell of a table. Numbers are indices into [`Scenario::metrics`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Cell {
    Text(String),
    Metric(usize),
    Ratio(usize, usize),
}

impl Scenario {
    /// Which of our programs any command needs to have been built.
    pub(crate) fn needs(&self) -> Programs {
        let mut needs = Programs {
            profile: self.profile,
            ..Programs::default()
        };
        for template in self.templates() {
            needs.bin |= template.needs_bin();
            needs.examples |= template.needs_examples();
            needs.tests |= template.needs_tests();
            needs.rivals.extend(template.rivals());
        }
        needs
    }

    /// Whether any command has `word` in it as a word of its own, as a program has.
    pub(crate) fn mentions(&self, word: &str) -> bool {
        self.templates().any(|template| template.has_word(word))
    }

    fn templates(&self) -> impl Iterator<Item = &Template> {
        self.steps.iter().flat_map(|step| {
            let line: &[Template] = match &step.command {
                Line::Argv(argv) => argv,
                Line::Shell(line) => core::slice::from_ref(line),
            };
            line.iter().chain(step.env.iter().map(|(_, value)| value))
        })
    }

    /// The most rounds anything in it has.
    pub(crate) fn rounds(&self) -> u32 {
        self.blocks.iter().map(|block| block.rounds).max().unwrap_or(0)
    }

    /// The metrics that are compared, each with the one it is compared to.
    #[cfg(test)]
    pub(crate) fn compared(&self) -> Vec<(&str, &str)> {
        let name = |index: usize| self.metrics.get(index).map_or("", |metric| metric.name.as_str());
        let pairs = self.comparisons.iter();
        pairs.map(|pair| (name(pair.metric), name(pair.to))).collect()
    }

    /// Replaces the rounds of everything that repeats.
    pub(crate) fn set_rounds(&mut self, rounds: u32) {
        for block in self.blocks.iter_mut().filter(|block| !block.setup) {
            block.rounds = rounds.clamp(1, ROUNDS_MAX);
        }
    }
}

/// The block among `blocks` a step belongs to.
pub(super) fn block_of(blocks: &[Block], step: usize) -> Option<usize> {
    blocks
        .iter()
        .position(|block| block.variants.iter().any(|variant| variant.steps.contains(&step)))
}
