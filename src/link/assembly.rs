//! Reassembly of a message from its fragments, in memory that is reserved when the link is created.

use super::config::LinkError;
use super::store::room_for;

/// The fragments of an incomplete message.
#[derive(Debug)]
pub(super) struct Assembly {
    /// The first `length` bytes are the message's; bytes of earlier messages follow.
    bytes: Vec<u8>,
    length: usize,
    bytes_max: usize,
}

impl Assembly {
    /// Reserves memory for the longest message.
    pub(super) fn new(bytes_max: usize) -> Result<Self, LinkError> {
        Ok(Self {
            bytes: room_for(bytes_max)?,
            length: 0,
            bytes_max,
        })
    }

    /// Length of the longest permitted message.
    pub(super) const fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// The bytes that have arrived of the incomplete message.
    pub(super) const fn length(&self) -> usize {
        self.length
    }

    /// Adds a fragment to its message, and delivers the message after its last fragment. Returns `false` if the message is too long.
    pub(super) fn add(
        &mut self,
        payload: &[u8],
        is_whole: bool,
        is_last: bool,
        deliver: &mut impl FnMut(&[u8]),
    ) -> bool {
        if is_whole && payload.len() <= self.bytes_max {
            deliver(payload);
            return true;
        }
        let copy = |room: &mut [u8]| room.copy_from_slice(payload);
        self.extend(payload.len(), is_last, copy, deliver)
    }

    /// Adds a fragment of this length, which `copy` writes. If `deliver` panics, its message counts as delivered: the next message starts
    /// empty.
    pub(super) fn extend(
        &mut self,
        bytes: usize,
        is_last: bool,
        copy: impl FnOnce(&mut [u8]),
        deliver: &mut impl FnMut(&[u8]),
    ) -> bool {
        let start = self.length;
        let Some(end) = start.checked_add(bytes).filter(|end| *end <= self.bytes_max) else {
            return false;
        };
        if self.bytes.len() < end {
            // Within the reserved capacity, so nothing is allocated.
            self.bytes.resize(end, 0);
        }
        if let Some(room) = self.bytes.get_mut(start..end) {
            copy(room);
        }
        self.length = end;
        if is_last {
            let whole = scopeguard::guard(self, |assembly| assembly.length = 0);
            deliver(whole.bytes.get(..end).unwrap_or_default());
        }
        true
    }
}
