//! Streams on their way: which end a segment is for, and how it gets there.
//!
//! Segments share the links with packets, and their faults: clauses of a plan about the kind `stream` mean them,
//! and no other clause about packets does. A host that is slow with packets is not with them.

use core::net::{IpAddr, SocketAddr};

use doorbell_core::{Gid, IpPrefix, PortState};

use super::{HostId, World};
use crate::errno::{EADDRINUSE, EADDRNOTAVAIL, ENETUNREACH};
use crate::event::Event;
use crate::packet::PacketKind;
use crate::slab::{Key, Slab};
use crate::stream::{
    ARRIVED_MAX, AcceptorKey, AcceptorState, HEADER_BYTES, Kind, Segment, StreamKey, StreamState,
};

/// Ports for acceptors that ask for any.
const FREE_PORTS: core::ops::RangeInclusive<u16> = 32_768..=60_999;

/// Every stream, and every port at which peers arrive.
#[derive(Default)]
pub(crate) struct Streams {
    pub(crate) ends: Slab<StreamState>,
    pub(crate) acceptors: Slab<AcceptorState>,
    segments: Slab<Segment>,
    ports_given: u16,
}

/// Names a segment under way.
pub(crate) type SegmentKey = Key<Segment>;

impl Streams {
    /// A port that was not given for long.
    fn free_port(&mut self) -> u16 {
        let count = FREE_PORTS
            .end()
            .saturating_sub(*FREE_PORTS.start())
            .saturating_add(1);
        let port = FREE_PORTS.start().saturating_add(self.ports_given);
        self.ports_given = self
            .ports_given
            .saturating_add(1)
            .checked_rem(count)
            .unwrap_or_default();
        port
    }

    fn acceptor_at(&self, host: HostId, address: SocketAddr) -> Option<AcceptorKey> {
        let mut found = self.acceptors.iter().filter(|(_, acceptor)| {
            acceptor.host == host && !acceptor.is_dead && overlap(acceptor.address, address)
        });
        found.next().map(|(key, _)| key)
    }
}

/// Whether a peer could arrive at both.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let is_any = one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() == other.port() && (is_any || one.ip() == other.ip())
}

impl World {
    /// Begins a stream.
    ///
    /// # Errors
    /// No port of the host is on the subnet of the address.
    pub(crate) fn connect(&mut self, host: HostId, to: SocketAddr) -> Result<StreamKey, i32> {
        let from = self.source_for(host, to.ip()).ok_or(ENETUNREACH)?;
        let local = SocketAddr::new(from, self.streams.free_port());
        let end = StreamState::connecting(host, local, to, self.now_ns);
        let key = self.streams.ends.insert(end);
        self.attend_stream(key);
        Ok(key)
    }

    /// The address that a host speaks from to this one.
    fn source_for(&self, host: HostId, to: IpAddr) -> Option<IpAddr> {
        if self.addresses_of(host).any(|prefix| prefix.address() == to) {
            return Some(to);
        }
        let near = self.addresses_of(host).find(|prefix| prefix.contains(to))?;
        Some(near.address())
    }

    /// Every address of a host.
    fn addresses_of(&self, host: HostId) -> impl Iterator<Item = IpPrefix> {
        let entries = self.ports_of(host).flat_map(|port| &port.gids);
        entries.filter_map(|entry| entry.address)
    }

    /// Opens a port.
    ///
    /// # Errors
    /// It is taken, or the address is not the host's.
    pub(crate) fn listen(&mut self, host: HostId, at: SocketAddr) -> Result<AcceptorKey, i32> {
        let is_own = |prefix: IpPrefix| prefix.address() == at.ip();
        if !at.ip().is_unspecified() && !self.addresses_of(host).any(is_own) {
            return Err(EADDRNOTAVAIL);
        }
        let is_free = |streams: &Streams, at| streams.acceptor_at(host, at).is_none();
        let mut address = at;
        if at.port() == 0 {
            address.set_port(self.streams.free_port());
            let mut left = FREE_PORTS.len();
            while !is_free(&self.streams, address) && left > 0 {
                address.set_port(self.streams.free_port());
                left = left.saturating_sub(1);
            }
        }
        if !is_free(&self.streams, address) {
            return Err(EADDRINUSE);
        }
        Ok(self.streams.acceptors.insert(AcceptorState {
            host,
            address,
            arrived: std::collections::VecDeque::new(),
            is_dead: false,
        }))
    }

    /// Gives a port up. Peers that were not accepted get a reset.
    pub(crate) fn give_up(&mut self, key: AcceptorKey) {
        let Some(acceptor) = self.streams.acceptors.remove(key) else {
            return;
        };
        for arrived in acceptor.arrived {
            if let Some(end) = self.streams.ends.remove(arrived) {
                self.send_segment(Segment {
                    from: None,
                    to: end.peer,
                    source: end.local,
                    destination: end.remote,
                    kind: Kind::Reset,
                });
            }
        }
    }

    /// Nobody has an end any more: it ends once all that was written came.
    pub(crate) fn let_go(&mut self, key: StreamKey) {
        if let Some(end) = self.streams.ends.get_mut(key) {
            end.let_go();
            self.attend_stream(key);
        }
    }

    /// Sees to all that may be due of an end, once something happened to it.
    pub(crate) fn attend_stream(&mut self, key: StreamKey) {
        while let Some(end) = self.streams.ends.get_mut(key) {
            let Some(segment) = end.poll_transmit(key, self.now_ns) else {
                break;
            };
            self.send_segment(segment);
        }
        let Some(end) = self.streams.ends.get_mut(key) else {
            return;
        };
        if end.is_over() {
            self.streams.ends.remove(key);
        } else if let Some((at_ns, number)) = end.take_timer() {
            self.events.push(at_ns, Event::StreamTimer(key, number));
        }
    }

    /// Whether a timer is still waited for.
    pub(super) fn is_stream_timer(&self, key: StreamKey, number: u32) -> bool {
        let end = self.streams.ends.get(key);
        end.is_some_and(|end| end.awaits_timer(number))
    }

    pub(super) fn on_stream_timer(&mut self, key: StreamKey) {
        if let Some(end) = self.streams.ends.get_mut(key) {
            end.on_timer(self.now_ns);
            self.news = true;
            self.attend_stream(key);
        }
    }

    /// Brings a segment onto its way, or to nothing.
    fn send_segment(&mut self, segment: Segment) {
        let [from, to] = [segment.source, segment.destination].map(|address| Gid::from_ip(address.ip()));
        let Some([from, to]) = self.ends(from, to) else {
            return;
        };
        let link = self.links.between(from, to);
        if self.is_cut(link) {
            return;
        }
        let bytes = match &segment.kind {
            Kind::Bytes { bytes, .. } => bytes.len() as u64,
            _ => 0,
        };
        let Some(port) = self.ports.get_mut(from as usize) else {
            return;
        };
        let bytes = bytes.saturating_add(HEADER_BYTES);
        let sending_ns = self.link.sending_ns(bytes, port.report.speed_mbps);
        let sent_ns = port.sends_until_ns.max(self.now_ns).saturating_add(sending_ns);
        port.sends_until_ns = sent_ns;
        let verdict = self.judge(link, PacketKind::Stream);
        // One that was changed under way is as good as lost: nobody hears it.
        if verdict.is_lost || verdict.is_corrupt {
            return;
        }
        let lasts_ns = self.link.latency_ns.saturating_add(verdict.delay_ns);
        let at_ns = sent_ns.saturating_add(lasts_ns);
        if verdict.is_doubled {
            let copy = self.streams.segments.insert(segment.clone());
            self.come(Event::Segment(copy, to), at_ns);
        }
        let key = self.streams.segments.insert(segment);
        self.pass_on(link, verdict, Event::Segment(key, to), at_ns);
    }

    /// Brings a segment to the end it is for.
    pub(super) fn hear_segment(&mut self, key: SegmentKey, port: u32) {
        let Some(segment) = self.streams.segments.remove(key) else {
            return;
        };
        let Some(place) = self
            .port_at(port)
            .filter(|place| place.report.state == PortState::ACTIVE)
        else {
            return;
        };
        let Some(host) = self.device(place.device).map(|device| device.host) else {
            return;
        };
        if self.hosts.get(host.0).is_none_or(|host| host.is_dead) {
            return;
        }
        self.news = true;
        let end = segment.to.or_else(|| self.known_from(host, &segment));
        let ends = &self.streams.ends;
        let hears = |key: &StreamKey| ends.get(*key).is_some_and(|end| end.hears(segment.from));
        let Some(key) = end.filter(hears) else {
            self.answer_unknown(host, &segment);
            return;
        };
        let Some(end) = self.streams.ends.get_mut(key) else {
            return;
        };
        let was_open = end.is_open();
        end.on_segment(segment.from, segment.kind, self.now_ns);
        if !was_open && end.is_open() && !end.has_owner() {
            self.arrive_at_acceptor(key, host);
        }
        self.attend_stream(key);
    }

    /// Returns the end that answers this peer already, if the peer asks again.
    fn known_from(&self, host: HostId, segment: &Segment) -> Option<StreamKey> {
        let mut ends = self.streams.ends.iter();
        let (key, _) =
            ends.find(|(_, end)| end.host == host && end.peer == segment.from && end.peer.is_some())?;
        Some(key)
    }

    /// Answers a segment of a stream that the host does not know.
    fn answer_unknown(&mut self, host: HostId, segment: &Segment) {
        let (local, remote) = (segment.destination, segment.source);
        if segment.kind == Kind::Connect {
            if let Some(acceptor) = self.streams.acceptor_at(host, local) {
                let acceptor = self.streams.acceptors.get(acceptor);
                if acceptor.is_some_and(|acceptor| acceptor.arrived.len() < ARRIVED_MAX) {
                    let end = StreamState::answering(host, local, remote, segment.from, self.now_ns);
                    let key = self.streams.ends.insert(end);
                    self.attend_stream(key);
                }
                return;
            }
        }
        let kind = match segment.kind {
            Kind::Connect => Kind::Refused,
            Kind::Refused | Kind::Reset => return,
            Kind::Accept | Kind::Bytes { .. } | Kind::Came(_) => Kind::Reset,
        };
        self.send_segment(Segment {
            from: None,
            to: segment.from,
            source: local,
            destination: remote,
            kind,
        });
    }

    /// A peer is there, and waits to be taken; or nobody listens any more.
    fn arrive_at_acceptor(&mut self, key: StreamKey, host: HostId) {
        let Some(end) = self.streams.ends.get_mut(key) else {
            return;
        };
        end.own();
        let local = end.local;
        let acceptor = self.streams.acceptor_at(host, local);
        match acceptor.and_then(|acceptor| self.streams.acceptors.get_mut(acceptor)) {
            Some(acceptor) => acceptor.arrived.push_back(key),
            None => self.let_go(key),
        }
    }

    /// Ends all that a host has, without a word to anybody.
    pub(super) fn kill_streams(&mut self, is_of: impl Fn(HostId) -> bool) {
        for end in self.streams.ends.iter_mut().filter(|end| is_of(end.host)) {
            end.kill();
        }
        for acceptor in self
            .streams
            .acceptors
            .iter_mut()
            .filter(|acceptor| is_of(acceptor.host))
        {
            acceptor.is_dead = true;
        }
    }
}
