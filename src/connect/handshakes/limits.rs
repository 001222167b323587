//! Limits on concurrent handshakes: in all, and from one address.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::time::Duration;
use std::collections::BTreeMap;

use doorbell_core::wire::{Reject, RejectReason};
use doorbell_core::{Deadline, Instant};

use crate::machine::unfinished::network;

/// Limits on concurrent handshakes of a listener.
///
/// A peer beyond a limit is rejected at once as busy, with the time to retry. A peer that was sent an Accept is never rejected. Each
/// handshake needs a descriptor and about 12 KiB.
///
/// In addition, the unfinished handshakes of one address never hold more of a scarce resource than is left for other addresses: half, if
/// all is free. The scarce resources are the places for connections that wait to be accepted, and the channels, completion queue entries
/// and memory of each [`Worker`](crate::Worker). The number of handshakes that an address finishes is not limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HandshakeLimits {
    /// The maximum number of handshakes in progress. Default 256 (3 MiB), for a rack of hosts that all start at once. At the limit, a new
    /// peer replaces the oldest peer that has not proven itself: a peer of the address that has most handshakes, or else of the new
    /// peer's address, or of any address. A peer proves itself by a valid Connect, which includes the proof of its key if keys are used.
    pub under_way: usize,
    /// The maximum number of handshakes from one address. For IPv6 this is one /64 network, since a single host may own it. At the limit, a
    /// new peer replaces the oldest peer of that address that has not proven itself. Default 64, for 64 processes on one host that
    /// connect at once.
    pub per_address: usize,
    /// The time in which a peer has to prove itself while more than half of the places are taken, of all or of those of its address.
    /// Otherwise each stage has [`ChannelConfig::handshake_stage`](crate::ChannelConfig). Default 1 s: enough for many round trips, and
    /// for one TCP retransmission.
    pub crowded_stage: Duration,
    /// The maximum number of connections of each Worker that wait to be accepted, including handshakes for which a queue pair was
    /// requested. Default 64. Each already holds its receives and its place on the Worker. From 1 to 2^20: a value outside this range is
    /// replaced by the nearest value in it.
    pub unaccepted: u32,
    /// The number of queue pairs that are made at the same time, each on a separate thread; at least 1. A peer whose neighbour entry does
    /// not resolve blocks a thread for seconds. So at most half of the threads work for one address, and all but one for one IPv6 /64
    /// network. Default 4. [`Listener::aside`](crate::Listener::aside) uses the Node's threads instead.
    pub making: usize,
}

impl HandshakeLimits {
    /// Returns the number of places in the accept queue of a Worker, within its range. Their memory is allocated at once.
    pub(crate) fn places(&self) -> u32 {
        self.unaccepted.clamp(1, 1 << 20)
    }
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

/// Returns the source address of a stream, for limits. All streams without an address count as one source.
pub(crate) fn source_address(address: Option<SocketAddr>) -> IpAddr {
    address.map_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED), |address| {
        address.ip().to_canonical()
    })
}

/// The source of a handshake, for limits: its address, and the network that one host may own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Source {
    network: IpAddr,
    address: IpAddr,
}

impl Source {
    /// Returns the source with this address.
    pub(crate) fn of(address: Option<SocketAddr>) -> Self {
        let address = source_address(address);
        Self {
            network: network(address),
            address,
        }
    }

    pub(super) const fn address(self) -> IpAddr {
        self.address
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.address, f)
    }
}

/// The range of the retry time in a Reject, in milliseconds.
const RETRY_AFTER_MS: core::ops::RangeInclusive<u32> = 50..=5_000;

/// Returns the Reject for too many handshakes. The time to retry is the earliest deadline of the handshakes in progress.
pub(crate) fn busy(now: Instant, under_way: impl Iterator<Item = Deadline>) -> Reject {
    let left = under_way.min().map_or(Duration::ZERO, |next| next.remaining(now));
    let left_ms = u32::try_from(left.as_millis()).unwrap_or(u32::MAX);
    Reject {
        reason: RejectReason::BUSY,
        detail: left_ms.clamp(*RETRY_AFTER_MS.start(), *RETRY_AFTER_MS.end()),
    }
}

/// The longest time that a peer waits for other handshakes of its address, and the time between two attempts. Honest handshakes finish in
/// milliseconds. A rail of a link has half a second to connect, so it still receives the Reject after the longest wait.
const SHARE_WAIT_MAX: Duration = Duration::from_millis(250);
const SHARE_RETRY: Duration = Duration::from_millis(20);

/// The wait of a peer whose address already holds its share in unfinished handshakes. The peer waits until others finish. So many
/// processes of one host can connect at once. Handshakes that never finish cannot hold more than their share.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ShareWait {
    again: Option<Deadline>,
    until: Option<Deadline>,
}

impl ShareWait {
    /// Whether the peer waits.
    pub(crate) const fn is_on(self) -> bool {
        self.again.is_some()
    }

    /// Returns the latest time of the next poll of a handshake whose time ends at `end`.
    pub(crate) fn deadline(self, end: Deadline) -> Deadline {
        self.again.map_or(end, |again| again.min(end))
    }

    /// Returns whether the wait goes on. If not, the handshake requests a place again.
    pub(crate) fn goes_on(&mut self, now: Instant) -> bool {
        self.again = self.again.filter(|again| !again.has_passed(now));
        self.is_on()
    }

    /// Begins or continues the wait. Returns false if the longest wait is over. The wait takes at most half of the time left for the
    /// handshake, so that a Reject can still be sent.
    pub(crate) fn may_begin(&mut self, now: Instant, end: Deadline) -> bool {
        let half = end.remaining(now).checked_div(2).unwrap_or_default();
        let most = Deadline::after(now, half.min(SHARE_WAIT_MAX));
        let until = *self.until.get_or_insert(most);
        self.again = Some(Deadline::after(now, SHARE_RETRY)).filter(|_| !until.has_passed(now));
        self.is_on()
    }
}

/// The handshakes that may have to make room for a new peer at a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Crowd {
    /// Handshakes of a source that has more than the new peer's source would have. Proven peers that wait for their share make room, too.
    pub(super) above: Option<Crowding>,
    /// Handshakes of the new peer's own source, or all if that source has none. Only unproven peers make room.
    pub(super) even: Crowding,
}

/// A set of handshakes in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Crowding {
    All,
    Network(IpAddr),
    Address(IpAddr),
}

impl Crowding {
    /// Whether handshakes from this source belong to the set.
    pub(super) fn has(self, source: Source) -> bool {
        match self {
            Self::All => true,
            Self::Network(network) => source.network == network,
            Self::Address(address) => source.address == address,
        }
    }
}

/// The number of handshakes in progress from each source.
#[derive(Debug)]
pub(crate) struct Sources {
    limits: HandshakeLimits,
    counts: BTreeMap<Source, usize>,
    total: usize,
}

impl Sources {
    pub(crate) const fn new(limits: HandshakeLimits) -> Self {
        Self {
            limits,
            counts: BTreeMap::new(),
            total: 0,
        }
    }

    /// Returns the number of handshakes from a source.
    pub(crate) fn count(&self, source: Source) -> usize {
        self.counts.get(&source).copied().unwrap_or_default()
    }

    /// Returns the sources of a network, each with its count.
    fn of_network(&self, network: IpAddr) -> impl Iterator<Item = (Source, usize)> {
        let first = Source {
            network,
            address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        };
        let of_it = self.counts.range(first..);
        of_it
            .take_while(move |(source, _)| source.network == network)
            .map(|(source, count)| (*source, *count))
    }

    fn count_of_network(&self, network: IpAddr) -> usize {
        self.of_network(network)
            .fold(0, |sum, (_, count)| sum.saturating_add(count))
    }

    /// Returns the network with most handshakes, and their number. The sources of one network are adjacent in the map.
    fn most_of_a_network(&self) -> Option<(IpAddr, usize)> {
        let (mut most, mut last) = (None, None);
        for (source, count) in &self.counts {
            let sum = match last {
                Some((network, sum)) if network == source.network => count.saturating_add(sum),
                _ => *count,
            };
            last = Some((source.network, sum));
            most = most.max(last.map(|(network, sum)| (sum, network)));
        }
        most.map(|(count, network)| (network, count))
    }

    /// Counts one more handshake from this source.
    ///
    /// # Errors
    /// A limit is reached. The error says which handshakes may make room.
    pub(crate) fn enter(&mut self, source: Source) -> Result<(), Crowd> {
        let own = self.count(source);
        let of_network = self.count_of_network(source.network);
        // A source makes room only for a source that stays below it. Otherwise two sources would replace each other's peers in turn.
        if of_network >= self.limits.per_address {
            let most = self.of_network(source.network).max_by_key(|(_, count)| *count);
            let above = most.filter(|(_, count)| *count > own.saturating_add(1));
            return Err(Crowd {
                above: above.map(|(other, _)| Crowding::Address(other.address)),
                even: match own {
                    0 => Crowding::Network(source.network),
                    _ => Crowding::Address(source.address),
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
                    _ => Crowding::Network(source.network),
                },
            });
        }
        self.counts.insert(source, own.saturating_add(1));
        self.total = self.total.saturating_add(1);
        Ok(())
    }

    /// Returns the time in which a peer from this source has to prove itself; `None` if at most half of the places are taken.
    pub(super) fn patience(&self, source: Source) -> Option<Duration> {
        let is_over_half = |count: usize, of: usize| count > of / 2;
        let is_crowded = is_over_half(self.total, self.limits.under_way)
            || is_over_half(self.count_of_network(source.network), self.limits.per_address);
        is_crowded.then_some(self.limits.crowded_stage)
    }

    /// Counts one handshake from this source less: it has ended.
    pub(crate) fn leave(&mut self, source: Source) {
        match self.count(source) {
            0 | 1 => drop(self.counts.remove(&source)),
            more => drop(self.counts.insert(source, more.saturating_sub(1))),
        }
        self.total = self.total.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::{
        Crowd, Crowding, HandshakeLimits, SHARE_RETRY, SHARE_WAIT_MAX, ShareWait, Source, Sources, busy,
    };
    use crate::machine::unfinished::Unfinished;
    use core::time::Duration;
    use doorbell_core::wire::RejectReason;
    use doorbell_core::{Deadline, Instant};

    fn source(address: &str) -> Source {
        Source::of(Some(address.parse().unwrap()))
    }

    fn sources(under_way: usize, per_address: usize) -> Sources {
        Sources::new(HandshakeLimits {
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
    fn a_peer_that_is_one_too_many_comes_again_once_the_next_of_the_others_has_had_its_time() {
        let now = Instant::from_ns(5_000_000);
        for (left_ms, detail) in [
            (&[700, 900][..], 700),
            (&[900, 700], 700),
            (&[10], 50),
            (&[9_000], 5_000),
            (&[], 50),
        ] {
            let until = |ms: &u64| Deadline::after(now, Duration::from_millis(*ms));
            let reject = busy(now, left_ms.iter().map(until));
            assert_eq!((reject.reason, reject.detail), (RejectReason::BUSY, detail));
        }
    }

    #[test]
    fn a_peer_waits_for_its_share_for_at_most_half_of_its_time() {
        let begin = Instant::from_ns(5);
        for (left, most) in [
            (SHARE_WAIT_MAX, SHARE_WAIT_MAX / 2),
            (SHARE_WAIT_MAX * 9, SHARE_WAIT_MAX),
        ] {
            let (mut wait, end) = (ShareWait::default(), Deadline::after(begin, left));
            assert!(wait.may_begin(begin, end) && wait.is_on());
            assert_eq!(wait.deadline(end), Deadline::after(begin, SHARE_RETRY));
            let over = begin.after(most);
            let last = Instant::from_ns(over.to_ns() - 1);
            assert!(!wait.goes_on(last) && wait.may_begin(last, end));
            assert!(!wait.may_begin(over, end) && !wait.is_on());
        }
    }

    #[test]
    fn time_is_short_once_more_than_half_of_the_places_are_taken() {
        let mut sources = sources(8, 4);
        let [one, two, three] = ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"].map(source);
        let short = Some(HandshakeLimits::default().crowded_stage);
        assert_eq!([sources.enter(one), sources.enter(one)], [Ok(()), Ok(())]);
        assert_eq!(sources.patience(one), None);
        assert_eq!(sources.enter(one), Ok(()));
        // First the places of one address are scarce, and then all places.
        assert_eq!((sources.patience(one), sources.patience(two)), (short, None));
        assert_eq!(sources.enter(two), Ok(()));
        assert_eq!(sources.patience(three), None);
        assert_eq!(sources.enter(two), Ok(()));
        assert_eq!(sources.patience(three), short);
    }

    #[test]
    fn places_are_no_more_than_there_is_memory_for() {
        for (unaccepted, places) in [(0, 1), (1, 1), (1 << 20, 1 << 20), (u32::MAX, 1 << 20)] {
            let limits = HandshakeLimits {
                unaccepted,
                ..HandshakeLimits::default()
            };
            assert_eq!(limits.places(), places);
        }
    }

    #[test]
    fn what_one_host_may_have_is_an_address_or_a_network_of_64_bits() {
        let network = |address| source(address).network;
        assert_eq!(source("10.0.0.1:1"), source("10.0.0.1:2"));
        assert_eq!(source("10.0.0.1:1"), source("[::ffff:10.0.0.1]:2"));
        assert_ne!(network("10.0.0.1:1"), network("10.0.0.2:1"));
        assert_eq!(network("[2001:db8::1]:1"), network("[2001:db8::ffff:1]:1"));
        assert_ne!(network("[2001:db8::1]:1"), network("[2001:db8:0:1::1]:1"));
    }

    #[test]
    fn in_a_network_that_has_all_it_may_an_address_with_more_makes_room() {
        let mut sources = sources(10, 3);
        let [many, few, third] = ["[fd00::66]:1", "[fd00::3]:1", "[fd00::4]:1"].map(source);
        for _ in 0..3 {
            assert_eq!(sources.enter(many), Ok(()));
        }
        let own = Crowding::Address(many.address);
        assert_eq!(sources.enter(many), even(own));
        assert_eq!(sources.enter(few), above(own, Crowding::Network(few.network)));
        assert!(own.has(many) && !own.has(few));
        sources.leave(many);
        assert_eq!(sources.enter(few), Ok(()));
        // Counts two and one: a handshake of `few` would only make the counts equal, so nobody makes room for it but `few` itself.
        assert_eq!(sources.enter(few), even(Crowding::Address(few.address)));
        assert_eq!(sources.enter(third), above(own, Crowding::Network(few.network)));
        // Another network has separate places.
        assert_eq!(sources.enter(source("[fd00:1::1]:1")), Ok(()));
    }

    /// Returns the number of places that each of these addresses gets of `of` places, if they ask in turn.
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
        let mut sources = sources(10, 2);
        let (one, other) = (source("10.0.0.1:1"), source("10.0.0.2:1"));
        assert_eq!([sources.enter(one), sources.enter(one)], [Ok(()), Ok(())]);
        assert_eq!(sources.enter(one), even(Crowding::Address(one.address)));
        assert_eq!(sources.enter(other), Ok(()));
        sources.leave(one);
        assert_eq!(sources.enter(one), Ok(()));
    }

    #[test]
    fn with_all_places_taken_who_has_more_makes_room() {
        let mut sources = sources(4, 4);
        let (many, few) = (source("10.0.0.1:1"), source("10.0.0.2:1"));
        for _ in 0..4 {
            assert_eq!(sources.enter(many), Ok(()));
        }
        let crowding = Crowding::Network(many.network);
        assert_eq!(sources.enter(few), above(crowding, Crowding::All));
        assert!(crowding.has(many) && !crowding.has(few));
        sources.leave(many);
        assert_eq!(sources.enter(few), Ok(()));
        assert_eq!(
            sources.enter(few),
            above(crowding, Crowding::Network(few.network))
        );
        sources.leave(many);
        assert_eq!(sources.enter(few), Ok(()));
        // Counts two and two: each network makes room for itself, and any makes room for a network without handshakes.
        assert_eq!(sources.enter(few), even(Crowding::Network(few.network)));
        assert_eq!(sources.enter(many), even(crowding));
        assert_eq!(
            sources.enter(source("10.0.0.3:1")),
            above(Crowding::Network(few.network), Crowding::All)
        );
        for source in [many, many, few, few] {
            sources.leave(source);
        }
        assert_eq!((sources.total, sources.counts.len()), (0, 0));
    }
}
