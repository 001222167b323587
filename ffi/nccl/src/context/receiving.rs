//! Receives: the peer is told of each one (Clear), and a message or a transfer fills it.

use doorbell::link::PushRefusal;

use super::comm::{Entry, EntryState, Side, Stage};
use super::memories::place;
use super::sending::{Slot, no_request};
use super::state::State;
use super::{Context, did_send, may_send, usable};
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
    #[inline]
    pub(crate) fn receive(&mut self, comm: Opaque, incoming: Incoming) -> Result<Opaque, Failure> {
        // The compiler removes the loop.
        self.receive_of(comm, 1, |_| Ok(incoming))
    }

    /// Posts a receive of `count` messages, which `incoming` describes, as [`Context::receive`] does.
    #[inline(never)]
    pub(crate) fn receive_several(
        &mut self,
        comm: Opaque,
        count: u8,
        incoming: impl Fn(usize) -> Result<Incoming, Failure>,
    ) -> Result<Opaque, Failure> {
        self.receive_of(comm, count, incoming)
    }

    #[inline(always)]
    fn receive_of(
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
        let bytes = clear_bytes(count);
        if !may_send(circuits, link, bytes) {
            return self.receive_later();
        }
        match links.send_in_place(link, bytes) {
            Ok((_, message)) => {
                write_clear(message, (to, request), (count, placed), receives);
            }
            // Happens if the settings have fragments shorter than the frame.
            Err(PushRefusal::TooLong { .. }) => {
                let frame = buffer.get_mut(..bytes).unwrap_or_default();
                write_clear(frame, (to, request), (count, placed), receives);
                if links.send(link, frame).is_err() {
                    return self.receive_later();
                }
            }
            Err(_) => return self.receive_later(),
        }
        did_send(circuits, link, bytes);
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
