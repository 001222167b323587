//! The program's `/dev`: all that was there at the start, but for RDMA devices. Nodes that come later are not in it.
//!
//! A folder in memory covers `/dev`, and each entry is mounted at its place in it. A cover of `/dev/infiniband` alone hides no folder that
//! is made later: by a driver that is loaded then, or that is loaded again.
//!
//! All of it is prepared before the fork. [`Nodes::mount`] allocates nothing.

use std::ffi::{CStr, CString, OsString};
use std::fs;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::launch::{bind, cover};
use crate::tree::room;

const DEV: &CStr = c"/dev";
const HIDDEN: &str = "infiniband";

#[derive(Debug)]
enum Kind {
    Folder,
    /// A device, a file or a socket.
    Node,
    Link(CString),
}

/// An entry of `/dev`.
#[derive(Debug)]
struct DeviceFile {
    name: CString,
    at: CString,
    kind: Kind,
}

/// The entries to keep.
#[derive(Debug)]
pub(crate) struct Nodes {
    entries: Vec<DeviceFile>,
    options: CString,
    /// The folder of this process, if it is one that is covered.
    current: Option<CString>,
}

fn text(path: impl Into<OsString>) -> io::Result<CString> {
    Ok(CString::new(path.into().into_vec())?)
}

impl Nodes {
    /// Looks at what is there.
    pub(crate) fn found() -> io::Result<Self> {
        let dev = Path::new("/dev");
        let mut entries = Vec::new();
        for entry in fs::read_dir(dev)? {
            let entry = entry?;
            if entry.file_name() == HIDDEN {
                continue;
            }
            let kind = match entry.file_type() {
                Ok(kind) if kind.is_dir() => Kind::Folder,
                Ok(kind) if kind.is_symlink() => Kind::Link(text(fs::read_link(entry.path())?)?),
                Ok(_) => Kind::Node,
                // It is gone.
                Err(_) => continue,
            };
            entries.push(DeviceFile {
                name: text(entry.file_name())?,
                at: text(entry.path())?,
                kind,
            });
        }
        // With the folder that is hidden. A page for each entry is more than empty files and links take.
        let count = entries.len().saturating_add(1);
        let bytes = count.saturating_add(1).saturating_mul(rustix::param::page_size());
        let current = std::env::current_dir().ok().filter(|path| path.starts_with(dev));
        Ok(Self {
            entries,
            options: CString::new(room(bytes, count))?,
            current: current.map(text).transpose()?,
        })
    }

    /// Covers `/dev`, and mounts the entries.
    pub(crate) fn mount(&self) -> io::Result<()> {
        let here = rustix::fs::openat(CWD, c".", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        // From below the cover, by names without a root.
        rustix::process::chdir(DEV)?;
        cover(DEV, &self.options, 0)?;
        for entry in &self.entries {
            match entry.mount() {
                // It has gone meanwhile, and so does what was made to mount it on.
                Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => {
                    let flags = match entry.kind {
                        Kind::Folder => AtFlags::REMOVEDIR,
                        _ => AtFlags::empty(),
                    };
                    let _ = rustix::fs::unlinkat(CWD, &entry.at, flags);
                }
                mounted => mounted?,
            }
        }
        rustix::fs::mkdirat(CWD, c"/dev/infiniband", Mode::from_raw_mode(0o755))?;
        cover(DEV, c"", libc::MS_REMOUNT | libc::MS_RDONLY)?;
        match &self.current {
            Some(path) => rustix::process::chdir(path)?,
            None => rustix::process::fchdir(here.as_fd())?,
        }
        Ok(())
    }
}

impl DeviceFile {
    fn mount(&self) -> io::Result<()> {
        match &self.kind {
            Kind::Link(target) => return Ok(rustix::fs::symlinkat(target, CWD, &self.at)?),
            Kind::Folder => rustix::fs::mkdirat(CWD, &self.at, Mode::from_raw_mode(0o755))?,
            Kind::Node => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                drop(rustix::fs::openat(CWD, &self.at, flags, Mode::empty())?);
            }
        }
        bind(&self.name, &self.at)
    }
}
