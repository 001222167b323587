//! Memory is lent to a device by a promise, which safe code cannot make.

use core::ptr::NonNull;

use doorbell::Worker;
use doorbell::worker::StableMemory;

pub struct Mine(u64);

impl StableMemory for Mine { fn region(&self) -> (NonNull<u8>, usize) { (NonNull::dangling(), 8) } } //~ E0200

pub fn a_vector_is_no_mapping(worker: &Worker) {
    worker.adopt(vec![0_u8; 64], 64).ok(); //~ E0277
}

pub fn unmapped_under_the_device<M: StableMemory + 'static>(worker: &Worker, memory: M) {
    worker.adopt(memory, 64).ok();
    drop(memory); //~ E0382
}
