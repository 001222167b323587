//! Sends: of short messages through the link, and of others by transfers. A send takes a receive that the peer has cleared.

use doorbell::link::{LinkId, TransferOptions, TransferRefusal};

use super::comm::{Match, SendRequest, SendState, Side, Stage};
use super::state::{Moving, MovingOf};
use super::{Context, Said, Tested, said};
use crate::abi::NcclResult;
use crate::failure::Failure;
use crate::frame::{Frame, HEADER_BYTES, RECEIVES_MAX};
use crate::log;
use crate::places::Key;
use crate::settings::TRANSFERS_MAX;

/// Bytes to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing {
    pub(crate) address: usize,
    pub(crate) bytes: usize,
    /// `None` if there are no bytes.
    pub(crate) memory: Option<Key>,
    pub(crate) tag: i32,
}

/// The slot of a request, and its serial number.
pub(crate) type Slot = (u8, u32);

impl Context {
    /// Sends bytes; `None` if that is to be tried again.
    pub(crate) fn send(&mut self, key: Key, outgoing: &Outgoing) -> Result<Option<Slot>, Failure> {
        let place = self.place(outgoing.memory, outgoing.address, outgoing.bytes)?;
        let Some((link, slot, found)) = self.find_receive(key, outgoing.tag)? else {
            return Ok(None);
        };
        let Some(to) = self.comm(key)?.peer else {
            return Ok(None);
        };
        let serial = self.state.next_serial();
        let bytes = outgoing.bytes;
        let state = if u64::try_from(bytes).unwrap_or(u64::MAX) > found.bytes {
            self.send_excess((key, link, to), &found, bytes)
        } else if bytes <= self.eager_bytes_max {
            self.send_eager((key, link, to), &found, (place, bytes))
        } else {
            self.send_transfer((key, link, to), &found, (place, bytes), (slot, serial))?
        };
        let Some(state) = state else {
            return Ok(None);
        };
        if let Side::Send(sends) = &mut self.comm(key)?.side {
            sends.take(&found);
            sends.set(slot, SendRequest { serial, state });
        }
        Ok(Some((slot, serial)))
    }

    /// The memory that bytes lie in, and their offset there; `None` if there are no bytes.
    pub(super) fn place(
        &self,
        memory: Option<Key>,
        address: usize,
        bytes: usize,
    ) -> Result<Option<(Key, usize)>, Failure> {
        if bytes == 0 {
            return Ok(None);
        }
        let of = memory.and_then(|key| Some((key, self.state.memories.get(key)?)));
        let (key, of) = of.ok_or_else(|| Failure::argument("the memory is not registered"))?;
        let outside = || {
            Failure::argument(format_args!(
                "{bytes} bytes at {address:#x} do not lie within the memory that is registered"
            ))
        };
        Ok(Some((key, of.offset_of(address, bytes).ok_or_else(outside)?)))
    }

    /// A receive of this tag, and a slot for the request that fills it.
    fn find_receive(&mut self, key: Key, tag: i32) -> Result<Option<(LinkId, u8, Match)>, Failure> {
        let mut is_polled = false;
        loop {
            let comm = self.comm(key)?;
            if let Stage::Failed(code) = comm.stage {
                return Err(Failure::logged(code));
            }
            let Side::Send(sends) = &comm.side else {
                return Err(Failure::argument("isend on a comm that receives"));
            };
            if let (Some(found), Some(slot)) = (sends.find(tag), sends.free_slot()) {
                return Ok(Some((comm.link, slot, found)));
            }
            if is_polled {
                return Ok(None);
            }
            is_polled = true;
            self.poll()?;
        }
    }

    /// The peer's receive has no room for so many bytes: both sides' requests end.
    fn send_excess(
        &mut self,
        (_, link, to): (Key, LinkId, Key),
        found: &Match,
        bytes: usize,
    ) -> Option<SendState> {
        let frame = Frame::Excess {
            target: found.target(to),
            bytes: u64::try_from(bytes).unwrap_or(u64::MAX),
        };
        if let Said::Later = self.say(link, &frame) {
            return None;
        }
        self.is_dirty = true;
        log::warn(format_args!(
            "a send of {bytes} bytes, and the peer's receive has room for {}: make the receive at least as long",
            found.bytes
        ));
        Some(SendState::Failed(NcclResult::INVALID_USAGE))
    }

    fn send_eager(
        &mut self,
        (key, link, to): (Key, LinkId, Key),
        found: &Match,
        (place, bytes): (Option<(Key, usize)>, usize),
    ) -> Option<SendState> {
        let frame = Frame::Eager {
            target: found.target(to),
            payload: &[],
        };
        frame.write(&mut self.buffer);
        if let Some((memory, offset)) = place {
            self.buffer.resize(HEADER_BYTES.saturating_add(bytes), 0);
            let room = self.buffer.get_mut(HEADER_BYTES..)?;
            let region = &self.state.memories.get(memory)?.region;
            if let Err(outside) = region.copy_out(offset, room) {
                log::warn(outside);
                return Some(SendState::Failed(NcclResult::INTERNAL_ERROR));
            }
        }
        match said(self.links.send(link, &self.buffer)) {
            Said::Taken(sequence) => {
                self.is_dirty = true;
                if let Ok(comm) = self.comm(key) {
                    comm.last_sent = Some(sequence);
                }
                Some(SendState::Done(bytes))
            }
            Said::Later => None,
            Said::Over => Some(SendState::Failed(NcclResult::REMOTE_ERROR)),
        }
    }

    fn send_transfer(
        &mut self,
        (key, link, to): (Key, LinkId, Key),
        found: &Match,
        (place, bytes): (Option<(Key, usize)>, usize),
        (slot, serial): Slot,
    ) -> Result<Option<SendState>, Failure> {
        let Some((memory, offset)) = place else {
            return Ok(None);
        };
        let Some(peer) = self.state.peer_mut(link) else {
            return Ok(None);
        };
        // Half of those that the peer takes: it may hear of an end later.
        if peer.given >= TRANSFERS_MAX / 2 {
            return Ok(None);
        }
        let none = || Failure::argument("the memory is not registered");
        let region = &self.state.memories.get(memory).ok_or_else(none)?.region;
        let mut options = TransferOptions::default();
        options.tag = found.target(to).to_tag();
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
                self.state.moving.push(Moving {
                    link,
                    transfer,
                    comm: key,
                    memory,
                    of: MovingOf::Send { slot, serial, bytes },
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

    /// Whether a send is done.
    pub(crate) fn test_send(&mut self, key: Key, (slot, serial): Slot) -> Result<Tested, Failure> {
        // Messages that were taken go out with the next poll.
        let (mut is_polled, mut is_looked_at) = (!self.is_dirty, false);
        loop {
            let comm = self.state.comms.get_mut(key);
            let Some(Side::Send(sends)) = comm.map(|comm| &mut comm.side) else {
                return Err(no_request());
            };
            let request = sends.request(slot, serial).ok_or_else(no_request)?;
            let is_moving = request.state == SendState::Moving;
            if is_polled && !is_moving {
                let ended = core::mem::replace(&mut request.state, SendState::Free);
                let mut sizes = [0; RECEIVES_MAX];
                return match (ended, sizes.first_mut()) {
                    (SendState::Done(bytes), Some(size)) => {
                        *size = bytes;
                        Ok(Tested::Done { count: 1, sizes })
                    }
                    (SendState::Failed(code), _) => Err(Failure::logged(code)),
                    _ => Err(no_request()),
                };
            }
            if is_looked_at {
                return Ok(Tested::Pending);
            }
            (is_polled, is_looked_at) = (true, is_moving);
            self.poll()?;
        }
    }
}

/// The error of a request that is none.
pub(super) fn no_request() -> Failure {
    Failure::argument("there is no such request: it was done, or never made")
}
