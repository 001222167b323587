//! `doorbell serve`: the node daemon, by which the processes of a host exchange messages.

use core::net::SocketAddr;
use core::time::Duration;
use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SendError, channel, sync_channel};
use std::thread;

use doorbell::link::LinkConfig;
use doorbell::trust::KeyRingError;
use doorbell::{Handle, Notify, RailFilter, Rdma, WorkerConfig, within};
use doorbell_daemon::{
    JobKeys, NodeNumber, Peers as Nodes, RouterCounts, RouterLimits, Server, ServerConfig,
};
use doorbell_operation::{LogLevel, SettingValues};
use serde::Serialize;
use signal_hook::consts::signal::{SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

use crate::address::anywhere;
use crate::board::{Board, NOTE_EVERY};
use crate::configured::Configured;
use crate::handle_file;
use crate::key_file::KeyFile;
use crate::log;
use crate::opened;
use crate::peers::Peers;
use crate::report::{Failure, print};
use handles::NodeHandles;

mod handles;
mod metrics;
mod ready;

/// The default path of the socket.
pub(crate) const SOCKET: &str = "/run/doorbell/socket";

/// Interval at which missing handle files of other nodes are looked for, and other attempts are repeated.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Interval at which existing handle files are read again: a daemon that restarts leaves a new handle.
const READ_AGAIN_EVERY: Duration = Duration::from_millis(250);

/// Time limit of a starting daemon for the first read of all handle files.
const FIRST_READ_WITHIN: Duration = Duration::from_secs(1);

/// Time for which the daemon retries to get the addresses of the previous daemon after that one has ended.
const TAKEOVER_WITHIN: Duration = Duration::from_secs(1);

/// Interval of the main loop if nothing else is due.
const A_WHILE: Duration = Duration::from_secs(3600);

/// Run the node daemon: processes of this host exchange messages through it
///
/// A process attaches over the socket, with the package doorbell-daemon, and gets an endpoint: its number in a job. Processes of
/// one job have one user and one key, which its first process sets, or a file (--job-keys). Messages between processes of this host need no system call while both sides poll. With
/// --peer they also go to processes of other nodes, over a few links that all processes share; no process opens a device. A process
/// that breaks the protocol is disconnected, without effect on others.
///
/// A process may have an arena, and grant ranges of it to others for writes, reads and atomics.
///
/// If the daemon dies, or another daemon takes over with --replace, its processes attach to the next daemon at the same socket
/// within five seconds. They keep their names and their memory.
///
/// SIGINT or SIGTERM ends the daemon, which then reports its counts.
#[derive(clap::Args, Clone, Debug)]
#[command(
    group(clap::ArgGroup::new("others").args(["nodes", "listen", "handle_file"]).multiple(true)),
    group(clap::ArgGroup::new("for_others").args(["rails", "links", "key_file", "unauthenticated"]).multiple(true).requires("others")),
    after_help = "Examples:\n  \
    doorbell serve --socket $XDG_RUNTIME_DIR/doorbell.socket\n  \
    doorbell serve --node 1 --handle-file /shared/1 --peer 2=@/shared/2 --key-file keys\n  \
    doorbell serve --mode 666 --clients 64 --json\n  \
    doorbell serve --mode 666 --job-keys /etc/doorbell/job-keys\n  \
    doorbell serve --socket $XDG_RUNTIME_DIR/doorbell.socket --replace"
)]
pub(crate) struct Arguments {
    /// The path of the socket; its folder is created if it is missing
    #[arg(long, value_name = "PATH", default_value = SOCKET)]
    socket: PathBuf,

    /// The mode of the socket's file, in octal: which users may attach
    #[arg(long, value_name = "MODE", default_value = "600", value_parser = parse_mode)]
    mode: u32,

    /// The number of this node
    #[arg(long, value_name = "N", default_value_t = 0)]
    node: u32,

    /// Take over from the daemon at the socket, if one of the same user runs: that daemon ends, and its processes attach to this
    /// one
    #[arg(long)]
    replace: bool,

    /// Another node and the handle that its daemon printed, or @FILE to read the handle from FILE, once it is there and whenever it
    /// changes. May be given many times
    #[arg(long = "peer", value_name = "N=HANDLE", value_parser = parse_peer)]
    nodes: Vec<(u32, String)>,

    /// The address to listen at for other nodes [default with --peer or --handle-file: any port of every address]
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<SocketAddr>,

    /// Also write the handle for other nodes to FILE
    #[arg(long, value_name = "FILE")]
    handle_file: Option<PathBuf>,

    /// The number of links to each node; each is made when it is first needed
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=16))]
    links: u32,

    /// Let processes attach only to the jobs in FILE, with their keys
    ///
    /// `doorbell keygen FILE --job JOB` adds a line. Each line is JOB:KEY, with 32 hexadecimal digits, and then the IDs of the users
    /// that may attach, if not all: 1000,1001. A line * admits other jobs, too. The file must belong to its owner alone (mode 0600). A
    /// changed file applies to new processes within two seconds. If it is invalid, the previous keys stay. Without this option the
    /// first process of a job sets its key
    #[arg(long, value_name = "FILE")]
    job_keys: Option<PathBuf>,

    /// The maximum number of processes
    #[arg(long, value_name = "N", default_value_t = RouterLimits::default().clients_max)]
    clients: usize,

    /// The maximum number of processes of one user
    #[arg(long, value_name = "N", default_value_t = RouterLimits::default().clients_of_user_max)]
    clients_of_user: usize,

    /// The maximum number of processes of one job
    #[arg(long, value_name = "N", default_value_t = RouterLimits::default().clients_of_job_max)]
    clients_of_job: usize,

    /// The maximum bytes of the rings, cells and arenas of one user's processes
    #[arg(long, value_name = "N", default_value_t = RouterLimits::default().bytes_of_user_max)]
    bytes_of_user: u64,

    /// The maximum bytes of the rings, cells and arenas of one job's processes
    #[arg(long, value_name = "N", default_value_t = RouterLimits::default().bytes_of_job_max)]
    bytes_of_job: u64,

    /// The rails to use, as in `mlx5_*,^mlx5_3,netdev=ens*,10.1.0.0/16`: see docs/rails.md
    #[arg(long, value_name = "RULES")]
    rails: Option<RailFilter>,

    /// Serve metrics at http://ADDR:PORT/metrics, in the Prometheus format. They have no series of a user or a job
    #[arg(long, value_name = "ADDR:PORT")]
    metrics: Option<SocketAddr>,

    /// Also export the processes, memory and traffic of each job, with its user. Everyone who reaches the port of the metrics can
    /// read them
    #[arg(long, requires = "metrics")]
    metrics_jobs: bool,

    /// Log to standard error: off, error, warn, info, debug or trace; each level includes those before it [default: off]
    #[arg(long, value_name = "LEVEL")]
    log: Option<String>,

    /// Print one JSON document at the end
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    peers: Peers,
}

/// Counts of a daemon in reports.
#[derive(Debug, Serialize)]
pub(crate) struct Counts {
    /// Processes that attached.
    attached: u64,
    /// Processes that violated the protocol and were cut off.
    cut_off: u64,
    /// Messages between processes of this host.
    pub(crate) local_messages: u64,
    /// Messages to other nodes.
    pub(crate) sent_messages: u64,
    /// Messages from other nodes.
    pub(crate) received_messages: u64,
    /// Messages and operations that were reported as undelivered.
    pub(crate) undelivered_messages: u64,
    /// Operations on arenas of this host.
    pub(crate) arena_operations: u64,
}

impl Counts {
    pub(crate) const fn of(counts: &RouterCounts) -> Self {
        Self {
            attached: counts.attached,
            cut_off: counts.cut,
            local_messages: counts.local,
            sent_messages: counts.sent,
            received_messages: counts.received,
            undelivered_messages: counts.undelivered,
            arena_operations: counts.operations,
        }
    }
}

/// Final counts of a daemon.
#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    counts: Counts,
    /// Whether another daemon takes over.
    replaced: bool,
}

/// Serves until a signal arrives.
///
/// # Errors
/// Another daemon listens at the socket, the devices cannot be opened, or a device fails.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let job_keys = arguments.job_keys.as_ref();
    let job_keys = job_keys.map(|path| path.to_string_lossy().into_owned());
    let options = [
        ("--log", "log", arguments.log.clone()),
        ("--job-keys", "job_keys", job_keys),
    ];
    let settings = Configured::default().settings(SettingValues::default(), &options)?;
    let level = settings.values().log;
    log::start_unhindered(level);
    let config = server_config(arguments);
    create_folder_of(&arguments.socket)?;
    let (stop, raised) = UnixStream::pair()?;
    for signal in [SIGINT, SIGTERM] {
        pipe::register(signal, raised.try_clone()?)?;
    }
    raise_limit_of_descriptors()?;
    // Everything that can fail is created before the running daemon is replaced, except what that daemon still occupies: its addresses.
    let has_others =
        arguments.listen.is_some() || arguments.handle_file.is_some() || !arguments.nodes.is_empty();
    let mut nodes = if has_others {
        check_listen_address(listen_address(arguments))?;
        Some(nodes(arguments, level)?)
    } else {
        None
    };
    let early_board = board(arguments, nodes.as_mut());
    if !arguments.replace {
        early_board.as_ref().map_err(ToString::to_string)?;
    }
    let mut handles = NodeHandles::read(&arguments.nodes)?;
    let job_keys = settings.values().job_keys.as_deref();
    let job_keys = job_keys.map(read_job_keys).transpose()?;
    // Existing handle files are read before a process attaches. The wait for a file system that does not respond is limited.
    handles.await_first();
    let mut server = Server::bind(&config)?;
    // Before a process attaches: the server accepts connections only while it runs.
    let mut changed_job_keys = None;
    if let Some((keys, changed)) = job_keys {
        server.set_job_keys(keys);
        changed_job_keys = Some(changed);
    }
    if let Some(mut nodes) = nodes {
        listen(arguments, &mut nodes)?;
        server.set_peers(nodes);
    }
    // From here on processes depend on this thread, so its lines are written by the log thread.
    log::write_line(&format!("doorbell: serving at {}", arguments.socket.display()));
    // With --replace, the previous daemon has ended, so this one continues without an address that it cannot get.
    let late_board = early_board.or_else(|_| retry_takeover(arguments, || board(arguments, server.peers())));
    let mut board = late_board.unwrap_or_else(|error| log_failure(&*error));
    if let Some(board) = &board {
        log::write_line(&format!("metrics at http://{}/metrics", board.address()));
    }
    let mut inputs = Inputs {
        handles,
        changed_job_keys,
        stop,
    };
    serve(arguments, &mut server, board.as_mut(), &mut inputs)?;
    ready::notify("STOPPING=1");
    if server.is_replaced() {
        log::write_line("doorbell: another daemon takes over");
    }
    let report = Report {
        counts: Counts::of(&server.counts()),
        replaced: server.is_replaced(),
    };
    // The next daemon waits until the server is dropped, and then needs the port of the metrics.
    drop(board);
    drop(server);
    print("serve", &report, arguments.json, text)
}

fn create_folder_of(socket: &Path) -> Result<(), Failure> {
    if let Some(folder) = socket.parent().filter(|folder| *folder != Path::new("")) {
        fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    Ok(())
}

/// Each process needs two descriptors, and up to three more while it attaches.
fn raise_limit_of_descriptors() -> io::Result<()> {
    let mut files = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    files.current = files.maximum;
    Ok(rustix::process::setrlimit(
        rustix::process::Resource::Nofile,
        files,
    )?)
}

fn server_config(arguments: &Arguments) -> ServerConfig {
    let mut config = ServerConfig::new(&arguments.socket);
    config.mode = arguments.mode;
    config.node = NodeNumber(arguments.node);
    config.limits.clients_max = arguments.clients;
    config.limits.clients_of_user_max = arguments.clients_of_user;
    config.limits.clients_of_job_max = arguments.clients_of_job;
    config.limits.bytes_of_user_max = arguments.bytes_of_user;
    config.limits.bytes_of_job_max = arguments.bytes_of_job;
    config.replace = arguments.replace;
    config
}

/// Changes that the main loop applies while it serves.
struct Inputs {
    handles: NodeHandles,
    changed_job_keys: Option<Receiver<JobKeys>>,
    /// Becomes readable with a signal that ends the daemon.
    stop: UnixStream,
}

/// The main loop. Returns after a signal, or once another daemon takes over.
fn serve(
    arguments: &Arguments,
    server: &mut Server,
    mut board: Option<&mut Board>,
    inputs: &mut Inputs,
) -> Result<(), Failure> {
    let mut is_notified = ready::notify("READY=1");
    let watchdog = ready::watchdog();
    let mut is_stopped = false;
    while !is_stopped {
        inputs.handles.apply(server)?;
        let mut time = if inputs.handles.has_files() || !is_notified {
            LOOK_EVERY
        } else {
            A_WHILE
        };
        if let Some(changed) = &inputs.changed_job_keys {
            changed.try_iter().for_each(|keys| server.set_job_keys(keys));
            time = time.min(READ_AGAIN_EVERY);
        }
        if let Some(board) = &mut board {
            metrics::note(board, server, arguments.metrics_jobs);
            time = time.min(NOTE_EVERY);
        }
        if let Some(every) = watchdog {
            // A full socket of the service manager has earlier ones.
            ready::repeat("WATCHDOG=1");
            time = time.min(every);
        }
        is_stopped = server.run_until(inputs.stop.as_fd(), within(time))?;
        is_notified = is_notified || ready::repeat("READY=1");
    }
    Ok(())
}

fn text(report: &Report) -> String {
    let counts = &report.counts;
    format!(
        "processes: {} attached, {} cut off\nmessages: {} on this host, {} sent, {} received, {} undelivered\noperations on arenas: {}\n",
        counts.attached,
        counts.cut_off,
        counts.local_messages,
        counts.sent_messages,
        counts.received_messages,
        counts.undelivered_messages,
        counts.arena_operations
    )
}

/// Reads the file of job keys. A thread reads it again whenever it changes: the server's thread must not wait for a file system.
fn read_job_keys(path: &Path) -> Result<(JobKeys, Receiver<JobKeys>), Failure> {
    let mut file = KeyFile::new(path, JobKeys::from_file);
    let named = path.display().to_string();
    let keys = file.read().map_err(|error| not_job_keys(&named, &error))?;
    let (give, take) = channel();
    file.follow(move |changed| match changed {
        None => true,
        Some(Ok(keys)) => {
            let jobs = keys.jobs();
            // Fails only if the daemon has ended.
            let is_given = give.send(keys).is_ok();
            log::write_line(&format!(
                "doorbell: {named}: keys in force from now on: {jobs} jobs"
            ));
            is_given
        }
        Some(Err(error)) => {
            let error = not_job_keys(&named, &error);
            log::write_line(&format!("doorbell: the job keys stay as they are: {error}"));
            true
        }
    })?;
    Ok((keys, take))
}

/// The text of an error of a file of job keys, with the name of the file.
fn not_job_keys(named: &str, error: &KeyRingError) -> String {
    match error {
        KeyRingError::File { .. } | KeyRingError::NotSecret { .. } => error.to_string(),
        _ => format!("{named}: {error}"),
    }
}

/// Opens the devices.
fn nodes(arguments: &Arguments, log: LogLevel) -> Result<Nodes, Failure> {
    let node = opened::node(
        arguments.peers.trust()?,
        &arguments.rails.clone().unwrap_or_default(),
    )?;
    opened::log_passed_over(&node, log)?;
    let mut own = WorkerConfig::default();
    own.notify = Notify::Every;
    let workers = opened::workers(&node, &own)?;
    Ok(Nodes::new(
        node,
        workers,
        &LinkConfig::default(),
        arguments.links,
    )?)
}

/// Starts to serve metrics, if requested.
fn board(arguments: &Arguments, nodes: Option<&mut Nodes>) -> Result<Option<Board>, Failure> {
    let Some(at) = arguments.metrics else {
        return Ok(None);
    };
    let board = match nodes {
        Some(nodes) => Board::start(at, nodes.watch().1),
        None => Board::start::<Rdma>(at, &[]),
    };
    board.map(Some)
}

/// Makes an attempt. With `--replace`, repeats it for [`TAKEOVER_WITHIN`], since the previous daemon may still occupy the address.
fn retry_takeover<T>(
    arguments: &Arguments,
    mut attempt: impl FnMut() -> Result<T, Failure>,
) -> Result<T, Failure> {
    let until = arguments.replace.then(|| within(TAKEOVER_WITHIN));
    loop {
        match attempt() {
            Err(_) if until.is_some_and(|until| !until.has_passed(doorbell::now())) => {
                thread::sleep(LOOK_EVERY)
            }
            done => return done,
        }
    }
}

/// Logs a failure that does not end the daemon.
fn log_failure<T>(error: &dyn core::error::Error) -> Option<T> {
    log::write_line(&format!("doorbell: {error}"));
    None
}

/// The address to listen at for other nodes.
fn listen_address(arguments: &Arguments) -> SocketAddr {
    arguments.listen.unwrap_or_else(|| anywhere(0))
}

/// Checks an address to listen at, except for its use by another process, which may be the daemon that is to be replaced.
///
/// # Errors
/// No process of this user can listen at the address.
fn check_listen_address(at: SocketAddr) -> Result<(), Failure> {
    match TcpListener::bind(at) {
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
            Err(format!("listening at {at}: {error}; name another address with --listen ADDR:PORT").into())
        }
        _ => Ok(()),
    }
}

/// Listens for other nodes, and prints the handle.
fn listen(arguments: &Arguments, nodes: &mut Nodes) -> Result<(), Failure> {
    let at = listen_address(arguments);
    let handle = retry_takeover(arguments, || Ok(nodes.listen(at)?))?;
    log::write_line(&handle.to_string());
    if let Some(path) = &arguments.handle_file {
        let file = path.clone();
        let named = |error| Failure::from(format!("{}: {error}", path.display()));
        let name = path.display().to_string();
        let work = move || handle_file::leave(&file, &handle);
        let late = move |written: Option<io::Result<()>>| {
            let state = match written {
                None => "not written yet".to_owned(),
                Some(Ok(())) => "written now".to_owned(),
                Some(Err(error)) => error.to_string(),
            };
            log::write_line(&format!("doorbell: {name}: {state}"));
        };
        match run_within(FIRST_READ_WITHIN, work, late)? {
            None | Some(Ok(())) => {}
            Some(Err(error)) if arguments.replace => drop(log_failure::<()>(&*named(error))),
            Some(Err(error)) => return Err(named(error)),
        }
    }
    Ok(())
}

/// Executes work that a file system may block, on a separate thread. Returns `None` if it takes longer than `patience`: then it calls `late`
/// with `None`, and later with the outcome.
fn run_within<T: Send + 'static>(
    patience: Duration,
    work: impl FnOnce() -> T + Send + 'static,
    late: impl Fn(Option<T>) + Clone + Send + 'static,
) -> Result<Option<T>, Failure> {
    // With a capacity of 0, the outcome is either received, or returned to the sender.
    let (give, take) = sync_channel(0);
    let of_thread = late.clone();
    let run = move || {
        if let Err(SendError(outcome)) = give.send(work()) {
            of_thread(Some(outcome));
        }
    };
    thread::Builder::new().name("handle-file".into()).spawn(run)?;
    let outcome = take.recv_timeout(patience).ok();
    if outcome.is_none() {
        late(None);
    }
    Ok(outcome)
}

fn parse_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "not an octal number up to 777".into())
}

fn parse_peer(text: &str) -> Result<(u32, String), String> {
    let (number, place) = text.split_once('=').ok_or("not N=HANDLE or N=@FILE")?;
    let number = number
        .parse()
        .map_err(|_| "not a number in front of =".to_owned())?;
    if !place.starts_with('@') {
        place.parse::<Handle>().map_err(|error| error.to_string())?;
    }
    Ok((number, place.to_owned()))
}

#[cfg(test)]
mod tests {
    use core::time::Duration;
    use std::sync::mpsc::channel;

    use clap::Parser as _;

    use super::{Arguments, parse_mode, parse_peer, run_within};

    #[test]
    fn a_file_system_that_does_not_answer_is_waited_for_no_longer() {
        let (give, take) = channel();
        let (say, said) = channel();
        let late = move |outcome| say.send(outcome).unwrap();
        let stuck = run_within(Duration::from_millis(1), move || take.recv().ok(), late.clone());
        assert_eq!((stuck.unwrap(), said.recv()), (None, Ok(None)));
        give.send(8).unwrap();
        assert_eq!(said.recv(), Ok(Some(Some(8))), "it goes on");
        let done = run_within(Duration::from_secs(3600), || Some(7), late);
        assert_eq!(done.unwrap(), Some(Some(7)));
        assert!(said.recv().is_err(), "nothing is late");
    }

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        _arguments: Arguments,
    }

    #[test]
    fn an_option_for_other_nodes_is_refused_without_any() {
        for words in [
            &["--rails", "mlx5_*"][..],
            &["--links", "2"],
            &["--key-file", "keys"],
            &["--unauthenticated"],
        ] {
            let parse = |more: &[&str]| Line::try_parse_from([&["serve"][..], words, more].concat());
            let error = parse(&[]).err().unwrap().to_string();
            for option in ["--peer", "--listen", "--handle-file"] {
                assert!(error.contains(option), "{error}");
            }
            for more in [
                &["--peer", "2=@file"],
                &["--listen", "127.0.0.1:0"],
                &["--handle-file", "file"],
            ] {
                assert!(parse(more).is_ok(), "{words:?} {more:?}");
            }
        }
        assert!(Line::try_parse_from(["serve"]).is_ok());
    }

    #[test]
    fn modes_and_nodes_are_read_or_refused() {
        assert_eq!(parse_mode("660"), Ok(0o660));
        for wrong in ["", "8", "1000", "-1"] {
            assert!(parse_mode(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse_peer("2=@/a=b"), Ok((2, "@/a=b".to_owned())));
        for wrong in ["", "2", "x=@file", "2=doorbell:zz", "4294967296=@file"] {
            assert!(parse_peer(wrong).is_err(), "{wrong}");
        }
    }
}
