//! The end of a channel that was not closed here, and the probes that find a silent peer dead. The halves act on both.
//!
//! # Farewell
//! A farewell takes an ordinary credit, and the place in the send queue that announcements have. If the peer has no receive left, the
//! farewell is written into the peer's credit word, and found there when the channel fails. The queue pair of a peer that closed is kept
//! for a while, so that the device acknowledges the farewell. An acknowledgement that comes too late makes the other side's close last
//! until its deadline, and no more. A peer that speaks version 1 of the handshake gets no farewell: its requests and its probes find the end.
//!
//! A farewell is believed as much as any message, so a hostile peer can end its own connection by one. The words of all peers of a Worker
//! have one key. A peer that guesses it can make another's failure look like a farewell that lost messages. It can do no more, since an
//! intact channel looks at its word only for a completion of its own.
//!
//! # Probes
//! A side that only receives never learns from its transport that the peer died. `Worker::tend` reads the clock once in 1,024 calls and
//! before a sleep; a loop that tends rarely reads it every 20 ms. It looks at the channels every 50 ms while anything comes, and else when
//! the first of them is due. A look at 10,000 channels takes some 50 µs. `Worker::poll` and the halves do not probe; `SendHalf::probe` does.
//!
//! A probe with a timeout is given up by `Worker::tend`, once polls behind that time found the completion queue empty. As many completions as
//! the queue has places are as good. So a loop that was away finds the answer first. A probe that the device refuses is tried again. If the
//! device may have it all the same, an announcement goes behind it, and the retries find a dead peer.

use core::time::Duration;

use doorbell_core::{Deadline, Instant};
use doorbell_hotpath::FirstCause;

use crate::worker::config::ChannelConfig;
use crate::worker::event::ChannelState;

/// The end of a channel that was not closed here.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ending {
    /// Whether the application got the event.
    pub(crate) is_reported: bool,
    /// Set once the peer closed it: whether all that it had sent has arrived.
    pub(crate) peer_closed: Option<bool>,
}

/// The Worker's probes of a silent channel, and what it does once the channel is lost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Care {
    /// Whether the peer understands farewells.
    pub(crate) says_farewell: bool,
    /// Whether the Worker closes it once it is lost.
    pub(crate) closes_when_lost: bool,
    /// Whether it was looked at before: `seen` and `since` are of that.
    was_looked_at: bool,
    probed: Probed,
    /// A probe may go without an answer for so long, in milliseconds; [`NEVER_MS`] leaves it to the device.
    probe_timeout_ms: u32,
    /// With nothing heard for so long, the peer is probed; [`NEVER`] stands for none. A [`Duration`] is of twice the bytes.
    probe_after_ns: u64,
    /// The counts of what had come and gone at the last look, and when they were first so; or when the probe went out.
    seen: (u32, u32),
    since: Instant,
}

/// State of the last probe, of a channel whose probes have a timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Probed {
    /// There is none, or the peer answered.
    No,
    /// The probe is in flight.
    Asked,
    /// The timeout is over. The answer may lie in the completion queue.
    Overdue,
    /// So it is, and a round of completions began since: as many as that queue has places.
    Counted,
    /// The timeout is over, and polls took since what lay in the completion queue then.
    Unanswered,
}

/// State of a channel at a look.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traffic {
    /// Counts of what had come and gone.
    pub(crate) seen: (u32, u32),
    /// Whether a completion may be awaited.
    pub(crate) is_awaited: bool,
    /// Whether the last request that was posted is a probe, and is in flight.
    pub(crate) awaits_probe: bool,
}

/// Result of a look at a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Nothing before this.
    At(Instant),
    /// The peer is to be probed now.
    Probe,
    /// The probe is overdue: the next poll is to look whether its answer is in the completion queue.
    Await,
    /// The peer is given up.
    GiveUp,
}

/// No time in nanoseconds: the last one that can be said, of 584 years.
const NEVER: u64 = u64::MAX;

/// No time in milliseconds: the last one that can be said, of 49 days.
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

    /// With nothing heard for so long, the peer is probed.
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

    /// Looks at what came and went; `None` if the peer is never probed.
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

    /// Looks whether the last probe is answered. Anything that came since is as good as an answer. Requests that were posted since are
    /// the transport's to give up, with the probe in front of them.
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

    /// Notes what had come and gone by now; since when that is so.
    fn note_seen(&mut self, traffic: Traffic, now: Instant) -> Instant {
        if !self.was_looked_at || self.seen != traffic.seen || traffic.is_awaited {
            (self.seen, self.since, self.was_looked_at) = (traffic.seen, now, true);
        }
        self.since
    }

    /// Notes that the peer is probed now, or could not be; says when it is to be looked at again.
    pub(crate) fn note_probed(&mut self, is_posted: bool, now: Instant) -> Option<Instant> {
        self.since = now;
        let timeout = self.probe_timeout().filter(|_| is_posted);
        if timeout.is_some() {
            self.probed = Probed::Asked;
        }
        Some(Deadline::after(now, timeout.or(self.probe_after())?).instant())
    }

    /// Notes a poll that took so many completions of sends, and whether it ended a round: as many of them as the queue has places. Returns
    /// whether an overdue answer can lie in the queue no more; `None` if none is overdue.
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
    /// The state that follows from a farewell and from the known causes. A flush is the consequence of another cause.
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
    use super::{Care, Look, Traffic};
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
        // Without a timeout the probe is the device's to give up.
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

    /// The round in which it became overdue does not count.
    #[test]
    fn a_probe_is_given_up_once_polls_took_a_whole_round_of_completions() {
        let mut care = asked();
        for (is_round_over, is_unanswered) in [(false, false), (true, false), (false, false), (true, true)] {
            assert_eq!(care.look(probed((3, 3)), at(2100)), Some(Look::Await));
            assert_eq!(care.note_poll(1, is_round_over), Some(is_unanswered));
        }
        assert_eq!(care.look(probed((3, 3)), at(2102)), Some(Look::GiveUp));
    }

    /// Notes a poll that took so many and ended no round.
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
