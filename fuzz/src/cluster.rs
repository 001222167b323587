//! Hosts that a scenario may name: the file of the lab itself.
#![expect(dead_code, reason = "whoever runs a scenario uses more of it")]

#[path = "../../sim/lab/src/cluster/host.rs"]
mod host;

pub(crate) use host::Host;
