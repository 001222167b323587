//! The requester: carries out what is posted on send queues, in order, and fails queue pairs.

use doorbell_core::provider::{AsyncEvent, Operation, PostFlags, Slot as _};
use doorbell_core::{QpState, WcStatus};

use crate::completion::Entry;
use crate::fabric::{QueuePairKey, World};
use crate::queue_pair::QueuePairState;
use crate::send::Request;
use crate::transport::{Answer, Body, Change, MESSAGE_BYTES_MAX, Message};

/// What became of a request.
enum Outcome {
    /// It ended.
    Ended(WcStatus),
    /// It stays first in its queue until something changes.
    Waits,
}

impl World {
    /// Lets happen what can, until nothing can. The order is that of the calls that caused it.
    ///
    /// It ends: each step takes a request, fails a queue pair (which happens once), or takes a
    /// queue pair off the list; and only what takes a request or fails puts one on it.
    pub(crate) fn settle(&mut self) {
        loop {
            if let Some(key) = self.failing.pop_front() {
                self.enter_error(key);
            } else if let Some(key) = self.pending.front().copied() {
                if !self.advance(key) {
                    self.pending.pop_front();
                }
            } else {
                return;
            }
        }
    }

    /// Puts the peer of a queue pair on the list: something changed that it may wait for.
    pub(crate) fn wake_peer(&mut self, key: QueuePairKey) {
        let Some(connection) = self.queue_pairs.get(&key).and_then(|qp| qp.connection) else {
            return;
        };
        let attributes = &connection.attributes;
        if let Some((device, _)) = self.route(connection.source, attributes.address.destination) {
            self.pending.push_back(QueuePairKey {
                device,
                qpn: attributes.destination_qpn,
            });
        }
    }

    /// Brings a queue pair to ERR and flushes it.
    fn enter_error(&mut self, key: QueuePairKey) {
        if let Some(qp) = self
            .queue_pairs
            .get_mut(&key)
            .filter(|qp| qp.state.may_become(QpState::Error))
        {
            qp.state = QpState::Error;
            let (context, shares) = (qp.context, qp.shared.is_some());
            self.flush(key);
            if shares {
                // What stands in the shared queue waits for the others on it (S22).
                self.raise(context, AsyncEvent::LastReceiveReached(key.qpn));
            }
            self.wake_peer(key);
        }
    }

    /// Completes everything posted undone: requests first, then receives of its own, each in
    /// order (S6).
    fn flush(&mut self, key: QueuePairKey) {
        while let Some(request) = self
            .queue_pairs
            .get_mut(&key)
            .and_then(|qp| qp.requests.pop_front())
        {
            self.end_request(key, request, WcStatus::WR_FLUSH_ERR);
        }
        while let Some(work_id) = self.take_own_receive(key) {
            let Some(queue) = self.queue_pairs.get(&key).map(|qp| qp.receive_completions) else {
                return;
            };
            self.complete(key, queue, Entry::of(work_id, WcStatus::WR_FLUSH_ERR));
        }
    }

    /// Carries out the next request of a queue pair. Says whether there was anything to do.
    fn advance(&mut self, key: QueuePairKey) -> bool {
        let Some(qp) = self.queue_pairs.get_mut(&key) else {
            return false;
        };
        if qp.state == QpState::Error {
            self.flush(key);
            return false;
        }
        if qp.state != QpState::ReadyToSend {
            return false;
        }
        let Some(mut request) = qp.requests.pop_front() else {
            return false;
        };
        match self.carry_out(key, &mut request) {
            Outcome::Ended(status) => {
                if !status.is_success() {
                    // Behind the responder's, should that be the same: its cause comes first.
                    self.failing.push_back(key);
                }
                self.end_request(key, request, status);
                true
            }
            Outcome::Waits => {
                if let Some(qp) = self.queue_pairs.get_mut(&key) {
                    qp.requests.push_front(request);
                }
                false
            }
        }
    }

    /// Keeps an ended request until it is retired, and completes it where that is due (S5).
    fn end_request(&mut self, key: QueuePairKey, request: Request, status: WcStatus) {
        let Some(qp) = self.queue_pairs.get_mut(&key) else {
            return;
        };
        let is_due = request.flags.contains(PostFlags::SIGNALED) || !status.is_success();
        let (queue, entry) = (qp.send_completions, Entry::of(request.work_id, status));
        qp.ended_requests.push_back(request);
        if is_due {
            self.complete(key, queue, entry);
        }
    }

    /// Sends a request and takes its answer.
    fn carry_out(&mut self, key: QueuePairKey, request: &mut Request) -> Outcome {
        let Some(qp) = self.queue_pairs.get(&key) else {
            return Outcome::Waits;
        };
        let Some(sending) = qp.sending else {
            return Outcome::Waits;
        };
        let message = match compose(key, qp, request) {
            Ok(message) => message,
            Err(status) => return Outcome::Ended(status),
        };
        if request.operation.writes_slots() && sending.max_rd_atomic == 0 {
            // None may be outstanding, so this one never goes (S28).
            return Outcome::Waits;
        }
        let answer = self.deliver(&message);
        if matches!(answer, Some(Answer::NotReady)) {
            self.receivers_not_ready = self.receivers_not_ready.saturating_add(1);
        }
        match answer {
            Some(Answer::Done(data)) => {
                scatter(&mut request.slots, &data);
                if let Some(qp) = self.queue_pairs.get_mut(&key) {
                    qp.send_psn = qp.send_psn.advance(message.packets);
                }
                Outcome::Ended(WcStatus::SUCCESS)
            }
            // Retried without end, which is to say until a receive is posted.
            Some(Answer::NotReady) if sending.rnr_retry == 7 => Outcome::Waits,
            Some(Answer::NotReady) => Outcome::Ended(WcStatus::RNR_RETRY_EXC_ERR),
            Some(Answer::Refused(refusal)) => Outcome::Ended(refusal.status()),
            None => Outcome::Ended(WcStatus::RETRY_EXC_ERR),
        }
    }
}

/// Makes the message of a request.
///
/// # Errors
/// The slots are of another protection domain (S8), or too long together.
fn compose(key: QueuePairKey, qp: &QueuePairState, request: &Request) -> Result<Message, WcStatus> {
    // Only a queue pair that was connected is ready to send.
    let connection = qp.connection.ok_or(WcStatus::LOC_QP_OP_ERR)?;
    let attributes = &connection.attributes;
    let foreign = request
        .slots
        .iter()
        .any(|slot| slot.len_bytes() != 0 && slot.domain() != qp.domain);
    if foreign && !request.flags.contains(PostFlags::INLINE) {
        return Err(WcStatus::LOC_PROT_ERR);
    }
    let bytes = match &request.inline {
        Some(inline) => inline.len(),
        None => request
            .slots
            .iter()
            .fold(0, |sum: usize, slot| sum.saturating_add(slot.len_bytes())),
    };
    if bytes > MESSAGE_BYTES_MAX {
        return Err(WcStatus::LOC_LEN_ERR);
    }
    let payload = || match &request.inline {
        Some(inline) => inline.to_vec(),
        None => request
            .slots
            .iter()
            .flat_map(|slot| slot.payload())
            .copied()
            .collect(),
    };
    let body = match request.operation {
        Operation::Send => Body::Send {
            payload: payload(),
            immediate: None,
        },
        Operation::SendWithImmediate(word) => Body::Send {
            payload: payload(),
            immediate: Some(word),
        },
        Operation::Write(remote) => Body::Write {
            remote,
            payload: payload(),
            immediate: None,
        },
        Operation::WriteWithImmediate(remote, word) => Body::Write {
            remote,
            payload: payload(),
            immediate: Some(word),
        },
        Operation::Read(remote) => Body::Read { remote, bytes },
        Operation::FetchAndAdd { remote, add } => Body::Atomic {
            remote,
            change: Change::Add(add),
        },
        Operation::CompareAndSwap {
            remote,
            compare,
            swap,
        } => Body::Atomic {
            remote,
            change: Change::CompareAndSwap { compare, swap },
        },
    };
    let packets = body.bytes().div_ceil(attributes.path_mtu.bytes() as usize).max(1);
    Ok(Message {
        from: connection.source,
        from_qpn: key.qpn,
        to: attributes.address.destination,
        to_qpn: attributes.destination_qpn,
        psn: qp.send_psn,
        // At most 2^31 bytes in packets of at least 2^8.
        packets: u32::try_from(packets).unwrap_or(u32::MAX),
        mtu: attributes.path_mtu,
        solicited: request.flags.contains(PostFlags::SOLICITED),
        body,
    })
}

/// Copies what came back into the slots, each up to the bytes that are meant.
fn scatter(slots: &mut [crate::Slot], data: &[u8]) {
    let mut rest = data;
    for slot in slots {
        let (now, later) = rest.split_at(slot.len_bytes().min(rest.len()));
        if let Some(place) = slot.buffer_mut().get_mut(..now.len()) {
            place.copy_from_slice(now);
        }
        rest = later;
    }
}
