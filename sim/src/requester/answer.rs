//! Taking the peer's answers.

use doorbell_core::provider::Slot as _;
use doorbell_core::{Psn, WcStatus};

use super::{Cursor, Requester};
use crate::packet::opcode::Group;
use crate::packet::{Packet, Refusal, Syndrome};
use crate::time::{ack_timeout_ns, not_ready_ns};

impl Requester {
    /// Takes an answer that came in.
    pub(crate) fn on_packet(&mut self, now_ns: u64, packet: &Packet) {
        let psn = packet.bth.psn;
        let next = Psn::from_low_bits(self.next_psn);
        // One for what was never sent. An old one, below, acknowledges nothing, and is not of
        // the packet whose turn it is.
        if self.has_failed || psn.distance_from(next) >= 0 {
            return;
        }
        match packet.bth.opcode.group() {
            Group::ReadResponse => self.take_data(now_ns, packet),
            Group::AtomicAcknowledge => self.take_word(now_ns, packet),
            Group::Acknowledge => match packet.aeth.map(|aeth| aeth.syndrome) {
                Some(Syndrome::Done) => self.take_acknowledgement(now_ns, psn),
                Some(Syndrome::NotReady(code)) => self.wait(now_ns, psn, code),
                Some(Syndrome::Refused(refusal)) => self.take_refusal(now_ns, psn, refusal),
                None => (),
            },
            // Requests are the responder's.
            Group::Send | Group::Write | Group::Read | Group::Atomic | Group::Datagram => (),
        }
    }

    /// Notes that all packets up to this PSN arrived.
    fn take_acknowledgement(&mut self, now_ns: u64, psn: Psn) {
        if !self.acknowledge_before(now_ns, psn.advance(1)) {
            self.try_again_once();
        }
    }

    /// Notes that all packets before this PSN arrived. Says whether that is so: a READ or an
    /// atomic among them whose own answer did not come was lost on its way back.
    fn acknowledge_before(&mut self, now_ns: u64, end: Psn) -> bool {
        let mut is_progress = false;
        let is_whole = loop {
            if self.ended >= self.begun {
                break true;
            }
            let Some(front) = self.requests.get_mut(self.ended) else {
                break true;
            };
            let covered = end.distance_from(front.first_psn);
            // Not negative where it is more than what is done.
            let covered = u32::try_from(covered).unwrap_or(0).min(front.packets);
            if covered <= front.done {
                break true;
            }
            if front.operation.writes_slots() {
                break false;
            }
            front.done = covered;
            is_progress = true;
            if covered < front.packets {
                break true;
            }
            self.end(WcStatus::SUCCESS);
        };
        if is_progress {
            self.progress(now_ns);
        }
        is_whole
    }

    /// Notes that the peer answered something: all counts begin anew (S12, S13).
    fn progress(&mut self, now_ns: u64) {
        let Some(settings) = self.settings else {
            return;
        };
        self.retries_left = settings.sending.retry_count;
        self.not_ready_left = settings.sending.rnr_retry;
        self.went_back = false;
        let done = self.requests.get(self.ended).map_or(0, |front| front.done);
        if (self.cursor.request, self.cursor.packet) < (self.ended, done) {
            self.cursor = Cursor {
                request: self.ended,
                packet: done,
            };
        }
        let timeout_ns = ack_timeout_ns(settings.sending.timeout, &settings.quirks);
        self.silent_at_ns = self.is_waiting().then(|| now_ns.saturating_add(timeout_ns));
    }

    /// Waits until the receiver may be ready (S12).
    fn wait(&mut self, now_ns: u64, psn: Psn, code: u8) {
        if !self.acknowledge_before(now_ns, psn) {
            self.try_again_once();
            return;
        }
        let Some(settings) = self.settings.filter(|_| self.oldest() == Some(psn)) else {
            return;
        };
        if self.ready_at_ns.is_some() {
            // The wait has begun already.
            return;
        }
        if settings.sending.rnr_retry != 7 {
            let Some(left) = self.not_ready_left.checked_sub(1) else {
                self.fail(WcStatus::RNR_RETRY_EXC_ERR);
                return;
            };
            self.not_ready_left = left;
        }
        if !settings.quirks.waiting_is_silence {
            self.silent_at_ns = None;
        }
        self.ready_at_ns = Some(now_ns.saturating_add(not_ready_ns(code, &settings.quirks)));
    }

    fn take_refusal(&mut self, now_ns: u64, psn: Psn, refusal: Refusal) {
        if !self.acknowledge_before(now_ns, psn) {
            self.try_again_once();
            return;
        }
        if self.oldest() != Some(psn) {
            return;
        }
        match refusal {
            Refusal::Sequence if self.ready_at_ns.is_some() => (),
            Refusal::Sequence => self.try_again_once(),
            Refusal::InvalidRequest => self.fail(WcStatus::REM_INV_REQ_ERR),
            Refusal::Access => self.fail(WcStatus::REM_ACCESS_ERR),
            Refusal::Operation => self.fail(WcStatus::REM_OP_ERR),
        }
    }

    /// Takes the next packet of a READ, or sees that one before it is missing.
    fn take_data(&mut self, now_ns: u64, packet: &Packet) {
        if !self.acknowledge_before(now_ns, packet.bth.psn) {
            self.try_again_once();
            return;
        }
        let Some(settings) = self.settings.filter(|_| self.oldest() == Some(packet.bth.psn)) else {
            return;
        };
        let Some(front) = self.requests.get_mut(self.ended) else {
            return;
        };
        let offset = (front.done as usize).saturating_mul(settings.mtu_bytes);
        let expected = front.bytes.saturating_sub(offset).min(settings.mtu_bytes);
        let is_read = front.operation.writes_slots() && !front.operation.is_atomic();
        if !is_read || packet.payload.len() != expected {
            // Not what was asked for.
            self.fail(WcStatus::BAD_RESP_ERR);
            return;
        }
        let room = |slot: &crate::Slot| slot.len_bytes();
        // The domain of the slots was checked when it began.
        let _ = front
            .slots
            .copy_in(offset, &packet.payload, settings.domain, room);
        front.done = front.done.saturating_add(1);
        if front.done == front.packets {
            self.end(WcStatus::SUCCESS);
        }
        self.progress(now_ns);
    }

    /// Takes what an atomic found.
    fn take_word(&mut self, now_ns: u64, packet: &Packet) {
        if !self.acknowledge_before(now_ns, packet.bth.psn) {
            self.try_again_once();
            return;
        }
        let Some(settings) = self.settings.filter(|_| self.oldest() == Some(packet.bth.psn)) else {
            return;
        };
        let front = self.requests.get_mut(self.ended);
        let (Some(front), Some(before)) = (front.filter(|front| front.operation.is_atomic()), packet.before)
        else {
            self.fail(WcStatus::BAD_RESP_ERR);
            return;
        };
        let room = |slot: &crate::Slot| slot.len_bytes();
        let _ = front
            .slots
            .copy_in(0, &before.to_ne_bytes(), settings.domain, room);
        front.done = 1;
        self.end(WcStatus::SUCCESS);
        self.progress(now_ns);
    }
}
