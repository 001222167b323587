//! One end of the link: sends or receives the file, and makes sure that both ends finish with a reason.

use core::time::Duration;

use doorbell::provider::{Instant, Network, Provider};

use super::Fault;
use super::line::{Line, LineEvent};
use super::receiver::Receiver;
use super::sender::Sender;
use super::wire::Message;
use crate::link::span;
use crate::report::Failure;

/// Time for which this side waits until the peer has received the reason for giving up, and until the link is closed.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);

pub(super) enum Part<P: Provider> {
    Send(Sender<P>),
    Receive(Receiver<P>),
}

/// The limits of an end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// The longest wait for the other side, and the longest time without progress.
    pub(super) timeout: Duration,
    /// Time limit for the whole file, from the connection on.
    pub(super) within: Option<Duration>,
}

pub(super) struct End<P: Provider, N: Network> {
    pub(super) line: Line<P, N>,
    pub(super) part: Part<P>,
    limits: Limits,
    began: Instant,
    progress_at: Instant,
    /// The largest number of bytes that the receiver was known to have.
    pub(super) landed: u64,
    /// Time at which the file was complete at the receiver.
    pub(super) done_at: Option<Instant>,
    pub(super) failure: Option<String>,
    closing: Option<Instant>,
    has_cancelled: bool,
    /// Whether closing took too long.
    is_given_up: bool,
}

impl<P: Provider, N: Network> End<P, N> {
    pub(super) fn new(line: Line<P, N>, part: Part<P>, limits: Limits) -> Self {
        let now = line.now();
        Self {
            line,
            part,
            limits,
            began: now,
            progress_at: now,
            landed: 0,
            done_at: None,
            failure: None,
            closing: None,
            has_cancelled: false,
            is_given_up: false,
        }
    }

    /// Whether nothing more has to be done.
    pub(super) fn is_over(&self) -> bool {
        let is_alone = self.failure.is_some() && self.line.link.is_none();
        let is_naming = matches!(&self.part, Part::Receive(receiver) if receiver.is_naming());
        self.line.watch.over.is_some() && !is_naming || self.is_given_up || is_alone
    }

    /// The number of bytes that the receiver has.
    pub(super) fn landed_bytes(&self) -> u64 {
        match &self.part {
            Part::Send(sender) => sender.landed_bytes(&self.line),
            Part::Receive(receiver) => receiver.landed_bytes(&self.line),
        }
    }

    /// The length of the file, after it is known.
    pub(super) const fn bytes(&self) -> Option<u64> {
        match &self.part {
            Part::Send(sender) => Some(sender.plan.bytes),
            Part::Receive(receiver) => match &receiver.plan {
                Some(plan) => Some(plan.bytes),
                None => None,
            },
        }
    }

    /// Whether the receiver has the complete file: the sender has its answer, or the receiver its sum.
    const fn is_done(&self) -> bool {
        match &self.part {
            Part::Send(sender) => sender.answer.is_some(),
            Part::Receive(receiver) => receiver.sum.is_some(),
        }
    }

    /// Gives up, and sends the reason to the peer. It is too late once the file gets its name.
    pub(super) fn give_up(&mut self, fault: Fault) {
        if self.failure.is_some() || self.done_at.is_some() {
            return;
        }
        let is_in_time = match &mut self.part {
            Part::Send(_) => true,
            Part::Receive(receiver) => receiver.let_go(),
        };
        if !is_in_time {
            return;
        }
        self.failure = Some(fault.here);
        if let Some(why) = fault.said {
            self.line.be_silent();
            self.line.queue(&Message::Failed { why });
        }
    }

    /// Advances as far as possible. With `wait`, waits for the thread that reads or writes. Returns whether anything happened.
    pub(super) fn turn(&mut self, wait: bool) -> Result<bool, Failure> {
        let heard = self.line.turn()?;
        let mut has_moved = !heard.is_empty();
        for heard in heard {
            if let Err(fault) = self.handle(heard) {
                self.give_up(fault);
            }
        }
        if self.failure.is_none() {
            let moved = match &mut self.part {
                Part::Send(sender) => sender.turn(&mut self.line, wait),
                Part::Receive(receiver) => receiver.turn(&mut self.line, wait),
            };
            match moved {
                Ok(moved) => has_moved |= moved,
                Err(fault) => self.give_up(fault),
            }
        }
        let now = self.line.now();
        if self.failure.is_none() && self.is_done() && self.done_at.is_none() {
            self.done_at = Some(now);
        }
        self.judge(now, has_moved);
        self.close(now);
        Ok(has_moved)
    }

    fn handle(&mut self, heard: LineEvent) -> Result<(), Fault> {
        if self.failure.is_some() {
            return Ok(());
        }
        match (heard, &mut self.part) {
            (LineEvent::Message(bytes), part) => {
                let message = Message::parse(&bytes).map_err(|error| Fault::both(error.to_string()))?;
                match part {
                    Part::Send(sender) => sender.handle_message(message),
                    Part::Receive(receiver) => receiver.handle_message(&mut self.line, message),
                }
            }
            (LineEvent::Transfer(id, event), Part::Send(sender)) => sender.handle_transfer(id, event),
            (LineEvent::Transfer(id, event), Part::Receive(receiver)) => receiver.handle_transfer(id, event),
        }
    }

    /// Checks for the end of the link, and the time limits.
    fn judge(&mut self, now: Instant, has_moved: bool) {
        // The counts of transfers are not available after the transfers have ended.
        let landed = self.landed_bytes().max(self.landed);
        if has_moved || landed != self.landed {
            (self.landed, self.progress_at) = (landed, now);
        }
        if self.failure.is_some() || self.done_at.is_some() {
            return;
        }
        let arrived = || match self.bytes() {
            Some(bytes) => format!("{landed} of {bytes} bytes had arrived, and none are kept"),
            None => "nothing had arrived".to_owned(),
        };
        if let Some(reason) = self.line.watch.over {
            let mut why = format!("the link ended: {reason}; {}", arrived());
            for rail in &self.line.not_connected {
                why.push_str("; ");
                why.push_str(rail);
            }
            self.give_up(Fault {
                here: why,
                said: None,
            });
            return;
        }
        let timeout = self.limits.timeout;
        let connected_at = self.line.watch.connected_at;
        let late = self.limits.within.zip(connected_at);
        if let Some((within, _)) = late.filter(|(within, since)| span(*since, now) > *within) {
            let why = format!("not done within {} s: {}", within.as_secs_f64(), arrived());
            self.give_up(Fault::both(why));
        } else if connected_at.is_none() && span(self.began, now) > timeout {
            let seconds = timeout.as_secs_f64();
            let mut why = match self.part {
                Part::Send(_) => format!("the receiver was not reached within {seconds} s"),
                Part::Receive(_) => format!("no sender came within {seconds} s"),
            };
            if let Some(link) = self.line.link {
                for rail in self.line.links.not_connected(link) {
                    why.push_str(&format!("; {rail}"));
                }
            }
            if let Some(failed) = self.line.links.take_handshake_failure() {
                why.push_str(&format!("; the last handshake failed: {failed}"));
            }
            self.give_up(Fault::both(why));
        } else if connected_at.is_some() && span(self.progress_at, now) > timeout {
            let seconds = timeout.as_secs_f64();
            let why = format!("no progress for {seconds} s: {}", arrived());
            self.give_up(Fault::both(why));
        }
    }

    /// Closes the link after the peer has received everything that it needs to know.
    fn close(&mut self, now: Instant) {
        // The sender closes the link. A receiver waits for that as long as for anything else.
        let patience = match self.part {
            Part::Send(_) => Duration::ZERO,
            Part::Receive(_) => self.limits.timeout,
        };
        let is_done = self.done_at.is_some_and(|at| span(at, now) >= patience);
        if self.failure.is_none() && !is_done {
            return;
        }
        let since = *self.closing.get_or_insert(now);
        let is_late = span(since, now) > CLOSE_WITHIN;
        if !self.has_cancelled && (self.line.is_heard() || is_late || self.line.open().is_none()) {
            self.has_cancelled = true;
            match &mut self.part {
                Part::Send(sender) => sender.cancel(&mut self.line),
                Part::Receive(receiver) => receiver.cancel(&mut self.line),
            }
            self.line.close(CLOSE_WITHIN);
        }
        self.is_given_up = span(since, now) > CLOSE_WITHIN.saturating_mul(3);
    }
}
