//! `cargo lab soak`: each native test program and each scenario many times, alone and beside busy processes; what failed how often.
//!
//! Every run is recorded when it ends, so that a soak that was interrupted or ran out of time goes on where it was. A program that
//! was built anew since starts anew. The record and the table are in `record`.

use core::time::Duration;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Instant, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};

use crate::busy::Busy;
use crate::course::{Course, span};
use crate::headers;
use crate::kernel::Choice;
use crate::native::{self, Program};
use crate::output;
use crate::scenario::{self, Folders, Lab, Scenario};
use crate::steps::say;
use crate::test::{self, Run, plain};
use crate::up::HowArgs;

mod record;

use record::{Record, Row, Unit};

/// Arguments of `cargo lab soak`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SoakArgs {
    /// Run only the test programs and scenarios of these names or parts of names, as a run prints them
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Run native test programs, and scenarios only with --scenarios
    #[arg(long)]
    native: bool,
    /// Run scenarios, and native test programs only with --native
    #[arg(long)]
    scenarios: bool,
    /// How often each native test program runs alone
    #[arg(long, value_name = "N", default_value_t = 30)]
    alone: u32,
    /// How often each native test program runs beside busy processes
    #[arg(long, value_name = "N", default_value_t = 10)]
    busy: u32,
    /// So many processes are busy beside a native test program
    #[arg(long, value_name = "N", default_value_t = 4)]
    processes: usize,
    /// How often each scenario runs alone on each kernel
    #[arg(long, value_name = "N", default_value_t = 3)]
    scenario_alone: u32,
    /// How often each scenario runs beside busy processes on each kernel
    #[arg(long, value_name = "N", default_value_t = 1)]
    scenario_busy: u32,
    /// So many processes are busy beside a scenario
    #[arg(long, value_name = "N", default_value_t = 2)]
    scenario_processes: usize,
    /// Run the scenarios on this kernel (several times for several) instead of the first two they name
    #[arg(long, value_name = "KERNEL")]
    kernel: Vec<Choice>,
    /// Begin no run after so many minutes; the same command goes on later
    #[arg(long, value_name = "MINUTES", default_value_t = 600)]
    minutes: u64,
    /// Forget the runs that are recorded of what is chosen
    #[arg(long)]
    fresh: bool,
    /// Write all counts as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// So many kernels of those that a scenario names.
const KERNELS: usize = 2;

/// A program or a scenario, in one of the two ways.
struct Job<'a> {
    /// Names it in the record: `NAME, alone`.
    title: String,
    what: What<'a>,
    /// So many processes are busy beside it.
    processes: usize,
    wanted: u32,
    /// Another one means that another program was built.
    stamp: String,
}

enum What<'a> {
    Native(&'a Program),
    Scenario(Run<'a>),
}

/// The needs that all runs share.
struct Soak<'a> {
    headers: PathBuf,
    folder: PathBuf,
    how: &'a HowArgs,
}

/// `cargo lab soak`; whether nothing failed.
///
/// # Errors
///
/// Something does not build, nothing has the names given, or results cannot be written. A run that fails is counted, not an error.
pub(crate) fn run(args: &SoakArgs, how: &HowArgs, lab: &mut dyn Lab) -> Result<bool> {
    let began = Instant::now();
    let both = args.native == args.scenarios;
    let folder = scenario::lab_folder()?.join("soak");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let soak = Soak {
        headers: headers::ensure()?,
        folder,
        how,
    };
    let built = if both || args.native {
        let course = Course::begin("build", native::SUITES.len())?;
        let built = native::build(&soak.folder, &course)?;
        course.finish();
        built
    } else {
        Vec::new()
    };
    let scenarios = if both || args.scenarios {
        scenario::repository()?
    } else {
        Vec::new()
    };
    let jobs = jobs(args, &built, &scenarios, lab)?;
    ensure!(
        !jobs.is_empty(),
        "no test program and no scenario has the name {}; `cargo lab list` shows scenarios",
        args.names.join(" or ")
    );
    let mut record = Record::read(&soak.folder.join("record.json"));
    for job in &jobs {
        record.begin(&job.title, &job.stamp, args.fresh);
    }
    let left = |record: &Record, job: &Job<'_>| job.wanted.saturating_sub(record.unit(&job.title).runs);
    let missing = jobs
        .iter()
        .map(|job| left(&record, job))
        .fold(0, u32::saturating_add);
    let course = Course::begin("soak", usize::try_from(missing)?)?.tersely();
    let limit = Duration::from_secs(args.minutes.saturating_mul(60));
    // Round by round, so that a soak that ends early has been everywhere.
    let rounds = jobs.iter().map(|job| job.wanted).max().unwrap_or(0);
    'soak: for round in 1..=rounds {
        for job in &jobs {
            if record.unit(&job.title).runs >= round.min(job.wanted) {
                continue;
            }
            if began.elapsed() >= limit {
                say(format_args!(
                    "{} have passed; the same command goes on from here",
                    span(limit)
                ));
                break 'soak;
            }
            let name = format!("{} {round} of {}", job.title, job.wanted);
            course.began(&name);
            let failed = soak.once(job, round)?;
            let outcome = if failed.is_empty() { "passed" } else { "FAILED" };
            course.ended(&name, outcome);
            for failure in &failed {
                say(format_args!("FAILED: {failure}"));
            }
            record.add(&job.title, &failed)?;
        }
    }
    course.finish();
    let rows: Vec<Row> = jobs
        .iter()
        .map(|job| job.row(record.unit(&job.title), args))
        .collect();
    if let Some(path) = &args.json {
        let document = serde_json::to_string_pretty(&rows)?;
        fs::write(path, document).with_context(|| format!("cannot write {}", path.display()))?;
    }
    output::write(record::render(&rows).as_bytes())?;
    Ok(rows.iter().all(|row| row.unit.failed == 0))
}

/// All that is chosen, with what it needs built.
fn jobs<'a>(
    args: &'a SoakArgs,
    built: &'a [Program],
    scenarios: &'a [Scenario],
    lab: &mut dyn Lab,
) -> Result<Vec<Job<'a>>> {
    let mut jobs = Vec::new();
    let ways = [("alone", args.alone, 0), ("busy", args.busy, args.processes)];
    // Tests in documentation have no executable; they are those of all libraries.
    let libraries: Vec<String> = built.iter().filter_map(Program::executable).map(stamp).collect();
    let programs = native::chosen(built, &args.names, |program| &program.name);
    for (way, wanted, processes) in ways {
        jobs.extend(programs.iter().map(|program| Job {
            title: format!("{}, {way}", program.name),
            what: What::Native(program),
            processes,
            wanted,
            stamp: program.executable().map_or_else(|| libraries.concat(), stamp),
        }));
    }
    let tested: Vec<&Scenario> = scenarios
        .iter()
        .filter(|scenario| !scenario.test_on.is_empty() || !scenario.all_on.is_empty())
        .collect();
    let chosen = native::chosen(&tested, &args.names, |scenario| &scenario.name);
    let ways = [
        ("alone", args.scenario_alone, 0),
        ("busy", args.scenario_busy, args.scenario_processes),
    ];
    for &&scenario in &chosen {
        let own = scenario.test_on.iter().chain(&scenario.all_on).take(KERNELS);
        let kernels: Vec<&Choice> = if args.kernel.is_empty() {
            own.collect()
        } else {
            args.kernel.iter().collect()
        };
        for kernel in kernels {
            lab.set_up(scenario, kernel)?;
            let folders = lab.programs(scenario.needs())?;
            for (way, wanted, processes) in ways {
                let run = Run::of(scenario, kernel);
                jobs.push(Job {
                    title: format!("{}, {way}", run.title()),
                    what: What::Scenario(run),
                    processes,
                    wanted,
                    stamp: stamp_of(scenario, &folders),
                });
            }
        }
    }
    jobs.retain(|job| job.wanted > 0);
    Ok(jobs)
}

/// Tells one build of a file from another.
fn stamp(file: &Path) -> String {
    let told = fs::metadata(file).and_then(|metadata| Ok((metadata.len(), metadata.modified()?)));
    told.map_or_else(
        |_| "absent;".to_owned(),
        |(bytes, modified)| {
            let since = modified.duration_since(UNIX_EPOCH).unwrap_or_default();
            format!("{bytes}-{};", since.as_nanos())
        },
    )
}

/// Tells one build of a scenario and of its programs from another.
fn stamp_of(scenario: &Scenario, folders: &Folders) -> String {
    let needs = scenario.needs();
    let mut stamps = stamp(&scenario.path);
    if needs.bin {
        stamps += &stamp(&folders.bin.join("doorbell"));
    }
    for (is_needed, folder) in [(needs.examples, &folders.examples), (needs.tests, &folders.tests)] {
        let files = is_needed.then(|| fs::read_dir(folder).ok()).flatten();
        let mut paths: Vec<PathBuf> = files
            .into_iter()
            .flatten()
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.is_file() && path.extension().is_none())
            .collect();
        paths.sort();
        stamps.extend(paths.iter().map(|path| stamp(path)));
    }
    stamps
}

impl Soak<'_> {
    /// Runs a job once; gives the names of what failed. The output of a run that passed is not kept.
    fn once(&self, job: &Job<'_>, round: u32) -> Result<Vec<String>> {
        let _busy = Busy::start(job.processes)?;
        let kept = self.folder.join(plain(&format!("{}-{round:02}", job.title)));
        match &job.what {
            What::Native(program) => {
                let log = kept.with_extension("log");
                let ran = native::run(program, &self.headers, &log)?;
                if ran.failures.is_empty() {
                    fs::remove_file(&log).with_context(|| format!("cannot remove {}", log.display()))?;
                }
                let failures = ran.failures.into_iter();
                Ok(failures
                    .map(|failure| {
                        say(format_args!("{}\n  log: {}", failure.text, log.display()));
                        failure.test.unwrap_or_else(|| "the program itself".to_owned())
                    })
                    .collect())
            }
            What::Scenario(run) => {
                if kept.exists() {
                    fs::remove_dir_all(&kept).with_context(|| format!("cannot remove {}", kept.display()))?;
                }
                let failures = match test::child(run, self.how, &kept) {
                    Ok(told) => told.failures().to_vec(),
                    Err(error) => vec![format!("{error:#}")],
                };
                if failures.is_empty() {
                    // The rest of it is of no use, and no reason to fail.
                    let _ = fs::remove_dir_all(&kept);
                }
                let first = |text: &String| text.lines().next().unwrap_or_default().to_owned();
                Ok(failures.iter().map(first).collect())
            }
        }
    }
}

impl Job<'_> {
    fn row(&self, unit: Unit, args: &SoakArgs) -> Row {
        let name = match &self.what {
            What::Native(program) => program.name.clone(),
            What::Scenario(run) => run.scenario.name.clone(),
        };
        let command = match &self.what {
            What::Native(_) if self.processes == 0 => {
                format!(
                    "cargo lab soak --native '{name}' --fresh --alone {} --busy 0",
                    args.alone
                )
            }
            What::Native(_) => format!(
                "cargo lab soak --native '{name}' --fresh --alone 0 --busy {} --processes {}",
                args.busy, args.processes
            ),
            What::Scenario(run) => {
                let (alone, busy) = if self.processes == 0 {
                    (args.scenario_alone, 0)
                } else {
                    (0, args.scenario_busy)
                };
                format!(
                    "cargo lab soak --scenarios {name} --fresh --kernel {} --scenario-alone {alone} --scenario-busy {busy}",
                    run.kernel
                )
            }
        };
        Row {
            title: self.title.clone(),
            wanted: self.wanted,
            unit,
            command,
        }
    }
}
