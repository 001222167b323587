//! Real time: a fabric that follows a clock its builder was given, and the thread that keeps it going.
//!
//! Each call first runs all events that are due by the clock. The thread does so while nobody calls, so that
//! threads sleeping at descriptors wake up. This is the one file of the simulator that knows threads and real
//! waits.

use core::fmt;
use core::time::Duration;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use doorbell_core::time::Instant;

use crate::inside::Inside;
use crate::world::World;

/// Longest sleep of the thread and of waiting threads, before they look again.
const NAP: Duration = Duration::from_millis(100);

/// Drives a world by a clock. Dropped, its thread ends.
pub(crate) struct RealTime {
    clock: fn() -> Instant,
    world: Arc<Mutex<World>>,
    /// Something happened in the world.
    moved: Arc<Condvar>,
}

impl RealTime {
    /// Starts the thread. If the system gives none, time passes in calls alone, by the clock all the same.
    pub(crate) fn start(clock: fn() -> Instant, world: &Arc<Mutex<World>>) -> Self {
        let (world, moved) = (Arc::clone(world), Arc::new(Condvar::new()));
        let started = Self {
            clock,
            world: Arc::clone(&world),
            moved: Arc::clone(&moved),
        };
        let drive = move || {
            let _inside = Inside::enter();
            let mut held = guard(&world);
            while !held.is_over {
                catch_up(clock, &mut held, &moved);
                held = nap(&moved, held, Instant::from_ns(u64::MAX));
            }
        };
        let _ = thread::Builder::new().name("doorbell-fabric".into()).spawn(drive);
        started
    }

    /// Lets happen what is due.
    pub(crate) fn catch_up(&self, world: &mut World) {
        catch_up(self.clock, world, &self.moved);
    }

    /// Wakes waiting threads, if something happened.
    pub(crate) fn notify(&self, world: &mut World) {
        notify(world, &self.moved);
    }

    /// Blocks until the awaited condition holds, or until this time.
    pub(crate) fn wait(&self, is_found: impl Fn(&World) -> bool, until: Instant) {
        let _inside = Inside::enter();
        let mut held = guard(&self.world);
        loop {
            self.catch_up(&mut held);
            if is_found(&held) || held.now_ns() >= until.to_ns() {
                return;
            }
            held = nap(&self.moved, held, until);
        }
    }
}

impl Drop for RealTime {
    fn drop(&mut self) {
        guard(&self.world).is_over = true;
        self.moved.notify_all();
    }
}

impl fmt::Debug for RealTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RealTime").finish_non_exhaustive()
    }
}

fn guard(world: &Mutex<World>) -> MutexGuard<'_, World> {
    // Nothing panics while it is held; were it so, each object would still be whole.
    world.lock().unwrap_or_else(PoisonError::into_inner)
}

fn catch_up(clock: fn() -> Instant, world: &mut World, moved: &Condvar) {
    world.run_until(clock().to_ns());
    notify(world, moved);
}

fn notify(world: &mut World, moved: &Condvar) {
    if world.has_moved() {
        moved.notify_all();
    }
}

/// Sleeps until something happened, or the next thing is due, or this time comes.
fn nap<'w>(moved: &Condvar, mut world: MutexGuard<'w, World>, until: Instant) -> MutexGuard<'w, World> {
    let due_ns = world.next_at_ns().unwrap_or(u64::MAX).min(until.to_ns());
    let span = Duration::from_nanos(due_ns.saturating_sub(world.now_ns())).min(NAP);
    let woken = moved.wait_timeout(world, span);
    woken.unwrap_or_else(PoisonError::into_inner).0
}

/// Turns that a waiting thread gives to other threads before virtual time passes.
pub(crate) struct Turns {
    left: u32,
    began: std::time::Instant,
}

impl Turns {
    pub(crate) fn begin() -> Self {
        Self {
            left: TURNS,
            began: std::time::Instant::now(),
        }
    }

    /// Whether there is another turn, which this call counts.
    pub(crate) fn is_left(&mut self, is_shared: bool) -> bool {
        let is_over = self.left == 0 || (!is_shared && self.began.elapsed() >= TURNS_TAKE);
        self.left = self.left.saturating_sub(1);
        !is_over
    }
}

/// How often other threads get their turn before it does, unless what is waited for is found. On a machine with much to do
/// each may take milliseconds.
const TURNS: u32 = 64;

/// The turns take no longer than this while one thread has the fabric to itself: then no call of another is under way, and at most
/// a thread is about to begin.
const TURNS_TAKE: Duration = Duration::from_micros(500);
