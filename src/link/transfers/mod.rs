//! Transfers of a link: ranges of regions that are sent to the peer, or received from it, over all rails.
//!
//! `doorbell_core::transfer` decides. This module posts its frames and pieces on the rails' channels, in turns by priority, and registers
//! and deregisters the taker's memory.

mod calls;
mod entry;
mod loans;
mod numbers;
mod pace;
mod posting;
mod reach;
mod table;
mod totals;

use core::fmt;
use core::num::NonZeroU64;
use core::time::Duration;

use doorbell_core::provider::MemoryError;
use doorbell_core::session::FinalReason;
use doorbell_core::transfer::{PIECE_BYTES_MAX, PIECE_BYTES_MIN, TRANSFER_BYTES_MAX};
pub use doorbell_core::transfer::{TransferCounts, TransferEnd, TransferId, TransferRole};
pub use doorbell_core::wire::EndReason;
use doorbell_core::wire::VERSION_TRANSFERS;
use doorbell_core::{Deadline, Instant};

pub(super) use loans::LoanEnd;
pub(super) use table::Transfers;
pub use totals::{TransferOutcome, TransferTotals};

/// Configuration of a link's transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransferConfig {
    /// The bytes of a piece: a power of two from 4 KiB to 16 MiB; other values are rounded. Default 256 KiB: a rail of 100 Mbit/s carries
    /// it in 21 ms, which is less than [`SessionConfig::suspect_after`](crate::link::SessionConfig::suspect_after). A rail that carries
    /// 1 MiB within a sixteenth of that time gets consecutive pieces in one WRITE, of up to 1 MiB and half of `pieces_ahead`. The side that
    /// begins a transfer chooses.
    pub piece_bytes: u32,
    /// Maximum number of pieces in flight on a rail, of all transfers of the link together. Default 8: two WRITEs of 1 MiB, with
    /// pieces of 256 KiB. A message waits on its rail for no more than these. A slow rail has fewer: as many as it carries in a
    /// quarter of [`SessionConfig::suspect_after`](crate::link::SessionConfig::suspect_after), and at least one. On such a rail a piece is
    /// posted in up to eight parts. A part has to complete within
    /// [`SessionConfig::dead_after`](crate::link::SessionConfig::dead_after), or the rail is considered dead. A rail of 2.2 Mbit/s is fast enough
    /// by default.
    pub pieces_ahead: u32,
    /// Maximum number of open transfers of a link. The limit applies separately to transfers that this side began, and to those that the
    /// peer began. Default 16. Each uses about 8 KiB of memory on the giving side, and less on the taking side. Use the same value on both
    /// sides: a side declines transfers beyond its own limit. The link ends if more than 1,024 ends of transfers, in addition to twice the
    /// limit, wait to be sent to the peer.
    pub transfers_max: u32,
    /// Minimum time between two progress events of a transfer. Default 100 ms.
    pub progress_every: Duration,
    /// How long a taker that ends a transfer waits for the giver to stop, before it deregisters its memory anyway. Default 500 ms. A giver
    /// that ends a transfer waits until its WRITEs are done or their rail is lost.
    pub drain_within: Duration,
}

impl Default for TransferConfig {
    fn default() -> Self {
        Self {
            piece_bytes: 256 << 10,
            pieces_ahead: 8,
            transfers_max: 16,
            progress_every: Duration::from_millis(100),
            drain_within: Duration::from_millis(500),
        }
    }
}

impl TransferConfig {
    /// The bytes of a piece, rounded to a valid value.
    pub(super) fn piece_bytes(&self) -> u32 {
        let bytes = self.piece_bytes.clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX);
        bytes.checked_next_power_of_two().unwrap_or(PIECE_BYTES_MAX)
    }

    /// The deadline for the peer of a transfer that ends now.
    fn drain_by(&self, now: Instant) -> Deadline {
        Deadline::after(now, self.drain_within)
    }
}

/// Identifies a loan of a link: memory that [`Links::lend`](crate::link::Links::lend) or
/// [`Links::lend_window`](crate::link::Links::lend_window) made accessible to its peer. An id is not reused on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LoanId(u32);

impl fmt::Display for LoanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Options of a transfer, for the side that begins or joins it. Start from [`TransferOptions::default`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransferOptions {
    /// A word of the application that is sent to the peer with the offer. Default 0.
    pub tag: u64,
    /// Priority among the transfers that this side gives over a link: the highest is served first, and equals take turns. Default 0.
    pub priority: u8,
    /// Rate limit in bytes per second for the giving side. Default: no limit.
    pub bytes_per_second_max: Option<NonZeroU64>,
    /// For a taker: a loan that receives the bytes, so that nothing is registered for the transfer. The range of the region has to be within
    /// the loan. No effect for a giver. Default: the memory is registered for this transfer.
    pub loan: Option<LoanId>,
    /// The transfer ends as [`EndReason::DEADLINE`] if it is not done within this time. Default: no limit.
    pub within: Option<Duration>,
}

/// An event of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransferEvent {
    /// The peer began a transfer. Answer with [`Links::join`](crate::link::Links::join) or [`Links::cancel`](crate::link::Links::cancel).
    Offered {
        /// The role of this side.
        role: TransferRole,
        /// The bytes.
        bytes: u64,
        /// The peer's [`TransferOptions::tag`].
        tag: u64,
    },
    /// Bytes arrived.
    Progress {
        /// Number of bytes so far, without a gap from the beginning.
        bytes: u64,
        /// The bytes a second since the previous progress event.
        bytes_per_second: u64,
    },
    /// The transfer is over, and the application owns the memory again: the peer cannot access it, and no request of this transfer uses it.
    /// A giver's failed rails are shut before. The peer can still access memory of a [loan](crate::link::Links::lend): after
    /// [`TransferEnd::Done`] an honest peer writes nothing more there, and after another end it may, until the loan is revoked. If a device
    /// did not deregister the memory, the end is [`EndReason::NOT_WITHDRAWN`], and the peer may still write to the memory, which
    /// stays registered until the process ends.
    Ended {
        /// How it ended.
        end: TransferEnd,
        /// The transfer's counts.
        counts: TransferCounts,
        /// The error of a device of this side that did not register the memory ([`EndReason::NO_MEMORY`]), or did not deregister it
        /// ([`EndReason::NOT_WITHDRAWN`]).
        error: Option<MemoryError>,
    },
}

/// Reason why a transfer was not begun, joined or ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransferRefusal {
    /// Back-pressure: the limit on open transfers is reached.
    Full {
        /// [`TransferConfig::transfers_max`].
        transfers_max: u32,
    },
    /// The peer's build does not support transfers, and a frame about one would end the link. Send messages instead.
    Unsupported {
        /// The version of the wire format that both sides use ([`Peer::wire_version`](crate::Peer::wire_version)).
        version: u8,
    },
    /// Caller misuse: a transfer has 1 to 2^40 bytes, and a loan has at least 1.
    Length {
        /// The bytes.
        bytes: u64,
    },
    /// The peer began the transfer with longer pieces than this side gives: a slow rail would need too long for one.
    PiecesTooLong {
        /// The bytes of a piece.
        bytes: u32,
        /// The limit: `piece_bytes` times [`TransferConfig::pieces_ahead`], and at least 1 MiB.
        bytes_max: u32,
    },
    /// Caller misuse: the range is not within the region.
    OutOfRegion {
        /// The offset of the range.
        offset: usize,
        /// The bytes of the transfer.
        bytes: u64,
        /// The bytes of the region.
        region_bytes: usize,
    },
    /// Caller misuse: the region is not registered with the Workers of these links, in their order.
    OtherWorkers,
    /// Caller misuse: bytes are to come into a region that was lent without the right to write.
    ReadOnly,
    /// Back-pressure: the limit on loans is reached.
    LoansFull {
        /// The limit of a link: on loans, or on windows.
        loans_max: u32,
    },
    /// Caller misuse: there is no such loan, it is revoked, the range is not within it, or the peer may not write to it.
    NoLoan,
    /// Caller misuse: memory was to be lent without any access.
    NoAccess,
    /// Caller misuse: there is no such transfer, it is over, or the peer did not offer it.
    NotOpen,
    /// The link is being closed, or there is no such link.
    Closing,
    /// The link is over.
    Over(FinalReason),
}

impl fmt::Display for TransferRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full { transfers_max } => write!(
                f,
                "{transfers_max} transfers of the link are open, which is the limit: wait for one to end, or raise transfers_max"
            ),
            Self::Unsupported { version } => write!(
                f,
                "the peer speaks version {version} of the wire format, and transfers need {VERSION_TRANSFERS}: run a newer build there"
            ),
            Self::Length { bytes } => {
                write!(
                    f,
                    "a range of {bytes} bytes: a transfer has 1 to {TRANSFER_BYTES_MAX} bytes, and a loan 1 or more"
                )
            }
            Self::OutOfRegion {
                offset,
                bytes,
                region_bytes,
            } => write!(
                f,
                "{bytes} bytes at offset {offset} exceed the region of {region_bytes} bytes: stay within it"
            ),
            Self::OtherWorkers => {
                f.write_str("the region is registered with other Workers than those of the links: make it of the same, in their order")
            }
            Self::ReadOnly => {
                f.write_str("the region was lent without the right to write: lend it with LOCAL_WRITE to take bytes into it")
            }
            Self::PiecesTooLong { bytes, bytes_max } => write!(
                f,
                "the peer's pieces have {bytes} bytes, and {bytes_max} is the limit: let it lower piece_bytes, or raise pieces_ahead here"
            ),
            Self::LoansFull { loans_max } => {
                write!(f, "{loans_max} loans of the link are there, which is the limit: revoke one, or lend larger ranges")
            }
            Self::NoLoan => {
                f.write_str("no loan of this name covers the range of this region: lend it, or leave out the loan")
            }
            Self::NoAccess => f.write_str("the memory would be lent without any access: allow WRITE, READ or atomics"),
            Self::NotOpen => f.write_str("no transfer of this number is open, or the peer did not offer it"),
            Self::Closing => f.write_str("the link is being closed, or there is no such link: begin a new link"),
            Self::Over(reason) => write!(f, "the link is over: {reason}"),
        }
    }
}

impl core::error::Error for TransferRefusal {}
