//! Messages between endpoints of this node, and which of them have met.

use super::{Client, EndpointAddress, Message, Report, Router, Step, UndeliveredReason, id_of};

impl Router {
    /// Result for a submission to an absent endpoint of this node.
    pub(super) const fn no_endpoint(&self) -> Step {
        if self.is_expecting {
            Step::Stalled
        } else {
            Step::Refused(UndeliveredReason::NoEndpoint)
        }
    }

    /// Copies a message to a process of this node over a cached route, and takes it from the sender. Returns `false` if it has to be routed.
    #[inline]
    pub(super) fn move_known(&mut self, index: usize, message: &Message) -> bool {
        let known = self
            .client(index)
            .and_then(|client| client.routes.get(message.to.endpoint));
        let Some(route) = known else { return false };
        let Some((sender, receiver)) = both(&mut self.clients, index, route.index()) else {
            return false;
        };
        let is_moved = route.is_to(receiver) && receiver.take_from(sender, message.bytes);
        if is_moved {
            sender.take(true);
            self.counts.local = self.counts.local.saturating_add(1);
        }
        is_moved
    }

    /// Delivers a message to an endpoint of this node.
    pub(super) fn route_here(&mut self, index: usize, submission: &Message) -> Step {
        let Some((job, from)) = self.client(index).map(|client| (client.job, client.address)) else {
            return Step::Stalled;
        };
        // A cached route is valid as long as the same process is there. Both are already contacts of each other.
        let known = self
            .client(index)
            .and_then(|client| client.routes.get(submission.to.endpoint));
        let known = known.filter(|route| {
            let there = self.client(route.index());
            there.is_some_and(|there| route.is_to(there))
        });
        let member = || self.member(&job, submission.to.endpoint);
        let Some(to) = known.map_or_else(member, |route| Some(route.index())) else {
            return self.no_endpoint();
        };
        let Some(receiver) = self.client_mut(to) else {
            return self.no_endpoint();
        };
        if submission.bytes > receiver.layout.message_bytes() {
            return Step::Refused(UndeliveredReason::TooLong);
        }
        match receiver.has_room() {
            // Waiting entries come first, so that reports stay in order.
            Ok(true) if receiver.waiting.is_empty() => {}
            Ok(_) => return Step::Stalled,
            Err(reason) => {
                self.cut_off(to, reason);
                return Step::Refused(UndeliveredReason::ReceiverGone);
            }
        }
        if known.is_none() {
            let id = id_of(to, receiver);
            if !self.meet(index, (to, submission.to)) {
                return Step::Refused(UndeliveredReason::TooManyPeers);
            }
            if let Some(client) = self.client_mut(index) {
                client.routes.set(submission.to.endpoint, id);
            }
        }
        let mut payload = core::mem::take(&mut self.payload);
        if let Some(sender) = self.client(index) {
            sender.copy_payload(submission.bytes, &mut payload);
        }
        let report = Report::Message {
            from,
            bytes: submission.bytes,
        };
        let reported = self
            .client_mut(to)
            .map(|receiver| receiver.report(&report, &payload));
        self.payload = payload;
        match reported {
            Some(Ok(true)) => {
                self.counts.local = self.counts.local.saturating_add(1);
                Step::Done
            }
            Some(Err(reason)) => {
                self.cut_off(to, reason);
                Step::Refused(UndeliveredReason::ReceiverGone)
            }
            Some(Ok(false)) | None => Step::Stalled,
        }
    }

    /// Whether two clients of this node may exchange messages: `index`, and the client `at` this index and address. If so, each becomes a contact
    /// of the other.
    pub(super) fn meet(&mut self, index: usize, (at, address): (usize, EndpointAddress)) -> bool {
        let contacts_max = self.limits.contacts_max;
        match both(&mut self.clients, index, at) {
            // No contact of one of them remains if the limit of the other refuses.
            Some((client, other)) => {
                client.may_meet(address, contacts_max)
                    && other.meets(client.address, contacts_max)
                    && client.meets(address, contacts_max)
            }
            None => self.meets(index, address),
        }
    }

    pub(super) fn meets(&mut self, index: usize, other: EndpointAddress) -> bool {
        let contacts_max = self.limits.contacts_max;
        self.client_mut(index)
            .is_some_and(|client| client.meets(other, contacts_max))
    }
}

/// Borrows two clients. Returns `None` if they are the same, or one does not exist.
#[inline]
fn both(clients: &mut [Option<Client>], one: usize, other: usize) -> Option<(&mut Client, &mut Client)> {
    let (low, high) = clients.split_at_mut_checked(one.max(other))?;
    let (low, high) = (
        low.get_mut(one.min(other))?.as_mut()?,
        high.first_mut()?.as_mut()?,
    );
    Some(if one < other { (low, high) } else { (high, low) })
}
