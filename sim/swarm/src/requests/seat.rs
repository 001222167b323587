//! One end of a line: the table of its requests, the channel or link they go over, and the expectation of what becomes of them.

use std::collections::VecDeque;

use doorbell::link::{LinkEvent, SessionEvent};
use doorbell::provider::Instant;
use doorbell::requests::{CorrelationId, RequestFailure, Requests};
use doorbell::{Event, Turn};
use doorbell_sim::Host;

use super::case::Question;
use super::model::{Model, Way, Why};
use crate::failure::ensure;
use crate::panics::Panics;

/// One end of a line.
pub(super) struct Seat {
    pub(super) line: usize,
    pub(super) end: usize,
    pub(super) host: usize,
    pub(super) requests: Requests<usize>,
    pub(super) model: Model,
    /// Its channel or link, until that is gone.
    pub(super) id: Option<Way>,
    /// The next of these is tried again whenever its host is awake.
    pub(super) wanted: VecDeque<Question>,
    pub(super) is_closing: bool,
    /// Its channel ended in this turn, as the host was told.
    pub(super) told: Vec<Why>,
    /// The host was notified of that end in an earlier turn.
    pub(super) is_over: bool,
    /// The messages that went over its channel, and those that came.
    pub(super) sent: u64,
    pub(super) came: u64,
    /// The request of the peer's that came last over its channel.
    pub(super) newest: Option<usize>,
    /// The answer that was given last over its channel.
    pub(super) said: Option<(CorrelationId, Vec<u8>)>,
}

impl Seat {
    /// It has a channel, or none: nothing of the one before is left.
    pub(super) fn sit(&mut self, id: Option<Way>) {
        self.id = id;
        (self.is_closing, self.is_over) = (false, false);
        (self.sent, self.came, self.newest) = (0, 0, None);
        self.said = None;
    }

    pub(super) fn is_ending(&self) -> bool {
        self.id.is_none() || self.is_closing || self.is_over || !self.told.is_empty()
    }

    /// Gives what its channel tells to the table; hands back what is not the table's.
    pub(super) fn take<'m>(
        &mut self,
        turn: &mut Turn<'_, Host>,
        event: Event<'m, Host>,
        panics: &mut Panics,
    ) -> Option<Event<'m, Host>> {
        let Self {
            requests,
            model,
            told,
            ..
        } = self;
        let way = Some(Way::Channel(turn.channel.id()));
        let is_left = match &event {
            Event::Received { message, .. } => {
                self.came += 1;
                model.hear(self.line, self.end, message.payload())
            }
            Event::Failed { .. } | Event::ChannelFailed { .. } => {
                told.push(Why::Channel);
                model.break_off(Why::Channel, way);
                true
            }
            Event::PeerClosed { .. } => {
                told.push(Why::PeerClosed);
                model.break_off(Why::PeerClosed, way);
                true
            }
            _ => true,
        };
        // Time ends none here.
        let left = requests.take(turn, event, |number, ended| {
            model.end(number, ended, 0);
            panics.event();
        });
        model.note(ensure(left.is_some() == is_left, "taken", || {
            format!("handed back: {left:?}, where that is {is_left}")
        }));
        left
    }

    /// Gives what its link tells to the table; hands back what is not the table's.
    pub(super) fn take_link<'m>(
        &mut self,
        event: LinkEvent<'m>,
        panics: &mut Panics,
    ) -> Option<LinkEvent<'m>> {
        let Self {
            requests,
            model,
            told,
            ..
        } = self;
        let is_left = match &event {
            LinkEvent::Received { message } => {
                self.came += 1;
                model.hear(self.line, self.end, message)
            }
            LinkEvent::Session(SessionEvent::Final { reason }) => {
                told.push(Why::Link(*reason));
                model.break_off(Why::Link(*reason), None);
                true
            }
            _ => true,
        };
        let left = requests.take_link(event, |number, ended| {
            model.end(number, ended, 0);
            panics.event();
        });
        model.note(ensure(left.is_some() == is_left, "taken", || {
            format!("handed back: {left:?}, where that is {is_left}")
        }));
        left
    }

    /// Ends what is due at this time.
    pub(super) fn expire(&mut self, now: Instant, panics: &mut Panics) {
        let Self { requests, model, .. } = self;
        panics.through(|panics| {
            requests.expire(now, |number, ended| {
                model.end(number, ended, now.to_ns());
                panics.event();
            });
        });
    }

    /// Fails all requests, as an application does that gives its peer up. If its callback panics, the rest fails as what is due ends.
    pub(super) fn give_up(&mut self, now: Instant, panics: &mut Panics) {
        let Self { requests, model, .. } = self;
        model.break_off(Why::GivenUp, None);
        let mut is_begun = false;
        panics.through(|panics| {
            let each = |number, ended: doorbell::requests::Ended<'_>| {
                model.end(number, ended, now.to_ns());
                panics.event();
            };
            if core::mem::replace(&mut is_begun, true) {
                requests.expire(now, each);
            } else {
                requests.fail(RequestFailure::GivenUp, each);
            }
        });
    }
}
