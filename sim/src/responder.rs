//! The responder: what a queue pair does with a message of its peer.
//!
//! A message that it refuses fails its queue pair. Where a receive is involved that receive
//! completes in error, else an asynchronous event tells (S9).

use doorbell_core::provider::{ArrivalKind, AsyncEvent, RemoteAddress, Slot as _};
use doorbell_core::{Access, QpState, Qpn, WcStatus, WorkId};

use crate::completion::Entry;
use crate::fabric::{Id, QueuePairKey, World};
use crate::memory::{WORD_ALIGN_MASK, WORD_BYTES};
use crate::receive::Receive;
use crate::transport::{Answer, Body, Change, Message, Refusal};

/// What a queue pair looks at while it answers.
#[derive(Clone, Copy)]
struct Responder {
    key: QueuePairKey,
    context: Id,
    domain: Id,
    completions: Id,
    access: Access,
    max_dest_rd_atomic: u8,
}

/// How a refused message is told on this side.
enum Notice {
    /// By the receive that was to take it.
    Receive(WcStatus),
    /// By an event.
    Event(fn(Qpn) -> AsyncEvent),
}

impl World {
    /// Lets a queue pair answer a message that came in on a port. `None` is silence: it is not
    /// there, does not receive, or is connected to another peer or at another PSN (S14).
    pub(crate) fn respond(&mut self, key: QueuePairKey, port: u8, message: &Message) -> Option<Answer> {
        let qp = self.queue_pairs.get(&key)?;
        let connection = qp.connection.filter(|connection| {
            let attributes = &connection.attributes;
            let peer = (attributes.address.destination, attributes.destination_qpn);
            peer == (message.from, message.from_qpn) && connection.source == message.to
        })?;
        let receives = matches!(
            qp.state,
            QpState::ReadyToReceive | QpState::ReadyToSend | QpState::SendQueueDrain
        );
        if !receives || qp.port != port || qp.receive_psn != message.psn {
            return None;
        }
        let responder = Responder {
            key,
            context: qp.context,
            domain: qp.domain,
            completions: qp.receive_completions,
            access: qp.access,
            max_dest_rd_atomic: connection.attributes.max_dest_rd_atomic,
        };
        // Packets cut to another size than ours are malformed, unless there is but one and it
        // fits either way.
        let mtu = connection.attributes.path_mtu;
        let fits_in_one = message.body.bytes() <= mtu.min(message.mtu).bytes() as usize;
        let answer = if mtu == message.mtu || fits_in_one {
            self.execute(responder, message)
        } else {
            self.refuse(
                responder,
                Refusal::InvalidRequest,
                Notice::Event(AsyncEvent::QueuePairRequest),
            )
        };
        if let (Answer::Done(_), Some(qp)) = (&answer, self.queue_pairs.get_mut(&key)) {
            qp.receive_psn = message.psn.advance(message.packets);
        }
        Some(answer)
    }

    fn execute(&mut self, responder: Responder, message: &Message) -> Answer {
        match &message.body {
            Body::Send { payload, immediate } => {
                self.take_send(responder, payload, *immediate, message.solicited)
            }
            Body::Write {
                remote,
                payload,
                immediate,
            } => self.take_write(responder, *remote, payload, *immediate, message.solicited),
            Body::Read { remote, bytes } => self.give_read(responder, *remote, *bytes),
            Body::Atomic { remote, change } => self.run_atomic(responder, *remote, *change),
        }
    }

    fn take_send(
        &mut self,
        to: Responder,
        payload: &[u8],
        immediate: Option<u32>,
        solicited: bool,
    ) -> Answer {
        let Some(receive) = self.next_receive(to.key) else {
            return Answer::NotReady;
        };
        match scatter(receive, to.domain, payload) {
            Ok(()) => self.arrive(to, ArrivalKind::Send, payload.len(), immediate, solicited),
            Err((refusal, status)) => self.refuse(to, refusal, Notice::Receive(status)),
        }
    }

    fn take_write(
        &mut self,
        to: Responder,
        remote: RemoteAddress,
        payload: &[u8],
        immediate: Option<u32>,
        solicited: bool,
    ) -> Answer {
        if immediate.is_some() && self.next_receive(to.key).is_none() {
            return Answer::NotReady;
        }
        let Some(place) = self.reach_as(to, remote, payload.len(), Access::REMOTE_WRITE) else {
            let notice = match immediate {
                Some(_) => Notice::Receive(WcStatus::LOC_ACCESS_ERR),
                None => Notice::Event(AsyncEvent::QueuePairAccess),
            };
            return self.refuse(to, Refusal::Access, notice);
        };
        place.copy_from_slice(payload);
        if immediate.is_none() {
            return Answer::Done(Vec::new());
        }
        self.arrive(
            to,
            ArrivalKind::WriteWithImmediate,
            payload.len(),
            immediate,
            solicited,
        )
    }

    fn give_read(&mut self, to: Responder, remote: RemoteAddress, bytes: usize) -> Answer {
        if to.max_dest_rd_atomic == 0 {
            return self.refuse_request(to);
        }
        match self.reach_as(to, remote, bytes, Access::REMOTE_READ) {
            Some(place) => Answer::Done(place.to_vec()),
            None => self.refuse(to, Refusal::Access, Notice::Event(AsyncEvent::QueuePairAccess)),
        }
    }

    fn run_atomic(&mut self, to: Responder, remote: RemoteAddress, change: Change) -> Answer {
        if to.max_dest_rd_atomic == 0 || remote.address & WORD_ALIGN_MASK != 0 {
            return self.refuse_request(to);
        }
        let place = self.reach_as(to, remote, WORD_BYTES, Access::REMOTE_ATOMIC);
        let Some(place) = place.and_then(|place| place.first_chunk_mut::<WORD_BYTES>()) else {
            return self.refuse(to, Refusal::Access, Notice::Event(AsyncEvent::QueuePairAccess));
        };
        let before = u64::from_ne_bytes(*place);
        let after = match change {
            Change::Add(add) => before.wrapping_add(add),
            Change::CompareAndSwap { compare, swap } if before == compare => swap,
            Change::CompareAndSwap { .. } => before,
        };
        *place = after.to_ne_bytes();
        Answer::Done(before.to_ne_bytes().into())
    }

    /// The bytes a peer may reach with both the window's right and the queue pair's.
    fn reach_as(
        &mut self,
        to: Responder,
        remote: RemoteAddress,
        bytes: usize,
        right: Access,
    ) -> Option<&mut [u8]> {
        if !to.access.contains(right) {
            return None;
        }
        self.reach(
            to.key.device,
            to.domain,
            remote.rkey,
            remote.address,
            bytes,
            right,
        )
    }

    /// Completes the next receive (S17).
    fn arrive(
        &mut self,
        to: Responder,
        kind: ArrivalKind,
        bytes: usize,
        immediate: Option<u32>,
        solicited: bool,
    ) -> Answer {
        // At most the longest message, 2^31.
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        if let Some(work_id) = self.take_receive(to.key) {
            let entry = Entry {
                work_id,
                status: WcStatus::SUCCESS,
                kind,
                bytes,
                immediate,
                solicited,
            };
            self.complete(to.key, to.completions, entry);
        }
        Answer::Done(Vec::new())
    }

    fn refuse_request(&mut self, to: Responder) -> Answer {
        self.refuse(
            to,
            Refusal::InvalidRequest,
            Notice::Event(AsyncEvent::QueuePairRequest),
        )
    }

    /// Refuses a message, tells why, and fails the queue pair once the requester knows.
    fn refuse(&mut self, to: Responder, refusal: Refusal, notice: Notice) -> Answer {
        match notice {
            Notice::Event(event) => self.raise(to.context, event(to.key.qpn)),
            Notice::Receive(status) => {
                if let Some(work_id) = self.take_receive(to.key) {
                    self.complete(to.key, to.completions, Entry::of(work_id, status));
                }
            }
        }
        self.failing.push_back(to.key);
        Answer::Refused(refusal)
    }

    /// The receive the next message will be put into.
    fn next_receive(&mut self, key: QueuePairKey) -> Option<&mut Receive> {
        let qp = self.queue_pairs.get_mut(&key)?;
        match qp.shared {
            None => qp.receives.front_mut(),
            Some(id) => self.shared_receives.get_mut(&id)?.next(),
        }
    }

    /// Consumes the next receive: it ended, and waits to be retired.
    fn take_receive(&mut self, key: QueuePairKey) -> Option<WorkId> {
        match self.queue_pairs.get(&key)?.shared {
            None => self.take_own_receive(key),
            Some(id) => self.take_shared_receive(id),
        }
    }

    /// Consumes the next receive of the queue pair's own.
    pub(crate) fn take_own_receive(&mut self, key: QueuePairKey) -> Option<WorkId> {
        let qp = self.queue_pairs.get_mut(&key)?;
        let receive = qp.receives.pop_front()?;
        let work_id = receive.work_id;
        qp.ended_receives.push_back(receive);
        Some(work_id)
    }
}

/// Copies a payload into the slots of a receive.
///
/// # Errors
/// It does not fit (S10), or a slot it needs is of another protection domain (S11): why it is
/// refused, and how the receive ends.
fn scatter(receive: &mut Receive, domain: Id, payload: &[u8]) -> Result<(), (Refusal, WcStatus)> {
    let room = receive
        .slots
        .iter()
        .fold(0_usize, |sum, slot| sum.saturating_add(slot.capacity_bytes()));
    if room < payload.len() {
        return Err((Refusal::InvalidRequest, WcStatus::LOC_LEN_ERR));
    }
    let mut rest = payload;
    for slot in &mut receive.slots {
        let (now, later) = rest.split_at(slot.capacity_bytes().min(rest.len()));
        if !now.is_empty() && slot.domain() != domain {
            return Err((Refusal::Operation, WcStatus::LOC_PROT_ERR));
        }
        if let Some(place) = slot.buffer_mut().get_mut(..now.len()) {
            place.copy_from_slice(now);
        }
        rest = later;
    }
    Ok(())
}
