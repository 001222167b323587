//! `cargo lab nccl`: the driver of net plugins for NCCL on clusters of hosts, and what came of each scenario as a table.
//!
//! The driver knows the interface alone, so any plugin may be driven. The scenarios `nccl-pair`, `nccl-triangle`, `nccl-ring` and `nccl-line` have
//! the hosts and the commands; this file sets their variables and reads what the ranks leave.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use clap::ValueEnum as _;
use serde::Serialize;

use crate::kernel::Choice;
use crate::output;
use crate::scenario::{self, Detail, Lab, Report, Verdict, aligned};
use crate::steps::say;

/// Versions of the interface, and ranks of different ones.
const VERSIONS: [&str; 6] = ["8", "9", "10", "11", "12", "mixed"];

/// The addresses of the second and the third host of the ring and of the line, which relay.
const RELAYS: &str = "10.77.1.2,10.77.2.1,10.77.2.2,10.77.3.1";

/// The row of a failure beside the scenarios.
const WHOLE_RUN: &str = "whole_run";

/// Arguments of `cargo lab nccl`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct NcclArgs {
    /// The plugin to drive; default: the one of this repository
    plugin: Option<PathBuf>,
    /// Clusters to drive it on; default: all
    #[arg(long, value_name = "CLUSTER", value_delimiter = ',')]
    hosts: Vec<Shape>,
    /// Versions of the interface; `mixed` gives ranks different ones
    #[arg(long, value_name = "VERSION", value_delimiter = ',', value_parser = VERSIONS, default_values = VERSIONS)]
    versions: Vec<String>,
    /// Scenarios of the driver; default: all
    #[arg(long, value_name = "SCENARIO", value_delimiter = ',')]
    scenarios: Vec<String>,
    /// Have hosts relay between those that share no subnet; on the ring and the line alone
    #[arg(long)]
    relay: bool,
    /// A variable for the plugin
    #[arg(long, value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// Kernels to boot: 6.1, 6.12, newest, host or the path of an image; default: the scenarios' own
    #[arg(long, value_name = "KERNEL", value_delimiter = ',')]
    kernel: Vec<Choice>,
    /// Write every result as JSON to this file (`-` for standard output)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// A cluster of hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Shape {
    /// Two hosts with two rails
    Pair,
    /// Three hosts, each pair on a subnet of its own
    Triangle,
    /// Four hosts in a ring
    Ring,
    /// Four hosts in a line
    Line,
}

impl Shape {
    fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// Result of a scenario, the worst of its ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Outcome {
    LeftOut,
    Passed,
    Failed,
}

impl Outcome {
    const fn word(self) -> &'static str {
        match self {
            Self::LeftOut => "left out",
            Self::Passed => "passed",
            Self::Failed => "FAILED",
        }
    }
}

/// Verdict of a rank about a scenario.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Said {
    rank: usize,
    outcome: Outcome,
    words: String,
}

/// A scenario with one version on one cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct ScenarioResult {
    hosts: String,
    kernel: String,
    version: String,
    scenario: String,
    outcome: Outcome,
    ranks: Vec<Said>,
}

/// `cargo lab nccl`; whether no scenario failed.
///
/// # Errors
///
/// The plugin is not there, or the lab cannot be set up, built or booted.
pub(crate) fn run(args: &NcclArgs, lab: &mut dyn Lab) -> Result<bool> {
    let chosen = if args.hosts.is_empty() {
        match args.relay {
            true => &[Shape::Ring, Shape::Line],
            false => Shape::value_variants(),
        }
    } else {
        &args.hosts
    };
    let (mut entries, mut failure) = (Vec::new(), None);
    'clusters: for shape in chosen {
        let own = scenario::load(Path::new(&format!("nccl-{}", shape.name())))?;
        let kernels = if args.kernel.is_empty() {
            core::slice::from_ref(&own.kernel)
        } else {
            &args.kernel
        };
        for kernel in kernels {
            match on_cluster(args, *shape, (&own.path, kernel), lab) {
                Ok(found) => entries.extend(found),
                // The results of others are written all the same.
                Err(error) => {
                    failure = Some(error);
                    break 'clusters;
                }
            }
        }
    }
    let document = || serde_json::to_string_pretty(&entries).context("cannot write the results as JSON");
    match args.json.as_deref() {
        Some(path) if path == Path::new("-") => output::write(format!("{}\n", document()?).as_bytes())?,
        Some(path) => {
            fs::write(path, document()?).with_context(|| format!("cannot write {}", path.display()))?;
            output::write(tables(&entries).as_bytes())?;
        }
        None => output::write(tables(&entries).as_bytes())?,
    }
    match failure {
        Some(error) => Err(error),
        None => Ok(entries.iter().all(|entry| entry.outcome != Outcome::Failed)),
    }
}

fn on_cluster(
    args: &NcclArgs,
    shape: Shape,
    (file, kernel): (&Path, &Choice),
    lab: &mut dyn Lab,
) -> Result<Vec<ScenarioResult>> {
    let name = shape.name();
    let out = scenario::output_folder(None, &format!("nccl-{name}-{kernel}").replace('/', "-"))?;
    let plugin = args
        .plugin
        .as_deref()
        .map(|plugin| taken(plugin, &out))
        .transpose()?;
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let path = out.join(format!("nccl-{name}.toml"));
    fs::write(&path, with_variables(&text, args, plugin.as_deref())?)
        .with_context(|| format!("cannot write {}", path.display()))?;
    let scenario = scenario::load(&path)?;
    let ranks = scenario.topology.hosts.len();
    say(format_args!(
        "{name}: {ranks} hosts, kernel {kernel}; output: {}",
        out.display()
    ));
    let (report, cluster) = scenario::perform(&scenario, kernel, &out, lab)?;
    drop(cluster);
    let results: Vec<String> = (0..ranks)
        .map(|rank| fs::read_to_string(out.join(format!("ranks/results-{rank}"))).unwrap_or_default())
        .collect();
    let mut entries = merged(&results, (&name, &report.kernel))?;
    // A failure before any scenario has no line there.
    if entries.is_empty() {
        scenario::deliver(&report, Detail::Whole, None)?;
        bail!("the ranks on {name} left no results");
    }
    let is_explained = entries.iter().any(|entry| entry.outcome == Outcome::Failed);
    // With all of them left out, nothing is there that could have been sent.
    let has_run = entries.iter().any(|entry| entry.outcome != Outcome::LeftOut);
    if report.verdict == Verdict::Failed && has_run && !is_explained {
        entries.push(whole_run(&report, &name));
    }
    Ok(entries)
}

/// A failure beside the scenarios: a plugin that moves everything over TCP, for one, has sent no byte over an RDMA device.
fn whole_run(report: &Report, hosts: &str) -> ScenarioResult {
    ScenarioResult {
        hosts: hosts.to_owned(),
        kernel: report.kernel.clone(),
        version: "all".to_owned(),
        scenario: WHOLE_RUN.to_owned(),
        outcome: Outcome::Failed,
        ranks: report
            .failures
            .iter()
            .map(|failure| Said {
                rank: 0,
                outcome: Outcome::Failed,
                words: failure.clone(),
            })
            .collect(),
    }
}

/// Copies the plugin to a folder that every host sees. Returns its path there.
fn taken(plugin: &Path, out: &Path) -> Result<PathBuf> {
    let name = plugin.file_name().context("the plugin's path names no file")?;
    let to = out.join(name);
    fs::copy(plugin, &to).with_context(|| format!("cannot copy {}", plugin.display()))?;
    Ok(to)
}

/// The scenario with these arguments in its variables.
fn with_variables(text: &str, args: &NcclArgs, plugin: Option<&Path>) -> Result<String> {
    let mut file: toml::Table = toml::from_str(text).context("the scenario is no TOML")?;
    let variables = file.get_mut("vars").and_then(toml::Value::as_table_mut);
    let variables = variables.context("the scenario has no [vars]")?;
    let before = variables.clone();
    let text_of = |name: &str| {
        let value = before.get(name).and_then(toml::Value::as_str);
        value
            .map(str::to_owned)
            .with_context(|| format!("the scenario has no variable {name}"))
    };
    let mut set = |name: &str, value: String| match variables.get_mut(name) {
        Some(variable) => {
            *variable = toml::Value::String(value);
            Ok(())
        }
        None => bail!("the scenario has no variable {name}"),
    };
    set("versions", args.versions.join(","))?;
    set("scenarios", args.scenarios.join(","))?;
    if let Some(plugin) = plugin {
        set("plugin", quoted(&plugin.to_string_lossy()))?;
    }
    let mut more = String::new();
    for variable in &args.env {
        ensure!(
            variable.contains('=') && !variable.contains('\n'),
            "--env {variable}: NAME=VALUE on one line is wanted"
        );
        more.push(' ');
        more.push_str(&quoted(variable));
    }
    if args.relay {
        let far = text_of("far")?;
        ensure!(
            !far.is_empty(),
            "--relay: all of these hosts share subnets; choose ring or line"
        );
        set("far", format!("by:{far}"))?;
        more.push_str(" DOORBELL_NCCL_RELAYS=");
        more.push_str(RELAYS);
    }
    set("env", more)?;
    toml::to_string(&file).context("cannot write the scenario")
}

/// A word of a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Merges what the ranks said, in the order of the first of them.
fn merged(results: &[String], (hosts, kernel): (&str, &str)) -> Result<Vec<ScenarioResult>> {
    let mut entries: Vec<ScenarioResult> = Vec::new();
    for (rank, text) in results.iter().enumerate() {
        for line in text.lines() {
            let mut fields = line.splitn(4, '\t');
            let (Some(version), Some(scenario), Some(verdict), Some(words)) =
                (fields.next(), fields.next(), fields.next(), fields.next())
            else {
                bail!("rank {rank} left a line that is no result: {line}");
            };
            let outcome = match verdict {
                "passed" => Outcome::Passed,
                "failed" => Outcome::Failed,
                "left out" => Outcome::LeftOut,
                other => bail!("rank {rank} left a verdict that is none: {other}"),
            };
            let said = Said {
                rank,
                outcome,
                words: words.to_owned(),
            };
            let known = entries
                .iter_mut()
                .find(|entry| entry.version == version && entry.scenario == scenario);
            match known {
                Some(entry) => {
                    entry.outcome = entry.outcome.max(outcome);
                    entry.ranks.push(said);
                }
                None => entries.push(ScenarioResult {
                    hosts: hosts.to_owned(),
                    kernel: kernel.to_owned(),
                    version: version.to_owned(),
                    scenario: scenario.to_owned(),
                    outcome,
                    ranks: vec![said],
                }),
            }
        }
    }
    for entry in &mut entries {
        for rank in 0..results.len() {
            if entry.ranks.iter().all(|said| said.rank != rank) {
                entry.outcome = Outcome::Failed;
                entry.ranks.push(Said {
                    rank,
                    outcome: Outcome::Failed,
                    words: "the rank left no result".to_owned(),
                });
            }
        }
    }
    Ok(entries)
}

/// A table for each cluster, and behind it the reasons.
fn tables(entries: &[ScenarioResult]) -> String {
    let mut clusters: Vec<(&str, &str)> = Vec::new();
    for entry in entries {
        let cluster = (&*entry.hosts, &*entry.kernel);
        if !clusters.contains(&cluster) {
            clusters.push(cluster);
        }
    }
    let mut text = String::new();
    for (hosts, kernel) in clusters {
        let of: Vec<&ScenarioResult> = entries
            .iter()
            .filter(|entry| (&*entry.hosts, &*entry.kernel) == (hosts, kernel))
            .collect();
        text.push_str(&format!("{hosts}, kernel {kernel}\n{}", table(&of)));
        for line in reasons(&of) {
            text.push_str(&line);
            text.push('\n');
        }
        text.push('\n');
    }
    let count = |outcome| entries.iter().filter(|entry| entry.outcome == outcome).count();
    text.push_str(&format!(
        "{} passed, {} failed, {} left out\n",
        count(Outcome::Passed),
        count(Outcome::Failed),
        count(Outcome::LeftOut)
    ));
    text
}

fn table(entries: &[&ScenarioResult]) -> String {
    let (mut versions, mut scenarios): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
    for entry in entries {
        if !versions.contains(&&*entry.version) {
            versions.push(&entry.version);
        }
        if !scenarios.contains(&&*entry.scenario) {
            scenarios.push(&entry.scenario);
        }
    }
    let mut head = vec!["scenario".to_owned()];
    head.extend(versions.iter().map(|version| (*version).to_owned()));
    let mut rows = vec![head];
    for scenario in scenarios {
        let cell = |version: &&str| {
            let found = entries
                .iter()
                .find(|entry| entry.version == *version && entry.scenario == scenario);
            found.map_or("-", |entry| entry.outcome.word()).to_owned()
        };
        rows.push(
            core::iter::once(scenario.to_owned())
                .chain(versions.iter().map(cell))
                .collect(),
        );
    }
    aligned(&rows, &vec![true; versions.len().saturating_add(1)])
}

/// Reasons of failures and of what was left out, each once with the versions that have it; and the times that were measured.
fn reasons(entries: &[&ScenarioResult]) -> Vec<String> {
    let mut found: BTreeMap<(Outcome, &str, String), Vec<&str>> = BTreeMap::new();
    for entry in entries {
        for said in &entry.ranks {
            let is_worst = said.outcome == entry.outcome && entry.outcome != Outcome::Passed;
            let is_measured = said.words.contains(" ms");
            if is_worst || is_measured {
                let words = match entry.outcome {
                    Outcome::LeftOut => said.words.clone(),
                    _ if entry.scenario == WHOLE_RUN => said.words.clone(),
                    _ => format!("rank {}: {}", said.rank, said.words),
                };
                let versions = found.entry((said.outcome, &entry.scenario, words)).or_default();
                if !versions.contains(&&*entry.version) {
                    versions.push(&entry.version);
                }
            }
        }
    }
    let line = |((outcome, scenario, words), versions): (&(Outcome, &str, String), &Vec<&str>)| {
        format!("{} {scenario} ({}): {words}", outcome.word(), versions.join(", "))
    };
    found.iter().rev().map(line).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::{NcclArgs, Outcome, RELAYS, Shape, merged, quoted, tables, with_variables};
    use clap::ValueEnum as _;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: NcclArgs,
    }

    fn args(words: &[&str]) -> NcclArgs {
        Line::try_parse_from([&["nccl"], words].concat()).unwrap().args
    }

    #[test]
    fn the_worst_of_the_ranks_counts_and_one_that_says_nothing_failed() {
        let results = [
            "8\tsizes\tpassed\t16 pairs\n8\tfar\tleft out\tno pair\n12\tsizes\tpassed\tx\n12\tkilled\tpassed\tafter 3.0 ms\n".to_owned(),
            "8\tsizes\tfailed\tconnect returned 2\n8\tfar\tleft out\tno pair\n12\tkilled\tpassed\tx\n".to_owned(),
        ];
        let entries = merged(&results, ("pair", "7.2")).unwrap();
        let outcomes: Vec<_> = entries.iter().map(|entry| entry.outcome).collect();
        let (passed, failed, left) = (Outcome::Passed, Outcome::Failed, Outcome::LeftOut);
        assert_eq!(outcomes, [failed, left, failed, passed]);
        let text = tables(&entries);
        for line in [
            "pair, kernel 7.2",
            "FAILED sizes (8): rank 1: connect returned 2",
            "FAILED sizes (12): rank 1: the rank left no result",
            "left out far (8): no pair",
            "passed killed (12): rank 0: after 3.0 ms",
            "1 passed, 2 failed, 1 left out",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}:\n{text}");
        }
        assert!(!text.contains("16 pairs"), "{text}");
        for wrong in ["8\tsizes\tpassed", "8\tsizes\tdone\tx"] {
            assert!(merged(&[wrong.to_owned()], ("pair", "7.2")).is_err());
        }
    }

    #[test]
    fn each_cluster_has_a_scenario_with_the_variables_that_are_set() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios");
        let args = args(&["--versions", "8,mixed", "--env", "A=it's", "--scenarios", "sizes"]);
        for shape in Shape::value_variants() {
            let text = std::fs::read_to_string(folder.join(format!("nccl-{}.toml", shape.name()))).unwrap();
            let set = with_variables(&text, &args, Some(std::path::Path::new("/a b.so"))).unwrap();
            let set: toml::Table = toml::from_str(&set).unwrap();
            let variable = |name: &str| set["vars"][name].as_str().unwrap().to_owned();
            assert_eq!(variable("versions"), "8,mixed");
            assert_eq!(variable("scenarios"), "sizes");
            assert_eq!(variable("plugin"), "'/a b.so'");
            assert_eq!(variable("env"), r" 'A=it'\''s'");
            for name in ["versions", "scenarios", "plugin", "env", "far", "settings"] {
                assert_eq!(
                    text.matches(&format!("{{var.{name}}}")).count() % set["hosts"].as_array().unwrap().len(),
                    0
                );
                assert!(text.contains(&format!("{{var.{name}}}")), "{name}");
            }
        }
        assert!(with_variables("[vars]\n", &args, None).is_err());
        let relay = self::args(&["--relay"]);
        for (shape, far) in [("line", "by:0-2,0-3,1-3"), ("ring", "by:0-2,1-3")] {
            let text = std::fs::read_to_string(folder.join(format!("nccl-{shape}.toml"))).unwrap();
            let set: toml::Table = toml::from_str(&with_variables(&text, &relay, None).unwrap()).unwrap();
            assert_eq!(set["vars"]["far"].as_str(), Some(far));
            let env = format!(" DOORBELL_NCCL_RELAYS={RELAYS}");
            assert_eq!(set["vars"]["env"].as_str(), Some(&*env));
        }
        let pair = std::fs::read_to_string(folder.join("nccl-pair.toml")).unwrap();
        assert!(with_variables(&pair, &relay, None).is_err());
    }

    #[test]
    fn a_variable_without_a_value_is_refused() {
        let text = "[vars]\nversions = ''\nscenarios = ''\nenv = ''\nplugin = ''\n";
        for wrong in ["A", "A=b\nc"] {
            assert!(
                with_variables(text, &args(&["--env", wrong]), None).is_err(),
                "{wrong}"
            );
        }
        assert_eq!(quoted("x"), "'x'");
    }
}
