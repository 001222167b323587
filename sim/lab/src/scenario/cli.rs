//! `cargo lab run` and `cargo lab list`: arguments, where files are found and put, what is printed.
//!
//! How a lab is booted and our programs are built is the caller's, behind [`Lab`].

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};

use super::check;
use super::model::{Folders, Line, Programs, ROUNDS_MAX, Scenario, Until};
use super::progress::Progress;
use super::report::{Before, Report, Verdict};
use super::runner::{self, Settings, command_line};
use super::table::{self, Colour, Detail};
use super::template::Values;
use crate::cluster::Cluster;
use crate::kernel::Choice;
use crate::output;
use crate::topology::Topology;

/// Arguments of `cargo lab run`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// A scenario file, or the name of one that `cargo lab list` shows
    pub(crate) scenario: PathBuf,

    /// Boot this kernel instead of the scenario's: 6.1, 6.12, newest, host or a path
    #[arg(long, value_name = "KERNEL")]
    pub(crate) kernel: Option<Choice>,

    /// Run everything that repeats this often instead of what the scenario says
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(ROUNDS_MAX)))]
    pub(crate) rounds: Option<u32>,

    /// Write everything that was found out as JSON to this file (`-` for standard output, the table then going
    /// to standard error)
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Keep all output in this folder (must be new or empty; default: a new one under target/lab/runs/)
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,

    /// When the run fails, leave the lab up until interrupted, for `cargo lab shell`
    #[arg(long)]
    pub(crate) keep: bool,

    /// Print hosts, links and every command in order, and run nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Request of a scenario to the lab.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    pub(crate) topology: &'a Topology,
    pub(crate) kernel: &'a Choice,
    /// The folder to share with every host.
    pub(crate) shared: &'a Path,
}

/// A lab that can build our programs and boot hosts.
pub(crate) trait Lab {
    /// Sets up what a scenario needs on this kernel and is not there: silent when all is.
    ///
    /// # Errors
    ///
    /// A missing part cannot be installed or fetched.
    fn set_up(&mut self, scenario: &Scenario, kernel: &Choice) -> Result<()>;

    /// Builds the programs asked for, and says in which folders they are.
    ///
    /// # Errors
    ///
    /// They do not build.
    fn programs(&mut self, wanted: Programs) -> Result<Folders>;

    /// Boots the hosts asked for.
    ///
    /// # Errors
    ///
    /// Something needed is missing, or a guest does not come up.
    fn boot(&mut self, request: Request<'_>) -> Result<Box<dyn Cluster>>;
}

/// The file of a run's output folder that holds its [`Report`].
pub(crate) const REPORT: &str = "report.json";

/// `cargo lab run`.
///
/// # Errors
///
/// The scenario is no good, the lab cannot be booted, or the results cannot be written. A scenario that fails
/// is [`Verdict::Failed`], not an error.
pub(crate) fn run(args: &RunArgs, lab: &mut dyn Lab) -> Result<Verdict> {
    let mut scenario = load(&args.scenario)?;
    if let Some(rounds) = args.rounds {
        scenario.set_rounds(rounds);
    }
    let kernel = args.kernel.as_ref().unwrap_or(&scenario.kernel);
    if args.dry_run {
        print(&plan(&scenario, kernel))?;
        return Ok(Verdict::Passed);
    }
    let out = output_folder(args.out.as_deref(), &scenario.name)?;
    // The cluster lives until the report is delivered.
    let (report, _cluster) = perform(&scenario, kernel, &out, lab)?;
    deliver(&report, Detail::Whole, args.json.as_deref())?;
    if args.keep && report.verdict == Verdict::Failed {
        eprintln!("the lab stays up: `cargo lab shell` enters it, Ctrl-C ends it");
        // An interrupt ends this program, and with it the lab.
        loop {
            std::thread::park();
        }
    }
    Ok(report.verdict)
}

/// Sets up, builds, boots and runs a scenario; its output goes to the folder `out`. The hosts live on in the second value.
///
/// # Errors
///
/// Something before the run failed, or the results cannot be written.
pub(crate) fn perform(
    scenario: &Scenario,
    kernel: &Choice,
    out: &Path,
    lab: &mut dyn Lab,
) -> Result<(Report, Box<dyn Cluster>)> {
    let mut before = Before::default();
    timed(&mut before.setup_s, || lab.set_up(scenario, kernel))?;
    let needs = scenario.needs();
    let programs = if needs.bin || needs.examples || needs.tests || !needs.rivals.is_empty() {
        timed(&mut before.build_s, || lab.programs(needs))?
    } else {
        Folders::default()
    };
    let request = Request {
        topology: &scenario.topology,
        kernel,
        shared: out,
    };
    let cluster = timed(&mut before.boot_s, || lab.boot(request))?;
    let mut progress = Progress::of(scenario);
    let settings = Settings {
        programs: &programs,
        out,
    };
    let report = runner::run(scenario, &*cluster, settings, &mut progress);
    progress.finish();
    let mut report = report?;
    report.before = before;
    let kept = out.join(REPORT);
    std::fs::write(&kept, document(&report)?).with_context(|| format!("cannot write {}", kept.display()))?;
    Ok((report, cluster))
}

fn timed<T>(seconds: &mut f64, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let started = Instant::now();
    let result = work();
    *seconds = started.elapsed().as_secs_f64();
    result
}

/// `cargo lab list`: the scenarios of the repository, each with its one line.
///
/// # Errors
///
/// The folder cannot be read, or one of its files is no scenario.
pub(crate) fn list() -> Result<()> {
    let mut rows = Vec::new();
    for scenario in repository()? {
        let stem = scenario.path.file_stem().unwrap_or_default();
        rows.push(vec![stem.to_string_lossy().into_owned(), scenario.about]);
    }
    print(&table::aligned(&rows, &[true, true]))
}

/// All scenarios of the repository, by name.
///
/// # Errors
///
/// The folder cannot be read, or one of its files is no scenario.
pub(crate) fn repository() -> Result<Vec<Scenario>> {
    let folder = scenarios();
    let entries = std::fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            files.push(path);
        }
    }
    files.sort();
    files.iter().map(|file| check::load(file)).collect()
}

/// Reads a scenario by its file, or by the name that `cargo lab list` shows.
///
/// # Errors
///
/// There is none, or it is no good.
pub(crate) fn load(given: &Path) -> Result<Scenario> {
    check::load(&find(given)?)
}

/// Returns the folder of the repository's scenarios.
fn scenarios() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios")
}

/// The file itself, or the scenario of that name.
fn find(given: &Path) -> Result<PathBuf> {
    if given.is_file() {
        return Ok(given.to_owned());
    }
    let named = scenarios().join(given.with_extension("toml"));
    let is_name = given.components().count() == 1;
    if is_name && named.is_file() {
        return Ok(named.canonicalize().unwrap_or(named));
    }
    bail!(
        "no scenario {}: neither a file nor one of those that `cargo lab list` shows",
        given.display()
    )
}

/// Makes the folder that all output goes to, and gives back its real path: guests know no other.
///
/// # Errors
///
/// It cannot be made, or is not empty.
pub(crate) fn output_folder(given: Option<&Path>, name: &str) -> Result<PathBuf> {
    let folder = match given {
        Some(folder) => folder.to_owned(),
        None => {
            let seconds = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default()
                .as_secs();
            lab_folder()?.join("runs").join(format!("{name}-{seconds}"))
        }
    };
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let mut entries =
        std::fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
    if entries.next().is_some() {
        bail!(
            "the output folder {} is not empty; results of two runs should not mix",
            folder.display()
        );
    }
    folder
        .canonicalize()
        .with_context(|| format!("cannot find {}", folder.display()))
}

/// `target/lab`, found from this program's own place in the target folder.
///
/// # Errors
///
/// The program is not in a target folder.
pub(crate) fn lab_folder() -> Result<PathBuf> {
    let program = std::env::current_exe().context("cannot tell where this program is")?;
    let target = program
        .ancestors()
        .nth(2)
        .context("this program is in no target folder; give --out")?;
    Ok(target.join("lab"))
}

/// Prints the report, and writes its JSON where that is asked for.
///
/// # Errors
///
/// It cannot be written.
pub(crate) fn deliver(report: &Report, detail: Detail, json: Option<&Path>) -> Result<()> {
    if json == Some(Path::new("-")) {
        let text = table::render(report, detail, colour(&std::io::stderr()));
        std::io::stderr()
            .write_all(text.as_bytes())
            .context("cannot write to standard error")?;
        return print(&format!("{}\n", document(report)?));
    }
    if let Some(path) = json {
        std::fs::write(path, document(report)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    print(&table::render(report, detail, colour(&std::io::stdout())))
}

fn document(report: &Report) -> Result<String> {
    serde_json::to_string_pretty(report).context("cannot write the report as JSON")
}

fn colour(stream: &impl IsTerminal) -> Colour {
    if stream.is_terminal() && std::env::var_os("NO_COLOR").is_none() {
        Colour::Ansi
    } else {
        Colour::Plain
    }
}

fn print(text: &str) -> Result<()> {
    output::write(text.as_bytes())
}

/// Describes the run without running it, for `--dry-run`.
pub(super) fn plan(scenario: &Scenario, kernel: &Choice) -> String {
    let mut lines = vec![
        format!("{}: {}", scenario.name, scenario.about),
        format!("kernel {kernel}"),
        format!("hosts {}", scenario.topology.hosts.join(" ")),
    ];
    for link in &scenario.topology.links {
        let mut line = format!("link {} {} mtu {}", link.name, link.subnet, link.mtu);
        if let Some(rate) = link.shaping.rate_bps {
            line.push_str(&format!(" rate {rate} bit/s"));
        }
        if !link.shaping.delay.is_zero() {
            line.push_str(&format!(" delay {:?}", link.shaping.delay));
        }
        if link.shaping.loss_percent > 0.0 {
            line.push_str(&format!(" loss {} %", link.shaping.loss_percent));
        }
        lines.push(line);
    }
    for block in &scenario.blocks {
        if block.rounds > 1 || block.warmup_rounds > 0 || block.variants.len() > 1 {
            let names: Vec<&str> = block
                .variants
                .iter()
                .map(|variant| variant.name.as_str())
                .collect();
            let of = if names.len() > 1 {
                format!(", alternating {}", names.join(" "))
            } else {
                String::new()
            };
            lines.push(format!(
                "{} rounds after {} to warm up{of}:",
                block.rounds, block.warmup_rounds
            ));
        }
        for &step in block.variants.iter().flat_map(|variant| &variant.steps) {
            lines.extend(plan_step(scenario, step));
        }
    }
    lines.push(String::new());
    lines.join("\n")
}

fn plan_step(scenario: &Scenario, index: usize) -> Option<String> {
    let step = scenario.steps.get(index)?;
    let values = Values {
        topology: &scenario.topology,
        hosts: &[],
        bin: Path::new("{bin}"),
        examples: Path::new("{examples}"),
        tests: Path::new("{tests}"),
        rivals: &BTreeMap::new(),
        out: Path::new("{out}"),
    };
    let command = match &step.command {
        Line::Argv(argv) => command_line(&argv.iter().map(|word| word.preview(&values)).collect::<Vec<_>>()),
        Line::Shell(line) => line.preview(&values).trim().to_owned(),
    };
    let mut words = vec![format!("  {} on {}", step.id, step.host)];
    if step.background {
        words.push("in the background".to_owned());
    }
    for wait in &step.wait_for {
        let until = if wait.until == Until::Ready {
            "is ready"
        } else {
            "has ended"
        };
        words.push(format!("once {} {until}", scenario.steps.get(wait.step)?.id));
    }
    if let Some(deadline) = step.deadline {
        words.push(format!("within {} s", deadline.as_secs_f64()));
    }
    Some(format!("{}: {command}", words.join(", ")))
}
