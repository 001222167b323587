//! The acts of hosts that ask: requests, answers, and messages that are no proper one of either.

use core::time::Duration;

use doorbell::link::{LinkId, PushRefusal};
use doorbell::provider::Clock as _;
use doorbell::requests::{CorrelationId, NotSentKind};
use doorbell::{ChannelId, SendErrorKind};

use super::case::{Question, RequestAct};
use super::model::{Asking, Way, body, too_long};
use super::{Duty, Party, RequestsRun, Work};
use crate::failure::{Verdict, ensure, failure};
use crate::pattern::{DIRECT, Label};

/// Requests that wait at an end, at most.
const WANTED_MAX: usize = 200;

/// The bytes in front of a body.
const HEADER_BYTES: usize = 16;

/// A request is in the channel, or has to wait, or will never be.
enum Attempt {
    Sent,
    Waits,
    Refused,
}

impl RequestsRun<'_> {
    pub(super) fn act(&mut self, line: usize, end: usize, act: RequestAct) -> Verdict {
        let host = self.seats[line][end].host;
        self.note(host, format_args!("line {line} end {end}: {act:?}"));
        self.parties[host].nap = None;
        match act {
            RequestAct::Connect => self.connect(line),
            RequestAct::Ask { count, question } => {
                let seat = &mut self.seats[line][end];
                if !seat.is_ending() && seat.wanted.len() < WANTED_MAX {
                    seat.wanted.extend(core::iter::repeat_n(question, count.into()));
                }
                Ok(())
            }
            RequestAct::Cancel { nth } => self.cancel(line, end, nth.into()),
            RequestAct::GiveUp => {
                let now = self.parties[host].worker.context().now();
                self.seats[line][end].give_up(now, &mut self.panics);
                self.settle(host).map(drop)
            }
            RequestAct::Again => match self.seats[line][end].said.clone() {
                Some((id, body)) => self.send_message(line, end, &answer(id, &body)),
                None => Ok(()),
            },
            RequestAct::Unasked { how } => {
                let peer = &self.seats[line][1 - end].model;
                let id = peer.asked.last().map_or(0, |asking| asking.id.0);
                // An entry that is not there, a use that never was, and one that is to come.
                let id = match how % 3 {
                    0 => id | 0xf_0000,
                    1 => id & 0xffff_ffff,
                    _ => id.wrapping_add(1 << 60),
                };
                let id = CorrelationId(id);
                let is_known = peer.number(id).is_some();
                if is_known {
                    Ok(())
                } else {
                    self.send_message(line, end, &answer(id, b"unasked"))
                }
            }
            RequestAct::Plain { bytes } => {
                let message = self.plain(line, end, bytes.into());
                self.send_message(line, end, &message)
            }
            RequestAct::Close { within_ns } => self.close(line, end, within_ns),
            RequestAct::Leave => self.leave(host),
        }
    }

    /// A message that neither asks nor answers.
    pub(super) fn plain(&self, line: usize, end: usize, bytes: usize) -> Vec<u8> {
        let label = Label {
            connection: line as u32 + 2,
            end: end as u8,
            stream: DIRECT,
            number: 0,
        };
        let mut message = label.bytes(bytes);
        message.truncate(bytes);
        message
    }

    /// Sends a message, where there is room for it.
    fn send_message(&mut self, line: usize, end: usize, message: &[u8]) -> Verdict {
        let seat = &mut self.seats[line][end];
        let Some(id) = seat.id.filter(|_| !seat.is_closing) else {
            return Ok(());
        };
        let Party { worker, linked, .. } = &mut self.parties[seat.host];
        let sent = match (id, linked) {
            (Way::Channel(id), _) => worker.send(id, message).map(drop).map_err(NotSentKind::Channel),
            (Way::Link(id), Some(linked)) => {
                let sent = linked.links.send(id, message);
                sent.map(drop).map_err(NotSentKind::Link)
            }
            (Way::Link(_), None) => return Ok(()),
        };
        match sent {
            Ok(()) => {
                seat.sent += 1;
                Ok(())
            }
            Err(kind) => {
                let is_excused = kind.is_temporary() || self.may_fail(line);
                ensure(is_excused, "refused", || format!("line {line} end {end}: {kind}"))
            }
        }
    }

    /// Sends the requests that wait for room, as far as they are taken.
    pub(super) fn send_wanted(&mut self, host: usize) -> Verdict {
        for line in 0..self.seats.len() {
            for end in 0..2 {
                if self.seats[line][end].host != host {
                    continue;
                }
                while let Some(question) = self.seats[line][end].wanted.front().copied() {
                    if let Attempt::Waits = self.ask(line, end, question)? {
                        break;
                    }
                    self.seats[line][end].wanted.pop_front();
                }
            }
        }
        Ok(())
    }

    fn ask(&mut self, line: usize, end: usize, question: Question) -> Verdict<Attempt> {
        let Some(way) = self.seats[line][end].id else {
            return Ok(Attempt::Refused);
        };
        let due = self.refusal(line, end, question.bytes.into());
        let seat = &mut self.seats[line][end];
        let Party { worker, linked, .. } = &mut self.parties[seat.host];
        let deadline = worker.within(Duration::from_nanos(question.within_ns));
        let number = seat.model.asked.len();
        let bytes = body(line, end, false, number, question.bytes.into());
        let sent = match (way, linked) {
            (Way::Channel(id), _) => seat.requests.send(worker, id, &bytes, deadline, number),
            (Way::Link(id), Some(linked)) => {
                seat.requests
                    .send_link(&mut linked.links, id, &bytes, deadline, number)
            }
            (Way::Link(_), None) => return Ok(Attempt::Refused),
        };
        let refused = sent.as_ref().err().map(|refused| refused.kind);
        // Credits come while calls take time.
        let may_pass = self.case.call_ns > 0 && due == Some(NotSentKind::Channel(SendErrorKind::WouldBlock));
        // How much a link takes is its own affair.
        let may_wait = due.is_none()
            && match refused {
                Some(NotSentKind::Link(PushRefusal::Full | PushRefusal::Recovering)) => true,
                Some(NotSentKind::Link(PushRefusal::Closing)) => seat.is_closing,
                _ => false,
            };
        ensure(refused == due || may_pass || may_wait, "refused", || {
            format!("line {line} end {end}: request {number} is refused by {refused:?}, where {due:?} is due")
        })?;
        match sent {
            Ok(id) => {
                seat.sent += 1;
                let asking = Asking {
                    id,
                    question,
                    way,
                    connection: self.connections[line],
                    has_come: false,
                    said: None,
                };
                seat.model.begin(asking, deadline.instant().to_ns())?;
                let host = seat.host;
                self.note(host, format_args!("line {line} end {end}: asks {number}"));
                Ok(Attempt::Sent)
            }
            Err(refused) => {
                ensure(refused.context == number, "ownership", || {
                    format!("request {number} is handed back as {}", refused.context)
                })?;
                Ok(match refused.kind.is_temporary() {
                    true => Attempt::Waits,
                    false => Attempt::Refused,
                })
            }
        }
    }

    /// Why a request of so many bytes has to be refused now, where it has to.
    fn refusal(&mut self, line: usize, end: usize, bytes: usize) -> Option<NotSentKind> {
        let seat = &self.seats[line][end];
        let bytes_max = self.asking.body_bytes_max as usize;
        if bytes > bytes_max {
            return Some(NotSentKind::TooLong { bytes, bytes_max });
        }
        if seat.model.is_full() {
            return Some(NotSentKind::InFlight);
        }
        let Party { worker, .. } = &mut self.parties[seat.host];
        let id = seat.id.and_then(Way::channel)?;
        match worker.lease_for(id) {
            Err(kind) => Some(NotSentKind::Channel(kind)),
            Ok(lease) => {
                worker.release(lease);
                let bytes_max = self.case.hosts[seat.host].slot_bytes as usize - HEADER_BYTES;
                let of_peer = worker.channel(id)?.peer().message_bytes_max() as usize;
                let message_bytes = bytes + HEADER_BYTES;
                if bytes > bytes_max {
                    Some(NotSentKind::TooLong { bytes, bytes_max })
                } else if message_bytes > of_peer {
                    let (bytes, bytes_max) = (message_bytes, of_peer);
                    Some(NotSentKind::Channel(SendErrorKind::TooLong { bytes, bytes_max }))
                } else {
                    None
                }
            }
        }
    }

    /// One of those in flight is cancelled, and again, which changes nothing; or one that has ended.
    fn cancel(&mut self, line: usize, end: usize, nth: usize) -> Verdict {
        let seat = &mut self.seats[line][end];
        let (waiting, asked) = (seat.model.waiting.len(), seat.model.asked.len());
        let number = match (nth.checked_rem(waiting), nth.checked_rem(asked)) {
            (Some(nth), _) => seat.model.waiting.keys().nth(nth).copied(),
            (None, number) => number,
        };
        let Some(number) = number else {
            return Ok(());
        };
        let id = seat.model.asked[number].id;
        let cancelled = [(); 2].map(|()| seat.requests.cancel(id));
        let due = (waiting > 0).then_some(number);
        if waiting > 0 {
            seat.model.cancel(number);
        }
        ensure(cancelled == [due, None], "cancel", || {
            format!("line {line} end {end}: {cancelled:?}, where {due:?} is due")
        })
    }

    /// Answers what is due, as far as there is room.
    pub(super) fn answer_due(&mut self, host: usize) -> Verdict {
        let now_ns = self.now_ns();
        for duty in core::mem::take(&mut self.parties[host].duties) {
            let left = if duty.due_ns > now_ns {
                Some(duty)
            } else {
                self.answer(host, duty)?
            };
            self.parties[host].duties.extend(left);
        }
        Ok(())
    }

    /// Gives an answer; what there is no room for is left.
    fn answer(&mut self, host: usize, duty: Duty) -> Verdict<Option<Duty>> {
        let seat = &self.seats[duty.line][duty.end];
        let is_there = duty.connection == self.connections[duty.line] && !seat.is_closing;
        match seat.id.filter(|_| is_there) {
            Some(Way::Link(id)) => self.answer_link(host, duty, id),
            Some(Way::Channel(id)) => self.answer_channel(host, duty, id),
            None => {
                self.drop_work(host, duty.what);
                Ok(None)
            }
        }
    }

    /// The memory of a request goes back unanswered.
    fn drop_work(&mut self, host: usize, work: Work) {
        let lease = match work {
            Work::Asked(asked) => asked.into_lease(),
            Work::Answer(lease, _) => lease,
            Work::Linked => return,
        };
        self.parties[host].worker.release(lease);
    }

    fn answer_channel(&mut self, host: usize, duty: Duty, id: ChannelId) -> Verdict<Option<Duty>> {
        let Duty {
            line, end, number, ..
        } = duty;
        let Party { worker, .. } = &mut self.parties[host];
        let Some(channel) = worker.channel(id) else {
            self.drop_work(host, duty.what);
            return Ok(None);
        };
        let asking = &self.seats[line][1 - end].model.asked[number];
        let (request, wanted) = (asking.id, usize::from(asking.question.answer.unwrap_or(0)));
        let of = |bytes| body(line, 1 - end, true, number, bytes);
        let (lease, bytes) = match duty.what {
            Work::Linked => return Ok(None),
            Work::Answer(lease, bytes) => (lease, bytes),
            Work::Asked(mut asked) => {
                let most = asked.answer_bytes_max();
                if wanted > most {
                    asked = match asked.answer(&of(wanted)) {
                        Err(asked) if asked.id() == request => asked,
                        _ => return Err(too_long(wanted, most)),
                    };
                }
                let of_peer = channel.peer().message_bytes_max() as usize - HEADER_BYTES;
                let bytes = wanted.min(most).min(of_peer);
                let answer = asked.answer(&of(bytes));
                (answer.map_err(|_| too_long(bytes, most))?, bytes)
            }
        };
        match channel.send_lease(lease) {
            Ok(_) => {
                self.note_answered((line, end), number, of(bytes));
                Ok(None)
            }
            Err(refused) => {
                let lease = refused
                    .item
                    .ok_or_else(|| failure("ownership", "an answer is lost"))?;
                if refused.kind == SendErrorKind::WouldBlock {
                    let what = Work::Answer(lease, bytes);
                    return Ok(Some(Duty { what, ..duty }));
                }
                worker.release(lease);
                ensure(self.may_fail(line), "refused", || refused.kind.to_string())?;
                Ok(None)
            }
        }
    }

    fn answer_link(&mut self, host: usize, duty: Duty, id: LinkId) -> Verdict<Option<Duty>> {
        let Duty {
            line, end, number, ..
        } = duty;
        let asking = &self.seats[line][1 - end].model.asked[number];
        let (request, wanted) = (asking.id, usize::from(asking.question.answer.unwrap_or(0)));
        let Some(linked) = &mut self.parties[host].linked else {
            return Ok(None);
        };
        let most = linked.framing.body_bytes_max();
        let of = |bytes| body(line, 1 - end, true, number, bytes);
        if wanted > most && linked.framing.answer(request, &of(wanted)).is_some() {
            return Err(too_long(wanted, most));
        }
        let said = of(wanted.min(most));
        let answer = linked.framing.answer(request, &said);
        let answer = answer.ok_or_else(|| too_long(said.len(), most))?;
        match linked.links.send(id, answer) {
            Ok(_) => {
                self.note_answered((line, end), number, said);
                Ok(None)
            }
            Err(PushRefusal::Full | PushRefusal::Recovering) => Ok(Some(duty)),
            Err(refusal) => {
                ensure(self.may_fail(line), "refused", || refusal.to_string())?;
                Ok(None)
            }
        }
    }

    /// An end has answered a request of its peer's.
    fn note_answered(&mut self, (line, end): (usize, usize), number: usize, said: Vec<u8>) {
        let asking = &mut self.seats[line][1 - end].model.asked[number];
        asking.said = Some(said.len());
        let request = asking.id;
        let seat = &mut self.seats[line][end];
        seat.sent += 1;
        seat.said = Some((request, said));
        let host = seat.host;
        self.note(host, format_args!("line {line} end {end}: answers {number}"));
    }
}

/// An answer, as it goes over the wire.
fn answer(id: CorrelationId, body: &[u8]) -> Vec<u8> {
    let mut message = vec![1, 2, 0, 0, 0, 0, 0, 0];
    message.extend(id.0.to_be_bytes());
    message.extend(body);
    message
}
