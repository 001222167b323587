//! Process 1 of a machine. It loads the modules that came in its initial file system, and puts a private
//! copy-on-write view of the lab's file system in place. It starts the agent, and powers the machine off when
//! the agent ends.

use core::ffi::CStr;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, mount, mount_move};
use rustix::process::WaitOptions;
use rustix::system::RebootCommand;

/// Folder with the modules in the initial file system, named in loading order.
pub(crate) const MODULES: &str = "/modules";

/// Answer of process 1 if it is only asked whether the machine boots at all.
pub(crate) const PROBE_ANSWER: &str = "doorbell-lab: this machine boots";

/// Argument on the kernel's command line that asks for that.
pub(crate) const PROBE_ARGUMENT: &str = "doorbell.probe";

/// Runs as process 1; never returns.
pub(crate) fn run() -> ! {
    if let Err(e) = live() {
        eprintln!("doorbell-lab: {e:#}");
    }
    loop {
        // Nothing is left to do but to ask again.
        let _ = rustix::system::reboot(RebootCommand::PowerOff);
        std::thread::sleep(core::time::Duration::from_millis(100));
    }
}

fn live() -> Result<()> {
    let none = MountFlags::empty();
    plain("proc", "/proc", "proc", none, None)?;
    if fs::read_to_string("/proc/cmdline")?.contains(PROBE_ARGUMENT) {
        println!("{PROBE_ANSWER}");
        return Ok(());
    }
    plain("devtmpfs", "/dev", "devtmpfs", none, None)?;
    plain("sysfs", "/sys", "sysfs", none, None)?;
    load_modules();
    mount_9p("root", Path::new("/lower"), false).context("cannot mount the lab's file system")?;
    plain("tmpfs", "/upper", "tmpfs", none, None)?;
    fs::create_dir("/upper/data")?;
    fs::create_dir("/upper/work")?;
    let layers = c"lowerdir=/lower,upperdir=/upper/data,workdir=/upper/work";
    plain("overlay", "/root", "overlay", none, Some(layers))?;
    for name in ["dev", "proc", "sys"] {
        mount_move(format!("/{name}"), format!("/root/{name}"))
            .with_context(|| format!("cannot move /{name}"))?;
    }
    std::env::set_current_dir("/root")?;
    mount_move(".", "/").context("cannot move the root")?;
    rustix::process::chroot(".").context("cannot change the root")?;
    std::env::set_current_dir("/")?;

    plain("tmpfs", "/run", "tmpfs", none, Some(c"mode=755"))?;
    for folder in ["/dev/pts", "/dev/shm"] {
        fs::create_dir_all(folder)?;
    }
    plain(
        "devpts",
        "/dev/pts",
        "devpts",
        none,
        Some(c"mode=620,ptmxmode=666"),
    )?;
    plain("tmpfs", "/dev/shm", "tmpfs", none, Some(c"mode=1777"))?;
    // Links that systemd or udev would have made.
    for (link, target) in [
        ("fd", "self/fd"),
        ("stdin", "self/fd/0"),
        ("stdout", "self/fd/1"),
        ("stderr", "self/fd/2"),
    ] {
        let _ = std::os::unix::fs::symlink(format!("/proc/{target}"), format!("/dev/{link}"));
    }

    let agent = Command::new("/proc/self/exe")
        .arg0("lab")
        .arg("agent")
        .env_clear()
        .env(
            "PATH",
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        )
        .env("HOME", "/root")
        .env("LANG", "C.UTF-8")
        .env("TERM", "linux")
        .spawn()
        .context("cannot start the agent")?;
    // Process 1 reaps every orphan of the machine.
    let agent = rustix::process::Pid::from_child(&agent);
    loop {
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some((pid, _))) if pid == agent => return Ok(()),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno).context("cannot wait for the agent"),
        }
    }
}

/// Mounts a folder QEMU shares under `tag`.
pub(crate) fn mount_9p(tag: &str, target: &Path, writable: bool) -> Result<()> {
    let (flags, options) = if writable {
        // Writes reach the lab at once. `mmap` and `loose` keep them back on kernels since 6.4, and lose those that come while another
        // process asks for the file's length: its pages are then behind the end that the lab knows. Older kernels have no other mode.
        // No file there can be mapped for shared writing.
        (
            MountFlags::empty(),
            c"trans=virtio,version=9p2000.L,msize=262144,cache=none",
        )
    } else {
        (
            MountFlags::RDONLY,
            c"trans=virtio,version=9p2000.L,msize=262144,cache=loose",
        )
    };
    fs::create_dir_all(target).with_context(|| format!("cannot make {}", target.display()))?;
    mount(tag, target, "9p", flags, Some(options))?;
    Ok(())
}

fn plain(source: &str, target: &str, kind: &str, flags: MountFlags, data: Option<&CStr>) -> Result<()> {
    fs::create_dir_all(target).with_context(|| format!("cannot make {target}"))?;
    mount(source, target, kind, flags, data).with_context(|| format!("cannot mount {kind} on {target}"))
}

/// A module that does not load is named on the console; its users fail with messages of their own.
fn load_modules() {
    let mut files: Vec<_> = fs::read_dir(MODULES)
        .map(|dir| dir.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default();
    files.sort();
    for file in files {
        let loaded = rustix::fs::open(&file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .and_then(|opened| rustix::system::finit_module(opened, c"", 0));
        match loaded {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(errno) => eprintln!("doorbell-lab: cannot load {}: {errno}", file.display()),
        }
    }
}
