//! Boundary to the operating system: the clock, entropy and TCP of this host, as a `Network` that another can replace. It
//! surveys this host and its counters. Its threads destroy objects, make queue pairs, do handshakes and serve metrics. Nothing
//! here decides.

pub(crate) mod background;
pub(crate) mod clock;
pub(crate) mod keys;
pub(crate) mod makers;
pub(crate) mod metrics_server;
mod plain_file;
pub(crate) mod port_counters;
pub(crate) mod reaper;
#[cfg(feature = "settings")]
mod settings;
pub(crate) mod signal;
mod survey;
pub(crate) mod tcp;
mod watch;
