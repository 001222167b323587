//! Boundary to the operating system: the clock, entropy and TCP of this host, as a `Network` that another can replace; threads that
//! destroy objects and make queue pairs; what is reported. Nothing here decides.

pub(crate) mod clock;
pub(crate) mod log;
pub(crate) mod makers;
pub(crate) mod plain_file;
pub(crate) mod reaper;
pub(crate) mod signal;
pub(crate) mod tcp;
pub(crate) mod unfinished;
mod watch;
