//! The end of a run of hosts that ask: each request has ended, and all places and all memory are back.

use super::{Party, RequestsRun};
use crate::failure::{Verdict, ensure, failure};
use crate::finish::{audit, whole_again};

/// How long all of it takes at most once nothing more is begun.
const ALL_OVER_NS: u64 = 20_000_000_000;

impl RequestsRun<'_> {
    pub(super) fn finish(&mut self) -> Verdict {
        let ends = self.case.fault_ends_ns();
        let ends = ends.map_err(|error| failure("set-up", error.to_string()))?;
        let last_ns = ends.into_iter().max().unwrap_or(0);
        self.run_for(last_ns.saturating_sub(self.now_ns()))?;
        whole_again(&self.fabric)?;
        for seat in self.seats.iter_mut().flatten() {
            seat.wanted.clear();
        }
        self.until("a request has no end", |run| {
            run.seats
                .iter()
                .flatten()
                .all(|seat| seat.requests.in_flight() == 0)
        })?;
        self.until("a request is not answered", |run| {
            run.parties.iter().all(|party| party.duties.is_empty())
        })?;
        self.until("a message has not come", |run| {
            (0..run.seats.len()).all(|line| !run.is_kept(line) || run.is_all_there(line))
        })?;
        for line in 0..self.seats.len() {
            self.close(line, line % 2, 50_000_000)?;
        }
        self.until("a channel is not gone", |run| {
            run.seats.iter().flatten().all(|seat| seat.id.is_none())
        })?;
        if self.case.links.is_some() {
            self.until("a channel of a link is not gone", |run| {
                let mut parties = run.parties.iter();
                parties.all(|party| party.worker.channels().count() == 0)
            })?;
        }
        for host in 0..self.parties.len() {
            self.settle(host)?;
            self.check_home(host)?;
        }
        audit(&self.fabric)
    }

    /// Whether all that is sent over a line has to come: nobody ended it and no fault may have, or links outlast it.
    fn is_kept(&self, line: usize) -> bool {
        let is_open = self.seats[line].iter().all(|seat| !seat.is_ending());
        !self.may_fail(line) || self.case.links.is_some() && is_open && !self.is_breaking[line]
    }

    fn is_all_there(&self, line: usize) -> bool {
        let ends = &self.seats[line];
        (0..2).all(|end| ends[end].sent == ends[1 - end].came)
    }

    fn until(&mut self, what: &str, holds: impl Fn(&Self) -> bool) -> Verdict {
        let until_ns = self.now_ns() + ALL_OVER_NS;
        while !holds(self) {
            if self.now_ns() >= until_ns {
                let seats = self.seats.iter().flatten();
                let left: Vec<_> = seats
                    .map(|seat| (seat.id, seat.wanted.len(), &seat.model.waiting))
                    .collect();
                return Err(failure("liveness", format!("{what}: {left:?}")));
            }
            self.run_for(1_000_000)?;
        }
        self.run_for(2_000_000)
    }

    /// All memory of a host is home.
    fn check_home(&mut self, host: usize) -> Verdict {
        let slots = self.case.hosts[host].slots;
        let Party { worker, .. } = &mut self.parties[host];
        let leases: Vec<_> = core::iter::from_fn(|| worker.lease()).collect();
        let found = leases.len() as u32;
        leases.into_iter().for_each(|lease| worker.release(lease));
        ensure(found == slots, "conserved", || {
            format!("h{host} lends {found} of {slots} slots")
        })
    }
}
