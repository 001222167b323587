//! Collectives: what a group of ranks does together, as steps between two of them at a time.
//!
//! A [`Schedule`] says who sends what to whom. A [`Progress`] goes through it by polling, over anything that carries messages
//! in order between two ranks ([`Exchange`]). Each message says which it is of which collective, so that ranks that do not
//! call the same ones in the same order find out ([`CollectiveError::Mismatch`]), and nothing is taken for something else; and of which group, so that
//! what is left over of one that failed is known ([`GroupId`]).
//!
//! What carries the messages, and what they are combined by, must not be known here.

mod header;
mod progress;
mod schedule;

use core::ops::Range;

pub use header::{COLLECTIVE_HEADER_BYTES, CollectiveHeader, GroupId};
pub use progress::{CollectiveError, Data, Exchange, Progress};
pub use schedule::{Collective, Schedule, Step, Transfer};

/// Where blocks lie in data of so many bytes that is cut for `ranks`: each a whole number of elements, the first ones an element longer
/// where it does not come out even.
///
/// Empty where the data is no whole number of elements, or there is nothing to cut.
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
    // No more than all elements, so no more than the bytes there are.
    let start = |block: u8| {
        let before = usize::from(block.min(ranks));
        let elements = before.saturating_mul(each).saturating_add(before.min(longer));
        elements.saturating_mul(element_bytes)
    };
    start(blocks.start)..start(blocks.end)
}

#[cfg(test)]
mod tests;
