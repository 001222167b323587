//! Configuration of Workers, submitters and channels, with the reason for each default.

use core::time::Duration;

use doorbell_core::provider::{AddressVector, PlacementConfig, RemoteAccess};
use doorbell_core::wire::{PrivateData, Resumption};
use doorbell_core::{Gid, Mtu};

use crate::rails::NodeRail;
use crate::worker::class::Classes;

/// The configuration of a Worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerConfig {
    /// Slots of registered memory, for receives and leases together. Default 2,048, which is 8 MiB: the receives of up to 14
    /// channels of default depth, and the slots that are reserved for leases.
    pub slots: u32,
    /// The percentage of the slots that is reserved for leases, rounded up to whole slots. Receives never use these slots: a
    /// channel whose receives would need them is refused ([`ConnectError::NoSlots`](crate::ConnectError)). So a failed
    /// [`Worker::lease`](crate::Worker::lease) succeeds later, when a request completes or a message is released. Default 12,
    /// about an eighth: a burst of messages on one channel of default depth, while 14 channels of that depth still fit into the
    /// default slots. With 0, receives may take every slot, and then no lease is available while the channels exist. Use 0 for a
    /// Worker that sends nothing, or only inline and from cells.
    pub lease_share_percent: u32,
    /// Bytes of each slot, and so the longest message that the Worker receives. Default 4,096, a page and the largest path MTU.
    pub slot_bytes: u32,
    /// Entries of each of the two completion queues. A channel is admitted only if there is room for all requests that it may post.
    /// Default 4,096: 31 channels of default depth, and few enough for every device.
    pub completion_depth: u32,
    /// Maximum number of channels. Default 1,024, which costs 16 KiB and is more than most ports have peers. Each channel has a
    /// credit word of eight bytes, in which its peer announces receives. All credit words are registered when the Worker is made.
    pub channels_max: u32,
    /// Limit on channels of peers from one address, which is the source address of their handshakes. Connections in progress count,
    /// too. Set a limit on a Worker that accepts peers outside your control. Default: only [`WorkerConfig::channels_max`]
    /// applies.
    pub channels_per_address: u32,
    /// Shared receive queue for all channels. Default none: each channel has its own receive queue, so no peer can use the receives
    /// of another.
    pub shared_receives: Option<SharedReceivesConfig>,
    /// The completions that wake a thread that sleeps at the completion queues. Default [`Notify::Never`], since most Workers are
    /// polled, and notification needs file descriptors.
    ///
    /// With the default no thread can sleep at the Worker. [`Worker::wait`](crate::Worker::wait) with
    /// [`Wait::SPIN_THEN_SLEEP`](crate::Wait::SPIN_THEN_SLEEP) and [`Worker::ready_to_sleep`](crate::Worker::ready_to_sleep)
    /// return [`WaitError::NeverNotified`](crate::WaitError::NeverNotified), and `Worker::descriptors` returns `None`.
    /// [`Wait::Busy`](crate::Wait::Busy) needs no notification. The setting is fixed when the Worker is made, so set
    /// [`Notify::Every`] here if a thread will sleep.
    pub notify: Notify,
    /// Placement of the slots: pages, locking and NUMA node. Default: transparent huge pages, locked, on the device's NUMA node,
    /// each as far as the machine allows. See [`PlacementConfig`]; [`crate::Worker::placement`] reports the result.
    pub placement: PlacementConfig,
    /// Maximum number of submitted requests that one poll takes from submitters. Default 64, half of the default depth of a
    /// channel: enough for long doorbells, and completions wait only a few microseconds meanwhile.
    pub submissions_per_poll: u32,
    /// Traffic classes, which channels and links select by [`ChannelConfig::class`]. Default none: requests are posted as soon as a
    /// queue has room, without any scheduling cost.
    pub classes: Option<Classes>,
}

/// Configuration of a shared receive queue for all channels of a Worker.
///
/// Use shared receives on Workers with many peers. A receive queue for each channel costs a ring in the device and a table in the
/// process, however few receives it has, and a separate post call. With shared receives a peer costs only its receives, and the
/// receives that all peers used are reposted in one call.
///
/// Each channel has a share of [`ChannelConfig::receive_depth`] receives, which its peer may use. Shares are never
/// oversubscribed: a channel is admitted only if all shares fit into the depth, and only posted receives are granted. A peer that
/// sends more than it was granted uses receives of other channels. The Worker detects this afterwards and fails the peer's
/// channel ([`Event::Overdrawn`](crate::Event)). Peers that must not affect each other in this way belong on separate Workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SharedReceivesConfig {
    /// Receives kept posted, for the shares of all channels together; at most 65,536. The receives are posted when the Worker is
    /// made, so [`WorkerConfig::slots`] must exceed this number by the slots for leases and for messages that the application
    /// keeps. Default 512, a quarter of the default slots: four channels of default depth.
    pub depth: u32,
    /// Receives of all channels that are reposted together in one call. Default 16. If a channel has few receives left, they are
    /// reposted sooner.
    pub repost_batch: u32,
    /// Low watermark (`srq_limit`). If fewer receives than this are posted, the device reports
    /// [`AsyncEvent::SharedReceiveLimit`](crate::provider::AsyncEvent) once, which [`crate::Worker::next_event`] returns. After
    /// that, once enough receives are posted, the Worker sets the limit again, which is a system call. Default 0, which disables
    /// it: credits hold peers back, so the event would show only that this side is slow to release messages. At most `depth`.
    pub limit: u32,
}

impl Default for SharedReceivesConfig {
    fn default() -> Self {
        Self {
            depth: 512,
            repost_batch: 16,
            limit: 0,
        }
    }
}

/// Completions that wake a thread that sleeps at a Worker's completion queues. Except with [`Notify::Never`], failed completions
/// wake the thread, too. There is one exception: Soft-RoCE of Linux 6.12 and later does not notify for flushed receives with
/// [`Notify::Solicited`]. So with that setting a thread sleeps for at most a second, and then polls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_enums,
    reason = "a completion queue has these three: ibv_req_notify_cq(3)"
)]
pub enum Notify {
    /// No completion: a call that would sleep returns [`WaitError::NeverNotified`](crate::WaitError::NeverNotified).
    #[default]
    Never,
    /// Every completion.
    Every,
    /// Completions of this side's requests, and messages that the peer posted with [`PostFlags::SOLICITED`](crate::PostFlags).
    /// Other messages are received when something else wakes the Worker, at the deadline of the wait, or after a second.
    Solicited,
}

impl Default for WorkerConfig {
    fn default() -> Self {
        Self {
            slots: 2048,
            lease_share_percent: 12,
            slot_bytes: 4096,
            completion_depth: 4096,
            channels_max: 1024,
            channels_per_address: u32::MAX,
            shared_receives: None,
            notify: Notify::Never,
            placement: PlacementConfig::DEFAULT,
            submissions_per_poll: 64,
            classes: None,
        }
    }
}

/// The configuration of a [`Submitter`](crate::worker::Submitter).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SubmitterConfig {
    /// Slots of registered memory, which limit the submitter's waiting and in-flight requests. Default 256, twice the depth of a
    /// default channel: one half in flight, one half waiting.
    pub slots: u32,
    /// Bytes of each slot. Default 4,096, as for a Worker.
    pub slot_bytes: u32,
    /// Maximum number of requests in the ring to the Worker, rounded up to a power of two. Submitters that share a ring share
    /// this number. Default 256, which is 8 KiB: if the Worker polls every ten microseconds, the ring is full only if a request
    /// is submitted every 40 nanoseconds.
    pub depth: u32,
    /// Placement of the slots, as for a Worker.
    pub placement: PlacementConfig,
}

impl Default for SubmitterConfig {
    fn default() -> Self {
        Self {
            slots: 256,
            slot_bytes: 4096,
            depth: 256,
            placement: PlacementConfig::DEFAULT,
        }
    }
}

/// The configuration of one side of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChannelConfig {
    /// Maximum number of requests in flight. Default 128, as in perftest. The queue has one more entry for announcing receives to
    /// the peer; announcements in flight count towards this number.
    pub send_depth: u32,
    /// Receives kept posted; there must be slots for all of them. A peer sends no more messages than there are posted receives,
    /// which is the backpressure. Default 128, as many as a peer of default depth has in flight: with 64, a measured stream of
    /// messages waited for credits half the time. On a Worker with shared receives this is the channel's share of them.
    pub receive_depth: u32,
    /// Maximum number of gather elements of a request, 1..=4. Default 4: a header and the pages that follow it.
    pub gather_max: u8,
    /// Maximum inline bytes of a request. Default 220, the limit that perftest uses for WRITE, which fits the request formats of
    /// common devices. If the driver refuses this value, the connection asks for 96, then for 64. Longer messages are sent from
    /// cells.
    pub inline_bytes_max: u32,
    /// A single request of up to this many bytes is sent inline, even without the flag. The device then does not fetch the bytes,
    /// which takes longer than copying a few of them. Default 64, one cache line. For longer messages, and in batches, the copy
    /// costs more than it saves. With 0 only requests with [`PostFlags::INLINE`](crate::PostFlags) are inline. The value is cut
    /// to `inline_bytes_max` and to the inline limit of the queue pair.
    pub inline_alone_bytes_max: u32,
    /// Bytes of each cell of the send queue. Cells are registered memory of the channel, in which messages are written and from
    /// which they are sent ([`Channel::send`](crate::Channel::send), [`Channel::claim`](crate::Channel::claim)). A channel has
    /// one cell for each request that may be in flight, rounded up to a power of two. Default 256, four cache lines: an order, a
    /// quote or a small command with its headers. The cells of a channel of default depth take 64 KiB. Longer messages need a lease.
    /// With 0 there are no cells, and only inline messages are sent without a lease. A multiple of 64 wastes no memory. At most 1 MiB.
    pub cell_bytes: u32,
    /// Maximum number of consecutive unsignaled requests; see [`doorbell_hotpath::SenderConfig`]. Default 0: the last request of
    /// each doorbell is signaled, so no request waits for a later doorbell to be known done. In a doorbell with requests of a
    /// [`Submitter`](crate::worker::Submitter) the last request is always signaled, since only completions return the submitter's
    /// memory.
    ///
    /// If the device takes only a part of a doorbell, the signaled request may be among the refused ones. Then the next poll
    /// posts a signaled announcement.
    pub unsignaled_max: u32,
    /// Receives that are reposted together in one call. Default 16. Until then their memory is held by the channel
    /// ([`Channel::receives_staged`](crate::Channel::receives_staged)).
    pub repost_batch: u32,
    /// Access rights of the peer to windows on this channel. Default none. The queue pair always accepts WRITEs, since a peer
    /// announces receives by WRITE. Without [`RemoteAccess::write`] here, a window that grants WRITE is therefore still writable
    /// for a peer that has its key; a window without the right refuses the WRITE.
    pub remote: RemoteAccess,
    /// Maximum number of outstanding READs and atomics in each direction. Default 16, the limit of common devices; both sides
    /// negotiate the lower limit of their devices.
    pub rd_atomic_max: u8,
    /// The acknowledgement timeout, 4.096 us * 2^timeout; 1..=31. Default 16, which is 268 ms: longer than a busy software device
    /// needs to answer.
    pub timeout: u8,
    /// Number of retries without an acknowledgement, 0..=7. Default 6: with the default timeout a dead peer is given up after about
    /// two seconds. On rxe, 7 would never give up, and is refused.
    pub retry_count: u8,
    /// Number of retries when the peer has no receive posted; 7 means without limit. Default 6, the largest finite number. A
    /// message is sent only if the peer announced a receive for it, so a missing receive shows that the peer lied or failed. The
    /// few milliseconds of the retries are for a device that is slow to see a posted receive.
    pub rnr_retry: u8,
    /// Time that a peer must wait after it sent a message without a posted receive, as the 5-bit code of the specification.
    /// Default 12, which is 0.64 ms: about the time in which a busy thread reposts. Source: InfiniBand Architecture volume 1,
    /// section 9.7.5.2.8.
    pub min_rnr_timer: u8,
    /// Time limit of one stage of the handshake. Default 5 s, since resolving a neighbour on a loaded host takes seconds. The
    /// deadline of the connecting call limits the whole handshake. On the listening side the limit is twice this value, or 5 s if
    /// that is more.
    pub handshake_stage: Duration,
    /// Private data of the application, at most 64 bytes, which the handshake sends to the peer: keys of windows, for example.
    /// Default none.
    pub private_data: PrivateData,
    /// This side's state of the session that the connection resumes. The state is sent only to a peer that speaks version 2 of
    /// the handshake or newer; a connection to an older peer fails. Default none. [`Peer::session`](crate::Peer::session) returns
    /// the peer's state.
    pub session: Option<Resumption>,
    /// After this time of silence from the peer, the Worker probes the peer's device by an empty WRITE. So a side that only
    /// receives detects a dead peer. Default 10 s: one packet in that time costs nothing, and a server releases the channel of a
    /// dead client within 12 s. `None` disables probes.
    ///
    /// A dead peer is detected after this time, plus at most 100 ms, plus the time of all retransmissions:
    /// `(retry_count + 1) × 4.096 µs × 2^timeout`. A device may take up to four times as long to retransmit. Only an unsplit Worker
    /// probes, and only if it is tended ([`Worker::tend`](crate::Worker::tend)). If a loop that tends after each poll begins to sleep
    /// between its polls, the first detection may be up to 1,024 polls late.
    pub probe_after: Option<Duration>,
    /// Time limit for the answer to a probe, in whole milliseconds, rounded up. After this time the channel fails with
    /// [`WcStatus::RESP_TIMEOUT_ERR`](crate::WcStatus::RESP_TIMEOUT_ERR) if a poll finds no answer, and nothing arrived or was
    /// posted since the probe. So a dead peer is detected at most 150 ms after the sum of `probe_after` and this time, whatever
    /// the retransmissions take.
    ///
    /// If every poll takes a completion of a send, the peer counts as dead once polls have taken twice as many as the completion
    /// queue has entries. If the device refuses the probe but may have posted it, only the retransmissions detect a dead peer.
    /// Without `probe_after` this setting has no effect.
    ///
    /// Default `None`: the retransmissions alone decide. A shorter limit would end an idle channel in an outage that a busy
    /// channel survives. With a `timeout` of 12, which is 16.8 ms, a value of 50 ms leaves time to retransmit a lost packet.
    pub probe_timeout: Option<Duration>,
    /// Whether the Worker closes the channel by itself once the peer closed it or it failed. Default yes, since otherwise a
    /// server that ignores events would run out of channels. [`Worker::tend`](crate::Worker::tend) does the closing. The index
    /// and the memory are free again some 10 ms after [`Event::PeerClosed`](crate::Event::PeerClosed), or once all requests were
    /// flushed after [`Event::ChannelFailed`](crate::Event::ChannelFailed). If this is off, the channel stays until
    /// [`Worker::close`](crate::Worker::close).
    pub close_when_lost: bool,
    /// The largest path MTU that this side accepts. Default 4,096, the largest of verbs. The lower limit of both sides' ports
    /// applies, too.
    pub mtu_max: Mtu,
    /// The traffic class, as an index into [`WorkerConfig::classes`]. Default 0. An accepted channel gets the class whose marks
    /// match those that its peer announced, if there is such a class. Without classes on the Worker this setting has no effect.
    pub class: u8,
    /// The IP traffic class: DSCP in the upper six bits. Default 0. A class overrides it
    /// ([`Class::traffic_class`](crate::worker::Class)).
    pub traffic_class: u8,
    /// The IPv6 flow label, 20 bits. Default 0.
    pub flow_label: u32,
    /// The service level, 4 bits. Default 0. A class overrides it ([`Class::service_level`](crate::worker::Class)).
    pub service_level: u8,
    /// The IP time to live. Default 64.
    pub hop_limit: u8,
}

impl ChannelConfig {
    /// Returns how many sends a channel may have in flight: `send_depth` plus one. The additional entry is for announcements of
    /// receives, so a full queue does not block them.
    #[must_use]
    pub const fn sends_in_flight(&self) -> u32 {
        self.send_depth.saturating_add(1)
    }

    /// Returns the address vector of a destination on this rail, with the marks of the channel.
    pub(crate) const fn address(&self, rail: &NodeRail, destination: Gid) -> AddressVector {
        AddressVector {
            destination,
            source_gid_index: rail.gid_index,
            port: rail.port,
            hop_limit: self.hop_limit,
            traffic_class: self.traffic_class,
            flow_label: self.flow_label,
            service_level: self.service_level,
        }
    }
}

impl Default for ChannelConfig {
    fn default() -> Self {
        Self {
            send_depth: 128,
            receive_depth: 128,
            gather_max: 4,
            inline_bytes_max: 220,
            inline_alone_bytes_max: 64,
            cell_bytes: 256,
            unsignaled_max: 0,
            repost_batch: 16,
            remote: RemoteAccess {
                write: false,
                read: false,
                atomic: false,
            },
            rd_atomic_max: 16,
            timeout: 16,
            retry_count: 6,
            rnr_retry: 6,
            min_rnr_timer: 12,
            handshake_stage: Duration::from_secs(5),
            private_data: PrivateData::EMPTY,
            session: None,
            probe_after: Some(Duration::from_secs(10)),
            probe_timeout: None,
            close_when_lost: true,
            mtu_max: Mtu::B4096,
            class: 0,
            traffic_class: 0,
            flow_label: 0,
            service_level: 0,
            hop_limit: 64,
        }
    }
}
