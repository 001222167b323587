//! Sending datagrams: each is one packet, and done once that is on its way.

use doorbell_core::WcStatus;

use super::Requester;
use crate::datagram::Sender;
use crate::packet::{Deth, Opcode, Packet};

impl Requester {
    /// Writes the next datagram that goes, if there is one. Datagrams that cannot go end here, and end the rest
    /// of the queue pair if they fail it.
    ///
    /// Source: InfiniBand Architecture volume 1, section 9.8.3; C10-93.1.1 for those that are too long.
    pub(crate) fn poll_datagram(&mut self, sender: &mut Sender<'_>, packet: &mut Packet) -> bool {
        while !self.has_failed {
            let Some(request) = self.requests.get(self.ended) else {
                return false;
            };
            let Some(way) = request.way else {
                self.fail(WcStatus::LOC_QP_OP_ERR);
                return false;
            };
            if request.is_foreign(sender.domain) {
                self.fail(sender.quirks.foreign_gather);
                return false;
            }
            let bytes = request.measure();
            // A datagram longer than the port's MTU ends as if it had been sent.
            let goes = bytes <= sender.mtu_bytes;
            if goes {
                packet.begin(Opcode::Datagram, way.qpn, sender.datagrams.take_psn());
                packet.flow = way.flow;
                packet.bth.solicited = request.is_solicited();
                packet.deth = Some(Deth {
                    qkey: way.qkey,
                    source_qpn: sender.qpn,
                });
                match &request.inline {
                    Some(inline) => packet.payload.extend_from_slice(inline),
                    None => request.slots.copy_out(0, bytes, &mut packet.payload),
                }
            }
            self.begun = self.begun.max(self.ended.saturating_add(1));
            self.end(WcStatus::SUCCESS);
            if goes {
                return true;
            }
        }
        false
    }
}
