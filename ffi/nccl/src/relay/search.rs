//! The search for a link to a process: a direct link, or one over the configured relays. Routes with fewer relays are tried first.
//!
//! A search makes progress when it is polled, and never blocks. Each attempt has a deadline, so a stopped relay does not stop the search.

use core::fmt::Write as _;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

use doorbell::connect::Asking;
use doorbell::link::{LinkId, Links, NotConnected, PushRefusal};
use doorbell::wire::InstanceId;
use doorbell::{ConnectError, Deadline, Handle, Node, Worker};

use super::frame::{CircuitFrame, End, Route};

/// Length of the collected reasons beyond which no further reason is added, in bytes.
const REASONS_BYTES_MAX: usize = 1024;

/// Factor for the timeout of an attempt once the relay has taken the request.
const SEARCHED_WITHIN: u32 = 3;

/// A route to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// By rails only.
    Direct,
    /// By a relay, with at most `relays` relays on the rest of the route, including the first one.
    By { relay: SocketAddr, relays: u8 },
}

/// The attempt in progress.
#[derive(Debug)]
struct Attempt {
    step: Step,
    until: Deadline,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// The relay is asked for its handle.
    Asking(Box<Asking>),
    Linking {
        link: LinkId,
        /// Whether the relay has been asked for a circuit.
        is_requested: bool,
        /// Whether the relay has sent the port of its lifelines.
        has_port: bool,
        heard: Option<Heard>,
    },
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
pub(crate) fn leads_nowhere(links: &Links, link: LinkId) -> bool {
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
pub(crate) struct Search {
    pub(crate) to: Handle,
    /// The route up to this process.
    before: Route,
    /// The process that searches: a relay does not use itself.
    own: Option<InstanceId>,
    steps: VecDeque<Step>,
    attempt: Option<Attempt>,
    /// Relays whose handle is known and that were tried, each with its number of relays.
    tried: Vec<(InstanceId, u8)>,
    /// The handles that relays have returned.
    handles: Vec<(SocketAddr, Handle)>,
    /// Addresses that this host has no route to.
    nowhere: Vec<SocketAddr>,
    /// Timeout of an attempt until the relay has taken the request.
    patience: Duration,
    why: String,
    end: End,
}

impl Search {
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
            handles: Vec::new(),
            nowhere: Vec::new(),
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
        match self.attempt.as_ref()?.stage {
            Stage::Linking { link, .. } => Some(link),
            Stage::Asking(_) => None,
        }
    }

    /// Records that the peer at the link of the present attempt has sent the port of its lifelines. Returns whether this was the first time.
    pub(crate) fn hear_port(&mut self) -> bool {
        let attempt = self.attempt.as_mut().map(|attempt| &mut attempt.stage);
        matches!(attempt, Some(Stage::Linking { has_port, .. }) if !core::mem::replace(has_port, true))
    }

    /// Records that a rail of a link is up.
    pub(crate) fn hear_up(&mut self, of: LinkId) {
        self.hear(of, Heard::Up);
    }

    /// Handles a message of a relay.
    pub(crate) fn hear_frame(&mut self, of: LinkId, frame: CircuitFrame) {
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
        let is_direct = self
            .attempt
            .as_ref()
            .is_some_and(|attempt| attempt.step == Step::Direct);
        let Some(Attempt {
            stage: Stage::Linking { link, heard, .. },
            ..
        }) = &mut self.attempt
        else {
            return;
        };
        let is_news = matches!(what, Heard::Over(..)) || is_direct == matches!(what, Heard::Up);
        // The first reason is the cause.
        if *link == of && is_news && !matches!(heard, Some(Heard::Over(..))) {
            *heard = Some(what);
        }
    }

    /// Makes progress. The caller must have polled the links and passed on their events.
    pub(crate) fn poll(&mut self, links: &mut Links, node: &Arc<Node>, workers: &[Worker]) -> Option<Found> {
        loop {
            let Some(mut attempt) = self.attempt.take() else {
                let Some(step) = self.steps.pop_front() else {
                    return Some(Found::None {
                        end: self.end,
                        why: core::mem::take(&mut self.why),
                    });
                };
                self.begin(step, links, node, workers);
                continue;
            };
            match self.go_on(&mut attempt, links, node, workers) {
                None => {
                    self.attempt = Some(attempt);
                    return None;
                }
                Some(Ok(found)) => return Some(found),
                Some(Err((end, why))) => {
                    if let Stage::Linking { link, .. } = attempt.stage {
                        links.close(link, node.within(Duration::ZERO));
                    }
                    self.note(attempt.step, end, &why);
                }
            }
        }
    }

    /// Ends the search and the link of the present attempt.
    pub(crate) fn give_up(&mut self, links: &mut Links, node: &Node) {
        if let Some(link) = self.link() {
            links.close(link, node.within(Duration::ZERO));
        }
        self.attempt = None;
        self.steps.clear();
    }

    fn begin(&mut self, step: Step, links: &mut Links, node: &Arc<Node>, workers: &[Worker]) {
        let until = node.within(self.patience);
        let begun = match step {
            Step::Direct => link_to(links, node, workers, &self.to),
            Step::By { relay, .. } if self.nowhere.contains(&relay) => return,
            Step::By { relay, relays } => match self.handles.iter().find(|(of, _)| *of == relay) {
                Some((_, handle)) => {
                    let handle = *handle;
                    self.link_by(relays, &handle, links, node, workers)
                }
                None => self.ask(relay, node, until),
            },
        };
        match begun {
            Ok(stage) => self.attempt = Some(Attempt { step, until, stage }),
            Err((end, why)) => self.note(step, end, &why),
        }
    }

    /// Starts to ask a relay for its handle.
    fn ask(&mut self, relay: SocketAddr, node: &Arc<Node>, until: Deadline) -> Result<Stage, (End, String)> {
        match node.begin_ask(relay, until) {
            Ok(asking) => Ok(Stage::Asking(Box::new(asking))),
            // This host has no route to the address.
            Err(error) => {
                self.nowhere.push(relay);
                Err((End::NO_ROUTE, error.to_string()))
            }
        }
    }

    /// Connects a link to the relay of this handle, unless the relay was already tried at another address.
    fn link_by(
        &mut self,
        relays: u8,
        handle: &Handle,
        links: &mut Links,
        node: &Arc<Node>,
        workers: &[Worker],
    ) -> Result<Stage, (End, String)> {
        let who = (handle.instance(), relays);
        if self.own == Some(who.0) || self.tried.contains(&who) {
            return Err((End::NO_ROUTE, String::new()));
        }
        self.tried.push(who);
        link_to(links, node, workers, handle)
    }

    fn go_on(
        &mut self,
        attempt: &mut Attempt,
        links: &mut Links,
        node: &Arc<Node>,
        workers: &[Worker],
    ) -> Option<Result<Found, (End, String)>> {
        let is_late = attempt.until.has_passed(doorbell::now());
        if let Stage::Asking(asking) = &mut attempt.stage {
            let handle = match asking.poll(node) {
                Some(Ok(handle)) => handle,
                Some(Err(error)) => return Some(Err((End::NO_ANSWER, error.to_string()))),
                None if is_late => return Some(Err((End::NO_ANSWER, "no answer in time".to_owned()))),
                None => return None,
            };
            let Step::By { relay, relays } = attempt.step else {
                return None;
            };
            self.handles.push((relay, handle));
            match self.link_by(relays, &handle, links, node, workers) {
                Ok(stage) => attempt.stage = stage,
                Err(error) => return Some(Err(error)),
            }
        }
        let Stage::Linking {
            link,
            is_requested,
            has_port,
            heard,
        } = &mut attempt.stage
        else {
            return None;
        };
        let peer = || {
            let mut rails = links.rails(*link).map(|rail| rail.peer);
            rails.next()
        };
        match (heard.take(), attempt.step) {
            (Some(Heard::Up), _) => return Some(Ok(found((*link, *has_port), peer(), &Route::NONE))),
            (Some(Heard::Connected(rest)), _) => return Some(Ok(found((*link, *has_port), peer(), &rest))),
            (Some(Heard::Over(end, why)), _) => {
                return Some(Err(match leads_nowhere(links, *link) {
                    true => nowhere(),
                    false => (end, why),
                }));
            }
            (None, _) if leads_nowhere(links, *link) => return Some(Err(nowhere())),
            (None, _) if is_late => return Some(Err((End::NO_ANSWER, "no answer in time".to_owned()))),
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
                        attempt.until = node.within(self.patience.saturating_mul(SEARCHED_WITHIN));
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

fn link_to(
    links: &mut Links,
    node: &Arc<Node>,
    workers: &[Worker],
    handle: &Handle,
) -> Result<Stage, (End, String)> {
    match links.connect(node, workers, handle) {
        Ok(link) => Ok(Stage::Linking {
            link,
            is_requested: false,
            has_port: false,
            heard: None,
        }),
        Err(error @ doorbell::link::LinkError::TooManyLinks { .. }) => Err((End::FULL, error.to_string())),
        Err(error) => Err((End::NO_ANSWER, error.to_string())),
    }
}

#[cfg(test)]
pub(super) mod tests;
