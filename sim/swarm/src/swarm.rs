//! `cargo lab swarm`: many seeds, on as many threads as asked, and what came of them.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use std::collections::BTreeSet;
use std::fs;
use std::io::{IsTerminal as _, stderr};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::case::Case;
use crate::failure::Failure;
use crate::generate::generate;
use crate::mutate::{self, Mutation};
use crate::packets::{Bare, measure};
use crate::run::{Keep, run_caught};
use crate::shrink::shrink;

/// Seeds that are always run: with these, CI is the same each time.
pub(crate) const FIXED_SEEDS: u64 = 500;

/// How long `--ci` runs in all.
const CI: Duration = Duration::from_secs(120);

/// How long the fabric is measured by itself.
const BARE: Duration = Duration::from_secs(1);

/// Runs that shrinking one case may take.
const SHRINK_RUNS_MAX: u32 = 2000;

/// Arguments of `cargo lab swarm`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SwarmArgs {
    /// Run for so long, fresh seeds
    #[arg(long, value_name = "N", conflicts_with_all = ["seeds", "seed", "ci"])]
    minutes: Option<f64>,
    /// Run so many seeds, from --first on
    #[arg(long, value_name = "N", conflicts_with_all = ["seed", "ci"])]
    seeds: Option<u64>,
    /// Run this seed
    #[arg(long, value_name = "S", conflicts_with = "ci")]
    seed: Option<u64>,
    /// Run those that ever failed, a fixed set, and fresh ones, two minutes in all
    #[arg(long)]
    ci: bool,
    /// The first seed; by default 0 of a number of seeds, and by the clock of minutes
    #[arg(long, value_name = "S")]
    first: Option<u64>,
    /// Threads; by default one for each core
    #[arg(long, value_name = "J")]
    jobs: Option<usize>,
    /// Put this patch into a copy of the tree, and see whether it is caught (several times for several); seeds are run,
    /// too, where they are asked for
    #[arg(long, value_name = "PATCH")]
    mutate: Vec<PathBuf>,
    /// The same with every patch of `sim/mutations`
    #[arg(long, conflicts_with = "mutate")]
    mutate_all: bool,
    /// How long seeds are run for each patch
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    budget: u64,
    /// Stop at the first that fails
    #[arg(long)]
    stop: bool,
    /// Write failing cases here, shrunk
    #[arg(long, value_name = "FOLDER", default_value = "target/swarm")]
    out: PathBuf,
    /// Write what came of it as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What came of all of them.
#[derive(Debug, Default, Serialize)]
struct Summary {
    seeds: u64,
    first_seed: u64,
    jobs: usize,
    seconds: f64,
    seeds_per_minute: f64,
    packets: u64,
    packets_per_second_per_core: f64,
    operations: u64,
    operations_per_second_per_core: f64,
    messages: u64,
    virtual_seconds: f64,
    /// The fabric by itself, measured where this is written: without Workers, and without the swarm's oracles.
    bare: Option<Bare>,
    failures: Vec<Found>,
    /// How long seeds are run for each mutation at most.
    mutation_budget_seconds: u64,
    mutation_seconds: f64,
    mutations_planted: usize,
    mutations_caught: usize,
    mutations: Vec<Mutation>,
}

/// A seed or file that failed.
#[derive(Clone, Debug, Serialize)]
struct Found {
    what: String,
    oracle: String,
    detail: String,
    plan: String,
    /// Where the shrunk case is.
    file: Option<PathBuf>,
    #[serde(skip)]
    shrunk: Option<Case>,
}

/// What threads count together.
#[derive(Default)]
struct Counts {
    seeds: AtomicU64,
    packets: AtomicU64,
    operations: AtomicU64,
    messages: AtomicU64,
    virtual_ns: AtomicU64,
    busy_ns: AtomicU64,
    is_over: AtomicBool,
    failures: Mutex<Vec<(String, Case, Failure)>>,
}

impl Counts {
    /// Runs one case and counts it.
    fn run(&self, what: &str, case: &Case, stop: bool) {
        let began_ns = cpu_ns();
        let outcome = run_caught(case, Keep::default());
        let add = |counter: &AtomicU64, count: u64| {
            counter.fetch_add(count, Ordering::Relaxed);
        };
        add(&self.seeds, 1);
        add(&self.packets, outcome.tally.packets.sent);
        add(&self.operations, outcome.tally.requests.posted);
        add(&self.messages, outcome.messages);
        add(&self.virtual_ns, outcome.virtual_ns);
        add(&self.busy_ns, cpu_ns().saturating_sub(began_ns));
        if let Err(failure) = outcome.verdict {
            eprintln!("\nFAILED {what}: {failure}\n  plan: {}", case.plan);
            if stop {
                self.is_over.store(true, Ordering::Relaxed);
            }
            if let Ok(mut failures) = self.failures.lock() {
                failures.push((what.to_owned(), case.clone(), failure));
            }
        }
    }
}

/// How long this thread has computed: what the machine did for others meanwhile does not count.
pub(crate) fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// Whether nothing failed, and every mutation was caught.
pub(crate) fn run(args: &SwarmArgs) -> Result<bool> {
    let jobs = args
        .jobs
        .unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from))
        .max(1);
    let plants = args.mutate_all || !args.mutate.is_empty();
    let are_seeds_asked_for =
        args.ci || args.minutes.is_some() || args.seeds.is_some() || args.seed.is_some();
    let mut summary = Summary {
        jobs,
        ..Summary::default()
    };
    if are_seeds_asked_for || !plants {
        summary = run_seeds(args, jobs)?;
        write_summary(args, &summary)?;
    }
    if plants {
        plant(args, jobs, &mut summary)?;
    }
    tell(&summary.failures)?;
    Ok(summary.failures.is_empty() && summary.mutations_caught == summary.mutations_planted)
}

/// Runs the seeds that are asked for, and says what came of them.
fn run_seeds(args: &SwarmArgs, jobs: usize) -> Result<Summary> {
    let began = Instant::now();
    let counts = Counts::default();
    if args.ci {
        for file in kept()? {
            let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
            let case = Case::parse(&text).with_context(|| format!("{} is no case", file.display()))?;
            counts.run(&file.display().to_string(), &case, args.stop);
        }
        seeds(&counts, 0, Some(FIXED_SEEDS), None, jobs, args.stop);
    }
    let by_clock = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs() * 1_000_000);
    let (first, count, until) = match (args.seed, args.seeds, args.minutes) {
        (Some(seed), ..) => (seed, Some(1), None),
        (None, Some(count), _) => (args.first.unwrap_or(0), Some(count), None),
        (None, None, Some(minutes)) => {
            ensure!((0.0..=1e6).contains(&minutes), "no number of minutes: {minutes}");
            let until = began + Duration::from_secs_f64(minutes * 60.0);
            (args.first.unwrap_or(by_clock), None, Some(until))
        }
        _ if args.ci => (args.first.unwrap_or(by_clock), None, Some(began + CI)),
        _ => (args.first.unwrap_or(0), Some(FIXED_SEEDS), None),
    };
    seeds(&counts, first, count, until, jobs, args.stop);
    if stderr().is_terminal() {
        eprintln!();
    }
    let failures = counts
        .failures
        .lock()
        .map(|mut failures| core::mem::take(&mut *failures))
        .unwrap_or_default();
    let seconds = began.elapsed().as_secs_f64();
    let busy = (counts.busy_ns.load(Ordering::Relaxed) as f64 / 1e9).max(1e-9);
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let mut summary = Summary {
        seeds: load(&counts.seeds),
        first_seed: first,
        jobs,
        seconds,
        seeds_per_minute: load(&counts.seeds) as f64 * 60.0 / seconds,
        packets: load(&counts.packets),
        packets_per_second_per_core: load(&counts.packets) as f64 / busy,
        operations: load(&counts.operations),
        operations_per_second_per_core: load(&counts.operations) as f64 / busy,
        messages: load(&counts.messages),
        virtual_seconds: load(&counts.virtual_ns) as f64 / 1e9,
        bare: (args.json.is_some() && !args.stop).then(|| measure(BARE)),
        ..Summary::default()
    };
    let mut seen = BTreeSet::new();
    for (what, case, failure) in failures {
        // One of each oracle is shrunk: many seeds tell of the same mistake.
        let (file, shrunk) = if seen.insert(failure.oracle) && !args.stop {
            let (file, shrunk) = write_shrunk(args, &what, &case, &failure)?;
            (Some(file), Some(shrunk))
        } else {
            (None, None)
        };
        summary.failures.push(Found {
            what,
            oracle: failure.oracle.into(),
            detail: failure.detail,
            plan: case.plan,
            file,
            shrunk,
        });
    }
    println!(
        "{} runs in {seconds:.1} s on {jobs} threads ({:.0} a minute), {} messages; a core does {:.0} packets and {:.0} \
         operations a second; {} failed",
        summary.seeds,
        summary.seeds_per_minute,
        summary.messages,
        summary.packets_per_second_per_core,
        summary.operations_per_second_per_core,
        summary.failures.len(),
    );
    if let Some(bare) = &summary.bare {
        println!(
            "the fabric by itself: {:.0} packets a second of a core",
            bare.packets_per_second_per_core
        );
    }
    ensure!(summary.seeds > 0, "nothing was run");
    Ok(summary)
}

/// Tries every mutation; the record is written after each.
fn plant(args: &SwarmArgs, jobs: usize, summary: &mut Summary) -> Result<()> {
    let began = Instant::now();
    summary.mutation_budget_seconds = args.budget;
    mutate::run(
        &args.mutate,
        Duration::from_secs(args.budget),
        jobs,
        |mutations| {
            summary.mutation_seconds = began.elapsed().as_secs_f64();
            summary.mutations_planted = mutations.len();
            summary.mutations_caught = mutations.iter().filter(|each| mutate::is_caught(each)).count();
            summary.mutations = mutations.to_vec();
            write_summary(args, summary)
        },
    )
}

fn write_summary(args: &SwarmArgs, summary: &Summary) -> Result<()> {
    let Some(path) = &args.json else {
        return Ok(());
    };
    let document = serde_json::to_string_pretty(summary)?;
    fs::write(path, document).with_context(|| format!("cannot write {}", path.display()))
}

/// Runs seeds, so many or until then.
fn seeds(counts: &Counts, first: u64, count: Option<u64>, until: Option<Instant>, jobs: usize, stop: bool) {
    let next = AtomicU64::new(0);
    let is_watched = stderr().is_terminal();
    let began = Instant::now();
    thread::scope(|scope| {
        for job in 0..jobs {
            let next = &next;
            scope.spawn(move || {
                let mut told = Instant::now();
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let is_over = count.is_some_and(|count| index >= count)
                        || until.is_some_and(|until| Instant::now() >= until)
                        || counts.is_over.load(Ordering::Relaxed);
                    if is_over {
                        return;
                    }
                    let seed = first + index;
                    counts.run(&seed.to_string(), &generate(seed), stop);
                    if is_watched && job == 0 && told.elapsed() > Duration::from_secs(2) {
                        told = Instant::now();
                        let rate = index as f64 / began.elapsed().as_secs_f64();
                        eprint!("\r{index} seeds, {rate:.0} a second ");
                    }
                }
            });
        }
    });
}

/// The files of cases that ever failed.
fn kept() -> Result<Vec<PathBuf>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../seeds");
    let mut files = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Says last what failed, once for each oracle, and with the case: whoever reads it may have nothing else of this machine.
fn tell(failures: &[Found]) -> Result<()> {
    for found in failures {
        let Some(case) = &found.shrunk else { continue };
        println!(
            "FAILED {}: {}: {}\n  the shrunk case, as `cargo lab replay` takes it in a file:\n{}",
            found.what,
            found.oracle,
            found.detail,
            serde_json::to_string(case)?
        );
    }
    Ok(())
}

fn write_shrunk(args: &SwarmArgs, what: &str, case: &Case, failure: &Failure) -> Result<(PathBuf, Case)> {
    eprintln!("shrinking {what} ...");
    let (small, failure, runs) = shrink(case, failure, SHRINK_RUNS_MAX);
    fs::create_dir_all(&args.out).with_context(|| args.out.display().to_string())?;
    let stem = Path::new(what)
        .file_stem()
        .map_or_else(|| "case".into(), |stem| stem.to_string_lossy());
    let path = args
        .out
        .join(format!("{stem}-{}.json", failure.oracle.replace(' ', "-")));
    fs::write(&path, small.to_text()?).with_context(|| path.display().to_string())?;
    println!(
        "{what} shrunk in {runs} runs from {} to {} operations and {} lines: {failure}\n  plan: {}\n  cargo lab replay {}",
        case.operations.len(),
        small.operations.len(),
        small.lines.len(),
        small.plan,
        path.display(),
    );
    Ok((path, small))
}
