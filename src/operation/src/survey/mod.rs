//! Surveys this host: devices and addresses through `ffi`, everything else from procfs, sysfs and netlink.
//!
//! The survey runs no program and changes nothing. It sends packets only to the peers that are passed to
//! [`asking`].

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use doorbell::provider::{DeviceReport, Interface, Rdma};

use crate::topology::{ArpFacts, InterfaceFacts, PortFacts, Topology};
use doorbell::NodeError;

mod asking;
mod neighbours;
mod netlink;
mod routes;

/// Directories from which facts are read. Tests use others.
struct Roots<'r> {
    infiniband: &'r Path,
    net: &'r Path,
    ipv4_conf: &'r Path,
    kernel: &'r Path,
}

/// Maximum number of partition keys that are read of a port, more than any port has.
const PKEYS_MAX: u32 = 256;

/// The flag of an interface that is administratively up. Source: `netdevice(7)`.
const IFF_UP: u32 = 1;

impl Topology {
    /// Surveys this host, in the network namespace of the calling thread.
    ///
    /// Sources that cannot be read are listed in [`Topology::failures`].
    ///
    /// # Errors
    /// The interfaces cannot be listed.
    pub fn of_this_host(rdma: &Rdma) -> Result<Self, NodeError> {
        let roots = Roots {
            infiniband: Path::new("/sys/class/infiniband"),
            net: Path::new("/sys/class/net"),
            ipv4_conf: Path::new("/proc/sys/net/ipv4/conf"),
            kernel: Path::new("/proc/sys/kernel"),
        };
        let interfaces = Interface::all()?;
        let mut failures = Vec::new();
        // Without RDMA devices, the rest of the host is still surveyed.
        let devices = rdma.devices().unwrap_or_else(|error| {
            failures.push(format!("RDMA devices: {error}"));
            Vec::new()
        });
        let neighbours = neighbours::all(&interfaces).unwrap_or_else(|error| {
            failures.push(format!("neighbours: {error}"));
            Vec::new()
        });
        let routes = routes::of_shared_subnets(&interfaces).unwrap_or_else(|error| {
            failures.push(format!("routes: {error}"));
            Vec::new()
        });
        let mut topology = roots.look(&devices, &interfaces, &mut failures);
        topology.neighbours = neighbours;
        topology.routes = routes;
        topology.failures = failures;
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        topology.taken_unix_s = since.map_or(0, |since| since.as_secs());
        Ok(topology)
    }
}

impl Roots<'_> {
    fn look(
        &self,
        devices: &[DeviceReport],
        interfaces: &[Interface],
        failures: &mut Vec<String>,
    ) -> Topology {
        let mut ports = Vec::new();
        for device in devices {
            for failure in &device.failures {
                failures.push(format!("{}: {failure}", device.name));
            }
            ports.extend(device.ports.iter().map(|report| PortFacts {
                report: report.clone(),
                node_guid: read(&self.infiniband.join(device.name.as_str()).join("node_guid")),
                driver: device.driver.clone(),
                firmware: device.firmware.clone(),
                pci_address: device.pci_address.clone(),
                sysfs_path: device.device_path.as_ref().map(|path| path.display().to_string()),
                netdevs: self.netdevs(device.name.as_str(), report.port, device.ports.len()),
                pkeys: self.pkeys(device.name.as_str(), report.port),
            }));
        }
        Topology {
            host: read(&self.kernel.join("hostname")).unwrap_or_else(|| "this host".to_owned()),
            kernel: read(&self.kernel.join("osrelease")).unwrap_or_default(),
            ports,
            interfaces: interfaces
                .iter()
                .map(|interface| self.interface(interface, failures))
                .collect(),
            ..Topology::default()
        }
    }

    /// The interfaces of a port: those of its GIDs, the one that a software device names as its parent, and, for a
    /// device with one port, those of the same PCI function.
    ///
    /// Source: Linux, Documentation/ABI/stable/sysfs-class-infiniband.
    fn netdevs(&self, device: &str, port: u8, ports: usize) -> Vec<String> {
        let folder = self.infiniband.join(device);
        let mut names = Vec::new();
        let of_gids = folder.join(format!("ports/{port}/gid_attrs/ndevs"));
        names.extend(
            entries(&of_gids)
                .iter()
                .filter_map(|index| read(&of_gids.join(index))),
        );
        names.extend(read(&folder.join("parent")));
        if ports == 1 {
            names.extend(entries(&folder.join("device/net")));
        }
        names.sort_unstable();
        names.dedup();
        names
    }

    /// The partition keys of a port, without the empty ones at the end.
    fn pkeys(&self, device: &str, port: u8) -> Option<Vec<u16>> {
        let folder = self.infiniband.join(device).join(format!("ports/{port}/pkeys"));
        let key = |index: u32| {
            let text = read(&folder.join(index.to_string()))?;
            u16::from_str_radix(text.strip_prefix("0x")?, 16).ok()
        };
        let mut keys: Vec<u16> = (0..PKEYS_MAX).map_while(key).collect();
        if keys.is_empty() {
            return None;
        }
        let last = keys.iter().rposition(|key| *key != 0);
        keys.truncate(last.map_or(0, |last| last.saturating_add(1)));
        Some(keys)
    }

    fn interface(&self, interface: &Interface, failures: &mut Vec<String>) -> InterfaceFacts {
        let mut facts = InterfaceFacts {
            name: interface.name.clone(),
            index: interface.index,
            addresses: interface.addresses.clone(),
            ..InterfaceFacts::default()
        };
        let folder = self.net.join(&interface.name);
        // Sysfs shows the namespace in which it was mounted, which may be a different one.
        if number(&folder.join("ifindex")) == Some(interface.index) {
            facts.mtu_bytes = number(&folder.join("mtu"));
            facts.is_up = read(&folder.join("flags"))
                .and_then(|flags| u32::from_str_radix(flags.strip_prefix("0x")?, 16).ok())
                .map(|flags| flags & IFF_UP != 0);
            facts.has_carrier = number(&folder.join("carrier")).map(|carrier| carrier != 0);
            facts.hardware_address = read(&folder.join("address"));
        } else {
            failures.push(format!(
                "{}: sysfs is that of another network namespace, so its MTU and state are not known",
                interface.name
            ));
        }
        facts.arp = self.arp(&interface.name);
        facts
    }

    /// The settings in effect: the larger of the interface's value and the value for all interfaces.
    ///
    /// Source: Linux, Documentation/networking/ip-sysctl.rst, and include/linux/inetdevice.h.
    fn arp(&self, interface: &str) -> ArpFacts {
        let of = |place: &str, name: &str| number(&self.ipv4_conf.join(place).join(name));
        let in_effect = |name: &str| {
            let value = of(interface, name)?.max(of("all", name).unwrap_or(0));
            u8::try_from(value).ok()
        };
        ArpFacts {
            announce: in_effect("arp_announce"),
            ignore: in_effect("arp_ignore"),
            filter: in_effect("arp_filter"),
            rp_filter: in_effect("rp_filter"),
        }
    }
}

/// The text of a small file. `None` if it cannot be read or is empty.
fn read(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

fn number(path: &Path) -> Option<u32> {
    read(path)?.parse().ok()
}

/// The names in a folder. Empty if it cannot be read.
fn entries(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{DeviceReport, Interface, Roots};
    use crate::topology::{ArpFacts, PortFacts};
    use doorbell::provider::{LookFailure, PortReport, PortState, ProviderError};
    use std::fs;
    use std::path::Path;
    use tempfile::TempDir;

    /// Writes a file in the folder, and creates the folders above it.
    fn write(folder: &TempDir, path: &str, text: &str) {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn roots(folder: &Path) -> Roots<'_> {
        Roots {
            infiniband: folder,
            net: folder,
            ipv4_conf: folder,
            kernel: folder,
        }
    }

    #[test]
    fn an_interface_is_what_sysfs_says_of_the_same_number() {
        let folder = TempDir::new().unwrap();
        for (name, text) in [
            ("ifindex", "7\n"),
            ("mtu", "4200\n"),
            ("flags", "0x1002\n"),
            ("carrier", "1\n"),
            ("address", "02:00:00:00:00:01\n"),
            ("arp_ignore", "1\n"),
            ("arp_announce", "0\n"),
            ("rp_filter", "2\n"),
        ] {
            write(&folder, &format!("eth0/{name}"), text);
        }
        write(&folder, "all/arp_announce", "2\n");
        write(&folder, "all/rp_filter", "1\n");
        let interface = |index| Interface {
            name: "eth0".into(),
            index,
            addresses: vec!["10.0.0.1/24".parse().unwrap()],
        };
        let mut failures = Vec::new();
        let facts = roots(folder.path()).interface(&interface(7), &mut failures);
        assert_eq!((facts.is_up, facts.has_carrier), (Some(false), Some(true)));
        assert_eq!(facts.mtu_bytes, Some(4200));
        assert_eq!(facts.hardware_address.as_deref(), Some("02:00:00:00:00:01"));
        let arp = ArpFacts {
            announce: Some(2),
            ignore: Some(1),
            filter: None,
            rp_filter: Some(2),
        };
        assert_eq!(facts.arp, arp);
        assert!(failures.is_empty());
        let facts = roots(folder.path()).interface(&interface(8), &mut failures);
        assert_eq!((facts.is_up, facts.mtu_bytes), (None, None));
        assert_eq!(failures.len(), 1);
    }

    #[test]
    fn a_port_has_what_was_found_of_its_device() {
        let folder = TempDir::new().unwrap();
        write(&folder, "mlx5_0/node_guid", "0002:c903:0000:0001\n");
        let quirks = doorbell::provider::Quirks {
            provider: doorbell::provider::ProviderKind::Other,
            extended: true,
            retry_count_max: 7,
            timer_min_us: 0,
            stale_completions: false,
            on_demand: true,
            carries_more_than_reported: false,
        };
        let failure = LookFailure {
            port: Some(3),
            error: ProviderError {
                call: "ibv_query_port",
                errno: 5,
            },
        };
        let report = |port| PortReport {
            device: "mlx5_0".try_into().unwrap(),
            port,
            state: PortState::ACTIVE,
            is_ethernet: true,
            active_mtu: None,
            mtu_max: None,
            speed_mbps: 100_000,
            numa_node: Some(1),
            gids: Default::default(),
            gids_left_out: 0,
        };
        let device = DeviceReport {
            name: "mlx5_0".try_into().unwrap(),
            quirks,
            driver: Some("mlx5_core".into()),
            firmware: Some("16.35.2000".into()),
            device_path: Some("/sys/devices/pci0000:3a/0000:3b:00.1".into()),
            pci_address: Some("0000:3b:00.1".into()),
            numa_node: Some(1),
            imports_dmabuf: None,
            on_demand: None,
            ports: vec![report(1), report(2)],
            failures: vec![failure],
        };
        let mut failures = Vec::new();
        let topology = roots(folder.path()).look(&[device], &[], &mut failures);
        let facts = |number| PortFacts {
            report: report(number),
            node_guid: Some("0002:c903:0000:0001".into()),
            driver: Some("mlx5_core".into()),
            firmware: Some("16.35.2000".into()),
            pci_address: Some("0000:3b:00.1".into()),
            sysfs_path: Some("/sys/devices/pci0000:3a/0000:3b:00.1".into()),
            netdevs: Vec::new(),
            pkeys: None,
        };
        assert_eq!(topology.ports, [facts(1), facts(2)]);
        assert_eq!(failures, [format!("mlx5_0: {failure}")]);
    }

    #[test]
    fn keys_and_interfaces_of_a_port() {
        let folder = TempDir::new().unwrap();
        for (index, key) in ["0xffff", "0x8001", "0x0000"].iter().enumerate() {
            write(
                &folder,
                &format!("rxe0/ports/1/pkeys/{index}"),
                &format!("{key}\n"),
            );
        }
        write(&folder, "rxe0/ports/1/gid_attrs/ndevs/0", "eth0\n");
        write(&folder, "rxe0/ports/1/gid_attrs/ndevs/1", "eth0\n");
        write(&folder, "rxe0/parent", "eth0\n");
        write(&folder, "rxe0/device/net/eth1/mtu", "1\n");
        let roots = roots(folder.path());
        assert_eq!(roots.pkeys("rxe0", 1), Some(vec![0xffff, 0x8001]));
        assert_eq!(roots.pkeys("rxe0", 2), None);
        assert_eq!(roots.netdevs("rxe0", 1, 1), ["eth0", "eth1"]);
        // With two ports, it is unknown to which of them the interface of the function belongs.
        assert_eq!(roots.netdevs("rxe0", 1, 2), ["eth0"]);
        write(&folder, "rxe0/ports/3/pkeys/0", "0x0000\n");
        assert_eq!(roots.pkeys("rxe0", 3), Some(vec![]));
    }
}
