//! Calls of an endpoint that concern arenas: grants of its own arena, and operations on the arenas of others.

use doorbell::RemoteAccess;

use super::{Endpoint, EndpointRefusal};
use crate::descriptor::{Requested, Submission};
use crate::grants::Granted;
use crate::name::EndpointAddress;
use crate::one_sided::{
    Action, ArenaGrant, ArenaOperation, ArenaRange, Asked, OPERATION_BYTES_MAX, WORD_BYTES,
};

impl Endpoint {
    /// Grants an endpoint of the job access to a range of the arena. The endpoint need not exist yet. The grant belongs to the first process of that
    /// name that uses it. The grant is in force before any message that is sent afterwards arrives, so its name can be sent in a message.
    ///
    /// The grant ends by [`Endpoint::revoke`], with the process that uses it, or with the daemon. Its table entry is free again only after
    /// [`Endpoint::revoke`], or with another daemon.
    ///
    /// # Errors
    /// The ring is full, the range is empty or not within the arena, `access` allows nothing, or too many grants stand.
    pub fn grant(
        &mut self,
        to: EndpointAddress,
        range: ArenaRange,
        access: RemoteAccess,
    ) -> Result<ArenaGrant, EndpointRefusal> {
        let (offset, bytes) = self.within(range)?;
        if bytes == 0 {
            return Err(self.out_of_arena());
        }
        if access == RemoteAccess::NONE {
            return Err(EndpointRefusal::NoGrant);
        }
        let place = self.given.next().ok_or(EndpointRefusal::TooManyGrants)?;
        let granted = Granted {
            to,
            offset,
            bytes,
            access,
        };
        self.submit(&Submission::Grant(place, granted))?;
        self.given.give(place);
        Ok(ArenaGrant {
            owner: self.given.owner(),
            place,
        })
    }

    /// Revokes a grant. [`EndpointEvent::Revoked`](super::EndpointEvent::Revoked) reports that it has ended: no process accesses the range by it any
    /// more.
    ///
    /// # Errors
    /// The ring is full, or the grant does not stand.
    pub fn revoke(&mut self, grant: &ArenaGrant) -> Result<(), EndpointRefusal> {
        if grant.owner != self.given.owner() || !self.given.stands(grant.place) {
            return Err(EndpointRefusal::NoGrant);
        }
        self.submit(&Submission::Revoke(grant.place))?;
        self.given.end(grant.place);
        Ok(())
    }

    /// Queues an operation on a granted range, at `offset` in the grant. Returns its number, which
    /// [`EndpointEvent::Completed`](super::EndpointEvent::Completed) or [`EndpointEvent::Undelivered`](super::EndpointEvent::Undelivered) reports.
    /// The operation is executed after everything that was sent to the same endpoint before. The owner has to poll only if the operation has an
    /// immediate, or if an earlier message has no room.
    ///
    /// # Errors
    /// The ring is full; the local range is not within the arena of this process; or the range is too long.
    pub fn request(
        &mut self,
        grant: &ArenaGrant,
        offset: u64,
        operation: &ArenaOperation,
    ) -> Result<u64, EndpointRefusal> {
        let (action, range) = match *operation {
            ArenaOperation::Write(range) => (Action::Write { immediate: None }, Some(range)),
            ArenaOperation::WriteWithImmediate(range, number) => {
                let immediate = Some(number);
                (Action::Write { immediate }, Some(range))
            }
            ArenaOperation::Read(range) => (Action::Read, Some(range)),
            ArenaOperation::FetchAndAdd(number) => (Action::Add(number), None),
            ArenaOperation::CompareAndSwap { compare, swap } => (Action::Swap { compare, swap }, None),
        };
        let (own, bytes) = match range {
            Some(range) => self.within(range)?,
            None => (0, WORD_BYTES.into()),
        };
        let bytes = u32::try_from(bytes)
            .ok()
            .filter(|bytes| *bytes <= OPERATION_BYTES_MAX)
            .ok_or_else(|| self.out_of_arena())?;
        let asked = Asked {
            action,
            place: grant.place,
            offset,
            bytes,
        };
        self.submit(&Submission::Operation(Requested {
            to: grant.owner,
            number: self.sent,
            asked,
            own,
        }))
    }

    /// Offset and length of a range of the arena.
    pub(super) fn within(&self, range: ArenaRange) -> Result<(u64, u64), EndpointRefusal> {
        let [offset, bytes] = [range.offset, range.bytes].map(|of| u64::try_from(of).ok());
        offset
            .zip(bytes)
            .filter(|(offset, bytes)| {
                let end = offset.checked_add(*bytes);
                end.is_some_and(|end| end <= self.layout.arena_bytes())
            })
            .ok_or_else(|| self.out_of_arena())
    }

    pub(super) const fn out_of_arena(&self) -> EndpointRefusal {
        EndpointRefusal::OutOfArena {
            arena_bytes: self.layout.arena_bytes(),
        }
    }
}
