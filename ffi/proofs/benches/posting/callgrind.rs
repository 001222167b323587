//! Runs this program under callgrind and reads what it wrote.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::Failure;

/// Instructions, by where they lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// In the fake's shared object.
    pub(crate) provider: u64,
    /// Everywhere else.
    pub(crate) ours: u64,
}

/// Counts what happens in functions named `measured_...` of this program, run with these arguments.
pub(crate) fn count(arguments: &[&str], file: &Path) -> Result<Counts, Failure> {
    let program = std::env::current_exe().map_err(Failure::new)?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--toggle-collect=*::measured_*"])
        .arg(format!("--callgrind-out-file={}", file.display()))
        .arg(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| Failure(format!("valgrind (package valgrind) does not start: {error}")))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(Failure(format!("valgrind: {}: {said}", output.status)));
    }
    let text = std::fs::read_to_string(file).map_err(Failure::new)?;
    let counts = read(&text);
    if counts.ours == 0 {
        return Err(Failure::new(
            "callgrind counted nothing: is there no function measured_...?",
        ));
    }
    let sum = counts.ours.saturating_add(counts.provider);
    if total(&text) != Some(sum) {
        return Err(Failure(format!(
            "{sum} instructions were read of {:?}",
            total(&text)
        )));
    }
    Ok(counts)
}

/// The sum as callgrind itself gives it.
fn total(text: &str) -> Option<u64> {
    text.lines()
        .rev()
        .find_map(|line| line.strip_prefix("totals: "))?
        .trim()
        .parse()
        .ok()
}

/// Sums the instructions of the provider, with all that it calls, and the rest.
///
/// Source: Callgrind Format Specification (valgrind manual, chapter 6.3). `ob=` names the object of the costs
/// that follow, and `cob=` that of a callee, where it is another. An object that was once named by `(number) name` may be
/// named by its number. The line after `calls=` is the cost of a callee with all it calls, which is listed there already.
fn read(text: &str) -> Counts {
    let (mut total, mut provider) = (0_u64, 0_u64);
    let mut providers = Vec::new();
    let (mut in_provider, mut is_callee) = (false, false);
    let mut callee_in_provider = None;
    for line in text.lines() {
        let named = line.strip_prefix("ob=").or_else(|| line.strip_prefix("cob="));
        if let Some(object) = named {
            let (number, name) = object.split_once(' ').unwrap_or((object, ""));
            if name.contains("doorbell_fake") {
                providers.push(number.to_owned());
            }
            let is_provider = providers.iter().any(|provider| provider == number);
            if line.starts_with("ob=") {
                in_provider = is_provider;
            } else {
                callee_in_provider = Some(is_provider);
            }
        } else if line.starts_with("calls=") {
            is_callee = true;
        } else if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) {
            let cost = line
                .split(' ')
                .nth(1)
                .and_then(|cost| cost.parse::<u64>().ok())
                .unwrap_or(0);
            if core::mem::take(&mut is_callee) {
                if !in_provider && callee_in_provider.take().unwrap_or(in_provider) {
                    provider = provider.saturating_add(cost);
                }
                callee_in_provider = None;
                continue;
            }
            total = total.saturating_add(cost);
        }
    }
    Counts {
        provider,
        ours: total.saturating_sub(provider),
    }
}
