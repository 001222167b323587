//! The shared state of a cache: the table under its lock, and the order of the calls around it. A use that hits takes no lock,
//! and neither does its end. Only one use in 524,288 of an entry takes the lock, to count the others.
//!
//! A missing registration is made in these steps, so that no change of a mapping is missed:
//!
//! 1. Reserve an entry. From now on a report about its range marks the entry as stale.
//! 2. Arm the mappings. From now on the kernel reports changes.
//! 3. Register, without the lock, since the thread that handles the reports needs the lock.
//! 4. Commit. If the entry is stale by now, drop the registration and begin again.

use core::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use doorbell_core::Lkey;
use doorbell_core::provider::ProviderError;
use doorbell_core::registrations::{
    AddressRange, Committed, Ended, EntryId, Key, Limits, Mark, Reservation, Slot, Table, TableCounts, Use,
    Uses,
};

use crate::error::ENOMEM;
use crate::machine::log::log;
use crate::memory::error::RegistrationError;
use crate::memory::seam::{Registrar, Subscriber, Watch};
use crate::memory::statistics::{RegistrationStatistics, Uncached};

/// Number of attempts while mappings change. After them the memory is registered for one use.
const ATTEMPTS: u32 = 4;

/// Number of waits for places that other threads empty. After them the memory is registered for one use.
const WAITS: u32 = 4;

type Marks = Uses<Box<[Mark]>>;

struct State<T> {
    table: Table<T, Box<[Slot<T>]>, Arc<Marks>>,
    uncached: [u64; Uncached::ALL.len()],
    /// Whether the cache is open. Then another thread deregisters registrations whose last use ends after they were removed.
    is_open: bool,
}

/// State that the handles and the registrations of one cache share.
pub(super) struct Shared<R: Registrar, W: Watch> {
    registrar: R,
    /// `None` if mappings are not watched. Then only memory that is promised to stay mapped is cached.
    watch: Option<W>,
    uses: Arc<Marks>,
    /// Whether this holds just one registration, which serves only one use.
    is_of_one_use: bool,
    state: Mutex<State<Arc<R::Registered>>>,
    /// Shared by the threads that deregister, without the lock above. A thread that waits for the places that they empty takes it alone.
    emptying: RwLock<()>,
}

/// A use of a registration. Dropping it ends the use.
pub(super) struct Hold<R: Registrar, W: Watch> {
    shared: Arc<Shared<R, W>>,
    lkey: Lkey,
    used: Use,
}

impl<R: Registrar, W: Watch> Hold<R, W> {
    #[inline]
    pub(super) const fn lkey(&self) -> Lkey {
        self.lkey
    }

    pub(super) fn is_cached(&self) -> bool {
        !self.shared.is_of_one_use
    }

    /// Returns the registration. It is not deregistered before this use ends.
    pub(super) fn registered(&self) -> Option<Arc<R::Registered>> {
        self.shared.lock().table.used(&self.used).map(Arc::clone)
    }
}

impl<R: Registrar, W: Watch> Drop for Hold<R, W> {
    #[inline(always)]
    fn drop(&mut self) {
        let used = mem::replace(&mut self.used, Use::of_nothing());
        if let Some(ended) = self.shared.uses.release(used) {
            self.shared.retire(ended);
        }
    }
}

/// Outcome of a lookup.
enum Found {
    Held(Use, Lkey),
    Missing,
    /// A change of a mapping is pending, which may concern this memory.
    Unsettled,
}

/// Outcome of an attempt to register.
enum Attempt<T> {
    Held(Use, Lkey),
    Alone(T),
    Again,
}

impl<R: Registrar, W: Watch> Shared<R, W> {
    pub(super) fn new(registrar: R, watch: Option<W>, limits: Limits) -> Self {
        let slots = (0..limits.entries).map(|_| Slot::new()).collect();
        let marks = (0..limits.entries).map(|_| Mark::new()).collect();
        let uses = Arc::new(Uses::new(marks));
        Self {
            registrar,
            watch,
            uses: Arc::clone(&uses),
            is_of_one_use: false,
            state: Mutex::new(State {
                table: Table::new(slots, uses, limits),
                uncached: [0; Uncached::ALL.len()],
                is_open: true,
            }),
            emptying: RwLock::new(()),
        }
    }

    /// Takes the lock. Under it nothing may be allocated, freed or dropped, since the thread that handles the reports waits for
    /// it.
    #[inline]
    fn lock(&self) -> MutexGuard<'_, State<Arc<R::Registered>>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds or makes a registration, and counts its use.
    #[inline(always)]
    pub(super) fn acquire(self: &Arc<Self>, key: &Key) -> Result<Hold<R, W>, RegistrationError> {
        // The caller has lent the memory before this question, and does not change its mapping from then on. So the answer covers
        // all changes, and the lookup may follow.
        if key.is_kept || self.watch.as_ref().is_some_and(W::is_settled) {
            if let Some((used, tag)) = self.uses.look_up(key) {
                return Ok(self.hold(used, Lkey(tag)));
            }
        }
        self.make(*key)
    }

    /// Looks up a registration under the lock, after the lookup without the lock failed.
    fn look_up(&self, key: &Key) -> Found {
        // The order is that of `acquire`.
        if !key.is_kept {
            match &self.watch {
                Some(watch) if !watch.is_settled() => return Found::Unsettled,
                Some(_) => {}
                None => return Found::Missing,
            }
        }
        match self.lock().table.look_up(key) {
            Some((used, registered)) => Found::Held(used, R::lkey(registered)),
            None => Found::Missing,
        }
    }

    /// Retires a registration whose last use ended after it was removed from look-ups, and has it deregistered.
    #[cold]
    #[inline(never)]
    fn retire(&self, ended: Ended) {
        let mut state = self.lock();
        let is_retired = state.table.retire(ended);
        let is_open = state.is_open;
        drop(state);
        if is_retired {
            self.clear(is_open);
        }
    }

    #[inline(always)]
    fn hold(self: &Arc<Self>, used: Use, lkey: Lkey) -> Hold<R, W> {
        Hold {
            shared: Arc::clone(self),
            lkey,
            used,
        }
    }

    #[cold]
    #[inline(never)]
    fn make(self: &Arc<Self>, key: Key) -> Result<Hold<R, W>, RegistrationError> {
        let key = &key;
        let mut found = self.look_up(key);
        for _ in 0..ATTEMPTS {
            match found {
                Found::Held(used, lkey) => return Ok(self.hold(used, lkey)),
                Found::Unsettled => {}
                Found::Missing => match self.attempt(key)? {
                    Attempt::Held(used, lkey) => return Ok(self.hold(used, lkey)),
                    Attempt::Alone(registered) => return self.hold_alone(key, registered),
                    Attempt::Again => {}
                },
            }
            std::thread::yield_now();
            found = self.look_up(key);
        }
        match found {
            Found::Held(used, lkey) => Ok(self.hold(used, lkey)),
            _ => self.hold_alone(key, self.register_alone(key, Uncached::Changing)?),
        }
    }

    /// Makes the only use of a registration that is not cached. The use has a separate, closed cache, so that it ends like any
    /// other use.
    fn hold_alone(&self, key: &Key, registered: Arc<R::Registered>) -> Result<Hold<R, W>, RegistrationError> {
        let limits = Limits {
            entries: 1,
            bytes: u64::MAX,
        };
        let lkey = R::lkey(&registered);
        let mut own = Self::new(self.registrar.clone(), None, limits);
        own.is_of_one_use = true;
        let own = Arc::new(own);
        let committed = {
            let table = &mut own.lock().table;
            match table.reserve(*key) {
                Reservation::Reserved(id) => table.commit(id, registered, lkey.0).ok(),
                _ => None,
            }
        };
        own.close();
        match committed {
            Some(Committed::Shared(used)) => Ok(Hold {
                shared: own,
                lkey,
                used,
            }),
            // Not reached: the new table has room for one registration.
            _ => Err(RegistrationError::Region {
                bytes: key.range.bytes(),
            }),
        }
    }

    fn attempt(&self, key: &Key) -> Result<Attempt<Arc<R::Registered>>, RegistrationError> {
        let id = match self.prepare(key) {
            Ok(id) => id,
            Err(reason) => return self.register_alone(key, reason).map(Attempt::Alone),
        };
        let registered = match self.register(key) {
            Ok(registered) => registered,
            Err(error) => {
                self.lock().table.abandon(id);
                return Err(error);
            }
        };
        let lkey = R::lkey(&registered);
        let committed = self.lock().table.commit(id, registered, lkey.0);
        match committed {
            Ok(Committed::Shared(used) | Committed::Alone(used)) => Ok(Attempt::Held(used, lkey)),
            Ok(Committed::Stale) => {
                self.deregister();
                Ok(Attempt::Again)
            }
            // Not reached: the entry was reserved above.
            Err(registered) => Ok(Attempt::Alone(registered)),
        }
    }

    /// Reserves an entry, and arms the mappings of its range.
    fn prepare(&self, key: &Key) -> Result<EntryId, Uncached> {
        let watch = match (&self.watch, key.is_kept) {
            (_, true) => None,
            (Some(watch), false) => Some(watch),
            (None, false) => return Err(Uncached::NoWatch),
        };
        let mut waits = 0..WAITS;
        let id = loop {
            let (reservation, has_retired) = {
                let table = &mut self.lock().table;
                (table.reserve(*key), table.has_retired())
            };
            match reservation {
                Reservation::Reserved(id) => break id,
                Reservation::DeregisterFirst if has_retired => self.deregister(),
                // Other threads deregister all that left.
                Reservation::DeregisterFirst if waits.next().is_some() => {
                    drop(self.emptying.write().unwrap_or_else(PoisonError::into_inner));
                }
                Reservation::DeregisterFirst => return Err(Uncached::Full),
                Reservation::Full => {
                    self.deregister();
                    return Err(Uncached::Full);
                }
            }
        };
        if let Some(Err(reason)) = watch.map(|watch| watch.arm(key.range)) {
            self.lock().table.abandon(id);
            return Err(reason);
        }
        Ok(id)
    }

    /// Registers memory for one use, and counts the reason.
    fn register_alone(&self, key: &Key, reason: Uncached) -> Result<Arc<R::Registered>, RegistrationError> {
        let registered = self.register(key)?;
        let mut state = self.lock();
        let mut is_first = false;
        if let Some(count) = state.uncached.get_mut(reason as usize) {
            is_first = *count == 0;
            *count = count.wrapping_add(1);
        }
        drop(state);
        if is_first {
            log!(
                warn,
                "memory is registered for each use and not cached",
                reason = reason,
                bytes = key.range.bytes()
            );
        }
        Ok(registered)
    }

    fn register(&self, key: &Key) -> Result<Arc<R::Registered>, RegistrationError> {
        let mut outcome = self.registrar.register(key.range, key.access);
        if outcome.as_ref().is_err_and(is_out_of_memory) {
            // Unused registrations pin memory, too, so they are evicted before the second attempt.
            self.evict_idle();
            // Other threads deregister all that left before.
            drop(self.emptying.write().unwrap_or_else(PoisonError::into_inner));
            outcome = self.registrar.register(key.range, key.access);
        }
        outcome.map(Arc::new).map_err(|error| {
            let pinned = self.registrar.pinned();
            match pinned.limit_bytes {
                Some(limit_bytes) if is_out_of_memory(&error) => RegistrationError::LockedMemory {
                    needed_bytes: key.range.bytes() as u64,
                    pinned_bytes: pinned.pinned_bytes,
                    limit_bytes,
                },
                _ => RegistrationError::Device(error),
            }
        })
    }

    /// Deregisters retired registrations: on another thread while the cache is open, else on this one.
    fn clear(&self, is_open: bool) {
        let is_done = is_open && self.watch.as_ref().is_some_and(W::deregister_elsewhere);
        if !is_done {
            self.deregister();
        }
    }

    /// Drops the registrations of a range.
    pub(super) fn forget(&self, range: AddressRange) {
        let mut state = self.lock();
        state.table.invalidate(range);
        drop(state);
        self.deregister();
    }

    /// Evicts and deregisters all unused registrations.
    pub(super) fn evict_idle(&self) {
        let mut state = self.lock();
        state.table.evict_idle();
        drop(state);
        self.deregister();
    }

    /// Closes the cache. Unused registrations are deregistered now, and each other one when its last use ends.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.is_open = false;
        // The whole address range: all registrations are removed from look-ups.
        if let Some(all) = AddressRange::new(0, usize::MAX) {
            state.table.evict_idle();
            state.table.invalidate(all);
        }
        drop(state);
        self.deregister();
    }

    pub(super) fn statistics(&self) -> RegistrationStatistics {
        let (counts, uncached): (TableCounts, _) = {
            let state = self.lock();
            (state.table.counts(), state.uncached)
        };
        RegistrationStatistics::new(counts, uncached)
    }
}

impl<R: Registrar, W: Watch> Subscriber for Shared<R, W> {
    fn invalidate(&self, range: AddressRange) -> bool {
        let mut state = self.lock();
        state.table.invalidate(range);
        state.table.has_retired()
    }

    fn deregister(&self) {
        let _emptying = self.emptying.read().unwrap_or_else(PoisonError::into_inner);
        loop {
            let taken = self.lock().table.take_retired();
            let Some((id, registered)) = taken else { break };
            drop(registered);
            self.lock().table.deregistered(id);
        }
    }
}

const fn is_out_of_memory(error: &ProviderError) -> bool {
    error.errno == ENOMEM
}
