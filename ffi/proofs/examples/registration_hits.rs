//! Uses of a registration cache, for callgrind: `registration_hits watched|kept|missed USES`.
//!
//! `watched` uses one registration of memory whose mappings are watched, and `kept` one of memory that is promised to stay. `missed` registers
//! another range of such memory at each use. The uses are in the function `measured_uses`.
//!
//! valgrind has no `userfaultfd(2)`, so `watched` fails there: it can only be run by itself.

use core::error::Error;
use core::hint::black_box;
use core::ptr::NonNull;

use doorbell::memory::{LentMemory, RegistrationCache, RegistrationCacheConfig};
use doorbell::provider::Access;
use doorbell::{Node, Trust, WorkerConfig};

/// Bytes of a range.
const BYTES: usize = 1 << 14;

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

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let (Some(how), Some(uses)) = (words.next(), words.next()) else {
        return Err("watched|kept|missed USES".into());
    };
    let uses: usize = uses.parse()?;
    let path = doorbell_fake::library_path()?;
    // SAFETY: the fake was built from this workspace and stands for libibverbs of the machine's ABI.
    unsafe { rdma_sys::load_from(&path) }?;
    let node = Node::open(Trust::unauthenticated_on_purpose())?;
    let workers = node.workers(&WorkerConfig::default())?;
    let worker = workers.first().ok_or("no device")?;
    let cache = worker.registration_cache(&RegistrationCacheConfig::default());
    let ranges = if how == "missed" { uses } else { 1 };
    let bytes: &'static mut [[u8; BYTES]] = Box::leak(vec![[0; BYTES]; ranges].into_boxed_slice());
    let ranges: Vec<NonNull<u8>> = bytes
        .iter_mut()
        .map(|range| NonNull::from(range).cast())
        .collect();
    let used: Vec<_> = ranges.iter().copied().cycle().take(uses).collect();
    match how.as_str() {
        "kept" | "missed" => measured_uses(&cache, &used.into_iter().map(Kept).collect::<Vec<_>>()),
        "watched" => {
            cache.watches()?;
            measured_uses(&cache, &used.into_iter().map(Watched).collect::<Vec<_>>())
        }
        _ => return Err("watched|kept|missed USES".into()),
    }?;
    println!("{:?}, {:?}", cache.watches(), cache.statistics());
    Ok(())
}

#[inline(never)]
fn measured_uses<M: LentMemory + Copy>(
    cache: &RegistrationCache,
    memory: &[M],
) -> Result<(), Box<dyn Error>> {
    for memory in memory {
        let registration = cache.register(black_box(*memory), Access::LOCAL_WRITE);
        black_box(registration.map_err(|refused| refused.error)?.lkey());
    }
    Ok(())
}
