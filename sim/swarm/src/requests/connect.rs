//! How the channels of hosts that ask come and go.

use core::time::Duration;

use doorbell::provider::Instant;
use doorbell::worker::{CloseError, CloseProgress};
use doorbell::{ChannelId, Listener};

use super::linked::Linked;
use super::model::Way;
use super::{Party, RequestsRun, worker};
use crate::case::EndingsCase;
use crate::failure::{Verdict, ensure, failure};
use crate::station::{address, channel_config};
use crate::stranger::at;

const TCP_PORT: u16 = 4000;

/// How long connecting may take, and the side that accepts a little longer.
const CONNECT_NS: u64 = 3_000_000_000;

impl RequestsRun<'_> {
    /// Connects a line that has no channel, while all hosts go on.
    pub(super) fn connect(&mut self, line: usize) -> Verdict {
        if self.seats[line].iter().any(|seat| seat.id.is_some()) {
            return Ok(());
        }
        self.connections[line] += 1;
        self.is_breaking[line] = false;
        if self.case.links.is_some() {
            return self.link(line);
        }
        let endings = EndingsCase {
            probe_after_ns: self.asking.probe_after_ns,
            is_left_to_worker: false,
            probe_timeouts_ms: [0; 2],
            is_cut: false,
        };
        let config = |end| {
            let config = channel_config(&self.case.lines[line], Some(endings), end, 0);
            config.map_err(|error| failure("set-up", error.to_string()))
        };
        let (here, there) = (config(0)?, config(1)?);
        let [from, to] = self.case.lines[line].hosts;
        let at = at(address(to, 0), TCP_PORT + line as u16);
        let Party { node, worker, .. } = &self.parties[to];
        let listener = Listener::bind(node, core::slice::from_ref(worker), at, &there);
        let Party { node, worker, .. } = &self.parties[from];
        let deadline = node.within(Duration::from_nanos(CONNECT_NS));
        let attempt = node.begin_connect_at(core::slice::from_ref(worker), at, &here, deadline);
        let (mut listener, mut attempt) = match (listener, attempt) {
            (Ok(listener), Ok(attempt)) => (listener, attempt),
            (listener, attempt) => {
                return ensure(self.excuses.may_fail(), "connect", || {
                    format!("{:?}, {:?}", listener.err(), attempt.err())
                });
            }
        };
        let (mut connected, mut accepted) = (None, None);
        let until_ns = self.now_ns() + CONNECT_NS + CONNECT_NS / 2;
        while connected.is_none() || accepted.is_none() {
            let Party {
                node, worker, nap, ..
            } = &mut self.parties[to];
            if accepted.is_none() {
                let made = listener.poll_accept(node, core::slice::from_mut(worker));
                accepted = made.transpose().map(|made| made.map(|made| made.channel));
                *nap = nap.filter(|_| accepted.is_none());
            }
            let made = accepted.as_ref().and_then(|made| made.as_ref().ok().copied());
            self.sit(line, 1, made);
            let Party {
                node, worker, nap, ..
            } = &mut self.parties[from];
            if connected.is_none() {
                let made = attempt.poll(node, core::slice::from_mut(worker));
                connected = made.map(|made| made.map(|made| made.channel));
                *nap = nap.filter(|_| connected.is_none());
            }
            let made = connected.as_ref().and_then(|made| made.as_ref().ok().copied());
            self.sit(line, 0, made);
            let now_ns = self.now_ns();
            let has_failed = [&connected, &accepted]
                .iter()
                .any(|made| matches!(made, Some(Err(_))));
            if has_failed || now_ns >= until_ns {
                break;
            }
            let next = self.fabric.next_at().map_or(u64::MAX, Instant::to_ns);
            self.run_for(next.clamp(now_ns + 1, now_ns + 1_000_000) - now_ns)?;
        }
        self.note(from, format_args!("line {line}: {connected:?}, {accepted:?}"));
        if let (Some(Ok(_)), Some(Ok(_))) = (&connected, &accepted) {
            return Ok(());
        }
        // The end that has a channel closes it.
        self.is_breaking[line] = true;
        for end in 0..2 {
            self.close(line, end, 1_000_000)?;
        }
        ensure(self.excuses.may_fail(), "connect", || {
            format!("line {line}: {connected:?}, {accepted:?}")
        })
    }

    /// An end has a channel, where it had none.
    fn sit(&mut self, line: usize, end: usize, id: Option<ChannelId>) {
        let seat = &mut self.seats[line][end];
        if seat.id.is_none() && id.is_some() {
            seat.sit(id.map(Way::Channel));
        }
    }

    /// An end begins to close its channel.
    pub(super) fn close(&mut self, line: usize, end: usize, within_ns: u64) -> Verdict {
        let seat = &mut self.seats[line][end];
        let Some(id) = seat.id.filter(|_| !seat.is_closing) else {
            return Ok(());
        };
        seat.is_closing = true;
        seat.wanted.clear();
        self.is_breaking[line] = true;
        let Party {
            worker, nap, linked, ..
        } = &mut self.parties[seat.host];
        *nap = None;
        let deadline = worker.within(Duration::from_nanos(within_ns));
        let id = match (id, linked) {
            (Way::Channel(id), _) => id,
            (Way::Link(id), Some(linked)) => {
                linked.links.close(id, deadline);
                return Ok(());
            }
            (Way::Link(_), None) => return Ok(()),
        };
        match worker.begin_close(id, deadline) {
            // The Worker itself did, and that was before this looked.
            Ok(()) | Err(CloseError::Unknown) => Ok(()),
            Err(error) => Err(failure("close", error.to_string())),
        }
    }

    /// Forgets a channel that is gone.
    pub(super) fn forget_gone(&mut self, line: usize, end: usize) {
        let seat = &mut self.seats[line][end];
        let worker = &self.parties[seat.host].worker;
        let is_gone = |id| matches!(worker.close_progress(id), CloseProgress::Closed(_));
        if seat.is_closing && seat.id.and_then(Way::channel).is_some_and(is_gone) {
            let host = seat.host;
            seat.sit(None);
            self.note(host, format_args!("line {line} end {end}: its channel is gone"));
        }
    }

    /// A host drops its Worker, with all its channels, and makes another, where its port is there.
    pub(super) fn leave(&mut self, host: usize) -> Verdict {
        let Party { node, linked, .. } = &mut self.parties[host];
        // Others listen at the port of those before.
        if linked.is_some() && self.excuses.ports {
            return Ok(());
        }
        *linked = None;
        let set_up = |error: anyhow::Error| failure("set-up", format!("{error:#}"));
        let made = match worker(self.case, host, node) {
            Ok(made) => made,
            Err(error) => return ensure(self.excuses.ports, "set-up", || error.to_string()),
        };
        let linked = self
            .case
            .links
            .map(|_| Linked::new(self.case, self.asking, host, (node, &made)));
        let linked = linked.transpose().map_err(set_up)?.map(Box::new);
        for line in 0..self.seats.len() {
            for end in 0..2 {
                let seat = &mut self.seats[line][end];
                if seat.host == host && seat.id.is_some() {
                    seat.sit(None);
                    seat.wanted.clear();
                    self.is_breaking[line] = true;
                }
            }
        }
        let party = &mut self.parties[host];
        party.duties.clear();
        party.nap = None;
        (party.worker, party.linked) = (made, linked);
        Ok(())
    }
}
