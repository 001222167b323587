//! Sends: of short messages through the link, and of others by transfers. A send takes a receive that the peer has cleared.

use doorbell::link::{LinkId, Sequence, TransferOptions, TransferRefusal};

use super::comm::{Match, SendRequest, SendState, Side, Stage};
use super::memories::{Place, place};
use super::relaying::Part;
use super::state::{Moving, MovingOf};
use super::{Context, Said, push};
use crate::abi::NcclResult;
use crate::failure::Failure;
use crate::frame::{Frame, write_eager};
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
    #[inline]
    pub(crate) fn send(&mut self, key: Key, outgoing: &Outgoing) -> Result<Option<Slot>, Failure> {
        let bytes = outgoing.bytes;
        let place = place(&self.state.memories, outgoing.memory, (outgoing.address, bytes))?;
        let Some((link, to, slot, found)) = self.find_receive(key, outgoing.tag)? else {
            return Ok(None);
        };
        let serial = self.state.serial.wrapping_add(1);
        self.state.serial = serial;
        let mut sequence = None;
        let state = if u64::try_from(bytes).unwrap_or(u64::MAX) > found.bytes {
            self.send_excess((link, to), &found, bytes)
        } else if bytes == 0 || bytes <= self.eager_bytes_max && !(place.is_of_device || found.is_placed) {
            self.send_eager((link, to), &found, (place, bytes), &mut sequence)
        } else if self.state.is_circuit(link) {
            let Place { memory, offset, .. } = place;
            Some(self.send_parts(Part {
                link,
                target: found.target(to),
                comm: key,
                slot,
                serial,
                memory,
                offset,
                bytes,
                sent: 0,
            }))
        } else {
            self.send_transfer((key, link, to), &found, (place, bytes), (slot, serial))?
        };
        let (Some(state), Some(comm)) = (state, self.state.comms.get_mut(key)) else {
            return Ok(None);
        };
        if sequence.is_some() {
            comm.last_sent = sequence;
        }
        if let Side::Send(sends) = &mut comm.side {
            sends.take(&found);
            sends.set(slot, SendRequest { serial, state });
        }
        Ok(Some((slot, serial)))
    }

    /// A receive of this tag, a slot for the request that fills it, and the peer's number of the comm.
    #[inline]
    fn find_receive(&mut self, key: Key, tag: i32) -> Result<Option<(LinkId, Key, u8, Match)>, Failure> {
        let mut is_polled = false;
        loop {
            let comm = self.comm(key)?;
            if let Stage::Failed(code) = comm.stage {
                return Err(Failure::logged(code));
            }
            let Side::Send(sends) = &comm.side else {
                return Err(Failure::argument("isend on a comm that receives"));
            };
            if let (Some(found), Some(slot), Some(to)) = (sends.find(tag), sends.free_slot(), comm.peer) {
                return Ok(Some((comm.link, to, slot, found)));
            }
            if is_polled {
                return Ok(None);
            }
            is_polled = true;
            self.poll()?;
        }
    }

    /// The peer's receive has no room for so many bytes: both sides' requests end.
    fn send_excess(&mut self, (link, to): (LinkId, Key), found: &Match, bytes: usize) -> Option<SendState> {
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

    #[inline]
    fn send_eager(
        &mut self,
        (link, to): (LinkId, Key),
        found: &Match,
        (Place { memory, offset, .. }, bytes): (Place, usize),
        sequence: &mut Option<Sequence>,
    ) -> Option<SendState> {
        let begun = write_eager(&mut self.buffer, &found.target(to));
        let message = self.buffer.get_mut(..begun.saturating_add(bytes))?;
        if bytes > 0 {
            let region = &self.state.memories.get(memory)?.region;
            if let Err(outside) = region.copy_out(offset, message.get_mut(begun..)?) {
                log::warn(outside);
                return Some(SendState::Failed(NcclResult::INTERNAL_ERROR));
            }
        }
        match push(&mut self.links, &mut self.state.circuits, link, message) {
            Said::Taken(taken) => {
                self.is_dirty = true;
                *sequence = Some(taken);
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
        (Place { memory, offset, .. }, bytes): (Place, usize),
        (slot, serial): Slot,
    ) -> Result<Option<SendState>, Failure> {
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

    /// Whether a send of the comm in this place is done. Its size is given, if it is.
    #[inline]
    pub(crate) fn test_send(
        &mut self,
        at: usize,
        (slot, serial): Slot,
        mut each: impl FnMut(usize, usize),
    ) -> Result<bool, Failure> {
        // Messages that were taken go out with the next poll.
        let (mut is_polled, mut is_looked_at) = (!self.is_dirty, false);
        loop {
            let comm = self.state.comms.at_mut(at).ok_or_else(no_request)?;
            let is_over = matches!(comm.stage, Stage::Failed(_));
            let Side::Send(sends) = &mut comm.side else {
                return Err(no_request());
            };
            let state = sends.request(slot, serial).ok_or_else(no_request)?.state;
            let is_moving = state == SendState::Moving;
            if is_polled && !is_moving {
                sends.free(slot);
                return match state {
                    SendState::Done(bytes) => {
                        each(0, bytes);
                        Ok(true)
                    }
                    SendState::Failed(code) => Err(Failure::logged(code)),
                    SendState::Free | SendState::Moving => Err(no_request()),
                };
            }
            if is_looked_at {
                if is_over && is_moving {
                    self.hurry((at, slot, serial));
                }
                return Ok(false);
            }
            (is_polled, is_looked_at) = (true, is_moving);
            self.poll()?;
        }
    }
}

/// The error of a request that is none.
#[cold]
pub(super) fn no_request() -> Failure {
    Failure::argument("there is no such request: it was done, or never made")
}
