//! The slots of one request or receive, in order, without a list on the heap.

use doorbell_core::provider::{GATHER_MAX, Slot as _, WindowRange};

use crate::id::Id;
use crate::{Slot, Window};

/// Up to as many slots as a request may have.
#[derive(Default)]
pub(crate) struct Gather([Option<Part>; GATHER_MAX]);

/// A slot of a request.
struct Part {
    slot: Slot,
    /// Offset and length of the bytes that are meant, if the slot holds a window for them.
    range: Option<[usize; 2]>,
}

impl Part {
    /// How many bytes are meant.
    fn len_bytes(&self) -> usize {
        self.range.map_or(self.slot.len_bytes(), |[_, bytes]| bytes)
    }

    /// Gives `each` so many of the bytes that are meant, beginning at `skip`.
    fn with(&self, skip: usize, bytes: usize, each: impl FnOnce(&[u8])) {
        match (self.range, self.slot.window()) {
            (Some([offset, _]), Some(window)) => {
                window.with(offset.saturating_add(skip), bytes, |bytes| {
                    each(bytes.unwrap_or_default())
                });
            }
            _ => each(
                self.slot
                    .payload()
                    .get(skip..skip.saturating_add(bytes))
                    .unwrap_or_default(),
            ),
        }
    }

    /// Writes bytes, beginning at `skip`.
    fn write(&mut self, skip: usize, bytes: &[u8]) {
        let copy = |place: Option<&mut [u8]>| {
            if let Some(place) = place {
                place.copy_from_slice(bytes);
            }
        };
        match (self.range, self.slot.window()) {
            (Some([offset, _]), Some(window)) => {
                window.with(offset.saturating_add(skip), bytes.len(), copy);
            }
            _ => {
                let end = skip.saturating_add(bytes.len());
                copy(self.slot.buffer_mut().get_mut(skip..end));
            }
        }
    }
}

/// A slot that is needed is registered in another protection domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Foreign;

impl Gather {
    pub(crate) fn of<const N: usize>(slots: [Slot; N]) -> Self {
        let mut gather = Self::default();
        for (place, slot) in gather.0.iter_mut().zip(slots) {
            *place = Some(Part { slot, range: None });
        }
        gather
    }

    /// Ranges of windows, each of which a slot holds until it is given back.
    pub(crate) fn of_ranges<const N: usize>(ranges: [WindowRange<'_, Window>; N]) -> Self {
        let mut gather = Self::default();
        for (place, range) in gather.0.iter_mut().zip(ranges) {
            *place = Some(Part {
                slot: range.window.hold(),
                range: Some([range.offset, range.bytes as usize]),
            });
        }
        gather
    }

    fn parts(&self) -> impl Iterator<Item = &Part> {
        self.0.iter().flatten()
    }

    /// The slots. A range has one without bytes.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Slot> {
        self.parts().map(|part| &part.slot)
    }

    /// The slots. A range has one without bytes.
    pub(crate) fn into_slots(self) -> impl Iterator<Item = Slot> {
        self.0.into_iter().flatten().map(|part| part.slot)
    }

    /// Whether memory that is needed is of another protection domain.
    pub(crate) fn is_foreign(&self, domain: Id) -> bool {
        self.parts()
            .any(|part| part.slot.domain() != domain && part.len_bytes() != 0)
    }

    /// How many bytes are meant.
    pub(crate) fn len_bytes(&self) -> usize {
        self.parts()
            .fold(0, |sum: usize, part| sum.saturating_add(part.len_bytes()))
    }

    /// How many bytes there is room for.
    pub(crate) fn capacity_bytes(&self) -> usize {
        self.iter()
            .fold(0, |sum: usize, slot| sum.saturating_add(slot.capacity_bytes()))
    }

    /// Appends `bytes` of those that are meant, beginning at `offset`.
    pub(crate) fn copy_out(&self, offset: usize, bytes: usize, into: &mut Vec<u8>) {
        let (mut skip, mut left) = (offset, bytes);
        for part in self.parts() {
            let meant = part.len_bytes();
            if let Some(rest) = meant.checked_sub(skip) {
                let now = left.min(rest);
                part.with(skip, now, |bytes| into.extend_from_slice(bytes));
                left = left.saturating_sub(now);
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
    /// slot takes part, of which a range takes part whole. Bytes beyond it are cut.
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
        for part in self.0.iter_mut().flatten() {
            if rest.is_empty() {
                break;
            }
            let size = part.range.map_or_else(|| room(&part.slot), |[_, bytes]| bytes);
            if skip >= size {
                skip = skip.saturating_sub(size);
                continue;
            }
            if part.slot.domain() != domain {
                return Err(Foreign);
            }
            let (now, later) = rest.split_at(size.saturating_sub(skip).min(rest.len()));
            part.write(skip, now);
            (skip, rest) = (0, later);
        }
        Ok(())
    }
}
