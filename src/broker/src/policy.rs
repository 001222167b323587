//! The policy of a sandbox: the devices and resources that its program may use, and its file format.

use core::fmt;
use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;

/// Default maximum number of open contexts.
const CONTEXTS: u32 = 8;

/// Upper limit of contexts. More would leave too few descriptors for the program under the usual limit of 1024.
const CONTEXTS_MAX: u32 = 512;

/// The devices and resources that a program may use.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct Policy {
    /// RDMA devices by name, as `rdma link` shows them; a `*` at the end matches any text. Default: none.
    pub devices: Vec<String>,
    /// Maximum number of open contexts of all processes of the sandbox together: 1 to 512. Default: 8.
    pub contexts: u32,
    /// Maximum number of objects of each device: queue pairs, completion queues, memory regions and all others together. The `rdma` controller of
    /// cgroup2 enforces it. Default: no limit.
    pub objects: Option<u32>,
    /// Number of bytes that each process may pin, and so register. Default: the limit of the user (`ulimit -l`).
    pub pinned_bytes: Option<u64>,
    /// The cgroup2 folder in which the sandbox's cgroup is created, for `objects`. Default: the cgroup of the broker.
    pub cgroup: Option<PathBuf>,
    /// A folder in which the program finds the description of its devices, as a tree like sysfs. Default: none.
    pub topology: Option<PathBuf>,
    /// Nodes to use instead of the host's nodes, for tests: `uverbs0 = "/dev/null"`. The device has the node's name.
    pub stand_ins: BTreeMap<String, PathBuf>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            devices: Vec::new(),
            contexts: CONTEXTS,
            objects: None,
            pinned_bytes: None,
            cgroup: None,
            topology: None,
            stand_ins: BTreeMap::new(),
        }
    }
}

/// Reason why a policy is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PolicyError {
    /// The text is not TOML, or has an unknown field. The message names the line.
    Syntax(String),
    /// The policy allows no device.
    NoDevice,
    /// A `*` is not at the end of this name.
    Wildcard(String),
    /// The number of contexts is not between 1 and 512.
    Contexts(u32),
    /// Nothing enforces this limit.
    Unheld(&'static str),
    /// The path of the topology is not absolute.
    Topology(PathBuf),
}

/// Limits that a reader may expect here, and their alternatives.
const UNHELD: [(&str, &str); 3] = [
    (
        "queue_pairs",
        "the kernel limits objects of all kinds together (`objects`)",
    ),
    (
        "registrations",
        "the kernel limits objects of all kinds together (`objects`)",
    ),
    (
        "destinations",
        "a device sends to any address that its network reaches; filter there, or give the program a device of its own",
    ),
];

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax(text) => f.write_str(text.trim_end()),
            Self::NoDevice => f.write_str("the policy allows no device; name one in `devices`"),
            Self::Wildcard(name) => write!(f, "device {name:?}: a * may stand only at the end"),
            Self::Unheld(field) => {
                let instead = UNHELD.iter().find(|(name, _)| name == field);
                let instead = instead.map_or("", |(_, instead)| instead);
                write!(f, "nothing enforces `{field}`: {instead}")
            }
            Self::Topology(path) => write!(f, "topology {path:?} is not an absolute path"),
            Self::Contexts(count) => write!(f, "{count} contexts: not 1 to {CONTEXTS_MAX}"),
        }
    }
}

impl core::error::Error for PolicyError {}

impl Policy {
    /// Parses a policy.
    ///
    /// # Errors
    /// [`PolicyError::Syntax`] or [`PolicyError::Unheld`]. Call [`Policy::check`] to check the values.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        toml::from_str(text).map_err(|error: toml::de::Error| {
            let fields = text.parse::<toml::Table>().unwrap_or_default();
            let unheld = UNHELD.iter().find(|(name, _)| fields.contains_key(*name));
            unheld.map_or_else(
                || PolicyError::Syntax(error.to_string()),
                |(name, _)| PolicyError::Unheld(name),
            )
        })
    }

    /// Checks the values.
    ///
    /// # Errors
    /// A value is invalid.
    pub fn check(&self) -> Result<(), PolicyError> {
        if self.devices.is_empty() {
            return Err(PolicyError::NoDevice);
        }
        let is_wild = |name: &&String| name.strip_suffix('*').unwrap_or(name).contains('*');
        if let Some(name) = self.devices.iter().find(is_wild) {
            return Err(PolicyError::Wildcard(name.clone()));
        }
        if !(1..=CONTEXTS_MAX).contains(&self.contexts) {
            return Err(PolicyError::Contexts(self.contexts));
        }
        if let Some(path) = self.topology.as_ref().filter(|path| !path.is_absolute()) {
            return Err(PolicyError::Topology(path.clone()));
        }
        Ok(())
    }

    /// Whether the program may use a device.
    #[must_use]
    pub fn allows(&self, device: &str) -> bool {
        self.devices.iter().any(|name| match name.strip_suffix('*') {
            Some(beginning) => device.starts_with(beginning),
            None => device == name,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Policy, PolicyError};

    fn of(text: &str) -> Result<Policy, PolicyError> {
        let policy = Policy::parse(text)?;
        policy.check().map(|()| policy)
    }

    #[test]
    fn a_device_is_allowed_by_its_whole_name_or_its_beginning() {
        let policy = of("devices = ['rxe0', 'mlx5_*']").unwrap();
        for (device, is_allowed) in [
            ("rxe0", true),
            ("rxe", false),
            ("rxe01", false),
            ("mlx5_", true),
            ("mlx5_12", true),
            ("mlx4_0", false),
            ("", false),
        ] {
            assert_eq!(policy.allows(device), is_allowed, "{device}");
        }
        assert!(of("devices = ['*']").unwrap().allows("anything"));
        assert_eq!(policy.contexts, 8);
    }

    #[test]
    fn an_invalid_policy_is_an_error_that_says_why() {
        for (text, said) in [
            ("", "allows no device; name one in `devices`"),
            ("devices = []", "allows no device"),
            ("devices = ['m*5']", "\"m*5\""),
            ("devices = ['a']\ncontexts = 0", "0 contexts: not 1 to 512"),
            ("devices = ['a']\ncontexts = 513", "513 contexts"),
            ("devices = ['a']\ndevice = 'b'", "line 2"),
            ("devices = 'a'", "line 1"),
            (
                "devices = ['a']\nqueue_pairs = 4",
                "nothing enforces `queue_pairs`: the kernel",
            ),
            (
                "devices = ['a']\ndestinations = ['10.0.0.0/8']",
                "nothing enforces `destinations`",
            ),
            ("devices = ['a']\nobjects = -1", "line 2"),
            (
                "devices = ['a']\ntopology = 'run'",
                "\"run\" is not an absolute path",
            ),
        ] {
            let error = of(text).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
        assert!(of("devices = ['a']\ncontexts = 512").is_ok());
    }
}
