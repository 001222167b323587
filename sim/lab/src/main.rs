//! `cargo lab`.
fn main() {}
