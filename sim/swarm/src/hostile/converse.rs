//! The actions of the host that speaks by the document, and their expected outcomes.

use core::time::Duration;

use super::{ANSWERED_NS, HostileRun, LEFT_NS, Line, label};
use crate::by_document::{self, ACCEPT, FARE, READY, WELCOME};
use crate::failure::{Verdict, ensure, failure};
use crate::hostile::case::HostileCase;
use crate::hostile::other::Other;
use crate::station::address;

impl HostileRun<'_> {
    /// A host connects that shares nothing with the product.
    pub(super) fn connect_other(&mut self) -> Verdict {
        if self.other.is_some() {
            return Ok(());
        }
        let document = |detail| failure("document", detail);
        let liar = self.parties.len();
        let HostileCase { receives, start, .. } = self.hostile;
        let other = Other::new(&self.liar, address(liar, 0), receives, start).map_err(document)?;
        let mut stranger = self.stranger(true)?;
        stranger.offer = other.offer();
        stranger.say_hello();
        self.other = Some((stranger, other, Line::default()));
        let heard = |run: &Self, kind| {
            let stranger = run.other.as_ref().map(|(stranger, ..)| stranger);
            stranger.is_some_and(|stranger| stranger.heard_of(kind).is_some())
        };
        let has_heard = self.until(ANSWERED_NS, |run| heard(run, WELCOME))?;
        ensure(has_heard, "document", || "no Welcome".into())?;
        if let Some((stranger, ..)) = &mut self.other {
            stranger.say_connect();
        }
        let has_heard = self.until(ANSWERED_NS, |run| heard(run, ACCEPT))?;
        ensure(has_heard, "document", || "no Accept".into())?;
        if let Some((stranger, other, _)) = &mut self.other {
            let offer = stranger.accepted().ok_or_else(|| document("no Accept".into()))?;
            let config = &self.case.lines[0];
            let is_as_made = offer.receive_depth == config.receive_depths[1]
                && offer.slot_bytes == self.case.hosts[0].slot_bytes
                && offer.reads_served.min(offer.reads_wanted) == config.rd_atomic_max;
            ensure(is_as_made, "document", || format!("{offer:?} is offered"))?;
            other.connect(offer).map_err(document)?;
            let ready = by_document::frame(stranger.greeting.version(), READY, &[]);
            stranger.say(&ready);
        }
        let is_made = |run: &Self| {
            let other = run.other.as_ref();
            heard(run, READY) && other.is_some_and(|(_, _, line)| line.ends[1].is_some())
        };
        let is_made = self.until(ANSWERED_NS, is_made)?;
        ensure(is_made, "document", || "a channel is not accepted".into())?;
        self.note(liar, format_args!("is connected by the document"));
        Ok(())
    }

    /// Sends what its credits allow; more of those come, as long as it waits.
    pub(super) fn other_sends(&mut self, count: u8) -> Verdict {
        let document = |detail| failure("document", detail);
        for _ in 0..count {
            let Some((_, other, line)) = &mut self.other else {
                return Ok(());
            };
            if line.is_closing || line.farewell.is_some() || other.has_failed {
                return Ok(());
            }
            let credits = other.credits().map_err(document)?;
            let credits = credits.ok_or_else(|| document(format!("{:02x?} is announced", other.told())))?;
            if credits == 0 {
                let came = self.until(ANSWERED_NS, |run| {
                    let other = run.other.as_ref().map(|(_, other, _)| other);
                    other.is_some_and(|other| matches!(other.credits(), Ok(Some(1..))))
                })?;
                ensure(came, "document", || "receives are not announced".into())?;
                continue;
            }
            let label = label(u32::MAX, 0, line.sent[0]);
            other.send(&label.bytes(40)).map_err(document)?;
            line.sent[0] += 1;
            let came = self.until(ANSWERED_NS, |run| {
                let line = run.other.as_ref().map(|(_, _, line)| line);
                line.is_none_or(|line| line.came[0] == line.sent[0])
            })?;
            ensure(came, "document", || "a message that it sent is not there".into())?;
        }
        Ok(())
    }

    /// The host that accepted sends it so many, no more of which come than it has posted receives for.
    pub(super) fn send_other(&mut self, count: u8) -> Verdict {
        for _ in 0..count {
            let Some((_, _, line)) = &self.other else {
                return Ok(());
            };
            let (id, label) = (line.ends[1], label(u32::MAX, 1, line.sent[1]));
            if line.is_closing || line.farewell.is_some() || self.send_from(0, id, label)?.is_err() {
                break;
            }
            if let Some((_, _, line)) = &mut self.other {
                line.sent[1] += 1;
            }
        }
        let came = self.until(ANSWERED_NS, |run| {
            let line = run.other.as_ref().map(|(_, _, line)| line);
            line.is_none_or(|line| line.came[1] == line.sent[1])
        })?;
        let has_failed = self.other.as_ref().is_some_and(|(_, other, _)| other.has_failed);
        ensure(came || has_failed, "document", || {
            "a message to it is not there".into()
        })
    }

    /// It posts again: then it may be sent as many.
    pub(super) fn other_posts(&mut self) -> Verdict {
        let Some((_, other, line)) = &mut self.other else {
            return Ok(());
        };
        if line.is_closing || line.farewell.is_some() || other.has_failed {
            return Ok(());
        }
        other.repost().map_err(|detail| failure("document", detail))?;
        self.pass(ANSWERED_NS)?;
        let Some((_, other, line)) = &self.other else {
            return Ok(());
        };
        let (waiting, id) = (other.waiting(), line.ends[1]);
        let channel = id.and_then(|id| self.parties[0].workers[0].channel(id));
        let credits = channel.map(|channel| channel.credits());
        ensure(credits == Some(waiting), "document", || {
            format!("{waiting} receives are announced, and {credits:?} are known")
        })
    }

    /// Writes an announcement that no honest peer makes, and checks that it adds no credits.
    pub(super) fn other_lies(&mut self, how: u8) -> Verdict {
        let Some((_, other, line)) = &mut self.other else {
            return Ok(());
        };
        if line.is_closing || line.farewell.is_some() || other.has_failed {
            return Ok(());
        }
        let document = |detail| failure("document", detail);
        let id = line.ends[1];
        let credits = |run: &mut Self| {
            let channel = id.and_then(|id| run.parties[0].workers[0].channel(id));
            channel.map(|channel| channel.credits())
        };
        let sent = other.peer_start().wrapping_add(line.sent[1] as u32);
        let depth = self.hostile.receives;
        let right = by_document::announcement(sent.wrapping_add(depth));
        let bytes = match how % 5 {
            0 => by_document::announcement(sent.wrapping_add(depth + 1)),
            1 => by_document::announcement(sent.wrapping_sub(1)),
            2 => by_document::announcement(sent.wrapping_add(1 << 31)),
            3 => [
                right[0],
                right[1],
                right[2],
                right[3],
                right[4],
                right[5],
                right[6],
                right[7] ^ 1,
            ],
            _ => [
                right[7], right[6], right[5], right[4], right[3], right[2], right[1], right[0],
            ],
        };
        let before = credits(self);
        if let Some((_, other, _)) = &mut self.other {
            other.write(&bytes).map_err(document)?;
        }
        self.pass(ANSWERED_NS)?;
        let after = credits(self);
        // It may have hidden what was right.
        ensure(after <= before, "document", || {
            format!("{bytes:02x?} is believed: {before:?} credits, and {after:?} then")
        })?;
        // A right announcement after it is believed again.
        self.other_posts()
    }

    /// It says farewell, or something that looks like one.
    pub(super) fn other_leaves(&mut self, how: u8) -> Verdict {
        let document = |detail| failure("document", detail);
        let Some((_, other, line)) = &mut self.other else {
            return Ok(());
        };
        let has_credit = matches!(other.credits(), Ok(Some(1..)));
        if line.is_closing || line.farewell.is_some() || other.has_failed || !has_credit {
            return Ok(());
        }
        let (start, peer_start, sent) = (other.start(), other.peer_start(), other.sent);
        let (bytes, word, is_farewell) = match how % 5 {
            0 => (
                by_document::farewell(start, sent.wrapping_add(1), peer_start),
                FARE,
                false,
            ),
            1 => (
                by_document::farewell(start, sent, peer_start.wrapping_add(1)),
                FARE,
                false,
            ),
            2 => (by_document::farewell(start, sent, peer_start), FARE ^ 1, false),
            _ => (by_document::farewell(start, sent, peer_start), FARE, true),
        };
        let before = line.told.len();
        other.write_telling(&bytes, word).map_err(document)?;
        let heard = self.until(ANSWERED_NS, |run| {
            let line = run.other.as_ref().map(|(_, _, line)| line);
            line.is_some_and(|line| line.farewell.is_some() || line.told.len() > before)
        })?;
        let Some((_, _, line)) = &mut self.other else {
            return Ok(());
        };
        // It is no message of the application's.
        let is_right = if is_farewell {
            line.farewell == Some(true)
        } else {
            line.farewell.is_none() && line.told.last() == Some(&(8, word))
        };
        ensure(heard && is_right, "document", || {
            format!(
                "{bytes:02x?} with {word:#x} is told as {:?} and {:?}",
                line.farewell,
                line.told.last()
            )
        })?;
        if is_farewell {
            return self.other_is_gone();
        }
        Ok(())
    }

    /// The host that accepted closes, and announces that as the document says.
    pub(super) fn leave_other(&mut self) -> Verdict {
        let Some((_, other, line)) = &mut self.other else {
            return Ok(());
        };
        let Some(id) = line.ends[1].filter(|_| !line.is_closing && line.farewell.is_none()) else {
            return Ok(());
        };
        // A false announcement may have overwritten a right one, and then hides it.
        let worker = &mut self.parties[0].workers[0];
        let credits = worker.channel(id).map_or(0, |channel| channel.credits());
        let has_receive = other.waiting() > 0 && !other.has_failed && credits > 0;
        line.is_closing = true;
        let deadline = worker.within(Duration::from_millis(50));
        let begun = worker.begin_close(id, deadline);
        begun.map_err(|error| failure("close", error.to_string()))?;
        self.until(LEFT_NS, |run| {
            let line = run.other.as_ref().map(|(_, _, line)| line);
            line.is_none_or(|line| line.farewell.is_some())
        })?;
        let said = self.other.as_ref().and_then(|(_, _, line)| line.farewell);
        ensure(said.is_some() || !has_receive, "document", || {
            "no farewell is said".into()
        })?;
        self.other_is_gone()
    }

    fn other_is_gone(&mut self) -> Verdict {
        let is_gone = self.until(LEFT_NS, |run| {
            let line = run.other.as_ref().map(|(_, _, line)| line);
            line.is_none_or(|line| line.is_gone)
        })?;
        self.other = None;
        ensure(is_gone, "conserved", || {
            "a channel is not gone whose peer is".into()
        })
    }
}
