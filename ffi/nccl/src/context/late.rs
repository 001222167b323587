//! Failed requests that are reported only after the peer cannot access their memory any more. The peer has limited time for that, which
//! begins with the first test that finds the failure. No transfer, open or new, extends it.

use doorbell::Deadline;
use doorbell::link::{LinkId, LoanId};

use super::Context;
use super::loans::ENDED_WITHIN;
use super::state::{Moving, MovingOf};
use crate::abi::NcclResult;
use crate::frame::{RECEIVES_MAX, RequestNumber};
use crate::log;
use crate::places::{Key, Places};

/// A request: the index of its comm, its slot there, and its serial number, which is unique in the context.
pub(super) type Which = (usize, u8, u32);

/// A failed request that is not reported yet.
#[derive(Debug)]
pub(super) struct Late {
    which: Which,
    /// Time limit for its transfers that are in progress.
    until: Deadline,
    /// The loans by which the peer could access its memory when it failed, once determined.
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

    /// Handles a failed request with transfers in progress: cancels them after the time limit.
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

    /// Whether the peer can access memory of a failed request. If so, ends its loans. Later loans of the memory belong to other transfers.
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
