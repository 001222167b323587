//! The peers that a Node trusts ([`Trust`]): all peers, or only peers that have a key ([`KeyRing`]); and the subnets of their addresses.
//!
//! A peer proves its key before a queue pair is made for it. A listener limits how many peers connect at the same time.

#[cfg(any(test, fuzzing))]
pub mod hostile;
mod key;
pub(crate) mod key_file;
mod pattern;
mod refusals;
mod ring;
mod transcript;

use core::net::IpAddr;
use std::sync::Arc;

use doorbell_core::wire::AdvertisedRail;

use crate::error::ConnectError;

pub use crate::machine::plain_file::open as open_plain_file;
pub use doorbell_core::IpPrefix;
pub use doorbell_core::wire::KeyId;
pub use key::{KEY_BYTES_MIN, Key, KeyError, wipe};
pub use key_file::with_secret_file;
pub use refusals::Refusals;
pub use ring::{KeyRing, KeyRingError};

/// Peers that a [`Node`](crate::Node) trusts, in either direction of a connection.
///
/// There is no default: the code that opens a Node has to choose.
///
/// One Node is one trust domain. Its Workers have separate protection domains, and listeners and connections of another Node
/// do not accept these Workers. So peers of one trust domain never reach memory of another.
#[derive(Clone, Debug)]
pub struct Trust {
    /// `None` if peers need no key.
    keys: Option<Arc<KeyRing>>,
    /// The subnets of allowed peers. If the list is empty, all addresses are allowed.
    subnets: Arc<[IpPrefix]>,
}

impl Trust {
    /// Trusts only peers that prove that they have a key of `ring`.
    #[must_use]
    pub fn keys(ring: KeyRing) -> Self {
        Self {
            keys: Some(Arc::new(ring)),
            subnets: Arc::default(),
        }
    }

    /// Trusts every peer that reaches the port. Use it in a network without untrusted hosts, such as a lab.
    ///
    /// A connected peer can send messages, and can access windows whose keys it was sent. Before they are connected, peers can
    /// make this side create a queue pair for each handshake in progress. Peers that have keys reject a side without keys.
    #[must_use]
    pub fn unauthenticated_on_purpose() -> Self {
        Self {
            keys: None,
            subnets: Arc::default(),
        }
    }

    /// Restricts the trust to peers with addresses in these subnets. This applies to the TCP address of the peer and to the address of
    /// the peer's rail. An empty list permits all addresses.
    #[must_use]
    pub fn only_from(mut self, subnets: &[IpPrefix]) -> Self {
        self.subnets = subnets.into();
        self
    }

    /// Returns whether peers have to prove that they have a key.
    #[must_use]
    pub const fn is_authenticated(&self) -> bool {
        self.keys.is_some()
    }

    /// Checks that a peer at this address is allowed. An IPv4-mapped IPv6 address counts as IPv4.
    ///
    /// # Errors
    /// The address is in none of the subnets.
    pub(crate) fn check_address(&self, address: IpAddr) -> Result<(), ConnectError> {
        let address = address.to_canonical();
        if self.subnets.is_empty() || self.subnets.iter().any(|subnet| subnet.contains(address)) {
            Ok(())
        } else {
            Err(ConnectError::NotAllowed(address))
        }
    }

    /// Checks that a connection to this rail of a peer is allowed: by the rail's address, and by the IP address in its GID.
    ///
    /// # Errors
    /// One of the addresses is in none of the subnets.
    pub(crate) fn check_rail(&self, rail: Option<&AdvertisedRail>) -> Result<(), ConnectError> {
        // The handshake refuses an index that is none of the peer's rails.
        let Some(rail) = rail else { return Ok(()) };
        self.check_address(rail.address().address())?;
        match rail.gid().to_ip() {
            // A link-local GID contains a hardware address and reaches only the local link. The address of the rail decides.
            IpAddr::V6(v6) if v6.is_unicast_link_local() => Ok(()),
            address => self.check_address(address),
        }
    }
}

#[cfg(test)]
mod tests {
    use core::net::IpAddr;

    use doorbell_core::wire::{AdvertisedRail, SpeedClass};
    use doorbell_core::{Gid, IpPrefix};

    use super::Trust;

    fn within(text: &str, bits: u8) -> IpPrefix {
        IpPrefix::new(text.parse().unwrap(), bits).unwrap()
    }

    fn gid(text: &str) -> Gid {
        Gid::from_ip(text.parse().unwrap())
    }

    #[test]
    fn addresses_are_allowed_to_the_bit() {
        let trust =
            Trust::unauthenticated_on_purpose().only_from(&[within("10.1.2.0", 23), within("fd00:1::", 32)]);
        for (text, may) in [
            ("10.1.2.0", true),
            ("10.1.3.255", true),
            ("10.1.1.255", false),
            ("10.1.4.0", false),
            ("::ffff:10.1.2.9", true),
            ("::ffff:10.1.4.0", false),
            ("fd00:1:ffff::", true),
            ("fd00:2::", false),
            ("::1", false),
        ] {
            let address: IpAddr = text.parse().unwrap();
            assert_eq!(trust.check_address(address).is_ok(), may, "{text}");
            assert!(Trust::unauthenticated_on_purpose().check_address(address).is_ok());
        }
    }

    #[test]
    fn a_rail_is_allowed_by_its_address_and_by_where_its_gid_leads() {
        let trust = Trust::unauthenticated_on_purpose().only_from(&[within("10.1.0.0", 16)]);
        for (address, gid, may) in [
            ("10.1.2.3", gid("10.1.2.3"), true),
            ("10.1.2.3", gid("10.2.2.3"), false),
            ("10.1.2.3", gid("fd00::1"), false),
            ("10.1.2.3", gid("fe80::1"), true),
            ("10.2.2.3", gid("fe80::1"), false),
        ] {
            let rail = AdvertisedRail::new(within(address, 24), gid, SpeedClass(0)).unwrap();
            assert_eq!(trust.check_rail(Some(&rail)).is_ok(), may, "{rail}");
        }
    }
}
