//! The responder of a queue pair: carries out what the peer's packets ask for, and answers.
//!
//! Like the requester it has no clock, link or lock. Its needs stand in [`Surroundings`], the tasks that it gives
//! to the world in [`Effects`]. This module decides which packet is taken, and the answer; `execute` carries
//! requests out.
//!
//! A packet is taken only in its turn. A packet ahead of its turn shows that others were lost, which the peer is
//! notified of once. A packet behind its turn came already: it is answered again, and only a READ is also done
//! again (S15). A refused packet fails the queue pair, once the refusal is on its way.
//!
//! Source: InfiniBand Architecture volume 1, sections 9.7.4 and 9.7.5.

mod datagram;
mod execute;

use std::collections::VecDeque;

use doorbell_core::provider::{AsyncEvent, ReadyToReceive, RemoteAddress};
use doorbell_core::{Access, Psn, Qpn, WcStatus};

use crate::completion::CompletionEntry;
use crate::id::Id;
use crate::packet::{Aeth, Opcode, Packet, Refusal, Syndrome};
use crate::quirks::Quirks;
use crate::receive::{Receive, Receives};
use crate::shared_receive::SharedReceiveState;
use crate::window::{Reach, Windows};
use crate::world::DeviceId;

/// Queue that the next receive comes from and ends in.
pub(crate) enum Source<'w> {
    Own(&'w mut Receives),
    Shared(&'w mut SharedReceiveState),
    /// The shared queue is gone.
    Nothing,
}

impl Source<'_> {
    fn is_empty(&self) -> bool {
        match self {
            Self::Own(receives) => receives.is_empty(),
            Self::Shared(shared) => shared.is_empty(),
            Self::Nothing => true,
        }
    }

    /// How many bytes the next one holds at most. Datagrams have receives of their own.
    fn room_of_next(&self) -> Option<usize> {
        match self {
            Self::Own(receives) => receives.room_of_next(),
            Self::Shared(_) | Self::Nothing => None,
        }
    }

    fn take(&mut self) -> Option<Receive> {
        match self {
            Self::Own(receives) => receives.take(),
            Self::Shared(shared) => shared.take(),
            Self::Nothing => None,
        }
    }

    pub(crate) fn end(&mut self, receive: Receive) {
        match self {
            Self::Own(receives) => receives.end(receive),
            Self::Shared(shared) => shared.end(receive),
            Self::Nothing => (),
        }
    }
}

/// Parts of the world that a responder needs.
pub(crate) struct Surroundings<'w> {
    pub(crate) device: DeviceId,
    pub(crate) domain: Id,
    pub(crate) access: Access,
    pub(crate) windows: &'w mut Windows,
    pub(crate) receives: Source<'w>,
    pub(crate) quirks: &'w Quirks,
}

/// Tasks that a responder leaves to the world.
#[derive(Default)]
pub(crate) struct Effects {
    /// A receive ended.
    pub(crate) ended: Option<CompletionEntry>,
    /// Event to raise about the queue pair.
    pub(crate) event: Option<fn(Qpn) -> AsyncEvent>,
    /// A message found no receive.
    pub(crate) was_not_ready: bool,
}

/// The message that packets are missing of.
#[derive(Clone, Copy, Default)]
enum Inbound {
    #[default]
    Nothing,
    /// A SEND, into the receive that is held, and how much of it came.
    Send(usize),
    /// A WRITE: where it goes on, how much is missing, and how much it is in all.
    Write {
        remote: RemoteAddress,
        left: u32,
        total: u32,
    },
}

/// An answer on its way out.
enum Response {
    Acknowledge(Psn, Syndrome),
    /// The part of a READ that is still to be sent.
    Read {
        psn: Psn,
        remote: RemoteAddress,
        left: u32,
        is_first: bool,
    },
    Word(Psn, u64),
}

/// An atomic that was done, should it be asked for again.
struct Saved {
    psn: Psn,
    before: u64,
}

/// Result of polling for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Polled {
    Nothing,
    Packet,
    /// The last: the queue pair fails now.
    LastPacket,
}

/// The responder's half of a queue pair.
#[derive(Default)]
pub(crate) struct Responder {
    settings: Option<ReadyToReceive>,
    /// The PSN of the packet whose turn it is.
    expected: u32,
    /// The peer was notified of the gap already.
    has_reported_gap: bool,
    inbound: Inbound,
    /// The receive that a message has begun to fill.
    held: Option<Receive>,
    messages: u32,
    responses: VecDeque<Response>,
    saved: VecDeque<Saved>,
    has_refused: bool,
    has_heard: bool,
    /// The message that came last, where the device may deliver it again.
    newest: Option<(CompletionEntry, Vec<u8>)>,
    effects: Effects,
}

impl Responder {
    /// Becomes ready to receive.
    pub(crate) fn set(&mut self, settings: ReadyToReceive) {
        self.expected = settings.receive_psn.to_u32();
        self.settings = Some(settings);
    }

    /// Takes what the world is to do, if there is anything.
    pub(crate) fn take_effects(&mut self) -> Option<Effects> {
        let effects = core::mem::take(&mut self.effects);
        let is_something = effects.ended.is_some() || effects.event.is_some() || effects.was_not_ready;
        is_something.then_some(effects)
    }

    /// Whether nothing came before; from now on something did.
    pub(crate) const fn hears_first(&mut self) -> bool {
        !core::mem::replace(&mut self.has_heard, true)
    }

    /// Whether a message has begun to fill a receive.
    pub(crate) const fn holds(&self) -> bool {
        self.held.is_some()
    }

    /// Takes the message that came last, where the device may deliver it again: not once another has begun to come.
    pub(crate) fn take_newest(&mut self) -> Option<(CompletionEntry, Vec<u8>)> {
        self.newest.take().filter(|_| self.held.is_none())
    }

    /// Whether an answer waits to be sent.
    pub(crate) fn has_output(&self) -> bool {
        !self.responses.is_empty()
    }

    /// Takes a request that came in.
    pub(crate) fn on_packet(&mut self, packet: &Packet, around: &mut Surroundings<'_>) {
        let Some(settings) = self.settings.filter(|_| !self.has_refused) else {
            return;
        };
        let expected = Psn::from_low_bits(self.expected);
        match packet.bth.psn.distance_from(expected) {
            0 => {
                self.has_reported_gap = false;
                self.execute(&settings, packet, around);
            }
            ahead if ahead > 0 => {
                if !self.has_reported_gap {
                    self.has_reported_gap = true;
                    self.answer(expected, Syndrome::Refused(Refusal::Sequence));
                }
            }
            _ => self.repeat(&settings, packet, around),
        }
    }

    /// Answers again what was done already (S15).
    fn repeat(&mut self, settings: &ReadyToReceive, packet: &Packet, around: &mut Surroundings<'_>) {
        let psn = packet.bth.psn;
        if let Some(reth) = packet.reth.filter(|_| packet.bth.opcode == Opcode::ReadRequest) {
            let remote = RemoteAddress::new(reth.address, reth.rkey);
            // Not allowed any more, it stays without an answer.
            if self.may_read(settings, remote, reth.bytes, around) {
                self.responses.push_back(Response::Read {
                    psn,
                    remote,
                    left: reth.bytes,
                    is_first: true,
                });
            }
        } else if packet.bth.opcode.is_atomic() {
            if let Some(saved) = self.saved.iter().find(|saved| saved.psn == psn) {
                self.responses.push_back(Response::Word(psn, saved.before));
            }
        } else if packet.bth.ack_request {
            let newest = Psn::from_low_bits(self.expected.wrapping_sub(1));
            self.answer(newest, Syndrome::Done);
        }
    }

    /// Queues an acknowledgement. One that waits still, and says less, is replaced.
    fn answer(&mut self, psn: Psn, syndrome: Syndrome) {
        match self.responses.back_mut() {
            Some(Response::Acknowledge(last, Syndrome::Done)) if syndrome == Syndrome::Done => *last = psn,
            _ => self.responses.push_back(Response::Acknowledge(psn, syndrome)),
        }
    }

    /// Refuses a request, and all that follows.
    fn refuse(&mut self, psn: Psn, refusal: Refusal) {
        self.answer(psn, Syndrome::Refused(refusal));
        self.has_refused = true;
    }

    /// Writes the next packet that goes back, if there is one.
    pub(crate) fn poll_transmit(&mut self, packet: &mut Packet, around: &mut Surroundings<'_>) -> Polled {
        let Some(settings) = self.settings else {
            return Polled::Nothing;
        };
        let qpn = settings.destination_qpn;
        let msn = self.messages & 0x00ff_ffff;
        let aeth = |syndrome| Some(Aeth { syndrome, msn });
        match self.responses.pop_front() {
            None => Polled::Nothing,
            Some(Response::Acknowledge(psn, syndrome)) => {
                packet.begin(Opcode::Acknowledge, qpn, psn);
                packet.aeth = aeth(syndrome);
                let is_final = !matches!(
                    syndrome,
                    Syndrome::Done | Syndrome::NotReady(_) | Syndrome::Refused(Refusal::Sequence)
                );
                if is_final {
                    Polled::LastPacket
                } else {
                    Polled::Packet
                }
            }
            Some(Response::Word(psn, before)) => {
                packet.begin(Opcode::AtomicAcknowledge, qpn, psn);
                packet.aeth = aeth(Syndrome::Done);
                packet.before = Some(before);
                Polled::Packet
            }
            Some(Response::Read {
                psn,
                remote,
                left,
                is_first,
            }) => {
                let bytes = left.min(settings.path_mtu.bytes());
                let Some(data) = around.reach(remote, bytes as usize, Access::REMOTE_READ) else {
                    // The window went while it was read.
                    packet.begin(Opcode::Acknowledge, qpn, psn);
                    packet.aeth = aeth(Syndrome::Refused(Refusal::Access));
                    self.effects.event = Some(AsyncEvent::QueuePairAccess);
                    self.has_refused = true;
                    self.responses.clear();
                    return Polled::LastPacket;
                };
                let left = left.saturating_sub(bytes);
                packet.begin(Opcode::read_response(is_first, left == 0), qpn, psn);
                data.with(|data| packet.payload.extend_from_slice(data));
                if is_first || left == 0 {
                    packet.aeth = aeth(Syndrome::Done);
                }
                if left > 0 {
                    self.responses.push_front(Response::Read {
                        psn: psn.advance(1),
                        remote: RemoteAddress::new(
                            remote.address().wrapping_add(u64::from(bytes)),
                            remote.rkey(),
                        ),
                        left,
                        is_first: false,
                    });
                }
                Polled::Packet
            }
        }
    }

    /// Gives up what it has begun: the queue pair has failed, or goes. Says which receive it held.
    pub(crate) fn stop(&mut self) -> Option<Receive> {
        self.responses.clear();
        self.saved.clear();
        self.inbound = Inbound::Nothing;
        self.has_refused = true;
        self.newest = None;
        self.held.take()
    }

    /// Ends the receive that is held.
    fn end_held(&mut self, around: &mut Surroundings<'_>, ended: impl FnOnce(&Receive) -> CompletionEntry) {
        if let Some(receive) = self.held.take() {
            self.effects.ended = Some(ended(&receive));
            around.receives.end(receive);
        }
    }

    /// Refuses a request, and ends the receive it took in error.
    fn refuse_with_receive(
        &mut self,
        psn: Psn,
        (refusal, status): (Refusal, WcStatus),
        around: &mut Surroundings<'_>,
    ) {
        self.end_held(around, |receive| CompletionEntry::of(receive.work_id, status));
        self.refuse(psn, refusal);
    }
}

impl Surroundings<'_> {
    /// The bytes a peer may reach with both the window's right and the queue pair's (S9).
    fn reach(&mut self, remote: RemoteAddress, bytes: usize, right: Access) -> Option<Reach> {
        if !self.access.contains(right) {
            return None;
        }
        let owner = (self.device, self.domain);
        self.windows
            .reach(owner, remote.rkey(), remote.address(), bytes, right)
    }
}
