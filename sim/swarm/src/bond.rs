//! A link as both its applications together see it, and the oracles over that: each message once and in order, none lost
//! as long as both are there, and each told of.

use std::collections::{BTreeSet, VecDeque};

use doorbell::link::{FinalReason, LinkId, PushRefusal, Sequence, SessionEvent};
use doorbell::wire::RefusalReason;

use crate::failure::{Verdict, ensure, failure};
use crate::pattern::{LINKED, Label};

/// A link, from when one end begins it until both are over.
#[derive(Debug)]
pub(crate) struct Bond {
    number: u32,
    pub(crate) line: usize,
    pub(crate) began_ns: u64,
    /// The end that connected, and the one that accepted.
    ends: [End; 2],
    /// The messages in each direction, by the sending end.
    pub(crate) flows: [Flow; 2],
    /// Rails that were up once.
    pub(crate) rails: BTreeSet<u8>,
    /// It is closed with all its rails up, nothing under way, and nothing going wrong.
    pub(crate) is_parting: bool,
    /// One of its ways is cut meanwhile, and another is whole.
    pub(crate) is_struck: bool,
}

#[derive(Debug, Default)]
pub(crate) struct End {
    pub(crate) id: Option<LinkId>,
    pub(crate) is_closing: bool,
    /// It was told of its end.
    pub(crate) is_over: bool,
    /// Its process went, and was told of nothing.
    pub(crate) is_replaced: bool,
    /// Since when it has no rail, as it was told.
    pub(crate) lost_ns: Option<u64>,
    /// It had a rail once.
    pub(crate) was_connected: bool,
    /// When it went, one way or the other.
    pub(crate) gone_ns: Option<u64>,
    /// Why it was over.
    pub(crate) reason: Option<FinalReason>,
    /// Since when each rail is up.
    pub(crate) up_ns: [Option<u64>; 8],
    /// When a rail was lost that had been up: since when, and when it went down.
    pub(crate) lost_rails_ns: [Option<[u64; 2]>; 8],
    /// By when it is closed.
    pub(crate) closes_by_ns: Option<u64>,
    /// The other does not take messages, as it was told.
    pub(crate) is_stalled: bool,
    /// It was told since that some are done.
    pub(crate) goes_on: bool,
}

/// The messages from one end to the other.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    /// The bytes of each message.
    sent: Vec<usize>,
    /// The last fragment of each that has no end yet.
    open: VecDeque<Sequence>,
    /// The fragments that are done, as the sender was told.
    done_fragments: u64,
    done: usize,
    unknown: usize,
    received: usize,
}

/// The room that an end has for messages that are not acknowledged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept {
    pub(crate) fragments: u64,
    /// None where messages are also written, in fragments of another length and into places that may be wanting.
    pub(crate) fragment_bytes: Option<u32>,
    /// Ends of messages may be reported late, since a callback panicked.
    pub(crate) may_lag: bool,
}

impl Flow {
    /// Checks whether a message was refused as too many exactly if it is. A part of the oldest message without an end may be acknowledged.
    fn check_room(&self, bytes: usize, kept: Kept, is_full: bool) -> Verdict {
        let Some(fragment_bytes) = kept.fragment_bytes else {
            return Ok(());
        };
        let more = bytes.div_ceil(fragment_bytes.max(1) as usize) as u64;
        let (least, most) = match (self.open.front(), self.open.back()) {
            (Some(first), Some(last)) => (last.0 - first.0 + 1, last.0 + 1 - self.done_fragments),
            _ => (0, 0),
        };
        let is_due = if is_full {
            most + more > kept.fragments
        } else {
            kept.may_lag || least + more <= kept.fragments
        };
        ensure(is_due, "refused", || {
            format!("{more} fragments beside {least} to {most} of {kept:?}: refused as too many: {is_full}")
        })
    }

    /// Whether a message has to come yet, or be told of: how far they are.
    pub(crate) fn awaits(&self) -> Option<u64> {
        let sent = self.sent.len();
        if self.done == sent && self.received == sent {
            return None;
        }
        Some((self.done + self.received) as u64)
    }
}

impl Bond {
    pub(crate) fn new(number: u32, line: usize, id: LinkId, now_ns: u64) -> Self {
        let mut ends = [End::default(), End::default()];
        (ends[0].id, ends[0].lost_ns) = (Some(id), Some(now_ns));
        Self {
            number,
            line,
            began_ns: now_ns,
            ends,
            flows: Default::default(),
            rails: BTreeSet::new(),
            is_parting: false,
            is_struck: false,
        }
    }

    pub(crate) const fn number(&self) -> u32 {
        self.number
    }

    pub(crate) const fn end(&self, end: usize) -> &End {
        &self.ends[end]
    }

    /// Returns the id of an end's link, until that end is gone.
    pub(crate) fn id(&self, end: usize) -> Option<LinkId> {
        let at = &self.ends[end];
        at.id.filter(|_| !at.has_gone())
    }

    /// The process of an end is the one that it was.
    pub(crate) fn is_same_process(&self, end: usize) -> bool {
        !self.ends[end].is_replaced
    }

    pub(crate) fn is_closing(&self, end: usize) -> bool {
        self.ends[end].is_closing
    }

    pub(crate) fn close(&mut self, end: usize, by_ns: u64) {
        self.ends[end].is_closing = true;
        self.ends[end].closes_by_ns.get_or_insert(by_ns);
    }

    /// The process of an end is another.
    pub(crate) fn replace(&mut self, end: usize, now_ns: u64) {
        self.ends[end].is_replaced = true;
        self.ends[end].gone_ns.get_or_insert(now_ns);
    }

    /// An end accepted it.
    pub(crate) fn accept(&mut self, id: LinkId) -> Verdict {
        let at = &mut self.ends[1];
        ensure(at.id.is_none(), "owner", || {
            format!("link {} is accepted twice", self.number)
        })?;
        at.id = Some(id);
        Ok(())
    }

    /// The end that began it has it.
    pub(crate) const fn has_initiator(&self) -> bool {
        !self.ends[0].has_gone()
    }

    /// Whether no rail came back less than so long ago: one end alone may have such a rail, until that notices.
    pub(crate) fn is_steady(&self, now_ns: u64, within_ns: u64) -> bool {
        let is_old =
            |up_ns: &Option<u64>| up_ns.is_some_and(|up_ns| now_ns.saturating_sub(up_ns) >= within_ns);
        self.ends.iter().all(|end| {
            let mut rails = end.up_ns.iter().zip(&end.lost_rails_ns);
            rails.all(|(up_ns, lost_ns)| lost_ns.is_none() || is_old(up_ns))
        })
    }

    /// Both ends are there, and know it.
    pub(crate) fn is_whole(&self) -> bool {
        self.ends
            .iter()
            .all(|at| at.id.is_some() && !at.has_gone() && !at.is_closing)
    }

    /// One of its ends goes, or has gone.
    pub(crate) fn is_ending(&self) -> bool {
        self.ends.iter().any(|at| at.has_gone() || at.is_closing)
    }

    /// Nobody has it any more.
    pub(crate) fn is_over(&self) -> bool {
        self.ends.iter().all(|at| at.has_gone() || at.id.is_none()) && self.ends[0].has_gone()
    }

    /// Nothing is awaited of it.
    pub(crate) fn is_quiet(&self) -> bool {
        let is_calm = |(flow, at): (&Flow, &End)| flow.awaits().is_none() && !at.is_stalled;
        self.is_over() || self.is_whole() && self.flows.iter().zip(&self.ends).all(is_calm)
    }

    /// The end that began it has sent nothing.
    pub(crate) fn is_silent(&self) -> bool {
        self.flows[0].sent.is_empty()
    }

    /// The next message of an end.
    pub(crate) fn next(&self, end: usize) -> Label {
        self.label(end, self.flows[end].sent.len())
    }

    /// The next message of an end was sent, or refused.
    pub(crate) fn sent(
        &mut self,
        end: usize,
        bytes: usize,
        sent: Result<Sequence, PushRefusal>,
        kept: Kept,
    ) -> Verdict {
        let (at, flow) = (&self.ends[end], &mut self.flows[end]);
        let is_lost = at.lost_ns.is_some();
        let is_due = match sent {
            Ok(_) => !at.is_closing && (!is_lost || kept.may_lag),
            Err(PushRefusal::Full) => true,
            Err(PushRefusal::Recovering) => is_lost || kept.may_lag,
            Err(PushRefusal::Closing) => at.is_closing,
            Err(_) => false,
        };
        ensure(is_due, "refused", || {
            format!(
                "end {end} of link {}: {sent:?}, without a rail: {is_lost}",
                self.number
            )
        })?;
        if let Ok(_) | Err(PushRefusal::Full) = sent {
            flow.check_room(bytes, kept, sent.is_err())?;
        }
        if let Ok(last) = sent {
            flow.sent.push(bytes);
            flow.open.push_back(last);
        }
        Ok(())
    }

    fn label(&self, end: usize, number: usize) -> Label {
        Label {
            connection: self.number,
            end: end as u8,
            stream: LINKED,
            number: number as u64,
        }
    }

    /// A message came to an end.
    pub(crate) fn hear(&mut self, end: usize, bytes: &[u8]) -> Verdict {
        let found = Label::of(bytes);
        let due = self.label(1 - end, self.flows[1 - end].received);
        let flow = &mut self.flows[1 - end];
        let Some(due_bytes) = flow.sent.get(flow.received) else {
            return Err(failure(
                "made up",
                format!("{found:?} where nothing more was sent"),
            ));
        };
        ensure(found == Some(due), "order", || {
            format!("{found:?} came where {due:?} was due")
        })?;
        ensure(due.bytes(*due_bytes) == bytes, "torn", || {
            format!("{} bytes of {due:?}", bytes.len())
        })?;
        flow.received += 1;
        ensure(!self.ends[end].has_gone(), "owner", || {
            format!("{due:?} behind the end")
        })
    }

    /// An end is told how its session is. A clock that jumps ends what is awaited by it.
    pub(crate) fn hear_session(
        &mut self,
        end: usize,
        event: SessionEvent,
        (now_ns, clocks_jump): (u64, bool),
    ) -> Verdict {
        let flow = &mut self.flows[end];
        let at = &mut self.ends[end];
        match event {
            SessionEvent::Connected | SessionEvent::Recovered => {
                (at.lost_ns, at.was_connected) = (None, true);
                Ok(())
            }
            SessionEvent::Recovering => {
                at.lost_ns = Some(now_ns);
                // A recovery says more than a stall.
                (at.is_stalled, at.goes_on) = (false, false);
                Ok(())
            }
            SessionEvent::Stalled | SessionEvent::Resumed => {
                let is_stalled = matches!(event, SessionEvent::Stalled);
                let was_stalled = core::mem::replace(&mut at.is_stalled, is_stalled);
                at.goes_on = false;
                ensure(was_stalled != is_stalled, "told", || format!("{event:?} again"))
            }
            SessionEvent::RailUp { rail } => {
                self.rails.insert(rail);
                at.up_ns[usize::from(rail)] = Some(now_ns);
                Ok(())
            }
            SessionEvent::RailDown { rail } => {
                let up_ns = at.up_ns[usize::from(rail)].take();
                at.lost_rails_ns[usize::from(rail)] = up_ns.map(|up_ns| [up_ns, now_ns]);
                Ok(())
            }
            SessionEvent::Done { through } => {
                at.goes_on = at.is_stalled;
                flow.done_fragments = through.0 + 1;
                while flow.open.front().is_some_and(|last| *last <= through) {
                    flow.open.pop_front();
                    flow.done += 1;
                }
                ensure(flow.unknown == 0, "told", || "done behind what is unknown".into())?;
                ensure(flow.done <= flow.received, "lost", || {
                    format!("{} messages are done, {} came", flow.done, flow.received)
                })
            }
            SessionEvent::Unknown {
                sequence, was_sent, ..
            } => {
                let open = flow.open.pop_front();
                ensure(open == Some(sequence), "told", || {
                    format!("{sequence:?} is unknown where {open:?} was due")
                })?;
                let index = flow.done + flow.unknown;
                flow.unknown += 1;
                ensure(was_sent || flow.received <= index, "told", || {
                    format!("message {index} was not sent, and came")
                })
            }
            SessionEvent::Final { reason } => {
                let is_told = flow.open.is_empty() && flow.done + flow.unknown == flow.sent.len();
                ensure(is_told, "told", || {
                    format!("the end, where messages have none: {:?}", flow.open)
                })?;
                let is_lost = flow.unknown > 0 && !at.is_closing;
                (at.is_over, at.reason, at.gone_ns) = (true, Some(reason), at.gone_ns.or(Some(now_ns)));
                let other = &self.ends[1 - end];
                let is_given_up = matches!(
                    reason,
                    FinalReason::Unreachable | FinalReason::EndedByPeer(RefusalReason::GIVEN_UP)
                );
                ensure(
                    !is_lost || is_given_up || other.has_gone() || other.is_closing || clocks_jump,
                    "lost",
                    || format!("{reason}, and of messages nothing is known"),
                )
            }
            _ => Ok(()),
        }
    }
}

impl End {
    pub(crate) const fn has_gone(&self) -> bool {
        self.is_over || self.is_replaced
    }
}
