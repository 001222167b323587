//! Hosts that ask over links: how those come and go, and what they tell.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;
use std::sync::Arc;

use doorbell::link::{LinkEvent, LinkId, Links, PushRefusal, SessionEvent};
use doorbell::provider::{Clock as _, Instant};
use doorbell::requests::Framing;
use doorbell::{Handle, Node, Worker};
use doorbell_sim::Host;

use super::case::RequestsCase;
use super::model::Way;
use super::{Party, RequestsRun};
use crate::case::Case;
use crate::failure::{Verdict, ensure, failure};
use crate::pattern::{LINKED, Label};
use crate::station::link_config;

const TCP_PORT: u16 = 4000;

/// How long a link may take until a message came over it.
const CONNECT_NS: u64 = 4_000_000_000;

/// The links of a process.
pub(super) struct Linked {
    pub(super) links: Links<Host, Host>,
    pub(super) framing: Framing,
    handle: Handle,
    /// Links that were accepted and have brought nothing yet.
    unnamed: Vec<LinkId>,
    /// When they were polled last.
    polled_ns: Option<u64>,
}

impl Linked {
    pub(super) fn new(
        case: &Case,
        asking: &RequestsCase,
        number: usize,
        (node, worker): (&Arc<Node<Host, Host>>, &Worker<Host>),
    ) -> anyhow::Result<Self> {
        let workers = core::slice::from_ref(worker);
        let mut links = Links::new(node, workers, &link_config(case, number)?)?;
        let at = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), TCP_PORT);
        let handle = links.listen_polled(node, workers, at)?;
        Ok(Self {
            links,
            framing: Framing::new(asking.body_bytes_max as usize),
            handle,
            unnamed: Vec::new(),
            polled_ns: None,
        })
    }

    /// Whether something may have happened since it was polled.
    pub(super) fn is_awake(&self, now_ns: u64) -> bool {
        self.polled_ns != Some(now_ns)
    }
}

/// The message by which the side that accepts learns which link it has.
fn greeting(line: usize, connection: u32) -> Label {
    Label {
        connection: line as u32 + 2,
        end: 0,
        stream: LINKED,
        number: connection.into(),
    }
}

impl RequestsRun<'_> {
    /// Links a line that has no link, while all hosts go on.
    pub(super) fn link(&mut self, line: usize) -> Verdict {
        let [from, to] = self.case.lines[line].hosts;
        let Some(handle) = self.parties[to].linked.as_ref().map(|linked| linked.handle) else {
            return Ok(());
        };
        let Party {
            node, worker, linked, ..
        } = &mut self.parties[from];
        let Some(linked) = linked else {
            return Ok(());
        };
        let id = match linked.links.connect(node, core::slice::from_ref(worker), &handle) {
            Ok(id) => id,
            Err(error) => return ensure(self.excuses.ports, "connect", || error.to_string()),
        };
        self.seats[line][0].sit(Some(Way::Link(id)));
        let greeting = greeting(line, self.connections[line]).bytes(0);
        let until_ns = self.now_ns() + CONNECT_NS;
        let mut is_greeted = false;
        while self.seats[line][0].id.is_some() && self.seats[line][1].id.is_none() {
            let sent = self.parties[from].linked.as_mut().filter(|_| !is_greeted);
            match sent.map(|linked| linked.links.send(id, &greeting)) {
                Some(Ok(_)) => {
                    is_greeted = true;
                    self.seats[line][0].sent += 1;
                    self.parties[from].nap = None;
                }
                None | Some(Err(PushRefusal::Full | PushRefusal::Recovering)) => {}
                Some(Err(refusal)) => ensure(self.may_fail(line), "refused", || refusal.to_string())?,
            }
            let now_ns = self.now_ns();
            if now_ns >= until_ns {
                ensure(self.may_fail(line), "connect", || {
                    format!("line {line} is not linked")
                })?;
                return self.close(line, 0, 1_000_000);
            }
            let next = self.fabric.next_at().map_or(u64::MAX, Instant::to_ns);
            self.run_for(next.clamp(now_ns + 1, now_ns + 1_000_000) - now_ns)?;
        }
        self.note(from, format_args!("line {line} is linked"));
        Ok(())
    }

    /// Polls the links of a host; none where something was told, else until when it need not do so again.
    pub(super) fn poll_links(&mut self, host: usize) -> Verdict<Option<Option<u64>>> {
        let Self {
            parties,
            seats,
            panics,
            fabric,
            ..
        } = self;
        let Party {
            node, worker, linked, ..
        } = &mut parties[host];
        let Some(linked) = linked else {
            return Ok(Some(None));
        };
        let handler = Duration::from_nanos(self.case.handler_ns);
        let (mut messages, mut strange, mut events) = (Vec::new(), Vec::new(), 0);
        let polled = panics.through(|panics| {
            linked
                .links
                .poll(node, core::slice::from_mut(worker), |id, event| {
                    events += 1;
                    if !handler.is_zero() {
                        fabric.run_for(handler);
                    }
                    let seat = seats.iter_mut().flatten();
                    match { seat }.find(|seat| seat.host == host && seat.id == Some(Way::Link(id))) {
                        Some(seat) => {
                            if let Some(LinkEvent::Received { message }) = seat.take_link(event, panics) {
                                messages.push((seat.line, seat.end, message.to_vec()));
                            }
                        }
                        None => match event {
                            LinkEvent::Accepted => linked.unnamed.push(id),
                            LinkEvent::Received { message } => strange.push((id, Some(message.to_vec()))),
                            LinkEvent::Session(SessionEvent::Final { .. }) => strange.push((id, None)),
                            _ => {}
                        },
                    }
                    panics.event();
                })
        });
        linked.polled_ns = Some(fabric.now().to_ns());
        polled.map_err(|error| failure("poll", error.to_string()))?;
        for (line, end, message) in messages {
            self.hear_link(line, end, &message)?;
        }
        for (id, message) in strange {
            self.hear_unnamed(host, id, message)?;
        }
        let Party { worker, linked, .. } = &self.parties[host];
        let now = worker.context().now();
        let wake = linked.as_ref().and_then(|linked| linked.links.wake(now));
        let wake = wake.map(|wake| wake.instant().to_ns().saturating_sub(now.to_ns()).max(1));
        Ok((events == 0).then_some(wake))
    }

    /// A link that was accepted says which it is, or is over.
    fn hear_unnamed(&mut self, host: usize, id: LinkId, message: Option<Vec<u8>>) -> Verdict {
        let Some(linked) = &mut self.parties[host].linked else {
            return Ok(());
        };
        let at = linked.unnamed.iter().position(|unnamed| *unnamed == id);
        let (Some(message), Some(at)) = (message, at) else {
            linked.unnamed.retain(|unnamed| *unnamed != id);
            return Ok(());
        };
        linked.unnamed.remove(at);
        let lines = 0..self.seats.len();
        let is_it = |line: &usize| greeting(*line, self.connections[*line]).bytes(0) == message;
        let line = { lines }.find(|line| self.case.lines[*line].hosts[1] == host && is_it(line));
        match line.filter(|line| self.seats[*line][1].id.is_none()) {
            Some(line) => {
                self.seats[line][1].sit(Some(Way::Link(id)));
                self.seats[line][1].came += 1;
            }
            // One that was given up, and comes late.
            None => {
                let deadline = self.parties[host].node.within(Duration::from_millis(1));
                if let Some(linked) = &mut self.parties[host].linked {
                    linked.links.close(id, deadline);
                }
            }
        }
        Ok(())
    }
}
