//! What a scenario may say of hosts: of the lab itself.

#[path = "../../sim/lab/src/cluster/host.rs"]
mod host;

pub(crate) use host::Host;
