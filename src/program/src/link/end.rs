//! One end of the link: sends and receives messages, and keeps account of both.

use core::time::Duration;
use std::sync::Arc;

use doorbell::link::{LinkConfig, LinkEvent, LinkId, Links, PushRefusal, SessionCounts, SessionEvent};
use doorbell::provider::{Instant, Network, Provider, Window as _};
use doorbell::{Handle, Node, Worker};

use super::reach::{LocalWindows, OneSidedLoad, Op};
use super::stream::{HEADER_BYTES, Incoming, Outgoing, PeerSettings};
use super::watch::{Watch, span};
use crate::changes::Changes;
use crate::report::Failure;

/// Maximum number of messages that are passed to the link in one turn.
const BURST: u32 = 32;

/// Amount that the connecting side sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Amount {
    Messages(u64),
    /// For this duration after the link is connected.
    For(Duration),
}

/// The role of this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The connecting side: the amount that it sends, and its wish for the other side.
    Client { amount: Amount, wish: PeerSettings },
    /// The listening side, which follows the other side's wish.
    Listener,
}

/// Stage of this side's sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing was sent yet.
    Before,
    /// Numbered messages are being sent, at most `per_second` per second.
    Sending {
        per_second: u32,
    },
    /// All messages except the last one were sent.
    Ending,
    All,
    /// The link was closed.
    Closed,
}

pub(super) struct End<P: Provider, N: Network> {
    pub(super) node: Arc<Node<P, N>>,
    pub(super) workers: Vec<Worker<P>>,
    pub(super) links: Links<P, N>,
    pub(super) part: Part,
    pub(super) link: Option<LinkId>,
    stage: Stage,
    pub(super) outgoing: Outgoing,
    pub(super) incoming: Incoming,
    /// One-sided requests to windows of the other side.
    pub(super) asking: OneSidedLoad,
    /// Windows for the other side, created after its wish has arrived.
    pub(super) opened: Option<LocalWindows<P>>,
    pub(super) watch: Watch,
    pub(super) counts: SessionCounts,
    epochs: Vec<u32>,
    /// Number of peers that connected after the first one.
    pub(super) others: u32,
    /// Whether commands still have to run while the link carries messages.
    pub(super) is_wanted: bool,
    /// Time limit for closing.
    close_within: Duration,
    /// Polls the devices for changes.
    changes: Changes,
    /// The new handle of this side, if its address or port has changed.
    pub(super) moved: Option<Handle>,
    /// Reasons why rails were not connected when the link ended.
    pub(super) not_connected: Vec<String>,
}

impl<P: Provider, N: Network> End<P, N> {
    pub(super) fn new(
        node: Arc<Node<P, N>>,
        workers: Vec<Worker<P>>,
        config: &LinkConfig,
        part: Part,
    ) -> Result<Self, Failure> {
        let links = Links::new(&node, &workers, config)?;
        let (message_bytes, op) = match part {
            Part::Client { wish, .. } => (usize::try_from(wish.message_bytes)?, wish.op),
            Part::Listener => (0, Op::Send),
        };
        Ok(Self {
            node,
            workers,
            links,
            part,
            link: None,
            stage: Stage::Before,
            outgoing: Outgoing::new(message_bytes),
            incoming: match part {
                Part::Client { .. } => Incoming::of_length(message_bytes),
                Part::Listener => Incoming::default(),
            },
            asking: OneSidedLoad::new(op, message_bytes, config.requests),
            opened: None,
            watch: Watch::default(),
            counts: SessionCounts::default(),
            epochs: Vec::new(),
            others: 0,
            is_wanted: false,
            close_within: config.session.recover_within,
            changes: Changes::default(),
            moved: None,
            not_connected: Vec::new(),
        })
    }

    pub(super) fn connect(&mut self, handle: &Handle) -> Result<(), Failure> {
        self.link = Some(self.links.connect(&self.node, &self.workers, handle)?);
        Ok(())
    }

    /// The epoch of a rail's last connection.
    pub(super) fn epoch(&self, rail: u8) -> u32 {
        self.epochs.get(usize::from(rail)).copied().unwrap_or(0)
    }

    /// Whether the link has ended.
    pub(super) const fn is_over(&self) -> bool {
        self.watch.over.is_some()
    }

    /// Sends and receives everything that is ready. Returns whether there was anything.
    pub(super) fn turn(&mut self) -> Result<bool, Failure> {
        let before = self.now();
        self.watch.polled(before);
        let devices = (&*self.node, &mut *self.workers);
        let moved = self.changes.follow(devices, &mut self.links, before)?;
        self.moved = moved.or(self.moved);
        self.remember();
        let has_sent = self.send(before);
        let (mut has_come, mut events) = (false, Vec::new());
        let Self {
            node,
            workers,
            links,
            link,
            outgoing,
            incoming,
            asking,
            others,
            ..
        } = self;
        links.poll(node, workers, |id, event| {
            if link.is_some_and(|link| link != id) {
                *others = others.saturating_add(u32::from(event == LinkEvent::Accepted));
                return;
            }
            match event {
                LinkEvent::Accepted => *link = Some(id),
                LinkEvent::Received { message } => {
                    incoming.take(message);
                    has_come = true;
                }
                LinkEvent::Session(SessionEvent::Done { through }) => {
                    outgoing.done_through(through);
                    has_come = true;
                }
                LinkEvent::Session(SessionEvent::Unknown {
                    sequence,
                    was_sent,
                    reason,
                }) => outgoing.unknown(sequence, was_sent, reason),
                LinkEvent::Session(event) => events.push(event),
                LinkEvent::Granted { window, .. } => asking.granted(window),
                LinkEvent::Withdrawn { window } => asking.withdrawn(window),
                LinkEvent::Fetched { request, data } => {
                    asking.fetched(request, data);
                    has_come = true;
                }
                LinkEvent::Ended { request, end } => {
                    asking.ended(request, end);
                    has_come = true;
                }
                _ => {}
            }
        })?;
        self.open_windows()?;
        let now = self.now();
        if has_come {
            self.watch.progress(now);
        }
        if let Part::Client {
            amount: Amount::Messages(count),
            ..
        } = self.part
        {
            let done = self.outgoing.done.saturating_add(self.asking.done);
            self.watch.done(done, count, now);
        }
        self.watch_events(&events, now);
        Ok(has_sent || has_come || !events.is_empty())
    }

    /// Passes events of the session to the watch.
    fn watch_events(&mut self, events: &[SessionEvent], now: Instant) {
        let has_ended = events
            .iter()
            .any(|event| matches!(event, SessionEvent::Final { .. }));
        if let Some(link) = self.link.filter(|_| has_ended) {
            let rails = self.links.not_connected(link);
            self.not_connected = rails.map(ToString::to_string).collect();
        }
        for event in events.iter().copied() {
            // The end of a link also takes its rails down. These rails did not die.
            if has_ended && matches!(event, SessionEvent::RailDown { .. }) {
                continue;
            }
            let heard_at = match (event, self.link) {
                (SessionEvent::RailDown { rail }, Some(link)) => self.links.rail_heard_at(link, rail),
                _ => None,
            };
            self.watch.saw(event, heard_at, now);
        }
    }

    /// Opens windows for the other side, if its wish asks for one-sided requests.
    fn open_windows(&mut self) -> Result<(), Failure> {
        let wish = self.incoming.wish.filter(|wish| wish.op.is_one_sided());
        let (Some(wish), Some(link), None, Part::Listener) = (wish, self.link, &self.opened, self.part)
        else {
            return Ok(());
        };
        // Limited to the size that a link would request.
        let piece_bytes = usize::try_from(wish.message_bytes)?.clamp(HEADER_BYTES, 1 << 20);
        let links = &mut self.links;
        let opened = LocalWindows::new(&self.workers, (wish.op, piece_bytes), |worker, window| {
            links.grant(link, &[(worker, window.remote())], wish.op.access())
        })?;
        self.opened = Some(opened);
        Ok(())
    }

    /// The current time on the clock of the links.
    pub(super) fn now(&self) -> Instant {
        self.node.within(Duration::ZERO).instant()
    }

    /// Saves the link's counts and epochs, which are not available after its end.
    fn remember(&mut self) {
        let Some(link) = self.link.filter(|_| self.watch.over.is_none()) else {
            return;
        };
        self.counts = self.links.counts(link);
        self.epochs.clear();
        self.epochs.extend(
            (0..doorbell::link::SESSION_RAILS_MAX).map(|rail| self.links.rail_epoch(link, rail).to_u32()),
        );
    }

    /// Sends messages. Returns whether the link accepted any.
    fn send(&mut self, now: Instant) -> bool {
        let Some(link) = self
            .link
            .filter(|_| self.watch.connected_at.is_some() && !self.is_over())
        else {
            return false;
        };
        let mut has_sent = false;
        for _ in 0..BURST {
            if !self.advance(link, now) {
                break;
            }
            has_sent = true;
        }
        has_sent
    }

    /// Sends the next message, or changes to the next stage. Returns whether there may be more to send.
    fn advance(&mut self, link: LinkId, now: Instant) -> bool {
        match (self.stage, self.part) {
            (Stage::Before, Part::Client { wish, .. }) => {
                let message = self.outgoing.begin(wish);
                let taken = self.links.send(link, message);
                self.queued(
                    taken,
                    Stage::Sending {
                        per_second: wish.per_second,
                    },
                )
            }
            (Stage::Before, Part::Listener) => match self.incoming.wish {
                Some(wish) if wish.answers => {
                    let bytes = usize::try_from(wish.message_bytes).unwrap_or(0).min(1 << 20);
                    self.outgoing = Outgoing::new(bytes);
                    self.stage = Stage::Sending {
                        per_second: wish.per_second,
                    };
                    true
                }
                Some(_) if self.incoming.ended.is_some() => {
                    self.stage = Stage::Ending;
                    true
                }
                _ => false,
            },
            (Stage::Sending { per_second }, _) => self.advance_sending(link, now, per_second),
            // The peer checks its windows after the last message, so all one-sided requests have to be
            // completed before.
            (Stage::Ending, _) if self.asking.open() > 0 => false,
            (Stage::Ending, _) => {
                let message = self.outgoing.end(self.asking.asked);
                let taken = self.links.send(link, message);
                self.queued(taken, Stage::All)
            }
            // The connecting side closes the link after neither side has open requests.
            (Stage::All, Part::Client { .. }) => {
                if self.incoming.ended.is_some() && self.outgoing.open() == 0 {
                    self.links.close(link, self.node.within(self.close_within));
                    self.stage = Stage::Closed;
                }
                false
            }
            (Stage::All, Part::Listener) | (Stage::Closed, _) => false,
        }
    }

    /// Number of messages and one-sided requests so far. Only one of the two counts is not zero.
    fn begun(&self) -> u64 {
        self.outgoing.messages.saturating_add(self.asking.asked)
    }

    /// Time since the link was connected.
    fn ran(&self, now: Instant) -> Duration {
        let connected_at = self.watch.connected_at;
        connected_at.map_or(Duration::ZERO, |began| span(began, now))
    }

    fn has_begun_enough(&self, now: Instant) -> bool {
        match self.part {
            Part::Client {
                amount: Amount::Messages(count),
                ..
            } => self.begun() >= count,
            Part::Client {
                amount: Amount::For(time),
                ..
            } => self.ran(now) >= time && !self.is_wanted,
            Part::Listener => self.incoming.ended.is_some(),
        }
    }

    /// Whether everything that was asked for is sent and done, and the link stays up only for later commands.
    pub(super) fn only_waits_for_commands(&self) -> bool {
        let is_idle = self.outgoing.open() == 0 && self.asking.open() == 0;
        let is_client = matches!(self.part, Part::Client { .. });
        is_client && self.is_wanted && is_idle && self.has_begun_enough(self.now())
    }

    /// Sends the next numbered message or one-sided request, unless all were sent, or it is too early.
    fn advance_sending(&mut self, link: LinkId, now: Instant, per_second: u32) -> bool {
        let (number, ran) = (self.begun(), self.ran(now));
        if self.has_begun_enough(now) {
            // Commands need a connected link, but no more messages than requested are sent. So the
            // stage changes only after the last command.
            let waits = self.is_wanted && matches!(self.part, Part::Client { .. });
            if !waits {
                self.stage = Stage::Ending;
            }
            return !waits;
        }
        if !is_due(number, per_second, ran) {
            return false;
        }
        if self.asking.op().is_one_sided() {
            let Self {
                node, links, asking, ..
            } = self;
            return asking.ask(|at, request| links.request(node, link, at, request));
        }
        let message = self.outgoing.next();
        let taken = self.links.send(link, message);
        if taken.is_ok() {
            self.outgoing.counted();
        }
        self.queued(taken, self.stage)
    }

    fn queued(&mut self, taken: Result<doorbell::link::Sequence, PushRefusal>, next: Stage) -> bool {
        if let Ok(last) = taken {
            self.outgoing.taken(last);
            self.stage = next;
        }
        taken.is_ok()
    }
}

/// Whether one more message may be sent after this time.
fn is_due(sent: u64, per_second: u32, ran: Duration) -> bool {
    if per_second == 0 {
        return true;
    }
    let may = ran
        .as_nanos()
        .saturating_mul(u128::from(per_second))
        .checked_div(1_000_000_000)
        .unwrap_or(0);
    u128::from(sent) <= may
}
