//! The calls of an endpoint about arenas: grants of its own, and operations on those of others.

use doorbell::RemoteAccess;

use super::{Endpoint, EndpointRefusal};
use crate::descriptor::{Requested, Submission};
use crate::grants::Granted;
use crate::name::EndpointAddress;
use crate::one_sided::{
    Action, ArenaGrant, ArenaOperation, ArenaRange, Asked, OPERATION_BYTES_MAX, WORD_BYTES,
};

impl Endpoint {
    /// Grants a range of the arena to an endpoint of the job, which need not be there yet. The first process of that name that uses
    /// the grant has it. It stands before any message that is sent afterwards arrives, so send its name in one.
    ///
    /// The grant ends by [`Endpoint::revoke`], with that process, and with the daemon. Its place is free again by the first of these
    /// alone.
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

    /// Revokes a grant. [`EndpointEvent::Revoked`](super::EndpointEvent::Revoked) says that it has ended: nothing is written by it from then
    /// on.
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

    /// Takes an operation on a range that was granted, from `offset` in the grant on. Returns its number, by which
    /// [`EndpointEvent::Completed`](super::EndpointEvent::Completed) or [`EndpointEvent::Undelivered`](super::EndpointEvent::Undelivered) names it. It is
    /// carried out after all that was sent to the same endpoint before. The owner need not poll for that, unless there is an
    /// immediate, or a message before it has no room.
    ///
    /// # Errors
    /// The ring is full, or the range of this process is not within its arena.
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

    /// Offset and bytes of a range of the arena.
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
