//! Record of whether a thread is in the simulator, for programs that count memory by its owner.

use core::cell::Cell;
use core::ops::{Deref, DerefMut};
use std::sync::MutexGuard;

use crate::real_time::RealTime;
use crate::world::World;

thread_local! {
    /// How often it was entered, and not left. Nothing is made first and nothing dropped: an allocator may ask.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Whether the calling thread is in the simulator now: what it allocates is the simulator's, or memory that was asked of it.
#[must_use]
pub fn is_inside() -> bool {
    DEPTH.get() > 0
}

/// Marks that a thread is in the simulator, while the value lives.
pub(crate) struct Inside(());

impl Inside {
    pub(crate) fn enter() -> Self {
        // `LocalKey::set` is a call, and this is in every call of the simulator.
        DEPTH.with(|depth| depth.set(depth.get().saturating_add(1)));
        Self(())
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        DEPTH.with(|depth| depth.set(depth.get().saturating_sub(1)));
    }
}

/// The world, locked.
pub(crate) struct Locked<'w> {
    world: MutexGuard<'w, World>,
    real_time: Option<&'w RealTime>,
    _inside: Inside,
}

impl<'w> Locked<'w> {
    pub(crate) fn new(world: MutexGuard<'w, World>, real_time: Option<&'w RealTime>) -> Self {
        let mut locked = Self {
            world,
            real_time,
            _inside: Inside::enter(),
        };
        if let Some(real_time) = real_time {
            real_time.catch_up(&mut locked.world);
        }
        locked
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        if let Some(real_time) = self.real_time {
            real_time.notify(&mut self.world);
        }
    }
}

impl Deref for Locked<'_> {
    type Target = World;

    fn deref(&self) -> &World {
        &self.world
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut World {
        &mut self.world
    }
}
