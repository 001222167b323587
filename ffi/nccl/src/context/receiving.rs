//! Receives: each is cleared with the peer, and filled by a message or by a transfer.

use super::comm::{Entry, EntryState, ReceiveRequest, Side, Stage};
use super::sending::{Slot, no_request};
use super::{Context, Said, Tested};
use crate::device::MESSAGE_BYTES_MAX;
use crate::failure::Failure;
use crate::frame::{Frame, RECEIVES_MAX, Receive, RequestNumber};
use crate::places::Key;

/// Memory for one message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Incoming {
    pub(crate) address: usize,
    pub(crate) bytes: usize,
    /// `None` if it is for a message without bytes.
    pub(crate) memory: Option<Key>,
    pub(crate) tag: i32,
}

impl Context {
    /// Receives these messages; `None` if that is to be tried again.
    pub(crate) fn receive(&mut self, key: Key, incoming: &[Incoming]) -> Result<Option<Slot>, Failure> {
        let count = u8::try_from(incoming.len()).unwrap_or(u8::MAX);
        if incoming.is_empty() || incoming.len() > RECEIVES_MAX {
            return Err(Failure::argument(format_args!(
                "irecv of {count} messages: 1 to {RECEIVES_MAX} are possible"
            )));
        }
        let mut entries = [Entry {
            bytes: 0,
            memory: Key(0),
            offset: 0,
            state: EntryState::Waiting,
        }; RECEIVES_MAX];
        let mut receives = [Receive::default(); RECEIVES_MAX];
        for ((entry, receive), one) in entries.iter_mut().zip(&mut receives).zip(incoming) {
            if one.bytes > MESSAGE_BYTES_MAX {
                return Err(Failure::argument(format_args!(
                    "irecv of {} bytes: {MESSAGE_BYTES_MAX} is the limit",
                    one.bytes
                )));
            }
            if let Some((memory, offset)) = self.place(one.memory, one.address, one.bytes)? {
                (entry.memory, entry.offset) = (memory, offset);
            }
            entry.bytes = one.bytes;
            receive.tag = one.tag;
            receive.bytes = u64::try_from(one.bytes).unwrap_or(u64::MAX);
        }
        let comm = self.comm(key)?;
        if let Stage::Failed(code) = comm.stage {
            return Err(Failure::logged(code));
        }
        let Side::Receive(open) = &comm.side else {
            return Err(Failure::argument("irecv on a comm that sends"));
        };
        let (link, Some(slot), Some(to)) = (comm.link, open.free_slot(), comm.peer) else {
            return Ok(None);
        };
        let serial = self.state.next_serial();
        let frame = Frame::Clear {
            to,
            request: RequestNumber::new(slot.into(), serial),
            receives,
            count,
        };
        match self.say(link, &frame) {
            Said::Taken(_) => self.is_dirty = true,
            Said::Later => {
                self.poll()?;
                return Ok(None);
            }
            // The end of the link is reported with the next poll.
            Said::Over => {
                self.poll()?;
                return Ok(None);
            }
        }
        if let Side::Receive(open) = &mut self.comm(key)?.side {
            let request = ReceiveRequest {
                serial,
                count,
                entries,
            };
            open.set(slot, request);
        }
        Ok(Some((slot, serial)))
    }

    /// Whether all messages of a receive are there.
    pub(crate) fn test_receive(&mut self, key: Key, (slot, serial): Slot) -> Result<Tested, Failure> {
        let mut is_polled = false;
        loop {
            let comm = self.state.comms.get_mut(key).ok_or_else(no_request)?;
            let link = comm.link;
            let Side::Receive(receives) = &mut comm.side else {
                return Err(no_request());
            };
            let request = receives.request(slot, serial).ok_or_else(no_request)?;
            match request.end() {
                Some(Ok(())) => {
                    let mut sizes = [0; RECEIVES_MAX];
                    for (size, entry) in sizes.iter_mut().zip(request.entries()) {
                        if let EntryState::Done(bytes) = entry.state {
                            *size = bytes;
                        }
                    }
                    let count = request.count.into();
                    receives.free(slot);
                    return Ok(Tested::Done { count, sizes });
                }
                Some(Err(code)) => {
                    let entries = request.entries;
                    if !self.end_loans(link, entries.iter().map(|entry| entry.memory)) {
                        self.free_receive(key, slot);
                        return Err(Failure::logged(code));
                    }
                    // The peer may write there until it is told: devices see to it that it cannot.
                    if is_polled {
                        return Ok(Tested::Pending);
                    }
                }
                None if is_polled => return Ok(Tested::Pending),
                None => {}
            }
            is_polled = true;
            self.poll()?;
        }
    }

    fn free_receive(&mut self, key: Key, slot: u8) {
        if let Some(Side::Receive(receives)) = self.state.comms.get_mut(key).map(|comm| &mut comm.side) {
            receives.free(slot);
        }
    }

    /// The comm of a place, for a request that has its number.
    pub(crate) fn comm_at(&self, place: u32) -> Result<Key, Failure> {
        self.state.comms.key_at(place).ok_or_else(no_request)
    }

    /// Whether a comm can be used: neither closed, nor another side's.
    pub(crate) fn check_receives(&mut self, key: Key) -> Result<(), Failure> {
        match self.comm(key)?.side {
            Side::Receive(_) => Ok(()),
            Side::Send(_) => Err(Failure::argument(
                "a comm that sends, where one that receives is needed",
            )),
        }
    }
}
