//! Carrying out a request whose turn it is.

use doorbell_core::provider::{ArrivalKind, AsyncEvent, ReadyToReceive, RemoteAddress, Slot as _};
use doorbell_core::{Access, Psn, WcStatus};

use super::{Inbound, Responder, Response, Saved, Surroundings};
use crate::completion::CompletionEntry;
use crate::memory::{WORD_ALIGN_MASK, WORD_BYTES};
use crate::packet::opcode::Group;
use crate::packet::{AtomicEth, Opcode, Packet, Refusal, Reth, Syndrome};
use crate::receive::Receive;

impl Responder {
    pub(super) fn execute(
        &mut self,
        settings: &ReadyToReceive,
        packet: &Packet,
        around: &mut Surroundings<'_>,
    ) {
        if !self.follows(settings, packet) {
            self.refuse_request(packet.bth.psn, around);
            return;
        }
        if around.quirks.forbidden_is_invalid && !around.access.contains(right(packet.bth.opcode.group())) {
            self.refuse_request(packet.bth.psn, around);
            return;
        }
        match packet.bth.opcode.group() {
            Group::Send => self.take_send(settings, packet, around),
            Group::Write => self.take_write(settings, packet, around),
            Group::Read => {
                if let Some(reth) = packet.reth {
                    self.give_read(settings, packet.bth.psn, reth, around);
                }
            }
            Group::Atomic => {
                if let Some(atomic) = packet.atomic {
                    self.run_atomic(settings, packet, atomic, around);
                }
            }
            // Answers are the requester's, and datagrams have no connection.
            Group::ReadResponse | Group::Acknowledge | Group::AtomicAcknowledge | Group::Datagram => (),
        }
    }

    /// Whether a packet may follow the one before it, and has the size it must have.
    ///
    /// Source: InfiniBand Architecture volume 1, section 9.7.4.1.3 to 9.7.4.1.6.
    fn follows(&self, settings: &ReadyToReceive, packet: &Packet) -> bool {
        let opcode = packet.bth.opcode;
        let in_turn = match (&self.inbound, opcode.group()) {
            (Inbound::Nothing, _) => opcode.is_first(),
            (Inbound::Send(_), Group::Send) | (Inbound::Write { .. }, Group::Write) => !opcode.is_first(),
            _ => false,
        };
        let bytes = packet.payload.len();
        let mtu_bytes = settings.path_mtu.bytes() as usize;
        let has_size = if !opcode.is_last() {
            bytes == mtu_bytes
        } else if opcode.is_first() {
            bytes <= mtu_bytes
        } else {
            (1..=mtu_bytes).contains(&bytes)
        };
        in_turn && has_size
    }

    /// Notes that a packet is done, the last of its message or not.
    fn done(&mut self, packet: &Packet) {
        self.expected = packet.bth.psn.advance(1).to_u32();
        if packet.bth.opcode.is_last() {
            self.inbound = Inbound::Nothing;
            self.messages = self.messages.wrapping_add(1);
        }
        if packet.bth.ack_request {
            self.answer(packet.bth.psn, Syndrome::Done);
        }
    }

    /// Asks the peer to retransmit: no receive is posted.
    fn not_ready(&mut self, settings: &ReadyToReceive, psn: Psn) {
        self.effects.was_not_ready = true;
        // Packets that follow are ahead of their turn, and need no report of their own.
        self.has_reported_gap = true;
        self.answer(psn, Syndrome::NotReady(settings.min_rnr_timer));
    }

    fn refuse_request(&mut self, psn: Psn, around: &mut Surroundings<'_>) {
        self.effects.event = Some(AsyncEvent::QueuePairRequest);
        self.refuse_with_receive(psn, (Refusal::InvalidRequest, WcStatus::LOC_QP_OP_ERR), around);
    }

    fn refuse_access(&mut self, psn: Psn) {
        self.effects.event = Some(AsyncEvent::QueuePairAccess);
        self.refuse(psn, Refusal::Access);
    }

    fn take_send(&mut self, settings: &ReadyToReceive, packet: &Packet, around: &mut Surroundings<'_>) {
        let psn = packet.bth.psn;
        let before = match self.inbound {
            Inbound::Send(bytes) => bytes,
            _ => {
                let Some(receive) = around.receives.take() else {
                    self.not_ready(settings, psn);
                    return;
                };
                self.held = Some(receive);
                0
            }
        };
        let bytes = before.saturating_add(packet.payload.len());
        let Some(receive) = &mut self.held else {
            return;
        };
        if receive.slots.capacity_bytes() < bytes {
            let status = around.quirks.short_receive;
            let refusal = if around.quirks.short_receive_reported == WcStatus::REM_OP_ERR {
                Refusal::Operation
            } else {
                Refusal::InvalidRequest
            };
            self.refuse_with_receive(psn, (refusal, status), around);
            return;
        }
        let room = |slot: &crate::Slot| slot.capacity_bytes();
        let copied = receive
            .slots
            .copy_in(before, &packet.payload, around.domain, room);
        if copied.is_err() {
            let status = around.quirks.foreign_receive;
            self.refuse_with_receive(psn, (Refusal::Operation, status), around);
            return;
        }
        self.inbound = Inbound::Send(bytes);
        if packet.bth.opcode.is_last() {
            receive.seal(bytes);
            self.arrive(ArrivalKind::Send, bytes, packet, around);
        }
        self.done(packet);
    }

    fn take_write(&mut self, settings: &ReadyToReceive, packet: &Packet, around: &mut Surroundings<'_>) {
        let psn = packet.bth.psn;
        let opcode = packet.bth.opcode;
        if opcode.has_immediate() && around.receives.is_empty() {
            // Packets before this one may have been written already (S17).
            self.not_ready(settings, psn);
            return;
        }
        let (remote, left, total) = match (self.inbound, packet.reth) {
            (Inbound::Write { remote, left, total }, _) => (remote, left, total),
            (_, Some(reth)) => {
                let remote = RemoteAddress::new(reth.address, reth.rkey);
                (remote, reth.bytes, reth.bytes)
            }
            _ => return,
        };
        let bytes = packet.payload.len();
        let rest = u32::try_from(bytes)
            .ok()
            .and_then(|bytes| left.checked_sub(bytes));
        let Some(rest) = rest.filter(|rest| opcode.is_last() == (*rest == 0)) else {
            self.refuse_request(psn, around);
            return;
        };
        // The first packet must be allowed for the whole message, each other for itself: the
        // window may go meanwhile.
        let whole = if opcode.is_first() { total as usize } else { bytes };
        let place = around.reach(remote, whole, Access::REMOTE_WRITE);
        let Some(place) = place else {
            if opcode.has_immediate() {
                self.held = around.receives.take();
                let status = around.quirks.refused_immediate;
                self.refuse_with_receive(psn, (Refusal::Access, status), around);
            } else {
                self.refuse_access(psn);
            }
            return;
        };
        place.with(|place| {
            // No longer than the whole, as the rest says.
            if let Some(place) = place.get_mut(..bytes) {
                place.copy_from_slice(&packet.payload);
            }
        });
        self.inbound = Inbound::Write {
            remote: RemoteAddress::new(remote.address().wrapping_add(bytes as u64), remote.rkey()),
            left: rest,
            total,
        };
        if opcode.has_immediate() {
            self.held = around.receives.take();
            self.arrive(ArrivalKind::WriteWithImmediate, total as usize, packet, around);
        }
        self.done(packet);
    }

    /// Completes the receive that is held (S17).
    fn arrive(&mut self, kind: ArrivalKind, bytes: usize, packet: &Packet, around: &mut Surroundings<'_>) {
        let entry = |receive: &Receive| CompletionEntry {
            work_id: receive.work_id,
            status: WcStatus::SUCCESS,
            kind,
            // At most the longest message, 2^31.
            bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
            immediate: packet.immediate,
            solicited: packet.bth.solicited,
            source_qpn: None,
        };
        if let Some(receive) = self
            .held
            .as_ref()
            .filter(|_| around.quirks.repeats_failing_ns > 0)
        {
            let scattered = if kind == ArrivalKind::Send { bytes } else { 0 };
            self.newest = Some((entry(receive), receive.slots.scattered(scattered)));
        }
        self.end_held(around, entry);
    }

    /// Whether the peer may read so much there.
    pub(super) fn may_read(
        &self,
        settings: &ReadyToReceive,
        remote: RemoteAddress,
        bytes: u32,
        around: &mut Surroundings<'_>,
    ) -> bool {
        settings.max_dest_rd_atomic > 0
            && around
                .reach(remote, bytes as usize, Access::REMOTE_READ)
                .is_some()
    }

    fn give_read(&mut self, settings: &ReadyToReceive, psn: Psn, reth: Reth, around: &mut Surroundings<'_>) {
        if settings.max_dest_rd_atomic == 0 {
            self.refuse_request(psn, around);
            return;
        }
        let remote = RemoteAddress::new(reth.address, reth.rkey);
        if !self.may_read(settings, remote, reth.bytes, around) {
            self.refuse_access(psn);
            return;
        }
        let packets = reth.bytes.div_ceil(settings.path_mtu.bytes()).max(1);
        self.expected = psn.advance(packets).to_u32();
        self.messages = self.messages.wrapping_add(1);
        self.responses.push_back(Response::Read {
            psn,
            remote,
            left: reth.bytes,
            is_first: true,
        });
    }

    fn run_atomic(
        &mut self,
        settings: &ReadyToReceive,
        packet: &Packet,
        atomic: AtomicEth,
        around: &mut Surroundings<'_>,
    ) {
        let psn = packet.bth.psn;
        if settings.max_dest_rd_atomic == 0 || atomic.address & WORD_ALIGN_MASK != 0 {
            self.refuse_request(psn, around);
            return;
        }
        let remote = RemoteAddress::new(atomic.address, atomic.rkey);
        let place = around.reach(remote, WORD_BYTES, Access::REMOTE_ATOMIC);
        let exchanged = place.and_then(|place| {
            place.with(|place| {
                let place = place.first_chunk_mut::<WORD_BYTES>()?;
                let before = u64::from_ne_bytes(*place);
                let after = match packet.bth.opcode {
                    Opcode::FetchAndAdd => before.wrapping_add(atomic.swap_or_add),
                    _ if before == atomic.compare => atomic.swap_or_add,
                    _ => before,
                };
                *place = after.to_ne_bytes();
                Some(before)
            })
        });
        let Some(before) = exchanged else {
            self.refuse_access(psn);
            return;
        };
        self.expected = psn.advance(1).to_u32();
        self.messages = self.messages.wrapping_add(1);
        // As many as may be outstanding can be asked for again.
        if self.saved.len() >= usize::from(settings.max_dest_rd_atomic) {
            self.saved.pop_front();
        }
        self.saved.push_back(Saved { psn, before });
        self.responses.push_back(Response::Word(psn, before));
    }
}

/// The right of the queue pair that a request needs.
const fn right(group: Group) -> Access {
    match group {
        Group::Write => Access::REMOTE_WRITE,
        Group::Read => Access::REMOTE_READ,
        Group::Atomic => Access::REMOTE_ATOMIC,
        _ => Access::empty(),
    }
}
