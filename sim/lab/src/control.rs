//! The door to a running lab: a socket in the user's runtime folder, over which
//! `cargo lab shell` starts commands on its hosts.

use core::time::Duration;
use std::fs;
use std::io::BufReader;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, TryRecvError};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::cluster::{Cluster, CommandSpec, Host, Process, ProcessEvent, Shape};
use crate::guest::wire::{Reply, Request, Start, receive, send};
use crate::guests::runtime_dir;

/// Name of the socket in a lab's folder.
const SOCKET: &str = "control";

/// How long a client's input may lie before it is passed on.
const TURN: Duration = Duration::from_millis(4);

/// First message of a lab to a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Greeting {
    /// Its hosts.
    pub(crate) hosts: Vec<String>,
    /// The kernel they run.
    pub(crate) kernel: String,
}

/// A cluster with its door open. Dropping it closes both.
#[derive(Debug)]
pub(crate) struct Open<C: Cluster + 'static> {
    cluster: Arc<C>,
    listener: UnixListener,
    socket: PathBuf,
}

impl<C: Cluster + 'static> Open<C> {
    /// Opens the door of `cluster`, in the folder of its run.
    ///
    /// # Errors
    ///
    /// The socket cannot be made.
    pub(crate) fn new(cluster: C, folder: &Path) -> Result<Self> {
        let socket = folder.join(SOCKET);
        let listener =
            UnixListener::bind(&socket).with_context(|| format!("cannot listen on {}", socket.display()))?;
        let cluster = Arc::new(cluster);
        let inside = Arc::downgrade(&cluster);
        let door = listener.try_clone().context("cannot keep the socket")?;
        thread::spawn(move || {
            for stream in door.incoming().map_while(Result::ok) {
                if inside.strong_count() == 0 {
                    break;
                }
                let inside = Weak::clone(&inside);
                thread::spawn(move || {
                    // It fails if the client is gone, and then nobody is left to notify.
                    let _ = attend(&inside, stream);
                });
            }
        });
        Ok(Self {
            cluster,
            listener,
            socket,
        })
    }
}

impl<C: Cluster + 'static> Drop for Open<C> {
    fn drop(&mut self) {
        // Its thread waits for clients, and ends by the error.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        let _ = fs::remove_file(&self.socket);
    }
}

impl<C: Cluster + 'static> Cluster for Open<C> {
    fn hosts(&self) -> &[Host] {
        self.cluster.hosts()
    }

    fn kernel_release(&self) -> &str {
        self.cluster.kernel_release()
    }

    fn shape(&self) -> Shape {
        self.cluster.shape()
    }

    fn shared_dir(&self) -> &Path {
        self.cluster.shared_dir()
    }

    fn spawn(&self, host: &str, spec: &CommandSpec) -> Result<Box<dyn Process>> {
        self.cluster.spawn(host, spec)
    }
}

/// The sockets of labs that are running, each with the number of its process.
///
/// # Errors
///
/// The runtime folder cannot be read.
pub(crate) fn running() -> Result<Vec<(u32, PathBuf)>> {
    let mut labs = Vec::new();
    for entry in fs::read_dir(runtime_dir()?)? {
        let entry = entry?;
        let socket = entry.path().join(SOCKET);
        let pid = entry.file_name().to_string_lossy().parse::<u32>();
        // One that nobody listens on was left by a lab that was killed.
        if let (Ok(pid), true) = (pid, UnixStream::connect(&socket).is_ok()) {
            labs.push((pid, socket));
        }
    }
    labs.sort();
    Ok(labs)
}

/// Serves one client: a greeting, one command, its events.
fn attend<C: Cluster>(cluster: &Weak<C>, stream: UnixStream) -> Result<()> {
    let mut to = stream.try_clone()?;
    let Some((greeting, hosts)) = cluster.upgrade().map(|cluster| {
        let hosts: Vec<String> = cluster.hosts().iter().map(|host| host.name.clone()).collect();
        (
            Greeting {
                hosts: hosts.clone(),
                kernel: cluster.kernel_release().to_owned(),
            },
            hosts,
        )
    }) else {
        return Ok(());
    };
    send(&mut to, &greeting, &[])?;
    let mut from = BufReader::new(stream);
    let Some((Request::Start(start), _)) = receive::<Request>(&mut from)? else {
        return Ok(());
    };
    let id = start.id;
    let refused = |error: anyhow::Error| Reply::Refused {
        id,
        why: format!("{error:#}"),
    };
    let Some(process) = cluster.upgrade().map(|cluster| begin(&*cluster, start, &hosts)) else {
        return Ok(());
    };
    let mut process = match process {
        Ok(process) => process,
        Err(error) => return send(&mut to, &refused(error), &[]),
    };
    send(&mut to, &Reply::Started(id), &[])?;
    let (sender, requests) = mpsc::channel();
    thread::spawn(move || {
        while let Ok(Some(frame)) = receive::<Request>(&mut from) {
            if sender.send(frame).is_err() {
                break;
            }
        }
    });
    loop {
        match requests.try_recv() {
            Ok((request, payload)) => pass_on(&mut *process, &request, &payload)?,
            // The client is gone: dropping its command kills it.
            Err(TryRecvError::Disconnected) => return Ok(()),
            Err(TryRecvError::Empty) => {
                let turn = Instant::now().checked_add(TURN).context("no deadline")?;
                match process.next_event(turn) {
                    Ok(None) => {}
                    Ok(Some(ProcessEvent::Stdout(bytes))) => send(&mut to, &Reply::Stdout(id), &bytes)?,
                    Ok(Some(ProcessEvent::Stderr(bytes))) => send(&mut to, &Reply::Stderr(id), &bytes)?,
                    Ok(Some(ProcessEvent::Exited(exit))) => {
                        return send(&mut to, &Reply::Exited { id, exit }, &[]);
                    }
                    Err(error) => return send(&mut to, &refused(error), &[]),
                }
            }
        }
    }
}

fn begin(cluster: &dyn Cluster, start: Start, hosts: &[String]) -> Result<Box<dyn Process>> {
    let host = start
        .host
        .or_else(|| hosts.first().cloned())
        .context("the lab has no hosts")?;
    let spec = CommandSpec {
        argv: start.argv,
        env: start.env,
        cwd: start.cwd,
        input: start.input.into(),
    };
    cluster.spawn(&host, &spec)
}

fn pass_on(process: &mut dyn Process, request: &Request, payload: &[u8]) -> Result<()> {
    match request {
        Request::Input(_) => process.write(payload),
        Request::CloseInput(_) => process.close_input(),
        Request::Resize { rows, columns, .. } => process.resize(*rows, *columns),
        Request::Signal { signal, .. } => process.signal(*signal),
        Request::Configure(_) | Request::Start(_) | Request::Pulse | Request::Clock => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{Exit, LocalCluster};
    use crate::guest::wire::InputKind;

    #[test]
    fn a_client_is_greeted_and_its_command_runs() {
        let folder = tempfile::tempdir().unwrap();
        let lab = Open::new(LocalCluster::new(&["a", "b"], folder.path()), folder.path()).unwrap();
        let stream = UnixStream::connect(folder.path().join(SOCKET)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut to = stream.try_clone().unwrap();
        let mut from = BufReader::new(stream);
        let (greeting, _) = receive::<Greeting>(&mut from).unwrap().unwrap();
        assert_eq!(greeting.hosts, ["a", "b"]);
        let start = Start {
            id: 1,
            host: Some("b".to_owned()),
            argv: vec!["cat".to_owned()],
            env: Vec::new(),
            cwd: None,
            input: InputKind::Pipe,
        };
        send(&mut to, &Request::Start(start), &[]).unwrap();
        let mut next = || receive::<Reply>(&mut from).unwrap().unwrap();
        assert_eq!(next().0, Reply::Started(1));
        send(&mut to, &Request::Input(1), b"echoed").unwrap();
        assert_eq!(next(), (Reply::Stdout(1), b"echoed".to_vec()));
        send(&mut to, &Request::CloseInput(1), &[]).unwrap();
        match next().0 {
            Reply::Exited { exit, .. } => assert_eq!(exit, Exit::Code(0)),
            other => panic!("{other:?}"),
        }
        drop(lab);
        assert!(!folder.path().join(SOCKET).exists());
    }
}
