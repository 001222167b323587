//! The messages between this member and another. The sender keeps them until they are acknowledged. The receiver accepts each once, in
//! order.

use std::collections::VecDeque;
use std::sync::Arc;

use doorbell_core::{Deadline, Instant};

use super::config::MeshConfig;
use super::frame::{Grant, PairHeader};
use super::pool::Pool;

/// Messages between this member and another, since both started.
#[derive(Debug, Default)]
pub(super) struct Member {
    /// Start of the other member; `None` until it is known.
    pub(super) started: Option<u64>,
    /// Frames that the other member has not acknowledged. The first has the number `acknowledged`.
    kept: VecDeque<Arc<Vec<u8>>>,
    acknowledged: u32,
    /// Number of kept frames that were sent and do not have to be retransmitted now.
    sent: usize,
    /// Number of kept frames that were sent at least once. An honest member acknowledges no others.
    sent_once: usize,
    /// Number of frames that the other member accepts, from `acknowledged` on.
    room: u32,
    resend_at: Option<Deadline>,
    /// Time to send a message although the other member reported no room: its later report of room may be lost.
    probe_at: Option<Deadline>,
    /// Whether the link towards the other member refused the last frame.
    pub(super) is_refused: bool,
    /// Frames that arrived and that the application has not received yet, with their headers.
    arrived: VecDeque<Arc<Vec<u8>>>,
    /// The number of the next message from the other member.
    expected: u32,
    /// Messages that the application received since the last grant was sent.
    unreported: u32,
    /// Whether a grant has to be sent now, alone or with a message.
    owes_grant: bool,
    /// Whether a message arrived, or the application received one, since the last grant was sent.
    has_news: bool,
    /// Time of the next grant, unless a message carries one earlier.
    grant_at: Option<Deadline>,
    pub(super) counts: MeshMemberCounts,
}

/// Counts of the messages between this member and another, over all starts of the other member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MeshMemberCounts {
    /// Messages to the other member that were accepted for sending.
    pub sent: u64,
    /// Messages from the other member that the application received.
    pub received: u64,
    /// Messages to the other member that were retransmitted.
    pub sent_again: u64,
    /// Messages to the other member that it has not acknowledged.
    pub waiting: u64,
}

impl Member {
    /// Begins anew with a member that became known or was restarted. Messages of the earlier start are dropped.
    pub(super) fn begin(&mut self, started: u64, window: u32, pool: &mut Pool) {
        let kept = self.kept.drain(..).chain(self.arrived.drain(..));
        kept.for_each(|frame| pool.give_back(frame));
        *self = Self {
            started: Some(started),
            room: window,
            counts: self.counts,
            ..Self::default()
        };
    }

    /// Whether one more message is accepted for sending. If the other member has no room, one message is still accepted, as a probe.
    pub(super) fn has_room(&self, config: &MeshConfig) -> bool {
        let kept = u32::try_from(self.kept.len()).unwrap_or(u32::MAX);
        kept < config.window.min(self.room.max(1))
    }

    /// Returns the number of the next message that is accepted for sending.
    pub(super) fn next_sequence(&self) -> u32 {
        let kept = u32::try_from(self.kept.len()).unwrap_or(u32::MAX);
        self.acknowledged.wrapping_add(kept)
    }

    /// Returns the counts.
    pub(super) fn counts(&self) -> MeshMemberCounts {
        MeshMemberCounts {
            waiting: u64::try_from(self.kept.len()).unwrap_or(u64::MAX),
            ..self.counts
        }
    }

    pub(super) fn keep(&mut self, frame: Arc<Vec<u8>>) {
        self.counts.sent = self.counts.sent.wrapping_add(1);
        self.kept.push_back(frame);
    }

    /// Returns the frame to send next, and whether it carries the current grant. A frame that a link still shares cannot be changed, and
    /// carries an older grant. If the other member reported no room, the frame is returned after some time, as a probe. The other
    /// member answers the probe with its room, since an earlier report may be lost.
    pub(super) fn unsent(&mut self, now: Instant, config: &MeshConfig) -> Option<(&Arc<Vec<u8>>, bool)> {
        let grant = self.grant(config);
        let frame = self.kept.get_mut(self.sent)?;
        if self.room == 0 {
            let after = || Deadline::after(now, config.resend_after);
            let is_due = self.probe_at.get_or_insert_with(after).has_passed(now);
            is_due.then_some(())?;
        }
        let alone = Arc::get_mut(frame);
        let has_grant = alone.map(|frame| grant.put_into(frame)).is_some();
        Some((frame, has_grant))
    }

    pub(super) fn did_send(&mut self, has_grant: bool, now: Instant, config: &MeshConfig) {
        if has_grant {
            self.did_grant();
        }
        self.sent_once = self.sent_once.max(self.sent.saturating_add(1));
        if self.room == 0 {
            // A probe does not count as sent. The frame is sent again when there is room, or as the next probe.
            self.probe_at = None;
            return;
        }
        self.sent = self.sent.saturating_add(1);
        self.resend_at
            .get_or_insert_with(|| Deadline::after(now, config.resend_after));
    }

    /// Marks all unacknowledged frames to be retransmitted; returns their number.
    pub(super) fn send_again(&mut self) -> u64 {
        self.resend_at = None;
        let again = u64::try_from(core::mem::take(&mut self.sent)).unwrap_or(u64::MAX);
        self.counts.sent_again = self.counts.sent_again.wrapping_add(again);
        again
    }

    pub(super) fn is_resend_due(&self, now: Instant) -> bool {
        self.resend_at.is_some_and(|at| at.has_passed(now))
    }

    /// Whether a frame of the other member belongs to the current starts of both.
    pub(super) fn is_of_now(&self, pair: &PairHeader, config: &MeshConfig) -> bool {
        self.started == Some(pair.source_started) && pair.destination_started == config.started
    }

    /// Applies a grant of the other member: which messages it has, and how many more it accepts. A grant that is older than the last one
    /// changes nothing. Returns false if the grant acknowledges a message that was not sent, which no honest member does.
    pub(super) fn hear_grant(
        &mut self,
        grant: Grant,
        now: Instant,
        config: &MeshConfig,
        pool: &mut Pool,
    ) -> bool {
        let came = grant.expected.wrapping_sub(self.acknowledged);
        let sent_once = u32::try_from(self.sent_once).unwrap_or(u32::MAX);
        if came > sent_once {
            let is_older = came > u32::MAX / 2;
            return is_older;
        }
        for _ in 0..came {
            if let Some(frame) = self.kept.pop_front() {
                pool.give_back(frame);
            }
            self.sent = self.sent.saturating_sub(1);
            self.sent_once = self.sent_once.saturating_sub(1);
        }
        self.acknowledged = grant.expected;
        // If two grants expect the same message, the one with less room is older, and took another route.
        self.room = if came > 0 {
            grant.room
        } else {
            self.room.max(grant.room)
        };
        if self.room > 0 || self.kept.is_empty() {
            self.probe_at = None;
        }
        if came > 0 {
            self.resend_at = (self.sent > 0).then(|| Deadline::after(now, config.resend_after));
        }
        true
    }

    /// Accepts a message if it is the next one and there is room. Returns whether it was accepted.
    pub(super) fn hear(
        &mut self,
        sequence: u32,
        config: &MeshConfig,
        frame: impl FnOnce() -> Arc<Vec<u8>>,
    ) -> bool {
        let waiting = u32::try_from(self.arrived.len()).unwrap_or(u32::MAX);
        let is_next = sequence == self.expected && waiting < config.window;
        if is_next {
            self.arrived.push_back(frame());
            self.expected = self.expected.wrapping_add(1);
            self.has_news = true;
        }
        // With half of the window filled, the sender may soon wait for a grant, so it is sent at once. A refused message also causes one.
        self.owes_grant |= !is_next || waiting.saturating_add(1) >= config.window / 2;
        is_next
    }

    /// Returns the frame of the next message for the application, and keeps it.
    pub(super) fn next(&self) -> Option<&[u8]> {
        self.arrived.front().map(|frame| frame.as_slice())
    }

    /// Takes the frame of the next message for the application.
    pub(super) fn take(&mut self, config: &MeshConfig) -> Option<Arc<Vec<u8>>> {
        let frame = self.arrived.pop_front()?;
        self.counts.received = self.counts.received.wrapping_add(1);
        self.unreported = self.unreported.saturating_add(1);
        self.has_news = true;
        self.owes_grant |= self.unreported >= (config.window / 2).max(1);
        Some(frame)
    }

    /// Whether a grant has to be sent now.
    pub(super) fn is_grant_due(&mut self, now: Instant, config: &MeshConfig) -> bool {
        if self.has_news {
            let after = || Deadline::after(now, config.acknowledge_after);
            self.owes_grant |= self.grant_at.get_or_insert_with(after).has_passed(now);
        }
        if self.owes_grant {
            self.grant_at = None;
        }
        self.owes_grant
    }

    /// Sends the grant again, since the last one may be lost.
    pub(super) fn grant_again(&mut self) {
        (self.owes_grant, self.grant_at) = (self.started.is_some(), None);
    }

    /// Returns the latest time of the next poll: to send a grant, to send, or to retransmit. After a link refused a frame there is no
    /// such time for it: the link accepts more only after a completion, which causes a poll.
    pub(super) fn wake(&self, now: Instant) -> Option<Deadline> {
        let has_unsent = self.sent < self.kept.len() && (self.room > 0 || self.probe_at.is_none());
        let can_go = (has_unsent || self.owes_grant) && !self.is_refused;
        let is_untimed = self.has_news && self.grant_at.is_none() && !self.owes_grant;
        let at_once = (can_go || is_untimed).then(|| Deadline::at(now));
        let probe = self.probe_at.filter(|_| !self.is_refused);
        let timers = self.grant_at.into_iter().chain(self.resend_at).chain(probe);
        timers.chain(at_once).min()
    }

    /// Returns the current grant for the other member: the next expected message, and how many are accepted from it on.
    pub(super) fn grant(&self, config: &MeshConfig) -> Grant {
        let waiting = u32::try_from(self.arrived.len()).unwrap_or(u32::MAX);
        Grant {
            expected: self.expected,
            room: config.window.saturating_sub(waiting),
        }
    }

    pub(super) const fn did_grant(&mut self) {
        (self.owes_grant, self.has_news, self.grant_at) = (false, false, None);
        self.unreported = 0;
    }
}

#[cfg(test)]
mod tests {
    use doorbell_core::Instant;
    use doorbell_core::rank::Rank;

    use super::{Arc, Grant, Member, MeshConfig, PairHeader, Pool};

    #[test]
    fn what_was_not_sent_has_not_come_whoever_says_so() {
        let config = MeshConfig::new(Rank::FIRST, 2, 1);
        let (now, mut pool) = (Instant::from_ns(1), Pool::new(64));
        let mut member = Member::default();
        member.begin(1, config.window, &mut pool);
        let mut hear = |member: &mut Member, expected| {
            let grant = Grant { expected, room: 16 };
            let is_true = member.hear_grant(grant, now, &config, &mut pool);
            (is_true, member.counts().waiting)
        };
        (0..3).for_each(|_| member.keep(Arc::new(vec![0; 64])));
        assert_eq!(hear(&mut member, 1), (false, 3));
        member.did_send(true, now, &config);
        member.did_send(true, now, &config);
        assert_eq!(hear(&mut member, 3), (false, 3));
        assert_eq!(hear(&mut member, 1), (true, 2));
        // An older grant that took another route.
        assert_eq!(hear(&mut member, 0), (true, 2));
        // A message that is to be retransmitted may have arrived all the same.
        assert_eq!(member.send_again(), 1);
        assert_eq!(hear(&mut member, 3), (false, 2));
        assert_eq!(hear(&mut member, 2), (true, 1));
        assert_eq!(hear(&mut member, 3), (false, 1));
    }

    #[test]
    fn a_frame_that_a_link_shares_goes_as_it_is_and_the_grant_stays_due() {
        let config = MeshConfig::new(Rank::FIRST, 2, 1);
        let (now, mut pool) = (Instant::from_ns(1), Pool::new(64));
        let mut member = Member::default();
        member.begin(1, config.window, &mut pool);
        member.keep(Arc::new(vec![0; 64]));
        assert!(!member.hear(7, &config, || pool.fill(&[])), "out of turn");
        // First a link shares the frame. Then that link is lost, and another sends the frame.
        let (mut shared, mut is_due) = (None, Vec::new());
        for _ in 0..2 {
            let (frame, has_grant) = member.unsent(now, &config).unwrap();
            shared.get_or_insert_with(|| Arc::clone(frame));
            member.did_send(has_grant, now, &config);
            is_due.push(member.is_grant_due(now, &config));
            member.send_again();
            member.grant_again();
        }
        assert_eq!(is_due, [false, true]);
        drop(shared);
        let (_, has_grant) = member.unsent(now, &config).unwrap();
        assert!(has_grant);
    }

    #[test]
    fn nothing_of_the_start_before_is_left_but_its_counts() {
        let config = MeshConfig::new(Rank::FIRST, 2, 1);
        let (now, mut pool) = (Instant::from_ns(1), Pool::new(64));
        let mut member = Member::default();
        member.begin(1, config.window, &mut pool);
        for number in 0..3 {
            assert!(member.hear(number, &config, || Arc::new(vec![0; 64])));
            member.keep(Arc::new(vec![0; 64]));
        }
        assert!(member.take(&config).is_some());
        member.did_send(true, now, &config);
        member.is_refused = true;
        let before = member.counts();
        assert_eq!((before.sent, before.received, before.waiting), (3, 1, 3));
        member.begin(2, config.window, &mut pool);
        assert!(member.next().is_none() && member.take(&config).is_none());
        assert!(member.unsent(now, &config).is_none());
        let grant = Grant {
            expected: 0,
            room: config.window,
        };
        assert_eq!((member.grant(&config), member.next_sequence()), (grant, 0));
        assert_eq!((member.wake(now), member.is_refused), (None, false));
        let counts = member.counts();
        assert_eq!((counts.sent, counts.received, counts.waiting), (3, 1, 0));
        // Numbers begin anew, in both directions.
        assert!(!member.hear(3, &config, || Arc::new(vec![0; 64])));
        assert!(member.hear(0, &config, || Arc::new(vec![0; 64])));
    }

    #[test]
    fn a_frame_is_of_now_if_both_starts_are() {
        let config = MeshConfig::new(Rank::FIRST, 2, 7);
        let mut member = Member::default();
        let is_of_now = |member: &Member, source_started, destination_started| {
            let pair = PairHeader {
                source_started,
                destination_started,
                sequence: 0,
                grant: member.grant(&config),
            };
            member.is_of_now(&pair, &config)
        };
        assert!(!is_of_now(&member, 3, 7), "it is not known yet");
        member.begin(3, config.window, &mut Pool::new(64));
        for (source, destination) in [(2, 7), (4, 7), (3, 6), (3, 8), (7, 3)] {
            assert!(!is_of_now(&member, source, destination), "{source} {destination}");
        }
        assert!(is_of_now(&member, 3, 7));
    }
}
