//! `doorbell broker`: a verbs program without `/dev/infiniband` reaches the devices that a policy allows.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use doorbell_broker::{End, Network, Policy, Program, Report, run as supervise};

use crate::report::Failure;

/// Bytes of a policy at most.
const POLICY_BYTES_MAX: u64 = 1 << 20;

/// Run a verbs program in a sandbox, with the RDMA devices that a policy allows
///
/// The program needs no change. It runs without privileges in user and mount namespaces of its own, in which /dev/infiniband is
/// empty. The broker opens the devices that the policy allows, and hands the descriptors to the program; for the program no other
/// device exists. The broker also rings Soft-RoCE for it: the kernel refuses that to a process that did not open the device itself.
///
/// The policy is a TOML file with `devices`, a list of names in which a * may stand at the end, and `contexts`, the most
/// contexts open at once. Options override it.
///
/// The broker ends with the code of the program, or 128 and the number of its signal, when no process of the sandbox is left.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    doorbell broker --device rxe0 -- ibv_devinfo\n  \
    doorbell broker --policy sandbox.toml -- ibv_rc_pingpong -d rxe0 -g 1\n  \
    doorbell broker --device 'mlx5_*' --contexts 2 --network none -- ibv_devices")]
pub(crate) struct Arguments {
    /// The file with the policy
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,

    /// A device that the program may reach; a * at the end stands for anything. May be given many times
    #[arg(short, long = "device", value_name = "NAME")]
    devices: Vec<String>,

    /// The most contexts open at once, 1 to 512 [default: 8]
    #[arg(long, value_name = "N")]
    contexts: Option<u32>,

    /// The network of the program
    #[arg(long, value_enum, default_value_t = Net::Host)]
    network: Net,

    /// Leave namespaces and privileges to the program, which may be a container runtime
    #[arg(long, conflicts_with = "network")]
    no_namespaces: bool,

    /// At the end, print counts on standard error
    #[arg(long)]
    counts: bool,

    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// The network of the program.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Net {
    /// The network of the broker
    Host,
    /// A network namespace of its own, without a network
    None,
}

/// Runs the program, and ends this process as the program ended.
///
/// # Errors
/// The policy is invalid, or the program does not start.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let mut policy = match &arguments.policy {
        Some(path) => read(path).map_err(|error| format!("{}: {error}", path.display()))?,
        None => Policy::default(),
    };
    if !arguments.devices.is_empty() {
        policy.devices.clone_from(&arguments.devices);
    }
    policy.contexts = arguments.contexts.unwrap_or(policy.contexts);
    let network = match arguments.network {
        Net::Host => Network::Host,
        Net::None => Network::None,
    };
    let mut words = arguments.program.iter().cloned();
    let program = Program {
        program: words.next().unwrap_or_default(),
        arguments: words.collect(),
        namespaces: (!arguments.no_namespaces).then_some(network),
    };
    let Report { end, counts } = supervise(&policy, &program)?;
    if arguments.counts {
        eprintln!(
            "doorbell: contexts opened: {}, opens refused: {}, nodes found: {}, doorbells: {}, calls left to the kernel: {}",
            counts.opened, counts.refused, counts.found, counts.doorbells, counts.native
        );
    }
    match end {
        End::Exited(0) => Ok(()),
        End::Exited(code) => std::process::exit(code),
        End::Killed(signal) => std::process::exit(signal.saturating_add(128)),
    }
}

fn read(path: &Path) -> Result<Policy, Failure> {
    let mut text = String::new();
    File::open(path)?
        .take(POLICY_BYTES_MAX.saturating_add(1))
        .read_to_string(&mut text)?;
    // A part of a policy may be another policy.
    if text.len() as u64 > POLICY_BYTES_MAX {
        return Err(format!(
            "{}: a policy has {POLICY_BYTES_MAX} bytes at most",
            path.display()
        )
        .into());
    }
    Ok(Policy::parse(&text)?)
}
