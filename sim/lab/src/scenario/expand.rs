//! `for_each = "link"`: steps, metrics and tables that stand for one of each link become those.
//!
//! It works on the file as written, before any check. So its results are checked like all else, and messages
//! about them still point at the line they came from.

use std::collections::BTreeSet;

use anyhow::Result;
use toml::Spanned;

use super::check::Source;
use super::schema::{Cell, Command, File, Link as LinkTable, Metric, Step, Table};

/// A link, in the words that stand for it and its ends: `link`, `first` and `second`.
struct Link {
    name: String,
    first: String,
    second: String,
}

/// Replaces everything that says `for_each` by what it stands for.
pub(super) fn expand(source: Source<'_>, file: &mut File) -> Result<()> {
    let links: Vec<Link> = file.links.iter().map(|table| Link::of(table.get_ref())).collect();
    refuse(source, file, &links)?;
    let each: BTreeSet<String> = file
        .steps
        .iter()
        .map(Spanned::get_ref)
        .filter(|step| step.for_each.is_some())
        .map(|step| step.id.get_ref().clone())
        .collect();
    file.steps = steps(&file.steps, &links, &each);
    let each_metric: BTreeSet<String> = file
        .metrics
        .iter()
        .map(Spanned::get_ref)
        .filter(|metric| each.contains(metric.step.get_ref()))
        .map(|metric| metric.name.get_ref().clone())
        .collect();
    file.metrics = metrics(&file.metrics, &links, &each);
    for table in &mut file.tables {
        expand_rows(table.get_mut(), &links, &each_metric);
    }
    Ok(())
}

/// Refuses what cannot stand for each link.
fn refuse(source: Source<'_>, file: &File, links: &[Link]) -> Result<()> {
    let marked = |step: &Step| step.for_each.as_ref().map(Spanned::span);
    let steps = file.steps.iter().filter_map(|step| marked(step.get_ref()));
    let tables = file
        .tables
        .iter()
        .filter_map(|table| table.get_ref().for_each.as_ref().map(Spanned::span));
    let Some(span) = steps.chain(tables).next() else {
        return Ok(());
    };
    if links.is_empty() {
        return Err(source.fault(Some(span), "for_each: there are no links"));
    }
    if let Some(word) = ["first", "second"]
        .into_iter()
        .find(|word| file.hosts.get_ref().iter().any(|host| host == word))
    {
        let message = format!("for_each: `{word}` means an end of the link here; no host can be called that");
        return Err(source.fault(Some(span), &message));
    }
    for step in file.steps.iter().map(Spanned::get_ref) {
        let repeated = step.group.is_some() || step.rounds.is_some();
        if let Some(for_each) = step.for_each.as_ref().filter(|_| repeated) {
            let id = step.id.get_ref();
            let message = format!("step `{id}`, for_each: a step for each link has no group and no rounds");
            return Err(source.at(for_each, &message));
        }
    }
    Ok(())
}

/// Steps that stand together and are for each link are run together, for one link after the other.
fn steps(steps: &[Spanned<Step>], links: &[Link], each: &BTreeSet<String>) -> Vec<Spanned<Step>> {
    let mut expanded = Vec::new();
    for run in
        steps.chunk_by(|one, other| one.get_ref().for_each.is_some() == other.get_ref().for_each.is_some())
    {
        if run.first().is_none_or(|step| step.get_ref().for_each.is_none()) {
            expanded.extend_from_slice(run);
            continue;
        }
        for link in links {
            expanded.extend(run.iter().map(|step| step_of(step, link, each)));
        }
    }
    expanded
}

fn step_of(step: &Spanned<Step>, link: &Link, each: &BTreeSet<String>) -> Spanned<Step> {
    let mut made = step.clone();
    let step = made.get_mut();
    step.for_each = None;
    *step.id.get_mut() = link.suffixed(step.id.get_ref());
    let host = link.end(step.host.get_ref()).map(str::to_owned);
    if let Some(host) = host {
        *step.host.get_mut() = host;
    }
    match step.command.get_mut() {
        Command::Argv(argv) => argv.iter_mut().for_each(|word| link.fill(word)),
        Command::Shell(line) => link.fill(line),
    }
    for text in step.env.values_mut().chain(&mut step.files) {
        link.fill(text.get_mut());
    }
    for text in &mut step.wait_for {
        let wait = text.get_mut();
        let (name, condition) = wait
            .split_once(':')
            .map_or((wait.as_str(), None), |(name, condition)| (name, Some(condition)));
        if each.contains(name) {
            let name = link.suffixed(name);
            *wait = condition.map_or(name.clone(), |condition| format!("{name}:{condition}"));
        }
    }
    made
}

/// A metric of a step that is for each link is one for each link.
fn metrics(metrics: &[Spanned<Metric>], links: &[Link], each: &BTreeSet<String>) -> Vec<Spanned<Metric>> {
    let mut expanded = Vec::new();
    for metric in metrics {
        if !each.contains(metric.get_ref().step.get_ref()) {
            expanded.push(metric.clone());
            continue;
        }
        for link in links {
            let mut made = metric.clone();
            let table = made.get_mut();
            *table.name.get_mut() = link.suffixed(table.name.get_ref());
            *table.step.get_mut() = link.suffixed(table.step.get_ref());
            expanded.push(made);
        }
    }
    expanded
}

/// The rows of a table that is for each link follow each other, link by link.
fn expand_rows(table: &mut Table, links: &[Link], each: &BTreeSet<String>) {
    if table.for_each.take().is_none() {
        return;
    }
    let mut rows = Vec::new();
    for link in links {
        let name = |metric: &mut String| {
            if each.contains(metric) {
                *metric = link.suffixed(metric);
            }
        };
        for row in &table.rows {
            let mut made = row.clone();
            for cell in made.get_mut() {
                match cell {
                    Cell::Text(text) => link.fill(text),
                    Cell::Metric(cell) => name(&mut cell.metric),
                    Cell::Ratio(cell) => {
                        name(&mut cell.ratio);
                        name(&mut cell.to);
                    }
                }
            }
            rows.push(made);
        }
    }
    table.rows = rows;
}

impl Link {
    fn of(table: &LinkTable) -> Self {
        let [first, second] = table.hosts.clone();
        Self {
            name: table.name(),
            first,
            second,
        }
    }

    /// The name of what `name` is for this link.
    fn suffixed(&self, name: &str) -> String {
        format!("{name}.{}", self.name)
    }

    /// The host that `first` or `second` is.
    fn end(&self, word: &str) -> Option<&str> {
        match word {
            "first" => Some(&self.first),
            "second" => Some(&self.second),
            _ => None,
        }
    }

    /// Fills in `{link}`, `{first}`, `{second}`, and the ends in `{addr.first}` and its like.
    fn fill(&self, text: &mut String) {
        let Self { name, first, second } = self;
        for (word, host) in [("first", first), ("second", second)] {
            *text = text.replace(&format!(".{word}}}"), &format!(".{host}.{name}}}"));
            *text = text.replace(&format!("{{{word}}}"), host);
        }
        *text = text.replace("{link}", name);
    }
}
