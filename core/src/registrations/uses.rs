//! The numbers of users of registrations, counted without the lock of the table.
//!
//! A lookup that hits and a release change one word each, from any thread. A [`Table`](super::Table), which shares these marks, makes all
//! other changes under its caller's lock. The word of a place has its generation and its number of users. A lookup exchanges the whole
//! word, so it succeeds only if the entry is still live, and still of the generation whose key was compared.
//!
//! | bits of a word | field |
//! |---|---|
//! | 63..40 | generation of the place, its lower bits |
//! | 39..20 | uses that lookups began since the table counted them last |
//! | 19 | unlinked: no lookup may find it |
//! | 18..0 | users |
//!
//! The upper bit of either count is a guard: a lookup without the lock does not change a word in which it is set.

use core::fmt;

use super::{Ended, Key, Use};
use crate::ordering::{REGISTRATION_END, REGISTRATION_FIND, REGISTRATION_PUBLISH, REGISTRATION_UNLINK};
use crate::sync::{AtomicU32, AtomicU64, Ordering, RaceWitness};

/// The end of a bucket.
pub(super) const NONE: u32 = u32::MAX;

const USER: u64 = 1;
const USERS: u64 = (1 << 19) - 1;
const USERS_GUARD: u64 = 1 << 18;
const UNLINKED: u64 = 1 << 19;
const BEGUN_SHIFT: u32 = 20;
const BEGUN: u64 = ((1 << 20) - 1) << BEGUN_SHIFT;
const BEGUN_GUARD: u64 = 1 << 39;
/// If one of these bits is set, a lookup without the lock does not change the word.
const CLOSED: u64 = USERS_GUARD | UNLINKED | BEGUN_GUARD;
const GENERATION_SHIFT: u32 = 40;

/// The number of entries of its bucket that a lookup without the lock visits: the first and three more. It may miss an existing entry.
const ENTRIES_MAX: u32 = 4;

/// One place, as lookups without the lock read it, and the head of one bucket. It fills one cache line.
#[repr(align(64))]
pub struct Mark {
    word: AtomicU64,
    start: AtomicU64,
    end: AtomicU64,
    rights: AtomicU32,
    /// The caller's word for the registration.
    tag: AtomicU32,
    /// The next live entry of the bucket.
    pub(super) next: AtomicU32,
    /// The first live entry of the bucket with this index.
    pub(super) bucket: AtomicU32,
    /// The number of commits at the last use.
    used_at: AtomicU32,
    /// The witness of the key, the tag and the registration.
    registered: RaceWitness,
}

impl Mark {
    /// The mark of a free place.
    #[must_use]
    pub fn new() -> Self {
        Self {
            word: AtomicU64::new(UNLINKED),
            start: AtomicU64::new(0),
            end: AtomicU64::new(0),
            rights: AtomicU32::new(0),
            tag: AtomicU32::new(0),
            next: AtomicU32::new(NONE),
            bucket: AtomicU32::new(NONE),
            used_at: AtomicU32::new(0),
            registered: RaceWitness::new(),
        }
    }

    fn word(&self) -> u64 {
        // Relaxed: under the lock, or as a hint.
        self.word.load(Ordering::Relaxed)
    }

    pub(super) fn has_users(&self) -> bool {
        self.word() & USERS != 0
    }

    /// Uses that lookups began, and that the table has not counted yet.
    pub(super) fn begun(&self) -> u64 {
        (self.word() & BEGUN) >> BEGUN_SHIFT
    }

    #[inline(always)]
    fn has_key(&self, key: &Key) -> bool {
        self.start.load(Ordering::Relaxed) == key.range.start as u64
            && self.end.load(Ordering::Relaxed) == key.range.end as u64
            && self.rights.load(Ordering::Relaxed) == rights_of(key)
    }

    /// Begins the entry of a generation, with one user. Returns the uncounted uses of the entry before it.
    pub(super) fn begin(&self, generation: u32, key: &Key, tag: u32, is_live: bool) -> u64 {
        let begun = self.begun();
        self.registered.write();
        self.start.store(key.range.start as u64, Ordering::Relaxed);
        self.end.store(key.range.end as u64, Ordering::Relaxed);
        self.rights.store(rights_of(key), Ordering::Relaxed);
        self.tag.store(tag, Ordering::Relaxed);
        let unlinked = if is_live { 0 } else { UNLINKED };
        let word = u64::from(generation) << GENERATION_SHIFT | unlinked | USER;
        self.word.store(word, REGISTRATION_PUBLISH.get());
        begun
    }

    /// Counts one more user of a live entry, under the lock. Returns the uncounted uses, this one included, which the caller has to count;
    /// `None` if the number of users has reached its limit.
    pub(super) fn take_up(&self, clock: u32) -> Option<u64> {
        let mut known = self.word();
        loop {
            if known & USERS_GUARD != 0 {
                return None;
            }
            let next = (known & !BEGUN).wrapping_add(USER);
            match self
                .word
                .compare_exchange_weak(known, next, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => break,
                Err(current) => known = current,
            }
        }
        self.used_at.store(clock, Ordering::Relaxed);
        Some(((known & BEGUN) >> BEGUN_SHIFT).wrapping_add(1))
    }

    /// Hides the entry from lookups, under the lock. Returns whether it has no users, so that the caller has to retire it.
    pub(super) fn unlink(&self) -> bool {
        self.word.fetch_or(UNLINKED, REGISTRATION_UNLINK.get()) & USERS == 0
    }

    /// Hides a live entry from lookups, under the lock, if it has no users. Returns whether it did.
    pub(super) fn unlink_idle(&self) -> bool {
        let known = self.word();
        known & USERS == 0
            && self
                .word
                .compare_exchange(
                    known,
                    known | UNLINKED,
                    REGISTRATION_UNLINK.get(),
                    Ordering::Relaxed,
                )
                .is_ok()
    }

    /// The number of commits since its last use.
    pub(super) fn age(&self, clock: u32) -> u32 {
        clock.wrapping_sub(self.used_at.load(Ordering::Relaxed))
    }

    #[inline(always)]
    pub(super) fn use_at(&self, clock: u32) {
        self.used_at.store(clock, Ordering::Relaxed);
    }
}

impl Default for Mark {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mark({:#x})", self.word())
    }
}

#[inline(always)]
fn rights_of(key: &Key) -> u32 {
    key.access.bits() << 1 | u32::from(key.is_kept)
}

/// The marks of one table, one for each slot, in storage from the caller.
pub struct Uses<Marks> {
    marks: Marks,
    /// The number of commits, which orders uses by age.
    clock: AtomicU32,
}

impl<Marks: AsRef<[Mark]>> Uses<Marks> {
    /// Marks of free places.
    pub fn new(marks: Marks) -> Self {
        Self {
            marks,
            clock: AtomicU32::new(0),
        }
    }

    /// Finds a live registration of a key and counts the caller as a user, without the lock of the table. Returns the use and the word that
    /// was committed with the registration. `None` if there is none, or if only a lookup under the lock finds it.
    ///
    /// Ordering: [`REGISTRATION_FIND`] pairs with [`REGISTRATION_PUBLISH`] of its commit.
    #[inline(always)]
    pub fn look_up(&self, key: &Key) -> Option<(Use, u32)> {
        let marks = self.marks.as_ref();
        let bucket = marks.get(bucket_of(key, marks.len()))?;
        // Relaxed: a list that changes meanwhile leads to entries with other keys, or to its end.
        let index = bucket.bucket.load(Ordering::Relaxed);
        self.take_up(key, index)
            .or_else(|| self.look_further(*key, index))
    }

    /// Tries the first entry of a bucket once more, since its counts may have changed, and then further entries.
    #[cold]
    #[inline(never)]
    fn look_further(&self, key: Key, mut index: u32) -> Option<(Use, u32)> {
        let mut entries = 0_u32;
        while entries < ENTRIES_MAX {
            if let Some(found) = self.take_up(&key, index) {
                return Some(found);
            }
            let mark = self.marks().get(index as usize)?;
            // An open entry of the key is tried again: another thread changed its counts meanwhile.
            if !mark.has_key(&key) || mark.word() & CLOSED != 0 {
                entries = entries.saturating_add(1);
                index = mark.next.load(Ordering::Relaxed);
            }
        }
        None
    }

    /// Counts one more user of the entry with this index, if it is live, has this key, and no other thread changes its counts meanwhile.
    #[inline(always)]
    fn take_up(&self, key: &Key, index: u32) -> Option<(Use, u32)> {
        let mark = self.marks().get(index as usize)?;
        let known = mark.word.load(REGISTRATION_FIND.get());
        if known & CLOSED != 0 || !mark.has_key(key) {
            return None;
        }
        let tag = mark.tag.load(Ordering::Relaxed);
        let next = known.wrapping_add(USER | 1 << BEGUN_SHIFT);
        // Relaxed: the key was read after its publication was seen. From here on the place is not reused before this use ends.
        let taken = mark
            .word
            .compare_exchange(known, next, Ordering::Relaxed, Ordering::Relaxed);
        taken.ok()?;
        mark.registered.read();
        mark.use_at(self.clock());
        Some((Use { index }, tag))
    }

    /// Ends one use, without the lock of the table. If it was the last use of an entry that no lookup finds any more, the caller has to
    /// retire the entry under the lock ([`Table::retire`](super::Table::retire)). The use must be of these marks.
    ///
    /// Ordering: [`REGISTRATION_END`] pairs with itself, and with [`REGISTRATION_UNLINK`].
    #[inline(always)]
    pub fn release(&self, used: Use) -> Option<Ended> {
        let Use { index } = used;
        let mark = self.marks().get(index as usize)?;
        mark.registered.read();
        let known = mark.word.fetch_sub(USER, REGISTRATION_END.get());
        debug_assert!(known & USERS != 0, "a use of other marks");
        (known & (USERS | UNLINKED) == (USER | UNLINKED)).then_some(Ended { index })
    }

    #[inline(always)]
    pub(super) fn clock(&self) -> u32 {
        self.clock.load(Ordering::Relaxed)
    }

    /// Counts a commit.
    pub(super) fn tick(&self) {
        self.clock.store(self.clock().wrapping_add(1), Ordering::Relaxed);
    }

    #[inline(always)]
    pub(super) fn marks(&self) -> &[Mark] {
        self.marks.as_ref()
    }
}

impl<Marks> fmt::Debug for Uses<Marks> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Uses").finish_non_exhaustive()
    }
}

/// The bucket of a key, below `buckets`, or 0 if there are none. Rights are not hashed: few registrations differ only by their rights.
#[inline(always)]
pub(super) fn bucket_of(key: &Key, buckets: usize) -> usize {
    // An odd constant near 2^64 divided by the golden ratio spreads adjacent addresses over the upper bits.
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    let (start, end) = (key.range.start as u64, key.range.end as u64);
    // With this factor, consecutive buffers whose length is a power of two share a bucket with at most three others.
    let hash = start.wrapping_add(end.wrapping_mul(4)).wrapping_mul(SPREAD);
    let bucket = (u128::from(hash).wrapping_mul(buckets as u128) >> 64) as u64;
    // The bucket is below `buckets`, so it fits.
    usize::try_from(bucket).unwrap_or(0)
}
