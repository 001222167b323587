//! Configuration of links, and the reasons why a link cannot be made.

use core::fmt;
use core::time::Duration;

use doorbell_core::provider::SettingError;
use doorbell_core::session::{SESSION_WINDOW_MAX, SessionConfig, TRANSPORT_RETRY_COUNT, TRANSPORT_TIMEOUT};
use doorbell_core::wire::{HANDLE_BYTES_MAX, SESSION_ATTACH_BYTES, SESSION_HEADER_BYTES};

use super::transfers::TransferConfig;
use crate::connect::handshakes::HandshakeLimits;
use crate::error::ConnectError;
use crate::error::NoRoute;
use crate::worker::config::ChannelConfig;

/// Configuration of links. Start from [`LinkConfig::default`]; both sides need the same [`SessionConfig::fragment_bytes`]. A longer
/// fragment of the peer ends the link ([`Violation::FragmentTooLong`](super::Violation::FragmentTooLong)) if it arrives before one that
/// it follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkConfig {
    /// Timers of the sessions, and the length of a fragment.
    pub session: SessionConfig,
    /// Configuration of each rail's channel. Default that of a channel, with a timeout and a retry count that detect a dead peer
    /// in time ([`TRANSPORT_TIMEOUT`], [`TRANSPORT_RETRY_COUNT`]), and without cells, which a link does not use. The health of a rail
    /// is derived from its completions, so every request is signaled: [`ChannelConfig::unsignaled_max`] has to be 0 or 1.
    /// [`ChannelConfig::inline_bytes_max`] has to be at least [`SESSION_ATTACH_BYTES`], the length of the first frame on a connection.
    pub channel: ChannelConfig,
    /// Maximum number of fragments that a link keeps until the peer acknowledges them. Default 512, 2 MiB of memory: nearly two
    /// messages of the maximum length, so that one is sent while the previous one is being acknowledged. From 1 to
    /// [`SESSION_WINDOW_MAX`]: a value outside this range is replaced by the nearest value in it.
    pub retained: u32,
    /// Length of the longest fragment that a link stores. A mesh shares its messages with its links, so they store only its short frames.
    pub(crate) stored_bytes_max: u32,
    /// Maximum number of early fragments that a link accepts after a missing one. Default 512, 2 MiB of memory: as many as a peer
    /// with the default `retained` can send. The range is that of `retained`.
    pub ahead: u32,
    /// Length of the longest message that this side sends or receives. Default 1 MiB. A longer message of the peer ends the link. A link
    /// reserves this much memory to reassemble a message. Unless a message is placed, its length is also limited to `retained` times
    /// [`SessionConfig::fragment_bytes`], 2 MB by default: raise `retained` together with this limit.
    pub message_bytes_max: usize,
    /// Limit on links, including links that peers begin. A peer's link counts from when its handshake is granted a place. Default 64.
    /// Beyond the limit a peer is rejected as busy, and retries. A peer that connects another rail of an existing link is never
    /// rejected because of this limit.
    pub links_max: u32,
    /// Limit on links begun by peers from one address, the source address of their handshakes' streams. Default 32, half of
    /// `links_max`, so that one host with one address cannot use all. A link whose rails come from several addresses counts for each.
    /// Beyond the limit a peer is rejected as busy, as beyond [`LinkConfig::links_max`]. In a mesh the limit is at least the
    /// number of members: all of them may be processes of one host.
    pub links_per_address: u32,
    /// Maximum number of open one-sided requests of a link, including those of `long_requests`. Default 16, 64 KiB of memory: each has
    /// memory for a fragment. The range is that of `retained`.
    pub requests: u32,
    /// Length of the longest one-sided request. Default 1 MiB. A value below the length of a fragment stands for that length. The limit is
    /// independent of [`LinkConfig::message_bytes_max`] and of the peer's configuration, since the peer's device executes the request.
    pub request_bytes_max: u32,
    /// Maximum number of open one-sided requests of a link that are longer than a fragment. Default 2, so that one is in flight
    /// while another ends. Each has memory of `request_bytes_max`, which is touched when it is first used. 0 limits requests to the
    /// length of a fragment.
    pub long_requests: u32,
    /// If the peer lends memory ([`LinkConfig::placed_bytes`]), messages of more bytes than this are placed there by WRITE.
    /// Default 16 KiB: from this length on, fragments in slots take more instructions, and placing has no higher latency.
    pub place_messages_over: usize,
    /// Memory that a link lends its peer for such messages, and the maximum of memory for those that it sends. Default 2 MiB each, two
    /// messages of the maximum length. The first is allocated, registered and locked once a message of more than `place_messages_over` bytes
    /// has arrived in fragments in slots, the second once the peer has lent memory. The link keeps the first until its end, and gives the
    /// second back after a minute without such a message. With 0 the link neither lends memory nor places messages.
    pub placed_bytes: usize,
    /// Limit on that memory for all links of one [`Links`](super::Links) together. Default 64 MiB, for sixteen links that send and receive
    /// long messages. Without the limit, [`LinkConfig::links_max`] links would use four times as much, locked once for each device. If too
    /// little is left for a link, its long messages go as fragments in slots, and it tries again while it is active. Memory counts until it is
    /// given back, or its link is over, and the devices have deregistered it.
    pub placed_bytes_all: usize,
    /// Configuration of the transfers of each link.
    pub transfers: TransferConfig,
    /// Limits on concurrent handshakes of peers, if links are accepted. Default as of [`HandshakeLimits`].
    pub handshakes: HandshakeLimits,
}

impl Default for LinkConfig {
    fn default() -> Self {
        let channel = ChannelConfig {
            timeout: TRANSPORT_TIMEOUT,
            retry_count: TRANSPORT_RETRY_COUNT,
            // The session sends the probes.
            probe_after: None,
            // Fragments are sent from leases, and short frames inline.
            cell_bytes: 0,
            ..ChannelConfig::default()
        };
        Self {
            session: SessionConfig::default(),
            channel,
            retained: 512,
            stored_bytes_max: u32::MAX,
            ahead: 512,
            message_bytes_max: 1 << 20,
            links_max: 64,
            links_per_address: 32,
            requests: 16,
            request_bytes_max: 1 << 20,
            long_requests: 2,
            place_messages_over: 16 << 10,
            placed_bytes: 2 << 20,
            placed_bytes_all: 64 << 20,
            transfers: TransferConfig::default(),
            handshakes: HandshakeLimits::default(),
        }
    }
}

impl LinkConfig {
    /// The bytes of the longest frame: a fragment with its header, or a handle with its header.
    pub(super) fn frame_bytes(&self) -> usize {
        let longest = self.fragment_bytes().max(HANDLE_BYTES_MAX);
        longest.saturating_add(SESSION_HEADER_BYTES)
    }

    /// Checks that a channel of this configuration can be a rail.
    ///
    /// # Errors
    /// `unsignaled_max` is above 1, or `inline_bytes_max` is too small for the first frame.
    pub fn check_channel(&self) -> Result<(), LinkError> {
        let ChannelConfig {
            unsignaled_max,
            inline_bytes_max,
            ..
        } = self.channel;
        if unsignaled_max > 1 {
            return Err(LinkError::Unsignaled(unsignaled_max));
        }
        let is_room = usize::try_from(inline_bytes_max).is_ok_and(|bytes| bytes >= SESSION_ATTACH_BYTES);
        match is_room {
            true => Ok(()),
            false => Err(LinkError::InlineTooShort(inline_bytes_max)),
        }
    }

    /// Checks settings with whose lowest value no link would ever connect.
    pub(super) fn check_limits(&self) -> Result<(), SettingError> {
        let SessionConfig {
            dead_after,
            attach_within,
            recover_within,
            ..
        } = self.session;
        let nanoseconds = |of: Duration| u64::try_from(of.as_nanos()).unwrap_or(u64::MAX);
        let most = u64::MAX;
        SettingError::check("session.dead_after in ns", nanoseconds(dead_after), 1..=most)?;
        SettingError::check(
            "session.attach_within in ns",
            nanoseconds(attach_within),
            1..=most,
        )?;
        SettingError::check(
            "session.recover_within in ns",
            nanoseconds(recover_within),
            1..=most,
        )?;
        SettingError::check("links_per_address", self.links_per_address, 1..=u32::MAX)
    }

    pub(crate) fn fragment_bytes(&self) -> usize {
        usize::try_from(self.session.fragment_bytes.max(1)).unwrap_or(usize::MAX)
    }

    /// Length of the longest fragment that a link stores.
    pub(super) fn stored_bytes(&self) -> usize {
        let most = usize::try_from(self.stored_bytes_max).unwrap_or(usize::MAX);
        self.fragment_bytes().min(most)
    }

    /// Length of the longest message that is stored and sent as one fragment in a slot.
    pub(super) fn whole_bytes_max(&self) -> usize {
        let most = self.message_bytes_max.min(self.place_messages_over);
        most.min(self.stored_bytes())
    }

    pub(super) fn places(fragments: u32) -> usize {
        usize::try_from(fragments.clamp(1, SESSION_WINDOW_MAX)).unwrap_or(1)
    }
}

/// Reason why a link cannot be made.
#[derive(Debug)]
#[non_exhaustive]
pub enum LinkError {
    /// No rail of this side reaches a rail of the peer. The report has the reason for each rail.
    NoRoute(NoRoute),
    /// The ports could not be queried, or the TCP port is not available.
    Connect(ConnectError),
    /// The longest frame does not fit into a Worker's slots.
    SlotsTooSmall {
        /// Bytes of a slot.
        slot_bytes: u32,
        /// Bytes of the longest frame: the longer of a fragment and a handle, with its header.
        frame_bytes: usize,
    },
    /// [`ChannelConfig::unsignaled_max`] of [`LinkConfig::channel`] has this value, which is above 1: without a completion for each
    /// request, idle rails would be considered dead.
    Unsignaled(u32),
    /// [`ChannelConfig::inline_bytes_max`] of [`LinkConfig::channel`] has this value, which is below [`SESSION_ATTACH_BYTES`], the length
    /// of the first frame on each connection.
    InlineTooShort(u32),
    /// The limit on links is reached.
    TooManyLinks {
        /// [`LinkConfig::links_max`].
        links_max: u32,
    },
    /// The Workers have different classes: give all of them the same [`WorkerConfig::classes`](crate::WorkerConfig::classes).
    OtherClasses,
    /// The system call for random bytes failed with this errno.
    Entropy(i32),
    /// An allocation for a link failed. The configuration determines the size.
    NoMemory {
        /// The bytes of the allocation.
        bytes: usize,
    },
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRoute(report) => fmt::Display::fmt(report, f),
            Self::Connect(error) => fmt::Display::fmt(error, f),
            Self::SlotsTooSmall {
                slot_bytes,
                frame_bytes,
            } => write!(
                f,
                "a Worker's slots hold {slot_bytes} bytes, and the longest frame has {frame_bytes}: make slot_bytes \
                 larger, or fragment_bytes smaller"
            ),
            Self::Unsignaled(most) => write!(
                f,
                "channel.unsignaled_max is {most}; links need every request signaled: set 0 or 1"
            ),
            Self::InlineTooShort(most) => write!(
                f,
                "channel.inline_bytes_max is {most}; the first frame of a rail needs {SESSION_ATTACH_BYTES}: raise \
                 inline_bytes_max"
            ),
            Self::TooManyLinks { links_max } => write!(
                f,
                "{links_max} of {links_max} links, pending ones included: close some, or raise links_max"
            ),
            Self::OtherClasses => f.write_str(
                "the Workers have different classes: give all of them the same classes in their configuration",
            ),
            Self::Entropy(errno) => write!(
                f,
                "the system call for random bytes failed (errno {errno}): check the seccomp filter"
            ),
            Self::NoMemory { bytes } => write!(
                f,
                "cannot allocate {bytes} bytes for a link: lower retained, ahead, requests, long_requests, message_bytes_max or request_bytes_max"
            ),
        }
    }
}

impl core::error::Error for LinkError {}

impl From<ConnectError> for LinkError {
    fn from(error: ConnectError) -> Self {
        Self::Connect(error)
    }
}

#[cfg(test)]
mod tests {
    use super::{Duration, LinkConfig, LinkError};
    use doorbell_core::wire::{HANDLE_BYTES_MAX, SESSION_HEADER_BYTES};

    #[test]
    fn a_slot_holds_each_frame_there_is() {
        let mut config = LinkConfig::default();
        let fragment = usize::try_from(config.session.fragment_bytes).unwrap();
        assert_eq!(config.frame_bytes(), fragment + SESSION_HEADER_BYTES);
        config.session.fragment_bytes = 64;
        assert_eq!(config.frame_bytes(), HANDLE_BYTES_MAX + SESSION_HEADER_BYTES);
    }

    #[test]
    fn channels_that_no_rail_works_with_are_refused() {
        let mut config = LinkConfig::default();
        config.channel.unsignaled_max = 1;
        config.channel.inline_bytes_max = 40;
        assert!(config.check_channel().is_ok());
        config.channel.unsignaled_max = 2;
        let refused = config.check_channel();
        assert!(matches!(refused, Err(LinkError::Unsignaled(2))), "{refused:?}");
        config.channel.unsignaled_max = 0;
        config.channel.inline_bytes_max = 39;
        let refused = config.check_channel();
        assert!(
            matches!(refused, Err(LinkError::InlineTooShort(39))),
            "{refused:?}"
        );
    }

    #[test]
    fn settings_with_which_no_link_would_connect_are_refused() {
        let refused = |change: fn(&mut LinkConfig)| {
            let mut config = LinkConfig::default();
            change(&mut config);
            config.check_limits().unwrap_err().setting
        };
        assert!(LinkConfig::default().check_limits().is_ok());
        let none = refused(|config| config.session.dead_after = Duration::ZERO);
        assert_eq!(none, "session.dead_after in ns");
        let none = refused(|config| config.session.attach_within = Duration::ZERO);
        assert_eq!(none, "session.attach_within in ns");
        let none = refused(|config| config.session.recover_within = Duration::ZERO);
        assert_eq!(none, "session.recover_within in ns");
        let none = refused(|config| config.links_per_address = 0);
        assert_eq!(none, "links_per_address");
    }
}
