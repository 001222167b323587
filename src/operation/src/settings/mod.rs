//! Settings from defaults, a file, the environment and the command line. Later sources in this order override earlier ones.
//!
//! All settings are listed in [`keys`]. Nothing here opens a device. The source of each value is recorded.

mod error;
mod field;
mod file;
mod keys;
mod value;

use core::net::SocketAddr;
use core::time::Duration;
use std::ffi::OsString;
use std::path::PathBuf;

use doorbell::provider::IpPrefix;

use doorbell::link::{LinkConfig, LinkError};
use doorbell::mesh::MeshConfig;
use doorbell::rails::RailFilter;
use doorbell::worker::{ChannelConfig, WorkerConfig};
pub use error::{SettingSource, SettingsError, SettingsFault};
pub(crate) use file::FILE_BYTES_MAX;
use keys::Key;
use value::{RawValue, Value};

/// The values of all settings, in the configurations that use them. The defaults are those of the configurations.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SettingValues {
    /// The rails to use, for [`Node::set_rail_filter`](doorbell::Node::set_rail_filter). Default: all.
    pub rails: RailFilter,
    /// The key file, for [`KeyRing::from_file`](doorbell::KeyRing::from_file). Default: none.
    pub key_file: Option<PathBuf>,
    /// The file with the keys of the node daemon's jobs, for `doorbell_daemon::JobKeys`. Default: none, so that the first process of a job sets
    /// its key.
    pub job_keys: Option<PathBuf>,
    /// Whether to trust every peer that can reach the port, if there is no key file: for
    /// [`Trust::unauthenticated_on_purpose`](doorbell::Trust::unauthenticated_on_purpose). Default: no. Without both, no Node can be
    /// opened.
    pub unauthenticated: bool,
    /// The subnets of peers, for [`Trust::only_from`](doorbell::Trust::only_from). Default: all.
    pub only_from: Subnets,
    /// The limit of each wait. Default: 30 s.
    pub timeout: Duration,
    /// The address at which metrics are served, for [`MetricsServer::start`](crate::MetricsServer::start). Default: none.
    pub metrics: Option<SocketAddr>,
    /// The lowest level of events that are logged. Default: off.
    pub log: LogLevel,
    /// The configuration of Workers.
    pub worker: WorkerConfig,
    /// The configuration of channels, except those of links.
    pub channel: ChannelConfig,
    /// The configuration of links.
    pub link: LinkConfig,
    /// The configuration of a mesh.
    pub mesh: MeshSettings,
}

impl Default for SettingValues {
    fn default() -> Self {
        Self {
            rails: RailFilter::default(),
            key_file: None,
            job_keys: None,
            unauthenticated: false,
            only_from: Subnets::default(),
            timeout: Duration::from_secs(30),
            metrics: None,
            log: LogLevel::Off,
            worker: WorkerConfig::default(),
            channel: ChannelConfig::default(),
            link: LinkConfig::default(),
            mesh: MeshSettings::default(),
        }
    }
}

/// Subnets, in any order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "they are nothing else")]
pub struct Subnets(pub Vec<IpPrefix>);

/// The part of a [`MeshConfig`] that is the same for all members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MeshSettings {
    /// [`MeshConfig::window`].
    pub window: u32,
    /// [`MeshConfig::message_bytes_max`].
    pub message_bytes_max: usize,
    /// [`MeshConfig::hops_max`].
    pub hops_max: u8,
    /// [`MeshConfig::resend_after`].
    pub resend_after: Duration,
    /// [`MeshConfig::acknowledge_after`].
    pub acknowledge_after: Duration,
    /// [`MeshConfig::hold_down`].
    pub hold_down: Duration,
    /// [`MeshConfig::start_ahead_max`].
    pub start_ahead_max: Duration,
}

impl Default for MeshSettings {
    fn default() -> Self {
        let MeshConfig {
            window,
            message_bytes_max,
            hops_max,
            resend_after,
            acknowledge_after,
            hold_down,
            start_ahead_max,
            ..
        } = MeshConfig::new(doorbell::mesh::Rank::FIRST, 1, 0);
        Self {
            window,
            message_bytes_max,
            hops_max,
            resend_after,
            acknowledge_after,
            hold_down,
            start_ahead_max,
        }
    }
}

impl SettingValues {
    /// Copies the settings of a mesh, including those of its links, into a configuration.
    pub const fn configure(&self, mesh: &mut MeshConfig) {
        let MeshSettings {
            window,
            message_bytes_max,
            hops_max,
            resend_after,
            acknowledge_after,
            hold_down,
            start_ahead_max,
        } = self.mesh;
        mesh.window = window;
        mesh.message_bytes_max = message_bytes_max;
        mesh.hops_max = hops_max;
        mesh.resend_after = resend_after;
        mesh.acknowledge_after = acknowledge_after;
        mesh.hold_down = hold_down;
        mesh.start_ahead_max = start_ahead_max;
        mesh.link = self.link;
    }
}

/// The lowest level of events that are logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "these are the levels of logs")]
pub enum LogLevel {
    /// No events.
    #[default]
    Off,
    /// Unexpected failures, for example the end of a link.
    Error,
    /// Faults that doorbell works around.
    Warn,
    /// Events of peers and rails.
    Info,
    /// The steps of these events.
    Debug,
    /// All events.
    Trace,
}

impl LogLevel {
    pub(crate) const ALL: [Self; 6] = [
        Self::Off,
        Self::Error,
        Self::Warn,
        Self::Info,
        Self::Debug,
        Self::Trace,
    ];

    /// The name of the level in settings.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

/// Maximum number of bytes that a link may reserve for one kind of fragments, or for long requests. They are allocated with the
/// link.
const LINK_BYTES_MAX: u64 = 1 << 30;

/// Variables with our prefix that are not settings. `KEYS` has keys in examples of the book. Some are read by the loader of libibverbs, by the program, by the NCCL plugin,
/// by the lab and by tests. A cluster sets others for a service with the name doorbell.
const OTHERS: &[&str] = &[
    "CONFIG",
    "KEYS",
    "LIBIBVERBS",
    "RDMA_HEADERS",
    "REQUIRE_DEVICE",
    "DEVICE",
    "NETDEV",
    "SEED",
    "SEEDS",
    "WEAKEN",
    "WRITE_SEEDS",
    "FAKE_*",
    "LAB_*",
    "NCCL_*",
    "TEST_*",
    "SERVICE_*",
    "PORT",
    "PORT_*",
];

/// Settings, each with its source.
///
/// The source with the highest precedence wins, regardless of the order in which sources are read: the command line, then the
/// environment, then a file, then the defaults.
///
/// ```
/// use doorbell_operation::{SettingValues, Settings};
///
/// let mut own = SettingValues::default(); // this program's defaults
/// own.link.channel.send_depth = 64;
/// let mut settings = Settings::new(own);
/// settings.text("engine.toml", "[link]\ndead_after = \"200ms\"\n")?;
/// settings.environment(std::env::vars_os())?; // DOORBELL_LINK_DEAD_AFTER
/// settings.argument("--rails", "rails", "mlx5_*")?;
/// settings.check()?;
/// assert_eq!(settings.values().link.session.dead_after.as_millis(), 200);
/// assert_eq!(settings.source("link.dead_after").unwrap().to_string(), "engine.toml:2");
/// # Ok::<(), doorbell_operation::SettingsError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Settings {
    values: SettingValues,
    /// One for each setting, in the order of the keys.
    sources: Vec<SettingSource>,
}

/// A setting in effect.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Setting<'s> {
    /// Its full name.
    pub key: &'static str,
    /// Its environment variable.
    pub variable: String,
    /// The value as text.
    pub value: String,
    /// Its source.
    pub source: &'s SettingSource,
}

impl Default for Settings {
    fn default() -> Self {
        Self::new(SettingValues::default())
    }
}

impl Settings {
    /// Creates settings with the defaults of a program.
    #[must_use]
    pub fn new(own: SettingValues) -> Self {
        let defaults = SettingValues::default();
        let sources = keys::all().map(|key| {
            if (key.read)(&own) == (key.read)(&defaults) {
                SettingSource::Default
            } else {
                SettingSource::Program
            }
        });
        Self {
            sources: sources.collect(),
            values: own,
        }
    }

    /// Applies the environment variables of settings: `DOORBELL_`, and the name in capitals with `_` for each dot.
    ///
    /// # Errors
    /// A variable with this prefix is not a setting, or its value is invalid. Earlier variables are applied.
    pub fn environment(
        &mut self,
        variables: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<(), SettingsError> {
        for (name, value) in variables {
            // A name that is not UTF-8 cannot be a setting.
            let Some(name) = name.to_str().filter(|name| name.starts_with(keys::PREFIX)) else {
                continue;
            };
            if is_of_others(name) {
                continue;
            }
            let source = SettingSource::Environment(name.to_owned());
            let Some(key) = keys::all().find(|key| keys::variable(key) == name) else {
                return Err(SettingsError {
                    source,
                    key: None,
                    fault: SettingsFault::Unknown(None),
                });
            };
            let Some(value) = value.to_str() else {
                return Err(SettingsError {
                    source,
                    key: Some(key.name.into()),
                    fault: SettingsFault::Wrong("not valid UTF-8".into()),
                });
            };
            self.set(source, key.name, RawValue::Bare(value))?;
        }
        Ok(())
    }

    /// Applies one setting of the command line. `option` is shown as its source.
    ///
    /// # Errors
    /// The setting does not exist, or the value is invalid.
    pub fn argument(&mut self, option: &str, key: &str, value: &str) -> Result<(), SettingsError> {
        let source = SettingSource::Argument(option.to_owned());
        self.set(source, key, RawValue::Bare(value))
    }

    fn set(&mut self, source: SettingSource, name: &str, given: RawValue<'_>) -> Result<(), SettingsError> {
        let fail = |source, fault| SettingsError {
            source,
            key: Some(name.to_owned()),
            fault,
        };
        let found = keys::all()
            .zip(&mut self.sources)
            .find(|(key, _)| key.name == name);
        let Some((key, from)) = found else {
            return Err(fail(source, SettingsFault::Unknown(keys::meant(name))));
        };
        // A value that is overridden is validated nevertheless, since it takes effect once the other is removed.
        let mut aside;
        let is_weaker = source.strength() < from.strength();
        let values = if is_weaker {
            aside = self.values.clone();
            &mut aside
        } else {
            &mut self.values
        };
        let outcome = key.kind.read(given).and_then(|value| (key.write)(values, &value));
        match outcome {
            Ok(()) if is_weaker => {}
            Ok(()) => *from = source,
            Err(fault) => return Err(fail(source, fault)),
        }
        Ok(())
    }

    /// Checks whether the settings are consistent.
    ///
    /// # Errors
    /// Two settings contradict each other, or require together more memory than a link may have; the error names both sources. Or no
    /// link would work with one of them.
    pub fn check(&self) -> Result<(), SettingsError> {
        if self.values.unauthenticated && self.values.key_file.is_some() {
            let of = self.source_of("key_file");
            return Err(self.contradiction(
                "unauthenticated",
                format!("it is true, and key_file names the keys that peers have to have ({of}): one of them has to go"),
            ));
        }
        let (session, mesh) = (&self.values.link.session, &self.values.mesh);
        let pairs = [
            (
                "link.suspect_after",
                "link.dead_after",
                session.suspect_after <= session.dead_after,
            ),
            (
                "link.reconnect_first",
                "link.reconnect_longest",
                session.backoff.first <= session.backoff.longest,
            ),
            (
                "link.acknowledge_after",
                "link.dead_after",
                session.acknowledge_after < session.dead_after,
            ),
            (
                "mesh.acknowledge_after",
                "mesh.resend_after",
                mesh.acknowledge_after < mesh.resend_after,
            ),
            // The links of a mesh use this time, too.
            (
                "mesh.acknowledge_after",
                "link.dead_after",
                mesh.acknowledge_after < session.dead_after,
            ),
        ];
        if let Some((less, more, _)) = pairs.into_iter().find(|(.., is_right)| !is_right) {
            let (ours, theirs) = (self.value_text(less), self.value_text(more));
            let of = self.source_of(more);
            return Err(self.contradiction(
                less,
                format!("it is {ours}, and more than {more} allows, which is {theirs} ({of})"),
            ));
        }
        let link = &self.values.link;
        if let Err(reason) = link.check_channel() {
            let name = match reason {
                LinkError::Unsignaled(_) => "link.channel.unsignaled_max",
                _ => "link.channel.inline_bytes_max",
            };
            return Err(self.contradiction(name, reason.to_string()));
        }
        let fragments = ("link.fragment_bytes", session.fragment_bytes);
        let kept = [
            ("link.retained", link.retained, fragments),
            ("link.ahead", link.ahead, fragments),
            ("link.requests", link.requests, fragments),
            (
                "link.long_requests",
                link.long_requests,
                ("link.request_bytes_max", link.request_bytes_max),
            ),
        ];
        let is_too_much = |(_, count, (_, each)): &(_, u32, (_, u32))| {
            u64::from(*count).saturating_mul(u64::from(*each)) > LINK_BYTES_MAX
        };
        let Some((name, count, (bytes, _))) = kept.into_iter().find(is_too_much) else {
            return Ok(());
        };
        let of = self.source_of(bytes);
        let each = self.value_text(bytes);
        Err(self.contradiction(
            name,
            format!(
                "it is {count}, and with {bytes}, which is {each} ({of}), more than {LINK_BYTES_MAX} bytes of memory for each link"
            ),
        ))
    }

    fn contradiction(&self, name: &str, why: String) -> SettingsError {
        SettingsError {
            source: self.source_of(name),
            key: Some(name.into()),
            fault: SettingsFault::Contradiction(why),
        }
    }

    fn value_text(&self, name: &str) -> String {
        let value = keys::find(name).map(|key| (key.read)(&self.values).to_text());
        value.unwrap_or_default()
    }

    fn source_of(&self, name: &str) -> SettingSource {
        self.source(name).cloned().unwrap_or(SettingSource::Default)
    }

    /// The values in effect.
    #[must_use]
    pub const fn values(&self) -> &SettingValues {
        &self.values
    }

    /// The source of a setting's value. `None` if the setting does not exist.
    #[must_use]
    pub fn source(&self, key: &str) -> Option<&SettingSource> {
        let mut sources = keys::all().zip(&self.sources);
        sources
            .find(|(known, _)| known.name == key)
            .map(|(_, source)| source)
    }

    /// All settings.
    pub fn iter(&self) -> impl Iterator<Item = Setting<'_>> {
        self.each().map(|(key, value, source)| Setting {
            key: key.name,
            variable: keys::variable(key),
            value: value.to_text(),
            source,
        })
    }

    /// The values in effect as TOML, each with its source in a comment.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let (mut lines, mut section) = (Vec::new(), "");
        for (key, value, source) in self.each() {
            let (of, name) = key.name.rsplit_once('.').unwrap_or(("", key.name));
            if of != section {
                section = of;
                lines.push((String::new(), None));
                lines.push((format!("[{of}]"), None));
            }
            lines.push((format!("{name} = {}", value.to_toml()), Some(source)));
        }
        let widths = lines.iter().filter(|(_, source)| source.is_some());
        let width = widths
            .map(|(line, _)| line.chars().count())
            .filter(|width| *width <= 48)
            .max();
        let width = width.unwrap_or_default();
        let lines = lines.iter().map(|(line, source)| match source {
            Some(source) => format!("{line:width$}  # {source}\n"),
            None => format!("{line}\n"),
        });
        lines.collect()
    }

    fn each(&self) -> impl Iterator<Item = (&'static Key, Value, &SettingSource)> {
        keys::all()
            .zip(&self.sources)
            .map(|(key, source)| (key, (key.read)(&self.values), source))
    }
}

/// Whether a variable is not a setting.
fn is_of_others(name: &str) -> bool {
    let name = name.strip_prefix(keys::PREFIX).unwrap_or(name);
    let is_other = |other: &&str| match other.strip_suffix('*') {
        Some(begin) => name.starts_with(begin),
        None => name == *other,
    };
    OTHERS.iter().any(is_other) || is_of_service(name)
}

/// Whether a cluster sets it for a service whose name begins with ours, for example `doorbell-metrics`. No setting has such a name.
///
/// Source: Kubernetes, "Service", discovering services by environment variables.
fn is_of_service(name: &str) -> bool {
    let is_port = |rest: &str| {
        let mut words = rest.split('_');
        let number = words.next().unwrap_or_default();
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        is_number && matches!(words.next(), Some("TCP" | "UDP" | "SCTP"))
    };
    ["_SERVICE_HOST", "_SERVICE_PORT", "_PORT"]
        .iter()
        .any(|end| name.ends_with(end))
        || name.contains("_SERVICE_PORT_")
        || name.split("_PORT_").skip(1).any(is_port)
}
