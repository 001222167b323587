//! The part of a container's `config.json` that makes its runtime send the filter's listener to the broker.
//!
//! Source: the OCI runtime specification, `config.md` and `config-linux.md`.

use core::fmt;
use std::path::Path;

use doorbell_sandbox::profile_rules;
use serde_json::{Value, json};

use crate::limits::{Limits, LimitsError};
use crate::policy::Policy;

/// Settings of the profile of containers.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Profile<'p> {
    /// The socket of the listener.
    pub socket: &'p Path,
    /// The name of the policy, if the listener has a folder of policies.
    pub metadata: Option<&'p str>,
    /// Whether the filter traps doorbells of Soft-RoCE. runc refuses a profile that traps `write`.
    pub has_doorbells: bool,
    /// The folder on the host with the topology, for a policy that has a topology.
    pub topology: Option<&'p Path>,
}

impl<'p> Profile<'p> {
    /// A profile with doorbells and without the name of a policy.
    #[must_use]
    pub const fn new(socket: &'p Path) -> Self {
        Self {
            socket,
            metadata: None,
            has_doorbells: true,
            topology: None,
        }
    }
}

/// The architecture of this machine, by its name in libseccomp. System calls of other architectures end the program.
const ARCHITECTURE: &str = if cfg!(target_arch = "x86_64") {
    "SCMP_ARCH_X86_64"
} else {
    "SCMP_ARCH_AARCH64"
};

/// Reason why a part of `config.json` cannot be created.
#[derive(Debug)]
#[non_exhaustive]
pub enum ProfileError {
    /// The policy has a limit of objects, and the host has none of its devices.
    Limits(LimitsError),
    /// The text is not JSON. The message names the line.
    Syntax(String),
    /// The field exists with another value or type. Two filters cannot be merged automatically.
    Taken(String),
}

impl fmt::Display for ProfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limits(error) => error.fmt(f),
            Self::Syntax(text) => write!(f, "this is no config.json: {text}"),
            Self::Taken(field) => write!(f, "config.json has a {field} of its own; merge it by hand"),
        }
    }
}

impl core::error::Error for ProfileError {}

/// Returns the part of `config.json` for containers of this policy, as JSON to be merged; or `base`, the text of a `config.json`, with that part
/// merged into it.
///
/// # Errors
/// The policy has a limit of objects, and the host has none of its devices; or `base` is invalid, or has a field of the part with another value.
pub fn container_profile(
    profile: &Profile<'_>,
    policy: &Policy,
    base: Option<&str>,
) -> Result<String, ProfileError> {
    let mut policy = policy.clone();
    let limits = Limits::of(&policy).map_err(ProfileError::Limits)?;
    limits.narrow(&mut policy);
    let part = config(profile, &policy);
    let whole = match base {
        Some(base) => {
            let mut whole =
                serde_json::from_str(base).map_err(|error| ProfileError::Syntax(error.to_string()))?;
            merge(&mut whole, part, "")?;
            whole
        }
        None => part,
    };
    Ok(format!("{whole:#}\n"))
}

/// The field that identifies an entry of a list: a runtime refuses two entries with the same name, or the later one wins.
fn name_of(place: &str) -> Option<&'static str> {
    match place {
        "process.rlimits" => Some("type"),
        "mounts" => Some("destination"),
        _ => None,
    }
}

/// Adds missing fields, and appends entries to lists. `linux.seccomp` is added only as a whole.
fn merge(into: &mut Value, part: Value, place: &str) -> Result<(), ProfileError> {
    match (into, part) {
        (Value::Object(fields), Value::Object(part)) if place != "linux.seccomp" => {
            for (name, value) in part {
                let place = format!("{place}{}{name}", if place.is_empty() { "" } else { "." });
                match fields.get_mut(&name) {
                    Some(field) => merge(field, value, &place)?,
                    None => {
                        fields.insert(name, value);
                    }
                }
            }
            Ok(())
        }
        (Value::Array(entries), Value::Array(part)) => {
            for entry in part {
                let name = name_of(place).and_then(|field| entry.get(field));
                let is_same = |other: &&Value| {
                    name.is_some() && name_of(place).and_then(|field| other.get(field)) == name
                };
                match entries.iter().find(is_same) {
                    Some(other) if *other == entry => {}
                    Some(_) => {
                        let name = name.and_then(Value::as_str).unwrap_or_default();
                        return Err(ProfileError::Taken(format!("{place} entry {name}")));
                    }
                    None => entries.push(entry),
                }
            }
            Ok(())
        }
        (into, part) if *into == part => Ok(()),
        _ => Err(ProfileError::Taken(place.to_owned())),
    }
}

fn config(profile: &Profile<'_>, policy: &Policy) -> Value {
    let rules = profile_rules().into_iter();
    let calls: Vec<Value> = rules
        .filter(|rule| profile.has_doorbells || rule.call != "write")
        .map(|rule| {
            let arguments = rule.arguments.iter().map(|test| {
                json!({"index": test.index, "value": test.mask, "valueTwo": test.value, "op": "SCMP_CMP_MASKED_EQ"})
            });
            let mut call = json!({"names": [rule.call], "args": arguments.collect::<Vec<_>>()});
            match rule.error {
                Some(error) => {
                    insert(&mut call, "action", json!("SCMP_ACT_ERRNO"));
                    insert(&mut call, "errnoRet", json!(error));
                }
                None => insert(&mut call, "action", json!("SCMP_ACT_NOTIFY")),
            }
            call
        })
        .collect();
    let mut seccomp = json!({
        "defaultAction": "SCMP_ACT_ALLOW",
        "architectures": [ARCHITECTURE],
        "listenerPath": profile.socket,
        "syscalls": calls,
    });
    if let Some(name) = profile.metadata {
        insert(&mut seccomp, "listenerMetadata", json!(name));
    }
    let mut linux = json!({"seccomp": seccomp});
    if let Some(objects) = policy.objects {
        let limit = json!({"hcaHandles": policy.contexts, "hcaObjects": objects});
        let devices = policy.devices.iter();
        let limits = devices.map(|device| (device.clone(), limit.clone())).collect();
        let mut resources = json!({"rdma": Value::Object(limits)});
        // crun supports only files of cgroup2, and the kernel accepts one device per write.
        if let [device] = policy.devices.as_slice() {
            let line = format!("{device} hca_handle={} hca_object={objects}", policy.contexts);
            insert(&mut resources, "unified", json!({"rdma.max": line}));
        }
        insert(&mut linux, "resources", resources);
    }
    let mut process = json!({"noNewPrivileges": true});
    if let Some(bytes) = policy.pinned_bytes {
        let limit = json!({"type": "RLIMIT_MEMLOCK", "hard": bytes, "soft": bytes});
        insert(&mut process, "rlimits", json!([limit]));
    }
    let mut config = json!({"process": process, "linux": linux});
    if let (Some(inside), Some(outside)) = (&policy.topology, profile.topology) {
        let options = ["bind", "ro", "nosuid", "nodev", "noexec"];
        let mount = json!({"destination": inside, "source": outside, "type": "none", "options": options});
        insert(&mut config, "mounts", json!([mount]));
    }
    config
}

fn insert(object: &mut Value, name: &str, value: Value) {
    if let Some(fields) = object.as_object_mut() {
        fields.insert(name.to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::{Value, json};

    use super::{Profile, config, container_profile};
    use crate::policy::Policy;

    fn of(profile: &Profile<'_>, policy: &str) -> Value {
        config(profile, &Policy::parse(policy).unwrap())
    }

    #[test]
    fn a_profile_has_what_the_policy_asks_of_a_runtime() {
        let mut profile = Profile::new(Path::new("/run/b.sock"));
        let plain = of(&profile, "devices = ['rxe0']");
        assert_eq!(plain["process"], json!({"noNewPrivileges": true}));
        assert!(plain.get("mounts").is_none() && plain["linux"].get("resources").is_none());
        let seccomp = &plain["linux"]["seccomp"];
        assert_eq!(seccomp["listenerPath"], "/run/b.sock");
        assert!(seccomp.get("listenerMetadata").is_none());
        let calls = seccomp["syscalls"].as_array().unwrap();
        let of_call = |name: &str| calls.iter().find(|call| call["names"] == json!([name])).unwrap();
        assert_eq!(of_call("openat")["action"], "SCMP_ACT_NOTIFY");
        let lock =
            json!([{"index": 1, "value": 0xFFFF_FFFF_u32, "valueTwo": 37, "op": "SCMP_CMP_MASKED_EQ"}]);
        assert_eq!(of_call("fcntl")["args"], lock);
        assert_eq!(of_call("fcntl")["action"], "SCMP_ACT_ERRNO");
        assert_eq!(of_call("fcntl")["errnoRet"], 22);
        assert_eq!(of_call("write")["args"][0]["valueTwo"], 512);

        profile.metadata = Some("train");
        profile.has_doorbells = false;
        profile.topology = Some(Path::new("/var/lib/t"));
        let policy =
            "devices = ['rxe0']\ncontexts = 2\nobjects = 50\npinned_bytes = 4096\ntopology = '/run/t'";
        let full = of(&profile, policy);
        let seccomp = &full["linux"]["seccomp"];
        assert_eq!(seccomp["listenerMetadata"], "train");
        let calls = seccomp["syscalls"].as_array().unwrap();
        assert!(calls.iter().all(|call| call["names"] != json!(["write"])));
        let limit = json!({"rxe0": {"hcaHandles": 2, "hcaObjects": 50}});
        assert_eq!(full["linux"]["resources"]["rdma"], limit);
        let unified = &full["linux"]["resources"]["unified"]["rdma.max"];
        assert_eq!(unified, "rxe0 hca_handle=2 hca_object=50");
        let two = of(&profile, "devices = ['a', 'b']\nobjects = 1");
        assert!(
            two["linux"]["resources"].get("unified").is_none(),
            "a write has one device"
        );
        assert_eq!(full["process"]["rlimits"][0]["hard"], 4096);
        assert_eq!(full["mounts"][0]["destination"], "/run/t");
        assert_eq!(full["mounts"][0]["source"], "/var/lib/t");
    }

    #[test]
    fn a_profile_is_added_to_a_config_and_changes_nothing_of_it() {
        let mut profile = Profile::new(Path::new("/run/b.sock"));
        profile.topology = Some(Path::new("/var/lib/t"));
        let policy = Policy::parse("devices = ['rxe0']\npinned_bytes = 4096\ntopology = '/run/t'").unwrap();
        let base = json!({
            "process": {"args": ["sh"], "rlimits": [{"type": "RLIMIT_NOFILE", "hard": 1024, "soft": 1024}]},
            "linux": {"namespaces": [{"type": "pid"}]},
        });
        let merged = |base: &Value| container_profile(&profile, &policy, Some(&base.to_string()));
        let whole: Value = serde_json::from_str(&merged(&base).unwrap()).unwrap();
        assert_eq!(whole["process"]["args"], json!(["sh"]));
        assert_eq!(whole["process"]["rlimits"].as_array().unwrap().len(), 2);
        assert_eq!(whole["process"]["noNewPrivileges"], true);
        // An existing entry is not added again.
        let again: Value =
            serde_json::from_str(&container_profile(&profile, &policy, None).unwrap()).unwrap();
        let base_again = json!({"process": again["process"], "mounts": again["mounts"]});
        let merged_again: Value = serde_json::from_str(&merged(&base_again).unwrap()).unwrap();
        assert_eq!(merged_again, again);
        assert_eq!(whole["linux"]["namespaces"], base["linux"]["namespaces"]);
        assert_eq!(whole["linux"]["seccomp"]["listenerPath"], "/run/b.sock");
        for (field, value) in [
            (
                "linux.seccomp",
                json!({"linux": {"seccomp": {"defaultAction": "SCMP_ACT_ERRNO"}}}),
            ),
            (
                "process.noNewPrivileges",
                json!({"process": {"noNewPrivileges": false}}),
            ),
            ("linux", json!({"linux": 7})),
            (
                "process.rlimits entry RLIMIT_MEMLOCK",
                json!({"process": {"rlimits": [{"type": "RLIMIT_MEMLOCK", "hard": 8192, "soft": 4096}]}}),
            ),
            (
                "mounts entry /run/t",
                json!({"mounts": [{"destination": "/run/t", "source": "/elsewhere"}]}),
            ),
        ] {
            let error = merged(&value).unwrap_err().to_string();
            assert_eq!(
                error,
                format!("config.json has a {field} of its own; merge it by hand")
            );
        }
        let error = container_profile(&profile, &policy, Some("{"))
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("this is no config.json: EOF"), "{error}");
        let alone: Value =
            serde_json::from_str(&container_profile(&profile, &policy, None).unwrap()).unwrap();
        assert_eq!(alone, config(&profile, &policy));
    }
}
