//! `doorbell broker`: runs a verbs program or containers without access to `/dev/infiniband`, and gives them the devices that a policy
//! allows.

use std::ffi::OsString;
use std::io::{Write as _, stderr};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use doorbell::Rdma;
use doorbell_broker::{
    Counts, End, Event, Listening, Network, Policy, PolicyError, Profile, Program, Report, container_profile,
    listen, run as supervise, write_topology,
};
use doorbell_operation::Topology;

use crate::log;
use crate::report::Failure;
use crate::text_file;

/// Maximum length of a config.json or profile to merge with, many times that of any runtime.
const PROFILE_BYTES_MAX: u64 = 16 << 20;

/// Run a verbs program in a sandbox, with the RDMA devices that a policy allows
///
/// The program needs no change. It runs without privileges in its own user and mount namespaces, in which /dev/infiniband is empty.
/// The broker opens the devices that the policy allows, and passes the descriptors to the program, which can use no other devices. The
/// broker also rings the doorbells of Soft-RoCE: the kernel accepts them only from a process that opened the device itself.
///
/// The policy is a TOML file with `devices`, a list of names that may end in *, and `contexts`, the maximum number of open
/// contexts. Options override it.
///
/// The broker exits when no process of the sandbox is left, with the exit code of the program, or 128 plus the number of its
/// signal.
///
/// With --listen it serves containers instead. Their runtimes (crun, runc) connect to the socket that config.json names as
/// linux.seccomp.listenerPath. --oci-config prints that part of config.json.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    doorbell broker --device rxe0 -- ibv_devinfo\n  \
    doorbell broker --policy sandbox.toml -- ibv_rc_pingpong -d rxe0 -g 1\n  \
    doorbell broker --device 'mlx5_*' --contexts 2 --network none -- ibv_devices\n  \
    doorbell broker --listen /run/doorbell-broker.sock --policy policies/\n  \
    doorbell broker --listen /run/doorbell-broker.sock --policy sandbox.toml --oci-config")]
pub(crate) struct Arguments {
    /// The policy file. With --listen it may be a folder with files NAME.toml, which listenerMetadata selects, and default.toml
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,

    /// A device that the program may use; a * at the end matches any text. May be given many times
    #[arg(short, long = "device", value_name = "NAME")]
    devices: Vec<String>,

    /// The maximum number of open contexts, 1 to 512 [default: 8]
    #[arg(long, value_name = "N")]
    contexts: Option<u32>,

    /// A folder in which the program finds the description of its devices, in the layout of sysfs
    #[arg(long, value_name = "FOLDER")]
    topology: Option<PathBuf>,

    /// The network of the program
    #[arg(long, value_enum, default_value_t = Net::Host)]
    network: Net,

    /// Leave namespaces and privileges to the program, which may be a container runtime
    #[arg(long, conflicts_with = "network")]
    no_namespaces: bool,

    /// Print counts to standard error at the end
    #[arg(long)]
    counts: bool,

    /// Serve container runtimes at this socket, until SIGTERM or SIGINT
    #[arg(long, value_name = "SOCKET", requires = "policy",
        conflicts_with_all = ["program", "devices", "contexts", "topology", "network", "no_namespaces", "write_topology"])]
    listen: Option<PathBuf>,

    /// With --listen: the maximum number of containers at a time
    #[arg(long, value_name = "N", default_value_t = 64, requires = "listen")]
    containers: usize,

    /// With --listen: print the part of config.json that a container needs, and exit
    #[arg(long, requires = "listen")]
    oci_config: bool,

    /// With --oci-config: print this config.json with that part in it
    #[arg(long, value_name = "FILE", requires = "oci_config")]
    merge: Option<PathBuf>,

    /// With --oci-config: the listenerMetadata, which is the name of a policy in the folder
    #[arg(long, value_name = "NAME", requires = "oci_config")]
    metadata: Option<String>,

    /// With --oci-config: the folder on the host that --write-topology made, to be mounted at the `topology` of the policy
    #[arg(long, value_name = "FOLDER", requires = "oci_config")]
    topology_source: Option<PathBuf>,

    /// With --oci-config: do not trap doorbells of Soft-RoCE. runc refuses profiles that do, and cards do not need it
    #[arg(long, requires = "oci_config")]
    without_doorbells: bool,

    /// Write the description of the allowed devices to this new folder, and exit
    #[arg(long, value_name = "FOLDER", conflicts_with = "program")]
    write_topology: Option<PathBuf>,

    /// The program and its arguments
    #[arg(last = true, required_unless_present_any = ["listen", "write_topology"], value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// The network of the program.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Net {
    /// The network of the broker
    Host,
    /// A separate network namespace, without a network
    None,
}

/// Runs the program, and exits as the program did; or serves containers.
///
/// # Errors
/// The policy is invalid, the program does not start, or the socket cannot be created.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    if let (Some(socket), Some(policies)) = (&arguments.listen, &arguments.policy) {
        return if arguments.oci_config {
            print_profile(arguments, socket, policies)
        } else {
            serve(arguments, socket, policies)
        };
    }
    let policy = policy(arguments)?;
    if let Some(folder) = &arguments.write_topology {
        return Ok(write_topology(&policy, folder, &snapshot(&policy)?)?);
    }
    let network = match arguments.network {
        Net::Host => Network::Host,
        Net::None => Network::None,
    };
    let snapshot = match policy.topology {
        Some(_) => snapshot(&policy)?,
        None => Vec::new(),
    };
    let mut words = arguments.program.iter().cloned();
    let program = Program {
        program: words.next().unwrap_or_default(),
        arguments: words.collect(),
        namespaces: (!arguments.no_namespaces).then_some(network),
        snapshot,
    };
    let Report { end, counts } = supervise(&policy, &program)?;
    if arguments.counts {
        let _ = writeln!(stderr(), "doorbell: {}", text_of(&counts));
    }
    match end {
        End::Exited(0) => Ok(()),
        End::Exited(code) => std::process::exit(code),
        End::Killed(signal) => std::process::exit(signal.saturating_add(128)),
    }
}

/// The policy of the file, with the options applied, after validation.
fn policy(arguments: &Arguments) -> Result<Policy, Failure> {
    let mut policy = match &arguments.policy {
        Some(path) => Policy::read(path)?,
        None => Policy::default(),
    };
    if !arguments.devices.is_empty() {
        policy.devices.clone_from(&arguments.devices);
    }
    policy.contexts = arguments.contexts.unwrap_or(policy.contexts);
    policy.topology = arguments.topology.clone().or(policy.topology);
    match policy.check() {
        // This happens only without a file: a policy from a file always has a device.
        Err(error @ PolicyError::NoDevice) => Err(format!("{error}, or by --device").into()),
        checked => Ok(checked.map(|()| policy)?),
    }
}

/// The document of `doorbell topo --save`, restricted to the devices that a policy allows.
fn snapshot(policy: &Policy) -> Result<Vec<u8>, Failure> {
    let here = Topology::of_this_host(&Rdma::load()?)?.of_devices(|device| policy.allows(device));
    let mut text = here.to_json()?;
    text.push('\n');
    Ok(text.into_bytes())
}

fn print_profile(arguments: &Arguments, socket: &Path, policies: &Path) -> Result<(), Failure> {
    let name = arguments.metadata.as_deref();
    // Chosen as the listener does, so that the listener will not refuse the container.
    let policy = Policy::of_container(policies, name.unwrap_or_default())?;
    let mut profile = Profile::new(socket);
    profile.metadata = name;
    profile.has_doorbells = !arguments.without_doorbells;
    profile.topology = arguments.topology_source.as_deref();
    let base = match &arguments.merge {
        Some(path) => {
            let read = text_file::read(path, PROFILE_BYTES_MAX);
            Some(read.map_err(|error| format!("{}: {error}", path.display()))?)
        }
        None => None,
    };
    let text = container_profile(&profile, &policy, base.as_deref())?;
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}

/// Serves containers until a signal ends it.
fn serve(arguments: &Arguments, socket: &Path, policies: &Path) -> Result<(), Failure> {
    let listening = Listening {
        socket: socket.to_owned(),
        policies: policies.to_owned(),
        containers: arguments.containers,
    };
    let counts = arguments.counts;
    // Lines are written by a separate thread, so a closed or unread standard error blocks no container.
    let say = |text: String| log::write_line(&format!("doorbell: {text}"));
    let ready = || say(format!("serves container runtimes at {}", socket.display()));
    Ok(listen(&listening, ready, move |event| match event {
        Event::Supervised { container, policy } => {
            say(format!(
                "container {container:?} is supervised by policy {policy}"
            ));
        }
        Event::Ended {
            container,
            counts: counted,
        } => {
            let counted = if counts {
                format!("; {}", text_of(&counted))
            } else {
                String::new()
            };
            say(format!("container {container:?} ended{counted}"));
        }
        Event::Refused(reason) => say(format!("refused: {reason}")),
        _ => {}
    })?)
}

fn text_of(counts: &Counts) -> String {
    format!(
        "contexts opened: {}, opens refused: {}, nodes found: {}, doorbells: {}, calls left to the kernel: {}",
        counts.opened, counts.refused, counts.found, counts.doorbells, counts.native
    )
}
