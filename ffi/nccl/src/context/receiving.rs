//! Receives: the peer is told of each one (Clear), and a message or a transfer fills it.

use super::comm::{Entry, EntryState, Side, Stage};
use super::memories::place;
use super::sending::{Slot, no_request};
use super::state::State;
use super::{Context, Said, push, usable};
use crate::device::MESSAGE_BYTES_MAX;
use crate::failure::Failure;
use crate::frame::{RECEIVES_MAX, Receive, RequestNumber, clear_bytes, write_clear};
use crate::opaque::{Kind, Opaque};
use crate::places::Key;

/// Memory for one message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Incoming {
    pub(crate) address: usize,
    pub(crate) bytes: usize,
    /// [`Key::NONE`] for a message without bytes.
    pub(crate) memory: Key,
    pub(crate) tag: i32,
}

impl Context {
    /// Posts a receive of one message on a comm, and returns the request: [`Opaque::NONE`] if the caller must try again.
    #[inline(always)]
    pub(crate) fn receive(&mut self, comm: Opaque, incoming: Incoming) -> Result<Opaque, Failure> {
        let Incoming {
            address,
            bytes,
            memory,
            tag,
        } = incoming;
        match self.receive_one(comm, incoming) {
            Some(request) => Ok(request),
            // Single values: a structure would be in memory before each receive.
            None => self.receive_any(comm, address, bytes, memory, tag),
        }
    }

    /// Announces a receive of one message into memory of the host, by a frame that is written into the memory of the link. Returns `None`, and
    /// has no effect, if this fast path does not apply. [`Context::receive_any`] then finds the reason.
    #[inline(always)]
    fn receive_one(&mut self, object: Opaque, incoming: Incoming) -> Option<Opaque> {
        let Self {
            links,
            state:
                State {
                    comms,
                    memories,
                    serial,
                    circuits,
                    ..
                },
            ..
        } = self;
        let comm = comms
            .get_mut(object.key())
            .filter(|comm| comm.stage == Stage::Open)?;
        let (Side::Receive(open), Some(to)) = (&mut comm.side, comm.peer) else {
            return None;
        };
        let Incoming {
            address, bytes, tag, ..
        } = incoming;
        let offset = memories.get(incoming.memory)?.offset_to_copy(address, bytes)?;
        // The bytes are compared as one number less, so that 0 is too many.
        if bytes.wrapping_sub(1) >= MESSAGE_BYTES_MAX || !circuits.is_empty() {
            return None;
        }
        let mut free = open.free_slot()?;
        // The slot stays free until all has succeeded.
        let [first, ..] = free.entries();
        *first = Entry {
            tag,
            bytes,
            memory: incoming.memory,
            offset,
            state: EntryState::Waiting,
            is_placed: false,
        };
        let (_, message) = links.send_in_place(comm.link, clear_bytes(1)).ok()?;
        let (slot, next) = (free.slot, serial.wrapping_add(1));
        let request = RequestNumber::new(slot.into(), next);
        let receive = Receive {
            tag,
            bytes: u64::try_from(bytes).unwrap_or(u64::MAX),
        };
        write_clear(message, (to, request), (1, 0), core::iter::once(receive));
        free.set((next, 1));
        *serial = next;
        self.is_dirty = true;
        Some(object.request(Kind::Receive, (slot, next)))
    }

    /// Posts a receive of one message, whatever its memory, its length and the state of its comm.
    #[inline(never)]
    fn receive_any(
        &mut self,
        comm: Opaque,
        address: usize,
        bytes: usize,
        memory: Key,
        tag: i32,
    ) -> Result<Opaque, Failure> {
        let incoming = Incoming {
            address,
            bytes,
            memory,
            tag,
        };
        self.receive_several(comm, 1, |_| Ok(incoming))
    }

    /// Posts a receive of `count` messages, which `incoming` describes, as [`Context::receive`] does.
    pub(crate) fn receive_several(
        &mut self,
        object: Opaque,
        count: u8,
        incoming: impl Fn(usize) -> Result<Incoming, Failure>,
    ) -> Result<Opaque, Failure> {
        let Self {
            links,
            buffer,
            state:
                State {
                    comms,
                    memories,
                    serial,
                    circuits,
                    ..
                },
            ..
        } = self;
        let comm = usable(comms, object.key())?;
        let Side::Receive(open) = &mut comm.side else {
            return Err(Failure::argument("irecv on a comm that sends"));
        };
        let (link, Some(mut free), Some(to)) = (comm.link, open.free_slot(), comm.peer) else {
            return Ok(Opaque::NONE);
        };
        let slot = free.slot;
        let entries = free.entries().get_mut(..count.into()).unwrap_or_default();
        let mut placed = 0_u8;
        for (index, entry) in entries.iter_mut().enumerate() {
            let one = incoming(index)?;
            if one.bytes > MESSAGE_BYTES_MAX {
                return Err(too_long(one.bytes));
            }
            let place = place(memories, one.memory, (one.address, one.bytes))?;
            let is_placed = place.is_of_device();
            *entry = Entry {
                tag: one.tag,
                bytes: one.bytes,
                memory: place.memory,
                offset: place.offset,
                state: EntryState::Waiting,
                is_placed,
            };
            placed |= u8::from(is_placed) << index;
        }
        *serial = serial.wrapping_add(1);
        let serial = *serial;
        let request = RequestNumber::new(slot.into(), serial);
        let receives = entries.iter().map(|entry| Receive {
            tag: entry.tag,
            bytes: u64::try_from(entry.bytes).unwrap_or(u64::MAX),
        });
        let length = write_clear(buffer, (to, request), (count, placed), receives);
        let message = buffer.get(..length).unwrap_or_default();
        if !matches!(push(links, circuits, link, message), Said::Taken(_)) {
            return self.receive_later();
        }
        free.set((serial, count));
        self.is_dirty = true;
        Ok(object.request(Kind::Receive, (slot, serial)))
    }

    /// Polls, which reports the end of the link, if it has ended.
    #[cold]
    fn receive_later(&mut self) -> Result<Opaque, Failure> {
        self.poll().map(|()| Opaque::NONE)
    }

    /// Tests whether all messages of a receive on the comm at this place have arrived. If so, passes the size of
    /// each to `each`.
    #[inline]
    pub(crate) fn test_receive(
        &mut self,
        at: usize,
        (slot, serial): Slot,
        mut each: impl FnMut(usize, usize),
    ) -> Result<bool, Failure> {
        let (mut is_polled, mut is_failing) = (false, false);
        loop {
            let comm = self.state.comms.at_mut(at).ok_or_else(no_request)?;
            let Side::Receive(receives) = &mut comm.side else {
                return Err(no_request());
            };
            let request = receives.request(slot, serial).ok_or_else(no_request)?;
            match request.end() {
                Some(Ok(())) => {
                    for (index, entry) in request.entries().enumerate() {
                        if let EntryState::Done(bytes) = entry.state {
                            each(index, bytes);
                        }
                    }
                    receives.free(slot);
                    return Ok(true);
                }
                Some(Err(code)) => {
                    let (link, mut memories) = (comm.link, [Key::NONE; RECEIVES_MAX]);
                    for (memory, entry) in memories.iter_mut().zip(request.entries()) {
                        *memory = entry.memory;
                    }
                    if !self.is_reached((at, slot, serial), link, &memories) {
                        self.free_receive(at, slot);
                        return Err(Failure::logged(code));
                    }
                }
                None => is_failing = matches!(comm.stage, Stage::Failed(_)) || request.has_failed(),
            }
            if is_polled {
                if is_failing {
                    self.hurry((at, slot, serial));
                }
                return Ok(false);
            }
            is_polled = true;
            self.poll()?;
        }
    }

    fn free_receive(&mut self, at: usize, slot: u8) {
        if let Some(Side::Receive(receives)) = self.state.comms.at_mut(at).map(|comm| &mut comm.side) {
            receives.free(slot);
        }
    }

    /// Checks that a comm is not closed, and that it receives.
    pub(crate) fn check_receives(&mut self, key: Key) -> Result<(), Failure> {
        match self.comm(key)?.side {
            Side::Receive(_) => Ok(()),
            Side::Send(_) => Err(Failure::argument(
                "a comm that sends, where one that receives is needed",
            )),
        }
    }
}

#[cold]
fn too_long(bytes: usize) -> Failure {
    Failure::argument(format_args!(
        "irecv of {bytes} bytes: {MESSAGE_BYTES_MAX} is the limit"
    ))
}
