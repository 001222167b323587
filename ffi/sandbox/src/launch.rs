//! The start of a program: namespaces, no privileges, the filter, and the filter's listener for the supervisor.
//!
//! The new process runs `prepare` between its fork and its exec. Nothing there allocates or takes a lock.

use core::fmt;
use core::mem::MaybeUninit;
use std::ffi::{CStr, CString, OsString};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use libc::{SECCOMP_FILTER_FLAG_NEW_LISTENER, SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, c_int};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use rustix::process::Pid;

use crate::capabilities;
use crate::filter::{self, Reserved};
use crate::listener::Listener;
use crate::nodes::Nodes;
use crate::signals::{BlockedSignals, set_blocked};
use crate::tree::{self, Tree};

/// The network of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Network {
    /// The network namespace of the broker.
    #[default]
    Host,
    /// A network namespace of the program's own, in which nothing is up.
    None,
}

/// A program to start.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The program, looked up in `PATH` if it has no slash.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// User and mount namespaces of its own, and its network. The program has no privileges there, and `/dev` has what was there at the start, but
    /// for RDMA devices. `None` leaves namespaces and privileges to the program.
    pub namespaces: Option<Network>,
    /// Numbers of descriptors that are kept for devices.
    pub reserved: Reserved,
    /// The folder of a cgroup that the program joins.
    pub cgroup: Option<PathBuf>,
    /// Bytes that each process may pin, if the limit of before is not lower.
    pub pinned_bytes: Option<u64>,
    /// Files that the program finds, in a mount namespace of its own. A later tree may cover a part of an earlier one.
    pub trees: Vec<Tree>,
}

/// A program that runs under the filter.
#[derive(Debug)]
pub struct Launched {
    /// Its process, a child of this one. It is to be waited for.
    pub pid: Pid,
    /// The trapped calls of it and of all processes that it starts.
    pub listener: Listener,
}

/// A step of the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// The cgroup is joined.
    Cgroup,
    /// The limit of pinned memory is set.
    Pinned,
    /// Namespaces are made.
    Namespaces,
    /// The user and the group are mapped into the user namespace.
    Users,
    /// The nodes of RDMA devices are hidden.
    Mounts,
    /// The trees are mounted.
    Tree,
    /// Capabilities are dropped.
    Privileges,
    /// The filter is installed.
    Filter,
    /// The listener is handed over.
    Listener,
    /// The program is executed.
    Program,
}

const STEPS: [Step; 10] = [
    Step::Cgroup,
    Step::Pinned,
    Step::Namespaces,
    Step::Users,
    Step::Mounts,
    Step::Tree,
    Step::Privileges,
    Step::Filter,
    Step::Listener,
    Step::Program,
];

/// A program did not start.
#[derive(Debug)]
pub struct LaunchError {
    /// The step that failed.
    pub step: Step,
    /// The reason.
    pub error: io::Error,
}

impl fmt::Display for LaunchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let error = &self.error;
        match self.step {
            Step::Cgroup => write!(f, "cannot join the cgroup: {error}"),
            Step::Pinned => write!(f, "cannot limit pinned memory: {error}"),
            Step::Namespaces => write!(
                f,
                "cannot make user and mount namespaces: {error}; allow user namespaces (user.max_user_namespaces), or leave them to the program"
            ),
            Step::Users => write!(f, "cannot map the user into its namespace: {error}"),
            Step::Mounts => write!(f, "cannot hide the nodes of RDMA devices: {error}"),
            Step::Tree => write!(
                f,
                "cannot mount the view of devices: {error}; make the folder of the topology, and leave mount namespaces to this user"
            ),
            Step::Privileges => write!(f, "cannot drop capabilities: {error}"),
            Step::Filter => write!(
                f,
                "cannot install the filter: {error}; the kernel needs seccomp user notification, and a process has one supervisor at most"
            ),
            Step::Listener => write!(f, "cannot hand over the filter's listener: {error}"),
            Step::Program => write!(f, "cannot execute the program: {error}"),
        }
    }
}

impl core::error::Error for LaunchError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// All that the new process needs, made before the fork.
struct Preparation {
    cgroup: Option<CString>,
    pinned_bytes: Option<u64>,
    namespaces: Option<Network>,
    nodes: Option<Nodes>,
    trees: Vec<tree::Prepared>,
    uid_map: Vec<u8>,
    gid_map: Vec<u8>,
    program: Vec<libc::sock_filter>,
    signals: libc::sigset_t,
    socket: UnixStream,
}

impl Launch {
    /// Starts the program. The caller keeps `signals` while it supervises; the program has the mask of before.
    ///
    /// # Errors
    /// A step fails. Nothing runs then.
    pub fn start(&self, signals: &BlockedSignals) -> Result<Launched, LaunchError> {
        let at = |step| move |error| LaunchError { step, error };
        let (ours, theirs) = UnixStream::pair().map_err(at(Step::Listener))?;
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        let processes = |folder: &PathBuf| {
            let file = folder.join("cgroup.procs").into_os_string();
            CString::new(file.into_vec()).map_err(|error| at(Step::Cgroup)(error.into()))
        };
        let preparation = Preparation {
            cgroup: self.cgroup.as_ref().map(processes).transpose()?,
            pinned_bytes: self.pinned_bytes,
            namespaces: self.namespaces,
            nodes: self
                .namespaces
                .map(|_| Nodes::found())
                .transpose()
                .map_err(at(Step::Mounts))?,
            trees: self
                .trees
                .iter()
                .map(Tree::prepared)
                .collect::<io::Result<_>>()
                .map_err(at(Step::Tree))?,
            uid_map: format!("{0} {0} 1", uid.as_raw()).into_bytes(),
            gid_map: format!("{0} {0} 1", gid.as_raw()).into_bytes(),
            program: filter::program(&self.reserved),
            signals: *signals.before(),
            socket: theirs,
        };
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        // Owned by the closure, and so closed in this process with the command.
        let prepare = move || {
            prepare(&preparation).map_err(|(step, error)| {
                let _ = rustix::io::write(&preparation.socket, &[step as u8]);
                error
            })
        };
        // SAFETY: between fork and exec, `prepare` makes system calls alone, over memory that was there before: it takes no lock and no memory.
        unsafe { command.pre_exec(prepare) };
        let spawned = command.spawn();
        drop(command);
        let mut child = match spawned {
            Ok(child) => child,
            Err(error) => {
                let mut step = [0; 1];
                let said = rustix::net::recv(&ours, &mut step[..], RecvFlags::DONTWAIT);
                let step = match said {
                    Ok((1, 1)) => STEPS.get(usize::from(step[0])).copied(),
                    _ => None,
                };
                return Err(at(step.unwrap_or(Step::Program))(error));
            }
        };
        match received_descriptor(ours.as_fd()) {
            Ok(listener) => Ok(Launched {
                pid: Pid::from_child(&child),
                listener: Listener::new(listener),
            }),
            Err(error) => {
                // A program without a supervisor finds no device.
                let _ = child.kill().and_then(|()| child.wait());
                Err(at(Step::Listener)(error))
            }
        }
    }
}

/// The descriptor that a message has, which has come.
fn received_descriptor(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0; 1];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    recvmsg(socket, &mut [io::IoSliceMut::new(&mut byte)], &mut control, flags)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut descriptors) = message {
            if let Some(descriptor) = descriptors.next() {
                return Ok(descriptor);
            }
        }
    }
    Err(io::ErrorKind::UnexpectedEof.into())
}

/// The result of a call that returns -1 with errno.
fn checked(status: c_int) -> io::Result<()> {
    if status == -1 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Makes the namespaces of this new process, drops its privileges, and installs the filter.
fn prepare(preparation: &Preparation) -> Result<(), (Step, io::Error)> {
    let at = |step| move |error| (step, error);
    if let Some(processes) = &preparation.cgroup {
        write_file(processes, b"0").map_err(at(Step::Cgroup))?;
    }
    if let Some(bytes) = preparation.pinned_bytes {
        limit_pinned(bytes).map_err(|error| (Step::Pinned, error.into()))?;
    }
    if let Some(network) = preparation.namespaces {
        let more = match network {
            Network::Host => 0,
            Network::None => libc::CLONE_NEWNET,
        };
        // SAFETY: flags of namespaces; this process has one thread (unshare(2)).
        let status =
            unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWIPC | more) };
        checked(status).map_err(at(Step::Namespaces))?;
        // Without it, no group may be mapped by a process without privileges.
        write_file(c"/proc/self/setgroups", b"deny").map_err(at(Step::Users))?;
        write_file(c"/proc/self/uid_map", &preparation.uid_map).map_err(at(Step::Users))?;
        write_file(c"/proc/self/gid_map", &preparation.gid_map).map_err(at(Step::Users))?;
        alone().map_err(at(Step::Mounts))?;
        if let Some(nodes) = &preparation.nodes {
            nodes.mount().map_err(at(Step::Mounts))?;
        }
        for tree in &preparation.trees {
            cover(tree.at(), tree.options(), 0).map_err(at(Step::Tree))?;
            tree.write().map_err(at(Step::Tree))?;
            cover(tree.at(), c"", libc::MS_REMOUNT | libc::MS_RDONLY).map_err(at(Step::Tree))?;
        }
        capabilities::drop_all().map_err(at(Step::Privileges))?;
    }
    // SAFETY: plain numbers (prctl(2)). A program whose supervisor died could neither find nor ring a device.
    checked(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) })
        .map_err(at(Step::Privileges))?;
    // SAFETY: plain numbers (prctl(2)).
    checked(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }).map_err(at(Step::Privileges))?;
    set_blocked(&preparation.signals).map_err(at(Step::Filter))?;
    let listener = install(&preparation.program).map_err(at(Step::Filter))?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [listener.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(
        &preparation.socket,
        &[io::IoSlice::new(&[u8::MAX])],
        &mut control,
        SendFlags::NOSIGNAL,
    )
    .map_err(|error| (Step::Listener, error.into()))?;
    Ok(())
}

/// Lowers the limit of pinned memory, for good: a process without privileges cannot raise it.
fn limit_pinned(bytes: u64) -> Result<(), rustix::io::Errno> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let before = getrlimit(Resource::Memlock);
    let lower = |limit: Option<u64>| Some(limit.unwrap_or(u64::MAX).min(bytes));
    let (current, maximum) = (lower(before.current), lower(before.maximum));
    setrlimit(Resource::Memlock, Rlimit { current, maximum })
}

/// Writes a file of `/proc` in one call.
fn write_file(path: &CStr, bytes: &[u8]) -> io::Result<()> {
    let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, rustix::fs::Mode::empty())?;
    rustix::io::write(&file, bytes)?;
    Ok(())
}

/// Has mounts of this mount namespace sent to no other.
fn alone() -> io::Result<()> {
    let none = core::ptr::null();
    let alone = libc::MS_REC | libc::MS_SLAVE;
    // SAFETY: a path; the other texts are not looked at for a change of propagation (mount(2)).
    checked(unsafe { libc::mount(none, c"/".as_ptr(), none, alone, none.cast()) })
}

/// Mounts an empty folder over this one, or with `MS_REMOUNT` changes that one.
pub(crate) fn cover(folder: &CStr, data: &CStr, more: libc::c_ulong) -> io::Result<()> {
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC | more;
    let kind = c"tmpfs".as_ptr();
    // SAFETY: texts that end with zero (mount(2)).
    checked(unsafe { libc::mount(kind, folder.as_ptr(), kind, flags, data.as_ptr().cast()) })
}

/// Mounts what is at one path, with what is mounted there, at another one.
pub(crate) fn bind(from: &CStr, at: &CStr) -> io::Result<()> {
    let none = core::ptr::null();
    let flags = libc::MS_BIND | libc::MS_REC;
    // SAFETY: texts that end with zero; the others are not looked at for this kind of mount (mount(2)).
    checked(unsafe { libc::mount(from.as_ptr(), at.as_ptr(), none, flags, none.cast()) })
}

/// Installs the filter, and returns its listener.
fn install(program: &[libc::sock_filter]) -> io::Result<OwnedFd> {
    let program = libc::sock_fprog {
        len: program
            .len()
            .try_into()
            .map_err(|_| io::ErrorKind::InvalidInput)?,
        filter: program.as_ptr().cast_mut(),
    };
    let listens = SECCOMP_FILTER_FLAG_NEW_LISTENER;
    // A program that handles signals is not interrupted while its call is answered. Kernels before 5.19 do not have it.
    for flags in [listens | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, listens] {
        // SAFETY: a program with its length, which the kernel copies and checks (seccomp(2)).
        let number = unsafe {
            libc::syscall(
                libc::SYS_seccomp,
                libc::c_ulong::from(libc::SECCOMP_SET_MODE_FILTER),
                flags,
                &raw const program,
            )
        };
        if let Some(number) = i32::try_from(number).ok().filter(|number| *number >= 0) {
            // SAFETY: a new descriptor, which nothing else owns.
            return Ok(unsafe { OwnedFd::from_raw_fd(number) });
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINVAL) {
            return Err(error);
        }
    }
    Err(io::Error::from_raw_os_error(libc::EINVAL))
}
