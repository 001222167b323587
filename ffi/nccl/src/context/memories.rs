//! Memory that NCCL registers and deregisters.

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

/// Time limit for devices to release memory.
const FREED_WITHIN: Duration = Duration::from_secs(20);

/// Interval at which links are polled meanwhile, since a cancelled transfer may hold the memory.
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

    /// Checks whether GPU memory is supported, as the device's properties report.
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

    /// Deregisters memory, and waits until no device uses it. Requests that use a part of it fail.
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
            // Everything that uses the memory is being destroyed. Nothing will be released later.
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

    /// Polls once, then sleeps briefly. Another call will report the error of a device that cannot be polled.
    pub(super) fn pass(&mut self) {
        let _ = self.poll();
        thread::sleep(LOOK_EVERY);
    }

    /// Revokes the loans of memory after the transfers in progress have ended: if a peer writes to withdrawn memory, it loses a rail's
    /// connection.
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
            // A refusal is ignored: the loan is already revoked, or its link has ended.
            let _ = self.links.revoke(&self.node, (loan.link, loan.id));
        }
    }

    /// Cancels the transfers of these requests, and fails the requests with `code` if they have to be reported. Returns the transfers, of
    /// whose end the peers may not know yet.
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

/// The memory that contains a range of bytes, and the offset in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'m> {
    /// [`Key::NONE`] if the range is empty.
    pub(super) memory: Key,
    pub(super) offset: usize,
    /// `None` if the range is empty.
    pub(super) of: Option<&'m Memory>,
}

impl Place<'_> {
    /// Whether only devices can access it.
    #[inline]
    pub(super) fn is_of_device(&self) -> bool {
        self.of.is_some_and(|memory| memory.target.is_some())
    }
}

/// The place of a range that begins at an address.
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
