//! Tools for operators of doorbell, beside the data path: settings, the topology of a host, its preflight, and metrics.
//!
//! All of it stands on the public API of `doorbell`. An engine that has its own configuration and metrics does without this package.

mod metrics;
mod metrics_server;
mod port_counters;
mod preflight;
#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;
mod settings;
mod settings_file;
mod survey;
mod topology;

#[cfg(any(test, fuzzing))]
pub use metrics::hostile;
pub use metrics::{LabelError, Labels, MetricFamily, Metrics};
pub use metrics_server::MetricsServer;
pub use port_counters::PortCounters;
pub use preflight::{Finding, FindingKind, Severity, preflight};
pub use settings::{
    LogLevel, MeshSettings, Setting, SettingSource, SettingValues, Settings, SettingsError, SettingsFault,
    Subnets,
};
pub use topology::{
    ArpFacts, InterfaceFacts, Map, NeighbourFacts, NeighbourState, PortFacts, Reach, RouteFacts,
    SnapshotError, Topology,
};
