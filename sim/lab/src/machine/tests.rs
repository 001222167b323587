//! Machines whose QEMU is a shell script, and whose agent is the real one in a
//! thread, or nothing at all.
use std::process::Command;

use super::*;
use crate::cluster::{Exit, Input};
use crate::guest::agent;
use crate::leash;

struct Stage {
    folder: tempfile::TempDir,
    listener: Option<UnixListener>,
}

impl Stage {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("agent")).unwrap();
        Self {
            folder,
            listener: Some(listener),
        }
    }

    fn console(&self) -> PathBuf {
        self.folder.path().join("console")
    }

    /// A "QEMU" that runs this script with the console as its output.
    fn qemu(&self, script: &str) -> Leashed {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        leash::spawn_logging(&command, &self.console()).unwrap()
    }

    /// Waits until the console has these words: a shell may be slower than the lab.
    fn says(&self, words: &str) {
        let by = soon();
        while !std::fs::read_to_string(self.console()).is_ok_and(|console| console.contains(words)) {
            assert!(Instant::now() < by, "the console lacks {words}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn adopt(&self, qemu: Leashed, patience_ms: u64, pulse: Pulse) -> Result<Machine> {
        let listener = self.listener.as_ref().unwrap();
        Machine::adopt_with(
            "m",
            qemu,
            listener,
            &self.console(),
            Duration::from_millis(patience_ms),
            pulse,
        )
    }

    /// The real agent, at the other end of the socket.
    fn agent(&self) -> thread::JoinHandle<Result<()>> {
        let path = self.folder.path().join("agent");
        thread::spawn(move || {
            let stream = UnixStream::connect(path)?;
            agent::serve(stream.try_clone()?, stream, "9.9.9", &|_| Vec::new())
        })
    }

    /// An agent that greets, and then says nothing more for as long as it is held.
    fn mute_agent(&self) -> UnixStream {
        let mut stream = UnixStream::connect(self.folder.path().join("agent")).unwrap();
        send(&mut stream, &Reply::Hello("9.9.9".to_owned()), &[]).unwrap();
        stream
    }
}

const LAZY: Pulse = Pulse {
    every: Duration::from_secs(3600),
    patience: Duration::from_secs(3600),
};

fn soon() -> Instant {
    Instant::now().checked_add(Duration::from_secs(20)).unwrap()
}

fn spec(script: &str, input: Input) -> CommandSpec {
    CommandSpec {
        argv: ["sh", "-c", script].map(str::to_owned).to_vec(),
        input,
        ..CommandSpec::default()
    }
}

fn message<T>(result: Result<T>) -> String {
    match result {
        Ok(_) => panic!("it went well"),
        Err(e) => format!("{e:#}"),
    }
}

#[test]
fn a_guest_that_hangs_is_killed_at_its_deadline_and_its_console_shown() {
    let stage = Stage::new();
    let pid_file = stage.folder.path().join("pid");
    let qemu = stage.qemu(&format!(
        "for n in $(seq 40); do echo line $n; done; echo $$ >{}; echo Kernel panic; exec sleep 100",
        pid_file.display()
    ));
    stage.says("Kernel panic");
    let shown = message(stage.adopt(qemu, 1500, LAZY));
    assert!(shown.contains("within its deadline"), "{shown}");
    assert!(
        shown.contains("Kernel panic") && shown.contains("| line 2\n"),
        "{shown}"
    );
    assert!(!shown.contains("| line 1\n"), "only the last lines: {shown}");
    let pid = fs::read_to_string(pid_file).unwrap();
    assert!(
        !PathBuf::from(format!("/proc/{}", pid.trim())).exists(),
        "it is still there"
    );
}

#[test]
fn a_guest_that_dies_at_once_is_not_waited_for() {
    let stage = Stage::new();
    let started = Instant::now();
    let shown = message(stage.adopt(stage.qemu("echo no such machine"), 60_000, LAZY));
    assert!(
        shown.contains("ended before it had begun") && shown.contains("no such machine"),
        "{shown}"
    );
    assert!(started.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_guest_that_connects_and_says_nothing_is_killed_too() {
    let stage = Stage::new();
    let _agent = UnixStream::connect(stage.folder.path().join("agent")).unwrap();
    let qemu = stage.qemu("echo booting; exec sleep 100");
    stage.says("booting");
    let shown = message(stage.adopt(qemu, 3000, LAZY));
    assert!(
        shown.contains("did not boot within") && shown.contains("booting"),
        "{shown}"
    );
}

#[test]
fn commands_run_and_end() {
    let stage = Stage::new();
    let agent = stage.agent();
    let machine = stage.adopt(stage.qemu("exec sleep 100"), 20_000, LAZY).unwrap();
    assert_eq!(machine.kernel(), "9.9.9");
    let mut process = machine
        .spawn(Some("a"), &spec("cat; exit 5", Input::Pipe))
        .unwrap();
    process.write(b"bytes").unwrap();
    process.close_input().unwrap();
    assert_eq!(
        process.next_event(soon()).unwrap(),
        Some(ProcessEvent::Stdout(b"bytes".to_vec()))
    );
    assert_eq!(
        process.next_event(soon()).unwrap(),
        Some(ProcessEvent::Exited(Exit::Code(5)))
    );
    assert!(message(process.next_event(soon())).contains("already ended"));
    let refused = spec("", Input::Closed);
    let refused = CommandSpec {
        argv: vec!["/no/such/program".to_owned()],
        ..refused
    };
    assert!(message(machine.spawn(None, &refused)).contains("/no/such/program"));
    drop(machine);
    agent.join().unwrap().unwrap();
}

#[test]
fn a_guest_that_dies_later_ends_what_waits_for_it() {
    let stage = Stage::new();
    let agent = stage.mute_agent();
    let machine = stage
        .adopt(stage.qemu("echo oops; exec sleep 100"), 20_000, LAZY)
        .unwrap();
    let waiter = thread::spawn(move || message(machine.spawn(None, &spec("true", Input::Closed))));
    thread::sleep(Duration::from_millis(100));
    stage.says("oops");
    drop(agent);
    let shown = waiter.join().unwrap();
    assert!(
        shown.contains("machine m ended") && shown.contains("oops"),
        "{shown}"
    );
}

#[test]
fn a_guest_that_falls_silent_is_killed_and_what_waits_is_told() {
    let stage = Stage::new();
    let _agent = stage.mute_agent();
    let pulse = Pulse {
        every: Duration::from_millis(50),
        patience: Duration::from_millis(400),
    };
    let qemu = stage.qemu("echo soft lockup; exec sleep 100");
    stage.says("soft lockup");
    let machine = stage.adopt(qemu, 20_000, pulse).unwrap();
    let shown = message(machine.spawn(None, &spec("true", Input::Closed)));
    assert!(
        shown.contains("has not answered") && shown.contains("soft lockup"),
        "{shown}"
    );
    // And it is dead for good.
    assert!(message(machine.spawn(None, &spec("true", Input::Closed))).contains("has not answered"));
}

#[test]
fn a_guest_that_answers_is_left_alone() {
    let stage = Stage::new();
    let _agent = stage.agent();
    let pulse = Pulse {
        every: Duration::from_millis(50),
        patience: Duration::from_secs(5),
    };
    let machine = stage.adopt(stage.qemu("exec sleep 100"), 20_000, pulse).unwrap();
    thread::sleep(Duration::from_millis(5500));
    let mut process = machine.spawn(None, &spec("true", Input::Closed)).unwrap();
    assert_eq!(
        process.next_event(soon()).unwrap(),
        Some(ProcessEvent::Exited(Exit::Code(0)))
    );
}
