//! Members of a mesh, one of which sends anything: a file of the library's own tests.
#![expect(dead_code, reason = "tests use more of it")]

#[path = "../../core/tests/wire/oracle/choices.rs"]
mod choices;
#[path = "../../tests/fabric/mod.rs"]
mod fabric;
#[path = "../../tests/mesh/stranger.rs"]
pub(crate) mod stranger;
#[path = "../../tests/mesh/world.rs"]
mod world;
