//! Limits on peers that are connecting at a time: in all, and from one address.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::time::Duration;
use std::collections::BTreeMap;

use doorbell_core::wire::{Reject, RejectReason};
use doorbell_core::{Deadline, Instant};

use crate::error::ConnectError;
use crate::machine::unfinished::network;

/// Limits on handshakes beside the threads that accept.
///
/// A peer beyond a limit is rejected at once as busy, with the time to retry; an accepted peer is never rejected. Each
/// handshake costs a descriptor and about 12 KiB.
///
/// Beside these limits, one address never holds more of a scarce resource in unfinished handshakes than is left for others:
/// half, if all is free. Scarce are places for waiting connections, and the channels, completions and memory of each
/// [`Worker`](crate::Worker). The number of handshakes that an address finishes is not limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HandshakeLimits {
    /// Limit on handshakes under way. Default 256, 3 MiB: a rack of hosts that all start at once. With all places taken, the
    /// oldest peer that has proven nothing makes room for a new one: a peer of the address that has most, or else of the new
    /// peer's own, or any. A Connect proves a peer, by its key if there are keys.
    pub under_way: usize,
    /// Limit on handshakes from one address; for IPv6, from one network of 64 bits, which a single host may own. At the limit,
    /// the oldest handshake of that address that has proven nothing makes room. Default 64, as many as one host is likely to
    /// have processes that connect at once.
    pub per_address: usize,
    /// Longest time that a peer may go without a proof while more than half of the places are taken: of all, or of those of its
    /// address. Otherwise each stage has [`ChannelConfig::handshake_stage`](crate::ChannelConfig). Default 1 s: many round
    /// trips, and a segment that TCP had to retransmit.
    pub crowded_stage: Duration,
    /// Limit on connections of each Worker that wait to be accepted, together with handshakes that have come as far as a queue
    /// pair. Default 64. Each has its receives and its place on the Worker already.
    pub unaccepted: u32,
    /// Queue pairs made at a time, at least 1, each on a thread of its own. A peer whose neighbour entry does not resolve holds
    /// up a thread for seconds. So half of them at most are for one address, and all but one for one network of 64 bits.
    /// Default 4. [`Listener::aside`](crate::Listener::aside) uses the Node's threads instead.
    pub making: usize,
}

impl Default for HandshakeLimits {
    fn default() -> Self {
        Self {
            under_way: 256,
            per_address: 64,
            crowded_stage: Duration::from_secs(1),
            unaccepted: 64,
            making: 4,
        }
    }
}

/// Source address of a stream, for limits. Streams without an address all count as one source.
pub(crate) fn source(address: Option<SocketAddr>) -> IpAddr {
    address.map_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED), |address| {
        address.ip().to_canonical()
    })
}

/// Source of handshakes under way, for limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Guest {
    network: IpAddr,
    address: IpAddr,
}

impl Guest {
    /// Whose address this is.
    pub(crate) fn of(address: Option<SocketAddr>) -> Self {
        let address = source(address);
        Self {
            network: network(address),
            address,
        }
    }

    pub(super) const fn address(self) -> IpAddr {
        self.address
    }
}

impl fmt::Display for Guest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.address, f)
    }
}

/// Range of the retry time in a Reject.
const RETRY_AFTER_MS: core::ops::RangeInclusive<u32> = 50..=5_000;

/// Reject for too many handshakes, with the time to retry: when the next of those under way has had its time.
pub(crate) fn busy(now: Instant, under_way: impl Iterator<Item = Deadline>) -> Reject {
    let left = under_way.min().map_or(Duration::ZERO, |next| next.remaining(now));
    let left_ms = u32::try_from(left.as_millis()).unwrap_or(u32::MAX);
    Reject {
        reason: RejectReason::BUSY,
        detail: left_ms.clamp(*RETRY_AFTER_MS.start(), *RETRY_AFTER_MS.end()),
    }
}

/// Longest time that a peer waits for others of its address, and the time between two looks. The others finish in milliseconds,
/// or never intend to. A rail of a link has half a second, so it still hears the reason for its rejection.
const IN_LINE: Duration = Duration::from_millis(250);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The turn of a peer whose address has unfinished handshakes with as much as it leaves to others. The peer waits until these are done. So
/// many processes of one host that connect at once all come in. Handshakes that never finish hold no more than their share.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Line {
    again: Option<Deadline>,
    until: Option<Deadline>,
}

impl Line {
    /// Whether it waits for its turn.
    pub(crate) const fn is_in_it(self) -> bool {
        self.again.is_some()
    }

    /// When to move a handshake again at the latest that ends then.
    pub(crate) fn deadline(self, end: Deadline) -> Deadline {
        self.again.map_or(end, |again| again.min(end))
    }

    /// Takes what it wants, of a handshake that ends then; `None` where it is not its turn.
    ///
    /// # Errors
    /// Errors of `take`. The error that others hold too much is returned only if the handshake may not wait for them, or has
    /// waited long enough.
    pub(crate) fn turn<T>(
        &mut self,
        now: Instant,
        end: Deadline,
        may_wait: bool,
        take: impl FnOnce() -> Result<T, ConnectError>,
    ) -> Result<Option<T>, ConnectError> {
        if self.again.is_some_and(|again| !again.has_passed(now)) {
            return Ok(None);
        }
        self.again = None;
        match take() {
            Err(ConnectError::TooManyUnfinishedFrom(_)) if may_wait && self.waits(now, end) => Ok(None),
            outcome => outcome.map(Some),
        }
    }

    /// Whether it may wait for its turn; and not to the end, so that its Reject can still be sent.
    fn waits(&mut self, now: Instant, end: Deadline) -> bool {
        let half = end.remaining(now).checked_div(2).unwrap_or_default();
        let until = *self.until.get_or_insert(Deadline::after(now, half.min(IN_LINE)));
        self.again = Some(Deadline::after(now, LOOK_AGAIN)).filter(|_| !until.has_passed(now));
        self.again.is_some()
    }
}

/// A limit that a peer would be beyond, and which others may make room for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Crowd {
    /// These have more than the peer would have: also those make room that wait for their turn.
    pub(super) above: Option<Crowding>,
    /// These have as much: none makes room that has proven itself.
    pub(super) even: Crowding,
}

/// Handshakes under way that one more may crowd out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Crowding {
    All,
    Network(IpAddr),
    Address(IpAddr),
}

impl Crowding {
    /// Whether this one is among them.
    pub(super) fn has(self, guest: Guest) -> bool {
        match self {
            Self::All => true,
            Self::Network(network) => guest.network == network,
            Self::Address(address) => guest.address == address,
        }
    }
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

    /// The guests of a network, each with its count.
    fn of_network(&self, network: IpAddr) -> impl Iterator<Item = (Guest, usize)> {
        let first = Guest {
            network,
            address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        };
        let of_it = self.counts.range(first..);
        of_it
            .take_while(move |(guest, _)| guest.network == network)
            .map(|(guest, count)| (*guest, *count))
    }

    fn count_of_network(&self, network: IpAddr) -> usize {
        self.of_network(network)
            .fold(0, |sum, (_, count)| sum.saturating_add(count))
    }

    /// The network that has most, and how many. Guests of one network stand together.
    fn most_of_a_network(&self) -> Option<(IpAddr, usize)> {
        let (mut most, mut last) = (None, None);
        for (guest, count) in &self.counts {
            let sum = match last {
                Some((network, sum)) if network == guest.network => count.saturating_add(sum),
                _ => *count,
            };
            last = Some((guest.network, sum));
            most = most.max(last.map(|(network, sum)| (sum, network)));
        }
        most.map(|(count, network)| (network, count))
    }

    /// Lets one more in.
    ///
    /// # Errors
    /// It is one too many.
    pub(crate) fn enter(&mut self, guest: Guest) -> Result<(), Crowd> {
        let own = self.count(guest);
        let of_network = self.count_of_network(guest.network);
        // Between two with equal counts neither makes room for the other, since then the other would make room for it.
        if of_network >= self.limits.per_address {
            let most = self.of_network(guest.network).max_by_key(|(_, count)| *count);
            let above = most.filter(|(_, count)| *count > own.saturating_add(1));
            return Err(Crowd {
                above: above.map(|(other, _)| Crowding::Address(other.address)),
                even: match own {
                    0 => Crowding::Network(guest.network),
                    _ => Crowding::Address(guest.address),
                },
            });
        }
        if self.total >= self.limits.under_way {
            let most = self.most_of_a_network();
            let above = most.filter(|(_, count)| *count > of_network.saturating_add(1));
            return Err(Crowd {
                above: above.map(|(other, _)| Crowding::Network(other)),
                even: match of_network {
                    0 => Crowding::All,
                    _ => Crowding::Network(guest.network),
                },
            });
        }
        self.counts.insert(guest, own.saturating_add(1));
        self.total = self.total.saturating_add(1);
        Ok(())
    }

    /// How long this one may go without a proof, where more than half of the places are taken.
    pub(super) fn patience(&self, guest: Guest) -> Option<Duration> {
        let is_over_half = |count: usize, of: usize| count > of / 2;
        let is_crowded = is_over_half(self.total, self.limits.under_way)
            || is_over_half(self.count_of_network(guest.network), self.limits.per_address);
        is_crowded.then_some(self.limits.crowded_stage)
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
    use super::{Crowd, Crowding, Guest, Guests, HandshakeLimits};
    use crate::machine::unfinished::Unfinished;

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

    fn even(even: Crowding) -> Result<(), Crowd> {
        Err(Crowd { above: None, even })
    }

    fn above(above: Crowding, even: Crowding) -> Result<(), Crowd> {
        let above = Some(above);
        Err(Crowd { above, even })
    }

    #[test]
    fn time_is_short_once_more_than_half_of_the_places_are_taken() {
        let mut guests = guests(8, 4);
        let [one, two, three] = ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"].map(guest);
        let short = Some(HandshakeLimits::default().crowded_stage);
        assert_eq!([guests.enter(one), guests.enter(one)], [Ok(()), Ok(())]);
        assert_eq!(guests.patience(one), None);
        assert_eq!(guests.enter(one), Ok(()));
        // Short for its address, and then short for all.
        assert_eq!((guests.patience(one), guests.patience(two)), (short, None));
        assert_eq!(guests.enter(two), Ok(()));
        assert_eq!(guests.patience(three), None);
        assert_eq!(guests.enter(two), Ok(()));
        assert_eq!(guests.patience(three), short);
    }

    #[test]
    fn what_one_host_may_have_is_an_address_or_a_network_of_64_bits() {
        let network = |address| guest(address).network;
        assert_eq!(guest("10.0.0.1:1"), guest("10.0.0.1:2"));
        assert_eq!(guest("10.0.0.1:1"), guest("[::ffff:10.0.0.1]:2"));
        assert_ne!(network("10.0.0.1:1"), network("10.0.0.2:1"));
        assert_eq!(network("[2001:db8::1]:1"), network("[2001:db8::ffff:1]:1"));
        assert_ne!(network("[2001:db8::1]:1"), network("[2001:db8:0:1::1]:1"));
    }

    #[test]
    fn in_a_network_that_has_all_it_may_an_address_with_more_makes_room() {
        let mut guests = guests(10, 3);
        let [many, few, third] = ["[fd00::66]:1", "[fd00::3]:1", "[fd00::4]:1"].map(guest);
        for _ in 0..3 {
            assert_eq!(guests.enter(many), Ok(()));
        }
        let own = Crowding::Address(many.address);
        assert_eq!(guests.enter(many), even(own));
        assert_eq!(guests.enter(few), above(own, Crowding::Network(few.network)));
        assert!(own.has(many) && !own.has(few));
        guests.leave(many);
        assert_eq!(guests.enter(few), Ok(()));
        // Two and one: with one more of these nobody would have less than before.
        assert_eq!(guests.enter(few), even(Crowding::Address(few.address)));
        assert_eq!(guests.enter(third), above(own, Crowding::Network(few.network)));
        // Another network has places of its own.
        assert_eq!(guests.enter(guest("[fd00:1::1]:1")), Ok(()));
    }

    /// How many each of these gets of so many, one after the other.
    fn shares<const N: usize>(of: usize, addresses: [&str; N]) -> [usize; N] {
        let mut held = Vec::new();
        addresses.map(|address| {
            let (address, before) = (address.parse().unwrap(), held.len());
            while held.len() < of {
                if !Unfinished::of(address, held.iter().copied()).may_be_more(of - held.len() - 1) {
                    break;
                }
                held.push(address);
            }
            held.len() - before
        })
    }

    #[test]
    fn nobody_has_more_unfinished_than_is_left_for_others_and_a_network_never_the_last() {
        let v4 = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5"];
        assert_eq!(shares(8, v4), [4, 2, 1, 1, 0]);
        assert_eq!(shares(64, v4), [32, 16, 8, 4, 2]);
        assert_eq!((shares(1, v4), shares(2, v4)), ([1, 0, 0, 0, 0], [1, 1, 0, 0, 0]));
        let v6 = ["fd00::1", "fd00::2", "fd00::3", "fd00::4", "fd00:0:0:1::1"];
        assert_eq!(shares(8, v6), [4, 2, 1, 0, 1]);
    }

    #[test]
    fn at_the_limit_of_an_address_is_in_and_one_past_it_is_not() {
        let mut guests = guests(10, 2);
        let (one, other) = (guest("10.0.0.1:1"), guest("10.0.0.2:1"));
        assert_eq!([guests.enter(one), guests.enter(one)], [Ok(()), Ok(())]);
        assert_eq!(guests.enter(one), even(Crowding::Address(one.address)));
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
        let crowding = Crowding::Network(many.network);
        assert_eq!(guests.enter(few), above(crowding, Crowding::All));
        assert!(crowding.has(many) && !crowding.has(few));
        guests.leave(many);
        assert_eq!(guests.enter(few), Ok(()));
        assert_eq!(guests.enter(few), above(crowding, Crowding::Network(few.network)));
        guests.leave(many);
        assert_eq!(guests.enter(few), Ok(()));
        // Two and two: each makes room for its own, and any for one that has none.
        assert_eq!(guests.enter(few), even(Crowding::Network(few.network)));
        assert_eq!(guests.enter(many), even(crowding));
        assert_eq!(
            guests.enter(guest("10.0.0.3:1")),
            above(Crowding::Network(few.network), Crowding::All)
        );
        for guest in [many, many, few, few] {
            guests.leave(guest);
        }
        assert_eq!((guests.total, guests.counts.len()), (0, 0));
    }
}
