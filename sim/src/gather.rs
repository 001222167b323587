//! The slots of one request or receive, in order, without a list on the heap.

use doorbell_core::provider::{GATHER_MAX, Slot as _, WindowRange};

use crate::id::Id;
use crate::{Slot, Window};

/// Up to as many slots as a request may have.
#[derive(Default)]
pub(crate) struct Gather([Option<Slot>; GATHER_MAX]);

/// A slot that is needed is registered in another protection domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Foreign;

impl Gather {
    pub(crate) fn of<const N: usize>(slots: [Slot; N]) -> Self {
        let mut gather = Self::default();
        for (place, slot) in gather.0.iter_mut().zip(slots) {
            *place = Some(slot);
        }
        gather
    }

    /// Ranges of windows, each of which a slot holds until it is given back.
    pub(crate) fn of_ranges<const N: usize>(ranges: [WindowRange<'_, Window>; N]) -> Self {
        Self::of(ranges.map(|range| range.window.hold(range.offset, range.bytes)))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Slot> {
        self.0.iter().flatten()
    }

    pub(crate) fn into_slots(self) -> impl Iterator<Item = Slot> {
        self.0.into_iter().flatten().map(Slot::without_range)
    }

    /// Whether memory that is needed is of another protection domain.
    pub(crate) fn is_foreign(&self, domain: Id) -> bool {
        self.iter()
            .any(|slot| slot.domain() != domain && slot.len_bytes() != 0)
    }

    /// How many bytes are meant.
    pub(crate) fn len_bytes(&self) -> usize {
        self.iter()
            .fold(0, |sum: usize, slot| sum.saturating_add(slot.len_bytes()))
    }

    /// How many bytes there is room for.
    pub(crate) fn capacity_bytes(&self) -> usize {
        self.iter()
            .fold(0, |sum: usize, slot| sum.saturating_add(slot.capacity_bytes()))
    }

    /// Appends `bytes` of those that are meant, beginning at `offset`.
    pub(crate) fn copy_out(&self, offset: usize, bytes: usize, into: &mut Vec<u8>) {
        let (mut skip, mut left) = (offset, bytes);
        for slot in self.iter() {
            let meant = slot.len_bytes();
            if let Some(rest) = meant.checked_sub(skip) {
                let part = left.min(rest);
                slot.look(skip, part, |bytes| into.extend_from_slice(bytes));
                left = left.saturating_sub(part);
                skip = 0;
            } else {
                skip = skip.saturating_sub(meant);
            }
            if left == 0 {
                return;
            }
        }
    }

    /// So many bytes of those there is room for, as a message filled them.
    pub(crate) fn scattered(&self, bytes: usize) -> Vec<u8> {
        let all = self.iter().flat_map(|slot| slot.buffer().iter().copied());
        all.take(bytes).collect()
    }

    /// Copies bytes to where they belong, beginning at `offset`; `room` says how much of a
    /// slot takes part. Bytes beyond it are cut.
    ///
    /// # Errors
    /// A slot that is needed is of another domain; those before it were written to.
    pub(crate) fn copy_in(
        &mut self,
        offset: usize,
        bytes: &[u8],
        domain: Id,
        room: impl Fn(&Slot) -> usize,
    ) -> Result<(), Foreign> {
        let (mut skip, mut rest) = (offset, bytes);
        for slot in self.0.iter_mut().flatten() {
            if rest.is_empty() {
                break;
            }
            let size = room(slot);
            if skip >= size {
                skip = skip.saturating_sub(size);
                continue;
            }
            if slot.domain() != domain {
                return Err(Foreign);
            }
            let (now, later) = rest.split_at(size.saturating_sub(skip).min(rest.len()));
            slot.write(skip, now);
            (skip, rest) = (0, later);
        }
        Ok(())
    }
}
