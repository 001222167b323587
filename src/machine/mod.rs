//! Boundary to the operating system: the clock, entropy and TCP of this host, as a replaceable `Network`; threads that make and destroy
//! device objects; and logging. Nothing here makes decisions of a protocol.

pub(crate) mod clock;
pub(crate) mod log;
pub(crate) mod makers;
pub(crate) mod plain_file;
pub(crate) mod reaper;
pub(crate) mod signal;
pub(crate) mod tcp;
pub(crate) mod unfinished;
mod watch;
