//! The leader's log: the bytes that some follower may still need, and which of its entries are committed. No
//! network is here.

use std::collections::VecDeque;
use std::time::Instant;

use super::around::{Failure, Latencies};
use super::entry::{self, Applied};

/// The leader's log. A place in it is a count of bytes from its beginning.
pub(crate) struct Log {
    /// The last bytes, as a ring: place P is at P modulo its length.
    ring: Vec<u8>,
    /// The entries within the ring, oldest first.
    kept: VecDeque<Kept>,
    /// Appended so far, as a follower that has all of it would have it.
    appended: Applied,
    pub(crate) committed: u64,
    pub(crate) committed_entries: u64,
    pub(crate) latencies: Latencies,
    scratch: Vec<u8>,
}

struct Kept {
    end: u64,
    appended: Instant,
}

impl Log {
    pub(crate) fn new(bytes: usize) -> Result<Self, Failure> {
        Ok(Self {
            ring: vec![0; bytes],
            kept: VecDeque::new(),
            appended: Applied::default(),
            committed: 0,
            committed_entries: 0,
            latencies: Latencies::new()?,
            scratch: Vec::new(),
        })
    }

    pub(crate) const fn appended(&self) -> &Applied {
        &self.appended
    }

    /// Returns the end of the log.
    pub(crate) const fn end(&self) -> u64 {
        self.appended.bytes
    }

    pub(crate) fn capacity_bytes(&self) -> u64 {
        self.ring.len() as u64
    }

    /// Whether an entry of so many bytes fits while all from `needed` on are kept.
    pub(crate) fn has_room(&self, payload_bytes: u32, needed: u64) -> bool {
        let end = self.end() + entry::HEADER_BYTES as u64 + u64::from(payload_bytes);
        end - needed <= self.capacity_bytes()
    }

    /// Appends the next entry, over what is needed no more.
    ///
    /// # Errors
    /// The entry is larger than the log.
    pub(crate) fn append(&mut self, payload_bytes: u32, now: Instant) -> Result<(), Failure> {
        let begin = self.end();
        self.scratch.clear();
        let crc = entry::write(self.appended.entries, payload_bytes, &mut self.scratch);
        self.appended.note(self.scratch.len(), crc);
        let (first, second) = place(begin, self.scratch.len(), self.ring.len());
        let (head, tail) = self.scratch.split_at(first.len());
        for (range, bytes) in [(first, head), (second, tail)] {
            self.ring
                .get_mut(range)
                .ok_or("outside the ring")?
                .copy_from_slice(bytes);
        }
        self.kept.push_back(Kept {
            end: self.end(),
            appended: now,
        });
        Ok(())
    }

    /// The end of the last whole entry that lies within `bytes` from `begin`; `begin` where there is none.
    pub(crate) fn whole_until(&self, begin: u64, bytes: u64) -> u64 {
        let behind = self.kept.partition_point(|kept| kept.end <= begin + bytes);
        let last = behind.checked_sub(1).and_then(|last| self.kept.get(last));
        last.map_or(begin, |kept| kept.end.max(begin))
    }

    /// How many entries end behind `begin`, and not behind `end`.
    pub(crate) fn entries_between(&self, begin: u64, end: u64) -> usize {
        let until = |place: u64| self.kept.partition_point(|kept| kept.end <= place);
        until(end) - until(begin)
    }

    /// The bytes from `begin` to `end`: those before the ring ends, and those behind.
    pub(crate) fn bytes(&self, begin: u64, end: u64) -> (&[u8], &[u8]) {
        let count = usize::try_from(end - begin).unwrap_or_default();
        let (first, second) = place(begin, count, self.ring.len());
        (
            self.ring.get(first).unwrap_or_default(),
            self.ring.get(second).unwrap_or_default(),
        )
    }

    /// A majority has everything before `place`; everybody that is still here has it before `needed`.
    pub(crate) fn commit(&mut self, place: u64, needed: u64, now: Instant) {
        let before = self.kept.partition_point(|kept| kept.end <= self.committed);
        if place > self.committed {
            for kept in self.kept.iter().skip(before).take_while(|kept| kept.end <= place) {
                self.latencies.note(now.saturating_duration_since(kept.appended));
                self.committed_entries += 1;
                self.committed = kept.end;
            }
        }
        let needed = needed.min(self.committed);
        while self.kept.front().is_some_and(|kept| kept.end <= needed) {
            self.kept.pop_front();
        }
    }
}

/// Places so many bytes of the log in a ring: a part up to its end, and a part from its beginning.
pub(crate) fn place(
    begin: u64,
    count: usize,
    ring_bytes: usize,
) -> (core::ops::Range<usize>, core::ops::Range<usize>) {
    let begin = usize::try_from(begin % ring_bytes.max(1) as u64).unwrap_or_default();
    let first = count.min(ring_bytes - begin);
    (begin..begin + first, 0..count - first)
}
