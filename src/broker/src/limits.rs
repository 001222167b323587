//! Limits that the kernel enforces: objects of RDMA devices by the `rdma` controller of cgroup2, and pinned memory by
//! `RLIMIT_MEMLOCK`.
//!
//! Source: Linux, Documentation/admin-guide/cgroup-v2.rst, RDMA.

use core::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::policy::Policy;

/// `CAP_IPC_LOCK`, which allows pinning memory without a limit, and `CAP_SYS_RESOURCE`, which allows raising a hard limit. Source:
/// `linux/capability.h`.
const UNLIMITED: u64 = 1 << 14 | 1 << 24;

/// The folder of the RDMA devices of this host.
const DEVICES: &str = "/sys/class/infiniband";

/// The limits that a policy requires.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Maximum numbers of contexts and of all objects, for each device.
    objects: Option<(u32, u32)>,
    devices: Vec<String>,
    pinned_bytes: Option<u64>,
    cgroup: Option<PathBuf>,
}

/// Reason why a limit of the policy cannot be enforced.
#[derive(Debug)]
#[non_exhaustive]
pub enum LimitsError {
    /// The host has no device of the policy. The controller accepts limits only for devices that exist.
    NoDevice,
    /// The `rdma` controller rejects a limit.
    Controller {
        /// A file of the cgroup.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// Information about the container cannot be read.
    Container {
        /// Its file.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// The container's cgroup allows more objects of a device.
    Objects {
        /// The device.
        device: String,
        /// The required line of `rdma.max`.
        expected: String,
    },
    /// The container may pin more memory.
    Pinned {
        /// The limit of the policy in bytes.
        limit: u64,
    },
    /// Limits of a launched program require namespaces, in which it has no privileges.
    Privileges,
}

impl fmt::Display for LimitsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDevice => {
                f.write_str("this host has none of the policy's devices, and `objects` is a limit per device")
            }
            Self::Controller { path, error } => write!(
                f,
                "cannot limit objects by {}: {error}; name in `cgroup` a folder of cgroup2 in which this user may use the rdma controller",
                path.display()
            ),
            Self::Container { path, error } => {
                write!(
                    f,
                    "cannot check the limits of the policy: {}: {error}",
                    path.display()
                )
            }
            Self::Objects { device, expected } => write!(
                f,
                "rdma.max of its cgroup lets {device} have more than the policy; set `{expected}` (linux.resources.rdma)"
            ),
            Self::Pinned { limit } => write!(
                f,
                "it may pin more than the {limit} bytes of the policy; set RLIMIT_MEMLOCK, and leave it without CAP_IPC_LOCK and CAP_SYS_RESOURCE"
            ),
            Self::Privileges => f.write_str(
                "`objects` and `pinned_bytes` are no limit for a program that keeps its privileges",
            ),
        }
    }
}

impl core::error::Error for LimitsError {}

impl Limits {
    /// The limits of a policy, for the devices of this host.
    pub(crate) fn of(policy: &Policy) -> Result<Self, LimitsError> {
        Self::at(policy, Path::new(DEVICES))
    }

    fn at(policy: &Policy, devices: &Path) -> Result<Self, LimitsError> {
        let mut limits = Self {
            objects: policy.objects.map(|objects| (policy.contexts, objects)),
            devices: Vec::new(),
            pinned_bytes: policy.pinned_bytes,
            cgroup: policy.cgroup.clone(),
        };
        if limits.objects.is_some() {
            let found = fs::read_dir(devices).into_iter().flatten();
            let names = found.filter_map(|device| device.ok()?.file_name().into_string().ok());
            limits.devices.extend(names.filter(|name| policy.allows(name)));
            limits.devices.sort_unstable();
            if limits.devices.is_empty() {
                return Err(LimitsError::NoDevice);
            }
        }
        Ok(limits)
    }

    /// Restricts the policy to the devices that have a limit. A device that is added later has none.
    pub(crate) fn narrow(&self, policy: &mut Policy) {
        if self.objects.is_some() {
            policy.devices.clone_from(&self.devices);
        }
    }

    fn lines(&self) -> impl Iterator<Item = (&str, String)> {
        let of = |device: &'_ String| {
            let (contexts, objects) = self.objects?;
            Some(format!("{device} hca_handle={contexts} hca_object={objects}"))
        };
        let devices = self.devices.iter();
        devices.filter_map(move |device| Some((device.as_str(), of(device)?)))
    }

    /// Creates a cgroup with these limits. Returns `None` if there are none.
    pub(crate) fn cgroup(&self) -> Result<Option<Cgroup>, LimitsError> {
        if self.objects.is_none() {
            return Ok(None);
        }
        let parent = match &self.cgroup {
            Some(folder) => folder.clone(),
            None => folder_of("self").map_err(|(path, error)| LimitsError::Controller { path, error })?,
        };
        let at = |path: &Path| {
            let path = path.to_owned();
            move |error| LimitsError::Controller { path, error }
        };
        let enabled = parent.join("cgroup.subtree_control");
        let words = fs::read_to_string(&enabled).map_err(at(&enabled))?;
        if !words.split_whitespace().any(|word| word == "rdma") {
            fs::write(&enabled, "+rdma").map_err(at(&enabled))?;
        }
        let folder = parent.join(format!("doorbell-broker-{}", std::process::id()));
        let cgroup = Cgroup::new(folder.clone()).map_err(at(&folder))?;
        let limit = cgroup.0.join("rdma.max");
        for (_, line) in self.lines() {
            fs::write(&limit, line).map_err(at(&limit))?;
        }
        Ok(Some(cgroup))
    }

    /// Checks that a process of a container has these limits, or lower ones.
    pub(crate) fn check(&self, process: u32) -> Result<(), LimitsError> {
        if self.objects.is_some() {
            let folder = folder_of(&process.to_string());
            let path = folder
                .map_err(|(path, error)| LimitsError::Container { path, error })?
                .join("rdma.max");
            let text = fs::read_to_string(&path).map_err(|error| LimitsError::Container { path, error })?;
            self.check_objects(&text)?;
        }
        let Some(limit) = self.pinned_bytes else {
            return Ok(());
        };
        let read = |file: &str| {
            let path = PathBuf::from(format!("/proc/{process}/{file}"));
            fs::read_to_string(&path).map_err(|error| LimitsError::Container { path, error })
        };
        if may_pin(&read("limits")?, &read("status")?, limit) {
            return Err(LimitsError::Pinned { limit });
        }
        Ok(())
    }

    fn check_objects(&self, rdma_max: &str) -> Result<(), LimitsError> {
        let (contexts, objects) = self.objects.unwrap_or_default();
        for (device, expected) in self.lines() {
            let words = |line: &'_ str| line.split_whitespace().next() == Some(device);
            let line = rdma_max.lines().find(|line| words(line)).unwrap_or_default();
            let is_within = |name: &str, limit: u32| {
                let mut words = line.split_whitespace();
                let value = words.find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
                value.is_some_and(|value| value.parse::<u32>().is_ok_and(|value| value <= limit))
            };
            if !is_within("hca_handle", contexts) || !is_within("hca_object", objects) {
                let device = device.to_owned();
                return Err(LimitsError::Objects { device, expected });
            }
        }
        Ok(())
    }
}

/// Whether a process with these files of `/proc` may pin more than `limit` bytes.
fn may_pin(limits: &str, status: &str, limit: u64) -> bool {
    let line = |text: &'_ str, name: &str| {
        let found = text.lines().find_map(|line| line.strip_prefix(name));
        found.map(ToOwned::to_owned)
    };
    let hard =
        line(limits, "Max locked memory").and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
    let has = |set: &str| {
        let set = line(status, set).and_then(|line| u64::from_str_radix(line.trim(), 16).ok());
        set.is_none_or(|set| set & UNLIMITED != 0)
    };
    let is_limited = hard.is_some_and(|hard: u64| hard <= limit);
    // The sets are independent: a capability in one of them can be regained even if it is missing in others.
    let is_privileged = ["CapInh:", "CapPrm:", "CapBnd:", "CapAmb:"].into_iter().any(has);
    !is_limited || is_privileged
}

/// The folder of a process's cgroup.
fn folder_of(process: &str) -> Result<PathBuf, (PathBuf, io::Error)> {
    let read = |path: PathBuf| fs::read_to_string(&path).map_err(|error| (path, error));
    let mounts = read(PathBuf::from("/proc/self/mountinfo"))?;
    let path = PathBuf::from(format!("/proc/{process}/cgroup"));
    let own = read(path.clone())?;
    let absent = || (path.clone(), io::Error::other("no cgroup2 is mounted"));
    let is_whole = |line: &&str| line.contains(" - cgroup2 ") && line.split(' ').nth(3) == Some("/");
    let mount = mounts
        .lines()
        .find(is_whole)
        .and_then(|line| line.split(' ').nth(4));
    let below = own.lines().find_map(|line| line.strip_prefix("0::/"));
    Ok(Path::new(mount.ok_or_else(absent)?).join(below.ok_or_else(absent)?))
}

/// A cgroup, which is removed on drop.
#[derive(Debug)]
pub(crate) struct Cgroup(PathBuf);

impl Cgroup {
    /// Creates a cgroup. A cgroup of the same name was left by a killed process, has other limits, and is replaced.
    fn new(folder: PathBuf) -> io::Result<Self> {
        match fs::create_dir(&folder) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                fs::remove_dir(&folder)?;
                fs::create_dir(&folder)?;
            }
            made => made?,
        }
        Ok(Self(folder))
    }

    /// Removes the folder, and returns whether it is gone. The kernel refuses while a process is in it.
    pub(crate) fn is_removed(&self) -> bool {
        fs::remove_dir(&self.0)
            .err()
            .is_none_or(|error| error.kind() != io::ErrorKind::ResourceBusy)
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.0
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{Cgroup, Limits, LimitsError, may_pin};
    use crate::policy::Policy;

    fn limits() -> (tempfile::TempDir, Policy, Limits) {
        let folder = tempfile::tempdir().unwrap();
        for device in ["mlx5_0", "mlx5_1", "rxe0"] {
            fs::create_dir(folder.path().join(device)).unwrap();
        }
        let policy = Policy::parse("devices = ['mlx5_*', 'absent']\ncontexts = 2\nobjects = 100").unwrap();
        let limits = Limits::at(&policy, folder.path()).unwrap();
        (folder, policy, limits)
    }

    #[test]
    fn limits_are_of_the_devices_that_are_there_and_no_other_is_allowed() {
        let (folder, mut policy, limits) = limits();
        let lines: Vec<_> = limits.lines().map(|(_, line)| line).collect();
        assert_eq!(
            lines,
            [
                "mlx5_0 hca_handle=2 hca_object=100",
                "mlx5_1 hca_handle=2 hca_object=100"
            ]
        );
        limits.narrow(&mut policy);
        assert_eq!(policy.devices, ["mlx5_0", "mlx5_1"]);
        policy.devices = vec!["absent".to_owned()];
        let none = Limits::at(&policy, folder.path());
        assert!(matches!(none, Err(LimitsError::NoDevice)));
        policy.objects = None;
        assert_eq!(Limits::at(&policy, folder.path()).unwrap(), Limits::default());
    }

    #[test]
    fn a_cgroup_that_was_left_is_made_anew_and_one_in_use_is_not_taken() {
        let folder = tempfile::tempdir().unwrap();
        let left = folder.path().join("left");
        fs::create_dir(&left).unwrap();
        drop(Cgroup::new(left.clone()).unwrap());
        assert!(!left.exists());
        // The kernel refuses to remove a cgroup with processes. Here a folder takes their place.
        fs::create_dir_all(left.join("process")).unwrap();
        assert!(Cgroup::new(left).is_err());
    }

    #[test]
    fn a_container_with_higher_limits_or_none_is_found() {
        let (_, _, limits) = limits();
        let first = "mlx5_0 hca_handle=2 hca_object=100\n";
        for (second, is_within) in [
            ("mlx5_1 hca_handle=1 hca_object=7", true),
            ("mlx5_1 hca_handle=3 hca_object=7", false),
            ("mlx5_1 hca_handle=1 hca_object=101", false),
            ("mlx5_1 hca_handle=max hca_object=7", false),
            ("mlx5_11 hca_handle=1 hca_object=7", false),
            ("", false),
        ] {
            let checked = limits.check_objects(&format!("{first}{second}\n"));
            assert_eq!(checked.is_ok(), is_within, "{second}");
        }
        let said = limits.check_objects(first).unwrap_err().to_string();
        assert!(said.contains("`mlx5_1 hca_handle=2 hca_object=100`"), "{said}");
    }

    #[test]
    fn pinned_memory_is_limited_by_the_hard_limit_and_without_a_capability() {
        let limits = |hard: &str| format!("Max locked memory         64        {hard}       bytes\n");
        for (hard, bounding, may) in [
            ("8192", "0000000000000000", false),
            ("8192", "00000000a80425fb", false),
            ("8192", "0000000000004000", true),
            ("8192", "0000000001000000", true),
            ("8193", "0000000000000000", true),
            ("unlimited", "0000000000000000", true),
        ] {
            // In each of the sets from which the process or its next program gets it.
            for with in ["CapInh", "CapPrm", "CapBnd", "CapAmb"] {
                let set = |name: &str| {
                    if name == with {
                        bounding
                    } else {
                        "0000000000000000"
                    }
                };
                let sets = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"];
                let lines: String = sets.map(|name| format!("{name}:\t{}\n", set(name))).concat();
                let status = format!("Name:\tx\n{lines}");
                assert_eq!(
                    may_pin(&limits(hard), &status, 8192),
                    may,
                    "{hard} {with} {bounding}"
                );
            }
        }
        assert!(may_pin("", "", 8192));
    }
}
