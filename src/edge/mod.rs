//! Where decisions meet the world: the clock, entropy and TCP of this host, as a `Network` that another can
//! stand in for, a look at what this host has and counts, and threads: that which destroys, those that make queue pairs, that
//! which does handshakes, and that which tells metrics. Nothing here decides.

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
