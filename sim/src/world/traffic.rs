//! Packets on their way: from a queue pair to its port, over a link, to a queue pair.

use doorbell_core::provider::AsyncEvent;
use doorbell_core::{Gid, PortState, QpState};

use super::{Route, World};
use crate::datagram::Sender;
use crate::event::Event;
use crate::packet::encode::{source_port, wire_bytes};
use crate::packet::pool::PacketKey;
use crate::packet::{Flow, Packet};
use crate::queue_pair::{QueuePairKey, QueuePairState};
use crate::responder::{Polled, Source, Surroundings};
use crate::timeline::Fate;

/// How many packets a queue pair sends at a time before others get their turn.
const BURST: u32 = 64;

impl World {
    /// Brings a packet to the queue pair it is for.
    pub(super) fn arrive(&mut self, packet: PacketKey, port: u32) {
        let heard = self.hear(packet, port);
        if heard.is_none() {
            self.wait_for_failed(packet, port);
            self.record_unheard(packet, port);
        } else {
            self.record_end(packet, Fate::Arrived(self.now_ns));
        }
        self.packets.give_back(packet);
        if let Some(key) = heard {
            self.attend(key);
        }
    }

    /// Gives a packet to its queue pair, and returns that.
    fn hear(&mut self, packet: PacketKey, port: u32) -> Option<QueuePairKey> {
        let packets = &mut self.tally.packets;
        let packet = self.packets.get(packet)?;
        let place = self.ports.get(port as usize)?;
        if place.report.state != PortState::ACTIVE {
            packets.lost = packets.lost.wrapping_add(1);
            return None;
        }
        if packet.is_corrupt {
            packets.corrupt = packets.corrupt.wrapping_add(1);
            return None;
        }
        let device = self.devices.get(place.device.0)?;
        let host = self.hosts.get(device.host.0)?;
        let key = device.numbers.find(packet.bth.destination_qpn);
        let found = key.zip(key.and_then(|key| self.queue_pairs.get_mut(key)));
        let Some((key, qp)) = found.filter(|(_, qp)| !host.is_dead && is_for(qp, packet, place.report.port))
        else {
            packets.unheard = packets.unheard.wrapping_add(1);
            return None;
        };
        packets.delivered = packets.delivered.wrapping_add(1);
        if packet.bth.opcode.is_response() {
            if qp.state != QpState::ReadyToReceive {
                qp.requester.on_packet(self.now_ns, packet);
            }
            return Some(key);
        }
        let quirks = &host.quirks;
        if let Some(deth) = packet.deth {
            let (responder, mut around) = split(qp, &mut self.shared_receives, &mut self.windows, quirks);
            if responder.on_datagram(packet, deth, &mut around) {
                self.failing.push_back(key);
            }
            return Some(key);
        }
        let is_new = qp.responder.hears_first();
        let established = is_new && qp.state == QpState::ReadyToReceive && quirks.states_are_reported;
        let (context, qpn) = (qp.context, qp.qpn);
        let (responder, mut around) = split(qp, &mut self.shared_receives, &mut self.windows, quirks);
        responder.on_packet(packet, &mut around);
        if established {
            self.raise(context, AsyncEvent::CommunicationEstablished(qpn));
        }
        Some(key)
    }

    /// Gives the sender of a request for a queue pair that failed its retries back, if its device tries without end.
    ///
    /// Once the queue pair is destroyed, the retries end as for any peer that is gone.
    fn wait_for_failed(&mut self, packet: PacketKey, port: u32) {
        let failed = self.packets.get(packet).and_then(|packet| {
            let device = self.devices.get(self.ports.get(port as usize)?.device.0)?;
            let qp = self
                .queue_pairs
                .get(device.numbers.find(packet.bth.destination_qpn)?)?;
            let is_one = qp.state == QpState::Error && !packet.bth.opcode.is_response() && !packet.is_corrupt;
            let sender = self
                .ports
                .get(*self.gids.get(&packet.flow.source)? as usize)?
                .device;
            let sent_by = qp.connection.as_ref()?.attributes.destination_qpn;
            let key = self.device(sender)?.numbers.find(sent_by)?;
            (is_one && self.quirks(sender).failed_peers_are_waited_for).then_some(key)
        });
        if let Some(qp) = failed.and_then(|key| self.queue_pairs.get_mut(key)) {
            qp.requester.renew_retries();
        }
    }

    /// Sees to all that may be due of a queue pair, once something happened to it.
    pub(super) fn attend(&mut self, key: QueuePairKey) {
        self.take_effects(key);
        // Requests that cannot be sent may end here, too.
        self.transmit(key);
        self.complete_due(key);
        let Some(qp) = self.queue_pairs.get(key) else {
            return;
        };
        if qp.requester.has_failed() {
            match qp.state {
                QpState::Error | QpState::SendQueueError => {}
                QpState::ReadyToSend
                    if qp.datagrams.is_some() && !self.quirks_of(key).failed_datagrams_fail_all =>
                {
                    self.fail_sends(key);
                }
                _ => self.failing.push_back(key),
            }
        }
        self.report_drained(key);
        self.arm(key);
    }

    /// Does what a responder wants done.
    fn take_effects(&mut self, key: QueuePairKey) {
        let Some(qp) = self.queue_pairs.get_mut(key) else {
            return;
        };
        let Some(effects) = qp.responder.take_effects() else {
            return;
        };
        let (context, qpn, device) = (qp.context, qp.qpn, qp.device);
        let (queue, shared) = (qp.receive_completions, qp.shared);
        if effects
            .ended
            .as_ref()
            .is_some_and(|ended| ended.status.is_success())
        {
            qp.arrived_at_ns = self.now_ns;
        }
        let not_ready = u64::from(effects.was_not_ready);
        self.tally.receivers_not_ready = self.tally.receivers_not_ready.saturating_add(not_ready);
        let quirks = self.quirks(device);
        let reported = effects.event.map(|event| event(qpn)).filter(|event| match event {
            AsyncEvent::QueuePairAccess(_) => quirks.refused_access_is_reported,
            _ => quirks.refused_requests_are_reported,
        });
        if let Some(event) = reported {
            self.raise(context, event);
        }
        if let Some(ended) = effects.ended {
            self.complete(key, queue, ended);
        }
        let shared = shared.and_then(|shared| self.shared_receives.get_mut(shared));
        let due = shared.and_then(|shared| Some((shared.context, shared.take_event()?)));
        if let Some((owner, event)) = due {
            self.raise(owner, event);
        }
    }

    /// Sends what a queue pair may send now: answers first.
    fn transmit(&mut self, key: QueuePairKey) {
        if self.queue_pairs.get(key).is_none_or(|qp| qp.is_transmitting) {
            return;
        }
        for _ in 0..BURST {
            let packet = self.packets.take();
            let polled = self.poll_transmit(key, packet);
            if polled == Polled::Nothing {
                self.packets.give_back(packet);
                return;
            }
            self.send(key, packet);
            if polled == Polled::LastPacket {
                self.take_effects(key);
                self.failing.push_back(key);
                return;
            }
        }
        // There may be more: it goes on when the port is free.
        let Some(qp) = self.queue_pairs.get_mut(key) else {
            return;
        };
        qp.is_transmitting = true;
        let port = qp.route.and_then(|route| self.ports.get(route.from as usize));
        let at_ns = port.map_or(self.now_ns, |port| port.sends_until_ns.max(self.now_ns));
        self.events.push(at_ns, Event::Transmit(key));
    }

    /// Lets a queue pair write its next packet.
    fn poll_transmit(&mut self, key: QueuePairKey, packet: PacketKey) -> Polled {
        let (Some(qp), Some(packet)) = (self.queue_pairs.get_mut(key), self.packets.get_mut(packet)) else {
            return Polled::Nothing;
        };
        if !qp.listens() {
            return Polled::Nothing;
        }
        if qp.responder.has_output() {
            let host = self.devices.get(qp.device.0).map(|device| device.host.0);
            let quirks = host
                .and_then(|host| self.hosts.get(host))
                .map(|host| &host.quirks);
            let Some(quirks) = quirks else {
                return Polled::Nothing;
            };
            let (responder, mut around) = split(qp, &mut self.shared_receives, &mut self.windows, quirks);
            return responder.poll_transmit(packet, &mut around);
        }
        if qp.state == QpState::ReadyToSend && qp.datagrams.is_some() {
            let sent = self.devices.get(qp.device.0).and_then(|device| {
                let place = *device.ports.get(usize::from(qp.port).checked_sub(1)?)?;
                let mtu = self.ports.get(place as usize)?.report.active_mtu?;
                let mut sender = Sender {
                    domain: qp.domain,
                    qpn: qp.qpn,
                    mtu_bytes: mtu.bytes() as usize,
                    quirks: &self.hosts.get(device.host.0)?.quirks,
                    datagrams: qp.datagrams.as_mut()?,
                };
                Some(qp.requester.poll_datagram(&mut sender, packet))
            });
            return if sent == Some(true) {
                Polled::Packet
            } else {
                Polled::Nothing
            };
        }
        let may_begin = match qp.state {
            QpState::ReadyToSend => true,
            QpState::SendQueueDrain => false,
            _ => return Polled::Nothing,
        };
        if qp.requester.poll_transmit(self.now_ns, may_begin, packet) {
            Polled::Packet
        } else {
            Polled::Nothing
        }
    }

    /// Brings a packet of a queue pair onto its way, or to nothing.
    fn send(&mut self, key: QueuePairKey, packet: PacketKey) {
        self.tally.packets.sent = self.tally.packets.sent.wrapping_add(1);
        match self.route(key, packet) {
            Some(route) => {
                self.address(key, packet);
                self.carry(key, route, packet);
            }
            None => {
                self.record_leaving(key, None, packet, self.now_ns);
                self.record_end(packet, Fate::Stranded);
                self.lose(packet);
            }
        }
    }

    fn lose(&mut self, packet: PacketKey) {
        self.tally.packets.lost = self.tally.packets.lost.wrapping_add(1);
        self.packets.give_back(packet);
    }

    /// The way of a queue pair's packet, if there is one now.
    fn route(&mut self, key: QueuePairKey, packet: PacketKey) -> Option<Route> {
        let qp = self.queue_pairs.get(key)?;
        if let Some(route) = qp.route.filter(|route| route.topology == self.topology) {
            return Some(route);
        }
        let Some(connection) = &qp.connection else {
            // Each datagram says itself where it goes.
            let flow = self.packets.get(packet)?.flow;
            return self.way(flow.source, flow.destination);
        };
        let [source, destination] = [connection.source, connection.attributes.address.destination];
        let route = self.way(source, destination);
        self.queue_pairs.get_mut(key)?.route = route;
        route
    }

    fn way(&mut self, source: Gid, destination: Gid) -> Option<Route> {
        let [from, to] = self.ends(source, destination)?;
        Some(Route {
            from,
            to,
            link: self.links.between(from, to),
            topology: self.topology,
        })
    }

    /// Writes down where a packet of a connection comes from and goes to.
    fn address(&mut self, key: QueuePairKey, packet: PacketKey) {
        let Some(qp) = self.queue_pairs.get(key) else {
            return;
        };
        if let (Some(connection), Some(packet)) = (&qp.connection, self.packets.get_mut(packet)) {
            packet.flow = Flow {
                source: connection.source,
                destination: connection.attributes.address.destination,
                port: source_port(qp.qpn, connection.attributes.receive_psn),
                traffic_class: connection.attributes.address.traffic_class,
                hop_limit: connection.attributes.address.hop_limit,
            };
        }
    }

    /// Sends a packet over a link.
    fn carry(&mut self, key: QueuePairKey, route: Route, packet: PacketKey) {
        let bytes = self.packets.get(packet).map_or(0, wire_bytes);
        let Some(port) = self.ports.get_mut(route.from as usize) else {
            return;
        };
        let sending_ns = self.link.sending_ns(bytes, port.report.speed_mbps);
        let sent_ns = port.sends_until_ns.max(self.now_ns).saturating_add(sending_ns);
        port.sends_until_ns = sent_ns;
        if let (Some(capture), Some(packet)) = (&mut self.capture, self.packets.get(packet)) {
            capture.keep(sent_ns, packet);
        }
        self.record_leaving(key, Some(route.to), packet, sent_ns);
        let Some(kind) = self.packets.get(packet).map(Packet::kind) else {
            return;
        };
        let verdict = self.judge(route.link, kind);
        if verdict.is_lost {
            self.record_end(packet, Fate::Lost);
            self.lose(packet);
            return;
        }
        let lasts_ns = self.link.latency_ns.saturating_add(verdict.delay_ns);
        let at_ns = sent_ns.saturating_add(lasts_ns);
        if let Some(packet) = self.packets.get_mut(packet).filter(|_| verdict.is_corrupt) {
            packet.is_corrupt = true;
        }
        if verdict.is_doubled {
            let copy = self.packets.take_copy(packet);
            self.record_double(packet, copy);
            self.tally.packets.sent = self.tally.packets.sent.wrapping_add(1);
            self.deliver(copy, route.to, at_ns);
        }
        self.pass_on(route.link, verdict, Event::Arrive(packet, route.to), at_ns);
    }

    /// Has a packet come in at a port.
    pub(super) fn deliver(&mut self, packet: PacketKey, port: u32, at_ns: u64) {
        let mut at_ns = at_ns;
        if let Some(place) = self.ports.get_mut(port as usize) {
            let host = self.devices.get(place.device.0).map(|device| device.host.0);
            let slow_ns = host
                .and_then(|host| self.hosts.get(host))
                .map_or(0, |host| host.slow_ns);
            if slow_ns > 0 || place.takes_until_ns > at_ns {
                at_ns = at_ns.max(place.takes_until_ns).saturating_add(slow_ns);
                place.takes_until_ns = at_ns;
            }
        }
        self.events.push(at_ns, Event::Arrive(packet, port));
    }
}

/// Whether a queue pair takes a packet that came in at a port of this number: it is ready, and
/// the addresses are those it is connected with, or a datagram has its key. No packet of a connection shows which
/// sender at an address it is from.
fn is_for(qp: &QueuePairState, packet: &Packet, port: u8) -> bool {
    let is_peer = match (&qp.datagrams, packet.deth) {
        // Any sender that has the key may send one.
        (Some(datagrams), Some(deth)) => datagrams.qkey == deth.qkey,
        (None, None) => is_connected_with(qp, packet),
        _ => false,
    };
    is_peer && qp.listens() && qp.port == port
}

fn is_connected_with(qp: &QueuePairState, packet: &Packet) -> bool {
    qp.connection.as_ref().is_some_and(|connection| {
        connection.attributes.address.destination == packet.flow.source
            && connection.source == packet.flow.destination
    })
}

/// The responder of a queue pair, and all it needs.
fn split<'w>(
    qp: &'w mut QueuePairState,
    shared_receives: &'w mut crate::slab::Slab<crate::shared_receive::SharedReceiveState>,
    windows: &'w mut crate::window::Windows,
    quirks: &'w crate::quirks::Quirks,
) -> (&'w mut crate::responder::Responder, Surroundings<'w>) {
    let receives = match qp.shared {
        None => Source::Own(&mut qp.receives),
        Some(shared) => shared_receives
            .get_mut(shared)
            .map_or(Source::Nothing, Source::Shared),
    };
    let around = Surroundings {
        device: qp.device,
        domain: qp.domain,
        access: qp.access,
        windows,
        receives,
        quirks,
    };
    (&mut qp.responder, around)
}
