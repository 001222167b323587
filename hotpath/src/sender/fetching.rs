//! A READ into memory of no length: it fetches what its address reaches.

use doorbell_core::provider::{Operation, Refused, Slot};

use super::limits::Limits;

/// A READ into slots none of which has a length yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fetching {
    /// Bytes that its address reaches.
    bytes_max: u64,
}

impl Fetching {
    /// The length of a request whose slots have so many bytes; `None` where it is another.
    #[inline(always)]
    pub(super) fn of(operation: Operation, bytes: u64, limits: &Limits) -> Option<Self> {
        match operation {
            Operation::Read(remote) if bytes == 0 => Some(Self {
                bytes_max: limits.request_bytes_max().min(remote.read_bytes_max().into()),
            }),
            _ => None,
        }
    }

    /// Sets the lengths, slot by slot up to its capacity; says how many bytes that are in all.
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

/// The refused request as it came: without lengths, where it had none.
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
