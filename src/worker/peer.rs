//! The peer at the other end of a channel, and what was agreed.

use core::net::IpAddr;

use doorbell_core::handshake::Established;
use doorbell_core::provider::RemoteAddress;
use doorbell_core::wire::{InstanceId, KeyId, PrivateData, Resumption};
use doorbell_core::{Gid, Mtu, Qpn, Rkey};

/// The other end of a channel.
// Each channel has one: of what was established, it keeps no more than is asked of it.
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
    /// The address at which receives are announced to it.
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

    /// Returns the number of the peer's process, random for each start of it: another one is another process.
    #[must_use]
    pub const fn instance(&self) -> InstanceId {
        self.instance
    }

    /// The session that it said the connection carries on.
    #[must_use]
    pub const fn session(&self) -> Option<Resumption> {
        self.session
    }

    /// The version of the wire format that both speak: the lower of their newest
    /// ([`VERSION_TRANSFERS`](crate::wire::VERSION_TRANSFERS) and its like).
    #[must_use]
    pub const fn wire_version(&self) -> u8 {
        self.wire_version
    }

    /// The address at which receives are announced to it.
    pub(crate) const fn announcements(&self) -> RemoteAddress {
        RemoteAddress::new(self.credit_address, self.credit_rkey)
    }

    /// Returns the private data that the peer's application sent with the connection.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        self.private_data.as_bytes()
    }
}
