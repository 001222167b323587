//! Loans: memory of NCCL to which peers may write in several transfers, so that a transfer need not register and withdraw memory.
//!
//! The first transfer over a link lends the whole range to the peer of the link, since NCCL uses all of it again and again. It is not
//! registered earlier: most ranges that NCCL registers are of senders or of short messages, and the number of loans of a link is limited. A
//! transfer that gets no loan registers its own part.
//!
//! A request that ends with an error is reported after the peer cannot access its memory any more. `deregMr` returns after no peer can. If
//! a comm is closed during a transfer, the loan of its memory ends.

use core::time::Duration;

use doorbell::Deadline;
use doorbell::link::{LinkId, LoanId, TransferRefusal};
use doorbell::provider::MemoryError;

use super::Context;
use super::state::{MovingOf, State};
use crate::log;
use crate::places::Key;

/// Time for which the end of a loan waits for transfers into it: if the peer writes to withdrawn memory, it loses a rail's connection.
pub(super) const ENDED_WITHIN: Duration = Duration::from_secs(2);

/// Memory that is lent to the peer of a link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loan {
    pub(super) link: LinkId,
    pub(super) id: LoanId,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Standing,
    /// No new transfer uses it. Existing transfers may end until this deadline.
    Ending(Deadline),
    /// Devices are revoking the peer's access.
    Revoked,
    /// A device refused the registration: nothing is lent, and transfers over the link register their own parts.
    Refused,
}

impl Context {
    /// The loan for a transfer over a link into this memory, if there is one or one can be made.
    pub(super) fn loan(&mut self, link: LinkId, memory: Key) -> Option<LoanId> {
        if !self.has_loans {
            return None;
        }
        let memory = self.state.memories.get_mut(memory)?;
        if let Some(loan) = memory.loans.iter().find(|loan| loan.link == link) {
            return (loan.stage == Stage::Standing).then_some(loan.id);
        }
        let region = &memory.region;
        match self.links.lend(&self.node, link, (region, 0, region.bytes())) {
            Ok(id) => {
                memory.loans.push(Loan {
                    link,
                    id,
                    stage: Stage::Standing,
                });
                Some(id)
            }
            Err(refusal) => {
                if let TransferRefusal::LoansFull { .. } = refusal {
                    self.unlent = self.unlent.saturating_add(1);
                    if self.unlent == 1 {
                        log::info(format_args!(
                            "link {link}: {refusal}; further transfers register memory for themselves"
                        ));
                    }
                }
                None
            }
        }
    }

    /// The loan of memory to the peer of a link, if the peer can access it by one.
    pub(super) fn loan_of(&self, link: LinkId, memory: Key) -> Option<LoanId> {
        let mut loans = self.state.memories.get(memory)?.loans.iter();
        let loan = loans.find(|loan| loan.link == link && loan.stage != Stage::Refused)?;
        Some(loan.id)
    }

    /// Ends a loan, now or in later polls. Returns whether the peer can still access the memory by it.
    pub(super) fn end_loan_later(&mut self, loan: (LinkId, Key, LoanId)) -> bool {
        let is_reached = self.end_loan(loan);
        if is_reached && !self.state.ending.contains(&loan) {
            self.state.ending.push(loan);
        }
        is_reached
    }

    /// Advances the loans that are ending, whose requests may not be tested any more.
    pub(super) fn go_on_ending(&mut self) {
        if self.state.ending.is_empty() && self.state.left.is_empty() {
            return;
        }
        let mut ending = core::mem::take(&mut self.state.ending);
        ending.retain(|loan| self.end_loan(*loan));
        self.state.ending.append(&mut ending);
        let Self { links, state, .. } = self;
        state
            .left
            .retain(|one| links.transfer_counts(one.link, one.transfer).is_some());
    }

    fn end_loan(&mut self, (link, key, id): (LinkId, Key, LoanId)) -> bool {
        let now = doorbell::now();
        let State {
            memories,
            moving,
            left,
            ..
        } = &mut self.state;
        let loans = memories.get_mut(key).map(|memory| &mut memory.loans);
        let Some(loan) =
            loans.and_then(|loans| loans.iter_mut().find(|loan| (loan.link, loan.id) == (link, id)))
        else {
            return false;
        };
        if loan.stage == Stage::Refused {
            return false;
        }
        if loan.stage == Stage::Standing {
            loan.stage = Stage::Ending(self.node.within(ENDED_WITHIN));
        }
        if let Stage::Ending(until) = loan.stage {
            let is_into = |of: &MovingOf| matches!(of, MovingOf::Receive { .. });
            let is_moving = moving
                .iter()
                .any(|one| one.link == link && one.memory == key && is_into(&one.of));
            let is_left = left.iter().any(|one| {
                one.link == link
                    && one.memory == key
                    && self.links.transfer_counts(link, one.transfer).is_some()
            });
            if !(is_moving || is_left) || until.has_passed(now) {
                loan.stage = Stage::Revoked;
                // A refusal is ignored: the loan has ended, and is revoked.
                let _ = self.links.revoke(&self.node, (link, loan.id));
                self.is_dirty = true;
            }
        }
        true
    }
}

impl State {
    /// Records that a loan has ended, and that a device did not deregister its memory. The memory is not lent to this link again, and
    /// `deregister` fails, since the device never lets go of it.
    pub(super) fn not_revoked(&mut self, link: LinkId, id: LoanId, error: &MemoryError) {
        log::warn(format_args!(
            "link {link}: a device keeps memory in reach of the peer: {error}"
        ));
        for (_, memory) in self.memories.iter_mut() {
            let loans = memory.loans.iter_mut();
            for loan in loans.filter(|loan| (loan.link, loan.id) == (link, id)) {
                loan.stage = Stage::Refused;
            }
        }
    }

    /// Records that a loan has ended, so that no peer can access the memory by it. A loan that a device refused is not attempted again.
    pub(super) fn revoked(&mut self, link: LinkId, id: LoanId, error: Option<&MemoryError>) {
        let is_it = |loan: &Loan| (loan.link, loan.id) == (link, id);
        for (_, memory) in self.memories.iter_mut() {
            match error {
                None => memory.loans.retain(|loan| !is_it(loan)),
                Some(error) => {
                    for loan in memory.loans.iter_mut().filter(|loan| is_it(loan)) {
                        loan.stage = Stage::Refused;
                        log::warn(format_args!(
                            "link {link}: {} bytes are not lent to the peer: {error}; transfers register their parts of them",
                            memory.region.bytes()
                        ));
                    }
                }
            }
        }
    }
}
