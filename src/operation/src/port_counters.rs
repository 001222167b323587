//! The kernel's counters of a device's ports, read from sysfs.

use std::fs::{self, DirEntry};
use std::io::Read as _;
use std::path::Path;

use doorbell::trust::open_plain_file;

/// Directory in which the kernel lists RDMA devices. Source: Linux, Documentation/ABI/stable/sysfs-class-infiniband.
const CLASS: &str = "/sys/class/infiniband";

/// Maximum number of ports that are read, more than any device has.
const PORTS_MAX: usize = 16;

/// Maximum number of counters of a port that are read, several times as many as mlx5 has.
const COUNTERS_MAX: usize = 256;

/// Maximum length of a counter's name. Longer ones are skipped.
const NAME_BYTES_MAX: usize = 64;

/// Maximum number of bytes that are read of a value. The largest value has 20 digits and a line feed.
const READ_BYTES_MAX: u64 = 22;

/// The time for which the kernel caches its counters. This file is among the counters, but is not a counter.
const LIFESPAN: &str = "lifespan";

/// Counters of a port by the kernel and the device: over all queue pairs of all processes, since the device exists.
///
/// They include the number of retransmissions, which no completion reports. The driver decides which counters exist, and what
/// each of them counts: `rcvd_rnr_err` of Soft-RoCE is `rnr_nak_retry_err` of mlx5.
///
/// For [`Metrics::port_counters`](crate::Metrics::port_counters).
///
/// Source: Linux, Documentation/ABI/stable/sysfs-class-infiniband, `ports/<port-num>/hw_counters`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// The name of the device.
    pub device: String,
    /// The number of the port, from 1.
    pub port: u8,
    /// The counters, sorted by the names that the kernel gives them.
    pub counters: Vec<(String, u64)>,
}

impl PortCounters {
    /// Reads the counters of each port of a device. The result is empty if the kernel has no such device (for example a
    /// simulated one), shows it without counters in this network namespace, or has no counters for it.
    ///
    /// A counter that cannot be read, or is not a number, is left out. Each counter is a file, and some devices query their
    /// firmware for it: do not call this on a thread that polls.
    #[must_use]
    pub fn of_device(device: &str) -> Vec<Self> {
        Self::below(Path::new(CLASS), device)
    }

    fn below(class: &Path, device: &str) -> Vec<Self> {
        // The name must be a single path component.
        if matches!(device, "" | "." | "..") || device.contains('/') {
            return Vec::new();
        }
        let folder = class.join(device).join("ports");
        let mut ports: Vec<_> = entries(&folder, PORTS_MAX)
            .filter_map(|entry| {
                let port = entry.file_name().to_str()?.parse().ok()?;
                Some(Self {
                    device: device.to_owned(),
                    port,
                    counters: counters(&entry.path().join("hw_counters")),
                })
            })
            .filter(|port| !port.counters.is_empty())
            .collect();
        ports.sort_unstable_by_key(|port| port.port);
        ports
    }
}

/// At most `most` entries of a folder. Empty if it cannot be read.
fn entries(folder: &Path, most: usize) -> impl Iterator<Item = DirEntry> {
    fs::read_dir(folder).into_iter().flatten().flatten().take(most)
}

fn counters(folder: &Path) -> Vec<(String, u64)> {
    let mut counters: Vec<_> = entries(folder, COUNTERS_MAX)
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let is_counter = name != LIFESPAN && name.len() <= NAME_BYTES_MAX;
            is_counter
                .then(|| value(&entry.path()))
                .flatten()
                .map(|value| (name, value))
        })
        .collect();
    counters.sort_unstable();
    counters
}

/// The value in a file. `None` if it is not a number, or more than one.
fn value(path: &Path) -> Option<u64> {
    let mut text = Vec::new();
    let mut file = open_plain_file(path).ok()?.take(READ_BYTES_MAX);
    file.read_to_end(&mut text).ok()?;
    // The file may be longer.
    if file.limit() == 0 {
        return None;
    }
    let digits = core::str::from_utf8(text.strip_suffix(b"\n").unwrap_or(&text)).ok()?;
    // Rejects a sign, which `parse` would accept.
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use tempfile::TempDir;

    use super::{COUNTERS_MAX, NAME_BYTES_MAX, PortCounters};
    use crate::metrics::Metrics;

    /// Writes a file in the folder, and creates the folders above it.
    fn write(folder: &TempDir, path: &str, bytes: &[u8]) {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    fn read(folder: &TempDir, device: &str) -> Vec<PortCounters> {
        PortCounters::below(folder.path(), device)
    }

    #[test]
    fn counters_of_each_port_by_name() {
        let folder = TempDir::new().unwrap();
        for (path, text) in [
            ("1/hw_counters/sent_pkts", "18446744073709551615\n"),
            ("1/hw_counters/rcvd_rnr_err", "7\n"),
            ("1/hw_counters/lifespan", "10\n"),
            ("1/counters/port_xmit_data", "8\n"),
            ("2/hw_counters/duplicate_request", "0"),
            ("3/gids/0", "fe80::\n"),
        ] {
            write(&folder, &format!("rxe0/ports/{path}"), text.as_bytes());
        }
        let of = |port, counters: &[(&str, u64)]| PortCounters {
            device: "rxe0".into(),
            port,
            counters: counters
                .iter()
                .map(|(name, value)| ((*name).to_owned(), *value))
                .collect(),
        };
        let first = of(1, &[("rcvd_rnr_err", 7), ("sent_pkts", u64::MAX)]);
        let second = of(2, &[("duplicate_request", 0)]);
        let ports = read(&folder, "rxe0");
        assert_eq!(ports, [first, second]);
        let mut metrics = Metrics::default();
        for port in &ports {
            metrics.port_counters(port);
        }
        let text = metrics.to_string();
        let line = "doorbell_port_hw_counter_total{device=\"rxe0\",port=\"1\",counter=\"rcvd_rnr_err\"} 7\n";
        assert!(text.contains(line), "{text}");
        assert!(!text.contains("lifespan"), "{text}");
    }

    #[test]
    fn what_is_no_counter_is_not_there() {
        let folder = TempDir::new().unwrap();
        let place = "rxe0/ports/1/hw_counters";
        for (name, bytes) in [
            ("too_large", &b"18446744073709551616\n"[..]),
            ("too_long", b"0000000000000000000000000000000001\n"),
            ("negative", b"-1\n"),
            ("signed", b"+1\n"),
            ("fraction", b"1.5\n"),
            ("two", b"1\n2\n"),
            ("words", b"N/A (no PMA)\n"),
            ("no_text", b"\xff\xfe\n"),
            ("empty", b""),
            ("line", b"\n"),
        ] {
            write(&folder, &format!("{place}/{name}"), bytes);
        }
        let long = "a".repeat(NAME_BYTES_MAX);
        write(&folder, &format!("{place}/{long}"), b"1\n");
        write(&folder, &format!("{place}/{long}a"), b"2\n");
        let hw_counters = folder.path().join(place);
        fs::write(
            hw_counters.join(Path::new(std::ffi::OsStr::from_bytes(b"\xff"))),
            b"3\n",
        )
        .unwrap();
        // A file without end, a pipe without a writer, a folder, and a dangling link.
        symlink("/dev/zero", hw_counters.join("endless")).unwrap();
        mknodat(CWD, hw_counters.join("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        fs::create_dir(hw_counters.join("folder")).unwrap();
        symlink("nowhere", hw_counters.join("dangling")).unwrap();
        for port in ["256", "-1", "x", "+"] {
            write(
                &folder,
                &format!("rxe0/ports/{port}/hw_counters/sent_pkts"),
                b"1\n",
            );
        }
        let ports = read(&folder, "rxe0");
        assert_eq!(ports.len(), 1, "{ports:?}");
        assert_eq!(ports[0].counters, [(long, 1)]);
    }

    #[test]
    fn no_more_are_read_than_there_may_be() {
        let folder = TempDir::new().unwrap();
        for number in 0..COUNTERS_MAX * 2 {
            write(&folder, &format!("rxe0/ports/1/hw_counters/{number}"), b"1\n");
        }
        assert_eq!(read(&folder, "rxe0")[0].counters.len(), COUNTERS_MAX);
    }

    #[test]
    fn a_name_may_be_anything_and_the_text_stays_one() {
        let folder = TempDir::new().unwrap();
        let name = "a\"} 1\nb\\";
        write(&folder, &format!("rxe0/ports/1/hw_counters/{name}"), b"5\n");
        let mut metrics = Metrics::default();
        metrics.port_counters(&read(&folder, "rxe0")[0]);
        let text = metrics.to_string();
        let line =
            "doorbell_port_hw_counter_total{device=\"rxe0\",port=\"1\",counter=\"a\\\"} 1\\nb\\\\\"} 5";
        assert_eq!(text.lines().last(), Some(line));
        assert_eq!(text.lines().count(), 3, "{text}");
    }

    #[test]
    fn of_no_device_there_are_none() {
        let folder = TempDir::new().unwrap();
        write(&folder, "ports/1/hw_counters/sent_pkts", b"1\n");
        write(&folder, "class/rxe0/ports/1/hw_counters/sent_pkts", b"1\n");
        let class = folder.path().join("class");
        let whole = class.join("rxe0");
        for device in [
            "",
            ".",
            "..",
            "../class/rxe0",
            "sim0",
            whole.to_str().unwrap(),
            "a\0b",
        ] {
            assert_eq!(PortCounters::below(&class, device), [], "{device:?}");
        }
        assert_eq!(PortCounters::below(&class, "rxe0").len(), 1);
    }
}
