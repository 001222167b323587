//! Every knob of the control plane, with the reason for its default.

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
    /// Slots of registered memory, for receives and leases together. Default 2,048: eight
    /// channels of default depth with as much again to lease, 8 MiB.
    pub slots: u32,
    /// The percentage of the slots that is kept for leases, at least one slot unless it is 0. Receives never
    /// take these slots: a channel that would is refused ([`ConnectError::NoSlots`](crate::ConnectError)). So a lease that is
    /// not to be had now ([`Worker::lease`](crate::Worker::lease)) is to be had later, as soon as a request ends or a message is
    /// released. Default 12, an eighth: a burst of messages on one channel of
    /// default depth, and 14 channels of that depth still fit into the default slots. With 0, receives may take
    /// every slot, and then there is no lease as long as the channels live: for a Worker that sends nothing, or only inline.
    pub lease_share_percent: u32,
    /// Bytes of each slot: the largest message. Default 4,096, a page and the largest path MTU.
    pub slot_bytes: u32,
    /// Entries of each of the two completion queues. A channel is admitted only if there is room for all requests that it may post.
    /// Default 4,096: sixteen channels of default depth, and little enough for every device.
    pub completion_depth: u32,
    /// Maximum number of channels. Default 1,024: more than a port of most hosts has peers, for 16 KiB. Each has a word of eight
    /// bytes in which its peer announces receives; they are registered together with the Worker.
    pub channels_max: u32,
    /// Limit on channels of peers from one address, which is the source address of their handshakes. Connections in progress count,
    /// too. Default: no limit but that of all, since it is for a Worker whose peers are not one's own.
    pub channels_per_address: u32,
    /// Shared receive queue for all channels. Default none: each channel has its own receive queue, so no peer can use the receives
    /// of another.
    pub shared_receives: Option<SharedReceivesConfig>,
    /// The completions that wake a thread that sleeps at the completion queues. Default [`Notify::Never`]: a Worker is polled, and
    /// notification needs descriptors of its own.
    ///
    /// With the default no thread can sleep at the Worker. [`Worker::wait`](crate::Worker::wait) with
    /// [`Wait::SPIN_THEN_SLEEP`](crate::Wait::SPIN_THEN_SLEEP) and [`Worker::ready_to_sleep`](crate::Worker::ready_to_sleep) return
    /// [`WaitError::NeverNotified`](crate::WaitError::NeverNotified), and `Worker::descriptors` returns `None`. [`Wait::Busy`](crate::Wait::Busy)
    /// needs no notification. Set [`Notify::Every`] before a thread is to sleep: a Worker that exists does not change it.
    pub notify: Notify,
    /// The place of the slots, and their pages. Default: transparent huge pages, locked, on
    /// the device's NUMA node, each as far as the machine allows; see [`PlacementConfig`], and
    /// [`crate::Worker::placement`] for what came of it.
    pub placement: PlacementConfig,
    /// Maximum number of submitted requests that one poll takes. Default 64, half of the default depth of a channel: enough for
    /// long doorbells, and what completed meanwhile waits a few microseconds at most.
    pub submissions_per_poll: u32,
    /// Traffic classes, which channels and links select by [`ChannelConfig::class`]. Default none: requests are posted as soon as a
    /// queue has room, without any scheduling cost.
    pub classes: Option<Classes>,
}

/// Configuration of a shared receive queue for all channels of a Worker.
///
/// It is for Workers with many peers. A receive queue of its own costs each channel rings in the device and a table here,
/// however few its receives, and each is posted to by itself. With shared receives a peer costs its receives and no queue for
/// them, and the receives that all peers used are posted again in one call.
///
/// The share of each channel is its [`ChannelConfig::receive_depth`]: what its peer may use. There is no
/// over-subscription: channels are admitted only as far as their shares fit into the depth together,
/// and nothing is granted that is not posted. A peer that takes more than it was granted
/// takes it from the others: it is found out, and its channel failed
/// ([`Event::Overdrawn`](crate::Event)), but not before it did. Peers that do not trust each other that
/// far belong on Workers of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SharedReceivesConfig {
    /// Receives kept posted, at most 65,536: the shares of all channels together. They are posted when
    /// the Worker is made, so there must be as many slots, and more for what is leased or
    /// looked at. Default 512, half the default slots: four channels of default depth.
    pub depth: u32,
    /// Receives of all channels that are reposted together in one call; they are reposted sooner if a channel has none left.
    /// Default 16: one call for sixteen.
    pub repost_batch: u32,
    /// With fewer receives left than this the device says so, once:
    /// [`AsyncEvent::SharedReceiveLimit`](crate::provider::AsyncEvent), from [`crate::Worker::next_event`]. As many
    /// being posted again, it is asked to once more, which is a system call. Default 0, which is never: peers
    /// are held back by credits, so it says only that this side is slow to give memory back.
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

/// Completions that wake a thread that sleeps at a Worker's completion queues. Failures always do, unless nothing does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_enums,
    reason = "a completion queue has these three: ibv_req_notify_cq(3)"
)]
pub enum Notify {
    /// None: a thread that would sleep gets [`WaitError::NeverNotified`](crate::WaitError::NeverNotified) instead.
    #[default]
    Never,
    /// All.
    Every,
    /// Only messages that the peer posted with
    /// [`PostFlags::SOLICITED`](crate::PostFlags), and all of our own requests. Others are found
    /// when something else wakes the Worker, or at the deadline of the wait.
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
    /// Slots of its memory, which limit its requests in flight. Default 256, twice what a channel of default depth has in flight:
    /// as much again may be waiting.
    pub slots: u32,
    /// Bytes of each slot. Default 4,096, as of a Worker.
    pub slot_bytes: u32,
    /// Requests its ring holds at most, made a power of two; of submitters that share one, all
    /// theirs. Default 256, 8 KiB: a Worker that is polled once in ten microseconds is behind
    /// by that only where one is submitted every 40 nanoseconds.
    pub depth: u32,
    /// The place of its memory, as of a Worker.
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

/// The configuration of a channel, on its own side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChannelConfig {
    /// Maximum number of requests in flight. Default 128, as in perftest. The queue has one more entry for announcing receives to
    /// the peer; announcements in flight count towards this number.
    pub send_depth: u32,
    /// Receives kept posted; there must be slots for all of them. A peer sends no more messages than are posted, which is its
    /// backpressure. Default 128, as many as a peer of default depth has in flight: with half of it, a stream of messages stood
    /// still half the time. On a Worker with shared receives it is the channel's share of them.
    pub receive_depth: u32,
    /// Maximum number of gather elements of a request, 1..=4. Default 4, the most: a header and the pages behind it.
    pub gather_max: u8,
    /// Maximum inline bytes of a request. Default 220: what a WRITE of perftest may, and what fits the request formats of common
    /// devices. A device that takes fewer grants 96 or 64, and longer messages go out from cells.
    pub inline_bytes_max: u32,
    /// A single request of up to this many bytes is sent inline, even without the flag. The device then need not fetch the bytes,
    /// which takes longer than copying a few. Default 64, one cache line; with more, or in batches, the copying is what costs. 0
    /// leaves it to [`PostFlags::INLINE`](crate::PostFlags). Never more than `inline_bytes_max`.
    pub inline_alone_bytes_max: u32,
    /// Bytes of each cell of the send queue: memory of the channel's own that messages are written to and sent from
    /// ([`Channel::send`](crate::Channel::send), [`Channel::claim`](crate::Channel::claim)). There is one for each request that may
    /// be in flight, rounded up to a power of two. Default 256, four cache lines: an order, a quote or a small command with its
    /// headers, in 64 KiB for a channel of default depth. Longer messages are sent by leases. With 0 there are no cells, and only what
    /// fits inline is sent without a lease. A multiple of 64 wastes nothing.
    pub cell_bytes: u32,
    /// Maximum number of consecutive unsignaled requests; see [`doorbell_hotpath::SenderConfig`]. Default 0: each doorbell is known
    /// done by itself. The last of a doorbell of what a [`Submitter`](crate::worker::Submitter) submitted is signaled whatever this
    /// says: its memory comes home by completions alone.
    ///
    /// If the device took a part of a doorbell, the signaled request may have been refused: the next poll posts an announcement
    /// that is signaled.
    pub unsignaled_max: u32,
    /// Receives that are reposted together in one call. Default 16. Their memory waits with the channel
    /// ([`Channel::receives_staged`](crate::Channel::receives_staged)).
    pub repost_batch: u32,
    /// Access rights of the peer to windows on this channel. Default none. A queue pair takes WRITEs in any case, since they are
    /// how a peer announces receives: a window made without that right refuses them, and one made with it is opened by its key.
    pub remote: RemoteAccess,
    /// Maximum number of outstanding READs and atomics in each direction. Default 16, the limit of common devices; both sides
    /// negotiate the lower limit of their devices.
    pub rd_atomic_max: u8,
    /// The acknowledgement timeout, 4.096 us * 2^timeout; 1..=31. Default 16, 268 ms: longer
    /// than a busy software device takes to answer.
    pub timeout: u8,
    /// Number of retries without an acknowledgement, 0..=7. Default 6: with the default timeout a dead peer is given up after about
    /// two seconds. 7 never gives up on rxe.
    pub retry_count: u8,
    /// Number of retries when the peer has no receive posted; 7 is without end. Default 6, the largest number that ends. A
    /// message is sent only if the peer announced a receive for it, so a missing one shows that the peer lied or failed. The
    /// few milliseconds of the retries are for a device that is slow to see a posted receive.
    pub rnr_retry: u8,
    /// Time that a peer must wait after it sent without a posted receive, as its 5-bit code. Default 12, 0.64 ms: about the time
    /// that a busy thread takes to post again. Source: InfiniBand Architecture volume 1, section 9.7.5.2.8.
    pub min_rnr_timer: u8,
    /// Time limit of one stage of the handshake. Default 5 s: a neighbour that has to be resolved on a loaded host takes seconds.
    /// The whole is bounded by the deadline of the call that connects, and on the side that listens by twice this, or 5 s where
    /// that is more.
    pub handshake_stage: Duration,
    /// Bytes of the application that are sent to the peer in the handshake, at most 64: windows that it may access, for example.
    /// Default none.
    pub private_data: PrivateData,
    /// This side's state of the session that the connection carries on. A peer that speaks version 2 of the handshake gets it; the
    /// connection to any other peer fails. Default none. [`Peer::session`](crate::Peer::session) has the peer's state.
    pub session: Option<Resumption>,
    /// After this time of silence from the peer, the Worker probes the peer's device by an empty WRITE, so that a side that only
    /// receives detects a dead peer. It is known dead 100 ms, and what `timeout` and `retry_count` take, after this at the latest:
    /// `(retry_count + 1) × 4.096 µs × 2^timeout`, of which a device may take four times as much. `None`: never. Default 10 s: a
    /// packet in that time costs nothing, and a server has the place of a dead client back within 12 s. Only where its Worker is
    /// whole and tended ([`Worker::tend`](crate::Worker::tend)). A loop that tends after each poll, and begins to sleep between its
    /// polls, finds it up to 1,024 polls later, once.
    pub probe_after: Option<Duration>,
    /// Time limit for the answer to a probe. After it the channel fails with
    /// [`WcStatus::RESP_TIMEOUT_ERR`](crate::WcStatus::RESP_TIMEOUT_ERR), within 60 ms, if a poll finds no answer, and nothing came
    /// or was posted since. So a dead peer is found this and 150 ms after `probe_after` at the latest, whatever the device's
    /// retries take. A Worker whose every poll takes a completion of a send finds the peer dead once it took twice as many as its
    /// queue has places. A probe that the device refuses, and may have, leaves the peer to those retries. Without `probe_after` it
    /// means nothing. Default `None`, which leaves the peer to those retries: with less, an outage that a busy channel survives
    /// would end an idle one. A value of 50 ms leaves time for a lost packet with a `timeout` of 12, of 16.8 ms. Whole
    /// milliseconds, rounded up.
    pub probe_timeout: Option<Duration>,
    /// Whether the Worker closes the channel by itself once it is lost: the peer closed it, or it failed. Default yes, since a
    /// server that reads no events would run out of places. [`Worker::tend`](crate::Worker::tend) does it. The place and the memory are free again some 10 ms after
    /// [`Event::PeerClosed`](crate::Event::PeerClosed), or once all requests came back after
    /// [`Event::ChannelFailed`](crate::Event::ChannelFailed). Without, the channel stays until
    /// [`Worker::close`](crate::Worker::close).
    pub close_when_lost: bool,
    /// The largest path MTU to agree to. Default 4,096, the largest there is: the lower of
    /// both sides' ports decides.
    pub mtu_max: Mtu,
    /// The traffic class, as an index into [`WorkerConfig::classes`]. Default 0. A channel that is accepted is of the class with
    /// the marks that its peer announced, if there is one. Without classes on the Worker it means nothing.
    pub class: u8,
    /// The IP traffic class: DSCP in the upper six bits. Default 0. A class sets its own.
    pub traffic_class: u8,
    /// The IPv6 flow label, 20 bits. Default 0.
    pub flow_label: u32,
    /// The service level, 4 bits. Default 0. A class sets its own.
    pub service_level: u8,
    /// The IP time to live. Default 64.
    pub hop_limit: u8,
}

impl ChannelConfig {
    /// Returns the sends that a channel may have in flight: one more than the application's, since receives are announced whatever it
    /// has posted.
    #[must_use]
    pub const fn sends_in_flight(&self) -> u32 {
        self.send_depth.saturating_add(1)
    }

    /// The address of a port that a rail leads to, with the marks of the channel.
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
