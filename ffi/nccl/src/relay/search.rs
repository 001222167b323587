//! The search for a link to a process: a direct link, or one over the configured relays. Routes with fewer relays are tried first.
//!
//! A search makes progress when it is polled, and never blocks. Each attempt has a deadline. A relay that does not answer delays the others
//! by [`ASKED_ALONE`], and is asked only once. Routes over more relays wait until each relay has answered, failed, or used up its patience.

use core::fmt::Write as _;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

use doorbell::connect::{Asking, Tcp};
use doorbell::link::{LinkId, Links, NotConnected, PushRefusal};
use doorbell::provider::{Instant, Network, Provider};
use doorbell::wire::InstanceId;
use doorbell::{ConnectError, Deadline, Handle, Node, Worker};

use super::frame::{CircuitFrame, End, Route};

/// Length of the collected reasons beyond which no further reason is added, in bytes.
const REASONS_BYTES_MAX: usize = 1024;

/// Reason of an attempt whose deadline has passed.
const LATE: &str = "no answer in time";

/// Factor for the timeout of an attempt once the relay has taken the request.
const SEARCHED_WITHIN: u32 = 3;

/// How long a relay has to return its handle before the next one is asked, too.
const ASKED_ALONE: Duration = Duration::from_millis(200);

/// A route to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// By rails only.
    Direct,
    /// By a relay, with at most `relays` relays on the rest of the route, including the first one.
    By { relay: SocketAddr, relays: u8 },
}

impl Step {
    /// The maximum number of relays on the route.
    const fn relays(self) -> u8 {
        match self {
            Self::Direct => 0,
            Self::By { relays, .. } => relays,
        }
    }
}

/// The attempt in progress: a link to the process, or to a relay.
#[derive(Debug)]
struct Attempt {
    step: Step,
    until: Deadline,
    link: LinkId,
    /// Whether the relay has been asked for a circuit.
    is_requested: bool,
    /// Whether the relay has sent any message of a circuit.
    is_answered: bool,
    /// Whether the peer has sent the port of its lifelines.
    has_port: bool,
    heard: Option<Heard>,
}

/// The result of asking a relay for its handle.
#[derive(Debug)]
enum Asked<N: Network> {
    /// No answer yet, which may come until the deadline.
    Asking(Box<Asking<N>>, Deadline),
    Known(Handle),
    /// The relay did not answer, or this host has no route to the address.
    Failed,
}

/// The next action of a search without an attempt.
enum Next {
    Try(Step),
    /// All relays that may be tried now are being asked.
    Wait,
    End,
}

/// An event on the link of an attempt.
#[derive(Clone, Debug)]
enum Heard {
    Up,
    Connected(Route),
    Over(End, String),
}

/// Whether a link has no rail and will get none, because every attempt failed for lack of a common subnet. Failed attempts between
/// link-local addresses do not count: these are paired only if there are no others, and no TCP connection leads to them.
pub(crate) fn leads_nowhere<P: Provider, N: Network>(links: &Links<P, N>, link: LinkId) -> bool {
    let mut reasons = links.not_connected(link).peekable();
    let is_nowhere = |reason: &NotConnected| {
        let peer = reason.between.as_ref().map(|ends| ends.peer.to_canonical());
        matches!(reason.why, ConnectError::NoRoute(_))
            || match peer {
                Some(IpAddr::V4(peer)) => peer.is_link_local(),
                Some(IpAddr::V6(peer)) => peer.is_unicast_link_local(),
                None => false,
            }
    };
    !links.is_connected(link) && reasons.peek().is_some() && reasons.all(is_nowhere)
}

/// The result of a search.
#[derive(Debug)]
pub(crate) enum Found {
    /// A link to the process was found. The route starts at this process.
    Link {
        link: LinkId,
        route: Route,
        /// Whether the peer has sent the port of its lifelines.
        has_port: bool,
    },
    /// No route was found.
    None { end: End, why: String },
}

/// A search. See the module.
#[derive(Debug)]
pub(crate) struct Search<N: Network = Tcp> {
    pub(crate) to: Handle,
    /// The route up to this process.
    before: Route,
    /// The process that searches: a relay does not use itself.
    own: Option<InstanceId>,
    steps: VecDeque<Step>,
    attempt: Option<Attempt>,
    /// Relays whose handle is known and that were tried, each with its number of relays.
    tried: Vec<(InstanceId, u8)>,
    /// The relays that were asked for their handles.
    relays: Vec<(SocketAddr, Asked<N>)>,
    /// Time from which the next relay may be asked, although another has not answered.
    ask_at: Option<Deadline>,
    /// Timeout of an attempt until the relay has taken the request.
    patience: Duration,
    why: String,
    end: End,
}

impl<N: Network> Search<N> {
    /// Creates a search over `relays`, with at most `most` of them on the route. With `is_direct`, rails are tried first.
    pub(crate) fn new(
        to: Handle,
        before: Route,
        (relays, most): (&[SocketAddr], u8),
        (is_direct, patience): (bool, Duration),
    ) -> Self {
        let direct = is_direct.then_some(Step::Direct);
        let by = |relays_on: u8| {
            let step = move |relay: &SocketAddr| Step::By {
                relay: *relay,
                relays: relays_on,
            };
            relays.iter().map(step)
        };
        Self {
            to,
            before,
            own: None,
            steps: direct.into_iter().chain((1..=most).flat_map(by)).collect(),
            attempt: None,
            tried: Vec::new(),
            relays: Vec::new(),
            ask_at: None,
            patience,
            why: String::new(),
            end: End::NO_ROUTE,
        }
    }

    /// Excludes this process itself.
    pub(crate) fn without(mut self, own: InstanceId) -> Self {
        self.own = Some(own);
        self
    }

    /// Returns the route up to this process.
    pub(crate) const fn before(&self) -> Route {
        self.before
    }

    /// Returns the link of the present attempt.
    pub(crate) fn link(&self) -> Option<LinkId> {
        self.attempt.as_ref().map(|attempt| attempt.link)
    }

    /// Records that the peer at the link of the present attempt has sent the port of its lifelines. Returns whether this was the first time.
    pub(crate) fn hear_port(&mut self) -> bool {
        let attempt = self.attempt.as_mut();
        attempt.is_some_and(|attempt| !core::mem::replace(&mut attempt.has_port, true))
    }

    /// Records that a rail of a link is up.
    pub(crate) fn hear_up(&mut self, of: LinkId) {
        self.hear(of, Heard::Up);
    }

    /// Handles a message of a relay.
    pub(crate) fn hear_frame(&mut self, of: LinkId, frame: CircuitFrame) {
        if let Some(attempt) = self.attempt.as_mut().filter(|attempt| attempt.link == of) {
            attempt.is_answered = true;
        }
        self.hear(
            of,
            match frame {
                CircuitFrame::Connected { route } => Heard::Connected(route),
                CircuitFrame::End { end } => Heard::Over(end, end.to_string()),
                _ => Heard::Over(End::WRONG, End::WRONG.to_string()),
            },
        );
    }

    /// Handles the end of a link.
    pub(crate) fn hear_over(&mut self, of: LinkId, why: &dyn core::fmt::Display) {
        self.hear(of, Heard::Over(End::NO_ANSWER, why.to_string()));
    }

    fn hear(&mut self, of: LinkId, what: Heard) {
        let Some(attempt) = self.attempt.as_mut().filter(|attempt| attempt.link == of) else {
            return;
        };
        let is_direct = attempt.step == Step::Direct;
        let is_news = matches!(what, Heard::Over(..)) || is_direct == matches!(what, Heard::Up);
        // The first reason is the cause.
        if is_news && !matches!(attempt.heard, Some(Heard::Over(..))) {
            attempt.heard = Some(what);
        }
    }

    /// Makes progress. The caller must have polled the links and passed on their events.
    pub(crate) fn poll<P: Provider>(
        &mut self,
        links: &mut Links<P, N>,
        node: &Arc<Node<P, N>>,
        workers: &[Worker<P>],
    ) -> Option<Found> {
        self.hear_relays(node);
        loop {
            let Some(mut attempt) = self.attempt.take() else {
                match self.next(node) {
                    Next::Try(step) => self.begin(step, links, node, workers),
                    Next::Wait => return None,
                    Next::End => {
                        return Some(Found::None {
                            end: self.end,
                            why: core::mem::take(&mut self.why),
                        });
                    }
                }
                continue;
            };
            match self.go_on(&mut attempt, links, node) {
                None => {
                    self.attempt = Some(attempt);
                    return None;
                }
                Some(Ok(found)) => return Some(found),
                Some(Err((end, why))) => {
                    links.close(attempt.link, node.within(Duration::ZERO));
                    match attempt.step {
                        Step::By { relay, .. } if end == End::NO_ANSWER && !attempt.is_answered => {
                            self.set(relay, Asked::Failed);
                        }
                        _ => {}
                    }
                    self.note(attempt.step, end, &why);
                }
            }
        }
    }

    /// Ends the search and the link of the present attempt.
    pub(crate) fn give_up<P: Provider>(&mut self, links: &mut Links<P, N>, node: &Node<P, N>) {
        if let Some(link) = self.link() {
            links.close(link, node.within(Duration::ZERO));
        }
        self.attempt = None;
        self.relays.clear();
        self.steps.clear();
    }

    /// Handles the answers of relays that are asked for their handles.
    fn hear_relays<P: Provider>(&mut self, node: &Node<P, N>) {
        let (mut failed, now) = (Vec::new(), node.network().now());
        for (address, relay) in &mut self.relays {
            let Asked::Asking(asking, until) = relay else {
                continue;
            };
            let error = match asking.poll(node) {
                Some(Ok(handle)) => {
                    *relay = Asked::Known(handle);
                    continue;
                }
                Some(Err(error)) => error.to_string(),
                None if until.has_passed(now) => LATE.to_owned(),
                None => continue,
            };
            *relay = Asked::Failed;
            failed.push((*address, error));
        }
        for (relay, why) in failed {
            self.note(Step::By { relay, relays: 1 }, End::NO_ANSWER, &why);
        }
    }

    /// Returns the first step that need not wait for an answer. Steps with more relays come after all those with fewer.
    fn next<P: Provider>(&mut self, node: &Node<P, N>) -> Next {
        loop {
            let Some(first) = self.steps.front() else {
                return Next::End;
            };
            let relays_on = first.relays();
            let mut steps = self.steps.iter().enumerate();
            let mut is_asking = false;
            let found = steps.find_map(|(at, step)| match step {
                _ if step.relays() != relays_on => None,
                Step::Direct => Some((at, None)),
                Step::By { relay, .. } => match self.relay(*relay) {
                    None => Some((at, Some(*relay))),
                    Some(Asked::Asking(..)) => {
                        is_asking = true;
                        None
                    }
                    Some(Asked::Known(_) | Asked::Failed) => Some((at, None)),
                },
            });
            match found {
                Some((_, Some(relay))) if !is_asking || self.may_ask_next(node.network().now()) => {
                    self.ask(relay, node)
                }
                Some((at, None)) => return self.steps.remove(at).map_or(Next::End, Next::Try),
                Some((_, Some(_))) | None => return Next::Wait,
            }
        }
    }

    fn relay(&self, at: SocketAddr) -> Option<&Asked<N>> {
        let relay = self.relays.iter().find(|(address, _)| *address == at);
        relay.map(|(_, relay)| relay)
    }

    fn set(&mut self, at: SocketAddr, asked: Asked<N>) {
        self.relays.retain(|(address, _)| *address != at);
        self.relays.push((at, asked));
    }

    fn may_ask_next(&self, now: Instant) -> bool {
        self.ask_at.is_none_or(|at| at.has_passed(now))
    }

    /// Starts to ask a relay for its handle.
    fn ask<P: Provider>(&mut self, relay: SocketAddr, node: &Node<P, N>) {
        let until = node.within(self.patience);
        let asked = match node.begin_ask(relay, until) {
            Ok(asking) => Asked::Asking(Box::new(asking), until),
            // This host has no route to the address.
            Err(error) => {
                self.note(Step::By { relay, relays: 1 }, End::NO_ROUTE, &error.to_string());
                Asked::Failed
            }
        };
        self.set(relay, asked);
        self.ask_at = Some(node.within(ASKED_ALONE));
    }

    fn begin<P: Provider>(
        &mut self,
        step: Step,
        links: &mut Links<P, N>,
        node: &Arc<Node<P, N>>,
        workers: &[Worker<P>],
    ) {
        let handle = match step {
            Step::Direct => self.to,
            Step::By { relay, relays } => match self.relay(relay) {
                Some(Asked::Known(handle)) => {
                    let (handle, who) = (*handle, (handle.instance(), relays));
                    // The relay may be this process, or was tried at another address.
                    if self.own == Some(who.0) || self.tried.contains(&who) {
                        return;
                    }
                    self.tried.push(who);
                    handle
                }
                _ => return,
            },
        };
        match link_to(links, node, workers, &handle) {
            Ok(link) => {
                self.attempt = Some(Attempt {
                    step,
                    until: node.within(self.patience),
                    link,
                    is_requested: false,
                    is_answered: false,
                    has_port: false,
                    heard: None,
                });
            }
            Err((end, why)) => self.note(step, end, &why),
        }
    }

    fn go_on<P: Provider>(
        &self,
        attempt: &mut Attempt,
        links: &mut Links<P, N>,
        node: &Node<P, N>,
    ) -> Option<Result<Found, (End, String)>> {
        let is_late = attempt.until.has_passed(node.network().now());
        let Attempt {
            step,
            until,
            link,
            is_requested,
            has_port,
            heard,
            ..
        } = attempt;
        let peer = || {
            let mut rails = links.rails(*link).map(|rail| rail.peer);
            rails.next()
        };
        match (heard.take(), *step) {
            (Some(Heard::Up), _) => return Some(Ok(found((*link, *has_port), peer(), &Route::NONE))),
            (Some(Heard::Connected(rest)), _) => return Some(Ok(found((*link, *has_port), peer(), &rest))),
            (Some(Heard::Over(end, why)), _) => {
                return Some(Err(match leads_nowhere(links, *link) {
                    true => nowhere(),
                    false => (end, why),
                }));
            }
            (None, _) if leads_nowhere(links, *link) => return Some(Err(nowhere())),
            (None, _) if is_late => return Some(Err((End::NO_ANSWER, LATE.to_owned()))),
            (None, Step::By { relays, .. }) if !*is_requested => {
                let request = CircuitFrame::Request {
                    relays,
                    route: self.before,
                    handle: self.to,
                };
                match links.send(*link, &request.to_vec()) {
                    Ok(_) => {
                        *is_requested = true;
                        // The relay is running, and now searches itself.
                        *until = node.within(self.patience.saturating_mul(SEARCHED_WITHIN));
                    }
                    Err(PushRefusal::Full | PushRefusal::Recovering) => {}
                    Err(refusal) => return Some(Err((End::NO_ANSWER, refusal.to_string()))),
                }
            }
            (None, _) => {}
        }
        None
    }

    /// Records why a step failed.
    fn note(&mut self, step: Step, end: End, why: &str) {
        if !end.is_definite() {
            self.end = end;
        }
        if why.is_empty() || self.why.len() > REASONS_BYTES_MAX {
            return;
        }
        let gap = if self.why.is_empty() { "" } else { "; " };
        let _ = match step {
            Step::Direct => write!(self.why, "{gap}by rails: {why}"),
            Step::By { relay, .. } => write!(self.why, "{gap}by {relay}: {why}"),
        };
    }
}

fn found((link, has_port): (LinkId, bool), peer: Option<IpAddr>, rest: &Route) -> Found {
    let mut route = Route::NONE;
    if let Some(peer) = peer {
        route.push(peer);
    }
    Found::Link {
        link,
        route: route.then(rest),
        has_port,
    }
}

fn nowhere() -> (End, String) {
    (End::NO_ROUTE, "no rail leads there".to_owned())
}

fn link_to<P: Provider, N: Network>(
    links: &mut Links<P, N>,
    node: &Arc<Node<P, N>>,
    workers: &[Worker<P>],
    handle: &Handle,
) -> Result<LinkId, (End, String)> {
    match links.connect(node, workers, handle) {
        Ok(link) => Ok(link),
        Err(error @ doorbell::link::LinkError::TooManyLinks { .. }) => Err((End::FULL, error.to_string())),
        Err(error) => Err((End::NO_ANSWER, error.to_string())),
    }
}

#[cfg(test)]
mod tests;
