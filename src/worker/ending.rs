//! Ends of channels that the other side caused: farewells of peers that close, and probes that detect dead peers.
//!
//! # Farewell
//! A side that closes a channel sends a farewell, a WRITE with immediate. The farewell uses a credit like a message, and the
//! entry of the send queue that is reserved for announcements. Without a credit the farewell is a plain WRITE into the peer's
//! credit word, where the peer finds it when the channel fails. A side whose peer closed keeps its queue pair for 10 ms, so that
//! its device acknowledges the farewell. If the acknowledgement comes too late, the other side's close lasts until its deadline,
//! and has no other effect. A peer that speaks version 1 of the handshake gets no farewell, and detects the end by its next
//! request or probe.
//!
//! A farewell in the credit word may say that messages are missing. They may still be in the receive completion queue. The end of
//! the channel is reported once a poll found that queue empty, or polls took as many completions as it has entries.
//!
//! A farewell is trusted like any message, so a hostile peer can end its own connection with one. The credit words of all peers
//! of a Worker are one window with one key, so a hostile peer can forge a farewell in the word of another peer. The forged
//! farewell can make a failure of that channel look like a close by its peer, with lost messages. A channel that works is not
//! affected, since it reads its word for a farewell only at a completion of its own.
//!
//! # Probes
//! A side that only receives gets no error from its transport when the peer dies, so the Worker probes silent peers.
//! `Worker::tend` reads the clock once in 1,024 calls and before a sleep. In a loop that sleeps between its polls it reads the
//! clock about every 20 ms. All channels are checked every 50 ms while the Worker has traffic, and else when the first channel is
//! due. A check of 10,000 channels takes some 50 µs. `Worker::poll` and the halves of a split Worker do not probe; call
//! `SendHalf::probe` there.
//!
//! If a probe has a timeout, `Worker::tend` gives the peer up once a poll after the timeout found the send completion queue
//! empty. The same holds once polls took as many completions as the queue has entries. So a loop that was away first finds an
//! answer that waits in the queue. A probe that the device refuses is retried. If the device may have posted a refused probe, a
//! signaled announcement follows it, and the transport's retries detect a dead peer.

use core::time::Duration;

use doorbell_core::{Deadline, Instant};
use doorbell_hotpath::FirstCause;

use crate::worker::config::ChannelConfig;
use crate::worker::event::ChannelState;

/// The end of a channel that this side did not close.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ending {
    /// Whether the application got the event of the end.
    pub(crate) is_reported: bool,
    /// `Some` once the peer closed the channel: whether all messages of the peer have arrived.
    pub(crate) peer_closed: Option<bool>,
}

/// Wait for messages that a farewell counts and that may still be in the receive completion queue.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MissingMessages {
    /// Whether a new round of receive completions has begun since the wait began.
    is_counted: bool,
}

impl MissingMessages {
    /// Notes a poll that took `received` receive completions. `is_round_over` says that polls took as many in this round as the
    /// queue has entries. Returns whether no completion from before the wait can be in the queue any more.
    pub(crate) const fn note_poll(&mut self, received: u32, is_round_over: bool) -> bool {
        received == 0 || is_round_over && core::mem::replace(&mut self.is_counted, true)
    }
}

/// State of a channel's probes, and settings for its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Care {
    /// Whether the peer understands farewells.
    pub(crate) says_farewell: bool,
    /// Whether the Worker closes the channel once it is lost.
    pub(crate) closes_when_lost: bool,
    /// Whether the channel was checked before, so that `seen` and `since` are valid.
    was_looked_at: bool,
    probed: Probed,
    /// Time limit for the answer to a probe, in milliseconds. [`NEVER_MS`] leaves it to the device's retransmissions.
    probe_timeout_ms: u32,
    /// Time of silence before a probe; [`NEVER`] disables probes. A [`Duration`] would take twice the bytes.
    probe_after_ns: u64,
    /// The traffic counts at the last check, and the time at which they were first seen, or at which the probe was posted.
    seen: (u32, u32),
    since: Instant,
}

/// State of the last probe, for a channel whose probes have a timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Probed {
    /// There is no probe, or the peer answered.
    No,
    /// The probe is in flight.
    Asked,
    /// The timeout is over. The completion of the probe may still be in the completion queue.
    Overdue,
    /// The timeout is over, and a new round of completions has begun since. A round is as many completions as the queue has
    /// entries.
    Counted,
    /// The timeout is over, and polls have since taken all completions that could have been in the queue then.
    Unanswered,
}

/// Traffic of a channel, as of a check.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traffic {
    /// Counts of received messages, and of sent messages and announcements.
    pub(crate) seen: (u32, u32),
    /// Whether a signaled request is in flight, so that a completion has to come.
    pub(crate) is_awaited: bool,
    /// Whether the request that was posted last is a probe, and is in flight.
    pub(crate) awaits_probe: bool,
}

/// Result of a check of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Nothing is to be done before this time.
    At(Instant),
    /// The peer is to be probed now.
    Probe,
    /// The probe is overdue. The next polls have to show whether its completion is in the queue.
    Await,
    /// The peer counts as dead.
    GiveUp,
}

/// Stands for no time in nanoseconds. Longer times than 584 years count as none.
const NEVER: u64 = u64::MAX;

/// Stands for no time in milliseconds. Longer times than 49 days count as none.
const NEVER_MS: u32 = u32::MAX;

impl Care {
    pub(crate) fn new(config: &ChannelConfig) -> Self {
        let probe_after_ns = config
            .probe_after
            .and_then(|span| u64::try_from(span.as_nanos()).ok());
        let timeout_ms = config
            .probe_timeout
            .map(|span| span.as_nanos().div_ceil(1_000_000).max(1));
        Self {
            says_farewell: false,
            closes_when_lost: config.close_when_lost,
            was_looked_at: false,
            probed: Probed::No,
            probe_timeout_ms: timeout_ms
                .and_then(|span| u32::try_from(span).ok())
                .unwrap_or(NEVER_MS),
            probe_after_ns: probe_after_ns.unwrap_or(NEVER),
            seen: (0, 0),
            since: Instant::from_ns(0),
        }
    }

    /// Returns the time of silence before a probe; `None` if the peer is never probed.
    pub(crate) const fn probe_after(&self) -> Option<Duration> {
        match self.probe_after_ns {
            NEVER => None,
            span_ns => Some(Duration::from_nanos(span_ns)),
        }
    }

    const fn probe_timeout(&self) -> Option<Duration> {
        match self.probe_timeout_ms {
            NEVER_MS => None,
            span_ms => Some(Duration::from_millis(span_ms as u64)),
        }
    }

    /// Checks the traffic of the channel. Returns what is to be done; `None` if the peer is never probed.
    pub(crate) fn look(&mut self, traffic: Traffic, now: Instant) -> Option<Look> {
        let span = self.probe_after()?;
        if let Some(look) = self.look_at_probe(traffic, now) {
            return Some(look);
        }
        let due = Deadline::after(self.note_seen(traffic, now), span);
        if due.has_passed(now) {
            Some(Look::Probe)
        } else {
            Some(Look::At(due.instant()))
        }
    }

    /// Checks whether the last probe was answered. Any traffic since counts as an answer. If requests were posted after the
    /// probe, the transport's retries decide, and the timeout does not apply.
    fn look_at_probe(&mut self, traffic: Traffic, now: Instant) -> Option<Look> {
        let timeout = self.probe_timeout().filter(|_| self.probed != Probed::No)?;
        if !traffic.awaits_probe || self.seen != traffic.seen {
            self.probed = Probed::No;
            return None;
        }
        let due = Deadline::after(self.since, timeout);
        if self.probed == Probed::Unanswered {
            return Some(Look::GiveUp);
        }
        if !due.has_passed(now) {
            return Some(Look::At(due.instant()));
        }
        if self.probed == Probed::Asked {
            self.probed = Probed::Overdue;
        }
        Some(Look::Await)
    }

    /// Notes the traffic counts. Returns since when they have not changed.
    fn note_seen(&mut self, traffic: Traffic, now: Instant) -> Instant {
        if !self.was_looked_at || self.seen != traffic.seen || traffic.is_awaited {
            (self.seen, self.since, self.was_looked_at) = (traffic.seen, now, true);
        }
        self.since
    }

    /// Notes that a probe was posted, or was refused. Returns the time of the next check.
    pub(crate) fn note_probed(&mut self, is_posted: bool, now: Instant) -> Option<Instant> {
        self.since = now;
        let timeout = self.probe_timeout().filter(|_| is_posted);
        if timeout.is_some() {
            self.probed = Probed::Asked;
        }
        Some(Deadline::after(now, timeout.or(self.probe_after())?).instant())
    }

    /// Notes a poll that took `sent` send completions. `is_round_over` says that polls took as many in this round as the queue
    /// has entries. Returns whether an overdue answer can no longer be in the queue; `None` if no answer is overdue.
    pub(crate) fn note_poll(&mut self, sent: u32, is_round_over: bool) -> Option<bool> {
        self.probed = match self.probed {
            Probed::Overdue | Probed::Counted if sent == 0 => Probed::Unanswered,
            Probed::Counted if is_round_over => Probed::Unanswered,
            Probed::Overdue if is_round_over => Probed::Counted,
            state @ (Probed::Overdue | Probed::Counted) => state,
            Probed::No | Probed::Asked | Probed::Unanswered => return None,
        };
        Some(self.probed == Probed::Unanswered)
    }
}

impl ChannelState {
    /// Derives the state from a farewell and the known causes. A flush counts only if there is no other cause.
    pub(crate) fn of<const N: usize>(peer_closed: Option<bool>, causes: [Option<FirstCause>; N]) -> Self {
        if let Some(all_arrived) = peer_closed {
            return Self::PeerClosed { all_arrived };
        }
        let known = || causes.iter().flatten();
        let real = known().find(|cause| !cause.status.is_flush());
        match real.or_else(|| known().next()) {
            Some(cause) => Self::Failed { cause: *cause },
            None => Self::Open,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Care, Look, MissingMessages, Traffic};
    use crate::worker::config::ChannelConfig;
    use core::time::Duration;
    use doorbell_core::Instant;

    const SECOND: Duration = Duration::from_secs(1);

    fn care(probe_after: Option<Duration>, probe_timeout: Option<Duration>) -> Care {
        let mut config = ChannelConfig::default();
        (config.probe_after, config.probe_timeout) = (probe_after, probe_timeout);
        Care::new(&config)
    }

    fn silent(seen: (u32, u32)) -> Traffic {
        Traffic {
            seen,
            is_awaited: false,
            awaits_probe: false,
        }
    }

    fn probed(seen: (u32, u32)) -> Traffic {
        Traffic {
            seen,
            is_awaited: true,
            awaits_probe: true,
        }
    }

    fn at(ms: u64) -> Instant {
        Instant::from_ns(ms * 1_000_000)
    }

    /// The round in which the channel was lost does not count.
    #[test]
    fn an_end_waits_for_an_empty_queue_or_a_whole_round_of_completions() {
        let mut missing = MissingMessages::default();
        assert!(!missing.note_poll(1, false));
        assert!(missing.note_poll(0, false));
        assert!(!missing.note_poll(1, true));
        assert!(!missing.note_poll(1, false));
        assert!(missing.note_poll(1, true));
    }

    #[test]
    fn a_time_to_probe_is_as_it_was_given_up_to_584_years() {
        let longest = Duration::from_nanos(u64::MAX - 1);
        for span in [Duration::ZERO, Duration::from_nanos(1), 10 * SECOND, longest] {
            assert_eq!(care(Some(span), None).probe_after(), Some(span));
        }
        let too_long = longest + Duration::from_nanos(1);
        for none in [None, Some(too_long), Some(Duration::MAX)] {
            assert_eq!(care(none, None).probe_after(), None);
        }
    }

    #[test]
    fn a_timeout_is_in_whole_milliseconds_rounded_up_to_49_days() {
        let longest = Duration::from_millis(u64::from(u32::MAX) - 1);
        for (given, kept) in [
            (Duration::ZERO, 1),
            (Duration::from_nanos(1), 1),
            (Duration::from_millis(100), 100),
            (Duration::from_micros(100_001), 101),
            (longest, u64::from(u32::MAX) - 1),
        ] {
            let care = care(None, Some(given));
            assert_eq!(
                care.probe_timeout(),
                Some(Duration::from_millis(kept)),
                "{given:?}"
            );
        }
        for none in [None, Some(longest + Duration::from_nanos(1)), Some(Duration::MAX)] {
            assert_eq!(care(None, none).probe_timeout(), None);
        }
    }

    #[test]
    fn silence_begins_with_the_first_look_and_with_whatever_is_heard() {
        let mut care = care(Some(SECOND), None);
        let due = |ms| Some(Look::At(at(ms)));
        assert_eq!(care.look(silent((0, 0)), at(5)), due(1005), "the first look");
        assert_eq!(care.look(silent((0, 0)), at(6)), due(1005));
        assert_eq!(care.look(silent((1, 0)), at(7)), due(1007), "a message came");
        assert_eq!(care.look(silent((1, 1)), at(8)), due(1008), "one went");
        assert_eq!(
            care.look(probed((1, 1)), at(9)),
            due(1009),
            "a completion is awaited"
        );
        assert_eq!(care.look(silent((1, 1)), at(1009)), Some(Look::Probe));
        assert_eq!(care.note_probed(true, at(1009)), Some(at(2009)));
        // Without a timeout the device's retransmissions decide when the probe fails.
        assert_eq!(care.look(probed((1, 1)), at(2009)), due(3009));
        assert_eq!(self::care(None, Some(SECOND)).look(silent((0, 0)), at(5)), None);
    }

    /// A channel that was probed at 2,000 ms, with a timeout of 100 ms.
    fn asked() -> Care {
        let mut care = care(Some(SECOND), Some(Duration::from_millis(100)));
        assert_eq!(care.look(silent((3, 3)), at(1000)), Some(Look::At(at(2000))));
        assert_eq!(care.look(silent((3, 3)), at(2000)), Some(Look::Probe));
        assert_eq!(care.note_probed(true, at(2000)), Some(at(2100)));
        care
    }

    #[test]
    fn a_probe_is_given_up_once_a_poll_found_no_answer_behind_its_time() {
        let mut care = asked();
        assert_eq!(care.look(probed((3, 3)), at(2099)), Some(Look::At(at(2100))));
        assert_eq!(polled(&mut care, 0), None);
        for ms in [2100, 2101, 5000] {
            assert_eq!(care.look(probed((3, 3)), at(ms)), Some(Look::Await));
            assert_eq!(polled(&mut care, 1), Some(false));
        }
        assert_eq!(polled(&mut care, 0), Some(true));
        assert_eq!(polled(&mut care, 0), None);
        assert_eq!(care.look(probed((3, 3)), at(5001)), Some(Look::GiveUp));
    }

    /// The round in which the probe became overdue does not count.
    #[test]
    fn a_probe_is_given_up_once_polls_took_a_whole_round_of_completions() {
        let mut care = asked();
        for (is_round_over, is_unanswered) in [(false, false), (true, false), (false, false), (true, true)] {
            assert_eq!(care.look(probed((3, 3)), at(2100)), Some(Look::Await));
            assert_eq!(care.note_poll(1, is_round_over), Some(is_unanswered));
        }
        assert_eq!(care.look(probed((3, 3)), at(2102)), Some(Look::GiveUp));
    }

    /// Notes a poll that took `sent` completions and ended no round.
    fn polled(care: &mut Care, sent: u32) -> Option<bool> {
        care.note_poll(sent, false)
    }

    #[test]
    fn an_answer_or_any_traffic_ends_the_wait_for_a_probe() {
        let stages: [fn(&mut Care); 3] = [
            |_| {},
            |care| assert_eq!(care.look(probed((3, 3)), at(2100)), Some(Look::Await)),
            |care| {
                assert_eq!(care.look(probed((3, 3)), at(2100)), Some(Look::Await));
                assert_eq!(polled(care, 0), Some(true));
            },
        ];
        for reach in stages {
            let mut care = asked();
            reach(&mut care);
            assert_eq!(
                care.look(silent((3, 3)), at(2200)),
                Some(Look::At(at(3000))),
                "an answer"
            );
            assert_eq!(polled(&mut care, 0), None);
            assert_eq!(care.look(silent((3, 3)), at(3000)), Some(Look::Probe));
            for seen in [(4, 3), (3, 4)] {
                let mut care = asked();
                reach(&mut care);
                assert_eq!(
                    care.look(probed(seen), at(2200)),
                    Some(Look::At(at(3200))),
                    "{seen:?}"
                );
            }
        }
    }

    #[test]
    fn a_probe_that_was_not_posted_is_tried_again_behind_the_same_silence() {
        let mut care = care(Some(SECOND), Some(Duration::from_millis(100)));
        assert_eq!(care.look(silent((0, 0)), at(0)), Some(Look::At(at(1000))));
        assert_eq!(care.look(silent((0, 0)), at(1000)), Some(Look::Probe));
        assert_eq!(care.note_probed(false, at(1000)), Some(at(2000)));
        assert_eq!(care.look(silent((0, 0)), at(1500)), Some(Look::At(at(2000))));
    }
}
