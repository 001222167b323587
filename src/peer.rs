//! Who is at the other end of a channel, and what was agreed.

use core::net::IpAddr;

use doorbell_core::handshake::Established;
use doorbell_core::provider::RemoteAddress;
use doorbell_core::wire::{InstanceId, KeyId, Resumption};
use doorbell_core::{Gid, Mtu, Qpn};

/// The other end of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    pub(crate) established: Established,
}

impl Peer {
    /// Its GID.
    #[must_use]
    pub const fn gid(&self) -> Gid {
        self.established.peer.gid
    }

    /// The address its GID stands for.
    #[must_use]
    pub const fn address(&self) -> IpAddr {
        self.established.peer.gid.to_ip()
    }

    /// Its queue pair.
    #[must_use]
    pub const fn qpn(&self) -> Qpn {
        self.established.peer.qpn
    }

    /// The path MTU: the lower of both sides'.
    #[must_use]
    pub const fn path_mtu(&self) -> Mtu {
        self.established.agreed.mtu
    }

    /// READs and atomics we may have outstanding at most.
    #[must_use]
    pub const fn rd_atomic_max(&self) -> u8 {
        self.established.agreed.max_rd_atomic
    }

    /// Receives it keeps posted.
    #[must_use]
    pub const fn receive_depth(&self) -> u32 {
        self.established.peer.parameters.receive_depth
    }

    /// Bytes each of its receives holds: the longest message it takes.
    #[must_use]
    pub const fn message_bytes_max(&self) -> u32 {
        self.established.peer.parameters.slot_bytes
    }

    /// The key it proved to have; `None` where it was not asked to.
    #[must_use]
    pub const fn key(&self) -> Option<KeyId> {
        self.established.key
    }

    /// Its number, random for each start of it: another one is another process.
    #[must_use]
    pub const fn instance(&self) -> InstanceId {
        self.established.peer_instance
    }

    /// What it said of the session that the connection carries on.
    #[must_use]
    pub const fn session(&self) -> Option<Resumption> {
        self.established.peer.session
    }

    /// Where receives are announced to it.
    pub(crate) const fn announcements(&self) -> RemoteAddress {
        RemoteAddress::new(
            self.established.peer.credit.address,
            self.established.peer.credit.rkey,
        )
    }

    /// The bytes its application sent with the connection.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        self.established.peer.private_data.as_bytes()
    }
}
