//! A listener for container runtimes, and a small runtime of these tests: it starts a program under the filter, and hands the listener over as the OCI
//! runtime specification has it. A stock runtime is in `sim/scenarios/broker-oci.toml`.

use std::fs::{self, File, Permissions};
use std::io::{IoSlice, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use doorbell_broker::{Event, LaunchError, Listening, Network, listen};
use doorbell_sandbox::{BlockedSignals, Launch, Launched, Reserved};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{WaitOptions, waitpid};

use crate::{PART, PATIENCE, POLICY, again, ended, is_lacking};

const SOCKET: &str = "DOORBELL_TEST_SOCKET";
const POLICIES: &str = "DOORBELL_TEST_POLICIES";
const CONTAINER: &str = "DOORBELL_TEST_CONTAINER";

/// The listener of a test. It is this program again.
#[test]
fn part_of_a_listener() {
    let (Some(socket), Some(policies)) = (std::env::var_os(SOCKET), std::env::var_os(POLICIES)) else {
        return;
    };
    let listening = Listening {
        socket: PathBuf::from(socket),
        policies: PathBuf::from(policies),
        containers: 4,
    };
    listen(
        &listening,
        || {},
        |event| {
            let text = match event {
                Event::Supervised { container, policy } => format!("SUPERVISED {container} {policy}"),
                Event::Ended { container, counts } => format!("ENDED {container} {counts:?}"),
                Event::Refused(reason) => format!("REFUSED {reason}"),
                other => format!("{other:?}"),
            };
            // In one write, since other threads write, too.
            std::io::stdout()
                .write_all(format!("{text}\n").as_bytes())
                .unwrap();
        },
    )
    .unwrap();
}

/// Sends a text and descriptors, and closes the connection.
fn send(socket: &Path, text: &str, descriptors: &[BorrowedFd<'_>]) {
    let stream = UnixStream::connect(socket).unwrap();
    let mut space = [core::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(17))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
    }
    sendmsg(
        &stream,
        &[IoSlice::new(text.as_bytes())],
        &mut control,
        SendFlags::NOSIGNAL,
    )
    .unwrap();
}

fn state(container: &str, metadata: &str) -> String {
    format!(
        r#"{{"ociVersion": "1.0.2", "fds": ["seccompFd"], "pid": {}, "metadata": "{metadata}",
            "state": {{"ociVersion": "1.0.2", "id": "{container}", "status": "creating", "bundle": "/"}}}}"#,
        std::process::id()
    )
}

/// The runtime of a test. It is this program again.
#[test]
fn part_of_a_runtime() {
    let (Some(socket), Ok(container)) = (std::env::var_os(SOCKET), std::env::var(CONTAINER)) else {
        return;
    };
    let command = again("part_of_a_program");
    let launch = Launch {
        program: command.get_program().to_owned(),
        arguments: command.get_args().map(ToOwned::to_owned).collect(),
        namespaces: Some(Network::Host),
        reserved: Reserved::of_containers(2),
        cgroup: None,
        pinned_bytes: None,
        trees: Vec::new(),
    };
    let signals = BlockedSignals::new().unwrap();
    let Launched { pid, listener } = match launch.start(&signals) {
        Ok(launched) => launched,
        Err(LaunchError { step, error }) if is_lacking(step, &error) => {
            println!("LACKS {step:?}: {error}");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let metadata = std::env::var(POLICIES).unwrap();
    send(
        Path::new(&socket),
        &state(&container, &metadata),
        &[listener.as_fd()],
    );
    drop(listener);
    let (_, status) = waitpid(Some(pid), WaitOptions::empty()).unwrap().unwrap();
    println!("container ended with {:?}", status.exit_status());
}

/// A listener with policies `default` and `none`, which ends with this.
struct Listener {
    folder: tempfile::TempDir,
    process: Child,
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Listener {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        // The log and the socket are reached by another user, too.
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let policies = folder.path().join("policies");
        fs::create_dir(&policies).unwrap();
        fs::write(policies.join("default.toml"), format!("contexts = 2\n{POLICY}")).unwrap();
        let none = POLICY.replace("['uverbs0']", "['other']");
        fs::write(policies.join("none.toml"), none).unwrap();
        let limited = "devices = ['uverbs0']\npinned_bytes = 0\n";
        fs::write(policies.join("limited.toml"), limited).unwrap();
        let log = File::create(folder.path().join("log")).unwrap();
        let mut command = again("part_of_a_listener");
        command
            .env(SOCKET, folder.path().join("socket"))
            .env(POLICIES, &policies);
        let process = command.stdout(log).stderr(Stdio::inherit()).spawn().unwrap();
        let listener = Self { folder, process };
        let begun = Instant::now();
        while UnixStream::connect(listener.socket()).is_err() {
            assert!(begun.elapsed() < PATIENCE, "no socket");
            std::thread::yield_now();
        }
        listener
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// A container with this name and policy, which runs a part of a program.
    fn container(&self, name: &str, policy: &str, part: &str) -> Command {
        let mut runtime = again("part_of_a_runtime");
        runtime
            .env(SOCKET, self.socket())
            .env(CONTAINER, name)
            .env(POLICIES, policy)
            .env(PART, part);
        runtime
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// Waits until the listener has reported so many refusals. Returns them.
    fn refusals(&self, count: usize) -> Vec<String> {
        let begun = Instant::now();
        loop {
            let text = self.log();
            let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
            let refusals: Vec<_> = lines.filter(|line| line.contains("REFUSED ")).collect();
            if refusals.len() >= count {
                return refusals.into_iter().map(ToOwned::to_owned).collect();
            }
            assert!(begun.elapsed() < PATIENCE, "{count} refusals are not in {text}");
            std::thread::sleep(core::time::Duration::from_millis(2));
        }
    }

    /// Waits until the listener reports this.
    fn reports(&self, expected: &str) {
        let begun = Instant::now();
        loop {
            let text = self.log();
            if text.contains(expected) {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "{expected:?} is not in {text}");
            std::thread::sleep(core::time::Duration::from_millis(2));
        }
    }
}

/// If the host has what a sandbox needs; else the test says that it has not run.
fn is_possible(text: &str) -> bool {
    let lack = text.lines().find(|line| line.contains("LACKS "));
    if let Some(lack) = lack {
        let said = format!("SKIPPED: UNTESTED: containers: {lack}\n");
        std::io::stdout().write_all(said.as_bytes()).unwrap();
    }
    lack.is_none()
}

#[test]
fn containers_at_once_have_the_devices_of_their_policies() {
    let listener = Listener::start();
    let all = [
        ("one", "default", "allowed", "opened: 2, refused: 0"),
        ("two", "", "limit-of-two", "opened: 200, refused: 100"),
        ("three", "none", "absent", "opened: 0, refused: 1"),
    ];
    let runs = all.map(|(name, policy, part, counts)| {
        let run = listener.container(name, policy, part);
        (name, part, counts, std::thread::spawn(move || ended(run)))
    });
    for (name, part, counts, run) in runs {
        let (status, text) = run.join().unwrap();
        if !is_possible(&text) {
            return;
        }
        assert!(
            status.success() && text.contains("container ended with Some(0)"),
            "{text}"
        );
        assert!(text.contains(&format!("part {part} is done")), "{text}");
        listener.reports(&format!("ENDED {name} Counts {{ {counts}"));
    }
    listener.reports("SUPERVISED two default");
    // Each left its place.
    for round in 0..6 {
        let (_, text) = ended(listener.container(&format!("round{round}"), "", "allowed"));
        assert!(text.contains("part allowed is done"), "{text}");
        listener.reports(&format!("ENDED round{round} "));
    }
}

#[test]
fn a_container_that_is_refused_has_no_supervisor() {
    let listener = Listener::start();
    let (_, text) = ended(listener.container("one", "unknown", "unsupervised"));
    if !is_possible(&text) {
        return;
    }
    assert!(text.contains("part unsupervised is done"), "{text}");
    listener.reports("REFUSED container \"one\": ");
    listener.reports("unknown.toml: No such file");
    let (_, text) = ended(listener.container("two", "limited", "unsupervised"));
    assert!(text.contains("part unsupervised is done"), "{text}");
    listener.reports("REFUSED container \"two\": it may pin more than the 0 bytes of the policy");
}

#[test]
fn messages_of_no_container_are_refused_with_the_reason() {
    let listener = Listener::start();
    let null = File::open("/dev/null").unwrap();
    let socket = listener.socket();
    send(&socket, &state("a", ""), &[null.as_fd()]);
    listener.reports("REFUSED container \"a\": its seccompFd is no listener of a filter");
    send(&socket, &state("b", ""), &[]);
    listener.reports("REFUSED the container process state names 1 descriptors, and 0 came");
    send(&socket, &state("c", ""), &[null.as_fd(), null.as_fd()]);
    listener.reports("names 1 descriptors, and 2 came");
    send(&socket, "{\"fds\": 7}", &[null.as_fd()]);
    listener.reports("REFUSED this is no container process state: invalid type");
    // Places are taken by runtimes that have not sent yet.
    let held = [(); 16].map(|()| UnixStream::connect(&socket).unwrap());
    listener.reports("REFUSED 4 containers are supervised, which is the limit");
    drop(held);
}

#[test]
fn a_runtime_of_another_user_is_refused() {
    if !rustix::process::geteuid().is_root() {
        std::io::stdout()
            .write_all(b"SKIPPED: UNTESTED: a runtime of another user: this is not root\n")
            .unwrap();
        return;
    }
    let listener = Listener::start();
    fs::set_permissions(listener.socket(), Permissions::from_mode(0o777)).unwrap();
    // A shell has no way to connect: the descriptor is a connection that the other user made.
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "containers::part_of_a_foreigner", "--nocapture"]);
    command
        .env(SOCKET, listener.socket())
        .env(CONTAINER, "foreign")
        .uid(65534);
    let (status, text) = ended(command);
    assert!(status.success(), "{text}");
    listener.reports("REFUSED a runtime of user 65534: only root and the broker's user are served");
}

/// A process of another user. It is this program again.
#[test]
fn part_of_a_foreigner() {
    if std::env::var(CONTAINER).as_deref() == Ok("foreign") {
        let mut stream = UnixStream::connect(std::env::var_os(SOCKET).unwrap()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    }
}

/// The descriptors of a process.
fn descriptors(process: u32) -> usize {
    fs::read_dir(format!("/proc/{process}/fd")).unwrap().count()
}

#[test]
fn a_listener_keeps_no_descriptor_of_messages_that_it_refuses() {
    let listener = Listener::start();
    let id = listener.process.id();
    let null = File::open("/dev/null").unwrap();
    // One more than there is room for, as many as there is, and one.
    let heaps = [17, 16, 1].map(|count| vec![null.as_fd(); count]);
    // The connection that looked whether it listens.
    listener.refusals(1);
    let before = descriptors(id);
    let socket = listener.socket();
    for round in 0..60 {
        let text = ["{\"fds\": 7}", "{", " ", &state("a", "")][round % 4].to_owned();
        send(&socket, &text, &heaps[round % 3]);
        listener.refusals(round + 2);
    }
    let refusals = listener.refusals(61);
    assert_eq!(refusals.len(), 61, "{refusals:?}");
    // Each was read, and not refused for lack of a place.
    let is_read = |refusal: &String| !refusal.contains("which is the limit");
    assert!(refusals.iter().all(is_read), "{refusals:?}");
    let begun = Instant::now();
    while descriptors(id) > before {
        assert!(begun.elapsed() < PATIENCE, "{} of {before}", descriptors(id));
        std::thread::sleep(core::time::Duration::from_millis(2));
    }
}
