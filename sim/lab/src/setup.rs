//! `cargo lab setup`: installs the tools that are missing, but those for one comparison alone, and fetches kernels.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};

use crate::cache::Cache;
use crate::kernel::{self, Choice, Kernel, Series, archive};
use crate::steps::{say, step};
use crate::tool;

/// Something the lab runs, and where it comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    /// Program or path to look for.
    pub(crate) file: &'static str,
    /// Other programs of the same package that a scenario may use.
    beside: &'static [&'static str],
    /// The Debian package it is in.
    pub(crate) package: &'static str,
    /// Feature that does not work without it.
    pub(crate) without: &'static str,
    /// Whether a lab cannot boot without it.
    pub(crate) essential: bool,
    /// Whether it is installed for what asks for it alone: it brings much else.
    pub(crate) on_demand: bool,
}

const fn need(file: &'static str, package: &'static str, essential: bool, without: &'static str) -> Need {
    Need {
        file,
        beside: &[],
        package,
        without,
        essential,
        on_demand: false,
    }
}

/// Makes a need that is installed for one row of the benchmarks alone.
const fn on_demand(file: &'static str, package: &'static str, without: &'static str) -> Need {
    Need {
        on_demand: true,
        ..need(file, package, false, without)
    }
}

/// The rest of perftest.
const PERFTEST: [&str; 7] = [
    "ib_send_bw",
    "ib_write_lat",
    "ib_write_bw",
    "ib_read_lat",
    "ib_read_bw",
    "ib_atomic_lat",
    "ib_atomic_bw",
];

/// All of them.
pub(crate) const NEEDS: [Need; 22] = [
    need(
        "qemu-system-x86_64",
        "qemu-system-x86",
        true,
        "no machine can run",
    ),
    need(
        "/usr/lib/x86_64-linux-gnu/libibverbs.so.1",
        "libibverbs1",
        true,
        "no program can use RDMA",
    ),
    need(
        "/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so|/usr/lib/x86_64-linux-gnu/libibverbs",
        "ibverbs-providers",
        true,
        "no program can use Soft-RoCE",
    ),
    need("ip", "iproute2", true, "no link can be made"),
    need("rdma", "iproute2", true, "no RDMA device can be made"),
    need("tc", "iproute2", true, "no link can be shaped"),
    need("setpriv", "util-linux", true, "machines could outlive the lab"),
    need("depmod", "kmod", true, "no kernel can be fetched"),
    need("xz", "xz-utils", true, "no kernel can be unpacked"),
    need("zstd", "zstd", true, "no kernel can be unpacked"),
    need("dpkg-deb", "dpkg", true, "no kernel can be unpacked"),
    need(
        "ibv_rc_pingpong",
        "ibverbs-utils",
        false,
        "the stock peer is not there to compare with",
    ),
    Need {
        beside: &PERFTEST,
        ..need(
            "ib_send_lat",
            "perftest",
            false,
            "perftest is not there to compare with",
        )
    },
    need(
        "crun",
        "crun",
        false,
        "the broker is not tested with a container runtime",
    ),
    on_demand("mpirun", "openmpi-bin", "Open MPI is not there to compare with"),
    // The compiler of `openmpi-bin` is there without it, and finds no header.
    on_demand(
        "/usr/lib/x86_64-linux-gnu/openmpi/include/mpi.h",
        "libopenmpi-dev",
        "the program by Open MPI cannot be built",
    ),
    need(
        "strace",
        "strace",
        false,
        "system calls of a step cannot be counted",
    ),
    need(
        "valgrind",
        "valgrind",
        false,
        "instructions of a step cannot be counted",
    ),
    need("c++", "g++", false, "input from peers cannot be fuzzed"),
    need(
        "tshark",
        "tshark",
        false,
        "no capture of the simulated fabric is read by Wireshark's dissector",
    ),
    need(
        "/usr/include/infiniband/verbs.h",
        "libibverbs-dev",
        false,
        "the bindings cannot be compared with the installed headers",
    ),
    need(
        "cc",
        "gcc",
        false,
        "the bindings cannot be compared with any headers",
    ),
];

impl Need {
    /// Whether something uses it that mentions such words.
    pub(crate) fn is_of(&self, mentions: impl Fn(&str) -> bool) -> bool {
        mentions(self.file) || self.beside.iter().any(|file| mentions(file))
    }

    /// Whether it is here.
    pub(crate) fn is_met(&self) -> bool {
        self.file.split('|').any(|file| {
            if file.starts_with('/') {
                std::path::Path::new(file).exists()
            } else {
                tool::find(file).is_some()
            }
        })
    }
}

/// Arguments of `cargo lab setup`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SetupArgs {
    /// Kernel to fetch, several times for several: 6.1, 6.12, newest; default: the one a lab takes by itself
    #[arg(long, value_name = "KERNEL")]
    kernel: Vec<Choice>,
    /// Ask the archive for a newer kernel than the one in the cache
    #[arg(long)]
    refresh: bool,
}

/// `cargo lab setup`.
///
/// # Errors
///
/// A missing part cannot be installed or fetched.
pub(crate) fn run(args: &SetupArgs) -> Result<()> {
    let started = Instant::now();
    install_missing(|need| !need.on_demand)?;
    let cache = Cache::open()?;
    let natural = [Choice::Natural];
    let kernels = if args.kernel.is_empty() {
        natural.as_slice()
    } else {
        &args.kernel
    };
    for choice in kernels {
        let kernel = kernel(choice, &cache, args.refresh)?;
        say(format_args!(
            "kernel {} is ready ({})",
            kernel.release, kernel.origin
        ));
    }
    say(format_args!(
        "set up in {:.1} s; `cargo lab demo` is next",
        started.elapsed().as_secs_f64()
    ));
    Ok(())
}

/// Sets up what one lab needs, and what it `wants` beside that, if it is not there: silent when it is.
///
/// # Errors
///
/// A missing part cannot be installed or fetched.
pub(crate) fn ensure(choice: &Choice, wants: impl Fn(&Need) -> bool) -> Result<()> {
    install_missing(|need| need.essential || wants(need))?;
    let cache = Cache::open()?;
    if kernel::locate(choice, &cache).is_err() {
        kernel(choice, &cache, false)?;
    }
    Ok(())
}

/// A kernel that is here, or is fetched.
fn kernel(choice: &Choice, cache: &Cache, refresh: bool) -> Result<Kernel> {
    match (choice, kernel::locate(&Choice::Natural, cache)) {
        (Choice::Series(series), _) => archive::fetch(*series, cache, refresh),
        (Choice::Natural, Ok(own)) if own.image.starts_with("/boot") => Ok(own),
        (Choice::Natural, _) => archive::fetch(Series::Newest, cache, refresh),
        (Choice::Host | Choice::Path(_), _) => kernel::locate(choice, cache),
    }
}

/// Installs what is `wanted` and not here.
///
/// # Errors
///
/// It cannot be installed; without root, the line to run.
pub(crate) fn install_missing(wanted: impl Fn(&Need) -> bool) -> Result<()> {
    let missing: Vec<&Need> = NEEDS
        .iter()
        .filter(|need| wanted(need) && !need.is_met())
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let mut packages: Vec<&str> = missing.iter().map(|need| need.package).collect();
    packages.sort_unstable();
    packages.dedup();
    let packages = packages.join(" ");
    if tool::find("apt-get").is_none() {
        let files = missing
            .iter()
            .map(|need| need.file)
            .collect::<Vec<_>>()
            .join(", ");
        bail!(
            "missing: {files}. Install them by this system's own means (Debian calls the packages {packages})"
        );
    }
    let script = format!(
        "export DEBIAN_FRONTEND=noninteractive; apt-get -q -o DPkg::Lock::Timeout=300 update && \
         apt-get -q -y -o DPkg::Lock::Timeout=300 install --no-install-recommends {packages}"
    );
    let mut command = if rustix::process::geteuid().is_root() {
        Command::new("sh")
    } else if tool::output("sudo", &["-n", "true"]).is_ok() {
        let mut sudo = Command::new("sudo");
        sudo.args(["-n", "sh"]);
        sudo
    } else {
        bail!(
            "root has to install {packages}. Run this, then try again:\n\n  \
             sudo sh -c 'apt-get update && apt-get install -y --no-install-recommends {packages}'\n"
        );
    };
    command.args(["-c", &script]);
    step(format_args!("installing {packages}"), || {
        tool::output_of(&mut command)
            .map(drop)
            .context("the packages cannot be installed")
    })?;
    let still: Vec<&str> = missing
        .iter()
        .filter(|need| !need.is_met())
        .map(|need| need.file)
        .collect();
    if !still.is_empty() {
        bail!("installed {packages}, but still missing: {}", still.join(", "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_need_is_a_program_or_a_path() {
        assert!(need("sh", "dash", true, "").is_met());
        assert!(need("/no/such|/", "base-files", true, "").is_met());
        assert!(!need("/no/such/file", "x", true, "").is_met());
        assert!(!need("no-such-program", "x", true, "").is_met());
    }

    #[test]
    fn a_scenario_that_uses_any_program_of_perftest_needs_it() {
        let of = |word: &'static str| {
            let needed = NEEDS.iter().filter(|need| need.is_of(|file| file == word));
            needed.map(|need| need.package).collect::<Vec<_>>()
        };
        for word in [
            "ib_send_lat",
            "ib_send_bw",
            "ib_write_bw",
            "ib_read_lat",
            "ib_atomic_bw",
        ] {
            assert_eq!(of(word), ["perftest"], "{word}");
        }
        assert!(of("ib_send").is_empty());
    }
}
