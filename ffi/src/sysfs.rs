//! Facts of RDMA devices that sysfs shows, read from small files.
//!
//! The folder is an argument, so that this can be tested without a device.

use std::fs;
use std::path::{Path, PathBuf};

use doorbell_core::Gid;

/// Folder in which the kernel lists RDMA devices. Source: Linux, Documentation/ABI/stable/sysfs-class-infiniband.
pub(crate) const CLASS: &str = "/sys/class/infiniband";

/// The folder of one device.
#[derive(Debug)]
pub(crate) struct Sysfs {
    folder: PathBuf,
}

/// One filled entry of a GID table, as sysfs shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SysfsGid {
    pub(crate) index: u32,
    pub(crate) gid: Gid,
    /// The kernel's words: `IB/RoCE v1` or `RoCE v2`.
    pub(crate) kind: String,
    pub(crate) interface: Option<String>,
}

impl Sysfs {
    /// Returns the folder of a device within `class`.
    pub(crate) fn new(class: &Path, device: &str) -> Self {
        Self {
            folder: class.join(device),
        }
    }

    /// Whether the sysfs mounted here shows the device at all.
    pub(crate) fn is_shown(&self) -> bool {
        self.folder.is_dir()
    }

    /// The NUMA node. `None` if the platform names none (-1).
    pub(crate) fn numa_node(&self) -> Option<u16> {
        read(&self.folder.join("device/numa_node"))?.parse().ok()
    }

    /// The folder of the underlying device, with links resolved. `None` if the device is purely virtual.
    pub(crate) fn device_path(&self) -> Option<PathBuf> {
        fs::canonicalize(self.folder.join("device")).ok()
    }

    /// The PCI address, for example `0000:3b:00.0`, if the underlying device is a PCI function.
    pub(crate) fn pci_address(&self) -> Option<String> {
        let path = self.device_path()?;
        let name = path.file_name()?.to_str()?;
        is_pci_address(name).then(|| name.to_owned())
    }

    /// The kernel driver of the underlying device.
    pub(crate) fn driver(&self) -> Option<String> {
        let path = fs::canonicalize(self.folder.join("device/driver")).ok()?;
        Some(path.file_name()?.to_str()?.to_owned())
    }

    /// Whether the device names a network interface as its parent. Only Soft-RoCE devices do so:
    /// drivers/infiniband/sw/rxe/rxe_verbs.c, `parent_show`.
    pub(crate) fn has_parent_interface(&self) -> bool {
        self.folder.join("parent").is_file()
    }

    /// The firmware's version.
    pub(crate) fn firmware(&self) -> Option<String> {
        read(&self.folder.join("fw_ver")).filter(|version| !version.is_empty())
    }

    /// The network interface of an entry of a port's GID table.
    pub(crate) fn gid_interface(&self, port: u8, index: u32) -> Option<String> {
        let path = self.port(port).join("gid_attrs/ndevs").join(index.to_string());
        read(&path).filter(|name| !name.is_empty())
    }

    /// The filled entries among the first `length` of a port's GID table, in order.
    pub(crate) fn gids(&self, port: u8, length: u32) -> Vec<SysfsGid> {
        let folder = self.port(port);
        (0..length)
            .filter_map(|index| {
                let gid = parse_gid(&read(&folder.join("gids").join(index.to_string()))?)?;
                if gid.is_zero() {
                    return None;
                }
                // An entry without a kind is empty, even if it has a GID.
                let kind = read(&folder.join("gid_attrs/types").join(index.to_string()))?;
                Some(SysfsGid {
                    index,
                    gid,
                    kind,
                    interface: self.gid_interface(port, index),
                })
            })
            .collect()
    }

    fn port(&self, port: u8) -> PathBuf {
        self.folder.join("ports").join(port.to_string())
    }
}

fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// Parses a GID of eight groups of four hexadecimal digits, for example `fe80:0000:0000:0000:...`.
fn parse_gid(text: &str) -> Option<Gid> {
    text.parse::<core::net::Ipv6Addr>()
        .ok()
        .map(|address| Gid(address.octets()))
}

/// Whether a name has the form `domain:bus:device.function`, in hexadecimal digits.
fn is_pci_address(name: &str) -> bool {
    let is_hexadecimal =
        |text: &str, digits: usize| text.len() >= digits && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut parts = name.split([':', '.']);
    let shape = [4, 2, 2, 1];
    shape
        .into_iter()
        .all(|digits| parts.next().is_some_and(|part| is_hexadecimal(part, digits)))
        && parts.next().is_none()
        && name.matches(':').count() == 2
}

#[cfg(test)]
mod tests {
    use super::{Sysfs, is_pci_address, parse_gid};
    use std::fs;
    use std::path::Path;
    use tempfile::TempDir;

    /// Writes a file in the folder, in folders that are made for it.
    fn write(folder: &TempDir, path: &str, text: &str) {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn a_virtual_device() {
        let class = TempDir::new().unwrap();
        write(&class, "rxe0/fw_ver", "\n");
        let sysfs = Sysfs::new(class.path(), "rxe0");
        assert_eq!(sysfs.numa_node(), None);
        assert_eq!(sysfs.pci_address(), None);
        assert_eq!(sysfs.device_path(), None);
        assert_eq!(sysfs.driver(), None);
        assert_eq!(sysfs.firmware(), None);
        assert_eq!(sysfs.gids(1, 4), []);
    }

    #[test]
    fn a_device_behind_pci_is_found_through_its_links() {
        let class = TempDir::new().unwrap();
        write(&class, "devices/pci0000:3a/0000:3b:00.1/numa_node", "1\n");
        write(&class, "drivers/mlx5_core/x", "");
        write(&class, "class/mlx5_1/fw_ver", "16.35.2000\n");
        let device = class.path().join("devices/pci0000:3a/0000:3b:00.1");
        std::os::unix::fs::symlink(&device, class.path().join("class/mlx5_1/device")).unwrap();
        std::os::unix::fs::symlink(class.path().join("drivers/mlx5_core"), device.join("driver")).unwrap();
        let sysfs = Sysfs::new(&class.path().join("class"), "mlx5_1");
        assert_eq!(sysfs.numa_node(), Some(1));
        assert_eq!(sysfs.pci_address().as_deref(), Some("0000:3b:00.1"));
        assert_eq!(sysfs.device_path(), fs::canonicalize(&device).ok());
        assert_eq!(sysfs.driver().as_deref(), Some("mlx5_core"));
        assert_eq!(sysfs.firmware().as_deref(), Some("16.35.2000"));
        write(&class, "devices/pci0000:3a/0000:3b:00.1/numa_node", "-1\n");
        assert_eq!(sysfs.numa_node(), None);
    }

    #[test]
    fn only_filled_gids_count() {
        let class = TempDir::new().unwrap();
        let port = "rxe0/ports/1";
        for (index, gid, kind, interface) in [
            (
                0,
                "fe80:0000:0000:0000:5054:00ff:fe12:3456",
                Some("RoCE v2"),
                Some("eth0"),
            ),
            (
                1,
                "0000:0000:0000:0000:0000:ffff:0a00:0001",
                Some("RoCE v2"),
                None,
            ),
            (
                2,
                "0000:0000:0000:0000:0000:0000:0000:0000",
                Some("RoCE v2"),
                Some("eth0"),
            ),
            (3, "fe80:0000:0000:0000:0000:0000:0000:0001", None, None),
            (4, "rubbish", Some("RoCE v2"), Some("eth0")),
            (
                6,
                "fe80:0000:0000:0000:0000:0000:0000:0002",
                Some("IB/RoCE v1"),
                Some("eth1"),
            ),
        ] {
            write(&class, &format!("{port}/gids/{index}"), &format!("{gid}\n"));
            if let Some(kind) = kind {
                write(
                    &class,
                    &format!("{port}/gid_attrs/types/{index}"),
                    &format!("{kind}\n"),
                );
            }
            if let Some(interface) = interface {
                write(
                    &class,
                    &format!("{port}/gid_attrs/ndevs/{index}"),
                    &format!("{interface}\n"),
                );
            }
        }
        let gids = Sysfs::new(class.path(), "rxe0").gids(1, 8);
        let seen: Vec<_> = gids
            .iter()
            .map(|gid| (gid.index, gid.kind.as_str(), gid.interface.as_deref()))
            .collect();
        assert_eq!(
            seen,
            [
                (0, "RoCE v2", Some("eth0")),
                (1, "RoCE v2", None),
                (6, "IB/RoCE v1", Some("eth1"))
            ]
        );
        assert_eq!(gids[1].gid.to_ip().to_string(), "10.0.0.1");
    }

    #[test]
    fn shapes() {
        assert!(is_pci_address("0000:3b:00.1"));
        assert!(is_pci_address("10000:e1:00.0"));
        for name in [
            "virtio0",
            "0000:3b:00",
            "0000:3b:00.1.2",
            "0000.3b.00.1",
            "",
            "zzzz:3b:00.1",
        ] {
            assert!(!is_pci_address(name), "{name}");
        }
        assert!(parse_gid("fe80::1").is_some());
        assert!(parse_gid("10.0.0.1").is_none());
        assert!(
            Sysfs::new(Path::new("/nowhere"), "x")
                .gid_interface(1, 0)
                .is_none()
        );
    }
}
