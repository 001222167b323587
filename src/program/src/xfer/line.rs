//! The link between the two sides: outgoing messages, incoming messages, and its rails.

use core::net::IpAddr;
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

use doorbell::link::{
    FinalReason, HealthState, LinkConfig, LinkEvent, LinkId, Links, PushRefusal, SESSION_RAILS_MAX, Sequence,
    SessionEvent, TransferEvent, TransferId,
};
use doorbell::provider::{Instant, Network, Provider};
use doorbell::{Handle, Node, Worker};
use serde::Serialize;

use super::wire::Message;
use crate::changes::Changes;
use crate::report::Failure;

/// A message or an event that arrived over the link.
#[derive(Clone, Debug)]
pub(super) enum LineEvent {
    Message(Vec<u8>),
    Transfer(TransferId, TransferEvent),
}

/// A rail over the whole run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Rail {
    pub(super) rail: u8,
    pub(super) device: String,
    pub(super) peer: Option<String>,
    pub(super) ups: u32,
    pub(super) downs: u32,
    /// Bytes that this side sent over it, including frames and repeated pieces.
    pub(super) bytes: u64,
    #[serde(skip)]
    is_up: bool,
}

/// The history of the link and its rails.
#[derive(Debug, Default)]
pub(super) struct Watch {
    pub(super) rails: Vec<Rail>,
    pub(super) connected_at: Option<Instant>,
    /// Rails that died while another was up.
    pub(super) failovers: u32,
    /// Number of times that the link had no rail, and then one again.
    pub(super) reconnects: u32,
    pub(super) over: Option<FinalReason>,
}

impl Watch {
    fn saw(&mut self, event: SessionEvent, now: Instant) {
        match event {
            SessionEvent::Connected => self.connected_at = Some(now),
            SessionEvent::Recovered => self.reconnects = self.reconnects.saturating_add(1),
            SessionEvent::RailUp { rail } => {
                let rail = self.rail(rail);
                rail.is_up = true;
                rail.ups = rail.ups.saturating_add(1);
            }
            SessionEvent::RailDown { rail: number } => {
                let rail = self.rail(number);
                rail.is_up = false;
                rail.downs = rail.downs.saturating_add(1);
                if self.rails.iter().any(|rail| rail.is_up) {
                    self.failovers = self.failovers.saturating_add(1);
                }
            }
            SessionEvent::Final { reason } => self.over = Some(reason),
            _ => {}
        }
    }

    fn rail(&mut self, number: u8) -> &mut Rail {
        let at = self.rails.partition_point(|rail| rail.rail < number);
        if self.rails.get(at).is_none_or(|rail| rail.rail != number) {
            let rail = Rail {
                rail: number,
                ..Rail::default()
            };
            self.rails.insert(at, rail);
        }
        let last = self.rails.len().saturating_sub(1);
        #[expect(clippy::indexing_slicing, reason = "a rail was found or put in at `at`")]
        &mut self.rails[at.min(last)]
    }
}

/// A link, and the messages that are to be sent over it.
pub(super) struct Line<P: Provider, N: Network> {
    pub(super) node: Arc<Node<P, N>>,
    pub(super) workers: Vec<Worker<P>>,
    pub(super) links: Links<P, N>,
    pub(super) link: Option<LinkId>,
    /// Messages that the link has not accepted yet.
    queued: VecDeque<Vec<u8>>,
    /// The last fragment of the last accepted message, until the peer has received it.
    unacknowledged: Option<Sequence>,
    pub(super) watch: Watch,
    /// The address of the peer's first rail.
    pub(super) peer: Option<IpAddr>,
    changes: Changes,
    /// The new handle of this side, if its address or port has changed.
    pub(super) moved: Option<Handle>,
    /// Reasons why rails were not connected when the link ended.
    pub(super) not_connected: Vec<String>,
}

impl<P: Provider, N: Network> Line<P, N> {
    pub(super) fn new(
        node: Arc<Node<P, N>>,
        workers: Vec<Worker<P>>,
        config: &LinkConfig,
    ) -> Result<Self, Failure> {
        let links = Links::new(&node, &workers, config)?;
        Ok(Self {
            node,
            workers,
            links,
            link: None,
            queued: VecDeque::new(),
            unacknowledged: None,
            watch: Watch::default(),
            peer: None,
            changes: Changes::default(),
            moved: None,
            not_connected: Vec::new(),
        })
    }

    pub(super) fn connect(&mut self, handle: &Handle) -> Result<(), Failure> {
        self.link = Some(self.links.connect(&self.node, &self.workers, handle)?);
        Ok(())
    }

    /// The current time on the clock of the links.
    pub(super) fn now(&self) -> Instant {
        self.node.within(Duration::ZERO).instant()
    }

    /// The link, while it is connected.
    pub(super) fn open(&self) -> Option<LinkId> {
        let is_open = self.watch.connected_at.is_some() && self.watch.over.is_none();
        self.link.filter(|_| is_open)
    }

    /// The number of rails that are up.
    pub(super) fn rails_up(&self) -> usize {
        let rails = self.link.map(|link| {
            let states = (0..SESSION_RAILS_MAX).map(|rail| self.links.rail_state(link, rail));
            states.filter(|state| *state == HealthState::Up).count()
        });
        rails.unwrap_or(0)
    }

    /// Queues a message.
    pub(super) fn queue(&mut self, message: &Message) {
        self.queued.push_back(message.to_bytes());
    }

    /// Discards queued messages.
    pub(super) fn be_silent(&mut self) {
        self.queued.clear();
    }

    /// Whether the peer has received all messages.
    pub(super) fn is_heard(&self) -> bool {
        self.queued.is_empty() && self.unacknowledged.is_none()
    }

    /// Polls once. Returns what arrived.
    pub(super) fn turn(&mut self) -> Result<Vec<LineEvent>, Failure> {
        let now = self.now();
        let devices = (&*self.node, &mut *self.workers);
        let moved = self.changes.follow(devices, &mut self.links, now)?;
        self.moved = moved.or(self.moved);
        self.send();
        self.remember();
        let (mut heard, mut events) = (Vec::new(), Vec::new());
        let Self {
            node,
            workers,
            links,
            link,
            unacknowledged,
            ..
        } = self;
        let mut others = Vec::new();
        links.poll(node, workers, |id, event| {
            if link.is_some_and(|link| link != id) {
                if event == LinkEvent::Accepted {
                    others.push(id);
                }
                return;
            }
            match event {
                LinkEvent::Accepted => *link = Some(id),
                LinkEvent::Received { message } => heard.push(LineEvent::Message(message.to_vec())),
                LinkEvent::Transfer { transfer, event } => heard.push(LineEvent::Transfer(transfer, event)),
                LinkEvent::Session(SessionEvent::Done { through }) => {
                    *unacknowledged = unacknowledged.filter(|last| *last > through);
                }
                LinkEvent::Session(event) => events.push(event),
                _ => {}
            }
        })?;
        for id in others {
            self.decline(id);
        }
        let is_over = |event: &SessionEvent| matches!(event, SessionEvent::Final { .. });
        let has_ended = events.iter().any(is_over);
        if let Some(link) = self.link.filter(|_| has_ended) {
            let rails = self.links.not_connected(link);
            self.not_connected = rails.map(ToString::to_string).collect();
        }
        for event in events {
            // The end of a link also takes its rails down. These rails did not die.
            if !has_ended || !matches!(event, SessionEvent::RailDown { .. }) {
                self.watch.saw(event, now);
            }
        }
        Ok(heard)
    }

    /// Notifies another peer that this side is busy, and closes its link.
    fn decline(&mut self, id: LinkId) {
        let why = "the receiver is busy with another sender".to_owned();
        // If the link accepts no message yet, its peer sees only the end of the link.
        let _ = self.links.send(id, &Message::Failed { why }.to_bytes());
        self.links.close(id, self.node.within(Duration::from_secs(1)));
    }

    fn send(&mut self) {
        let Some(link) = self.open() else {
            return;
        };
        while let Some(message) = self.queued.front() {
            match self.links.send(link, message) {
                Ok(last) => self.unacknowledged = Some(last),
                Err(PushRefusal::Full | PushRefusal::Recovering) => return,
                // The link has ended, which an event reports.
                Err(_) => {}
            }
            self.queued.pop_front();
        }
    }

    /// Saves the counts of the link's rails, which are not available after its end.
    fn remember(&mut self) {
        let Some(link) = self.open() else {
            return;
        };
        for report in self.links.rails(link) {
            let rail = self.watch.rail(report.rail);
            if rail.peer.is_none() {
                rail.device = report.device.to_owned();
                rail.peer = Some(report.peer.to_string());
            }
            rail.bytes = report.counts.sent_bytes;
            self.peer = self.peer.or(Some(report.peer));
        }
    }

    /// Closes the link.
    pub(super) fn close(&mut self, within: Duration) {
        if let Some(link) = self.link {
            self.links.close(link, self.node.within(within));
        }
    }

    /// Cancels a transfer, unless it has ended.
    pub(super) fn cancel(&mut self, transfer: TransferId) {
        if let Some(link) = self.link {
            // A refusal is ignored: the transfer has ended.
            let _ = self.links.cancel(&self.node, (link, transfer));
        }
    }
}
