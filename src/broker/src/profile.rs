//! The part of a container's `config.json` by which its runtime hands the filter over to the listener.
//!
//! Source: the OCI runtime specification, `config.md` and `config-linux.md`.

use std::path::Path;

use doorbell_sandbox::profile_rules;
use serde_json::{Value, json};

use crate::limits::{Limits, LimitsError};
use crate::policy::Policy;

/// The profile of containers.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Profile<'p> {
    /// The socket of the listener.
    pub socket: &'p Path,
    /// The name of the policy, if the listener has a folder of them.
    pub metadata: Option<&'p str>,
    /// If doorbells of Soft-RoCE are trapped. runc refuses a profile that traps `write`.
    pub has_doorbells: bool,
    /// The folder of the host with the topology of a policy that has one.
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

/// The calls of this machine, as libseccomp names it. Calls of another end the program.
const ARCHITECTURE: &str = if cfg!(target_arch = "x86_64") {
    "SCMP_ARCH_X86_64"
} else {
    "SCMP_ARCH_AARCH64"
};

/// The part of `config.json` for containers of this policy, as JSON to be merged.
///
/// # Errors
/// No device of the policy is there to be limited.
pub fn container_profile(profile: &Profile<'_>, policy: &Policy) -> Result<String, LimitsError> {
    let mut policy = policy.clone();
    Limits::of(&policy)?.narrow(&mut policy);
    Ok(config(profile, &policy))
}

fn config(profile: &Profile<'_>, policy: &Policy) -> String {
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
        insert(&mut linux, "resources", json!({"rdma": Value::Object(limits)}));
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
    format!("{config:#}\n")
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

    use super::{Profile, config};
    use crate::policy::Policy;

    fn of(profile: &Profile<'_>, policy: &str) -> Value {
        let text = config(profile, &Policy::parse(policy).unwrap());
        serde_json::from_str(&text).unwrap()
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
        assert_eq!(full["process"]["rlimits"][0]["hard"], 4096);
        assert_eq!(full["mounts"][0]["destination"], "/run/t");
        assert_eq!(full["mounts"][0]["source"], "/var/lib/t");
    }
}
