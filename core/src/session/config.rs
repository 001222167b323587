//! Settings of a session, each with its reason.

use core::time::Duration;

use super::Backoff;

/// The acknowledgement timeout of a session's queue pairs, 4.096 us * 2^12: 16.8 ms. A lost packet is retransmitted
/// several times before its rail is given up; no software device's timer is finer than 4 ms.
pub const TRANSPORT_TIMEOUT: u8 = 12;

/// The number of retransmissions of a session's queue pairs without an acknowledgement. Seven attempts of 16.8 ms take
/// 117 ms, so the device gives up just before the session does. A device may take up to four times its timeout, so the
/// session measures the time, too.
pub const TRANSPORT_RETRY_COUNT: u8 = 6;

/// The longest time until a rail without an answering peer is declared dead, at default settings. The session has
/// to be polled at least every 30 ms. The time consists of 50 ms until the next heartbeat, 120 ms without an answer to
/// it, and a late poll.
pub const DETECTION_MAX: Duration = Duration::from_millis(200);

/// Settings of a session. Start from [`SessionConfig::default`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionConfig {
    /// How long a rail may be idle before the session sends a heartbeat to the peer's transport. Default 50 ms: together with
    /// the time to answer this is below [`DETECTION_MAX`], and an empty WRITE twenty times a second costs next to nothing.
    pub heartbeat_idle: Duration,
    /// How long a request may go unanswered before its rail gets no new messages while a better rail exists. Default
    /// 40 ms: a packet lost twice in a row.
    pub suspect_after: Duration,
    /// How long a request may go unanswered before its rail is given up. Default 120 ms: seven attempts of
    /// [`TRANSPORT_TIMEOUT`]. A single request must take less time; 64 KiB at 4 Mb/s do not.
    pub dead_after: Duration,
    /// How long the peer may take to answer the first frame on a connection. Default 500 ms: the peer's process has to
    /// poll, and may be late.
    pub attach_within: Duration,
    /// How long a peer whose transport answers may acknowledge no fragment before it is reported as stalled. Default 100
    /// ms. The only consequence is the event.
    pub stalled_after: Duration,
    /// How long an acknowledgement waits for a frame that can carry it. Default 1 ms: the acknowledgement frees the peer's
    /// memory, and completes its messages.
    pub acknowledge_after: Duration,
    /// The number of fragments after which an acknowledgement is sent at once. Default 16: one frame for sixteen. 0 counts as 1.
    pub acknowledge_fragments: u32,
    /// How many heartbeats a rail must answer after a failure before it is used again together with others. Default 3. 0 counts
    /// as 1.
    pub fail_back_proofs: u8,
    /// The time between two of these heartbeats. Default 10 ms: a rail that flaps faster stays unused.
    pub fail_back_interval: Duration,
    /// The waits between attempts to connect a rail again. Default 10 ms to 1 s.
    pub backoff: Backoff,
    /// How long a session without a rail tries to connect before it ends. Default 10 s. A restarting switch takes
    /// longer; then the application should know.
    pub recover_within: Duration,
    /// A message with more bytes is sent in fragments of this size, each over the rail that is done first. Default
    /// 4,072: with its header a fragment fills a slot of 4 KiB, and a packet of the largest MTU. 0 counts as 1.
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
