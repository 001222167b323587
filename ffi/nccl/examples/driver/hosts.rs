//! One host's part of a run over several hosts: scenarios one after the other, each in a process of its own, so that none takes the others with it.
//!
//! Ranks meet in a folder that all hosts see. `results-RANK` there has a line for each scenario: version, scenario, verdict, words.

use core::time::Duration;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::between::SCENARIOS;

/// How long a scenario may take.
const SCENARIO_WITHIN: Duration = Duration::from_secs(200);

/// How long the other ranks may be behind.
const MET_WITHIN: Duration = Duration::from_secs(300);

/// How long a rank is stopped.
const STOPPED_FOR: Duration = Duration::from_secs(3);

/// How often files are looked for.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Lines of a rank that are shown after a failure.
const SHOWN_LINES: usize = 8;

/// The versions of the ranks in a run whose ranks have different ones.
const MIXED: [&str; 5] = ["8", "12", "9", "11", "10"];

/// The arguments.
struct Part<'a> {
    plugin: &'a str,
    folder: &'a Path,
    rank: usize,
    ranks: usize,
    /// Pairs of ranks that share no subnet.
    far: &'a str,
}

/// Runs all scenarios with each of these versions. Says whether none failed.
pub(crate) fn run(plugin: &str, arguments: &[String]) -> Result<bool, String> {
    let [folder, rank, ranks, versions, more @ ..] = arguments else {
        return Err("--hosts wants FOLDER RANK RANKS VERSIONS [FAR [SCENARIOS]]".to_owned());
    };
    let number = |text: &String| text.parse::<usize>().map_err(|_| format!("{text} is no number"));
    let part = Part {
        plugin,
        folder: Path::new(folder),
        rank: number(rank)?,
        ranks: number(ranks)?,
        far: more.first().map_or("", String::as_str),
    };
    let wanted: Vec<&str> = more
        .get(1)
        .map_or(Vec::new(), |wanted| wanted.split(',').collect());
    fs::create_dir_all(part.folder).map_err(|error| format!("{folder}: {error}"))?;
    let results = part.folder.join(format!("results-{rank}"));
    let mut results = File::create(&results).map_err(|error| format!("{}: {error}", results.display()))?;
    let (mut failed, mut shown) = (0_u32, Vec::new());
    for version in versions.split(',') {
        let own = match version {
            "mixed" => part.mixed(),
            version => Some(version),
        };
        for (scenario, _) in SCENARIOS {
            if !wanted.is_empty() && !wanted.contains(scenario) {
                continue;
            }
            let (verdict, words) = match own {
                Some(own) => part.one(version, own, scenario),
                None => ("left out", "the plugin has one version at most".to_owned()),
            };
            if verdict == "failed" {
                failed += 1;
                shown.push((version, scenario));
            }
            println!("{verdict} {version} {scenario}: {words}");
            let line = writeln!(results, "{version}\t{scenario}\t{verdict}\t{words}");
            line.map_err(|error| error.to_string())?;
        }
    }
    // Nobody ends before all results are there: the end of one may be the end of all.
    let end = part.folder.join("end");
    let _ = part.meet(&end);
    for (version, scenario) in shown {
        part.show(version, scenario);
    }
    println!("{failed} failed");
    Ok(failed == 0)
}

impl Part<'_> {
    /// The version of this rank where ranks have different ones.
    fn mixed(&self) -> Option<&'static str> {
        let program = std::env::current_exe().ok()?;
        let has = |version: &&str| {
            let mut command = Command::new(&program);
            command
                .args([self.plugin, version, "--has"])
                .stderr(Stdio::null());
            command.status().is_ok_and(|status| status.success())
        };
        let there: Vec<_> = MIXED.into_iter().filter(has).collect();
        (there.len() > 1).then(|| there[self.rank % there.len()])
    }

    /// Shows the last words of all ranks in a scenario, since one side's failure may be the other's fault.
    fn show(&self, version: &str, scenario: &str) {
        for rank in 0..self.ranks {
            let file = self
                .folder
                .join(version)
                .join(scenario)
                .join(format!("output-{rank}"));
            let said = fs::read_to_string(file).unwrap_or_default();
            println!("rank {rank} in {version} {scenario}:");
            let behind = said.lines().count().saturating_sub(SHOWN_LINES);
            for line in said.lines().skip(behind) {
                println!("  {line}");
            }
        }
    }

    fn one(&self, version: &str, own: &str, scenario: &str) -> (&'static str, String) {
        let folder = self.folder.join(version).join(scenario);
        if let Err(why) = self.meet(&folder) {
            return ("failed", why);
        }
        match self.child(&folder, own, scenario) {
            Ok(said) => said,
            Err(why) => ("failed", why),
        }
    }

    /// Waits until all ranks are here.
    fn meet(&self, folder: &Path) -> Result<(), String> {
        fs::create_dir_all(folder).map_err(|error| error.to_string())?;
        let file = |rank: usize| folder.join(format!("here-{rank}"));
        fs::write(file(self.rank), b"").map_err(|error| error.to_string())?;
        let began = Instant::now();
        for rank in 0..self.ranks {
            while !file(rank).exists() {
                if began.elapsed() > MET_WITHIN {
                    return Err(format!("rank {rank} did not come within {MET_WITHIN:?}"));
                }
                thread::sleep(LOOK_EVERY);
            }
        }
        Ok(())
    }

    /// Runs a scenario in a process of its own.
    fn child(&self, folder: &Path, version: &str, scenario: &str) -> Result<(&'static str, String), String> {
        let said = folder.join(format!("output-{}", self.rank));
        let output = File::create(&said).map_err(|error| error.to_string())?;
        let errors = output.try_clone().map_err(|error| error.to_string())?;
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        command
            .args([self.plugin, version, "--between", scenario])
            .arg(folder);
        command.args([self.rank.to_string(), self.ranks.to_string(), self.far.to_owned()]);
        let mut child = command
            .stdout(output)
            .stderr(errors)
            .spawn()
            .map_err(|error| error.to_string())?;
        let ended = self.watch(&mut child, folder);
        let said = fs::read_to_string(&said).unwrap_or_default();
        let status = ended?;
        let word = |begin: &str| said.lines().find_map(|line| line.strip_prefix(begin));
        Ok(match (word("ok: "), word("FAILED: "), word("LEFT OUT: ")) {
            (_, Some(why), _) => ("failed", why.to_owned()),
            (Some(done), ..) => ("passed", done.to_owned()),
            (.., Some(why)) => ("left out", why.to_owned()),
            _ if status.is_empty() => (
                "passed",
                "its process was ended, as the scenario has it".to_owned(),
            ),
            _ => (
                "failed",
                format!("the process ended with {status}, and said nothing"),
            ),
        })
    }

    /// Waits for the end of a process, and does to it what its scenario wants. The result is empty if it was killed for that.
    fn watch(&self, child: &mut Child, folder: &Path) -> Result<String, String> {
        let began = Instant::now();
        let (mut kill, mut stop) = (Some(self.order(folder, "kill")), Some(self.order(folder, "stop")));
        loop {
            if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
                return Ok(if kill.is_none() {
                    String::new()
                } else {
                    status.to_string()
                });
            }
            if kill.take_if(|order| order.exists()).is_some() {
                note_time(&folder.join("killed"))?;
                child.kill().map_err(|error| error.to_string())?;
            }
            if stop.take_if(|order| order.exists()).is_some() {
                signal(child, libc::SIGSTOP)?;
                thread::sleep(STOPPED_FOR);
                note_time(&folder.join("continued"))?;
                signal(child, libc::SIGCONT)?;
            }
            if began.elapsed() > SCENARIO_WITHIN {
                child.kill().map_err(|error| error.to_string())?;
                let _ = child.wait();
                return Err(format!("no end within {SCENARIO_WITHIN:?}"));
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    /// The file by which the process of this rank asks for something to be done to it.
    fn order(&self, folder: &Path, order: &str) -> PathBuf {
        folder.join(format!("{order}-{}", self.rank))
    }
}

fn signal(child: &Child, signal: i32) -> Result<(), String> {
    let process = i32::try_from(child.id()).map_err(|error| error.to_string())?;
    // SAFETY: a number of a process that was not waited for, so it is still that process's (kill(2)).
    match unsafe { libc::kill(process, signal) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().to_string()),
    }
}

/// The nanoseconds since 1970.
pub(crate) fn unix_ns() -> u128 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_nanos()
}

/// Writes the present time to a file that is whole, or not there.
fn note_time(file: &Path) -> Result<(), String> {
    let beside = file.with_extension("unfinished");
    let written = fs::write(&beside, unix_ns().to_string()).and_then(|()| fs::rename(&beside, file));
    written.map_err(|error| error.to_string())
}
