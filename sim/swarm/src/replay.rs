//! `cargo lab replay`: one seed or file run again, with its packets and moments kept.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use doorbell_sim::{Plan, pcap};

use crate::case::{Case, Scene};
use crate::generate::generate;
use crate::run::{Keep, run_caught};
use crate::seed::Seed;

/// Packets that are kept at most.
pub(crate) const FRAMES_MAX: usize = 200_000;

/// Lines of a diagram that are drawn without being asked for.
const LINES_MAX: usize = 150;

/// Arguments of `cargo lab replay`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ReplayArgs {
    /// A seed, as `long:17` of the profile long or `17` of the profile quick, or a file that was written when one failed
    #[arg(value_name = "SEED|FILE")]
    what: String,
    /// Replace the plan of the seed or file by the one in this file, as text
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// Write its packets to this file, as Wireshark reads them without two of its dissectors, which take many messages for
    /// their own and call them malformed: `tshark --disable-protocol rpcordma --disable-heuristic eth_over_ib -r FILE`
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Draw all that happened as a sequence diagram, and not the end of what failed
    #[arg(long)]
    diagram: bool,
    /// Write what happened to this file: a picture where it ends in .svg, else the diagram
    #[arg(long, value_name = "FILE")]
    timeline: Option<PathBuf>,
    /// Write the case itself to this file
    #[arg(long, value_name = "FILE")]
    case: Option<PathBuf>,
}

/// The case of a seed or a file.
pub(crate) fn load(what: &str) -> Result<Case> {
    match what.parse::<Seed>() {
        Ok(seed) => Ok(generate(seed)),
        Err(error) => {
            let text = fs::read_to_string(what).with_context(|| format!("{what} is no file, and {error}"))?;
            Case::parse(&text).with_context(|| format!("{what} is no case"))
        }
    }
}

/// The plan in a file, in one line.
fn plan_of(path: &Path) -> Result<String> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let plan: Plan = text
        .parse()
        .with_context(|| format!("{} is no plan", path.display()))?;
    Ok(plan.to_string())
}

/// The head of a diagram and its last lines.
fn ending(diagram: &str, lines_max: usize) -> String {
    let lines: Vec<&str> = diagram.lines().collect();
    // The summary line, and the names of the columns.
    let (head, rest) = lines.split_at(lines.len().min(2));
    let hidden = rest.len().saturating_sub(lines_max);
    let told = format!("  ... {hidden} lines before, which --diagram draws");
    let told = (hidden > 0).then_some(told.as_str());
    let shown = head
        .iter()
        .copied()
        .chain(told)
        .chain(rest.iter().skip(hidden).copied());
    shown.flat_map(|line| [line, "\n"]).collect()
}

/// Whether the oracles agree.
pub(crate) fn run(args: &ReplayArgs) -> Result<bool> {
    let mut case = load(&args.what)?;
    if let Some(path) = &args.plan {
        case.plan = plan_of(path)?;
    }
    let write = |path: &PathBuf, bytes: &[u8]| {
        fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
    };
    if let Some(path) = &args.case {
        write(path, case.to_text()?.as_bytes())?;
    }
    let keep = Keep {
        moments: true,
        frames: if args.pcap.is_some() { FRAMES_MAX } else { 0 },
        names: true,
    };
    let outcome = run_caught(&case, keep);
    if let Some(path) = &args.pcap {
        write(path, &pcap(&outcome.frames))?;
        println!(
            "{} packets in {file}; to read them: tshark --disable-protocol rpcordma --disable-heuristic eth_over_ib -r {file}",
            outcome.frames.len(),
            file = path.display(),
        );
    }
    if let Some(path) = &args.timeline {
        let is_picture = path.extension().is_some_and(|extension| extension == "svg");
        let timeline = &outcome.timeline;
        let text = if is_picture {
            timeline.to_svg()
        } else {
            timeline.to_string()
        };
        write(path, text.as_bytes())?;
        println!("what happened in {}", path.display());
    }
    let size = match &case.scene {
        Some(Scene::Mesh(mesh)) => format!("{} members, {} steps", mesh.members.len(), mesh.steps.len()),
        _ => format!(
            "{} hosts, {} lines, {} operations",
            case.hosts.len(),
            case.lines.len(),
            case.operations.len()
        ),
    };
    println!(
        "{size}; plan: {}",
        if case.plan.is_empty() {
            "nothing goes wrong"
        } else {
            &case.plan
        },
    );
    println!(
        "{} messages and {} packets in {:.6} s of virtual time; trace {:016x}",
        outcome.messages,
        outcome.tally.packets.sent,
        outcome.virtual_ns as f64 / 1e9,
        outcome.hash,
    );
    if args.diagram || outcome.verdict.is_err() {
        let lines_max = if args.diagram { usize::MAX } else { LINES_MAX };
        print!("{}", ending(&outcome.timeline.to_string(), lines_max));
    }
    match &outcome.verdict {
        Ok(()) => println!("passed"),
        Err(failure) => println!("FAILED: {failure}"),
    }
    Ok(outcome.verdict.is_ok())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{ending, plan_of};

    #[test]
    fn a_long_diagram_keeps_its_head_and_its_end() {
        assert_eq!(ending("what\nwhose\n1\n2\n3\n", 3), "what\nwhose\n1\n2\n3\n");
        let told = "  ... 2 lines before, which --diagram draws";
        assert_eq!(
            ending("what\nwhose\n1\n2\n3\n", 1),
            format!("what\nwhose\n{told}\n3\n")
        );
    }

    #[test]
    fn a_plan_of_several_lines_is_taken_and_what_is_none_refused() {
        let path = std::env::temp_dir().join(format!("doorbell-plan-{}", std::process::id()));
        let write = |text: &str| fs::write(&path, text).unwrap();
        write("# a cable\nat 3ms link h0-h1 down for 1s\n\ndrop 2nd ack of h0->any # and this\n");
        let plan = plan_of(&path).unwrap();
        assert_eq!(plan, "at 3ms link h0-h1 down for 1s; drop 2nd ack of h0->any");
        write("at 3ms dance");
        assert!(plan_of(&path).is_err());
        fs::remove_file(&path).unwrap();
        assert!(plan_of(&path).is_err());
    }
}
