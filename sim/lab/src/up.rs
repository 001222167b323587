//! Bringing a lab up: for a scenario, and for `cargo lab up`, which keeps it up.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::ValueEnum as _;

use crate::cluster::{Cluster, Shape};
use crate::control::Open;
use crate::guests::{GuestCluster, Options};
use crate::kernel::Choice;
use crate::leash::LeashedFolder;
use crate::machine::qemu::Accelerator;
use crate::programs::{self, Rival};
use crate::scenario::{self, Folders, Lab, Profile, Programs, Request, Scenario};
use crate::setup;
use crate::steps::{say, step};
use crate::topology::Topology;

/// How hosts are made: for every command that boots a lab.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct HowArgs {
    /// Make hosts as namespaces in one machine, or as a machine each; default: what the kernel can
    #[arg(long, value_name = "SHAPE")]
    hosts_as: Option<HostsAs>,
    /// How processors are run; default: KVM where it really works, else emulation
    #[arg(long, value_name = "HOW")]
    accel: Option<Accelerator>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum HostsAs {
    Namespaces,
    Machines,
}

impl HowArgs {
    /// The same as arguments of another command.
    pub(crate) fn as_arguments(&self) -> Vec<String> {
        let mut arguments = Vec::new();
        let mut push = |name: &str, value: Option<clap::builder::PossibleValue>| {
            if let Some(value) = value {
                arguments.push(format!("--{name}={}", value.get_name()));
            }
        };
        push(
            "hosts-as",
            self.hosts_as.and_then(|value| value.to_possible_value()),
        );
        push("accel", self.accel.and_then(|value| value.to_possible_value()));
        arguments
    }
}

/// Arguments of `cargo lab up`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct UpArgs {
    /// Scenario whose hosts and links are made; default: three hosts, each pair on a subnet of its own
    scenario: Option<PathBuf>,
    /// Kernel: 6.1, 6.12, newest, host or the path of an image
    #[arg(long, value_name = "KERNEL")]
    kernel: Option<Choice>,
    #[command(flatten)]
    how: HowArgs,
}

/// Boots a lab and keeps it until interrupted.
///
/// # Errors
///
/// It cannot be booted.
pub(crate) fn run(args: &UpArgs) -> Result<core::convert::Infallible> {
    let (topology, kernel) = match &args.scenario {
        Some(path) => {
            let scenario = scenario::load(path)?;
            (scenario.topology, scenario.kernel)
        }
        None => (Topology::mesh(&["a", "b", "c"]), Choice::default()),
    };
    let kernel = args.kernel.clone().unwrap_or(kernel);
    let shared = LeashedFolder::new(tempfile::Builder::new().prefix("doorbell-lab-").tempdir()?.keep());
    let lab = boot(&topology, kernel, shared.path(), &args.how)?;
    for host in lab.hosts() {
        for port in &host.ports {
            say(format_args!(
                "{}: {} {}/{} to {} by {} (GID index {})",
                host.name, port.netdev, port.address, port.prefix, port.peer, port.device, port.gid_index
            ));
        }
    }
    say(format_args!("shared folder: {}", shared.path().display()));
    say("the lab is up: `cargo lab shell HOST` enters it, Ctrl-C ends it");
    // An interrupt ends this program, and with it the lab.
    loop {
        std::thread::park();
    }
}

/// Sets up what is missing, boots, and opens the door for `cargo lab shell`.
fn boot(topology: &Topology, kernel: Choice, shared: &Path, how: &HowArgs) -> Result<Open<GuestCluster>> {
    setup::ensure(&kernel, |_| false)?;
    let options = Options {
        kernel,
        shape: how.hosts_as.map(|hosts_as| match hosts_as {
            HostsAs::Namespaces => Shape::Namespaces,
            HostsAs::Machines => Shape::Machines,
        }),
        accelerator: how.accel,
        shared: shared.to_owned(),
    };
    let cluster = GuestCluster::boot(topology, &options)?;
    let folder = cluster.run_dir().to_owned();
    Open::new(cluster, &folder)
}

/// Real machines for scenarios, and our own programs built for them.
#[derive(Debug)]
pub(crate) struct RealLab {
    how: HowArgs,
    /// Folders of the programs built so far, by profile.
    programs: HashMap<Profile, PathBuf>,
    /// Rivals' programs that are built.
    rivals: BTreeMap<Rival, PathBuf>,
    /// Folder of the examples, once they are built.
    examples: Option<PathBuf>,
    /// Folder of the tests, once they are built.
    tests: Option<PathBuf>,
}

impl RealLab {
    /// Makes labs this way.
    pub(crate) fn new(how: HowArgs) -> Self {
        Self {
            how,
            programs: HashMap::new(),
            rivals: BTreeMap::new(),
            examples: None,
            tests: None,
        }
    }
}

impl Lab for RealLab {
    fn set_up(&mut self, scenario: &Scenario, kernel: &Choice) -> Result<()> {
        setup::ensure(kernel, |need| need.is_of(|file| scenario.mentions(file)))
    }

    fn programs(&mut self, wanted: Programs) -> Result<Folders> {
        // Once for all scenarios of one command: cargo takes seconds to find that there is nothing to do.
        if wanted.bin && !self.programs.contains_key(&wanted.profile) {
            let bin = step("building the programs", || programs::build(wanted.profile))?;
            self.programs.insert(wanted.profile, bin);
        }
        if wanted.examples && self.examples.is_none() {
            self.examples = Some(step("building the examples", programs::build_examples)?);
        }
        if wanted.tests && self.tests.is_none() {
            self.tests = Some(step(
                "building the tests that need a device",
                programs::build_tests,
            )?);
        }
        for rival in wanted.rivals {
            if let Entry::Vacant(place) = self.rivals.entry(rival) {
                let title = format!("building the program by {}", rival.name());
                place.insert(step(title, || programs::build_rival(rival))?);
            }
        }
        Ok(Folders {
            rivals: self.rivals.clone(),
            bin: self.programs.get(&wanted.profile).cloned().unwrap_or_default(),
            examples: self.examples.clone().unwrap_or_default(),
            tests: self.tests.clone().unwrap_or_default(),
        })
    }

    fn boot(&mut self, request: Request<'_>) -> Result<Box<dyn Cluster>> {
        Ok(Box::new(boot(
            request.topology,
            request.kernel.clone(),
            request.shared,
            &self.how,
        )?))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        how: HowArgs,
    }

    #[test]
    fn how_hosts_are_made_is_passed_on() {
        for given in [
            &[][..],
            &["--hosts-as=machines"],
            &["--hosts-as=namespaces", "--accel=tcg"],
        ] {
            let line = core::iter::once("command").chain(given.iter().copied());
            assert_eq!(Command::parse_from(line).how.as_arguments(), given);
        }
    }
}
