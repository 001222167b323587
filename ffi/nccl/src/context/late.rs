//! Requests that have failed, and of which the caller hears once the peer reaches none of their memory. The peer has a time for that, which
//! begins with the first test that finds the failure: neither transfers that it leaves open nor others that it begins put it off.

use doorbell::Deadline;
use doorbell::link::{LinkId, LoanId};

use super::Context;
use super::loans::ENDED_WITHIN;
use super::state::{Moving, MovingOf};
use crate::abi::NcclResult;
use crate::frame::{RECEIVES_MAX, RequestNumber};
use crate::log;
use crate::places::{Key, Places};

/// A request: the place of its comm, its slot there, and its serial number, which no other request of the context has.
pub(super) type Which = (usize, u8, u32);

/// See the module.
#[derive(Debug)]
pub(super) struct Late {
    which: Which,
    /// The end of the time for transfers of it that go on.
    until: Deadline,
    /// The loans by which the peer reached its memory when it failed, once that is known.
    loans: Option<[Option<LoanId>; RECEIVES_MAX]>,
}

impl Late {
    pub(super) fn is_of(&self, comm: Key) -> bool {
        self.which.0 == Places::<()>::place(comm)
    }
}

fn is_of((at, slot, serial): Which, moving: &Moving) -> bool {
    let is_here = Places::<()>::place(moving.comm) == at;
    is_here
        && match moving.of {
            MovingOf::Send { serial: of, .. } => of == serial,
            MovingOf::Receive { target, .. } => target.request == RequestNumber::new(slot.into(), serial),
        }
}

impl Context {
    fn late(&mut self, which: Which) -> &mut Late {
        let late = &mut self.state.late;
        let found = late.iter().position(|late| late.which == which);
        let at = found.unwrap_or(late.len());
        if found.is_none() {
            late.push(Late {
                which,
                until: self.node.within(ENDED_WITHIN),
                loans: None,
            });
        }
        #[expect(clippy::indexing_slicing, reason = "it was found there, or just put there")]
        &mut late[at]
    }

    /// A request has failed, and transfers of it go on: they end when its time is over.
    #[cold]
    pub(super) fn hurry(&mut self, which: Which) {
        if !self.late(which).until.has_passed(doorbell::now()) {
            return;
        }
        let left = self.cancel_moving(|moving| is_of(which, moving), Some(NcclResult::REMOTE_ERROR));
        if left.is_empty() {
            return;
        }
        let ended = left.len();
        self.state.left.extend(left);
        log::warn(format_args!(
            "a request has failed, and its peer ended {ended} transfers of it not within {ENDED_WITHIN:?}"
        ));
    }

    /// Whether the peer reaches memory of a request that has failed: then its loans end. Loans that it got later are others' transfers'.
    #[cold]
    pub(super) fn is_reached(&mut self, which: Which, link: LinkId, memories: &[Key; RECEIVES_MAX]) -> bool {
        let now = memories.map(|memory| self.loan_of(link, memory));
        let loans = *self.late(which).loans.get_or_insert(now);
        let mut is_reached = false;
        for (memory, loan) in memories.iter().zip(loans) {
            is_reached |= loan.is_some_and(|loan| self.end_loan_later((link, *memory, loan)));
        }
        let links = &self.links;
        let is_open = |one: &Moving| links.transfer_counts(one.link, one.transfer).is_some();
        let mut left = self.state.left.iter();
        is_reached |= left.any(|one| is_of(which, one) && !one.is_lent && is_open(one));
        if !is_reached {
            self.state.late.retain(|late| late.which != which);
        }
        is_reached
    }
}
