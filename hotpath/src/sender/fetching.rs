//! A READ into slots without a length: it fetches all bytes of its address.

use doorbell_core::provider::{Operation, Refused, Slot};

use super::limits::Limits;

/// A READ into slots that all have length zero.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fetching {
    /// The number of bytes to fetch at most.
    bytes_max: u64,
}

impl Fetching {
    /// Returns a value if the request is a READ and its slots have zero bytes in all.
    #[inline(always)]
    pub(super) fn of(operation: Operation, bytes: u64, limits: &Limits) -> Option<Self> {
        match operation {
            Operation::Read(remote) if bytes == 0 => Some(Self {
                bytes_max: limits.request_bytes_max().min(remote.read_bytes_max().into()),
            }),
            _ => None,
        }
    }

    /// Sets the lengths, slot by slot, each up to its capacity. Returns the total.
    #[inline]
    pub(super) fn set_lengths<S: Slot>(self, slots: &mut [S]) -> u64 {
        let mut left = self.bytes_max;
        for slot in slots {
            let capacity = slot.capacity_bytes();
            let bytes = usize::try_from(left).unwrap_or(usize::MAX).min(capacity);
            slot.set_len_bytes(bytes);
            left = left.wrapping_sub(bytes as u64);
        }
        self.bytes_max.wrapping_sub(left)
    }
}

/// Restores a refused request: its slots get length zero again if they had it before.
#[inline(always)]
pub(super) fn undone<S: Slot, const N: usize>(
    fetching: Option<Fetching>,
    mut refused: Refused<[S; N]>,
) -> Refused<[S; N]> {
    if fetching.is_some() {
        refused.item.iter_mut().for_each(|slot| slot.set_len_bytes(0));
    }
    refused
}
