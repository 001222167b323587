//! The peer of a channel, and the parameters negotiated with it.

use core::net::IpAddr;

use doorbell_core::handshake::Established;
use doorbell_core::provider::RemoteAddress;
use doorbell_core::wire::{InstanceId, KeyId, PrivateData, Resumption};
use doorbell_core::{Gid, Mtu, Qpn, Rkey};

/// The other end of a channel.
// Each channel has a `Peer`, so the struct keeps only the parameters that its methods return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    gid: Gid,
    qpn: Qpn,
    path_mtu: Mtu,
    rd_atomic_max: u8,
    receive_depth: u32,
    message_bytes_max: u32,
    key: Option<KeyId>,
    instance: InstanceId,
    session: Option<Resumption>,
    wire_version: u8,
    /// The address of the peer's credit word, to which this side announces its receives.
    credit_address: u64,
    credit_rkey: Rkey,
    private_data: PrivateData,
}

impl Peer {
    pub(crate) const fn new(established: &Established) -> Self {
        let peer = &established.peer;
        Self {
            gid: peer.gid,
            qpn: peer.qpn,
            path_mtu: established.agreed.mtu,
            rd_atomic_max: established.agreed.max_rd_atomic,
            receive_depth: peer.parameters.receive_depth,
            message_bytes_max: peer.parameters.slot_bytes,
            key: established.key,
            instance: established.peer_instance,
            session: peer.session,
            wire_version: established.version,
            credit_address: peer.credit.address,
            credit_rkey: peer.credit.rkey,
            private_data: peer.private_data,
        }
    }

    /// Returns the GID of the peer's rail.
    #[must_use]
    pub const fn gid(&self) -> Gid {
        self.gid
    }

    /// Returns the IP address of that GID.
    #[must_use]
    pub const fn address(&self) -> IpAddr {
        self.gid.to_ip()
    }

    /// Returns the number of the peer's queue pair.
    #[must_use]
    pub const fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Returns the path MTU: the lower of both sides' limits.
    #[must_use]
    pub const fn path_mtu(&self) -> Mtu {
        self.path_mtu
    }

    /// Returns how many READs and atomics this side may have outstanding.
    #[must_use]
    pub const fn rd_atomic_max(&self) -> u8 {
        self.rd_atomic_max
    }

    /// Returns how many receives the peer keeps posted.
    #[must_use]
    pub const fn receive_depth(&self) -> u32 {
        self.receive_depth
    }

    /// Returns the size of the peer's receives in bytes, which is the longest message that it accepts.
    #[must_use]
    pub const fn message_bytes_max(&self) -> u32 {
        self.message_bytes_max
    }

    /// Returns the id of the key that the peer proved to have; `None` if no key was required.
    #[must_use]
    pub const fn key(&self) -> Option<KeyId> {
        self.key
    }

    /// Returns the instance number of the peer's process. Each process draws a random number at its start, so another number
    /// means another process.
    #[must_use]
    pub const fn instance(&self) -> InstanceId {
        self.instance
    }

    /// Returns the peer's state of the session that the connection resumes, if the peer sent one.
    #[must_use]
    pub const fn session(&self) -> Option<Resumption> {
        self.session
    }

    /// Returns the wire version in use: the lower of both sides' newest versions (for example
    /// [`VERSION_TRANSFERS`](crate::wire::VERSION_TRANSFERS)).
    #[must_use]
    pub const fn wire_version(&self) -> u8 {
        self.wire_version
    }

    /// Returns the address of the peer's credit word, to which this side announces its receives.
    pub(crate) const fn announcements(&self) -> RemoteAddress {
        RemoteAddress::new(self.credit_address, self.credit_rkey)
    }

    /// Returns the private data that the peer's application sent with the connection.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        self.private_data.as_bytes()
    }
}
