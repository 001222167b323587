//! The settings of the plugin: those of doorbell, and NCCL's variables with the same meaning.

use core::fmt::Write as _;
use core::time::Duration;
use std::ffi::OsString;

use doorbell::{KeyRing, Trust};
use doorbell_operation::{SettingValues, Settings};

use crate::abi::NcclResult;
use crate::failure::Failure;
use crate::frame::{HEADER_BYTES, RECEIVES_MAX, clear_bytes};
use crate::relay::Relays;

/// The prefix of the variables that only this plugin has.
const OWN: &str = "DOORBELL_NCCL_";

/// Maximum length in bytes of a message that is copied into the link. Longer messages are transfers.
const EAGER_BYTES: &str = "DOORBELL_NCCL_EAGER_BYTES";

/// Whether a peer keeps access to the memory of a receive between transfers, or gets it for each transfer.
const LOANS: &str = "DOORBELL_NCCL_LOANS";
/// The hosts that are relays. Without any, nothing is relayed.
const RELAYS: &str = "DOORBELL_NCCL_RELAYS";

/// Whether relays connect even direct neighbours. For tests and measurements.
const RELAY_ALWAYS: &str = "DOORBELL_NCCL_RELAY_ALWAYS";

/// The settings file.
const FILE: &str = "DOORBELL_CONFIG";

/// Maximum length of a link's message in bytes.
const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// Maximum number of open transfers of a link in each direction. Further requests wait.
pub(crate) const TRANSFERS_MAX: u32 = 128;

const NEITHER: &str = "no peer is trusted: name a key file in DOORBELL_KEY_FILE, the same on all hosts, which `doorbell keygen FILE` makes; \
    or trust every peer that reaches the port with DOORBELL_UNAUTHENTICATED=true";

/// The settings in effect.
#[derive(Clone, Debug)]
pub(crate) struct PluginSettings {
    pub(crate) values: SettingValues,
    pub(crate) trust: Trust,
    /// Maximum length of a message that is copied into the link.
    pub(crate) eager_bytes_max: usize,
    /// Maximum length of a message over a link, which keeps all of its fragments until the peer has them.
    pub(crate) message_bytes_max: usize,
    /// Whether memory is lent to peers.
    pub(crate) has_loans: bool,
    pub(crate) relays: Relays,
    /// Lines for the log.
    pub(crate) notes: Vec<String>,
    /// Whether doorbell's settings set the traffic class, which then overrides NCCL's.
    pub(crate) has_traffic_class: bool,
}

/// Returns the defaults of the plugin: many links, short messages.
fn defaults() -> SettingValues {
    let mut own = SettingValues::default();
    own.worker.slots = 4096;
    let link = &mut own.link;
    (link.channel.send_depth, link.channel.receive_depth) = (64, 64);
    // About 2 MiB for each link.
    (link.retained, link.ahead) = (256, 256);
    link.message_bytes_max = MESSAGE_BYTES_MAX;
    // All ranks may run on one host.
    link.links_per_address = link.links_max;
    link.transfers.transfers_max = TRANSFERS_MAX;
    own
}

impl PluginSettings {
    /// Reads the settings from variables, and from the file that a variable names.
    pub(crate) fn read(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Result<Self, Failure> {
        let wrong = |why: String| Failure::new(NcclResult::INVALID_USAGE, why);
        let (own, others): (Vec<_>, Vec<_>) = variables
            .into_iter()
            .partition(|(name, _)| name.to_str().is_some_and(|name| name.starts_with(OWN)));
        let find = |name: &str| others.iter().find(|(of, _)| of == name).map(|(_, value)| value);
        let mut settings = Settings::new(defaults());
        if let Some(path) = find(FILE).filter(|path| !path.is_empty()) {
            settings.file(path).map_err(|error| wrong(error.to_string()))?;
        }
        let environment = settings.environment(others.iter().cloned());
        environment.map_err(|error| wrong(error.to_string()))?;
        let notes = take_foreign(&mut settings, &others)?;
        settings.check().map_err(|error| wrong(error.to_string()))?;
        let has_traffic_class = is_set(&settings, "link.channel.traffic_class");
        let values = settings.values().clone();
        let mut eager_bytes_max = usize::try_from(values.link.session.fragment_bytes).unwrap_or(0);
        eager_bytes_max = eager_bytes_max.saturating_sub(HEADER_BYTES);
        let link = &values.link;
        let fragment = usize::try_from(link.session.fragment_bytes).unwrap_or(usize::MAX);
        let kept = usize::try_from(link.retained)
            .unwrap_or(usize::MAX)
            .saturating_mul(fragment);
        let (room, least) = (
            link.message_bytes_max.min(kept),
            clear_bytes(u8::try_from(RECEIVES_MAX).unwrap_or(u8::MAX)),
        );
        if room < least {
            return Err(wrong(format!(
                "link.message_bytes_max is {}, and link.retained fragments of link.fragment_bytes have {kept} bytes: the plugin needs {least} of both",
                link.message_bytes_max
            )));
        }
        let longest = room.saturating_sub(HEADER_BYTES);
        let mut has_loans = true;
        let mut relays = Relays::default();
        for (name, value) in &own {
            let text = value.to_string_lossy();
            let name = name.to_string_lossy();
            let truth = || {
                text.parse()
                    .map_err(|_| wrong(format!("{name}: must be true or false")))
            };
            if name == LOANS {
                has_loans = truth()?;
                continue;
            }
            if name == RELAYS {
                let is_always = relays.is_always;
                relays = Relays::read(&text).map_err(|why| wrong(format!("{RELAYS}: {why}")))?;
                relays.is_always = is_always;
                continue;
            }
            if name == RELAY_ALWAYS {
                relays.is_always = truth()?;
                continue;
            }
            if name != EAGER_BYTES {
                return Err(wrong(format!(
                    "{name}: there is no such setting; {EAGER_BYTES}, {LOANS}, {RELAYS} and {RELAY_ALWAYS} are"
                )));
            }
            let bytes = value.to_str().and_then(|value| value.parse().ok());
            eager_bytes_max = bytes.filter(|bytes| *bytes <= longest).ok_or_else(|| {
                wrong(format!(
                    "{EAGER_BYTES}: must be a number of bytes from 0 to {longest}"
                ))
            })?;
        }
        let trust = match &values.key_file {
            Some(path) => Trust::keys(KeyRing::from_file(path).map_err(|error| wrong(error.to_string()))?),
            None if values.unauthenticated => Trust::unauthenticated_on_purpose(),
            None => return Err(wrong(NEITHER.to_owned())),
        };
        Ok(Self {
            trust: trust.only_from(&values.only_from.0),
            eager_bytes_max: eager_bytes_max.min(longest),
            message_bytes_max: room,
            has_loans,
            values,
            relays,
            notes,
            has_traffic_class,
        })
    }

    /// Returns the timeout of one relay, a part of the total timeout, so that others can be asked.
    pub(crate) fn patience(&self) -> Duration {
        self.values.timeout.checked_div(4).unwrap_or_default()
    }
}

fn is_set(settings: &Settings, key: &str) -> bool {
    settings.source(key).is_some_and(|source| {
        !matches!(
            source,
            doorbell_operation::SettingSource::Default | doorbell_operation::SettingSource::Program
        )
    })
}

/// Variables of NCCL's IB plugin and of the mesh plugin that have no use here, each with the reason.
const NOT_NEEDED: &[(&str, &str)] = &[
    ("NCCL_IB_GID_INDEX", "the GID of each address is looked up"),
    ("NCCL_IB_ADDR_FAMILY", "the GID of each address is looked up"),
    ("NCCL_IB_ADDR_RANGE", "the GID of each address is looked up"),
    ("NCCL_IB_ROCE_VERSION_NUM", "rails are RoCEv2"),
    (
        "NCCL_IB_TIMEOUT",
        "links find dead rails by DOORBELL_LINK_DEAD_AFTER",
    ),
    (
        "NCCL_IB_RETRY_CNT",
        "links find dead rails by DOORBELL_LINK_DEAD_AFTER",
    ),
    ("NCCL_IB_MERGE_NICS", "all rails are one device"),
    (
        "NCCL_IB_QPS_PER_CONNECTION",
        "a link has a queue pair on each rail",
    ),
    (
        "NCCL_IB_SPLIT_DATA_ON_QPS",
        "a link has a queue pair on each rail",
    ),
    (
        "NCCL_IB_SUBNET_AWARE_ROUTING",
        "rails are chosen by the peer's subnets",
    ),
    (
        "NCCL_IB_SUBNET_PREFIX_LEN",
        "the prefix of each address is looked up",
    ),
    ("NCCL_IB_PCI_RELAXED_ORDERING", "a completion ends each transfer"),
    (
        "NCCL_IB_CUDA_SUPPORT",
        "GPU memory is taken by dma-buf, where a device registers it",
    ),
    (
        "NCCL_IB_DISABLE",
        "it is for NCCL's own plugin; without RDMA this one fails",
    ),
    ("NCCL_MESH_GID_INDEX", "the GID of each address is looked up"),
    ("NCCL_MESH_DEBUG", "NCCL_DEBUG=INFO has all lines"),
    (
        "NCCL_MESH_FAST_FAIL",
        "the end of a peer's process is noticed at once",
    ),
    (
        "NCCL_MESH_RETRY_COUNT",
        "links find dead rails by DOORBELL_LINK_DEAD_AFTER",
    ),
    ("NCCL_MESH_CONN_POOL", "comms of one peer always share a link"),
    ("NCCL_MESH_ASYNC_CONNECT", "connecting never waits"),
    (
        "NCCL_MESH_ENABLE_RELAY",
        "DOORBELL_NCCL_RELAYS names the hosts that relay",
    ),
    ("NCCL_MESH_MAX_HOPS", "a route has two relays at most"),
    ("NCCL_MESH_DUAL_CHANNEL", "all rails are used"),
];

/// With this variable, the mesh plugin uses TCP. This plugin has no TCP transport, so it fails, and NCCL goes on without it.
const NO_RDMA: &str = "NCCL_MESH_DISABLE_RDMA";

/// Applies the variables of NCCL's IB plugin and of the mesh plugin that have the same meaning here. Returns log lines about applied and
/// unused variables.
fn take_foreign(settings: &mut Settings, variables: &[(OsString, OsString)]) -> Result<Vec<String>, Failure> {
    let mut notes = Vec::new();
    let mut unused = String::new();
    let mut foreign: Vec<_> = variables
        .iter()
        .filter_map(|(name, value)| Some((name.to_str()?, value.to_string_lossy())))
        .filter(|(name, _)| name.starts_with("NCCL_IB_") || name.starts_with("NCCL_MESH_"))
        .collect();
    foreign.sort();
    for (name, value) in foreign {
        let taken = match name {
            "NCCL_IB_HCA" => Some(("rails", rails_of(&value))),
            "NCCL_IB_TC" => Some(("link.channel.traffic_class", value.trim().to_owned())),
            "NCCL_IB_SL" => Some(("link.channel.service_level", value.trim().to_owned())),
            "NCCL_MESH_TIMEOUT_MS" => Some(("timeout", format!("{}ms", value.trim()))),
            NO_RDMA if !matches!(value.trim(), "" | "0") => {
                let why = format!(
                    "{NO_RDMA}={value}: there is no transport here but RDMA; use another plugin for TCP"
                );
                return Err(Failure::new(NcclResult::INVALID_USAGE, why));
            }
            _ => None,
        };
        let known = NOT_NEEDED.iter().find(|(known, _)| *known == name);
        match taken {
            Some((key, _)) if is_set(settings, key) => {
                notes.push(format!(
                    "{name} is not used: {key} is set by a setting of doorbell"
                ));
            }
            Some((key, text)) => {
                let outcome = settings.argument(name, key, &text);
                outcome.map_err(|error| Failure::new(NcclResult::INVALID_USAGE, error))?;
                notes.push(format!("{name}={value} is used as {key}={text}"));
            }
            None if known.is_some() => {
                let why = known.map_or("", |(_, why)| why);
                notes.push(format!("{name} is not needed: {why}"));
            }
            None => {
                let gap = if unused.is_empty() { "" } else { ", " };
                let _ = write!(unused, "{gap}{name}");
            }
        }
    }
    if !unused.is_empty() {
        notes.push(format!("variables without a meaning here: {unused}"));
    }
    Ok(notes)
}

/// Translates NCCL's device list to rail rules. A leading `^` excludes all listed devices. Without `=`, names are prefixes.
fn rails_of(list: &str) -> String {
    let list = list.trim();
    let (deny, list) = list.strip_prefix('^').map_or(("", list), |list| ("^", list));
    let (end, list) = list.strip_prefix('=').map_or(("*", list), |list| ("", list));
    let rules = list.split(',').map(str::trim).filter(|rule| !rule.is_empty());
    let rules = rules.map(|rule| match rule.split_once(':') {
        Some((device, port)) => format!("{deny}{device}{end}:{port}"),
        None => format!("{deny}{rule}{end}"),
    });
    rules.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::{PluginSettings, rails_of};
    use crate::failure::Failure;

    fn read(variables: &[(&str, &str)]) -> Result<PluginSettings, Failure> {
        let variables = variables
            .iter()
            .map(|(name, value)| ((*name).into(), (*value).into()));
        PluginSettings::read(variables)
    }

    fn refused(variables: &[(&str, &str)]) -> String {
        read(variables).unwrap_err().words()
    }

    const OPEN: (&str, &str) = ("DOORBELL_UNAUTHENTICATED", "true");

    #[test]
    fn nobody_is_trusted_unless_that_is_said() {
        assert!(refused(&[]).contains("DOORBELL_KEY_FILE"));
        let unauthenticated = read(&[OPEN]).unwrap();
        assert!(!unauthenticated.trust.is_authenticated());
        assert!(unauthenticated.notes.is_empty());
        assert!(refused(&[("DOORBELL_KEY_FILE", "/no/such/file")]).contains("/no/such/file"));
    }

    #[test]
    fn a_message_is_eager_up_to_a_fragment_or_what_is_set() {
        assert_eq!(read(&[OPEN]).unwrap().eager_bytes_max, 4072 - 16);
        let set = |bytes| read(&[OPEN, ("DOORBELL_NCCL_EAGER_BYTES", bytes)]);
        assert_eq!(set("0").unwrap().eager_bytes_max, 0);
        assert_eq!(set("65520").unwrap().eager_bytes_max, 65_520);
        for wrong in ["65521", "-1", "x", ""] {
            let why = set(wrong).unwrap_err().words();
            assert!(why.contains("from 0 to 65520"), "{why}");
        }
        let relays = read(&[
            OPEN,
            ("DOORBELL_NCCL_RELAYS", "192.0.2.250"),
            ("DOORBELL_NCCL_RELAY_ALWAYS", "true"),
        ]);
        let relays = relays.unwrap().relays;
        assert!(relays.is_on() && relays.is_always);
        assert!(!read(&[OPEN]).unwrap().relays.is_on());
        assert!(refused(&[OPEN, ("DOORBELL_NCCL_RELAYS", "192.0.2.250:0")]).contains("port 0"));
        assert!(refused(&[OPEN, ("DOORBELL_NCCL_RELAY_ALWAYS", "1")]).contains("true or false"));
        assert!(refused(&[OPEN, ("DOORBELL_NCCL_EAGER", "1")]).contains("no such setting"));
        let loans = |value| read(&[OPEN, ("DOORBELL_NCCL_LOANS", value)]).map(|read| read.has_loans);
        assert!(read(&[OPEN]).unwrap().has_loans && loans("true").unwrap() && !loans("false").unwrap());
        assert!(loans("1").unwrap_err().words().contains("true or false"));
        assert!(refused(&[OPEN, ("DOORBELL_LINK_DEAD_AFTR", "1s")]).contains("DOORBELL_LINK_DEAD_AFTR"));
    }

    #[test]
    fn the_longest_frame_of_the_plugin_fits_in_a_message() {
        let longest =
            |own: &[(&str, &str)]| read(&[&[OPEN], own].concat()).map(|read| read.message_bytes_max);
        assert_eq!(longest(&[]).unwrap(), 65_536);
        // A Clear of eight receives.
        let (bytes, retained) = ("DOORBELL_LINK_MESSAGE_BYTES_MAX", "DOORBELL_LINK_RETAINED");
        assert_eq!(longest(&[(bytes, "112")]).unwrap(), 112);
        let why = longest(&[(bytes, "111")]).unwrap_err().words();
        assert!(why.contains("111") && why.contains("112"), "{why}");
        // A link keeps all fragments of a message.
        assert_eq!(longest(&[(retained, "8")]).unwrap(), 8 * 4072);
        let eager = [(retained, "8"), ("DOORBELL_NCCL_EAGER_BYTES", "60000")];
        let why = longest(&eager).unwrap_err().words();
        assert!(why.contains("from 0 to 32560"), "{why}");
    }

    #[test]
    fn variables_of_nccl_that_mean_the_same_are_taken_and_reported() {
        let read = read(&[
            OPEN,
            ("NCCL_IB_HCA", "mlx5_0,mlx5_2:1"),
            ("NCCL_IB_TC", "106"),
            ("NCCL_MESH_TIMEOUT_MS", "5000"),
            ("NCCL_IB_GID_INDEX", "3"),
            ("NCCL_IB_TIMEOT", "22"),
            ("NCCL_MESH_DISABLE_RDMA", "0"),
            ("NCCL_MESH_ENABLE_RELAY", "1"),
            ("NCCL_DEBUG", "INFO"),
        ]);
        let read = read.unwrap();
        assert_eq!(read.values.rails.to_string(), "mlx5_0*,mlx5_2*:1");
        assert_eq!(read.values.link.channel.traffic_class, 106);
        assert_eq!(read.values.timeout.as_secs(), 5);
        assert!(read.has_traffic_class);
        assert_eq!(
            read.notes,
            [
                "NCCL_IB_GID_INDEX is not needed: the GID of each address is looked up",
                "NCCL_IB_HCA=mlx5_0,mlx5_2:1 is used as rails=mlx5_0*,mlx5_2*:1",
                "NCCL_IB_TC=106 is used as link.channel.traffic_class=106",
                "NCCL_MESH_ENABLE_RELAY is not needed: DOORBELL_NCCL_RELAYS names the hosts that relay",
                "NCCL_MESH_TIMEOUT_MS=5000 is used as timeout=5000ms",
                "variables without a meaning here: NCCL_IB_TIMEOT, NCCL_MESH_DISABLE_RDMA",
            ]
        );
    }

    #[test]
    fn a_value_that_is_none_and_a_transport_that_is_not_there_are_refused() {
        for (name, value) in [
            ("NCCL_IB_TC", "-3"),
            ("NCCL_IB_TC", "256"),
            ("NCCL_IB_SL", "x"),
            ("NCCL_IB_HCA", "mlx5_0:x"),
            ("NCCL_MESH_TIMEOUT_MS", "soon"),
            ("NCCL_MESH_DISABLE_RDMA", "1"),
        ] {
            let why = refused(&[OPEN, (name, value)]);
            assert!(why.contains(name), "{why}");
        }
    }

    #[test]
    fn a_setting_of_doorbell_comes_before_one_of_nccl() {
        let read = read(&[OPEN, ("NCCL_IB_HCA", "mlx5_0"), ("DOORBELL_RAILS", "mlx5_9")]).unwrap();
        assert_eq!(read.values.rails.to_string(), "mlx5_9");
        assert_eq!(
            read.notes,
            ["NCCL_IB_HCA is not used: rails is set by a setting of doorbell"]
        );
    }

    #[test]
    fn a_list_of_nccl_keeps_its_meaning() {
        for (list, rules) in [
            ("=mlx5_0:1,mlx5_1", "mlx5_0:1,mlx5_1"),
            ("^mlx5_0,mlx5_1", "^mlx5_0*,^mlx5_1*"),
            ("^=mlx5_0", "^mlx5_0"),
            ("", ""),
        ] {
            assert_eq!(rails_of(list), rules);
        }
    }
}
