//! Tools for operators of doorbell, apart from the data path: settings, the topology of a host, its preflight, and metrics.
//!
//! This package uses only the public API of `doorbell`. An engine with its own configuration and metrics does not need it.

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
