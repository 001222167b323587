//! One test: the measured operation, its settings, and everything that both sides derive from them.
//!
//! The side that names its peer creates the test and sends it to the listening side. Both derive depths, memory and windows by
//! this code, so that they agree.

use core::fmt;

use clap::ValueEnum;
use doorbell::provider::Mtu;
use doorbell::wire::{RING_INVITATION_BYTES, RING_TRAILER_BYTES};
use doorbell::{ChannelConfig, RemoteAccess, WorkerConfig};
use serde::Serialize;

/// Maximum length of a message.
pub(crate) const MESSAGE_BYTES_MAX: u32 = 16 << 20;
/// Maximum length of a message through a ring: with the default number of cells, a ring then has 16 MiB.
pub(crate) const RING_MESSAGE_BYTES_MAX: u32 = 64 << 10;
/// Maximum number of messages in one round of a bandwidth test.
pub(crate) const ROUND_MESSAGES_MAX: u64 = 4096;
/// Maximum number of iterations, and of warm-up iterations: a fast device needs a day for them.
pub(crate) const ITERATIONS_MAX: u64 = 1 << 40;
/// Maximum memory for one purpose: the messages of a round, or a window.
const MEMORY_BYTES: u64 = 64 << 20;
/// Maximum memory for posted receives, if there are more than [`RECEIVES_MIN`].
const RECEIVE_BYTES: u64 = 16 << 20;
const RECEIVES_MIN: u64 = 512;
/// Maximum number of different messages in the window of a READ latency test.
const READ_PLACES_MAX: u64 = 1024;
/// Messages and windows are aligned to cache lines.
const LINE_BYTES: u32 = 64;
/// Size of the target word of an atomic.
pub(crate) const ATOMIC_BYTES: u32 = 8;
/// Receives for the marks that end a round.
const MARK_RECEIVES: u32 = 4;
/// Requests of a latency test between two checks for room: its message, an announcement of receives, and in a ring the
/// announcement of the messages that were read.
pub(crate) const SENDS_A_TURN: u32 = 3;
/// Minimum number of sends in flight of a latency test: those of a turn, and the previous message, whose completion may be late.
const LATENCY_SENDS: u32 = SENDS_A_TURN + 1;
/// Maximum length of a message that is sent from a cell of the send queue. Longer ones are sent from leases.
pub(crate) const CELL_MESSAGE_BYTES_MAX: u32 = 4096;

/// The quantity to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// The time of one message at a time.
    Latency,
    /// The rate of messages, with many in flight.
    Bandwidth,
}

impl Kind {
    /// The command that measures it.
    pub(crate) const fn command(self) -> &'static str {
        match self {
            Self::Latency => "lat",
            Self::Bandwidth => "bw",
        }
    }
}

/// The operation under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Op {
    /// SEND into a receive of the peer
    Send,
    /// WRITE into memory of the peer, which polls its last byte
    Write,
    /// WRITE with immediate, which completes a receive of the peer
    WriteImm,
    /// READ from memory of the peer
    Read,
    /// Atomic fetch and add on a word of the peer
    FetchAdd,
    /// Atomic compare and swap on a word of the peer
    CompareSwap,
    /// A message through the one-sided ring
    Ring,
}

impl Op {
    /// The operations that exist for both kinds of tests.
    pub(crate) const ALL: [Self; 6] = [
        Self::Send,
        Self::Write,
        Self::WriteImm,
        Self::Read,
        Self::FetchAdd,
        Self::CompareSwap,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Write => "write",
            Self::WriteImm => "write-imm",
            Self::Read => "read",
            Self::FetchAdd => "fetch-add",
            Self::CompareSwap => "compare-swap",
            Self::Ring => "ring",
        }
    }

    pub(crate) const fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd | Self::CompareSwap)
    }

    /// Whether the operation fetches: the peer's device responds, without its processor.
    pub(crate) const fn fetches(self) -> bool {
        matches!(self, Self::Read | Self::FetchAdd | Self::CompareSwap)
    }

    /// Whether each message completes a receive of the peer. A ring message does so if an immediate announces it.
    pub(crate) const fn takes_receives(self) -> bool {
        matches!(self, Self::Send | Self::WriteImm | Self::Ring)
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The side that corrupts one byte on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Plant {
    /// The side that names its peer
    Client,
    /// The listening side
    Listener,
}

/// The role of a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Role {
    Client,
    Listener,
}

/// One test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Test {
    pub(crate) kind: Kind,
    pub(crate) op: Op,
    pub(crate) message_bytes: u32,
    pub(crate) iterations: u64,
    pub(crate) warmup: u64,
    /// Maximum length of a message that is sent inline.
    pub(crate) inline_bytes_max: u32,
    /// Requests that are posted with one doorbell.
    pub(crate) batch: u32,
    /// Maximum number of requests in flight.
    pub(crate) depth: u32,
    pub(crate) unsignaled_max: u32,
    /// The number of buffers from which the messages of a bandwidth test are sent in turn; 0 for one buffer for each message of a
    /// round.
    pub(crate) buffers: u32,
    pub(crate) traffic_class: u8,
    #[serde(rename = "mtu_max_bytes", serialize_with = "mtu_bytes")]
    pub(crate) mtu_max: Mtu,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) plant: Option<Plant>,
}

fn mtu_bytes<S: serde::Serializer>(mtu: &Mtu, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u32(mtu.bytes())
}

/// Messages that are created, posted, and checked together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Round {
    /// The sequence number of the first message.
    pub(crate) first: u64,
    pub(crate) count: u64,
    /// Whether it is timed. Warm-up rounds are not.
    pub(crate) counts: bool,
}

impl Round {
    pub(crate) const fn sequences(self) -> core::ops::Range<u64> {
        self.first..self.first.saturating_add(self.count)
    }
}

/// Error: a setting is out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutOfRange {
    pub(crate) what: &'static str,
    pub(crate) value: u64,
    pub(crate) least: u64,
    pub(crate) most: u64,
}

impl fmt::Display for OutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            what,
            value,
            least,
            most,
        } = self;
        write!(f, "{what} is {value}: it must be from {least} to {most}")
    }
}

impl core::error::Error for OutOfRange {}

impl Test {
    /// Checks every setting against its range.
    ///
    /// # Errors
    /// The first setting that is out of range.
    pub(crate) const fn check(&self) -> Result<(), OutOfRange> {
        let (least, most) = if self.op.is_atomic() {
            (ATOMIC_BYTES as u64, ATOMIC_BYTES as u64)
        } else if self.op as u8 == Op::Write as u8 && self.plant.is_some() {
            // The last byte is polled for, so a second byte is needed for the corruption.
            (2, MESSAGE_BYTES_MAX as u64)
        } else if self.op as u8 == Op::Ring as u8 {
            (1, RING_MESSAGE_BYTES_MAX as u64)
        } else {
            (1, MESSAGE_BYTES_MAX as u64)
        };
        let bounds = [
            ("the message size", self.message_bytes as u64, least, most),
            ("the number of iterations", self.iterations, 1, ITERATIONS_MAX),
            ("the number of warm-up iterations", self.warmup, 0, ITERATIONS_MAX),
            ("the inline size", self.inline_bytes_max as u64, 0, 4096),
            ("the depth", self.depth as u64, 1, ROUND_MESSAGES_MAX),
            ("the batch", self.batch as u64, 1, self.depth as u64),
            (
                "the number of unsignaled requests",
                self.unsignaled_max as u64,
                0,
                ROUND_MESSAGES_MAX,
            ),
            (
                "the number of buffers",
                self.buffers as u64,
                0,
                self.buffers_max(),
            ),
        ];
        let mut index = 0;
        while index < bounds.len() {
            // The loop's condition bounds the index.
            #[expect(
                clippy::indexing_slicing,
                clippy::arithmetic_side_effects,
                reason = "index < len"
            )]
            {
                let (what, value, least, most) = bounds[index];
                if value < least || value > most {
                    return Err(OutOfRange {
                        what,
                        value,
                        least,
                        most,
                    });
                }
                index += 1;
            }
        }
        Ok(())
    }

    /// Maximum number of buffers. Only operations whose target is checked after the round can reuse buffers, and the listener
    /// provides memory for each buffer.
    const fn buffers_max(&self) -> u64 {
        match (self.kind, self.op) {
            (Kind::Bandwidth, Op::Write) if !self.is_inline() => {
                let fit = self.messages_in(MEMORY_BYTES);
                if fit < ROUND_MESSAGES_MAX {
                    fit
                } else {
                    ROUND_MESSAGES_MAX
                }
            }
            _ => 0,
        }
    }

    /// The length of a message.
    pub(crate) const fn bytes(&self) -> usize {
        self.message_bytes as usize
    }

    /// Whether the peer detects a message by its last byte.
    pub(crate) fn is_polled(&self) -> bool {
        self.kind == Kind::Latency && self.op == Op::Write
    }

    /// All iterations, including the warm-up.
    pub(crate) const fn total(&self) -> u64 {
        self.iterations.saturating_add(self.warmup)
    }

    /// Whether the messages are sent inline.
    pub(crate) const fn is_inline(&self) -> bool {
        !self.op.fetches() && self.message_bytes <= self.inline_bytes_max
    }

    /// Whether posting copies the messages into cells of the send queue, as a program does that creates its messages on demand.
    pub(crate) const fn is_by_cells(&self) -> bool {
        matches!(self.op, Op::Send | Op::Write | Op::WriteImm)
            && !self.is_inline()
            && self.buffers == 0
            && self.message_bytes <= CELL_MESSAGE_BYTES_MAX
    }

    /// The message that this side corrupts, if any.
    pub(crate) fn planted(&self, role: Role) -> Option<u64> {
        // If only one side sends, that side corrupts the message, regardless of the request.
        let by = match (self.plant?, self.kind, self.op) {
            (_, _, Op::Read) => Role::Listener,
            (_, Kind::Bandwidth, Op::Send | Op::Write | Op::WriteImm) | (Plant::Client, ..) => Role::Client,
            (Plant::Listener, ..) => Role::Listener,
        };
        let planted = self.total() / 2;
        (by == role).then(|| self.content_of(planted, self.first_of_round(planted)))
    }

    /// Returns the sequence number whose bytes the message with this sequence number has. `first` is the first sequence number of
    /// its round. READs of a latency test cycle through a window that is filled once. Buffers are filled once per round.
    pub(crate) fn content_of(&self, sequence: u64, first: u64) -> u64 {
        match (self.kind, self.op) {
            (Kind::Latency, Op::Read) => sequence.checked_rem(self.places()).unwrap_or(0),
            _ if self.buffers > 0 => first,
            _ => sequence,
        }
    }

    /// The rounds of a bandwidth test: first the warm-up rounds, then the timed ones.
    pub(crate) fn rounds(&self) -> impl Iterator<Item = Round> + use<> {
        let (most, warmup, total) = (self.round_messages(), self.warmup, self.total());
        let mut first = 0;
        core::iter::from_fn(move || {
            let end = if first < warmup { warmup } else { total };
            let count = u64::min(most, end.saturating_sub(first));
            let round = Round {
                first,
                count,
                counts: first >= warmup,
            };
            first = first.saturating_add(count);
            (count > 0).then_some(round)
        })
    }

    /// The first message of the round to which this message belongs.
    fn first_of_round(&self, sequence: u64) -> u64 {
        let begun = if sequence < self.warmup { 0 } else { self.warmup };
        let within = sequence
            .saturating_sub(begun)
            .checked_rem(self.round_messages())
            .unwrap_or(0);
        sequence.saturating_sub(within)
    }

    /// The offset of the corrupted byte: in the middle of the message, but not the byte that is polled for.
    pub(crate) const fn planted_offset(&self) -> usize {
        (self.message_bytes.saturating_sub(1) / 2) as usize
    }

    /// Maximum number of messages of a bandwidth round.
    pub(crate) fn round_messages(&self) -> u64 {
        let fit = if self.buffers > 0 {
            ROUND_MESSAGES_MAX
        } else {
            self.messages_in(MEMORY_BYTES)
        };
        self.iterations.min(fit).clamp(1, ROUND_MESSAGES_MAX)
    }

    /// The distance between messages in a window, and the size of a ring's cell.
    pub(crate) const fn place_bytes(&self) -> u32 {
        let trailer_bytes = if self.op as u8 == Op::Ring as u8 {
            RING_TRAILER_BYTES
        } else {
            0
        };
        let bytes = self.message_bytes.saturating_add(trailer_bytes);
        match bytes.checked_next_multiple_of(LINE_BYTES) {
            Some(bytes) => bytes,
            None => u32::MAX,
        }
    }

    /// The number of messages in a window: enough that one can be checked while the next arrives, or a whole round.
    pub(crate) fn places(&self) -> u64 {
        match (self.kind, self.op) {
            (_, Op::Send | Op::Ring) => 0,
            (_, Op::FetchAdd | Op::CompareSwap) => 1,
            (Kind::Latency, Op::Read) => {
                let fit = self.messages_in(MEMORY_BYTES);
                self.total().min(fit).clamp(1, READ_PLACES_MAX)
            }
            (Kind::Latency, _) => 2,
            (Kind::Bandwidth, _) => self.held_messages(),
        }
    }

    /// Number of messages of a round that are in memory at a time.
    fn held_messages(&self) -> u64 {
        match self.buffers {
            0 => self.round_messages(),
            buffers => u64::from(buffers).min(self.round_messages()),
        }
    }

    /// The messages of a round that can be checked after it. If buffers are reused, these are the last message of each buffer.
    pub(crate) fn checkable(&self, round: Round) -> core::ops::Range<u64> {
        let end = round.sequences().end;
        end.saturating_sub(round.count.min(self.held_messages()))..end
    }

    /// The total number of messages that are checked.
    pub(crate) fn checks(&self) -> u64 {
        if self.buffers == 0 {
            return self.total();
        }
        let checkable = |round| self.checkable(round);
        self.rounds().map(checkable).fold(0, |sum, range| {
            sum.saturating_add(range.end.saturating_sub(range.start))
        })
    }

    /// Returns the offset of this sequence's message in a window. `first` is the first sequence number of its round.
    pub(crate) fn place_of(&self, sequence: u64, first: u64) -> usize {
        let index = sequence
            .wrapping_sub(first)
            .checked_rem(self.places())
            .unwrap_or(0);
        usize::try_from(index.saturating_mul(u64::from(self.place_bytes()))).unwrap_or(usize::MAX)
    }

    /// The window of this side: its size, and the peer's access rights.
    pub(crate) fn window(&self, role: Role) -> Option<(usize, RemoteAccess)> {
        let answers = self.kind == Kind::Latency && !self.op.fetches();
        if role == Role::Client && !answers {
            return None;
        }
        let access = match self.op {
            // A ring creates its own window.
            Op::Send | Op::Ring => return None,
            Op::Write | Op::WriteImm => RemoteAccess::WRITE,
            Op::Read => RemoteAccess::READ,
            Op::FetchAdd | Op::CompareSwap => RemoteAccess {
                write: false,
                read: false,
                atomic: true,
            },
        };
        let bytes = self.places().saturating_mul(u64::from(self.place_bytes()));
        Some((usize::try_from(bytes).ok()?, access))
    }

    /// Maximum number of requests in flight on this side.
    pub(crate) fn send_depth(&self, role: Role) -> u32 {
        match (self.kind, role) {
            (Kind::Bandwidth, Role::Listener) => MARK_RECEIVES,
            (Kind::Bandwidth, Role::Client) => {
                let round = u32::try_from(self.round_messages()).unwrap_or(u32::MAX);
                // One more for the mark that ends a round.
                self.depth.min(round).saturating_add(1)
            }
            // Each send holds its memory until its completion.
            (Kind::Latency, _) => self
                .depth
                .max(LATENCY_SENDS)
                .min(self.messages_that_fit())
                .max(SENDS_A_TURN),
        }
    }

    /// Number of receives that this side keeps posted.
    pub(crate) fn receive_depth(&self, role: Role) -> u32 {
        match (self.kind, role) {
            _ if !self.op.takes_receives() => MARK_RECEIVES,
            (Kind::Latency, _) => 64.min(self.messages_that_fit()).max(MARK_RECEIVES),
            (Kind::Bandwidth, Role::Client) => MARK_RECEIVES,
            (Kind::Bandwidth, Role::Listener) => {
                let fit = self.messages_in(RECEIVE_BYTES).max(RECEIVES_MIN);
                let receives = self.round_messages().min(fit);
                u32::try_from(receives)
                    .unwrap_or(u32::MAX)
                    .saturating_add(MARK_RECEIVES)
            }
        }
    }

    const fn messages_in(&self, memory_bytes: u64) -> u64 {
        match memory_bytes.checked_div(self.place_bytes() as u64) {
            Some(messages) => messages,
            None => memory_bytes,
        }
    }

    fn messages_that_fit(&self) -> u32 {
        u32::try_from(self.messages_in(MEMORY_BYTES / 2)).unwrap_or(u32::MAX)
    }

    /// Returns the configuration of this side's Worker.
    pub(crate) fn worker_config(&self, role: Role) -> WorkerConfig {
        let (sends, receives) = (self.send_depth(role), self.receive_depth(role));
        let round = u32::try_from(self.held_messages()).unwrap_or(u32::MAX);
        let held = match (self.kind, role) {
            (Kind::Latency, _) | (Kind::Bandwidth, Role::Client) if self.is_by_cells() => MARK_RECEIVES,
            (Kind::Latency, _) => sends.saturating_add(2),
            // Filled before the round, or held until they are checked after it.
            (Kind::Bandwidth, Role::Client) => round.saturating_add(MARK_RECEIVES),
            (Kind::Bandwidth, Role::Listener) if self.op == Op::Send => round.saturating_add(MARK_RECEIVES),
            (Kind::Bandwidth, Role::Listener) => MARK_RECEIVES,
        };
        let whole_messages = match (self.kind, role) {
            (Kind::Latency, _) => true,
            // This side receives only marks.
            (Kind::Bandwidth, Role::Client) => !self.is_by_cells(),
            (Kind::Bandwidth, Role::Listener) => self.op == Op::Send,
        };
        let mut config = WorkerConfig::default();
        // Exact numbers: leases and receives.
        config.slots = held.saturating_add(receives);
        config.lease_share_percent = 0;
        config.slot_bytes = if whole_messages {
            self.place_bytes()
        } else {
            LINE_BYTES
        };
        config.completion_depth = sends.max(receives).saturating_add(MARK_RECEIVES);
        config
    }

    /// Returns the configuration of this side's channel.
    pub(crate) fn channel_config(&self, role: Role) -> ChannelConfig {
        let mut config = ChannelConfig::default();
        config.send_depth = self.send_depth(role);
        config.receive_depth = self.receive_depth(role);
        config.gather_max = 1;
        // Space for inline bytes enlarges every request, so it is reserved only if it is used.
        config.inline_bytes_max = if self.is_inline() {
            self.inline_bytes_max
        } else {
            0
        };
        // Leases are never sent inline, whatever their length: the test decides what is inline.
        config.inline_alone_bytes_max = 0;
        // Marks are also sent from cells, and fit into a cache line.
        config.cell_bytes = match (self.kind, role) {
            (Kind::Latency, _) | (Kind::Bandwidth, Role::Client) if self.is_by_cells() => self.place_bytes(),
            _ => LINE_BYTES,
        };
        if self.op == Op::Ring {
            // The ring's invitation is sent inline, and so is an inline message with its trailer.
            let message_bytes = if self.is_inline() {
                self.message_bytes.saturating_add(RING_TRAILER_BYTES)
            } else {
                0
            };
            let least = message_bytes.max(u32::try_from(RING_INVITATION_BYTES).unwrap_or(u32::MAX));
            config.inline_bytes_max = config.inline_bytes_max.max(least);
        }
        config.unsignaled_max = self.unsignaled_max;
        config.remote = self.window(role).map_or(config.remote, |(_, access)| access);
        config.traffic_class = self.traffic_class;
        config.mtu_max = self.mtu_max;
        config
    }
}

#[cfg(test)]
mod tests;
