//! Tools of operators: settings, topology, preflight, metrics, and the facts of this host.

pub(crate) mod metrics;
pub(crate) mod metrics_server;
pub(crate) mod port_counters;
pub(crate) mod preflight;
#[cfg(feature = "settings")]
pub(crate) mod settings;
#[cfg(feature = "settings")]
mod settings_file;
mod survey;
pub(crate) mod topology;
