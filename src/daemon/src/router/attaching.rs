//! Clients that attach, and what is freed when they end.

use super::{ClientId, CutReason, Ended, GoneReason, Members, Retired, Router, id_of};
use crate::client_state::Client;
use crate::frame::Job;
use crate::layout::EndpointMemory;
use crate::name::{Credentials, EndpointAddress};
use crate::packet::AttachRequest;
use crate::reason::AttachRefusal;

/// Maximum number of detached clients whose memory waits to be unmapped by another thread. Beyond it the memory is unmapped at once.
const RETIRED_MAX: usize = 64;

impl Router {
    /// Attaches a process whose memory was adopted with the [`EndpointLayout`](crate::layout::EndpointLayout) of its request.
    ///
    /// # Errors
    /// As for [`Router::admit`].
    pub fn attach(
        &mut self,
        who: Credentials,
        request: &AttachRequest,
        memory: EndpointMemory,
    ) -> Result<ClientId, AttachRefusal> {
        self.admit(who, request)?;
        self.incarnations = self.incarnations.saturating_add(1);
        let address = EndpointAddress {
            node: self.node,
            endpoint: request.endpoint,
        };
        let job = Job {
            number: request.job,
            key: request.key,
            user: who.uid,
        };
        let client = Client::new(who, job, address, self.incarnations, request.layout, memory);
        let index = match self.clients.iter().position(Option::is_none) {
            Some(index) => index,
            None => {
                let count = self.clients.len();
                if count == self.clients.capacity() {
                    // Grows by an eighth: doubling would leave half of a large table empty.
                    self.clients.reserve_exact((count / 8).max(8));
                }
                self.clients.push(None);
                count
            }
        };
        let id = id_of(index, &client);
        self.unpopulated.push_back(id);
        if let Some(place) = self.clients.get_mut(index) {
            *place = Some(client);
        }
        let members = self
            .jobs
            .entry((who.uid, request.job))
            .or_insert_with(|| Members::new(request.key, id.incarnation));
        let bytes = request.layout.bytes();
        members.bytes = members.bytes.saturating_add(bytes);
        members.by_endpoint.insert(request.endpoint, index);
        let user = self.users.entry(who.uid).or_default();
        user.clients = user.clients.saturating_add(1);
        user.bytes = user.bytes.saturating_add(bytes);
        self.counts.attached = self.counts.attached.saturating_add(1);
        Ok(id)
    }

    /// Frees all resources of a client, and reports its end to the endpoints that it exchanged messages with. Returns `None` if it is
    /// already detached.
    pub fn detach(&mut self, id: ClientId, reason: GoneReason) -> Option<Ended> {
        let client = self.client(id.index)?;
        if client.incarnation != id.incarnation {
            return None;
        }
        self.remove(id.index, reason)
    }

    /// Returns the next client that was cut off, once each. It is already detached.
    pub fn take_cut(&mut self) -> Option<(ClientId, CutReason, Ended)> {
        self.cut.pop_front()
    }

    /// Returns a detached client whose memory is large. Dropping it takes long, so another thread should do so.
    pub fn take_retired(&mut self) -> Option<Retired> {
        self.retired.pop_front()
    }

    /// Maps some pages of a new client, so that other clients are not delayed. An earlier access faults its page in.
    pub(super) fn populate(&mut self) -> bool {
        let Some(id) = self.unpopulated.pop_front() else {
            return false;
        };
        let client = self.client_mut(id.index);
        let client = client.filter(|client| client.incarnation == id.incarnation);
        if client.is_some_and(Client::populate) {
            self.unpopulated.push_back(id);
        }
        true
    }

    pub(super) fn cut_off(&mut self, index: usize, reason: CutReason) {
        let id = self.client(index).map(|client| id_of(index, client));
        if let Some((id, ended)) = id.zip(self.remove(index, GoneReason::CutOff)) {
            self.cut.push_back((id, reason, ended));
        }
    }

    fn remove(&mut self, index: usize, reason: GoneReason) -> Option<Ended> {
        let client = self.clients.get_mut(index).and_then(Option::take)?;
        let is_cut = reason == GoneReason::CutOff;
        self.counts.cut = self.counts.cut.saturating_add(is_cut.into());
        let name = (client.job.user, client.job.number);
        let members = self.jobs.get_mut(&name);
        let is_last = members.is_some_and(|members| members.end(&client));
        if is_last {
            self.jobs.remove(&name);
        }
        let ended = Ended {
            who: client.who,
            job: client.job.number,
            endpoint: client.address.endpoint,
            is_last,
        };
        for arrived in client.arrived() {
            let owners = (&mut self.users, &mut self.jobs);
            self.kept.release(owners, &client.job, (index, arrived));
        }
        if let Some(user) = self.users.get_mut(&client.who.uid) {
            user.clients = user.clients.saturating_sub(1);
            user.bytes = user.bytes.saturating_sub(client.layout.bytes());
            if user.clients == 0 {
                self.users.remove(&client.who.uid);
            }
        }
        let job = client.job;
        for other in self.clients.iter_mut().flatten().filter(|other| other.job == job) {
            other.lose(client.address, reason);
        }
        self.remove_away(&client, reason);
        let retired = Retired::new(client).filter(|_| self.retired.len() < RETIRED_MAX);
        self.retired.extend(retired);
        Some(ended)
    }
}
