//! Connecting and accepting over the simulated fabric: limits, trust, rails, and peers that are silent, hostile or of an old version.

mod connecting;
#[path = "../fabric/mod.rs"]
mod fabric;
#[path = "../fabric/failing.rs"]
mod failing;
mod failing_port;
mod handshakes;
mod rails;
#[path = "../fabric/stranger.rs"]
mod stranger;
mod trust;
mod version_one;
mod version_two;
mod virtual_time;
