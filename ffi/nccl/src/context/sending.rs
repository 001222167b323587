//! Sends: of short messages through the link, and of others by transfers. A send takes a receive that the peer has cleared.

use doorbell::link::{LinkId, TransferOptions, TransferRefusal};

use super::comm::{Match, SendRequest, SendState, Side, Stage};
use super::memories::{MemorySpan, place};
use super::relaying::Part;
use super::state::{Moving, MovingOf};
use super::{Context, Said};
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

/// The way of a send: to a receive of the peer's, for a request of a comm.
struct Way {
    link: LinkId,
    comm: Key,
    /// The peer's number of the comm.
    to: Key,
    found: Match,
    slot: Slot,
}

/// How far a send went in one try.
enum Tried {
    Sent(Slot),
    /// There is no room for it now.
    Later,
    /// The peer has no receive for it, as far as it is known, or the comm no slot.
    NoReceive,
}

impl Context {
    /// Sends bytes; `None` if that is to be tried again.
    #[inline]
    pub(crate) fn send(&mut self, key: Key, outgoing: &Outgoing) -> Result<Option<Slot>, Failure> {
        let mut is_polled = false;
        loop {
            match self.try_send(key, outgoing)? {
                Tried::Sent(slot) => return Ok(Some(slot)),
                Tried::NoReceive if !is_polled => self.poll()?,
                Tried::Later | Tried::NoReceive => return Ok(None),
            }
            is_polled = true;
        }
    }

    /// Sends a message that is copied; others go another way from here.
    #[inline]
    fn try_send(&mut self, key: Key, outgoing: &Outgoing) -> Result<Tried, Failure> {
        let (bytes, eager_bytes_max) = (outgoing.bytes, self.eager_bytes_max);
        let mut posting = self.posting(key)?;
        let (comm, outlet) = (posting.comm, &mut posting.outlet);
        let place = place(posting.memories, outgoing.memory, (outgoing.address, bytes))?;
        let Side::Send(sends) = &mut comm.side else {
            return Err(Failure::argument("isend on a comm that receives"));
        };
        let (Some(found), Some(slot), Some(to)) = (sends.find(outgoing.tag), sends.free_slot(), comm.peer)
        else {
            return Ok(Tried::NoReceive);
        };
        *posting.serial = posting.serial.wrapping_add(1);
        let serial = *posting.serial;
        let (link, request) = (comm.link, (slot, serial));
        let is_copied = bytes <= eager_bytes_max && !(place.is_of_device() || found.is_placed);
        let fits = u64::try_from(bytes).is_ok_and(|bytes| bytes <= found.bytes);
        if !fits || !is_copied && bytes > 0 {
            let MemorySpan { memory, offset, .. } = place;
            let way = Way {
                link,
                comm: key,
                to,
                found,
                slot: request,
            };
            return self.send_whole(&way, (memory, offset, bytes));
        }
        let begun = write_eager(outlet.buffer, &found.target(to));
        let length = begun.saturating_add(bytes);
        let Some(payload) = outlet.buffer.get_mut(begun..length) else {
            return Ok(Tried::Later);
        };
        let mut state = SendState::Done(bytes);
        if let Some(of) = place.of {
            if let Err(outside) = of.region.copy_out(place.offset, payload) {
                return Err(Failure::new(NcclResult::INTERNAL_ERROR, outside));
            }
        }
        match outlet.push(link, length) {
            Said::Taken(taken) => comm.last_sent = Some(taken),
            Said::Later => return Ok(Tried::Later),
            Said::Over => state = SendState::Failed(NcclResult::REMOTE_ERROR),
        }
        sends.take(&found);
        sends.set(slot, SendRequest { serial, state });
        Ok(Tried::Sent(request))
    }

    /// Sends a message that is not copied as a whole: it is too long for the receive, or goes in parts, or by a transfer.
    #[inline(never)]
    fn send_whole(
        &mut self,
        way: &Way,
        (memory, offset, bytes): (Key, usize, usize),
    ) -> Result<Tried, Failure> {
        let Way {
            link,
            comm,
            to,
            ref found,
            slot: (slot, serial),
        } = *way;
        let state = if u64::try_from(bytes).unwrap_or(u64::MAX) > found.bytes {
            self.send_excess((link, to), found, bytes)
        } else if self.state.is_circuit(link) {
            Some(self.send_parts(Part {
                link,
                target: found.target(to),
                comm,
                slot,
                serial,
                memory,
                offset,
                bytes,
                sent: 0,
            }))
        } else {
            self.send_transfer(way, (memory, offset, bytes))?
        };
        let (Some(state), Some(comm)) = (state, self.state.comms.get_mut(comm)) else {
            return Ok(Tried::Later);
        };
        if let Side::Send(sends) = &mut comm.side {
            sends.take(found);
            sends.set(slot, SendRequest { serial, state });
        }
        Ok(Tried::Sent(way.slot))
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

    fn send_transfer(
        &mut self,
        way: &Way,
        (memory, offset, bytes): (Key, usize, usize),
    ) -> Result<Option<SendState>, Failure> {
        let link = way.link;
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
        options.tag = way.found.target(way.to).to_tag();
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
