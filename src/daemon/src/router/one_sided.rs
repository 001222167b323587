//! Operations on arenas. The daemon copies the bytes, and executes exactly the operation that it validated. Nothing is accessed by a
//! grant that has ended.
//!
//! Processes never map the arenas of others: a mapping cannot be revoked, and has no access rights for a range of bytes.
//!
//! Between nodes, operations are frames. The owner's daemon validates and executes each in one step. RDMA operations are not used: the
//! device could still execute a request that a peer posted before a grant was revoked, and a single invalid request would fail the
//! connection that all processes share.

use super::{
    Arrived, Frame, Job, NodeNumber, Outcome, Report, Requested, Router, Said, Step, UndeliveredReason,
};
use crate::one_sided::{Action, Asked};

use super::remote::PeerFault;

/// Length of the fetched value, which precedes the bytes of a READ.
const VALUE_BYTES: usize = size_of::<u64>();

impl Router {
    /// Executes an operation on the arena of an endpoint of this node.
    pub(super) fn operate_here(&mut self, index: usize, requested: &Requested) -> Step {
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
        // An end never waits for room: an owner that does not read must not block the taker.
        if asked.action.waits_for_room() {
            match owner.has_room() {
                // Waiting entries come first, so that reports stay in order.
                Ok(true) if owner.waiting.is_empty() => {}
                Ok(_) => return Step::Stalled,
                Err(reason) => {
                    self.cut_off(at, reason);
                    return Step::Refused(UndeliveredReason::ReceiverGone);
                }
            }
        }
        if !self.meet(index, (at, requested.to)) {
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
            // Room was checked above, and so was the ring's index.
            let reported = asked.written(from).map(|report| owner.report(&report, &[]));
            debug_assert!(
                reported.is_none_or(|reported| reported == Ok(true)),
                "room was looked for"
            );
        }
        if let Some(client) = self.client_mut(index) {
            if asked.action == Action::Read {
                // Always in bounds: the range was checked when the submission was parsed.
                let is_copied = client.copy_in(requested.own, &payload);
                debug_assert!(is_copied, "a range that was checked lies in the arena");
            }
        }
        self.payload = payload;
        self.complete(index, requested, value);
        Step::Later
    }

    /// Reports the completion of an operation on this node.
    fn complete(&mut self, index: usize, requested: &Requested, value: u64) {
        if let Some(client) = self.client_mut(index) {
            let (to, number, position) = (requested.to, requested.number, client.position());
            client.owe(Report::Completed { to, number, value }, Some(position));
        }
        self.counts.operations = self.counts.operations.saturating_add(1);
    }

    /// Sends an operation to the daemon of the arena's owner.
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

    /// Copies the bytes of a WRITE out of the requesting client's arena.
    fn copy_operand(&self, index: usize, requested: &Requested, into: &mut Vec<u8>) {
        let asked = &requested.asked;
        if let Some(client) = self.client(index) {
            // Always in bounds: the range was checked when the submission was parsed.
            let is_copied = client.copy_out(requested.own, asked.action.sent(asked.bytes), into);
            debug_assert!(is_copied, "a range that was checked lies in the arena");
        }
    }

    /// Sends the outcome of an operation to the requesting node.
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

    /// Handles the outcome of an operation that was executed on another node.
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
        // An unexpected outcome is ignored.
        let Some(sent) = client.land(to, frame.number, |sent| sent.operation.is_some()) else {
            return Ok(());
        };
        let Some((_, own)) = sent.operation.filter(|(asked, _)| fetched(asked) == bytes.len()) else {
            client.owe_undelivered(to, sent, UndeliveredReason::Unknown);
            return Err(PeerFault::Frame);
        };
        // Always in bounds: the range was checked when it was submitted.
        let is_copied = bytes.is_empty() || client.copy_in(own, bytes);
        debug_assert!(is_copied, "a range that was checked lies in the arena");
        let value = u64::from_be_bytes(*value);
        let number = sent.number;
        client.owe(Report::Completed { to, number, value }, Some(sent.position));
        Ok(())
    }
}
