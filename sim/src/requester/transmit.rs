//! Making the packets of requests.

use doorbell_core::provider::{Operation, PostFlags};
use doorbell_core::{Psn, WcStatus};

use super::{Cursor, Request, Requester, Settings};
use crate::packet::{AtomicEth, Opcode, Packet, Reth};
use crate::time::ack_timeout_ns;

/// The longest message. Source: InfiniBand Architecture volume 1, section 9.7.7.
const MESSAGE_BYTES_MAX: usize = 1 << 31;
/// A READ reserves a PSN for each packet that comes back; of the number space at most half is
/// ever outstanding, so that old and new can be distinguished.
const PACKETS_MAX: usize = 1 << 22;
/// Within a long message an acknowledgement is asked for once in so many packets.
const ACK_EVERY: u32 = 16;

impl Requester {
    /// Writes the next packet that may go now, if there is one; of a request that has begun, where none may begin.
    pub(crate) fn poll_transmit(&mut self, now_ns: u64, may_begin: bool, packet: &mut Packet) -> bool {
        let Some(settings) = self.settings else {
            return false;
        };
        if self.has_failed || self.ready_at_ns.is_some() {
            return false;
        }
        let waits = !may_begin && self.retries_wait() && self.cursor.packet == 0;
        if waits || self.cursor.request == self.begun && !(may_begin && self.begin(&settings)) {
            return false;
        }
        let oldest = self.oldest();
        let Some(request) = self.requests.get(self.cursor.request) else {
            return false;
        };
        let psn = request.first_psn.advance(self.cursor.packet);
        let distance = oldest.map_or(0, |oldest| psn.distance_from(oldest));
        if distance >= settings.quirks.window_packets {
            return false;
        }
        let sent = write(&settings, request, self.cursor.packet, psn, packet);
        let next = self.cursor.packet.saturating_add(sent);
        self.cursor = if next >= request.packets {
            Cursor {
                request: self.cursor.request.saturating_add(1),
                packet: 0,
            }
        } else {
            Cursor {
                packet: next,
                ..self.cursor
            }
        };
        if self.silent_at_ns.is_none() {
            let timeout_ns = ack_timeout_ns(settings.sending.timeout, &settings.quirks);
            self.silent_at_ns = Some(now_ns.saturating_add(timeout_ns));
        }
        true
    }

    /// Begins the next request, where it may: gives it its PSNs.
    fn begin(&mut self, settings: &Settings) -> bool {
        let Some(request) = self.requests.get(self.begun) else {
            return false;
        };
        let bytes = request.measure();
        if let Err(status) = check(settings, request, bytes) {
            // Its end comes in its turn.
            if self.ended == self.begun {
                self.fail(status);
            }
            return false;
        }
        let brings_back = request.operation.writes_slots();
        let is_fenced = request.flags.contains(PostFlags::FENCE) && self.reads > 0;
        let is_stalled = brings_back && self.reads >= settings.sending.max_rd_atomic;
        if is_fenced || is_stalled {
            return false;
        }
        let packets = if request.operation.is_atomic() {
            1
        } else {
            // Below 2^23 by what was checked.
            u32::try_from(bytes.div_ceil(settings.mtu_bytes).max(1)).unwrap_or(1)
        };
        let first_psn = Psn::from_low_bits(self.next_psn);
        if let Some(request) = self.requests.get_mut(self.begun) {
            (request.first_psn, request.packets, request.bytes) = (first_psn, packets, bytes);
        }
        self.next_psn = first_psn.advance(packets).to_u32();
        self.reads = self.reads.saturating_add(u8::from(brings_back));
        self.begun = self.begun.saturating_add(1);
        true
    }
}

/// Checks a request before any of it is sent.
///
/// # Errors
/// A slot is of another protection domain (S8), it is too long, or an atomic for a device that has none.
fn check(settings: &Settings, request: &Request, bytes: usize) -> Result<(), WcStatus> {
    if request.is_foreign(settings.domain) {
        return Err(settings.quirks.foreign_gather);
    }
    if request.operation.is_atomic() && settings.quirks.has_no_atomics {
        return Err(WcStatus::LOC_QP_OP_ERR);
    }
    let too_long = bytes > MESSAGE_BYTES_MAX || bytes.div_ceil(settings.mtu_bytes) > PACKETS_MAX;
    if too_long && !request.operation.is_atomic() {
        return Err(WcStatus::LOC_LEN_ERR);
    }
    Ok(())
}

/// Writes a packet of a request; says how many PSNs it stands for.
fn write(settings: &Settings, request: &Request, number: u32, psn: Psn, packet: &mut Packet) -> u32 {
    let offset = (number as usize).saturating_mul(settings.mtu_bytes);
    let left = request.bytes.saturating_sub(offset);
    // At most 2^31 bytes.
    let left_bytes = u32::try_from(left).unwrap_or(u32::MAX);
    let is_first = number == 0;
    let is_last = number.saturating_add(1) == request.packets;
    let mut begin = |opcode| packet.begin(opcode, settings.destination_qpn, psn);
    match request.operation {
        Operation::Send => begin(Opcode::send(is_first, is_last, false)),
        Operation::SendWithImmediate(word) => {
            begin(Opcode::send(is_first, is_last, true));
            packet.immediate = is_last.then_some(word);
        }
        Operation::Write(remote) | Operation::WriteWithImmediate(remote, _) => {
            let word = match request.operation {
                Operation::WriteWithImmediate(_, word) => Some(word),
                _ => None,
            };
            begin(Opcode::write(is_first, is_last, word.is_some()));
            packet.reth = is_first.then_some(Reth {
                address: remote.address(),
                rkey: remote.rkey(),
                bytes: left_bytes,
            });
            packet.immediate = word.filter(|_| is_last);
        }
        Operation::Read(remote) => {
            begin(Opcode::ReadRequest);
            packet.reth = Some(Reth {
                address: remote.address().wrapping_add(offset as u64),
                rkey: remote.rkey(),
                bytes: left_bytes,
            });
            packet.bth.ack_request = true;
            return request.packets.saturating_sub(number);
        }
        Operation::FetchAndAdd { remote, add } => {
            begin(Opcode::FetchAndAdd);
            packet.atomic = Some(AtomicEth {
                address: remote.address(),
                rkey: remote.rkey(),
                swap_or_add: add,
                compare: 0,
            });
        }
        Operation::CompareAndSwap {
            remote,
            compare,
            swap,
        } => {
            begin(Opcode::CompareAndSwap);
            packet.atomic = Some(AtomicEth {
                address: remote.address(),
                rkey: remote.rkey(),
                swap_or_add: swap,
                compare,
            });
        }
    }
    packet.bth.solicited = is_last && request.flags.contains(PostFlags::SOLICITED);
    packet.bth.ack_request = is_last || number % ACK_EVERY == ACK_EVERY.wrapping_sub(1);
    if !request.operation.is_atomic() {
        let bytes = left.min(settings.mtu_bytes);
        match &request.inline {
            Some(inline) => {
                let part = inline.get(offset..offset.saturating_add(bytes));
                packet.payload.extend_from_slice(part.unwrap_or_default());
            }
            None => request.slots.copy_out(offset, bytes, &mut packet.payload),
        }
    }
    1
}
