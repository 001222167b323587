//! The promises of verbs, over libibverbs: over the fake one, or with `DOORBELL_DEVICE` over that device of the
//! installed one. Both ends are then queue pairs of that one device.
//!
//! `DOORBELL_NETDEV` names the network device under it, which is taken down and given addresses. The device
//! itself is removed and made anew. If a case disturbs packets, the ends are two devices of their own (`wire`).

#[path = "conformance/wire.rs"]
mod wire;

use core::cell::RefCell;
use core::time::Duration;
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::Instant;

use doorbell_conformance::{
    Disturbance, End, Kernel, Options, Patience, ProviderName, Rig, Run, Struck, Subject, Trouble, run,
};
use doorbell_core::provider::{
    AddressVector, CompletionQueueConfig, Context as _, ProtectionDomain as _, Provider as _, QueuePair as _,
    QueuePairConfig, ReadyToReceive, RemoteAccess,
};
use doorbell_core::{Gid, Mtu, PortReport, Psn};
use doorbell_fake::{Control, Value};
use doorbell_ffi::Rdma;
use rdma_sys::ibv_event_type;
use wire::{Wire, ended_in_time};

/// One port, of which both ends are.
struct Device {
    rdma: Rdma,
    port: PortReport,
    /// The index of the GID, and the GID.
    gid: (u8, Gid),
    netdev: Option<String>,
    patience: Patience,
    started: Instant,
    /// The command that removes the device.
    removal: RefCell<Option<Child>>,
    /// The wire between ends whose packets are disturbed.
    wire: RefCell<Option<Wire>>,
}

/// The device that is wanted.
fn wanted() -> Option<String> {
    std::env::var("DOORBELL_DEVICE").ok()
}

fn trouble(error: impl core::fmt::Display) -> Trouble {
    Trouble(error.to_string())
}

impl Device {
    fn find() -> Result<Self, Trouble> {
        let wanted = wanted();
        if wanted.is_none() {
            let path = doorbell_fake::library_path().map_err(trouble)?;
            // SAFETY: the fake was built from this workspace and stands for libibverbs of the machine's ABI.
            unsafe { rdma_sys::load_from(&path) }.map_err(trouble)?;
        }
        let rdma = Rdma::load().map_err(trouble)?;
        let mut found = None;
        rdma.scan(
            &mut |port| {
                let is_meant = wanted.as_ref().is_none_or(|name| *name == port.device.as_str());
                if is_meant && port.usability().is_ok() && found.is_none() {
                    found = Some(port.clone());
                }
            },
            &mut |device, error| eprintln!("{device}: {error}"),
        )?;
        let port = found.ok_or(Trouble::new("there is no usable RDMA device"))?;
        let entry = port.usable_gids().next().ok_or(Trouble::new("there is no GID"))?;
        let index = u8::try_from(entry.index).map_err(trouble)?;
        let gid = (index, entry.gid);
        let patience = if wanted.is_some() {
            Patience {
                come: Duration::from_secs(10),
                quiet: Duration::from_millis(300),
                polls: 1,
                quiet_polls: 1,
            }
        } else {
            Patience {
                come: Duration::from_secs(2),
                // Its receiver-not-ready timer takes 50 ms.
                quiet: Duration::from_millis(20),
                polls: 1,
                quiet_polls: 1,
            }
        };
        let device = Self {
            rdma,
            port,
            gid,
            netdev: std::env::var("DOORBELL_NETDEV").ok(),
            patience,
            started: Instant::now(),
            removal: RefCell::default(),
            wire: RefCell::default(),
        };
        if wanted.is_some() {
            // A kernel gives the first look for a neighbour one second, which a machine that was just booted may not have.
            device.wait_until_connected()?;
        }
        Ok(device)
    }

    /// Runs `ip` on the network device.
    fn ip(&self, arguments: impl FnOnce(&str) -> Vec<String>) -> Result<(), Trouble> {
        let netdev = self.netdev.as_deref();
        let netdev = netdev.ok_or(Trouble::new("there is no network device to change"))?;
        succeed(Command::new("ip").args(arguments(netdev)))
    }

    /// Waits until two queue pairs can be connected again, which takes a port that was down a while.
    fn wait_until_connected(&self) -> Result<(), Trouble> {
        let began = Instant::now();
        loop {
            let outcome = self.connect();
            if outcome.is_ok() || began.elapsed() >= Duration::from_secs(20) {
                return outcome;
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Brings a queue pair to RTR, with itself as its peer.
    fn connect(&self) -> Result<(), Trouble> {
        let context = self.rdma.open(&self.port.device)?;
        let domain = context.protection_domain()?;
        let queue = context.completion_queue(&CompletionQueueConfig {
            depth: 1,
            notify: false,
        })?;
        let config = QueuePairConfig {
            channel: 0,
            send_depth: 1,
            receive_depth: 1,
            gather_max: 1,
            scatter_max: 1,
            inline_bytes_max: 0,
        };
        let other = context.completion_queue(&CompletionQueueConfig {
            depth: 1,
            notify: false,
        })?;
        let mut parts = domain.queue_pair(&queue, &other, &config)?;
        parts.control.initialize(self.port.port, RemoteAccess::READ)?;
        let (source_gid_index, destination) = self.gid;
        let to_receive = ReadyToReceive {
            address: AddressVector {
                destination,
                source_gid_index,
                port: self.port.port,
                hop_limit: 64,
                traffic_class: 0,
                flow_label: 0,
                service_level: 0,
            },
            path_mtu: Mtu::B256,
            destination_qpn: parts.control.qpn(),
            receive_psn: Psn::from_low_bits(0),
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
        };
        Ok(parts.control.ready_to_receive(&to_receive)?)
    }
}

fn succeed(command: &mut Command) -> Result<(), Trouble> {
    let output = command.output().map_err(trouble)?;
    if output.status.success() {
        Ok(())
    } else {
        Err(Trouble(String::from_utf8_lossy(&output.stderr).into_owned()))
    }
}

fn words(all: &[&str]) -> Vec<String> {
    all.iter().map(|word| (*word).to_owned()).collect()
}

impl Rig for Device {
    type P = Rdma;

    fn ends(&self) -> Result<[End<Rdma>; 2], Trouble> {
        let (gid_index, gid) = self.gid;
        let end = || End {
            provider: self.rdma,
            device: self.port.device.to_string(),
            port: self.port.port,
            gid_index,
            gid,
        };
        Ok([end(), end()])
    }

    fn disturbed_ends(&self, how: Disturbance) -> Result<Option<[End<Rdma>; 2]>, Trouble> {
        if wanted().is_none() {
            return Ok(None);
        }
        let mut wire = self.wire.borrow_mut();
        // There is one at a time.
        drop(wire.take());
        wire.insert(Wire::new(how)?).ends(self.rdma).map(Some)
    }

    fn struck(&self) -> Result<Option<Struck>, Trouble> {
        self.wire.borrow().as_ref().map(Wire::struck).transpose()
    }

    fn patience(&self) -> Patience {
        self.patience
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn set_port(&self, up: bool) -> Result<(), Trouble> {
        let state = if up { "up" } else { "down" };
        self.ip(|netdev| words(&["link", "set", "dev", netdev, state]))?;
        if up {
            self.wait_until_connected()?;
        }
        Ok(())
    }

    fn break_device(&self) -> Result<(), Trouble> {
        if wanted().is_none() {
            // It says so, and works on.
            let path = doorbell_fake::library_path().map_err(trouble)?;
            let control = Control::of(&path).map_err(trouble)?;
            control.give(Value::EventType, ibv_event_type::IBV_EVENT_DEVICE_FATAL.0);
            return Ok(());
        }
        if self.netdev.is_none() {
            return Err(Trouble::new("there is no network device to put another on"));
        }
        // Nothing worse can happen to one that is software. The command may wait until nobody has the device open.
        let mut command = Command::new("rdma");
        command.args(["link", "delete", self.port.device.as_str()]);
        let removal = command.stdout(Stdio::null()).spawn().map_err(trouble)?;
        self.removal.replace(Some(removal));
        Ok(())
    }

    fn mend_device(&self) -> Result<(), Trouble> {
        let Some(mut removal) = self.removal.take() else {
            return Ok(());
        };
        ended_in_time(&mut removal)?;
        let netdev = self.netdev.as_deref().unwrap_or_default();
        let mut command = Command::new("rdma");
        command.args([
            "link",
            "add",
            self.port.device.as_str(),
            "type",
            "rxe",
            "netdev",
            netdev,
        ]);
        succeed(&mut command)?;
        self.wait_until_connected()
    }

    fn change_address(&self) -> Result<(), Trouble> {
        // A second one beside the first, of the block for documentation, and gone again.
        for what in ["add", "del"] {
            self.ip(|netdev| words(&["addr", what, "192.0.2.77/24", "dev", netdev]))?;
        }
        Ok(())
    }
}

/// Whose behaviour it is.
fn subject() -> Result<Subject, Trouble> {
    if wanted().is_none() {
        return Ok(Subject {
            provider: ProviderName::Fake,
            kernel: None,
        });
    }
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").map_err(trouble)?;
    let kernel = Kernel::of_release(release.trim());
    Ok(Subject {
        provider: ProviderName::Rxe,
        kernel: Some(kernel.ok_or(Trouble(format!("{release} is no release")))?),
    })
}

/// Whether all passed.
fn conforms() -> Result<bool, Trouble> {
    let options = Options::of(std::env::args().skip(1))?;
    let (device, subject) = (Device::find()?, subject()?);
    let (mut sum, mut out) = (Run::default(), std::io::stdout());
    run(&device, subject, &options, &mut sum, &mut out)?;
    Ok(sum.end(&options, &mut out)?)
}

fn main() -> ExitCode {
    match conforms() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(trouble) => {
            eprintln!("{trouble}");
            ExitCode::from(2)
        }
    }
}
