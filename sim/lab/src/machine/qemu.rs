//! QEMU's command line, and whether KVM really works here.

use core::fmt;
use core::time::Duration;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};

use crate::boot::BootFiles;
use crate::cache::Cache;
use crate::guest::agent::PORT_NAME;
use crate::guest::init::{PROBE_ANSWER, PROBE_ARGUMENT};
use crate::leash;
use crate::steps::step_saying;

/// The program.
pub(crate) const PROGRAM: &str = "qemu-system-x86_64";

/// How long a machine may take to say one line when KVM works: it takes less than a second.
const KVM_PATIENCE: Duration = Duration::from_secs(8);

/// Arguments that make an emulated machine boot quickly, and its clock cheap to read.
const KERNEL_ARGUMENTS: &str = "console=ttyS0 loglevel=4 panic=-1 oops=panic nokaslr mitigations=off \
     random.trust_cpu=on no_timer_check tsc=reliable clocksource=tsc nmi_watchdog=0 audit=0 selinux=0 apparmor=0 \
     cryptomgr.notests rcupdate.rcu_expedited=1 8250.nr_uarts=1 pcie_aspm=off";

/// How a machine's processors are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Accelerator {
    /// By the processor's virtualisation.
    Kvm,
    /// In software.
    Tcg,
}

impl fmt::Display for Accelerator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kvm => "KVM",
            Self::Tcg => "emulation",
        })
    }
}

/// Hardware of one machine.
#[derive(Debug)]
pub(crate) struct Hardware<'a> {
    /// Files that it boots from.
    pub(crate) boot: &'a BootFiles,
    /// How its processors run.
    pub(crate) accelerator: Accelerator,
    /// Rate of the time-stamp counter, if it is known.
    pub(crate) tsc_khz: Option<u32>,
    /// Virtual processors.
    pub(crate) cpus: usize,
    /// Memory.
    pub(crate) memory_mib: u32,
    /// Its network devices.
    pub(crate) nics: &'a [Nic],
    /// The folder it may write in.
    pub(crate) shared: &'a Path,
    /// Socket its agent is reached by; a listener has to be there.
    pub(crate) agent: &'a Path,
    /// File its console goes to.
    pub(crate) console: &'a Path,
}

/// A network device, joined to another machine's by a pair of datagram sockets.
#[derive(Clone, Debug)]
pub(crate) struct Nic {
    /// Hardware address.
    pub(crate) mac: String,
    /// Its own socket.
    pub(crate) local: PathBuf,
    /// The other machine's.
    pub(crate) remote: PathBuf,
}

/// The command that runs a machine.
pub(crate) fn command(hardware: &Hardware<'_>) -> Command {
    let mut command = bare(
        hardware.boot,
        hardware.accelerator,
        hardware.cpus,
        hardware.memory_mib,
    );
    command
        .args(["-append", &kernel_arguments(hardware)])
        .arg("-chardev")
        .arg(format!("file,id=console,path={}", escaped(hardware.console)))
        .args(["-serial", "chardev:console"])
        .arg("-fsdev")
        .arg("local,id=root,path=/,security_model=none,readonly=on,multidevs=remap")
        .args(["-device", "virtio-9p-pci,fsdev=root,mount_tag=root"])
        .arg("-fsdev")
        .arg(format!(
            "local,id=shared,path={},security_model=none,multidevs=remap",
            escaped(hardware.shared)
        ))
        .args(["-device", "virtio-9p-pci,fsdev=shared,mount_tag=shared"])
        .args(["-device", "virtio-serial-pci,max_ports=2"])
        .arg("-chardev")
        .arg(format!("socket,id=agent,path={}", escaped(hardware.agent)))
        .args([
            "-device",
            &format!("virtserialport,chardev=agent,name={PORT_NAME}"),
        ])
        .args(["-device", "virtio-rng-pci"]);
    for (index, nic) in hardware.nics.iter().enumerate() {
        command
            .arg("-netdev")
            .arg(format!(
                "dgram,id=net{index},local.type=unix,local.path={},remote.type=unix,remote.path={}",
                escaped(&nic.local),
                escaped(&nic.remote)
            ))
            .args([
                "-device",
                &format!("virtio-net-pci,netdev=net{index},mac={},romfile=", nic.mac),
            ]);
    }
    command
}

fn kernel_arguments(hardware: &Hardware<'_>) -> String {
    match hardware.tsc_khz {
        Some(khz) => format!("{KERNEL_ARGUMENTS} tsc_early_khz={khz}"),
        None => KERNEL_ARGUMENTS.to_owned(),
    }
}

fn bare(boot: &BootFiles, accelerator: Accelerator, cpus: usize, memory_mib: u32) -> Command {
    let mut command = Command::new(PROGRAM);
    command
        .args([
            "-nodefaults",
            "-no-user-config",
            "-no-reboot",
            "-display",
            "none",
            "-monitor",
            "none",
        ])
        .args([
            "-M",
            "pc,usb=off,vmport=off,smbus=off",
            "-smp",
            &cpus.to_string(),
            "-m",
            &format!("{memory_mib}M"),
        ])
        .arg("-kernel")
        .arg(&boot.kernel)
        .arg("-initrd")
        .arg(&boot.initial);
    match accelerator {
        Accelerator::Kvm => command.args(["-accel", "kvm", "-cpu", "host"]),
        Accelerator::Tcg => command.args(["-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max"]),
    };
    command
}

/// A path in an option of QEMU's: a comma is doubled.
fn escaped(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

/// KVM if it boots a machine here, else emulation. The answer is remembered
/// until this machine is booted again.
///
/// # Errors
///
/// QEMU cannot be run at all.
pub(crate) fn accelerator(cache: &Cache, boot: &BootFiles, scratch: &Path) -> Result<Accelerator> {
    let key = circumstances();
    if let Some(verdict) = known_verdict(cache, &key) {
        return Ok(if verdict == "works" {
            Accelerator::Kvm
        } else {
            Accelerator::Tcg
        });
    }
    let verdict = step_saying("trying KVM", || {
        let verdict = match try_kvm(boot, scratch) {
            Ok(()) => "works".to_owned(),
            Err(e) => format!("{e:#}").lines().next().unwrap_or_default().to_owned(),
        };
        let said = if verdict == "works" {
            verdict.clone()
        } else {
            format!("{verdict}; emulating instead")
        };
        Ok((verdict, said))
    })?;
    cache.set_note("kvm", &format!("{key}\n{verdict}\n"))?;
    Ok(if verdict == "works" {
        Accelerator::Kvm
    } else {
        Accelerator::Tcg
    })
}

/// Returns the remembered verdict on KVM for this boot of this machine: `works`, or why not.
pub(crate) fn remembered(cache: &Cache) -> Option<String> {
    known_verdict(cache, &circumstances())
}

/// Circumstances that a verdict holds for: this boot of this machine, and whether `/dev/kvm` may be opened.
fn circumstances() -> String {
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let access = rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK;
    let allowed = rustix::fs::access("/dev/kvm", access).is_ok();
    format!(
        "{} {}",
        boot_id.trim(),
        if allowed { "allowed" } else { "not allowed" }
    )
}

fn known_verdict(cache: &Cache, key: &str) -> Option<String> {
    let note = cache.note("kvm")?;
    let mut lines = note.lines();
    (lines.next() == Some(key)).then(|| lines.next().unwrap_or_default().to_owned())
}

fn try_kvm(boot: &BootFiles, scratch: &Path) -> Result<()> {
    fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/kvm")
        .context("/dev/kvm cannot be opened")?;
    let console = scratch.join("kvm.console");
    let mut command = bare(boot, Accelerator::Kvm, 1, 512);
    command
        .args(["-append", &format!("{KERNEL_ARGUMENTS} {PROBE_ARGUMENT}")])
        .arg("-serial")
        .arg(format!("file:{}", console.display()));
    let log = scratch.join("kvm.log");
    let mut qemu = leash::spawn_logging(&command, &log)?;
    let deadline = Instant::now().checked_add(KVM_PATIENCE).context("no deadline")?;
    loop {
        let ended = qemu.has_ended();
        if fs::read_to_string(&console)
            .unwrap_or_default()
            .contains(PROBE_ANSWER)
        {
            return Ok(());
        }
        if ended {
            let said = fs::read_to_string(&log).unwrap_or_default();
            bail!(
                "QEMU gave up: {}",
                said.lines().next().unwrap_or("without a word")
            );
        }
        if Instant::now() >= deadline {
            bail!(
                "a machine hangs with it (nothing within {} s)",
                KVM_PATIENCE.as_secs()
            );
        }
        thread::sleep(Duration::from_millis(20));
    }
}
