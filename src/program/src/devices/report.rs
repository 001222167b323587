//! The report on devices, as a serializable document and as aligned text. Nothing is queried here.

use core::fmt::Write as _;
use core::net::IpAddr;

use doorbell::provider::{DeviceReport, GidEntry, GidKind, PortReport, ProviderKind, Quirks, Unusable};
use serde::Serialize;

use super::HOW_TO_GET_ONE;
use crate::columns::{Align, aligned};

/// The report of `doorbell devices`.
#[derive(Serialize)]
pub(super) struct Listing {
    pub(super) library: Library,
    pub(super) devices: Vec<Device>,
    /// Kernel devices for which libibverbs has no driver.
    pub(super) kernel_only: Vec<String>,
    /// If there are no devices: the missing parts of the machine.
    pub(super) missing: Vec<String>,
    pub(super) ports_usable: usize,
    pub(super) ports_total: usize,
}

/// The libibverbs in use.
#[derive(Serialize)]
pub(super) struct Library {
    pub(super) file: Option<String>,
    pub(super) rdma_core: Option<String>,
}

/// One device.
#[derive(Serialize)]
pub(super) struct Device {
    #[serde(rename = "device")]
    pub(super) name: String,
    pub(super) provider: &'static str,
    pub(super) driver: Option<String>,
    pub(super) firmware: Option<String>,
    pub(super) pci_address: Option<String>,
    pub(super) sysfs_path: Option<String>,
    pub(super) numa_node: Option<u16>,
    /// Whether it can register dma-bufs. `None` if unknown.
    pub(super) imports_dmabuf: Option<bool>,
    /// Operations for which it supports on-demand paging. `None` if unknown.
    pub(super) on_demand: Option<Vec<String>>,
    pub(super) quirks: DeviceQuirks,
    pub(super) ports: Vec<Port>,
    /// Queries that failed, with the reason.
    pub(super) failures: Vec<String>,
}

/// Quirks of this provider, in this release of rdma-core.
#[derive(Serialize)]
pub(super) struct DeviceQuirks {
    pub(super) extended_calls_trusted: bool,
    pub(super) retry_count_max: u8,
    pub(super) timer_min_us: u32,
    pub(super) stale_completions: bool,
}

/// One port.
#[derive(Serialize)]
pub(super) struct Port {
    pub(super) port: u8,
    pub(super) state: String,
    pub(super) link_layer: &'static str,
    pub(super) active_mtu_bytes: Option<u32>,
    pub(super) mtu_max_bytes: Option<u32>,
    pub(super) speed_mbps: Option<u32>,
    pub(super) usable: bool,
    /// The reason, if it is not usable.
    pub(super) reason: Option<String>,
    pub(super) gids: Vec<Gid>,
}

/// A filled entry of a GID table.
#[derive(Serialize)]
pub(super) struct Gid {
    pub(super) index: u32,
    pub(super) gid: String,
    pub(super) kind: String,
    /// The address that the GID contains, whether or not an interface has it.
    #[serde(skip)]
    ip: IpAddr,
    /// With the prefix length of the interface.
    pub(super) address: Option<String>,
    pub(super) netdev: Option<String>,
    pub(super) usable: bool,
    /// The reason, if it is not usable.
    pub(super) reason: Option<String>,
}

impl Listing {
    pub(super) fn new(
        library: Library,
        devices: Vec<Device>,
        kernel_only: Vec<String>,
        missing: &[String],
    ) -> Self {
        let ports = || devices.iter().flat_map(|device| &device.ports);
        let (ports_usable, ports_total) = (ports().filter(|port| port.usable).count(), ports().count());
        let missing = if devices.is_empty() { missing } else { &[] };
        Self {
            library,
            kernel_only,
            missing: missing.to_vec(),
            ports_usable,
            ports_total,
            devices,
        }
    }

    /// The report as text. The last line is the result.
    pub(super) fn to_text(&self, verbose: bool) -> String {
        let mut text = String::new();
        let release = match &self.library.rdma_core {
            Some(release) => format!("rdma-core {release}"),
            None => "rdma-core of unknown release".to_owned(),
        };
        let file = self.library.file.as_deref().unwrap_or("libibverbs");
        line(&mut text, format_args!("{file} ({release})"));
        for device in &self.devices {
            text.push('\n');
            device.write(&mut text, verbose);
        }
        for name in &self.kernel_only {
            line(
                &mut text,
                format_args!(
                    "\n{name}\n  the kernel has it, but libibverbs has no driver for it: install the package \
                     ibverbs-providers (Debian, Ubuntu) or libibverbs (Fedora, RHEL)"
                ),
            );
        }
        text.push('\n');
        if self.devices.is_empty() && self.kernel_only.is_empty() {
            line(&mut text, format_args!("no RDMA device"));
            for missing in &self.missing {
                line(&mut text, format_args!("  {missing}"));
            }
            text.push_str(HOW_TO_GET_ONE);
        } else if self.ports_usable == 0 {
            text.push_str(HOW_TO_GET_ONE);
        }
        let noun = if self.ports_total == 1 { "port" } else { "ports" };
        line(
            &mut text,
            format_args!("{} of {} {noun} usable", self.ports_usable, self.ports_total),
        );
        text
    }
}

impl Device {
    /// Builds the report of a device from a complete survey.
    pub(super) fn of(found: &DeviceReport) -> Self {
        Self {
            driver: found.driver.clone(),
            firmware: found.firmware.clone(),
            pci_address: found.pci_address.clone(),
            sysfs_path: found.device_path.as_ref().map(|path| path.display().to_string()),
            numa_node: found.numa_node,
            imports_dmabuf: found.imports_dmabuf,
            on_demand: found
                .on_demand
                .map(|on_demand| on_demand.names().map(Into::into).collect()),
            failures: found.failures.iter().map(ToString::to_string).collect(),
            ..Self::new(&found.name, found.quirks, &found.ports)
        }
    }

    /// Builds the report from the ports only, without the device's location.
    pub(super) fn new(name: &str, quirks: Quirks, ports: &[PortReport]) -> Self {
        Self {
            name: name.to_owned(),
            provider: match quirks.provider {
                ProviderKind::Rxe => "rxe (Soft-RoCE)",
                _ => "rdma-core's own",
            },
            driver: None,
            firmware: None,
            pci_address: None,
            sysfs_path: None,
            numa_node: None,
            imports_dmabuf: None,
            on_demand: None,
            quirks: DeviceQuirks {
                extended_calls_trusted: quirks.extended,
                retry_count_max: quirks.retry_count_max,
                timer_min_us: quirks.timer_min_us,
                stale_completions: quirks.stale_completions,
            },
            ports: ports.iter().map(Port::new).collect(),
            failures: Vec::new(),
        }
    }

    fn write(&self, text: &mut String, verbose: bool) {
        let driver = self.driver.as_deref().unwrap_or("none (virtual)");
        let pci = self.pci_address.as_deref().unwrap_or("none");
        let numa = self.numa_node.map_or("any".to_owned(), |node| node.to_string());
        let (name, provider) = (&self.name, self.provider);
        line(
            text,
            format_args!("{name}  provider {provider}, driver {driver}, PCI {pci}, NUMA node {numa}"),
        );
        if verbose {
            self.write_more(text);
        }
        for port in &self.ports {
            port.write(text, verbose);
        }
        for failure in &self.failures {
            line(text, format_args!("  not looked at: {failure}"));
        }
    }

    fn write_more(&self, text: &mut String) {
        let quirks = &self.quirks;
        if let Some(path) = &self.sysfs_path {
            line(text, format_args!("  sysfs     {path}"));
        }
        if let Some(firmware) = &self.firmware {
            line(text, format_args!("  firmware  {firmware}"));
        }
        let dmabuf = match self.imports_dmabuf {
            Some(true) => "registered",
            Some(false) => "not registered",
            None => "unknown",
        };
        line(text, format_args!("  dma-buf   {dmabuf}"));
        let on_demand = match self.on_demand.as_deref() {
            Some([]) => "no memory".into(),
            Some(operations) => format!("memory of {}", operations.join(", ")),
            None => "unknown".into(),
        };
        line(text, format_args!("  on demand {on_demand}"));
        let trusted = if quirks.extended_calls_trusted {
            "trusted"
        } else {
            "not trusted"
        };
        line(text, format_args!("  quirks    extended calls {trusted}"));
        line(
            text,
            format_args!("            retry count at most {}", quirks.retry_count_max),
        );
        if quirks.timer_min_us > 0 {
            line(
                text,
                format_args!("            timers of at least {} us", quirks.timer_min_us),
            );
        }
        if quirks.stale_completions {
            line(
                text,
                format_args!("            completions outlive their queue pair"),
            );
        }
    }
}

impl Port {
    fn new(report: &PortReport) -> Self {
        let usability = report.usability();
        Self {
            port: report.port,
            state: report.state.to_string(),
            link_layer: if report.is_ethernet {
                "Ethernet"
            } else {
                "InfiniBand"
            },
            active_mtu_bytes: report.active_mtu.map(|mtu| mtu.bytes()),
            mtu_max_bytes: report.mtu_max.map(|mtu| mtu.bytes()),
            speed_mbps: Some(report.speed_mbps).filter(|mbps| *mbps > 0),
            usable: usability.is_ok(),
            reason: usability.err().map(|reason| reason.to_string()),
            gids: report
                .gids
                .iter()
                .map(|entry| Gid::new(entry, usability.err()))
                .collect(),
        }
    }

    fn write(&self, text: &mut String, verbose: bool) {
        let bytes = |bytes: Option<u32>| bytes.map_or("unknown".to_owned(), |bytes| bytes.to_string());
        let speed = self.speed_mbps.map_or("speed unknown".to_owned(), |mbps| {
            format!("{} Gb/s", f64::from(mbps) / 1000.0)
        });
        line(
            text,
            format_args!(
                "  port {}  {}  {}  MTU {} (max {})  {speed}  {}",
                self.port,
                self.state,
                self.link_layer,
                bytes(self.active_mtu_bytes),
                bytes(self.mtu_max_bytes),
                verdict(self.reason.as_deref()),
            ),
        );
        if self.gids.is_empty() {
            line(text, format_args!("    the GID table is empty"));
        }
        let index_width = self.gids.iter().map(|gid| gid.index.to_string().len()).max();
        let index_width = index_width.unwrap_or(0);
        let rows = self.gids.iter().map(|gid| {
            let address = gid.address.clone().unwrap_or_else(|| gid.ip.to_string());
            [
                format!("GID {}", gid.index),
                gid.kind.clone(),
                address,
                gid.netdev.as_deref().unwrap_or("-").to_owned(),
                verdict(gid.reason.as_deref()),
            ]
        });
        let rows = aligned("    ", Align::Left, rows);
        for (row, gid) in rows.lines().zip(&self.gids) {
            line(text, format_args!("{row}"));
            if verbose {
                let width = "GID ".len().saturating_add(index_width);
                line(text, format_args!("    {:width$}  raw {}", "", gid.gid));
            }
        }
    }
}

impl Gid {
    fn new(entry: &GidEntry, port: Option<Unusable>) -> Self {
        let reason = why_not(entry, port);
        Self {
            index: entry.index,
            gid: entry.gid.to_string(),
            kind: entry.kind.to_string(),
            ip: entry.gid.to_ip(),
            address: entry.address.map(|address| address.to_string()),
            netdev: entry.interface.as_ref().map(ToString::to_string),
            usable: reason.is_none(),
            reason,
        }
    }
}

/// The reason why no connection can be made with this entry.
fn why_not(entry: &GidEntry, port: Option<Unusable>) -> Option<String> {
    match (entry.kind, &entry.interface) {
        (GidKind::Infiniband, _) => Some("InfiniBand, not RoCE".into()),
        (GidKind::RoceV1, _) => Some("RoCEv1 is not routable and not used".into()),
        (GidKind::Unknown(_), _) => Some("not a kind that is known".into()),
        (_, None) => Some("its network interface is not in this network namespace".into()),
        (_, Some(interface)) if entry.address.is_none() => Some(format!("not an IP address of {interface}")),
        // The address vector of a queue pair identifies its GID by eight bits.
        _ if entry.index > u32::from(u8::MAX) => Some("its index is beyond 255".into()),
        _ => port.map(|reason| reason.to_string()),
    }
}

fn verdict(reason: Option<&str>) -> String {
    reason.map_or("usable".to_owned(), |reason| format!("not usable: {reason}"))
}

/// Adds a line, without trailing spaces.
fn line(text: &mut String, arguments: core::fmt::Arguments<'_>) {
    let start = text.len();
    // Writing to a string does not fail.
    let _ = text.write_fmt(arguments);
    let kept = text.trim_end_matches(' ').len().max(start);
    text.truncate(kept);
    text.push('\n');
}
