//! A rail of a link: its channel, the one that is being made, and what is in flight.

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

/// A channel that is a rail's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct At {
    pub(super) worker: usize,
    pub(super) channel: ChannelId,
}

/// Which port of ours and which rail of the peer's it is between.
#[derive(Clone, Debug)]
pub(super) struct Between {
    pub(super) device: String,
    pub(super) port: u8,
    pub(super) peer: AdvertisedRail,
}

/// Why a rail could not be connected when that was last tried.
#[derive(Debug)]
#[non_exhaustive]
pub struct NotConnected {
    /// Between which of our ports and which address of the peer's; `None` where no rail of ours reaches any of the peer's.
    pub between: Option<RailEnds>,
    /// Why.
    pub why: ConnectError,
}

/// The two ends of a rail of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RailEnds {
    /// Our device.
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

/// Something that was posted.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    ticket: Ticket,
    /// The bytes of its backlog.
    backlog: u64,
    /// The request or the piece, if it is no frame.
    carried: Option<Carried>,
}

/// A request that was posted on a rail and is no frame.
#[derive(Clone, Copy, Debug)]
pub(super) enum Carried {
    /// A one-sided request.
    Request(RequestId),
    /// A stretch of a one-sided request that is longer than a fragment.
    Stretch(RequestId),
    /// Pieces of a transfer, of so many bytes and so many of them; or the last part of one.
    Piece(TransferId, u32, u16),
    /// An earlier part of a piece.
    Part(TransferId),
    /// A fragment that is written into this place at the peer; or its last part.
    Placed(u32),
    /// An earlier part of such a fragment.
    PlacedPart,
}

pub(super) struct LinkRail<P: Provider, N: Network> {
    /// Pair of rails that this one connects; only on the side that connects.
    pub(super) between: Option<Between>,
    pub(super) connecting: Option<Connecting<P, N>>,
    /// The question to a process that says it is not the peer, and the failure that it reported.
    pub(super) asking: Option<(Asking<N>, ConnectError)>,
    /// Whether it is to lead to another address than it is being connected to, or than is asked.
    pub(super) is_readdressed: bool,
    /// Until it is connected.
    pub(super) not_connected: Option<NotConnected>,
    pub(super) at: Option<At>,
    /// The port of the device that its channel is on, where the peer connected.
    pub(super) port: u8,
    /// Source address of its handshake's stream, if the peer connected.
    pub(super) from: Option<IpAddr>,
    /// Worker and peer address of its channel, or of its last one.
    pub(super) leads: Option<Leads>,
    pub(super) counts: LinkRailCounts,
    /// Requests that were posted and have not completed.
    in_flight: VecDeque<InFlight>,
    /// Requests of the previous channel, while its device may still report why it failed: failed receives are often reported
    /// first.
    before: Option<(At, VecDeque<InFlight>)>,
}

/// Between which Worker's device and which address a channel is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Leads {
    pub(super) worker: usize,
    pub(super) peer: IpAddr,
}

/// Counts of a rail of a link, over all channels it had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkRailCounts {
    /// Channels it had.
    pub connections: u64,
    /// Channels it lost.
    pub failures: u64,
    /// Requests posted: frames, one-sided ones, and signs of life asked for.
    pub sent: u64,
    /// Bytes of these, with their headers.
    pub sent_bytes: u64,
    /// Frames that came.
    pub received: u64,
    /// Bytes of these, with their headers.
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

    /// Has it connected between these from now on. Says whether that leads to another address than before.
    pub(super) fn goes_to(&mut self, between: Between) -> bool {
        let leads = |between: &Between| between.peer.address().address();
        let is_other = self.between.as_ref().map(leads) != Some(leads(&between));
        self.is_readdressed |= is_other && (self.connecting.is_some() || self.asking.is_some());
        self.between = Some(between);
        is_other
    }

    /// Makes a channel to this address the rail's; gives the one it had.
    pub(super) fn attach(&mut self, at: At, peer: IpAddr) -> Option<At> {
        let old = self.lose();
        self.leads = Some(Leads {
            worker: at.worker,
            peer,
        });
        self.counts.connections = self.counts.connections.wrapping_add(1);
        self.at = Some(at);
        self.is_readdressed = false;
        self.not_connected = None;
        old
    }

    /// When to look at the latest what became of its being connected, if it is.
    pub(super) fn connecting_until(&self) -> Option<Deadline> {
        let connecting = self.connecting.as_ref().map(Connecting::deadline);
        let asking = self.asking.as_ref().map(|(asking, _)| asking.deadline());
        connecting.or(asking)
    }

    /// Notes why it could not be connected.
    pub(super) fn note_failure(&mut self, why: ConnectError) {
        let between = self.between.as_ref().map(|between| RailEnds {
            device: between.device.clone(),
            port: between.port,
            peer: between.peer.address().address(),
        });
        self.not_connected = Some(NotConnected { between, why });
    }

    /// Forgets its channel, which failed or is given up.
    pub(super) fn lose(&mut self) -> Option<At> {
        let old = self.detach()?;
        self.counts.failures = self.counts.failures.wrapping_add(1);
        Some(old)
    }

    /// Forgets its channel.
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

    /// Notes that the peer wrote so many bytes in front of a frame.
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

    /// The request that was posted as this on the rail's channel, and is no frame.
    pub(super) fn carried_by(&self, ticket: Ticket) -> Option<Carried> {
        let mut in_flight = self.in_flight.iter();
        in_flight.find(|one| one.ticket == ticket)?.carried
    }

    /// The request or the piece that was posted on this channel, be it the rail's or the one it had before.
    pub(super) fn carried_on(&self, at: At, ticket: Ticket) -> Option<Carried> {
        let before = || Some(&self.before.as_ref().filter(|(before, _)| *before == at)?.1);
        let mut posted = match self.at == Some(at) {
            true => self.in_flight.iter(),
            false => before()?.iter(),
        };
        posted.find(|one| one.ticket == ticket)?.carried
    }

    /// All up to a request are done: how many, and of how many bytes. `done` gets those that are no frames.
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

/// Whether a request is among those up to another, which followed it on the same queue.
pub(super) const fn is_through(through: Ticket, ticket: Ticket) -> bool {
    // Positions are counted on and on; what is later is nearly all the way round.
    through.position().wrapping_sub(ticket.position()) <= u64::MAX / 2
}
