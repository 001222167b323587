//! A cluster of plain processes on this machine: no RDMA, no guest.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Instant;

use anyhow::{Result, bail, ensure};

use super::{Cluster, CommandSpec, Host, Process, ProcessEvent, Shape, Signal};
use crate::process::{self, Running};

/// Hosts that are all this machine.
#[derive(Debug)]
pub(crate) struct LocalCluster {
    hosts: Vec<Host>,
    kernel: String,
    shared: PathBuf,
}

impl LocalCluster {
    /// Names some hosts; commands start in `shared`, which must exist.
    pub(crate) fn new(hosts: &[&str], shared: &Path) -> Self {
        let uname = rustix::system::uname();
        Self {
            hosts: hosts
                .iter()
                .map(|&name| Host {
                    name: name.to_owned(),
                    ports: Vec::new(),
                })
                .collect(),
            kernel: uname.release().to_string_lossy().into_owned(),
            shared: shared.to_owned(),
        }
    }
}

impl Cluster for LocalCluster {
    fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    fn kernel_release(&self) -> &str {
        &self.kernel
    }

    fn shape(&self) -> Shape {
        Shape::Local
    }

    fn shared_dir(&self) -> &Path {
        &self.shared
    }

    fn spawn(&self, host: &str, spec: &CommandSpec) -> Result<Box<dyn Process>> {
        ensure!(
            self.hosts.iter().any(|known| known.name == host),
            "there is no host `{host}`"
        );
        let mut spec = spec.clone();
        spec.cwd.get_or_insert_with(|| self.shared.clone());
        let (sender, events) = mpsc::channel();
        let running = process::start(
            &[],
            &spec,
            Box::new(move |event| {
                // A receiver that is gone was dropped, and killed its process.
                let _ = sender.send(event);
            }),
        )?;
        Ok(Box::new(LocalProcess {
            running,
            events,
            ended: false,
        }))
    }
}

struct LocalProcess {
    running: Running,
    events: Receiver<ProcessEvent>,
    ended: bool,
}

impl Process for LocalProcess {
    fn next_event(&mut self, deadline: Instant) -> Result<Option<ProcessEvent>> {
        ensure!(!self.ended, "the command has already ended");
        match self
            .events
            .recv_timeout(deadline.saturating_duration_since(Instant::now()))
        {
            Ok(event) => {
                self.ended = matches!(event, ProcessEvent::Exited(_));
                Ok(Some(event))
            }
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => bail!("the command's end was lost"),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.running.write(bytes)
    }

    fn close_input(&mut self) -> Result<()> {
        self.running.close_input()
    }

    fn resize(&mut self, rows: u16, columns: u16) -> Result<()> {
        self.running.resize(rows, columns)
    }

    fn signal(&mut self, signal: Signal) -> Result<()> {
        self.running.signal(signal)
    }
}

impl Drop for LocalProcess {
    fn drop(&mut self) {
        // Already gone is what is wanted.
        let _ = self.running.signal(Signal::Kill);
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;
    use crate::cluster::{Exit, Input};

    fn cluster() -> LocalCluster {
        LocalCluster::new(&["a"], Path::new("/"))
    }

    fn sh(script: &str, input: Input) -> Box<dyn Process> {
        let argv = ["sh", "-c", script].map(str::to_owned).to_vec();
        let spec = CommandSpec {
            argv,
            input,
            ..CommandSpec::default()
        };
        cluster().spawn("a", &spec).unwrap()
    }

    fn finish(process: &mut dyn Process) -> (String, String, Exit) {
        let deadline = Instant::now().checked_add(Duration::from_secs(20)).unwrap();
        let (mut out, mut err) = (Vec::new(), Vec::new());
        loop {
            match process.next_event(deadline).unwrap() {
                Some(ProcessEvent::Stdout(bytes)) => out.extend(bytes),
                Some(ProcessEvent::Stderr(bytes)) => err.extend(bytes),
                Some(ProcessEvent::Exited(exit)) => {
                    return (
                        String::from_utf8(out).unwrap(),
                        String::from_utf8(err).unwrap(),
                        exit,
                    );
                }
                None => panic!("the command did not end in time"),
            }
        }
    }

    #[test]
    fn output_and_code_come_back_apart() {
        let mut process = sh("echo out; echo err >&2; exit 3", Input::Closed);
        assert_eq!(
            finish(&mut *process),
            ("out\n".into(), "err\n".into(), Exit::Code(3))
        );
        assert!(
            process.next_event(Instant::now()).is_err(),
            "nothing follows the end"
        );
    }

    #[test]
    fn a_signal_reaches_the_whole_group() {
        let mut process = sh("sleep 100 & sleep 100", Input::Closed);
        assert_eq!(process.next_event(Instant::now()).unwrap(), None);
        process.signal(Signal::Terminate).unwrap();
        assert_eq!(finish(&mut *process).2, Exit::Signal(15));
        process.signal(Signal::Kill).unwrap();
    }

    #[test]
    fn input_is_fed_and_closed() {
        let mut process = sh("cat", Input::Pipe);
        process.write(b"through\n").unwrap();
        process.close_input().unwrap();
        assert_eq!(
            finish(&mut *process),
            ("through\n".into(), String::new(), Exit::Code(0))
        );
        assert!(process.write(b"x").is_err());
    }

    #[test]
    fn a_terminal_is_one_and_has_its_size() {
        let mut process = sh(
            "test -t 0 && stty size </dev/tty",
            Input::Terminal { rows: 7, columns: 33 },
        );
        let (out, _, exit) = finish(&mut *process);
        assert_eq!((out.trim(), exit), ("7 33", Exit::Code(0)));
    }

    #[test]
    fn a_child_left_behind_does_not_hold_up_the_end() {
        let started = Instant::now();
        let mut process = sh("setsid sleep 60 & echo done", Input::Closed);
        assert_eq!(finish(&mut *process).2, Exit::Code(0));
        assert!(started.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn what_cannot_start_says_so() {
        let spec = |argv: &[&str], cwd: Option<&str>| CommandSpec {
            argv: argv.iter().map(|&s| s.to_owned()).collect(),
            cwd: cwd.map(PathBuf::from),
            ..CommandSpec::default()
        };
        let message = |host: &str, spec: &CommandSpec| match cluster().spawn(host, spec) {
            Ok(_) => panic!("it started"),
            Err(e) => format!("{e:#}"),
        };
        assert!(message("a", &spec(&["/no/such/program"], None)).contains("/no/such/program"));
        assert!(message("a", &spec(&["true"], Some("/no/such/folder"))).contains("no folder"));
        assert!(message("a", &spec(&[], None)).contains("empty"));
        assert!(message("z", &spec(&["true"], None)).contains("no host `z`"));
    }
}
