//! A rail of a link: its channel, the attempt to connect it, and its requests in flight.

use core::fmt;
use core::net::IpAddr;
use std::collections::VecDeque;

use doorbell_core::network::Network;
use doorbell_core::provider::Provider;
use doorbell_core::session::RequestId;
use doorbell_core::transfer::TransferId;
use doorbell_core::wire::AdvertisedRail;
use doorbell_core::{Deadline, Ticket};

use super::config::LinkError;
use super::store::room_in_line;
use crate::connect::asking::Asking;
use crate::connect::connecting::Connecting;
use crate::error::ConnectError;
use crate::worker::channel::ChannelId;

/// A channel, by the index of its Worker and its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct At {
    pub(super) worker: usize,
    pub(super) channel: ChannelId,
}

/// The port of this host and the rail of the peer that a rail connects.
#[derive(Clone, Debug)]
pub(super) struct Between {
    pub(super) device: String,
    pub(super) port: u8,
    pub(super) peer: AdvertisedRail,
}

/// Reason why the last attempt to connect a rail failed.
#[derive(Debug)]
#[non_exhaustive]
pub struct NotConnected {
    /// The port of this host and the address of the peer; `None` if no rail of this host reaches one of the peer's.
    pub between: Option<RailEnds>,
    /// The reason.
    pub why: ConnectError,
}

/// The two ends of a rail of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RailEnds {
    /// The device of this host.
    pub device: String,
    /// The port of the device.
    pub port: u8,
    /// The address of the peer's rail.
    pub peer: IpAddr,
}

impl fmt::Display for NotConnected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(RailEnds { device, port, peer }) = &self.between {
            write!(f, "from {device} port {port} to {peer}: ")?;
        }
        fmt::Display::fmt(&self.why, f)
    }
}

/// A request that was posted, and has not completed.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    ticket: Ticket,
    /// The bytes that count towards the rail's backlog.
    backlog: u64,
    /// Its contents, unless it is a frame.
    carried: Option<Carried>,
}

/// The contents of a request on a rail that is not a frame.
#[derive(Clone, Copy, Debug)]
pub(super) enum Carried {
    /// A one-sided request.
    Request(RequestId),
    /// A stretch of a one-sided request that is longer than a fragment.
    Stretch(RequestId),
    /// Pieces of a transfer, with their bytes and their number; or the last part of a piece.
    Piece(TransferId, u32, u16),
    /// An earlier part of a piece.
    Part(TransferId),
    /// A fragment that is written into this place of the peer's memory, or its last part.
    Placed(u32),
    /// An earlier part of such a fragment.
    PlacedPart,
}

pub(super) struct LinkRail<P: Provider, N: Network> {
    /// The port and the peer's rail that it connects; only on the connecting side.
    pub(super) between: Option<Between>,
    pub(super) connecting: Option<Connecting<P, N>>,
    /// The question to a process that rejected the handle as stale, and the failure of that attempt.
    pub(super) asking: Option<(Asking<N>, ConnectError)>,
    /// Whether the peer's address has changed since the present attempt or question began.
    pub(super) is_readdressed: bool,
    /// Why the last attempt failed, until one succeeds.
    pub(super) not_connected: Option<NotConnected>,
    pub(super) at: Option<At>,
    /// The device's port that its channel uses, if the peer connected.
    pub(super) port: u8,
    /// Source address of its handshake's stream, if the peer connected.
    pub(super) from: Option<IpAddr>,
    /// Worker and peer address of its channel, or of its last one.
    pub(super) leads: Option<RailPath>,
    pub(super) counts: LinkRailCounts,
    /// Requests that were posted and have not completed.
    in_flight: VecDeque<InFlight>,
    /// Requests of the previous channel that are not frames. The device may report the cause of the channel's failure for one of them later,
    /// since failed receives are often reported first.
    before: Option<(At, VecDeque<InFlight>)>,
}

/// The Worker whose device a channel uses, and the address of the peer's rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RailPath {
    pub(super) worker: usize,
    pub(super) peer: IpAddr,
}

/// Counts of a rail of a link, over all of its channels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkRailCounts {
    /// Channels that were connected.
    pub connections: u64,
    /// Channels that failed or were given up.
    pub failures: u64,
    /// Posted requests: frames, one-sided requests, and probes.
    pub sent: u64,
    /// Bytes of these, with their headers.
    pub sent_bytes: u64,
    /// Received frames.
    pub received: u64,
    /// Bytes of these with their headers, and bytes that the peer placed by WRITE.
    pub received_bytes: u64,
}

impl LinkRailCounts {
    /// Sum of the counts of two rails.
    pub(super) const fn plus(self, other: Self) -> Self {
        Self {
            connections: self.connections.saturating_add(other.connections),
            failures: self.failures.saturating_add(other.failures),
            sent: self.sent.saturating_add(other.sent),
            sent_bytes: self.sent_bytes.saturating_add(other.sent_bytes),
            received: self.received.saturating_add(other.received),
            received_bytes: self.received_bytes.saturating_add(other.received_bytes),
        }
    }
}

impl<P: Provider, N: Network> LinkRail<P, N> {
    pub(super) fn new(send_depth: u32) -> Result<Self, LinkError> {
        let places = usize::try_from(send_depth)
            .unwrap_or(usize::MAX)
            .saturating_add(1);
        Ok(Self {
            between: None,
            connecting: None,
            asking: None,
            is_readdressed: false,
            not_connected: None,
            at: None,
            port: 0,
            from: None,
            leads: None,
            counts: LinkRailCounts::default(),
            in_flight: room_in_line(places)?,
            before: None,
        })
    }

    /// Whether it connects the port of this pair.
    pub(super) fn is_of_port(&self, between: &Between) -> bool {
        let own = self.between.as_ref();
        own.is_some_and(|own| (&own.device, own.port) == (&between.device, between.port))
    }

    /// Makes it connect this pair from now on. Returns whether the peer's address changes.
    pub(super) fn goes_to(&mut self, between: Between) -> bool {
        let leads = |between: &Between| between.peer.address().address();
        let is_other = self.between.as_ref().map(leads) != Some(leads(&between));
        self.is_readdressed |= is_other && (self.connecting.is_some() || self.asking.is_some());
        self.between = Some(between);
        is_other
    }

    /// Makes room for another port: forgets the present one, and returns the ends and the counts of its channels, if it had any.
    pub(super) fn vacate(&mut self) -> Option<(RailPath, LinkRailCounts)> {
        (self.connecting, self.asking, self.not_connected) = (None, None, None);
        self.is_readdressed = false;
        let counts = core::mem::take(&mut self.counts);
        Some((self.leads.take()?, counts))
    }

    /// Makes a channel to this address the rail's channel, and returns the previous one.
    pub(super) fn attach(&mut self, at: At, peer: IpAddr) -> Option<At> {
        let old = self.lose();
        self.leads = Some(RailPath {
            worker: at.worker,
            peer,
        });
        self.counts.connections = self.counts.connections.wrapping_add(1);
        self.at = Some(at);
        self.is_readdressed = false;
        self.not_connected = None;
        old
    }

    /// When to poll the present attempt or question again at the latest.
    pub(super) fn connecting_until(&self) -> Option<Deadline> {
        let connecting = self.connecting.as_ref().map(Connecting::deadline);
        let asking = self.asking.as_ref().map(|(asking, _)| asking.deadline());
        connecting.or(asking)
    }

    /// Notes why an attempt to connect it failed.
    pub(super) fn note_failure(&mut self, why: ConnectError) {
        let between = self.between.as_ref().map(|between| RailEnds {
            device: between.device.clone(),
            port: between.port,
            peer: between.peer.address().address(),
        });
        self.not_connected = Some(NotConnected { between, why });
    }

    /// Removes and returns its channel, and counts a failure.
    pub(super) fn lose(&mut self) -> Option<At> {
        let old = self.detach()?;
        self.counts.failures = self.counts.failures.wrapping_add(1);
        Some(old)
    }

    /// Removes and returns its channel.
    pub(super) fn detach(&mut self) -> Option<At> {
        let old = self.at.take()?;
        let asked = self.in_flight.iter().filter(|one| one.carried.is_some());
        self.before = Some((old, asked.copied().collect()));
        self.in_flight.clear();
        Some(old)
    }

    pub(super) fn did_send(&mut self, bytes: u64) {
        self.counts.sent = self.counts.sent.wrapping_add(1);
        self.counts.sent_bytes = self.counts.sent_bytes.wrapping_add(bytes);
    }

    /// Notes that the peer placed this many bytes by WRITE before it sent a frame.
    pub(super) fn was_written(&mut self, bytes: u32) {
        self.counts.received_bytes = self.counts.received_bytes.wrapping_add(bytes.into());
    }

    pub(super) fn did_receive(&mut self, bytes: usize) {
        self.counts.received = self.counts.received.wrapping_add(1);
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.counts.received_bytes = self.counts.received_bytes.wrapping_add(bytes);
    }

    pub(super) fn posted(&mut self, ticket: Ticket, backlog: u64, carried: Option<Carried>) {
        self.in_flight.push_back(InFlight {
            ticket,
            backlog,
            carried,
        });
    }

    /// Returns the contents of a request on the rail's channel, unless it is a frame.
    pub(super) fn carried_by(&self, ticket: Ticket) -> Option<Carried> {
        let mut in_flight = self.in_flight.iter();
        in_flight.find(|one| one.ticket == ticket)?.carried
    }

    /// Returns the contents of a request on this channel, if it is the rail's present or previous one. `None` for a frame.
    pub(super) fn carried_on(&self, at: At, ticket: Ticket) -> Option<Carried> {
        let before = || Some(&self.before.as_ref().filter(|(before, _)| *before == at)?.1);
        let mut posted = match self.at == Some(at) {
            true => self.in_flight.iter(),
            false => before()?.iter(),
        };
        posted.find(|one| one.ticket == ticket)?.carried
    }

    /// Removes the requests up to this one, which are done. Returns their number and bytes. `done` gets the contents of those that are not
    /// frames.
    pub(super) fn completed(&mut self, through: Ticket, mut done: impl FnMut(Carried)) -> (u32, u64) {
        let (mut requests, mut bytes) = (0_u32, 0_u64);
        while let Some(one) = self.in_flight.front() {
            if !is_through(through, one.ticket) {
                break;
            }
            requests = requests.saturating_add(1);
            bytes = bytes.saturating_add(one.backlog);
            if let Some(carried) = one.carried {
                done(carried);
            }
            self.in_flight.pop_front();
        }
        (requests, bytes)
    }
}

/// Whether a request was posted no later than `through` on the same queue.
pub(super) const fn is_through(through: Ticket, ticket: Ticket) -> bool {
    // Positions wrap: a later one is at a distance of more than half of the range.
    through.position().wrapping_sub(ticket.position()) <= u64::MAX / 2
}

#[cfg(test)]
mod tests {
    use super::LinkRailCounts;

    #[test]
    fn each_count_of_two_rails_is_added() {
        let counts = |from: u64| LinkRailCounts {
            connections: from,
            failures: from + 1,
            sent: from + 2,
            sent_bytes: from + 3,
            received: from + 4,
            received_bytes: from + 5,
        };
        let sum = LinkRailCounts {
            connections: 110,
            failures: 112,
            sent: 114,
            sent_bytes: 116,
            received: 118,
            received_bytes: 120,
        };
        assert_eq!(counts(10).plus(counts(100)), sum);
    }
}
