//! Facts of a host.

use core::net::IpAddr;

/// One host, and how it hangs on the links of the topology.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    /// The name the topology gives it.
    pub(crate) name: String,
    /// One entry for every link it is on, in the topology's order; empty on a
    /// local cluster.
    pub(crate) ports: Vec<Port>,
}

/// One end of a link: a network device with an RDMA device on it.
#[derive(Clone, Debug)]
pub(crate) struct Port {
    /// The link's name.
    pub(crate) link: String,
    /// The host at the other end.
    pub(crate) peer: String,
    /// Network device, unique among all hosts.
    pub(crate) netdev: String,
    /// RDMA device, unique among all hosts.
    pub(crate) device: String,
    /// Its address on the link's subnet.
    pub(crate) address: IpAddr,
    /// Length of the subnet's prefix.
    pub(crate) prefix: u8,
    /// Index of the RoCEv2 GID that follows from the address.
    pub(crate) gid_index: u32,
}
