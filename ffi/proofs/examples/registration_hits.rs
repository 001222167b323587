//! Uses of a kept registration, for callgrind: how many instructions one takes.
//!
//! `valgrind --tool=callgrind --toggle-collect='*measured_watched*' target/release/examples/registration_hits` counts
//! 1,000 uses of watched memory, and `measured_kept` those of memory that is promised to stay.
#![expect(clippy::unwrap_used, reason = "it fails by panicking")]

use core::hint::black_box;
use core::ptr::NonNull;

use doorbell::memory::{LentMemory, RegistrationCache, RegistrationCacheConfig};
use doorbell::provider::Access;
use doorbell::{Node, Trust, WorkerConfig};

const USES: u32 = 1000;
const BYTES: usize = 1 << 16;

/// Bytes of the heap, leaked, so that they stay.
#[derive(Clone, Copy)]
struct Watched(NonNull<u8>);

// SAFETY: initialised bytes that stay where they are and that nobody uses; no child is made.
unsafe impl LentMemory for Watched {
    fn region(&self) -> (NonNull<u8>, usize) {
        (self.0, BYTES)
    }
}

#[derive(Clone, Copy)]
struct Kept(NonNull<u8>);

// SAFETY: as above, until the process ends.
unsafe impl LentMemory for Kept {
    const IS_KEPT: bool = true;

    fn region(&self) -> (NonNull<u8>, usize) {
        (self.0, BYTES)
    }
}

fn main() {
    let path = doorbell_fake::library_path().unwrap();
    // SAFETY: the fake was built from this workspace and stands for libibverbs of the machine's ABI.
    unsafe { rdma_sys::load_from(&path) }.unwrap();
    let node = Node::open(Trust::unauthenticated_on_purpose()).unwrap();
    let workers = node.workers(&WorkerConfig::default()).unwrap();
    let cache = workers[0].registration_cache(&RegistrationCacheConfig::default());
    let memory: NonNull<u8> = NonNull::from(Box::leak(Box::new([0_u8; BYTES]))).cast();
    measured_watched(&cache, Watched(memory), 1);
    measured_kept(&cache, Kept(memory), 1);
    measured_watched(&cache, Watched(memory), USES);
    measured_kept(&cache, Kept(memory), USES);
    println!("{:?}, {:?}", cache.watches(), cache.statistics());
}

#[inline(never)]
fn measured_watched(cache: &RegistrationCache, memory: Watched, uses: u32) {
    repeat(cache, memory, uses);
}

#[inline(never)]
fn measured_kept(cache: &RegistrationCache, memory: Kept, uses: u32) {
    repeat(cache, memory, uses);
}

#[inline(always)]
fn repeat<M: LentMemory + Copy>(cache: &RegistrationCache, memory: M, uses: u32) {
    for _ in 0..uses {
        let registration = cache.register(black_box(memory), Access::LOCAL_WRITE);
        black_box(registration.map_err(|refused| refused.error).unwrap().lkey());
    }
}
