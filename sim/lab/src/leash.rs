//! Nothing outlives the lab: processes and folders that are to go when it ends,
//! however it ends.
//!
//! A guard kills its process when dropped. An interrupt kills all that are
//! held and removes all folders, then ends the lab. And the kernel kills them when
//! the lab itself is killed: each is started with a parent-death signal, from one
//! thread that lives as long as the lab, since that signal follows the thread.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{self, Sender};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, kill_process_group};
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGTERM};

/// A process in a process group of its own, that ends with the lab.
#[derive(Debug)]
pub(crate) struct Leashed {
    child: Child,
    pid: Pid,
}

/// A folder that is removed with the lab.
#[derive(Debug)]
pub(crate) struct LeashedFolder(PathBuf);

#[derive(Default)]
struct Held {
    processes: Vec<Pid>,
    folders: Vec<PathBuf>,
}

static HELD: Mutex<Held> = Mutex::new(Held {
    processes: Vec::new(),
    folders: Vec::new(),
});

/// Makes interrupts end the lab with everything it holds; once, at its start.
///
/// # Errors
///
/// The handlers cannot be installed.
pub(crate) fn obey_interrupts() -> Result<()> {
    let mut signals =
        signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot handle interrupts")?;
    thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            eprintln!("lab: interrupted, everything ends");
            exit(signal.saturating_add(128));
        }
    });
    Ok(())
}

/// A command that is asked to end (SIGTERM) once the lab has ended. Start it from the main thread: the signal follows the thread.
pub(crate) fn tied(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM", "--"]).arg(program);
    command
}

/// Starts a process on a leash, with its output going to a file.
///
/// # Errors
///
/// It cannot be started.
pub(crate) fn spawn_logging(command: &Command, log: &Path) -> Result<Leashed> {
    let program = command.get_program().to_string_lossy().into_owned();
    let file = fs::File::create(log).with_context(|| format!("cannot make {}", log.display()))?;
    let mut leashed = Command::new("setpriv");
    leashed
        .args(["--pdeathsig", "KILL", "--"])
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => leashed.env(name, value),
            None => leashed.env_remove(name),
        };
    }
    leashed
        .stdin(std::process::Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .process_group(0);
    spawner(leashed).with_context(|| format!("cannot start `{program}`"))
}

fn spawner(command: Command) -> Result<Leashed> {
    type Order = (Command, Sender<std::io::Result<Child>>);
    static SPAWNER: OnceLock<Mutex<Sender<Order>>> = OnceLock::new();
    let orders = SPAWNER.get_or_init(|| {
        let (orders, received) = mpsc::channel::<Order>();
        thread::spawn(move || {
            for (mut command, answer) in received {
                // Held over the start, so that an interrupt cannot come between it and the list.
                let mut held = held();
                let child = command.spawn();
                if let Ok(child) = &child {
                    held.processes.push(Pid::from_child(child));
                }
                let _ = answer.send(child);
            }
        });
        Mutex::new(orders)
    });
    let (answer, answered) = mpsc::channel();
    orders
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .send((command, answer))
        .context("no spawner")?;
    let child = answered.recv().context("no spawner")??;
    let pid = Pid::from_child(&child);
    Ok(Leashed { child, pid })
}

impl Leashed {
    /// How it has ended, if it has.
    pub(crate) fn status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Kills it and all processes in its group, and reaps it.
    pub(crate) fn end(&mut self) {
        let mut held = held();
        if !held.processes.contains(&self.pid) {
            return;
        }
        // Not yet reaped by `end`, but perhaps by `has_ended`: the group is then empty or its own still.
        let _ = kill_process_group(self.pid, Signal::KILL);
        let _ = self.child.wait();
        held.processes.retain(|pid| *pid != self.pid);
    }
}

impl Drop for Leashed {
    fn drop(&mut self) {
        self.end();
    }
}

impl LeashedFolder {
    /// Takes charge of a folder.
    pub(crate) fn new(path: PathBuf) -> Self {
        held().folders.push(path.clone());
        Self(path)
    }

    /// Returns its path.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for LeashedFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
        held().folders.retain(|path| *path != self.0);
    }
}

/// Ends the lab with everything it holds.
pub(crate) fn exit(code: i32) -> ! {
    end_all();
    std::process::exit(code);
}

fn end_all() {
    let held = held();
    for pid in &held.processes {
        let _ = kill_process_group(*pid, Signal::KILL);
    }
    for folder in &held.folders {
        let _ = fs::remove_dir_all(folder);
    }
    // The guard is kept: nothing may be started any more.
    core::mem::forget(held);
}

fn held() -> MutexGuard<'static, Held> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_ends_with_its_guard() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sleep");
        command.arg("100");
        let mut leashed = spawn_logging(&command, &folder.path().join("log")).unwrap();
        let proc = PathBuf::from(format!("/proc/{}", leashed.pid.as_raw_nonzero()));
        assert!(!leashed.has_ended() && proc.exists());
        drop(leashed);
        assert!(!proc.exists());
    }

    #[test]
    fn a_process_has_the_environment_it_was_given() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let mut command = Command::new("sh");
        command.args(["-c", "echo $DOORBELL_LEASH_TEST"]);
        command.env("DOORBELL_LEASH_TEST", "given");
        let mut leashed = spawn_logging(&command, &log).unwrap();
        while !leashed.has_ended() {
            thread::sleep(core::time::Duration::from_millis(5));
        }
        assert_eq!(fs::read_to_string(&log).unwrap(), "given\n");
    }

    #[test]
    fn a_folder_goes_with_its_guard() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("file"), "x").unwrap();
        let leashed = LeashedFolder::new(path.clone());
        assert!(leashed.path().exists());
        drop(leashed);
        assert!(!path.exists());
    }
}
