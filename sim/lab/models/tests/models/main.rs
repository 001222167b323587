//! All models that loom explores, in one program, so that it can call itself with each
//! ordering weakened in turn.
//!
//! What a model needs of memory beyond atomics is stood for by a witness; see the package.
#![cfg(doorbell_loom)]

mod accept;
mod credits;
mod desk;
mod detached;
mod due;
mod free_list;
mod mpsc;
mod ring;
mod signal;
mod sleeping;
mod spsc;
mod telling;
mod waiting;
mod weakened;
