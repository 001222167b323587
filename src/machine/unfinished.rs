//! Counts of unfinished handshakes from one source, for limits on resources that are granted before a handshake is finished.

use core::net::{IpAddr, Ipv6Addr};

use crate::error::ConnectError;

/// Returns the network that one host may own: the address itself for IPv4, and the network of 64 bits for IPv6.
pub(crate) const fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        IpAddr::V4(_) => address,
    }
}

/// Number of unfinished handshakes from one address, and from its network, that hold a resource.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unfinished {
    of_address: usize,
    of_network: usize,
}

impl Unfinished {
    /// Counts the unfinished handshakes of an address, and of its network, among all.
    pub(crate) fn of(address: IpAddr, all: impl Iterator<Item = IpAddr>) -> Self {
        let (mut of_address, mut of_network) = (0_usize, 0_usize);
        let own = network(address);
        for other in all.filter(|other| network(*other) == own) {
            of_network = of_network.saturating_add(1);
            of_address = of_address.saturating_add(usize::from(other == address));
        }
        Self {
            of_address,
            of_network,
        }
    }

    /// Whether the address may get one more, after which `left` remain. An address that holds some never gets more than remain for others. A
    /// further address of the same network does not get the last one.
    pub(crate) const fn may_be_more(self, left: usize) -> bool {
        self.of_network == 0 || self.of_address < left
    }

    /// Refuses one more to the address, after which `left` would remain, as [`Unfinished::may_be_more`] says.
    ///
    /// # Errors
    /// [`ConnectError::TooManyUnfinishedFrom`]
    pub(crate) const fn check(self, address: IpAddr, left: usize) -> Result<(), ConnectError> {
        if self.may_be_more(left) {
            return Ok(());
        }
        Err(ConnectError::TooManyUnfinishedFrom {
            address,
            unfinished: self.of_address,
            room: left.saturating_add(1),
        })
    }
}
