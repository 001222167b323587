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

use core::time::Duration;

use doorbell_core::Instant;
use doorbell_hotpath::FirstCause;

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
    /// With nothing heard for so long, the peer is probed; [`NEVER`] stands for none. A [`Duration`] is of twice the bytes.
    probe_after_ns: u64,
    /// The counts of what had come and gone at the last look, and when they were first so.
    seen: (u32, u32),
    since: Instant,
}

/// No time in nanoseconds: the last one that can be said, of 584 years.
const NEVER: u64 = u64::MAX;

impl Care {
    pub(crate) fn new(says_farewell: bool, closes_when_lost: bool, probe_after: Option<Duration>) -> Self {
        let probe_after_ns = probe_after.and_then(|span| u64::try_from(span.as_nanos()).ok());
        Self {
            says_farewell,
            closes_when_lost,
            was_looked_at: false,
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

    /// Notes what had come and gone by now, where a completion may be awaited; since when that is so.
    pub(crate) fn note_seen(&mut self, seen: (u32, u32), is_awaited: bool, now: Instant) -> Instant {
        if !self.was_looked_at || self.seen != seen || is_awaited {
            (self.seen, self.since, self.was_looked_at) = (seen, now, true);
        }
        self.since
    }

    /// Notes that the peer is asked now.
    pub(crate) const fn note_probed(&mut self, now: Instant) {
        self.since = now;
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
    use super::Care;
    use core::time::Duration;
    use doorbell_core::Instant;

    fn care(probe_after: Option<Duration>) -> Care {
        Care::new(true, true, probe_after)
    }

    #[test]
    fn a_time_to_probe_is_as_it_was_given_up_to_584_years() {
        let longest = Duration::from_nanos(u64::MAX - 1);
        for span in [
            Duration::ZERO,
            Duration::from_nanos(1),
            Duration::from_secs(10),
            longest,
        ] {
            assert_eq!(care(Some(span)).probe_after(), Some(span));
        }
        let too_long = longest + Duration::from_nanos(1);
        for none in [None, Some(too_long), Some(Duration::MAX)] {
            assert_eq!(care(none).probe_after(), None);
        }
    }

    #[test]
    fn silence_begins_with_the_first_look_and_with_whatever_is_heard() {
        let mut care = care(None);
        let at = Instant::from_ns;
        assert_eq!(care.note_seen((0, 0), false, at(5)), at(5), "the first look");
        assert_eq!(care.note_seen((0, 0), false, at(6)), at(5));
        assert_eq!(care.note_seen((1, 0), false, at(7)), at(7), "a message came");
        assert_eq!(
            care.note_seen((1, 0), true, at(8)),
            at(8),
            "a completion is awaited"
        );
        care.note_probed(at(9));
        assert_eq!(care.note_seen((1, 0), false, at(10)), at(9), "it was probed");
    }
}
