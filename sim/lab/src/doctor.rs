//! `cargo lab doctor`: what is here, what is missing, and what follows from it.
//!
//! It changes nothing, and starts nothing but version queries.

use std::path::Path;

use anyhow::Result;
use serde::Serialize;

use crate::cache::{Cache, Scrutiny};
use crate::kernel::{self, Choice, Series};
use crate::machine::qemu;
use crate::setup::NEEDS;
use crate::{control, tool};

/// Arguments of `cargo lab doctor`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
}

/// Everything found.
#[derive(Clone, Debug, Serialize)]
struct Diagnosis {
    /// Whether a lab can be booted as things are.
    ready: bool,
    findings: Vec<Finding>,
}

#[derive(Clone, Debug, Serialize)]
struct Finding {
    subject: String,
    state: State,
    detail: String,
    /// Consequence of a state that is not good.
    #[serde(skip_serializing_if = "String::is_empty")]
    consequence: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Good,
    /// Something is less than it could be; a lab still boots.
    Note,
    /// No lab boots without this.
    Missing,
}

/// Prints the findings; gives whether a lab can be booted.
///
/// # Errors
///
/// There is no place for a cache.
pub(crate) fn run(args: &DoctorArgs) -> Result<bool> {
    let diagnosis = diagnose()?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&diagnosis)?);
        return Ok(diagnosis.ready);
    }
    for finding in &diagnosis.findings {
        let mark = match finding.state {
            State::Good => "ok     ",
            State::Note => "note   ",
            State::Missing => "MISSING",
        };
        println!("{mark}  {:<18} {}", finding.subject, finding.detail);
        if !finding.consequence.is_empty() {
            println!("         {:<18} -> {}", "", finding.consequence);
        }
    }
    println!();
    if diagnosis.ready {
        println!("A lab can be booted here: `cargo lab demo`.");
    } else {
        println!("No lab can be booted here yet: `cargo lab setup` installs and fetches what is missing.");
    }
    Ok(diagnosis.ready)
}

fn diagnose() -> Result<Diagnosis> {
    let cache = Cache::open()?;
    let mut findings: Vec<Finding> = NEEDS
        .iter()
        .map(|need| {
            let subject = need.file.rsplit('/').next().unwrap_or(need.file);
            let (state, detail) = match (need.is_met(), need.essential) {
                (true, _) => (State::Good, format!("package {}", need.package)),
                (false, true) => (
                    State::Missing,
                    format!("package {} is not installed", need.package),
                ),
                (false, false) => (State::Note, format!("package {} is not installed", need.package)),
            };
            let consequence = if state == State::Good { "" } else { need.without };
            finding(subject, state, &detail, consequence)
        })
        .collect();
    findings.push(qemu_version());
    findings.push(acceleration(&cache));
    findings.extend(kernels(&cache));
    findings.push(resources());
    findings.push(own_devices());
    let labs = control::running()?;
    let running = labs
        .iter()
        .map(|(pid, _)| pid.to_string())
        .collect::<Vec<_>>()
        .join(", ");
    findings.push(finding(
        "running labs",
        State::Good,
        if running.is_empty() { "none" } else { &running },
        "",
    ));
    findings.push(finding(
        "cache",
        State::Good,
        &cache.root().display().to_string(),
        "",
    ));
    let ready = findings.iter().all(|finding| finding.state != State::Missing);
    Ok(Diagnosis { ready, findings })
}

fn finding(subject: &str, state: State, detail: &str, consequence: &str) -> Finding {
    Finding {
        subject: subject.to_owned(),
        state,
        detail: detail.to_owned(),
        consequence: consequence.to_owned(),
    }
}

fn qemu_version() -> Finding {
    let text = tool::output(qemu::PROGRAM, &["--version"]).unwrap_or_default();
    let version = text.split_whitespace().nth(3).unwrap_or("unknown");
    let mut numbers = version.split('.').map(|n| n.parse::<u32>().unwrap_or(0));
    let version_pair = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version_pair >= (7, 2) {
        finding("QEMU", State::Good, version, "")
    } else {
        let consequence =
            "machines cannot be joined before 7.2: only hosts as namespaces (kernel 7.1 or newer)";
        finding("QEMU", State::Note, version, consequence)
    }
}

fn acceleration(cache: &Cache) -> Finding {
    let slower = "machines are emulated: about ten times slower, and latencies are good for ratios only";
    if !Path::new("/dev/kvm").exists() {
        return finding("KVM", State::Note, "no /dev/kvm", slower);
    }
    match qemu::remembered(cache) {
        None => finding(
            "KVM",
            State::Good,
            "/dev/kvm is there; the next lab tries whether it works",
            "",
        ),
        Some(verdict) if verdict == "works" => finding("KVM", State::Good, "works (tried)", ""),
        Some(verdict) => finding("KVM", State::Note, &format!("tried: {verdict}"), slower),
    }
}

fn kernels(cache: &Cache) -> Vec<Finding> {
    let mut findings = Vec::new();
    for series in Series::ALL {
        findings.push(match kernel::locate_series(series, cache, Scrutiny::Sizes) {
            Ok(Some(kernel)) => finding(&format!("kernel {series}"), State::Good, &kernel.release, ""),
            Ok(None) => finding(
                &format!("kernel {series}"),
                State::Note,
                "not fetched",
                &format!("`cargo lab setup --kernel {series}` fetches it"),
            ),
            Err(e) => finding(
                &format!("kernel {series}"),
                State::Note,
                &format!("{e:#}"),
                "it is fetched anew",
            ),
        });
    }
    findings.push(match kernel::locate(&Choice::Host, cache) {
        Ok(kernel) => finding("kernel host", State::Good, &kernel.release, ""),
        Err(e) => finding(
            "kernel host",
            State::Note,
            &format!("{e:#}"),
            "--kernel host is not possible",
        ),
    });
    findings.push(match kernel::locate(&Choice::Natural, cache) {
        Ok(kernel) => finding(
            "kernel taken",
            State::Good,
            &format!("{} ({})", kernel.release, kernel.origin),
            "",
        ),
        Err(e) => finding(
            "kernel taken",
            State::Missing,
            &format!("{e:#}"),
            "no lab can boot by default",
        ),
    });
    findings
}

fn resources() -> Finding {
    let cpus = std::thread::available_parallelism().map_or(1, core::num::NonZero::get);
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = available
        .and_then(|v| v.split_whitespace().next()?.parse::<u64>().ok())
        .unwrap_or(0);
    let mib = kib / 1024;
    let detail = format!("{cpus} processors, {mib} MiB free");
    if cpus < 2 {
        finding(
            "machine",
            State::Note,
            &detail,
            "two processors at least: with one, timeouts are likely",
        )
    } else if mib < 3072 {
        finding(
            "machine",
            State::Note,
            &detail,
            "a lab of three machines takes 3 GiB",
        )
    } else {
        finding("machine", State::Good, &detail, "")
    }
}

fn own_devices() -> Finding {
    let names = std::fs::read_dir("/sys/class/infiniband").map(|dir| {
        dir.flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect::<Vec<_>>()
            .join(", ")
    });
    match names {
        Ok(names) if !names.is_empty() => finding("own RDMA devices", State::Good, &names, ""),
        _ => finding("own RDMA devices", State::Good, "none; a lab brings its own", ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_says_what_follows() {
        let diagnosis = diagnose().unwrap();
        for finding in &diagnosis.findings {
            assert_eq!(
                finding.state == State::Good,
                finding.consequence.is_empty(),
                "{finding:?}"
            );
        }
        let json: serde_json::Value = serde_json::to_value(&diagnosis).unwrap();
        let missing = diagnosis.findings.iter().any(|f| f.state == State::Missing);
        assert_eq!(
            json.get("ready").and_then(serde_json::Value::as_bool),
            Some(!missing)
        );
    }
}
