//! `cargo lab`: Soft-RoCE hosts, scenarios and tests on real kernels.

mod cluster;
mod process;
mod topology;

fn main() {}
