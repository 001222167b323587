//! Taking datagrams: each ends the receive whose turn it is, or is dropped without a word.

use doorbell_core::WcStatus;
use doorbell_core::grh::GRH_BYTES;
use doorbell_core::provider::{ArrivalKind, Slot as _};

use super::{Responder, Surroundings};
use crate::completion::CompletionEntry;
use crate::packet::encode::route_header;
use crate::packet::{Deth, Packet};

impl Responder {
    /// Takes a datagram that came in. Says whether the queue pair fails with it.
    ///
    /// Source: InfiniBand Architecture volume 1, section 9.8.3.2.
    pub(crate) fn on_datagram(&mut self, packet: &Packet, deth: Deth, around: &mut Surroundings<'_>) -> bool {
        let bytes = GRH_BYTES.saturating_add(packet.payload.len());
        let is_short = |room: usize| room < bytes;
        match around.receives.room_of_next() {
            None => return false,
            Some(room) if is_short(room) && !around.quirks.short_datagrams_fail => return false,
            Some(_) => self.held = around.receives.take(),
        }
        let Some(receive) = &mut self.held else {
            return false;
        };
        let room = |slot: &crate::Slot| slot.capacity_bytes();
        let failed = if is_short(receive.slots.capacity_bytes()) {
            Some(around.quirks.short_receive)
        } else {
            let header = route_header(packet);
            let slots = &mut receive.slots;
            let copied = slots
                .copy_in(0, &header, around.domain, room)
                .and_then(|()| slots.copy_in(GRH_BYTES, &packet.payload, around.domain, room));
            copied.err().map(|_| around.quirks.foreign_receive)
        };
        if let Some(status) = failed {
            self.end_held(around, |receive| CompletionEntry::of(receive.work_id, status));
            return true;
        }
        receive.seal(bytes);
        self.end_held(around, |receive| CompletionEntry {
            work_id: receive.work_id,
            status: WcStatus::SUCCESS,
            kind: ArrivalKind::Send,
            // At most the MTU and a header.
            bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
            immediate: packet.immediate,
            solicited: packet.bth.solicited,
            source_qpn: Some(deth.source_qpn),
        });
        false
    }
}
