//! Settings of a session, each with its reason.

use core::time::Duration;

use super::Backoff;

/// The acknowledgement timeout of a session's queue pairs, 4.096 us * 2^12: 16.8 ms. A lost packet is retransmitted
/// several times before its rail is given up; no software device's timer is finer than 4 ms.
pub const TRANSPORT_TIMEOUT: u8 = 12;

/// How often a session's queue pairs try again without an acknowledgement: seven attempts of 16.8 ms are 117 ms. The
/// device gives up just before the session would. A device may take up to four times its timeout; that is why
/// the session counts for itself, too.
pub const TRANSPORT_RETRY_COUNT: u8 = 6;

/// Longest time until a rail whose peer's transport is gone is known to be dead, at default settings. The session has
/// to be polled at least every 30 ms. The time covers 50 ms until the next heartbeat, and 120 ms without an answer to
/// it.
pub const DETECTION_MAX: Duration = Duration::from_millis(200);

/// Settings of a session. Start from [`SessionConfig::default`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionConfig {
    /// How long a rail may be idle before its peer's transport is asked for a sign of life. Default 50 ms: with the time
    /// to answer it is below [`DETECTION_MAX`], and twenty times a second a write of no bytes is nothing.
    pub heartbeat_idle: Duration,
    /// How long a request may go unanswered before its rail gets nothing new while another has no such
    /// trouble. Default 40 ms: a packet lost twice in a row.
    pub suspect_after: Duration,
    /// How long a request may go unanswered before its rail is given up. Default 120 ms: seven attempts of
    /// [`TRANSPORT_TIMEOUT`]. One request must not take as long by itself: 64 KiB do at 4 Mb/s.
    pub dead_after: Duration,
    /// How long the peer may take to answer the first frame on a connection. Default 500 ms: its process has to be
    /// polled, and may be late.
    pub attach_within: Duration,
    /// How long a peer whose transport answers may acknowledge nothing before it is reported as stalled. Default 100
    /// ms. Only the event follows from it.
    pub stalled_after: Duration,
    /// How long an acknowledgement waits for a frame to travel with. Default 1 ms: it frees the peer's memory, and ends
    /// its requests.
    pub acknowledge_after: Duration,
    /// Fragments after which it waits no longer. Default 16: one frame for sixteen.
    pub acknowledge_fragments: u32,
    /// Answers a rail that failed must give before it is used again beside others. Default 3.
    pub fail_back_proofs: u8,
    /// The time between two of them. Default 10 ms: one that comes and goes faster stays out.
    pub fail_back_interval: Duration,
    /// Between attempts to connect a rail again. Default 10 ms to 1 s.
    pub backoff: Backoff,
    /// How long a session without any rail tries before it is over. Default 10 s: a switch that is started again takes
    /// longer, and then a peer wants to know.
    pub recover_within: Duration,
    /// A message with more bytes goes in fragments of this many, which take whichever rail is done first. Default
    /// 4,072: with its header it fills a slot of 4 KiB, and a packet of the largest MTU.
    pub fragment_bytes: u32,
}

impl Default for SessionConfig {
    fn default() -> Self {
        Self {
            heartbeat_idle: Duration::from_millis(50),
            suspect_after: Duration::from_millis(40),
            dead_after: Duration::from_millis(120),
            attach_within: Duration::from_millis(500),
            stalled_after: Duration::from_millis(100),
            acknowledge_after: Duration::from_millis(1),
            acknowledge_fragments: 16,
            fail_back_proofs: 3,
            fail_back_interval: Duration::from_millis(10),
            backoff: Backoff {
                first: Duration::from_millis(10),
                longest: Duration::from_secs(1),
            },
            recover_within: Duration::from_secs(10),
            fragment_bytes: 4072,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{DETECTION_MAX, SessionConfig, TRANSPORT_RETRY_COUNT, TRANSPORT_TIMEOUT};
    use core::time::Duration;

    #[test]
    fn the_defaults_find_a_dead_peer_in_time() {
        let config = SessionConfig::default();
        let polled_every = Duration::from_millis(30);
        assert!(config.heartbeat_idle + config.dead_after + polled_every <= DETECTION_MAX);
        assert!(config.suspect_after < config.dead_after);
        let timeout = Duration::from_nanos(4096 << TRANSPORT_TIMEOUT);
        let attempts = u32::from(TRANSPORT_RETRY_COUNT) + 1;
        let given_up = timeout * attempts;
        assert!(given_up <= config.dead_after && given_up + timeout > config.dead_after);
        assert!(2 * timeout < config.suspect_after);
    }
}
