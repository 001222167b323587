//! Memory that NCCL registers, and gives up.

use core::time::Duration;
use std::thread;

use super::Context;
use super::loans::{ENDED_WITHIN, Loan};
use super::state::Moving;
use crate::abi::NcclResult;
use crate::failure::Failure;
use crate::log;
use crate::memory::Memory;
use crate::places::{Key, Places};

/// How long devices may take to let go of memory.
const FREED_WITHIN: Duration = Duration::from_secs(20);

/// How often links are polled meanwhile: a transfer that is cancelled may hold it.
const LOOK_EVERY: Duration = Duration::from_micros(100);

impl Context {
    /// Registers a range by `register`, for a comm.
    pub(crate) fn register(
        &mut self,
        comm: Key,
        register: impl FnOnce(&doorbell::Node, &[doorbell::Worker]) -> Result<Memory, Failure>,
    ) -> Result<Key, Failure> {
        self.check_works()?;
        self.comm(comm)?;
        let memory = register(&self.node, &self.workers)?;
        let full = "the limit of registered ranges is reached: deregister some";
        let added = self.state.memories.add(memory);
        added.ok_or_else(|| Failure::system(full))
    }

    /// Whether memory of GPUs is moved here, as the device's properties say.
    pub(crate) fn check_devices_memory(&self) -> Result<(), Failure> {
        let lack = match self.relays.is_on() {
            true => "relays copy messages on hosts, so with DOORBELL_NCCL_RELAYS no memory of GPUs is moved",
            false if self.has_devices_memory => return Ok(()),
            false => "a device of this host registers no dma-buf: see `doorbell devices --verbose`",
        };
        Err(Failure::new(
            NcclResult::INVALID_USAGE,
            format_args!("{lack}; ptrSupport says so"),
        ))
    }

    /// Gives memory up, once no device has it any more. Requests that have a part of it end.
    pub(crate) fn deregister(&mut self, key: Key) -> Result<(), Failure> {
        let none = || Failure::argument("there is no such registration: it was given up, or never made");
        let memory = self.state.memories.remove(key).ok_or_else(none)?;
        let code = NcclResult::INVALID_USAGE;
        let mut under_way = self.cancel_moving(|moving| moving.memory == key, Some(code));
        let mut ended = under_way.len();
        let left = self.state.left.iter();
        under_way.extend(left.filter(|left| left.memory == key));
        ended = ended.saturating_add(self.cancel_parts(|part| part.memory == key, Some(code)));
        for (_, comm) in self.state.comms.iter_mut() {
            ended = ended.saturating_add(comm.fail_waiting_for(key, code));
        }
        if ended > 0 {
            log::warn(format_args!(
                "memory was deregistered, and {ended} requests that have a part of it end"
            ));
        }
        self.revoke(&memory.loans, &under_way);
        self.end_flushes(key);
        let watch = memory.give_up();
        let deadline = self.node.within(FREED_WITHIN);
        if let Some(why) = &self.broken {
            // All that had the memory is being destroyed. Nothing is let go of later.
            self.node.settle(deadline);
            return match watch.is_released() {
                true => Ok(()),
                false => Err(Failure::system(format_args!(
                    "{why}; it keeps memory, which must stay mapped"
                ))),
            };
        }
        while !watch.is_released() {
            if deadline.has_passed(doorbell::now()) {
                return Err(Failure::system(format_args!(
                    "a device has not let go of memory within {FREED_WITHIN:?}: it must stay mapped"
                )));
            }
            self.pass();
        }
        Ok(())
    }

    /// Lets a moment pass, in which links go on. The error of a device that cannot be polled is another call's.
    pub(super) fn pass(&mut self) {
        let _ = self.poll();
        thread::sleep(LOOK_EVERY);
    }

    /// Takes memory out of the reach of those that it is lent to, once the transfers that were under way have ended: a peer that writes to
    /// memory that is withdrawn loses a rail's connection.
    fn revoke(&mut self, loans: &[Loan], under_way: &[Moving]) {
        let until = self.node.within(ENDED_WITHIN);
        let is_open = |context: &Self| {
            let counts = |moving: &Moving| context.links.transfer_counts(moving.link, moving.transfer);
            under_way.iter().any(|moving| counts(moving).is_some())
        };
        while !loans.is_empty() && is_open(self) && !until.has_passed(doorbell::now()) {
            self.pass();
        }
        for loan in loans {
            // One that is revoked, or whose link is over, is on its way.
            let _ = self.links.revoke(&self.node, (loan.link, loan.id));
        }
    }

    /// Ends transfers of these requests, and the requests as this, if they are to be heard of. Returns the transfers, which their peers
    /// may not know of yet.
    pub(super) fn cancel_moving(
        &mut self,
        which: impl Fn(&Moving) -> bool,
        code: Option<NcclResult>,
    ) -> Vec<Moving> {
        let mut cancelled = Vec::new();
        while let Some(place) = self.state.moving.iter().position(&which) {
            let moving = self.state.moving.swap_remove(place);
            let _ = self.links.cancel(&self.node, (moving.link, moving.transfer));
            if matches!(moving.of, super::state::MovingOf::Send { .. }) {
                if let Some(peer) = self.state.peer_mut(moving.link) {
                    peer.given = peer.given.saturating_sub(1);
                }
            }
            if let Some(code) = code {
                self.end_moving(&moving, code);
            }
            cancelled.push(moving);
            self.is_dirty = true;
        }
        cancelled
    }
}

/// The memory that bytes lie in, and where.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'m> {
    /// [`Key::NONE`] if there are no bytes.
    pub(super) memory: Key,
    pub(super) offset: usize,
    /// `None` if there are no bytes.
    pub(super) of: Option<&'m Memory>,
}

impl Place<'_> {
    /// Whether devices alone reach it.
    #[inline]
    pub(super) fn is_of_device(&self) -> bool {
        self.of.is_some_and(|memory| memory.target.is_some())
    }
}

/// The place of so many bytes from an address on.
#[inline]
pub(super) fn place(
    memories: &Places<Memory, 16>,
    memory: Key,
    (address, bytes): (usize, usize),
) -> Result<Place<'_>, Failure> {
    if bytes == 0 {
        return Ok(Place {
            memory: Key::NONE,
            offset: 0,
            of: None,
        });
    }
    let of = memories.get(memory).ok_or_else(not_registered)?;
    let offset = of.offset_of(address, bytes);
    Ok(Place {
        memory,
        offset: offset.ok_or_else(|| outside(address, bytes))?,
        of: Some(of),
    })
}

#[cold]
fn not_registered() -> Failure {
    Failure::argument("the memory is not registered")
}

#[cold]
fn outside(address: usize, bytes: usize) -> Failure {
    Failure::argument(format_args!(
        "{bytes} bytes at {address:#x} do not lie within the memory that is registered"
    ))
}
