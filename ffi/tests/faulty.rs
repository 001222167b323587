//! `ffi` over a libibverbs that fails. Every call fails once, at every place where a whole life of a device makes
//! it. Values are outside their enumerations. Contexts end early or lack operations, and destroys are refused.
//!
//! The faults come from `ffi/fake`. The tests have a process of their own, since a fault is set for the whole
//! process.
#![expect(
    clippy::unwrap_used,
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "tests"
)]

#[path = "faulty/calls.rs"]
mod calls;
#[path = "faulty/cells.rs"]
mod cells;
#[path = "faulty/contexts.rs"]
mod contexts;
#[path = "faulty/destroys.rs"]
mod destroys;
#[path = "faulty/dmabuf.rs"]
mod dmabuf;
#[path = "faulty/inline.rs"]
mod inline;
#[path = "faulty/life.rs"]
mod life;
#[path = "faulty/on_demand.rs"]
mod on_demand;
#[path = "faulty/values.rs"]
mod values;

use std::sync::{Mutex, MutexGuard, PoisonError};

use doorbell_fake::Control;
use doorbell_ffi::Rdma;

/// The library and its faults, one test at a time; healed before and after.
struct Bench {
    rdma: Rdma,
    control: Control,
    _alone: MutexGuard<'static, ()>,
}

static ALONE: Mutex<()> = Mutex::new(());

impl Bench {
    fn new() -> Self {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let path = doorbell_fake::library_path().unwrap();
        // SAFETY: the fake was built from this workspace and stands for libibverbs of the machine's ABI.
        unsafe { rdma_sys::load_from(&path) }.unwrap();
        let control = Control::of(&path).unwrap();
        control.heal();
        Self {
            rdma: Rdma::load().unwrap(),
            control,
            _alone: alone,
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.control.heal();
    }
}
