//! Collectives: exchanges of data within a group of ranks, as steps between two ranks at a time.
//!
//! A [`Schedule`] lists which rank sends which blocks to which rank. A [`Progress`] advances through it by polling,
//! over any transport that carries messages in order between two ranks ([`Exchange`]).
//!
//! Each message names its collective. So ranks that call different collectives, or the same ones in another order,
//! fail ([`CollectiveError::Mismatch`]), and no message is mistaken for another. The root of a broadcast is not in the
//! message, so different roots may go unnoticed ([`Collective::Broadcast`]). Each message names its group, too, so that messages
//! of a failed group are recognized ([`GroupId`]).
//!
//! This module knows neither the transport of the messages nor the operation that combines elements.

mod header;
mod misuse;
mod progress;
mod schedule;

use core::ops::Range;

pub use header::{COLLECTIVE_HEADER_BYTES, CollectiveHeader, GroupId};
pub use misuse::CollectiveMisuse;
pub use progress::{CollectiveError, Data, Exchange, Progress};
pub use schedule::{Collective, Schedule, Step, Transfer};

/// Returns the byte range of these blocks within `data_bytes` bytes of data that are cut into one block for each rank. Each
/// block is a whole number of elements. If the elements do not divide evenly, each of the first blocks has one more.
///
/// The range is empty if the data is not a whole number of elements, or if `ranks` is zero.
#[must_use]
pub fn block_bytes(blocks: Range<u8>, ranks: u8, data_bytes: usize, element_bytes: usize) -> Range<usize> {
    let elements = match data_bytes.checked_rem(element_bytes) {
        Some(0) => data_bytes.checked_div(element_bytes).unwrap_or(0),
        _ => return 0..0,
    };
    let count = usize::from(ranks);
    let (Some(each), Some(longer)) = (elements.checked_div(count), elements.checked_rem(count)) else {
        return 0..0;
    };
    // At most all elements, so at most `data_bytes`.
    let start = |block: u8| {
        let before = usize::from(block.min(ranks));
        let elements = before.saturating_mul(each).saturating_add(before.min(longer));
        elements.saturating_mul(element_bytes)
    };
    start(blocks.start)..start(blocks.end)
}

#[cfg(test)]
mod tests;
