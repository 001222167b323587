//! Workers and their channels over the simulated fabric.

mod cells;
mod channel;
mod coming;
mod credits;
mod ending;
#[path = "../fabric/mod.rs"]
mod fabric;
mod forgotten;
mod halves;
mod lossy;
mod many;
mod metrics;
mod panics;
mod posting;
mod probes;
mod ranges;
mod repeated;
mod requests;
mod ring_channel;
mod shared_receives;
mod simulated;
mod sizes;
mod split;
mod submit;
mod turns;
mod waiting;
