//! From a file to a [`Scenario`]: reads it, and refuses what does not fit together, each time with the file,
//! the line and the field.
//!
//! Nothing is run here and no machine is asked.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use regex::{Regex, RegexBuilder};
use toml::Spanned;

use super::blocks;
use super::expand;
use super::goal::Goal;
use super::model::{
    Cell, Comparison, DEADLINE_DEFAULT, Line, Metric, MetricSource, READY_WITHIN_DEFAULT, ROUNDS_MAX, Ready,
    ReadyWhen, Scenario, Step, Table, Until, Wait, block_of,
};
use super::schema::{self, AtEnd, Command, File, Link as LinkTable, Ready as ReadyTable, Step as StepTable};
use super::template::{Template, list};
use crate::kernel::Choice;
use crate::topology::{Link, MTU_DEFAULT, Shaping, Subnet, Topology};

/// The longest scenario: many times those that there are.
const TEXT_BYTES_MAX: u64 = 1 << 20;

/// Reads and checks the scenario at `path`.
///
/// # Errors
///
/// The file cannot be read, or is no scenario: the message begins with `FILE:LINE:` and shows the line.
pub(crate) fn load(path: &Path) -> Result<Scenario> {
    let mut bytes = Vec::new();
    let unread = || format!("cannot read {}", path.display());
    let file = std::fs::File::open(path).with_context(unread)?;
    file.take(TEXT_BYTES_MAX.saturating_add(1))
        .read_to_end(&mut bytes)
        .with_context(unread)?;
    if bytes.len() as u64 > TEXT_BYTES_MAX {
        bail!(
            "{}: a scenario has {TEXT_BYTES_MAX} bytes at most",
            path.display()
        );
    }
    parse(path, core::str::from_utf8(&bytes).with_context(unread)?)
}

/// [`load`] for a text at hand.
pub(super) fn parse(path: &Path, text: &str) -> Result<Scenario> {
    let source = Source { path, text };
    let mut file: File = toml::from_str(text).map_err(|error| source.fault(error.span(), error.message()))?;
    expand::expand(source, &mut file)?;
    Checker { source, file: &file }.scenario()
}

/// The text behind the spans, for messages.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Source<'_> {
    /// An error about the text at `span`, with its line.
    pub(super) fn fault(self, span: Option<core::ops::Range<usize>>, message: &str) -> anyhow::Error {
        let Some(span) = span else {
            return anyhow::anyhow!("{}: {message}", self.path.display());
        };
        // A missing value is reported at the end of its table, which may be the end of the file.
        let start = span.start.min(self.text.trim_end().len());
        let before = self.text.get(..start).unwrap_or_default();
        let number = before.matches('\n').count().saturating_add(1);
        let line = self
            .text
            .lines()
            .nth(number.saturating_sub(1))
            .unwrap_or_default();
        anyhow::anyhow!("{}:{number}: {message}\n  {number} | {line}", self.path.display())
    }

    /// An error about one field's value.
    pub(super) fn at<T>(self, spanned: &Spanned<T>, message: &str) -> anyhow::Error {
        self.fault(Some(spanned.span()), message)
    }
}

struct Checker<'a> {
    source: Source<'a>,
    file: &'a File,
}

impl Checker<'_> {
    fn scenario(&self) -> Result<Scenario> {
        let file = self.file;
        let name = file.name.get_ref();
        if !is_name(name) {
            return Err(self.source.at(&file.name, &format!("name `{name}`: {NAME_RULE}")));
        }
        let about = file.about.get_ref().trim();
        if about.is_empty() || about.contains('\n') {
            return Err(self
                .source
                .at(&file.about, "about: say in one line what the scenario shows"));
        }
        let kernel = match &file.kernel {
            None => Choice::default(),
            Some(kernel) => kernel
                .get_ref()
                .parse()
                .map_err(|error| self.source.at(kernel, &format!("kernel: {error}")))?,
        };
        let topology = self.topology()?;
        let require_rdma_traffic = match &file.require_rdma_traffic {
            Some(required) if *required.get_ref() && topology.links.is_empty() => {
                return Err(self
                    .source
                    .at(required, "require_rdma_traffic: without links there is none"));
            }
            Some(required) => *required.get_ref(),
            None => !topology.links.is_empty(),
        };
        let ids = self.ids()?;
        let blocks = blocks::blocks(self.source, file)?;
        let mut steps = Vec::new();
        for table in &file.steps {
            steps.push(self.step(table.get_ref(), &topology, &ids)?);
        }
        blocks::order(self.source, file, &blocks, &mut steps)?;
        let metrics = self.metrics(&ids)?;
        let comparisons = self.comparisons(&metrics, &blocks)?;
        let tables = self.tables(&metrics)?;
        let tested: Vec<_> = file.test_on.iter().chain(&file.all_on).cloned().collect();
        Ok(Scenario {
            path: self.source.path.to_owned(),
            name: name.clone(),
            about: about.to_owned(),
            kernel,
            topology,
            require_rdma_traffic,
            steps,
            blocks,
            metrics,
            comparisons,
            tables,
            test_on: self.kernels("test_on", &file.test_on, &[])?,
            all_on: self.kernels("all_on", &file.all_on, &file.test_on)?,
            quick: self.of_tests("quick", file.quick.as_ref(), &file.test_on)?,
            beside_others: self.of_tests("beside_others", file.beside_others.as_ref(), &tested)?,
            profile: file.profile,
        })
    }

    /// The kernels of a list, none of which is in `others` as well.
    fn kernels(
        &self,
        field: &str,
        list: &[Spanned<String>],
        others: &[Spanned<String>],
    ) -> Result<Vec<Choice>> {
        let mut kernels = Vec::new();
        for text in list {
            let kernel: Choice = text
                .get_ref()
                .parse()
                .map_err(|error| self.source.at(text, &format!("{field}: {error}")))?;
            if kernels.contains(&kernel) || others.iter().any(|other| other.get_ref() == text.get_ref()) {
                let message = format!("{field}: `{kernel}` is named twice");
                return Err(self.source.at(text, &message));
            }
            kernels.push(kernel);
        }
        Ok(kernels)
    }

    /// A flag that means something only for a scenario that is a test on some kernel.
    fn of_tests(
        &self,
        field: &str,
        flag: Option<&Spanned<bool>>,
        kernels: &[Spanned<String>],
    ) -> Result<bool> {
        match flag {
            Some(flag) if kernels.is_empty() => {
                let message = format!("{field}: the scenario is no part of `cargo lab test` (test_on)");
                Err(self.source.at(flag, &message))
            }
            Some(flag) => Ok(*flag.get_ref()),
            None => Ok(false),
        }
    }

    fn topology(&self) -> Result<Topology> {
        let mut topology = Topology {
            hosts: self.file.hosts.get_ref().clone(),
            links: Vec::new(),
            unhardened: self.file.arp_hardening == Some(false),
        };
        topology
            .check()
            .map_err(|error| self.source.at(&self.file.hosts, &format!("hosts: {error}")))?;
        for table in &self.file.links {
            topology.links.push(self.link(table.get_ref())?);
            // Checked link by link, so that the message can point at the one that is wrong.
            topology
                .check()
                .map_err(|error| self.source.at(table, &format!("links: {error}")))?;
        }
        Ok(topology)
    }

    fn link(&self, table: &LinkTable) -> Result<Link> {
        let subnet = Subnet::parse(table.subnet.get_ref())
            .map_err(|error| self.source.at(&table.subnet, &format!("links: {error}")))?;
        Ok(Link {
            name: table.name(),
            ends: table.hosts.clone(),
            subnet,
            mtu: table.mtu.unwrap_or(MTU_DEFAULT),
            shaping: Shaping {
                rate_bps: table.rate.map(|rate| rate.0),
                delay: table.delay.0,
                loss_percent: table.loss.0,
            },
        })
    }

    fn ids(&self) -> Result<BTreeMap<&str, usize>> {
        let mut ids = BTreeMap::new();
        for (index, table) in self.file.steps.iter().enumerate() {
            let id = &table.get_ref().id;
            if !is_name(id.get_ref()) {
                return Err(self
                    .source
                    .at(id, &format!("steps: id `{}`: {NAME_RULE}", id.get_ref())));
            }
            if ids.insert(id.get_ref().as_str(), index).is_some() {
                return Err(self
                    .source
                    .at(id, &format!("steps: two have the id `{}`", id.get_ref())));
            }
        }
        Ok(ids)
    }

    fn step(&self, table: &StepTable, topology: &Topology, ids: &BTreeMap<&str, usize>) -> Result<Step> {
        let id = table.id.get_ref();
        let fault = |field: &str, error: &dyn core::fmt::Display| format!("step `{id}`, {field}: {error}");
        if !topology.hosts.contains(table.host.get_ref()) {
            let known: Vec<&str> = topology.hosts.iter().map(String::as_str).collect();
            let message = format!(
                "no host `{}`; the hosts are {}",
                table.host.get_ref(),
                list(&known)
            );
            return Err(self.source.at(&table.host, &fault("host", &message)));
        }
        let template = |field: &str, text: &str, place: &dyn Fn(&str) -> anyhow::Error| {
            Template::parse(text, topology, &self.file.vars).map_err(|error| place(&fault(field, &error)))
        };
        let spanned = |field: &str, text: &Spanned<String>| {
            template(field, text.get_ref(), &|message| self.source.at(text, message))
        };
        let in_command = |text: &String| {
            template("command", text, &|message| {
                self.source.at(&table.command, message)
            })
        };
        let command = match table.command.get_ref() {
            Command::Argv(argv) => Line::Argv(argv.iter().map(in_command).collect::<Result<_>>()?),
            Command::Shell(line) => Line::Shell(in_command(line)?),
        };
        let mut env = Vec::new();
        for (name, value) in &table.env {
            if name.is_empty() || name.contains(['=', '\0']) {
                return Err(self.source.at(
                    value,
                    &fault("env", &format!("no variable can be called `{name}`")),
                ));
            }
            env.push((name.clone(), spanned("env", value)?));
        }
        if let Some(at_end) = table.at_end.as_ref().filter(|_| !table.background) {
            return Err(self
                .source
                .at(at_end, &fault("at_end", &"only a step in the background has one")));
        }
        let patterns = |field: &str, patterns: &[Spanned<String>]| -> Result<Vec<Regex>> {
            patterns
                .iter()
                .map(|pattern| self.regex(&format!("step `{id}`, {field}"), pattern))
                .collect()
        };
        let given = table.deadline_s.map(|deadline| deadline.0);
        Ok(Step {
            id: id.clone(),
            host: table.host.get_ref().clone(),
            command,
            env,
            background: table.background,
            at_end: table
                .at_end
                .as_ref()
                .map_or(AtEnd::Stop, |at_end| *at_end.get_ref()),
            expect_exit: table.expect_exit,
            deadline: if table.background {
                given
            } else {
                Some(given.unwrap_or(DEADLINE_DEFAULT))
            },
            after: None,
            wait_for: self.waits(table, ids)?,
            ready: table
                .ready
                .as_ref()
                .map(|ready| self.ready(table, ready))
                .transpose()?,
            expect_output: patterns("expect_output", &table.expect_output)?,
            fails_if: patterns("fails_if", &table.fails_if)?,
            files: table
                .files
                .iter()
                .map(|file| spanned("files", file))
                .collect::<Result<_>>()?,
            tests: table.tests,
        })
    }

    fn ready(&self, table: &StepTable, ready: &ReadyTable) -> Result<Ready> {
        let id = table.id.get_ref();
        let when = match (&ready.pattern, &ready.port) {
            (Some(pattern), None) => ReadyWhen::Pattern(self.regex(&format!("step `{id}`, ready"), pattern)?),
            (None, Some(port)) if *port.get_ref() == 0 => {
                return Err(self
                    .source
                    .at(port, &format!("step `{id}`, ready: port 0 is never listened on")));
            }
            (None, Some(port)) => ReadyWhen::Port(*port.get_ref()),
            (None, None) => {
                return Err(self
                    .source
                    .at(&table.id, &format!("step `{id}`, ready: say pattern or port")));
            }
            (Some(pattern), Some(_)) => {
                return Err(self
                    .source
                    .at(pattern, &format!("step `{id}`, ready: pattern or port, not both")));
            }
        };
        Ok(Ready {
            when,
            within: ready.within_s.map_or(READY_WITHIN_DEFAULT, |within| within.0),
        })
    }

    fn waits(&self, table: &StepTable, ids: &BTreeMap<&str, usize>) -> Result<Vec<Wait>> {
        let id = table.id.get_ref();
        let mut waits = Vec::new();
        for text in &table.wait_for {
            let fault = |message: &str| self.source.at(text, &format!("step `{id}`, wait_for: {message}"));
            let (name, condition) = match text.get_ref().split_once(':') {
                Some((name, condition)) => (name, Some(condition)),
                None => (text.get_ref().as_str(), None),
            };
            let Some(&step) = ids.get(name) else {
                let known: Vec<&str> = ids.keys().copied().filter(|known| known != id).collect();
                return Err(fault(&format!(
                    "no step `{name}`; the others are {}",
                    list(&known)
                )));
            };
            let Some(other) = self.file.steps.get(step).map(Spanned::get_ref) else {
                return Err(fault("no such step"));
            };
            let until = match (condition, &other.ready) {
                (Some("exit"), _) => Until::Exit,
                (Some("ready") | None, Some(_)) => Until::Ready,
                (None, None) if !other.background => Until::Exit,
                (Some("ready") | None, None) => {
                    return Err(fault(&format!(
                        "step `{name}` does not say when it is ready; give it `ready`, or wait for `{name}:exit`"
                    )));
                }
                (Some(other), _) => {
                    return Err(fault(&format!("`:{other}` is neither `:ready` nor `:exit`")));
                }
            };
            waits.push(Wait { step, until });
        }
        Ok(waits)
    }

    fn metrics(&self, ids: &BTreeMap<&str, usize>) -> Result<Vec<Metric>> {
        let mut names = BTreeSet::new();
        let mut metrics = Vec::new();
        for table in self.file.metrics.iter().map(Spanned::get_ref) {
            let name = table.name.get_ref();
            if name.trim().is_empty() || !names.insert(name) {
                let message = format!("metrics: the name `{name}` is empty or taken");
                return Err(self.source.at(&table.name, &message));
            }
            let Some(&step) = ids.get(table.step.get_ref().as_str()) else {
                let known: Vec<&str> = ids.keys().copied().collect();
                let wrong = table.step.get_ref();
                let message = format!(
                    "metric `{name}`, step: no step `{wrong}`; there are {}",
                    list(&known)
                );
                return Err(self.source.at(&table.step, &message));
            };
            let source = match (&table.pattern, &table.pointer) {
                (Some(pattern), None) => {
                    let regex = self.regex(&format!("metric `{name}`, pattern"), pattern)?;
                    let captures = regex.captures_len().saturating_sub(1);
                    if captures != 1 {
                        let message = format!(
                            "metric `{name}`, pattern: {captures} captures; put ( ) round the figure and (?: ) \
                             round everything else"
                        );
                        return Err(self.source.at(pattern, &message));
                    }
                    MetricSource::Pattern(regex)
                }
                (None, Some(pointer)) if pointer.get_ref().starts_with('/') => {
                    MetricSource::Pointer(pointer.get_ref().clone())
                }
                (None, Some(pointer)) => {
                    let message = format!("metric `{name}`, pointer: a JSON pointer begins with /");
                    return Err(self.source.at(pointer, &message));
                }
                _ => {
                    let message = format!("metric `{name}`: say either pattern or pointer");
                    return Err(self.source.at(&table.name, &message));
                }
            };
            let scale = match &table.scale {
                Some(scale) if !(scale.get_ref().is_finite() && *scale.get_ref() > 0.0) => {
                    return Err(self
                        .source
                        .at(scale, &format!("metric `{name}`, scale: must be above 0")));
                }
                Some(scale) => *scale.get_ref(),
                None => 1.0,
            };
            let bound = |bound: &Option<Spanned<f64>>| bound.as_ref().map(|bound| *bound.get_ref());
            let goal = Goal {
                at_least: bound(&table.at_least),
                at_most: bound(&table.at_most),
            };
            let is_bounded = [goal.at_least, goal.at_most].iter().any(Option::is_some);
            if [goal.at_least, goal.at_most]
                .iter()
                .flatten()
                .any(|bound| !bound.is_finite())
                || matches!((goal.at_least, goal.at_most), (Some(least), Some(most)) if least > most)
            {
                let message = format!(
                    "metric `{name}`: at_least and at_most must be finite, at_least not above at_most"
                );
                return Err(self.source.at(&table.name, &message));
            }
            metrics.push(Metric {
                goal: is_bounded.then_some(goal),
                name: name.clone(),
                step,
                source,
                unit: table.unit.clone(),
                scale,
            });
        }
        Ok(metrics)
    }

    fn comparisons(&self, metrics: &[Metric], blocks: &[super::model::Block]) -> Result<Vec<Comparison>> {
        let mut comparisons = Vec::new();
        for table in self.file.compare.iter().map(Spanned::get_ref) {
            let find = |name: &Spanned<String>, field: &str| {
                let found = metrics
                    .iter()
                    .enumerate()
                    .find(|(_, metric)| metric.name == *name.get_ref());
                found.ok_or_else(|| {
                    let known: Vec<&str> = metrics.iter().map(|metric| metric.name.as_str()).collect();
                    let wrong = name.get_ref();
                    let message = format!(
                        "compare, {field}: no metric `{wrong}`; there are {}",
                        list(&known)
                    );
                    self.source.at(name, &message)
                })
            };
            let (metric, first) = find(&table.metric, "metric")?;
            let (to, second) = find(&table.to, "to")?;
            let fault = |message: &str| {
                let names = format!("compare `{}` to `{}`", first.name, second.name);
                self.source.at(&table.to, &format!("{names}: {message}"))
            };
            if metric == to {
                return Err(fault("they are the same metric"));
            }
            if first.unit != second.unit {
                return Err(fault(&format!(
                    "one is in {}, the other in {}",
                    first.unit, second.unit
                )));
            }
            if block_of(blocks, first.step) != block_of(blocks, second.step) {
                return Err(fault(
                    "their steps are not run in the same rounds; put their groups into one alternate",
                ));
            }
            let bound = |bound: &Option<Spanned<f64>>| bound.as_ref().map(|bound| *bound.get_ref());
            let (min, max) = (bound(&table.min), bound(&table.max));
            if [min, max]
                .iter()
                .flatten()
                .any(|bound| !(bound.is_finite() && *bound > 0.0))
                || matches!((min, max), (Some(min), Some(max)) if min > max)
            {
                return Err(fault("min and max must be above 0, and min not above max"));
            }
            if table.goal && min.is_none() && max.is_none() {
                return Err(fault("goal: there is no min and no max that could be one"));
            }
            let name = table
                .name
                .clone()
                .unwrap_or_else(|| format!("{} / {}", first.name, second.name));
            comparisons.push(Comparison {
                name,
                metric,
                to,
                min,
                max,
                is_goal: table.goal,
            });
        }
        Ok(comparisons)
    }

    fn tables(&self, metrics: &[Metric]) -> Result<Vec<Table>> {
        let mut tables = Vec::new();
        for table in self.file.tables.iter().map(Spanned::get_ref) {
            let title = table.title.get_ref();
            let columns = table.columns.get_ref();
            if columns.is_empty() {
                let message = format!("table `{title}`, columns: there are none");
                return Err(self.source.at(&table.columns, &message));
            }
            let mut rows = Vec::new();
            for row in &table.rows {
                let fault = |message: &str| self.source.at(row, &format!("table `{title}`, rows: {message}"));
                let (cells, wanted) = (row.get_ref().len(), columns.len());
                if cells != wanted {
                    return Err(fault(&format!("{cells} cells under {wanted} columns")));
                }
                let find = |name: &str| {
                    let found = metrics.iter().position(|metric| metric.name == name);
                    found.ok_or_else(|| fault(&format!("no metric `{name}`")))
                };
                let cell = |cell: &schema::Cell| {
                    Ok(match cell {
                        schema::Cell::Text(text) => Cell::Text(text.clone()),
                        schema::Cell::Metric(cell) => Cell::Metric(find(&cell.metric)?),
                        schema::Cell::Ratio(cell) => Cell::Ratio(find(&cell.ratio)?, find(&cell.to)?),
                    })
                };
                rows.push(row.get_ref().iter().map(cell).collect::<Result<Vec<_>>>()?);
            }
            tables.push(Table {
                title: title.clone(),
                columns: columns.clone(),
                rows,
            });
        }
        Ok(tables)
    }

    fn regex(&self, field: &str, pattern: &Spanned<String>) -> Result<Regex> {
        compile(pattern.get_ref()).map_err(|error| self.source.at(pattern, &format!("{field}: {error:#}")))
    }
}

/// Compiles a pattern of a scenario: `^` and `$` match at every line, since output is lines.
fn compile(pattern: &str) -> Result<Regex> {
    if pattern.is_empty() {
        bail!("an empty pattern matches everything");
    }
    RegexBuilder::new(pattern)
        .multi_line(true)
        .build()
        .map_err(|error| {
            // The crate draws a picture over several lines; its last one says what is wrong.
            let text = error.to_string();
            let last = text
                .lines()
                .last()
                .unwrap_or_default()
                .trim()
                .trim_start_matches("error: ")
                .to_owned();
            anyhow::anyhow!("`{pattern}` is no pattern: {last}")
        })
}

/// Rule for names of scenarios and steps: they become names of files.
const NAME_RULE: &str = "use letters, digits, `-`, `_` and `.`, beginning with a letter or digit, at most 64";

/// Whether `name` may name a scenario, step or group.
pub(super) fn is_name(name: &str) -> bool {
    name.len() <= 64
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

/// Refuses a number of rounds nobody means.
pub(super) fn check_rounds(rounds: u32) -> Result<()> {
    if rounds > ROUNDS_MAX {
        bail!("{rounds} rounds; at most {ROUNDS_MAX} are possible");
    }
    Ok(())
}
