//! The grants of one client: ranges of its arena that other endpoints of its job may access.

use doorbell::RemoteAccess;

use crate::name::{EndpointAddress, NodeNumber};
use crate::one_sided::{Action, Asked, GRANTS_MAX, GrantPlace, WORD_BYTES};
use crate::reason::{CutReason, UndeliveredReason};

/// A grant as its owner submits it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Granted {
    pub(crate) to: EndpointAddress,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) access: RemoteAccess,
}

/// A grant in force.
#[derive(Clone, Copy, Debug)]
struct Held {
    granted: Granted,
    /// The incarnation that the grant belongs to: the first process of that name that used it. `None` until then.
    incarnation: Option<u64>,
    /// The end of the transfer by this grant was reported.
    is_ended: bool,
}

/// Table entry: a grant, if there is one, and the generation of the last grant.
#[derive(Clone, Copy, Debug, Default)]
struct GrantEntry {
    generation: u32,
    held: Option<Held>,
}

/// Grants by table index.
#[derive(Debug, Default)]
pub(crate) struct GrantTable {
    places: Vec<GrantEntry>,
}

impl GrantTable {
    /// Adds a grant on an arena of `arena_bytes`.
    ///
    /// # Errors
    /// The entry is in use; the generation is not new; the range is empty or out of bounds; or no access is allowed. A correct
    /// client checks all this before it submits a grant.
    pub(crate) fn grant(
        &mut self,
        arena_bytes: u64,
        place: GrantPlace,
        granted: Granted,
    ) -> Result<(), CutReason> {
        let end = granted.offset.checked_add(granted.bytes);
        let is_within = granted.bytes > 0 && end.is_some_and(|end| end <= arena_bytes);
        if !is_within || granted.access == RemoteAccess::NONE || place.index >= GRANTS_MAX {
            return Err(CutReason::Grant);
        }
        let index = place.index as usize;
        if index >= self.places.len() {
            self.places.resize(index.saturating_add(1), GrantEntry::default());
        }
        let there = self.places.get_mut(index).ok_or(CutReason::Grant)?;
        if there.held.is_some() || place.generation <= there.generation {
            return Err(CutReason::Grant);
        }
        *there = GrantEntry {
            generation: place.generation,
            held: Some(Held {
                granted,
                incarnation: None,
                is_ended: false,
            }),
        };
        Ok(())
    }

    /// Ends a grant. From now on it allows nothing.
    ///
    /// # Errors
    /// The last grant in this entry has another generation.
    pub(crate) fn revoke(&mut self, place: GrantPlace) -> Result<(), CutReason> {
        let there = self.places.get_mut(place.index as usize);
        let there = there.filter(|there| there.generation == place.generation);
        // A grant whose endpoint is gone has ended already, and its owner may not know so yet.
        there.map_or(Err(CutReason::Grant), |there| {
            there.held = None;
            Ok(())
        })
    }

    /// Records that the transfer of a grant has ended; its owner is going to revoke it. Returns whether this is the first such
    /// report.
    pub(crate) fn end(&mut self, place: GrantPlace) -> bool {
        let there = self.places.get_mut(place.index as usize);
        let there = there.filter(|there| there.generation == place.generation);
        let held = there.and_then(|there| there.held.as_mut());
        held.is_some_and(|held| !core::mem::replace(&mut held.is_ended, true))
    }

    /// Ends the used grants of endpoints that are gone. A grant that no process has used stays, for the first process of its name.
    pub(crate) fn end_of(&mut self, is_gone: impl Fn(EndpointAddress) -> bool) {
        for place in &mut self.places {
            let is_over = |held: &Held| held.incarnation.is_some() && is_gone(held.granted.to);
            if place.held.as_ref().is_some_and(is_over) {
                place.held = None;
            }
        }
    }

    /// Validates an operation from an endpoint. Returns its offset in the owner's arena.
    ///
    /// # Errors
    /// No grant allows the operation.
    pub(crate) fn check(
        &mut self,
        asked: &Asked,
        from: EndpointAddress,
        incarnation: u64,
    ) -> Result<usize, UndeliveredReason> {
        let there = self.places.get_mut(asked.place.index as usize);
        let held = there
            .filter(|there| there.generation == asked.place.generation)
            .and_then(|there| there.held.as_mut())
            .filter(|held| held.granted.to == from)
            .filter(|held| held.incarnation.is_none_or(|first| first == incarnation))
            .ok_or(UndeliveredReason::NoGrant)?;
        held.incarnation = Some(incarnation);
        let granted = &held.granted;
        let is_allowed = match asked.action {
            // A WRITE of no bytes and an end only report a number: every grant allows that.
            Action::Write { .. } => granted.access.write || asked.bytes == 0,
            Action::End(_) => true,
            Action::Read => granted.access.read,
            Action::Add(_) | Action::Swap { .. } => granted.access.atomic,
        };
        if !is_allowed {
            return Err(UndeliveredReason::NoRight);
        }
        let end = asked.offset.checked_add(asked.bytes.into());
        if end.is_none_or(|end| end > granted.bytes) {
            return Err(UndeliveredReason::OutOfGrant);
        }
        // Both terms are at most the size of an arena, so that the sum does not overflow.
        let place = granted.offset.saturating_add(asked.offset);
        if asked.action.is_atomic() && place & u64::from(WORD_BYTES.wrapping_sub(1)) != 0 {
            return Err(UndeliveredReason::Unaligned);
        }
        usize::try_from(place).map_err(|_| UndeliveredReason::OutOfGrant)
    }
}

/// Whether an endpoint belongs to a node.
pub(crate) fn is_of(node: NodeNumber) -> impl Fn(EndpointAddress) -> bool {
    move |endpoint| endpoint.node == node
}

#[cfg(test)]
mod tests {
    use doorbell::RemoteAccess;

    use super::{GrantTable, Granted, is_of};
    use crate::name::{EndpointAddress, NodeNumber};
    use crate::one_sided::tests::ACTIONS;
    use crate::one_sided::{Action, Asked, GRANTS_MAX, GrantPlace};
    use crate::reason::{CutReason, UndeliveredReason};

    const TO: EndpointAddress = EndpointAddress {
        node: NodeNumber(1),
        endpoint: 2,
    };

    fn place(index: u32, generation: u32) -> GrantPlace {
        GrantPlace { index, generation }
    }

    fn granted(offset: u64, bytes: u64, access: RemoteAccess) -> Granted {
        Granted {
            to: TO,
            offset,
            bytes,
            access,
        }
    }

    fn asked(action: Action, offset: u64, bytes: u32) -> Asked {
        Asked {
            action,
            place: place(0, 1),
            offset,
            bytes,
        }
    }

    #[test]
    fn a_write_of_no_bytes_reports_its_number_by_every_grant_and_others_need_the_right() {
        let mut grants = GrantTable::default();
        grants
            .grant(4096, place(0, 1), granted(0, 8, RemoteAccess::READ))
            .unwrap();
        let write = Action::Write { immediate: Some(7) };
        assert_eq!(grants.check(&asked(write, 0, 0), TO, 1), Ok(0));
        let refused = Err(UndeliveredReason::NoRight);
        assert_eq!(grants.check(&asked(write, 0, 1), TO, 1), refused);
    }

    #[test]
    fn a_grant_is_within_the_arena_at_a_free_place_and_of_a_new_generation() {
        for (offset, bytes, is_right) in [
            (0, 4096, true),
            (4095, 1, true),
            (4096, 0, false),
            (0, 0, false),
            (0, 4097, false),
            (4096, 1, false),
            (u64::MAX, 1, false),
            (1, u64::MAX, false),
        ] {
            let mut grants = GrantTable::default();
            let done = grants.grant(4096, place(0, 1), granted(offset, bytes, RemoteAccess::READ));
            assert_eq!(done.is_ok(), is_right, "{offset} {bytes}");
        }
        let mut grants = GrantTable::default();
        let mut grant = |place, access| grants.grant(4096, place, granted(0, 8, access));
        assert_eq!(grant(place(0, 1), RemoteAccess::NONE), Err(CutReason::Grant));
        assert_eq!(
            grant(place(GRANTS_MAX, 1), RemoteAccess::READ),
            Err(CutReason::Grant)
        );
        assert_eq!(grant(place(0, 0), RemoteAccess::READ), Err(CutReason::Grant));
        assert_eq!(grant(place(GRANTS_MAX - 1, 1), RemoteAccess::READ), Ok(()));
        assert_eq!(
            grant(place(GRANTS_MAX - 1, 2), RemoteAccess::READ),
            Err(CutReason::Grant)
        );
        assert_eq!(grants.revoke(place(GRANTS_MAX - 1, 2)), Err(CutReason::Grant));
        assert_eq!(grants.revoke(place(GRANTS_MAX - 1, 1)), Ok(()));
        let mut grant = |place| grants.grant(4096, place, granted(0, 8, RemoteAccess::READ));
        assert_eq!(grant(place(GRANTS_MAX - 1, 1)), Err(CutReason::Grant));
        assert_eq!(grant(place(GRANTS_MAX - 1, 2)), Ok(()));
    }

    #[test]
    fn an_operation_needs_its_right_and_a_range_within_the_grant() {
        for action in ACTIONS.into_iter().filter(|action| action.takes(8)) {
            for (write, read, atomic) in [(true, false, false), (false, true, false), (false, false, true)] {
                let mut grants = GrantTable::default();
                let access = RemoteAccess { write, read, atomic };
                grants.grant(4096, place(0, 1), granted(8, 64, access)).unwrap();
                let is_allowed = match action {
                    Action::Write { .. } => write,
                    Action::Read => read,
                    _ => atomic,
                };
                let mut check = |offset, bytes| grants.check(&asked(action, offset, bytes), TO, 1);
                if !is_allowed {
                    assert_eq!(check(0, 8), Err(UndeliveredReason::NoRight));
                    continue;
                }
                assert_eq!(check(0, 8), Ok(8));
                assert_eq!(check(56, 8), Ok(64));
                let out = Err(UndeliveredReason::OutOfGrant);
                assert_eq!(
                    (check(57, 8), check(u64::MAX, 8), check(u64::MAX - 7, 8)),
                    (out, out, out)
                );
                if action.is_atomic() {
                    assert_eq!(check(4, 8), Err(UndeliveredReason::Unaligned));
                } else {
                    assert_eq!((check(0, 64), check(64, 0), check(0, 65)), (Ok(8), Ok(72), out));
                }
            }
        }
    }

    #[test]
    fn a_grant_is_for_one_process_and_for_as_long_as_it_stands() {
        let read = |index, generation| Asked {
            place: place(index, generation),
            ..asked(Action::Read, 0, 8)
        };
        let other = EndpointAddress { endpoint: 3, ..TO };
        let none = Err(UndeliveredReason::NoGrant);
        let mut grants = GrantTable::default();
        assert_eq!(grants.check(&read(0, 1), TO, 1), none);
        for index in [0, 1] {
            grants
                .grant(4096, place(index, 1), granted(0, 8, RemoteAccess::READ))
                .unwrap();
        }
        assert_eq!(grants.check(&read(0, 1), other, 1), none);
        assert_eq!(grants.check(&read(0, 0), TO, 1), none);
        assert_eq!(grants.check(&read(0, 2), TO, 1), none);
        assert_eq!(grants.check(&read(u32::MAX, 1), TO, 1), none);
        assert_eq!(grants.check(&read(0, 1), TO, 5), Ok(0));
        assert_eq!(
            grants.check(&read(0, 1), TO, 6),
            none,
            "the next process of the name"
        );
        grants.end_of(is_of(NodeNumber(0)));
        assert_eq!(grants.check(&read(0, 1), TO, 5), Ok(0));
        // The used grant ends with its node. The unused one waits for the first endpoint that uses it.
        grants.end_of(is_of(NodeNumber(1)));
        assert_eq!(grants.check(&read(0, 1), TO, 5), none);
        assert_eq!(grants.check(&read(1, 1), TO, 6), Ok(0));
        assert_eq!(grants.revoke(place(1, 1)), Ok(()));
        assert_eq!(grants.check(&read(1, 1), TO, 6), none);
    }
}
