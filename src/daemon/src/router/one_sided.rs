//! Operations on arenas. The daemon moves the bytes: what it checked is what it carries out, and nothing is written by a grant that
//! ended.
//!
//! Processes never map the arenas of others. A mapping cannot be taken back, and has no rights for a range of bytes.
//!
//! Between nodes, operations are frames. The owner's daemon checks and carries out each in one step. An operation of the link itself
//! would be carried out by the device. A request that a peer made before a grant is withdrawn may still be carried out afterwards, and
//! one wrong request fails the connection that all processes share.

use super::{
    Arrived, Frame, Job, NodeNumber, Outcome, Report, Requested, Router, Said, Step, UndeliveredReason,
};
use crate::one_sided::{Action, Asked};

use super::remote::PeerFault;

/// Bytes of the value in front of those of a READ.
const VALUE_BYTES: usize = size_of::<u64>();

impl Router {
    /// Carries out an operation on the arena of an endpoint of this node.
    pub(super) fn operate_here(&mut self, index: usize, requested: &Requested) -> Step {
        let contacts_max = self.limits.contacts_max;
        let asked = &requested.asked;
        let Some(client) = self.client(index) else {
            return Step::Stalled;
        };
        let (job, from, incarnation) = (client.job, client.address, client.incarnation);
        let owner = self.member(&job, requested.to.endpoint);
        let Some(at) = owner else {
            return self.no_endpoint();
        };
        let Some(owner) = self.client_mut(at) else {
            return self.no_endpoint();
        };
        let offset = match owner.grants.check(asked, from, incarnation) {
            Ok(offset) => offset,
            Err(reason) => return Step::Refused(reason),
        };
        // An end waits for nobody's room: a process that does not read holds up no taker of what it gave.
        if asked.action.waits_for_room() {
            match owner.has_room() {
                // Behind what waits: reports stay in order.
                Ok(true) if owner.waiting.is_empty() => {}
                Ok(_) => return Step::Stalled,
                Err(reason) => {
                    self.cut_off(at, reason);
                    return Step::Refused(UndeliveredReason::ReceiverGone);
                }
            }
        }
        if !owner.meets(from, contacts_max) || !self.meets(index, requested.to) {
            return Step::Refused(UndeliveredReason::TooManyPeers);
        }
        if matches!(asked.action, Action::End(_)) {
            let Some(owner) = self.client_mut(at) else {
                return self.no_endpoint();
            };
            match owner.end_transfer(asked, from, incarnation) {
                Ok(Some(report)) => owner.owe(report, None),
                Ok(None) => {}
                Err(reason) => return Step::Refused(reason),
            }
            self.complete(index, requested, 0);
            return Step::Later;
        }
        let mut payload = core::mem::take(&mut self.payload);
        self.copy_operand(index, requested, &mut payload);
        let mut value = 0;
        if let Some(owner) = self.client_mut(at) {
            value = owner.carry_out(asked, offset, &mut payload);
            // There is room, and its index was in order.
            let reported = asked.written(from).map(|report| owner.report(&report, &[]));
            debug_assert!(
                reported.is_none_or(|reported| reported == Ok(true)),
                "room was looked for"
            );
        }
        if let Some(client) = self.client_mut(index) {
            if asked.action == Action::Read {
                // Within its arena: looked at when it was read.
                let is_copied = client.copy_in(requested.own, &payload);
                debug_assert!(is_copied, "a range that was checked lies in the arena");
            }
        }
        self.payload = payload;
        self.complete(index, requested, value);
        Step::Later
    }

    /// Reports an operation of a client that was carried out on this node.
    fn complete(&mut self, index: usize, requested: &Requested, value: u64) {
        if let Some(client) = self.client_mut(index) {
            let (to, number, position) = (requested.to, requested.number, client.position());
            client.owe(Report::Completed { to, number, value }, Some(position));
        }
        self.counts.operations = self.counts.operations.saturating_add(1);
    }

    /// Sends an operation to the daemon of its owner.
    pub(super) fn operate_away(&mut self, index: usize, requested: &Requested) -> Step {
        let frame = match self.next_frame(index, requested.to, Said::Operation) {
            Ok(Some(frame)) => frame,
            Ok(None) => return Step::Stalled,
            Err(reason) => return Step::Refused(reason),
        };
        let mut operand = Vec::new();
        self.copy_operand(index, requested, &mut operand);
        self.payload.clear();
        self.payload.extend_from_slice(&requested.asked.to_bytes());
        self.payload.extend_from_slice(&operand);
        let operation = Some((requested.asked, requested.own));
        self.send_frame(index, (requested.to, requested.number), &frame, operation);
        Step::Later
    }

    /// Copies the bytes of a WRITE out of the arena of the client that asks for it.
    fn copy_operand(&self, index: usize, requested: &Requested, into: &mut Vec<u8>) {
        let asked = &requested.asked;
        if let Some(client) = self.client(index) {
            // Within its arena: looked at when it was read.
            let is_copied = client.copy_out(requested.own, asked.action.sent(asked.bytes), into);
            debug_assert!(is_copied, "a range that was checked lies in the arena");
        }
    }

    /// Answers an operation of another node.
    pub(super) fn answer_operation(&mut self, job: Job, (arrived, to): (&Arrived, u32), outcome: Outcome) {
        match outcome {
            Ok((value, bytes)) => {
                self.counts.operations = self.counts.operations.saturating_add(1);
                let mut payload = value.to_be_bytes().to_vec();
                payload.extend_from_slice(&bytes);
                self.answer(job, (arrived, to), Said::Completed, &payload);
            }
            Err(reason) => self.answer(job, (arrived, to), Said::Refused(reason), &[]),
        }
    }

    /// Takes the outcome of an operation that was carried out on another node.
    pub(super) fn take_outcome(
        &mut self,
        node: NodeNumber,
        frame: &Frame,
        payload: &[u8],
    ) -> Result<(), PeerFault> {
        let (value, bytes) = payload
            .split_first_chunk::<VALUE_BYTES>()
            .ok_or(PeerFault::Frame)?;
        let Some((client, to)) = self.sender(node, frame) else {
            return Ok(());
        };
        let fetched = |asked: &Asked| asked.action.fetched(asked.bytes) as usize;
        // An outcome that nobody awaits changes nothing.
        let Some(sent) = client.land(to, frame.number, |sent| sent.operation.is_some()) else {
            return Ok(());
        };
        let Some((_, own)) = sent.operation.filter(|(asked, _)| fetched(asked) == bytes.len()) else {
            client.owe_undelivered(to, sent, UndeliveredReason::Unknown);
            return Err(PeerFault::Frame);
        };
        // Within its arena: looked at when it was submitted.
        let is_copied = bytes.is_empty() || client.copy_in(own, bytes);
        debug_assert!(is_copied, "a range that was checked lies in the arena");
        let value = u64::from_be_bytes(*value);
        let number = sent.number;
        client.owe(Report::Completed { to, number, value }, Some(sent.position));
        Ok(())
    }
}
