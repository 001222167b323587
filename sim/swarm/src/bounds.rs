//! Time bounds for the results that lines and links have to reach once faults have stopped.
//!
//! Each bound is computed here from the configuration, the specification and the documentation. The code under test
//! is never asked.

use core::time::Duration;

use doorbell::link::LinkConfig;
use doorbell_sim::Quirks;

use crate::case::{Case, LineCase, What};
use crate::station::{COMPLETION_DEPTH, RESTING_BYTES, channel_config};

/// Time does not pass in larger steps than this while somebody waits.
pub(crate) const STEP_NS: u64 = 2_000_000;

/// How long a peer may take to connect.
pub(crate) const CONNECT_WITHIN: Duration = Duration::from_secs(3);

/// How long a peer may take to open its ring: longer than any plan lasts.
pub(crate) const RINGS_WITHIN: Duration = Duration::from_secs(10);

/// How long channels have to close in the end.
pub(crate) const CLOSE_WITHIN: Duration = Duration::from_millis(50);

/// How long links have to close in the end.
pub(crate) const CLOSE_LINK_WITHIN: Duration = Duration::from_secs(2);

/// A closing ends so much behind its deadline (`Worker::close`).
const FLUSHED_WITHIN: Duration = Duration::from_millis(500);

/// A probe is this much late at most (`ChannelConfig::probe_after`).
const PROBED_WITHIN: Duration = Duration::from_millis(100);

/// A probe without an answer ends its channel this much behind both spans at most (`ChannelConfig::probe_timeout`).
const GIVEN_UP_WITHIN: Duration = Duration::from_millis(150);

/// A loop that only polls and becomes slow finds that out so much later: 1,024 of its polls (`ChannelConfig::probe_after`).
pub(crate) const PACED_NS: u64 = 1024 * STEP_NS;

/// Two steps: the second poll sees an event between the first two, and the third one finishes what follows from it.
const POLLS_NS: u64 = 2 * STEP_NS;

/// Calls of a device that one poll of a Worker makes at most, as far as they count.
const CALLS_OF_POLL: u64 = 32;

/// [`POLLS_NS`] and the time of the polls themselves, if calls and the application take time. All hosts poll one
/// after the other, and each may be notified of everything that is under way.
fn polls_ns(case: &Case) -> u64 {
    let calls = CALLS_OF_POLL * 2 * case.hosts.len() as u64;
    let ends = case.lines.iter().flat_map(|line| [line.end(0), line.end(1)]);
    let events: u64 = ends.map(|end| 2 * u64::from(end.send_depth)).sum();
    POLLS_NS + 4 * (calls * case.call_ns + events * case.handler_ns)
}

/// How much time there is for what is awaited of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// From when a request is the oldest of its end until it is done, or its queue pair has failed. The bound is a
    /// sum:
    ///
    /// - Each attempt takes one acknowledgement timeout, 4.096 us * 2^timeout (rounded up to the device's step).
    ///   There are `retry_count` + 1 attempts.
    ///
    /// - Any answer of the peer restores all attempts (S13), but they are not used up again. After an answer another
    ///   request is the oldest, or its packets go on without a loss, because faults have stopped.
    ///
    /// - A receiver may lack a posted receive only if its channels share receives. There are `rnr_retry` + 1 waits for
    ///   it, each for the receiver's `min_rnr_timer` (S12). A value of 7 never gives up. Then one wait is added to the
    ///   time until the receiver polls, because it posts as it polls.
    ///
    /// - At most `send_depth` requests of this end are outstanding. The wait for earlier ones ended before this one
    ///   was the oldest. Later ones, up to the next signaled one, have to be done before this one is reported.
    ///
    /// - Each outstanding request may need a round trip of its own (a fence, a READ depth of one). On the wire it may
    ///   wait for everything that all lines have outstanding, each message with the greatest length.
    pub(crate) request_ns: u64,
    /// Until a channel that sends has a credit again, or fails: its own request, and the peer's that brings credits.
    pub(crate) send_ns: u64,
    /// Until an attempt to connect ended: by its deadline.
    pub(crate) connect_ns: u64,
    /// Until a handshake of the side that listens ended: twice the time of a stage, or five seconds where that is more
    /// (`ChannelConfig::handshake_stage`).
    pub(crate) handshake_ns: u64,
    /// Until the rings of an end are open, or will not be: by their deadline.
    pub(crate) rings_ns: u64,
    /// Until a channel that is being closed is gone: the longest deadline of a closing, and what flushing may take.
    pub(crate) close_ns: u64,
    /// From when the other end of a channel is gone until an end reports that: its probe is due, and seen to be due, and
    /// fails as a request does (`ChannelConfig::probe_after`).
    pub(crate) report_ns: u64,
}

impl Bounds {
    /// Both ends have the time that the slower one needs.
    pub(crate) fn of(case: &Case, line: &LineCase) -> anyhow::Result<Self> {
        let connecting = Self::of_end(case, line, 0)?;
        let Self {
            request_ns,
            send_ns,
            connect_ns,
            handshake_ns,
            rings_ns,
            close_ns,
            report_ns,
        } = Self::of_end(case, line, 1)?;
        Ok(Self {
            request_ns: connecting.request_ns.max(request_ns),
            send_ns: connecting.send_ns.max(send_ns),
            connect_ns: connecting.connect_ns.max(connect_ns),
            handshake_ns: connecting.handshake_ns.max(handshake_ns),
            rings_ns: connecting.rings_ns.max(rings_ns),
            close_ns: connecting.close_ns.max(close_ns),
            report_ns: connecting.report_ns.max(report_ns),
        })
    }

    fn of_end(case: &Case, line: &LineCase, end: usize) -> anyhow::Result<Self> {
        let config = channel_config(line, case.endings, end, 0)?;
        let quirks = case.device.quirks();
        let silence_ns = timer_ns(4096 << config.timeout, &quirks);
        let not_ready_ns = timer_ns(not_ready_ns(config.min_rnr_timer), &quirks);
        let not_ready_ns = match config.rnr_retry {
            7 => STEP_NS + not_ready_ns,
            retries => (u64::from(retries) + 1) * not_ready_ns,
        };
        let attempts = u64::from(config.retry_count) + 1;
        let round_trips = u64::from(config.send_depth) + 1;
        let request_ns = attempts * silence_ns
            + not_ready_ns
            + round_trips * 2 * case.latency_ns
            + wire_ns(case)
            + polls_ns(case);
        let stages = config
            .handshake_stage
            .saturating_mul(2)
            .max(Duration::from_secs(5));
        let closes_ns = closes_ns(case, CLOSE_WITHIN);
        let probe_ns = case.endings.and(config.probe_after).map_or(0, ns);
        Ok(Self {
            request_ns,
            report_ns: probe_ns + ns(PROBED_WITHIN) + request_ns + polls_ns(case),
            send_ns: 2 * request_ns,
            connect_ns: ns(CONNECT_WITHIN) + polls_ns(case),
            handshake_ns: ns(stages) + polls_ns(case),
            rings_ns: ns(RINGS_WITHIN) + polls_ns(case),
            close_ns: closes_ns.saturating_add(ns(FLUSHED_WITHIN) + swept_ns(case) + polls_ns(case)),
        })
    }

    /// From when the peer of an idle end cannot answer any more until the end reports that, if its probes have a timeout. It does not
    /// depend on retries. If no poll finds the completion queue empty, as many as it has places pass.
    pub(crate) fn of_silence_ns(case: &Case, line: &LineCase, end: usize) -> Option<u64> {
        let config = channel_config(line, case.endings, end, 0).ok()?;
        let spans_ns = ns(config.probe_after?) + ns(config.probe_timeout?);
        Some(spans_ns + ns(GIVEN_UP_WITHIN) + swept_ns(case) + polls_ns(case))
    }

    /// All of it, one after the other: an attempt fails, a channel is closed, another is made, and used.
    pub(crate) fn whole_ns(&self) -> u64 {
        let all = [self.connect_ns, self.handshake_ns, self.rings_ns, self.close_ns];
        all.into_iter().fold(
            2 * (self.send_ns + self.report_ns + PACED_NS),
            u64::saturating_add,
        )
    }
}

/// The longest deadline of a closing: of those in a case, and of those in the end.
fn closes_ns(case: &Case, in_the_end: Duration) -> u64 {
    let closes = case
        .operations
        .iter()
        .filter_map(|operation| match operation.what {
            What::Close { within_ns } => Some(within_ns),
            _ => None,
        });
    closes.fold(ns(in_the_end), u64::max)
}

/// How long a closed channel may occupy a completion queue: until a poll finds the queue empty, or for as many polls
/// as the queue has places. If peers are probed as often as hosts poll, the queue is never empty.
fn swept_ns(case: &Case) -> u64 {
    let is_never_empty = case
        .endings
        .is_some_and(|endings| endings.probe_after_ns <= 2 * STEP_NS);
    if is_never_empty {
        COMPLETION_DEPTH * STEP_NS
    } else {
        0
    }
}

/// How long as many datagrams as there are receives for are under way at most.
pub(crate) fn datagrams_ns(case: &Case) -> u64 {
    2 * case.latency_ns + wire_ns(case) + polls_ns(case)
}

/// Time for everything that all lines may have outstanding, one after the other through one port. Every message has
/// the greatest length. Its bytes count twice, since headers may be as long as a payload of 256 bytes.
fn wire_ns(case: &Case) -> u64 {
    let slots = case.hosts.iter().map(|host| u64::from(host.slot_bytes));
    let longest = slots.fold(RESTING_BYTES as u64, u64::max);
    let ends = case.lines.iter().flat_map(|line| [line.end(0), line.end(1)]);
    let requests: u64 = ends.map(|end| u64::from(end.send_depth)).sum();
    let bits = 8 * 2 * longest * requests;
    1_000 * bits / u64::from(case.bandwidth_mbps.max(1))
}

/// A device's timer, which may be coarse.
fn timer_ns(span_ns: u64, quirks: &Quirks) -> u64 {
    span_ns.max(1).next_multiple_of(quirks.timer_step_ns.max(1))
}

/// How long a receiver that is not ready asks to wait, by its code. Source: InfiniBand Architecture volume 1, section
/// 9.7.5.2.8: 0.01 ms, then two steps to each doubling; 0 is the longest.
const fn not_ready_ns(code: u8) -> u64 {
    let hundredths_ms = match code {
        0 => 65_536,
        1 => 1,
        _ => (2 + (code & 1) as u64) << (code / 2 - 1),
    };
    10_000 * hundredths_ms
}

pub(crate) fn ns(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// How much time there is for what is awaited of a link: by how both of its hosts make links, of each time the longer one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkBounds {
    /// Until a rail carries again, or for the first time.
    ///
    /// A queue pair reports the loss of a rail when its retries are used up. The session notices a loss when a
    /// heartbeat, sent after the idle time, goes unanswered for `dead_after`.
    ///
    /// An attempt to connect that faults spoiled ends after `attach_within`, and its attachment takes as long again.
    /// The next attempt comes after the longest wait and may take the same time. Then the rail proves itself.
    pub(crate) rail_ns: u64,
    /// From one message that came or was done to the next. A rail has to come back first. Then everything retained
    /// goes over it, and the acknowledgement of each fragment may be put off.
    pub(crate) message_ns: u64,
    /// Until a request of a window ends. It waits for a rail to that window as long as a link tries to recover. The
    /// wait is in vain if the window was withdrawn and a rail failed before this end heard of the withdrawal. A
    /// posted request ends with its rail.
    pub(crate) window_ns: u64,
    /// From one step of a link's transfers to the next: a rail comes back, or one that carries them is given up and fenced.
    /// Then a question is answered, and the pieces go.
    pub(crate) transfer_ns: u64,
    /// From when one end of a link goes until both are gone: it says so within its deadline, or the other end notices, and
    /// tries to recover for as long as it may.
    pub(crate) end_ns: u64,
    /// From when one end of a link that has all its rails, and nothing under way, is closed until both have heard of that: what
    /// came last is acknowledged, and farewell said.
    pub(crate) farewell_ns: u64,
    /// Until either end of a rail that carries nothing any more takes it for lost.
    pub(crate) gone_ns: u64,
    /// How long each end tries to recover, and how much later it may notice that the time is over.
    pub(crate) recover_ns: [u64; 2],
    pub(crate) polls_ns: u64,
    /// From when a rail that had been up for long is lost until it is up again, if nothing hinders that any more. It
    /// is tried after the first wait, and once more if that attempt was spoiled. Then it proves itself.
    pub(crate) again_ns: u64,
    /// The longest wait between two attempts to connect a rail.
    pub(crate) longest_ns: u64,
    /// How long cables may be cut without the loss of a rail. The retries of both ends' queue pairs last longer, and
    /// lost packets are retransmitted before either session takes the rail for dead.
    pub(crate) endures_ns: u64,
    /// Receives that either end has posted at least, whatever it is yet to post again.
    pub(crate) receives_min: u32,
    /// Until what a handshake has that its peer gave up is home: it ends, and is closed.
    pub(crate) home_ns: u64,
}

impl LinkBounds {
    /// Computes the bounds of a line whose ends have these configurations.
    pub(crate) fn of(case: &Case, line: &LineCase, configs: &[LinkConfig; 2]) -> anyhow::Result<Self> {
        let most = |of: fn(&LinkConfig) -> u64| configs.iter().map(of).fold(0, u64::max);
        let mut slower = line.clone();
        slower.send_depth = configs
            .iter()
            .map(|config| config.channel.send_depth)
            .fold(0, u32::max);
        slower.timeout = configs
            .iter()
            .map(|config| config.channel.timeout)
            .fold(0, u8::max);
        slower.retry_count = configs
            .iter()
            .map(|config| config.channel.retry_count)
            .fold(0, u8::max);
        slower.listening = None;
        let channel = Bounds::of(case, &slower)?;
        let polls_every_ns = case.links.map_or(0, |links| links.polls_every_ns);
        let polls_ns = 4 * polls_every_ns.max(10_000_000) + polls_ns(case);
        let silent_ns = most(|config| ns(config.session.heartbeat_idle + config.session.dead_after));
        let gone_ns = silent_ns.max(channel.request_ns) + polls_ns;
        let attempt_ns = 2 * most(|config| ns(config.session.attach_within));
        let proofs_ns =
            most(|config| u64::from(config.session.fail_back_proofs) * ns(config.session.fail_back_interval));
        let longest_ns = most(|config| ns(config.session.backoff.longest));
        let rail_ns = gone_ns + 2 * attempt_ns + longest_ns + proofs_ns + polls_ns;
        let retained = most(|config| u64::from(config.retained));
        let acknowledged_ns = most(|config| ns(config.session.acknowledge_after)) + polls_every_ns;
        let recover_ns = configs.each_ref().map(|config| ns(config.session.recover_within));
        let recovered_ns = recover_ns[0].max(recover_ns[1]);
        let closes_ns = closes_ns(case, CLOSE_LINK_WITHIN);
        Ok(Self {
            rail_ns,
            message_ns: rail_ns + retained * acknowledged_ns + channel.request_ns,
            transfer_ns: 2 * rail_ns
                + 4 * channel.request_ns
                + most(|config| ns(config.transfers.drain_within)),
            window_ns: recovered_ns + gone_ns + polls_ns,
            end_ns: closes_ns.saturating_add(gone_ns + recovered_ns + polls_ns),
            farewell_ns: 2 * (acknowledged_ns + channel.request_ns + polls_ns),
            gone_ns,
            recover_ns,
            polls_ns,
            longest_ns,
            again_ns: 2 * most(|config| ns(config.session.backoff.first))
                + most(|config| ns(config.session.attach_within))
                + proofs_ns
                + 2 * polls_ns,
            endures_ns: configs
                .iter()
                .map(|config| {
                    let silence_ns = timer_ns(4096 << config.channel.timeout, &case.device.quirks());
                    let retries_ns = u64::from(config.channel.retry_count) * (4096 << config.channel.timeout);
                    let noticed_ns = 2 * silence_ns + polls_ns;
                    retries_ns.min(ns(config.session.dead_after).saturating_sub(noticed_ns))
                })
                .fold(u64::MAX, u64::min),
            receives_min: configs
                .iter()
                .map(|config| {
                    config
                        .channel
                        .receive_depth
                        .saturating_sub(config.channel.repost_batch)
                })
                .fold(u32::MAX, u32::min),
            home_ns: channel.handshake_ns + channel.close_ns + polls_ns,
        })
    }

    /// All of it, one after the other.
    pub(crate) const fn whole_ns(&self) -> u64 {
        let carried_ns = self.rail_ns.saturating_add(self.message_ns);
        carried_ns.saturating_add(self.end_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::{Bounds, not_ready_ns};
    use crate::case::Device;
    use crate::generate::generate;
    use crate::seed::Seed;

    #[test]
    fn what_receivers_ask_for_is_as_in_the_book() {
        let hundredths_ms = [65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96];
        for (code, span) in hundredths_ms.into_iter().enumerate() {
            assert_eq!(not_ready_ns(code as u8), span * 10_000, "{code}");
        }
        assert_eq!(not_ready_ns(31), 491_520_000);
    }

    #[test]
    fn a_line_has_the_time_that_its_retries_take_and_little_more() {
        let mut case = generate(Seed::quick(3));
        case.device = Device::Iba;
        let mut line = case.lines[0].clone();
        (line.timeout, line.retry_count) = (14, 6);
        let long = Bounds::of(&case, &line).unwrap();
        let retries_ns = 7 * (4096 << 14);
        assert!(
            long.request_ns > retries_ns && long.request_ns < retries_ns + retries_ns / 4,
            "{long:?}"
        );
        (line.timeout, line.retry_count) = (12, 3);
        let short = Bounds::of(&case, &line).unwrap();
        assert_eq!(long.request_ns - short.request_ns, retries_ns - 4 * (4096 << 12));
        // A device that counts in steps of 4 ms.
        case.device = Device::Rxe61;
        line.timeout = 1;
        let coarse = Bounds::of(&case, &line).unwrap();
        assert!(coarse.request_ns > 4 * 4_000_000, "{coarse:?}");
    }
}
