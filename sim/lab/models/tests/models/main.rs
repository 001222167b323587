//! All models that loom explores, in one program, so that it can call itself with each
//! ordering weakened in turn.
//!
//! A witness stands for memory other than atomics; see the package.
#![cfg(doorbell_loom)]

mod accept_queue;
mod credits;
mod detached;
mod due;
mod free_list;
mod mpsc;
mod registrations;
mod reporting;
mod ring;
mod shared_ring;
mod signal;
mod sleeping;
mod spsc;
mod waiting;
mod weakened;
