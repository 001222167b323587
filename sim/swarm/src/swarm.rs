//! `cargo lab swarm`: many seeds, on as many threads as asked, and what came of them.

use core::ops::Range;
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
use crate::seed::{Profile, Seed};
use crate::shrink::shrink;

/// Seeds of each profile that are run where nothing else is asked for.
const SEEDS: u64 = 500;

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
    /// Run so many seeds of each profile, from --first on
    #[arg(long, value_name = "N", conflicts_with_all = ["seed", "ci"])]
    seeds: Option<u64>,
    /// Run this seed, as `long:17` of the profile long or `17` of the profile quick
    #[arg(long, value_name = "S", conflicts_with_all = ["ci", "profile"])]
    seed: Option<Seed>,
    /// Run seeds of this profile (several times for several), and not of all, each for its share of the time
    #[arg(long, value_name = "PROFILE")]
    profile: Vec<Profile>,
    /// Run those that ever failed, and the seeds of the gate: the same number of each profile on every machine
    #[arg(long)]
    ci: bool,
    /// The first seed; by default 0 of a number of seeds and of the gate, and by the clock of minutes
    #[arg(long, value_name = "S")]
    first: Option<u64>,
    /// Threads; by default one for each core
    #[arg(long, value_name = "J")]
    jobs: Option<usize>,
    /// Put this patch into a copy of the tree, and see whether it is caught (several times for several); seeds are run,
    /// too, where they are asked for
    #[arg(long, value_name = "PATCH")]
    mutate: Vec<PathBuf>,
    /// Try every patch of `sim/mutations` like that
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

/// The summary of all seeds.
#[derive(Debug, Default, Serialize)]
struct Summary {
    seeds: u64,
    profiles: Vec<OfProfile>,
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

/// The results of one profile's seeds.
#[derive(Clone, Debug, Serialize)]
struct OfProfile {
    profile: Profile,
    seeds: u64,
    /// The time that a core computed.
    core_seconds: f64,
    seeds_per_core_minute: f64,
    virtual_seconds: f64,
}

/// A seed or file that failed.
#[derive(Clone, Debug, Serialize)]
struct Found {
    what: String,
    oracle: String,
    detail: String,
    plan: String,
    /// The path of the shrunk case.
    file: Option<PathBuf>,
    #[serde(skip)]
    shrunk: Option<Case>,
}

/// Counters that all threads share.
#[derive(Default)]
struct Counts {
    seeds: AtomicU64,
    packets: AtomicU64,
    operations: AtomicU64,
    messages: AtomicU64,
    virtual_ns: AtomicU64,
    busy_ns: AtomicU64,
    profiles: [OfProfileCounts; Profile::ALL.len()],
    is_over: AtomicBool,
    failures: Mutex<Vec<(String, Case, Failure)>>,
}

/// Shared counters of one profile.
#[derive(Default)]
struct OfProfileCounts {
    begun: AtomicU64,
    seeds: AtomicU64,
    busy_ns: AtomicU64,
    virtual_ns: AtomicU64,
}

impl Counts {
    /// Runs the case of a seed and counts it, also for its profile.
    fn run_seed(&self, seed: Seed, stop: bool) {
        let ran = self.run(&seed.to_string(), &generate(seed), stop);
        let counts = &self.profiles[seed.profile as usize];
        counts.seeds.fetch_add(1, Ordering::Relaxed);
        counts.busy_ns.fetch_add(ran.busy_ns, Ordering::Relaxed);
        counts.virtual_ns.fetch_add(ran.virtual_ns, Ordering::Relaxed);
    }

    /// Returns the results of each profile that had seeds.
    fn by_profile(&self) -> Vec<OfProfile> {
        let of = |profile: Profile| {
            let counts = &self.profiles[profile as usize];
            let seeds = counts.seeds.load(Ordering::Relaxed);
            let core_seconds = counts.busy_ns.load(Ordering::Relaxed) as f64 / 1e9;
            OfProfile {
                profile,
                seeds,
                core_seconds,
                seeds_per_core_minute: seeds as f64 * 60.0 / core_seconds.max(1e-9),
                virtual_seconds: counts.virtual_ns.load(Ordering::Relaxed) as f64 / 1e9,
            }
        };
        let all = Profile::ALL.into_iter().map(of);
        all.filter(|of| of.seeds > 0).collect()
    }

    /// The profile that is furthest behind its share of the time, and the next number of it.
    fn next_by_share(&self, profiles: &[Profile]) -> Option<(Profile, u64)> {
        let had = |profile: &Profile| {
            let counts = &self.profiles[*profile as usize];
            // Before one has ended, one of each has begun.
            let begun = counts.begun.load(Ordering::Relaxed);
            let ns = counts.busy_ns.load(Ordering::Relaxed).max(begun);
            ns / u64::from(profile.weight())
        };
        let profile = profiles.iter().min_by_key(|profile| had(profile)).copied()?;
        let begun = self.profiles[profile as usize]
            .begun
            .fetch_add(1, Ordering::Relaxed);
        Some((profile, begun))
    }

    /// Runs one case and counts it.
    fn run(&self, what: &str, case: &Case, stop: bool) -> Ran {
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
        let busy_ns = cpu_ns().saturating_sub(began_ns);
        add(&self.busy_ns, busy_ns);
        if let Err(failure) = outcome.verdict {
            eprintln!("\nFAILED {what}: {failure}\n  plan: {}", case.plan);
            if stop {
                self.is_over.store(true, Ordering::Relaxed);
            }
            if let Ok(mut failures) = self.failures.lock() {
                failures.push((what.to_owned(), case.clone(), failure));
            }
        }
        Ran {
            busy_ns,
            virtual_ns: outcome.virtual_ns,
        }
    }
}

/// How long one case took.
struct Ran {
    busy_ns: u64,
    virtual_ns: u64,
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
    let mut profiles = args.profile.clone();
    if profiles.is_empty() {
        profiles.extend(Profile::ALL);
    }
    profiles.dedup();
    if args.ci {
        for file in kept()? {
            let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
            let case = Case::parse(&text).with_context(|| format!("{} is no case", file.display()))?;
            counts.run(&file.display().to_string(), &case, args.stop);
        }
    }
    let by_clock = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs() * 1_000_000);
    let first = match (args.first, args.seed) {
        (Some(first), _) => first,
        (None, Some(seed)) => seed.number,
        (None, None) if args.minutes.is_some() => by_clock,
        (None, None) => 0,
    };
    let ask = match (args.seed, args.seeds, args.minutes) {
        (Some(seed), ..) => {
            profiles = vec![seed.profile];
            Ask::Numbers(first..first + 1)
        }
        (None, Some(count), _) => Ask::Numbers(first..first + count),
        (None, None, Some(minutes)) => {
            ensure!((0.0..=1e6).contains(&minutes), "no number of minutes: {minutes}");
            Ask::Until(first, began + Duration::from_secs_f64(minutes * 60.0))
        }
        _ if args.ci => Ask::OfGate(first),
        _ => Ask::Numbers(first..first + SEEDS),
    };
    seeds(&counts, &profiles, &ask, jobs, args.stop);
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
        profiles: counts.by_profile(),
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
    for of in &summary.profiles {
        println!(
            "{:>8}: {} seeds, {:.0} a minute of a core, {:.0} s of virtual time",
            of.profile, of.seeds, of.seeds_per_core_minute, of.virtual_seconds,
        );
    }
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

/// Which seeds are run.
enum Ask {
    /// These of each profile.
    Numbers(Range<u64>),
    /// From this one on as many of each profile as the gate has.
    OfGate(u64),
    /// From this one on until then, each profile for its share of the time.
    Until(u64, Instant),
}

/// Runs seeds of these profiles.
fn seeds(counts: &Counts, profiles: &[Profile], ask: &Ask, jobs: usize, stop: bool) {
    let next = AtomicU64::new(0);
    let is_watched = stderr().is_terminal();
    let began = Instant::now();
    let next_seed = || match ask {
        Ask::Numbers(numbers) => {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let profile = *profiles.get(usize::try_from(index % profiles.len() as u64).ok()?)?;
            let number = numbers.start + index / profiles.len() as u64;
            (number < numbers.end).then_some(Seed { profile, number })
        }
        Ask::OfGate(first) => {
            let mut index = next.fetch_add(1, Ordering::Relaxed);
            profiles.iter().find_map(|&profile| {
                let number = (index < profile.of_gate()).then(|| first + index);
                index = index.saturating_sub(profile.of_gate());
                number.map(|number| Seed { profile, number })
            })
        }
        Ask::Until(first, until) => {
            next.fetch_add(1, Ordering::Relaxed);
            let (profile, begun) = counts.next_by_share(profiles)?;
            let number = first + begun;
            (Instant::now() < *until).then_some(Seed { profile, number })
        }
    };
    thread::scope(|scope| {
        for job in 0..jobs {
            let (next, next_seed) = (&next, &next_seed);
            scope.spawn(move || {
                let mut told = Instant::now();
                while let Some(seed) = next_seed() {
                    if counts.is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    counts.run_seed(seed, stop);
                    if is_watched && job == 0 && told.elapsed() > Duration::from_secs(2) {
                        told = Instant::now();
                        let index = next.load(Ordering::Relaxed);
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

/// Prints each shrunk case last, once for each oracle: a reader may have nothing else of this machine.
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
        .join(format!("{stem}-{}.json", failure.oracle).replace([' ', ':'], "-"));
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
