//! Sends. Short messages are copied into the link, longer ones are transfers. Each send uses up a receive that the peer has announced
//! (Clear).

use doorbell::link::{LinkId, TransferOptions, TransferRefusal};

use super::comm::{SendRequest, SendState, Side, Stage};
use super::memories::place;
use super::relaying::Part;
use super::state::{Moving, MovingOf, State};
use super::{Context, Said, push, usable};
use crate::abi::NcclResult;
use crate::device::MESSAGE_BYTES_MAX;
use crate::failure::Failure;
use crate::frame::{Frame, HEADER_BYTES, Target, write_eager};
use crate::log;
use crate::opaque::{Kind, Opaque};
use crate::places::Key;
use crate::settings::TRANSFERS_MAX;

/// Bytes to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing {
    pub(crate) address: usize,
    pub(crate) bytes: usize,
    /// [`Key::NONE`] if there are no bytes.
    pub(crate) memory: Key,
    pub(crate) tag: i32,
}

/// The slot of a request, and its serial number.
pub(crate) type Slot = (u8, u32);

/// Result of an attempt to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    /// The request is in this slot.
    Moving(Slot),
    /// The peer has no receive for the bytes, the comm has no free slot, or it is not open yet.
    NoReceive,
    /// There is no room now.
    Later,
}

/// Route of a send: from a request of a comm to a receive of the peer.
struct Way {
    link: LinkId,
    comm: Key,
    /// The receive on the peer's comm.
    target: Target,
    /// Number of bytes that the receive has room for.
    room: u64,
    slot: Slot,
}

impl Context {
    /// Sends bytes on a comm, and returns the request: [`Opaque::NONE`] if the caller must try again. If the peer has announced no receive for
    /// them yet, links are polled first.
    #[inline]
    pub(crate) fn send(&mut self, comm: Opaque, outgoing: Outgoing) -> Result<Opaque, Failure> {
        let Outgoing {
            address,
            bytes,
            memory,
            tag,
        } = outgoing;
        match self.send_short(comm.key(), outgoing) {
            Some(Ok(())) => Ok(comm.sent(bytes)),
            Some(Err(failure)) => Err(failure),
            // Single values: a structure would be in memory before each send.
            None => self.send_any(comm, address, bytes, memory, tag),
        }
    }

    /// Copies a message into the memory of the link, for the oldest receive of the peer. Returns `None`, and has no effect, if this fast path
    /// does not apply. [`Context::send_any`] then finds the reason.
    #[inline]
    fn send_short(&mut self, key: Key, outgoing: Outgoing) -> Option<Result<(), Failure>> {
        let Self {
            links,
            state: State { comms, memories, .. },
            ..
        } = self;
        let comm = comms.get_mut(key).filter(|comm| comm.stage == Stage::Open)?;
        let (Side::Send(sends), Some(to)) = (&mut comm.side, comm.peer) else {
            return None;
        };
        let (oldest, memory) = (sends.oldest()?, memories.get(outgoing.memory)?);
        let (link, bytes) = (comm.link, outgoing.bytes);
        if !oldest.takes_copy(bytes) || oldest.tag != outgoing.tag {
            return None;
        }
        let offset = memory.offset_to_copy(outgoing.address, bytes)?;
        let target = oldest.target(to);
        let (taken, message) = links.send_in_place(link, HEADER_BYTES.checked_add(bytes)?).ok()?;
        write_eager(message, &target);
        let payload = message.get_mut(HEADER_BYTES..).unwrap_or_default();
        if let Err(why) = memory.region.copy_out(offset, payload) {
            return Some(Err(self.did_not_copy(link, why)));
        }
        comm.last_sent = Some(taken);
        sends.take_oldest();
        self.is_dirty = true;
        Some(Ok(()))
    }

    /// Handles a failed copy of bytes whose place was checked. Closes the link, so that the peer does not take the frame as the message.
    #[cold]
    fn did_not_copy(&mut self, link: LinkId, why: impl core::fmt::Display) -> Failure {
        self.shut(link);
        Failure::new(NcclResult::INTERNAL_ERROR, why)
    }

    /// Sends bytes by the method that applies: a copy, parts, or a transfer.
    #[inline(never)]
    fn send_any(
        &mut self,
        comm: Opaque,
        address: usize,
        bytes: usize,
        memory: Key,
        tag: i32,
    ) -> Result<Opaque, Failure> {
        if bytes > MESSAGE_BYTES_MAX {
            return Err(Failure::argument(format_args!(
                "isend: a size from 0 to {MESSAGE_BYTES_MAX} is possible"
            )));
        }
        let outgoing = Outgoing {
            address,
            bytes,
            memory,
            tag,
        };
        let mut sent = self.try_send(comm.key(), &outgoing)?;
        if sent == Sent::NoReceive {
            self.poll()?;
            sent = self.try_send(comm.key(), &outgoing)?;
        }
        Ok(match sent {
            Sent::Moving(slot) => comm.request(Kind::Send, slot),
            Sent::NoReceive | Sent::Later => Opaque::NONE,
        })
    }

    /// Tries to send bytes.
    #[inline(never)]
    fn try_send(&mut self, key: Key, outgoing: &Outgoing) -> Result<Sent, Failure> {
        let State {
            comms,
            memories,
            serial,
            eager_bytes_max,
            ..
        } = &mut self.state;
        let bytes = outgoing.bytes;
        let place = place(memories, outgoing.memory, (outgoing.address, bytes))?;
        let (memory, offset) = (place.memory, place.offset);
        let comm = usable(comms, key)?;
        let Side::Send(sends) = &comm.side else {
            return Err(Failure::argument("isend on a comm that receives"));
        };
        let (Some((at, found)), Some(slot), Some(to)) =
            (sends.find(outgoing.tag), sends.free_slot(), comm.peer)
        else {
            return Ok(Sent::NoReceive);
        };
        let is_of_device = place.is_of_device() || found.is_placed;
        let is_copied = bytes == 0 || bytes <= *eager_bytes_max && !is_of_device;
        *serial = serial.wrapping_add(1);
        let (link, serial) = (comm.link, *serial);
        let way = Way {
            link,
            comm: key,
            target: found.target(to),
            room: found.bytes,
            slot: (slot, serial),
        };
        let state = if u64::try_from(bytes).unwrap_or(u64::MAX) > found.bytes {
            self.send_excess(&way, bytes)
        } else if is_copied {
            self.send_copy(&way, (memory, offset, bytes))?
        } else if self.state.is_circuit(link) {
            Some(self.send_parts(Part {
                link,
                target: way.target,
                comm: key,
                slot,
                serial,
                memory,
                offset,
                bytes,
                sent: 0,
            }))
        } else {
            self.send_transfer(&way, (memory, offset, bytes))?
        };
        let (Some(state), Some(comm)) = (state, self.state.comms.get_mut(key)) else {
            return Ok(Sent::Later);
        };
        if let Side::Send(sends) = &mut comm.side {
            sends.take(at);
            sends.set(slot, SendRequest { serial, state });
        }
        Ok(Sent::Moving(way.slot))
    }

    /// Copies a message that [`Context::send_short`] does not take: it has no bytes, has several fragments, goes to a relay, or is for a
    /// receive that is not the oldest.
    fn send_copy(
        &mut self,
        way: &Way,
        (memory, offset, bytes): (Key, usize, usize),
    ) -> Result<Option<SendState>, Failure> {
        let State {
            comms,
            memories,
            circuits,
            ..
        } = &mut self.state;
        let begun = write_eager(&mut self.buffer, &way.target);
        let message = self.buffer.get_mut(..begun.saturating_add(bytes));
        let message = message.ok_or_else(|| Failure::system("there is no memory for the message"))?;
        if let (Some(of), Some(payload)) = (memories.get(memory), message.get_mut(begun..)) {
            let copied = of.region.copy_out(offset, payload);
            copied.map_err(|why| Failure::new(NcclResult::INTERNAL_ERROR, why))?;
        }
        match push(&mut self.links, circuits, way.link, message) {
            Said::Taken(taken) => {
                if let Some(comm) = comms.get_mut(way.comm) {
                    comm.last_sent = Some(taken);
                }
                self.is_dirty = true;
                Ok(Some(SendState::Done(bytes)))
            }
            Said::Later => Ok(None),
            Said::Over => Ok(Some(SendState::Failed(NcclResult::REMOTE_ERROR))),
        }
    }

    /// Handles a send that is longer than the peer's receive: the requests of both sides fail.
    fn send_excess(&mut self, way: &Way, bytes: usize) -> Option<SendState> {
        let frame = Frame::Excess {
            target: way.target,
            bytes: u64::try_from(bytes).unwrap_or(u64::MAX),
        };
        if let Said::Later = self.say(way.link, &frame) {
            return None;
        }
        self.is_dirty = true;
        log::warn(format_args!(
            "a send of {bytes} bytes, and the peer's receive has room for {}: make the receive at least as long",
            way.room
        ));
        Some(SendState::Failed(NcclResult::INVALID_USAGE))
    }

    fn send_transfer(
        &mut self,
        way: &Way,
        (memory, offset, bytes): (Key, usize, usize),
    ) -> Result<Option<SendState>, Failure> {
        let link = way.link;
        let Some(peer) = self.state.peer_mut(link) else {
            return Ok(None);
        };
        // Half of the peer's maximum, since the peer may learn later than this side that a transfer has ended.
        if peer.given >= TRANSFERS_MAX / 2 {
            return Ok(None);
        }
        let none = || Failure::argument("the memory is not registered");
        let region = &self.state.memories.get(memory).ok_or_else(none)?.region;
        let mut options = TransferOptions::default();
        options.tag = way.target.to_tag();
        let length = u64::try_from(bytes).unwrap_or(u64::MAX);
        let offered = self
            .links
            .offer(&self.node, link, (region, offset, length), &options);
        match offered {
            Ok(transfer) => {
                self.is_dirty = true;
                if let Some(peer) = self.state.peer_mut(link) {
                    peer.given = peer.given.saturating_add(1);
                }
                let (slot, serial) = way.slot;
                self.state.moving.push(Moving {
                    link,
                    transfer,
                    comm: way.comm,
                    memory,
                    of: MovingOf::Send { slot, serial, bytes },
                    is_lent: false,
                });
                Ok(Some(SendState::Moving))
            }
            Err(TransferRefusal::Full { .. }) => Ok(None),
            Err(refusal @ (TransferRefusal::Closing | TransferRefusal::Over(_))) => {
                log::warn(format_args!("a send of {bytes} bytes failed: {refusal}"));
                Ok(Some(SendState::Failed(NcclResult::REMOTE_ERROR)))
            }
            Err(refusal) => Err(Failure::system(refusal)),
        }
    }

    /// Tests a send that was copied. It is done when the message has been posted, which the next poll does.
    #[inline]
    pub(crate) fn test_sent(
        &mut self,
        bytes: usize,
        mut each: impl FnMut(usize, usize),
    ) -> Result<bool, Failure> {
        if self.is_dirty {
            self.poll()?;
        }
        each(0, bytes);
        Ok(true)
    }

    /// Tests whether a send on the comm at this place is done. If so, passes its size to `each`.
    pub(crate) fn test_send(
        &mut self,
        at: usize,
        (slot, serial): Slot,
        mut each: impl FnMut(usize, usize),
    ) -> Result<bool, Failure> {
        let mut is_polled = self.is_dirty;
        if is_polled {
            self.poll()?;
        }
        loop {
            let comm = self.state.comms.at_mut(at).ok_or_else(no_request)?;
            let is_over = matches!(comm.stage, Stage::Failed(_));
            let Side::Send(sends) = &mut comm.side else {
                return Err(no_request());
            };
            let state = sends.request(slot, serial).ok_or_else(no_request)?.state;
            if state != SendState::Moving {
                sends.free(slot);
            }
            match state {
                SendState::Done(bytes) => {
                    each(0, bytes);
                    return Ok(true);
                }
                SendState::Failed(code) => return Err(Failure::logged(code)),
                SendState::Free => return Err(no_request()),
                SendState::Moving if is_polled => {
                    if is_over {
                        self.hurry((at, slot, serial));
                    }
                    return Ok(false);
                }
                SendState::Moving => {
                    is_polled = true;
                    self.poll()?;
                }
            }
        }
    }
}

/// Returns the error for a request that does not exist.
#[cold]
pub(super) fn no_request() -> Failure {
    Failure::argument("there is no such request: it was done, or never made")
}
