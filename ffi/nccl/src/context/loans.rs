//! Memory of NCCL's that peers may write to from one transfer to the next, so that a transfer registers and withdraws nothing.
//!
//! A range is lent to the peer of a link by its first transfer there, as a whole: NCCL moves its messages through all of it, again and
//! again. Registering it is no earlier than that, since most ranges that NCCL registers are of senders or of short messages, and a link has
//! so many loans. A transfer that gets no loan registers its part for itself.
//!
//! A request that ends with an error ends once the peer reaches none of its memory. `deregMr` returns once nobody does. A comm that is
//! closed under a transfer ends the loan of its memory.

use core::time::Duration;

use doorbell::Deadline;
use doorbell::link::{LinkId, LoanId, TransferRefusal};
use doorbell::provider::MemoryError;

use super::Context;
use super::state::{MovingOf, State};
use crate::log;
use crate::places::Key;

/// How long a loan that ends waits for transfers into it: a peer that writes to memory that is withdrawn loses a rail's connection.
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
    /// No transfer is joined with it any more; those that were end, or by this moment are ended.
    Ending(Deadline),
    /// Devices take it out of the peer's reach.
    Revoked,
    /// A device did not register it: nothing is lent, and transfers over the link register their parts.
    Refused,
}

impl Context {
    /// The loan by which a transfer over a link comes into this memory, if it gets one.
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

    /// The loan of memory to the peer of a link, if the peer reaches it by one.
    pub(super) fn loan_of(&self, link: LinkId, memory: Key) -> Option<LoanId> {
        let mut loans = self.state.memories.get(memory)?.loans.iter();
        let loan = loans.find(|loan| loan.link == link && loan.stage != Stage::Refused)?;
        Some(loan.id)
    }

    /// Ends a loan, at once or with the next polls. Says whether the peer reaches the memory by it still.
    pub(super) fn end_loan_later(&mut self, loan: (LinkId, Key, LoanId)) -> bool {
        let is_reached = self.end_loan(loan);
        if is_reached && !self.state.ending.contains(&loan) {
            self.state.ending.push(loan);
        }
        is_reached
    }

    /// Goes on with the loans that end, whose requests nobody may test any more.
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
                // One that is over is revoked already.
                let _ = self.links.revoke(&self.node, (link, loan.id));
                self.is_dirty = true;
            }
        }
        true
    }
}

impl State {
    /// A loan is over: no peer reaches its memory by it. One that a device refused is not asked for again.
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
