//! How many peers may be connecting at a time: in all, and from one address.

use core::fmt;
use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::collections::BTreeMap;

/// How many handshakes there may be beside the threads that accept.
///
/// A peer beyond a limit is told at once that we are busy, and when to come again; never one that was told yes. Each
/// costs a descriptor and about 12 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HandshakeLimits {
    /// Handshakes under way at most. Default 256, 3 MiB: a rack of hosts that all start at once. With all of them
    /// under way a peer is let in where others have more than it does: then the oldest that has
    /// not yet said a word goes, of the address that has most.
    pub under_way: usize,
    /// Of these, from one address at most; of IPv6, from one network of 64 bits, which is what a single host may
    /// have. Default 64, as many as one host is likely to have processes that connect at once.
    pub per_address: usize,
    /// Connections of each Worker that wait to be accepted, and handshakes that have come as far as a queue pair, at
    /// most. Default 64. Each has its receives and its place on the Worker already.
    pub unaccepted: u32,
    /// Queue pairs made at a time, at least 1, each on a thread of its own: a peer whose neighbour entry does not
    /// resolve holds one up for seconds, and half of them at most are an address's. Default 4.
    pub making: usize,
}

impl Default for HandshakeLimits {
    fn default() -> Self {
        Self {
            under_way: 256,
            per_address: 64,
            unaccepted: 64,
            making: 4,
        }
    }
}

/// Where a stream comes from, for limits. Those without an address all come from the same place.
pub(crate) fn source(address: Option<SocketAddr>) -> IpAddr {
    address.map_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED), |address| {
        address.ip().to_canonical()
    })
}

/// Who has handshakes under way, as far as limits go: a host, or a network that one host may have all of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Guest(IpAddr);

impl Guest {
    /// Whose address this is.
    pub(crate) fn of(address: Option<SocketAddr>) -> Self {
        Self(match source(address) {
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
            }
            v4 @ IpAddr::V4(_) => v4,
        })
    }

    /// The one address that stands for all of its own.
    pub(super) const fn address(self) -> IpAddr {
        self.0
    }
}

impl fmt::Display for Guest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Which limit a peer would be beyond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Crowd {
    /// There are as many handshakes as may be; none has more than this one of them.
    All,
    /// There are, and this one has more of them than its share.
    AllBut(Guest),
    /// The address has as many as one may have.
    Address,
}

/// How many handshakes of whom are under way.
#[derive(Debug)]
pub(crate) struct Guests {
    limits: HandshakeLimits,
    counts: BTreeMap<Guest, usize>,
    total: usize,
}

impl Guests {
    pub(crate) const fn new(limits: HandshakeLimits) -> Self {
        Self {
            limits,
            counts: BTreeMap::new(),
            total: 0,
        }
    }

    fn count(&self, guest: Guest) -> usize {
        self.counts.get(&guest).copied().unwrap_or_default()
    }

    /// Lets one more in.
    ///
    /// # Errors
    /// It is one too many.
    pub(crate) fn enter(&mut self, guest: Guest) -> Result<(), Crowd> {
        let own = self.count(guest);
        if own >= self.limits.per_address {
            return Err(Crowd::Address);
        }
        if self.total >= self.limits.under_way {
            let most = self.counts.iter().max_by_key(|(_, count)| **count);
            // Of two that have the same none is to make room for the other, and then the other for it.
            return Err(match most {
                Some((other, count)) if *count > own.saturating_add(1) => Crowd::AllBut(*other),
                _ => Crowd::All,
            });
        }
        self.counts.insert(guest, own.saturating_add(1));
        self.total = self.total.saturating_add(1);
        Ok(())
    }

    /// One that was let in is done.
    pub(crate) fn leave(&mut self, guest: Guest) {
        match self.count(guest) {
            0 | 1 => drop(self.counts.remove(&guest)),
            more => drop(self.counts.insert(guest, more.saturating_sub(1))),
        }
        self.total = self.total.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::{Crowd, Guest, Guests, HandshakeLimits};

    fn guest(address: &str) -> Guest {
        Guest::of(Some(address.parse().unwrap()))
    }

    fn guests(under_way: usize, per_address: usize) -> Guests {
        Guests::new(HandshakeLimits {
            under_way,
            per_address,
            ..HandshakeLimits::default()
        })
    }

    #[test]
    fn an_address_is_a_host_or_what_one_host_may_have() {
        assert_eq!(guest("10.0.0.1:1"), guest("10.0.0.1:2"));
        assert_eq!(guest("10.0.0.1:1"), guest("[::ffff:10.0.0.1]:2"));
        assert_ne!(guest("10.0.0.1:1"), guest("10.0.0.2:1"));
        assert_eq!(guest("[2001:db8::1]:1"), guest("[2001:db8::ffff:1]:1"));
        assert_ne!(guest("[2001:db8::1]:1"), guest("[2001:db8:0:1::1]:1"));
    }

    #[test]
    fn at_the_limit_of_an_address_is_in_and_one_past_it_is_not() {
        let mut guests = guests(10, 2);
        let (one, other) = (guest("10.0.0.1:1"), guest("10.0.0.2:1"));
        assert_eq!([guests.enter(one), guests.enter(one)], [Ok(()), Ok(())]);
        assert_eq!(guests.enter(one), Err(Crowd::Address));
        assert_eq!(guests.enter(other), Ok(()));
        guests.leave(one);
        assert_eq!(guests.enter(one), Ok(()));
    }

    #[test]
    fn with_all_places_taken_who_has_more_makes_room() {
        let mut guests = guests(4, 4);
        let (many, few) = (guest("10.0.0.1:1"), guest("10.0.0.2:1"));
        for _ in 0..4 {
            assert_eq!(guests.enter(many), Ok(()));
        }
        assert_eq!(guests.enter(few), Err(Crowd::AllBut(many)));
        guests.leave(many);
        assert_eq!(guests.enter(few), Ok(()));
        assert_eq!(guests.enter(few), Err(Crowd::AllBut(many)));
        guests.leave(many);
        assert_eq!(guests.enter(few), Ok(()));
        // Two and two: nobody has more than its share.
        assert_eq!(guests.enter(few), Err(Crowd::All));
        assert_eq!(guests.enter(many), Err(Crowd::All));
        for guest in [many, many, few, few] {
            guests.leave(guest);
        }
        assert_eq!((guests.total, guests.counts.len()), (0, 0));
    }
}
